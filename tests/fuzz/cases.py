"""Random tasks, and the models to try them on: what the properties in this folder are tried with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from gpytorch.kernels import ScaleKernel
from hypothesis import strategies as st
from torch import Tensor

from gpytorch_sgpvae import (
    GPVAE,
    MLP,
    SGPVAE,
    VAE,
    AmortizedModel,
    AmortizedVariationalDistribution,
    BernoulliObservations,
    CategoricalObservations,
    CensoredGaussianObservations,
    Context,
    DecoderLikelihood,
    GaussianObservations,
    HeteroscedasticGaussianObservations,
    InducingSitesVariationalStrategy,
    LogNormalObservations,
    MarkovGPVAE,
    MixedObservations,
    NegativeBinomialObservations,
    ObservationModel,
    PairNet,
    PoissonObservations,
    StudentTObservations,
)
from gpytorch_sgpvae.linalg.kernels import ScaledRBFKernel
from gpytorch_sgpvae.models.base import LatentGPs

NUM_OUTPUTS, NUM_LATENTS, NUM_INDUCING = 2, 2, 4
DTYPES = {"float64": torch.float64, "float32": torch.float32}
NETWORKS = ["factornet", "jointfactornet", "indexnet", "pointnet", "zeroimputation"]
MODELS = ["sgpvae", "gpvae", "markov", "vae", "pairs"]
OBSERVATIONS: dict[str, Callable[[], ObservationModel]] = {
    "gaussian": lambda: GaussianObservations(NUM_OUTPUTS),
    "heteroscedastic": lambda: HeteroscedasticGaussianObservations(NUM_OUTPUTS),
    "student_t": lambda: StudentTObservations(NUM_OUTPUTS),
    "log_normal": lambda: LogNormalObservations(NUM_OUTPUTS),
    "censored": lambda: CensoredGaussianObservations(NUM_OUTPUTS),
    "bernoulli": lambda: BernoulliObservations(NUM_OUTPUTS),
    "categorical": lambda: CategoricalObservations(NUM_OUTPUTS, num_classes=3),
    "poisson": lambda: PoissonObservations(NUM_OUTPUTS),
    "negative_binomial": lambda: NegativeBinomialObservations(NUM_OUTPUTS),
    "mixed": lambda: MixedObservations([GaussianObservations(1), BernoulliObservations(1)]),
}


@dataclass(frozen=True)
class Case:
    """
    A model and the tasks that it is tried on; its `repr` is what hypothesis shows of one that fails.

    :param model: The name of a ready-made model, or "pairs" for one with sites of its inducing points.
    :param network: The name of its network.
    :param observations: The name of its observation model.
    :param dtype: The dtype of everything.
    :param tasks: Pairs of inputs (`N_t x 1`) and outputs (`N_t x P`), which may have no rows.
    :param new: Inputs to predict at (`N* x 1`).
    :param inducing_points: (`M x 1`).
    :param lengthscale: The lengthscale of all kernels.
    :param weight_scale: What all weights of the decoder are multiplied by.
    :param network_scale: What all weights of the network are multiplied by.
    :param output_scale: The outputscale of all kernels that have one.
    :param noise: The noise of the observation model, if it has one.
    :param seed: The seed of the parameters and of all draws.
    """

    model: str
    network: str
    observations: str
    dtype: str
    tasks: list[tuple[list[float], list[list[float]]]] = field(repr=False)
    new: list[float]
    inducing_points: list[float]
    lengthscale: float = 1.0
    weight_scale: float = 1.0
    network_scale: float = 1.0
    output_scale: float = 1.0
    noise: float = 0.5
    seed: int = 0

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        return [(self.inputs(x), self.tensor(y).view(len(x), NUM_OUTPUTS)) for x, y in self.tasks]

    def context(self) -> Context:
        return Context.pad(self.pairs())

    def tensor(self, values: list) -> Tensor:
        return torch.tensor(values, dtype=DTYPES[self.dtype])

    def inputs(self, values: list[float]) -> Tensor:
        return self.tensor(values).view(-1, 1)

    def make_model(self) -> AmortizedModel:
        torch.manual_seed(self.seed)
        options = {
            "num_outputs": NUM_OUTPUTS,
            "num_latents": NUM_LATENTS,
            "network": self.network,
            "observation_model": OBSERVATIONS[self.observations](),
            "hidden_sizes": (4,),
        }
        if self.model == "pairs":
            model = self._make_model_of_pairs()
        elif self.model == "sgpvae":
            model = SGPVAE(inducing_points=self.inputs(self.inducing_points), **options)
        else:
            model = {"gpvae": GPVAE, "markov": MarkovGPVAE, "vae": VAE}[self.model](**options)
        model = model.to(DTYPES[self.dtype])
        with torch.no_grad():
            for module in model.modules():
                if getattr(module, "has_lengthscale", False):
                    module.lengthscale = self.lengthscale
                if isinstance(module, ScaleKernel):
                    module.outputscale = self.output_scale
                if hasattr(module, "raw_noise"):
                    module.noise = self.noise
            network = model.strategy._variational_distribution.network
            for part, scale in ((model.likelihood.decoder, self.weight_scale), (network, self.network_scale)):
                for name, parameter in part.named_parameters():
                    if "weight" in name:
                        parameter.mul_(scale)
        return model

    def _make_model_of_pairs(self) -> AmortizedModel:
        def make_strategy(model: LatentGPs, q_u: AmortizedVariationalDistribution) -> InducingSitesVariationalStrategy:
            return InducingSitesVariationalStrategy(model, self.inputs(self.inducing_points), q_u)

        observations = OBSERVATIONS[self.observations]()
        network = PairNet(NUM_OUTPUTS, NUM_LATENTS, (4,), input_dim=1)
        kernel = ScaledRBFKernel(batch_shape=torch.Size([NUM_LATENTS]))
        decoder = MLP(NUM_LATENTS, observations.decoder_size, (4,))
        return AmortizedModel(
            LatentGPs(make_strategy, network, kernel, NUM_LATENTS), DecoderLikelihood(decoder, observations)
        )

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
        return f"Case({values})"

    def replace(self, **changes) -> Case:
        return replace(self, **changes)


def magnitudes(smallest: int, largest: int) -> st.SearchStrategy[float]:
    """Powers of ten, with 1 as the simplest."""
    exponents = st.one_of(st.just(0), st.integers(smallest, largest))
    return exponents.map(lambda exponent: float(f"1e{exponent}"))


def _scales(usual: int, largest: int) -> st.SearchStrategy[float]:
    """Magnitudes of which most are not so extreme that a door would stop them."""
    usually = magnitudes(-usual, usual)
    return st.one_of(usually, usually, usually, magnitudes(-largest, largest))


@st.composite
def kinds(draw: st.DrawFn) -> tuple[str, str, str, str]:
    """A model, a network that it takes, an observation model and a dtype."""
    model = draw(st.sampled_from(MODELS))
    networks = ["pairnet"] if model == "pairs" else [n for n in NETWORKS if (model, n) != ("vae", "jointfactornet")]
    network = draw(st.sampled_from(networks))
    return model, network, draw(st.sampled_from(sorted(OBSERVATIONS))), draw(st.sampled_from(sorted(DTYPES)))


@st.composite
def cases(draw: st.DrawFn, extreme: bool = True, max_points: int = 6) -> Case:
    """
    Ragged tasks with holes, ties and repeated inputs, down to none at all.

    :param extreme: Whether scales are huge and small, or around one.
    :param max_points: The largest number of rows of a task.
    """
    model, network, observations, dtype = draw(kinds())
    x_scale = draw(_scales(6, 300)) if extreme else 1.0
    y_scale = draw(_scales(9, 30)) if extreme else 1.0
    # few different values, so that some meet
    positions = st.integers(-8, 8).map(lambda step: step / 4 * x_scale)
    rows = st.lists(_outputs(observations, y_scale), min_size=NUM_OUTPUTS, max_size=NUM_OUTPUTS)
    tasks = []
    for _ in range(draw(st.integers(1, 3))):
        num_points = draw(st.integers(0, max_points))
        x = draw(st.lists(positions, min_size=num_points, max_size=num_points))
        y = [_as_columns(observations, draw(rows)) for _ in range(num_points)]
        tasks.append((x, y))
    new = draw(st.lists(positions, min_size=1, max_size=3))
    at_inputs = extreme or draw(st.booleans())
    places = positions if at_inputs else st.integers(-2, 2).map(float)
    inducing_points = draw(st.lists(places, min_size=1, max_size=NUM_INDUCING))
    return Case(
        model,
        network,
        observations,
        dtype,
        tasks,
        new,
        inducing_points,
        lengthscale=draw(magnitudes(-6, 6)) if extreme else 1.0,
        weight_scale=draw(magnitudes(-6, 6)) if extreme else 1.0,
        network_scale=draw(magnitudes(-6, 3)) if extreme else 1.0,
        output_scale=draw(magnitudes(-6, 6)) if extreme else 1.0,
        noise=draw(st.sampled_from([0.5, 2e-4, 1e6])) if extreme else 0.5,
        seed=draw(st.integers(0, 3)),
    )


def _outputs(observations: str, scale: float) -> st.SearchStrategy[float]:
    """Values of one entry, in the support of the observation model; NaN is a hole."""
    hole = st.just(float("nan"))
    number = st.integers(-6, 6).map(lambda step: step / 2 * scale)
    values = {
        "log_normal": st.integers(1, 6).map(lambda step: step / 2 * scale),
        "censored": st.integers(0, 6).map(lambda step: step / 2 * scale),
        "bernoulli": st.integers(0, 1).map(float),
        "categorical": st.integers(0, 2).map(float),
        "poisson": st.integers(0, 6).map(lambda step: float(round(step * max(scale, 1.0)))),
        "negative_binomial": st.integers(0, 6).map(lambda step: float(round(step * max(scale, 1.0)))),
    }
    return st.one_of(values.get(observations, number), hole)


def _as_columns(observations: str, row: list[float]) -> list[float]:
    if observations == "mixed":
        number, flag = row
        return [number, flag if flag != flag else float(flag > 0)]
    return row
