"""Networks of PyPOTS for windows of time series: those that TSI-Bench compares."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from gpytorch_sgpvae.datasets import WindowData

from .windows import Gaussians, Imputed, num_learnt, without_deviations

INSTALLED = importlib.util.find_spec("pypots") is not None
# As TSI-Bench trains them: batches of 32, at most 100 epochs, and an end when ten have brought nothing.
TRAINING = {"epochs": 100, "patience": 10, "batch_size": 32}
# Draws whose mean is what a probabilistic network says.
NUM_DRAWS = 10

# The sizes that TSI-Bench publishes for ItalyAir (benchmark_code/hpo_results/italy_air.py of its repository). It has
# published none for ETTh1: these are the sizes of PyPOTS' introduction, and its usual learning rate.
Sizes = dict[str, Any]
SAITS: dict[str, Sizes] = {
    "ItalyAir": {
        "n_layers": 3,
        "d_model": 64,
        "d_ffn": 64,
        "n_heads": 8,
        "d_k": 128,
        "d_v": 32,
        "dropout": 0.1,
        "attn_dropout": 0.2,
        "lr": 7.565e-5,
    },
    "": {"n_layers": 2, "d_model": 256, "d_ffn": 128, "n_heads": 4, "d_k": 64, "d_v": 64, "dropout": 0.1, "lr": 1e-3},
}
TRANSFORMER: dict[str, Sizes] = {
    "ItalyAir": {
        "n_layers": 4,
        "d_model": 256,
        "d_ffn": 128,
        "n_heads": 2,
        "d_k": 256,
        "d_v": 256,
        "dropout": 0.0,
        "attn_dropout": 0.4,
        "lr": 1.413e-4,
    },
    "": {"n_layers": 2, "d_model": 256, "d_ffn": 128, "n_heads": 4, "d_k": 64, "d_v": 64, "dropout": 0.1, "lr": 1e-3},
}
BRITS: dict[str, Sizes] = {
    "ItalyAir": {"rnn_hidden_size": 256, "lr": 2.657e-3},
    "": {"rnn_hidden_size": 128, "lr": 1e-3},
}
GP_VAE: dict[str, Sizes] = {
    "ItalyAir": {
        "latent_size": 7,
        "encoder_sizes": (256, 256),
        "decoder_sizes": (128, 128),
        "beta": 0.2,
        "sigma": 1.005,
        "length_scale": 7,
        "window_size": 12,
        "lr": 2.744e-3,
    },
    "": {"latent_size": 37, "encoder_sizes": (128, 128), "decoder_sizes": (256, 256), "lr": 1e-3},
}
# By name: the class of PyPOTS, and its sizes.
NETWORKS: dict[str, tuple[str, dict[str, Sizes]]] = {
    "saits": ("SAITS", SAITS),
    "brits": ("BRITS", BRITS),
    "transformer": ("Transformer", TRANSFORMER),
    "pypots-gpvae": ("GPVAE", GP_VAE),
}


def network_method(network: str, dataset: str) -> Callable[[WindowData, int, bool], Imputed]:
    """
    A network of PyPOTS as a method, on one thread.

    :param network: A name in NETWORKS.
    :param dataset: The data set, whose published sizes it gets where there are some.
    """

    def fill(data: WindowData, seed: int, smoke: bool) -> Imputed:
        model = make_network(network, dataset, data, seed, 1 if smoke else None)
        model.fit(*sets_of(data))
        return Imputed(None, filled_by(model, data), num_learnt(model.model))

    return fill


def make_network(network: str, dataset: str, data: WindowData, seed: int, epochs: int | None = None) -> Any:
    """
    A network before any training.

    :param network: A name in NETWORKS.
    :param dataset: The data set, whose published sizes it gets where there are some.
    :param data: The windows.
    :param seed: Seed of its weights and of its training.
    :param epochs: Rounds over the windows at most, if not the usual number.
    """
    import pypots.imputation
    from pypots.optim import Adam
    from pypots.utils.random import set_random_seed

    set_random_seed(seed)
    kind, all_sizes = NETWORKS[network]
    sizes = dict(all_sizes.get(dataset, all_sizes[""]))
    rate = sizes.pop("lr")
    num_points, num_outputs = data.train.seen.shape[1:]
    training = TRAINING if epochs is None else {**TRAINING, "epochs": epochs, "patience": min(epochs, 10)}
    options = {"n_steps": num_points, "n_features": num_outputs, "device": "cpu", "verbose": False, **training}
    return getattr(pypots.imputation, kind)(**options, **sizes, optimizer=Adam(lr=rate))


def sets_of(data: WindowData) -> tuple[dict[str, Any], dict[str, Any]]:
    """The training set and the validation set by PyPOTS' convention."""
    validation = {"X": data.validation.seen, "X_ori": data.validation.truth}
    return {"X": data.train.seen.float().numpy()}, {name: part.float().numpy() for name, part in validation.items()}


def filled_by(model: Any, data: WindowData) -> Gaussians:
    """What a trained network says of the test windows; without standard deviations."""
    draws = {"n_sampling_times": NUM_DRAWS} if type(model).__name__ == "GPVAE" else {}
    mean = torch.tensor(
        model.predict({"X": data.test.seen.float().numpy()}, **draws)["imputation"], dtype=torch.float64
    )
    mean = mean.mean(1) if mean.dim() == 4 else mean
    return without_deviations(mean)
