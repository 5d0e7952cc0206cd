"""The model of a table: a kernel for its inputs, a network and a decoder for its outputs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import gpytorch
import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from ..context import Context
from ..inference_networks import InferenceNetwork
from ..mlp import MLP, LinearPlus
from ..models import NETWORKS, SGPVAE
from ..sites import GaussianSites
from .errors import TableError, listed
from .outputs import Outputs

HIDDEN_SIZES = (20, 20)
# Of the network's sites, to start from, and the variance of Gaussian noise on standardized outputs.
INITIAL_STDDEV = 0.3
INITIAL_NOISE = 0.01
# k-means on more rows than that finds the same centers.
MOST_ROWS_FOR_CENTERS = 20_000


def make_model(
    outputs: Outputs,
    periodic: Sequence[bool],
    network: str,
    num_latents: int,
    inducing_points: Tensor,
) -> SGPVAE:
    """
    :param outputs: The output columns.
    :param periodic: Which of the inputs are, of period 1 (`D`).
    :param network: Name of the inference network.
    :param num_latents: Number of latent functions K.
    :param inducing_points: (`M x D`).
    """
    choices = [name for name, kind in NETWORKS.items() if not kind.couples_latents]
    if network not in choices:
        raise TableError(f"There is no network {network!r}: choose of {listed(choices)}.")
    num_outputs = len(outputs.columns)
    observation_model = outputs.observation_model()
    for part in observation_model.modules():
        if hasattr(part, "raw_noise"):
            part.noise = INITIAL_NOISE
    decoder = LinearPlus(MLP(num_latents, observation_model.decoder_size, HIDDEN_SIZES))
    # ReLU, as in the imputers that were saved before: a folder holds parameters, and no activation.
    inner = NETWORKS[network](num_outputs, num_latents, HIDDEN_SIZES, torch.nn.ReLU, initial_stddev=INITIAL_STDDEV)
    return SGPVAE(
        num_outputs,
        num_latents,
        inducing_points,
        StandardizedNetwork(inner, [column.is_read_as_logarithm for column in outputs.columns]),
        make_kernel(periodic, num_latents, _initial_lengthscale(inducing_points)),
        torch.nn.Sequential(decoder, Affine(observation_model.decoder_size)),
        observation_model,
    )


def fit_units(model: SGPVAE, outputs: Outputs, targets: np.ndarray) -> None:
    """
    Set what is known of the outputs before any training: their units, and how large counts are.

    :param model: Of :func:`make_model`.
    :param outputs: The output columns.
    :param targets: (`N x P`).
    """
    parameter = next(model.parameters())
    network = model.strategy._variational_distribution.network
    network.fit(torch.as_tensor(targets, dtype=parameter.dtype, device=parameter.device))
    affine: Any = model.likelihood.decoder[-1]  # type: ignore[index]
    for buffer, values in zip((affine.shift, affine.scale), outputs.decoder_scale(targets), strict=True):
        buffer.copy_(torch.tensor(values, dtype=parameter.dtype))
    outputs.initialize(model.likelihood.observation_model, targets)


def make_kernel(periodic: Sequence[bool], num_latents: int, lengthscale: float) -> gpytorch.kernels.Kernel:
    """
    For each latent function a scaled Matérn kernel with a lengthscale for each input, times a periodic kernel for each
    input that is periodic. Measured functions are rough: with nu = 3/2 held-out entries are more probable than with an
    RBF kernel.
    """
    latents = torch.Size([num_latents])
    plain = tuple(i for i, is_periodic in enumerate(periodic) if not is_periodic)
    factors: list[gpytorch.kernels.Kernel] = []
    if plain:
        matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=len(plain), batch_shape=latents, active_dims=plain)
        matern.lengthscale = lengthscale
        factors.append(matern)
    for i, is_periodic in enumerate(periodic):
        if is_periodic:
            factor = gpytorch.kernels.PeriodicKernel(batch_shape=latents, active_dims=(i,))
            factor.period_length = 1.0
            factor.raw_period_length.requires_grad_(False)
            factors.append(factor)
    kernel = gpytorch.kernels.ScaleKernel(functools.reduce(operator.mul, factors), batch_shape=latents)
    kernel.outputscale = 1.0
    return kernel


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A type of torch's, also by its name."""
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def check_device(device: str | torch.device | None) -> None:
    try:
        torch.empty(0, device=device or "cpu")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TableError(f"The device {str(device)!r} cannot be used here: {reason}") from error


def find_centers(x: np.ndarray, num_centers: int, seed: int) -> np.ndarray:
    """Inducing points: the centers of k-means over a sample of the rows (`M x D`)."""
    random = np.random.default_rng(seed)
    if len(x) > MOST_ROWS_FOR_CENTERS:
        x = x[random.choice(len(x), MOST_ROWS_FOR_CENTERS, replace=False)]
    return KMeans(num_centers, n_init=1, random_state=seed).fit(x).cluster_centers_


class StandardizedNetwork(InferenceNetwork):
    r"""
    An inference network that reads :math:`(t(y_{np}) - m_p) / s_p`, with t the logarithm of 1 + y for counts: targets
    that have no units, such as counts and classes, are of any size.

    :param network: The network.
    :param logarithms: Whether t is a logarithm, for each output (`P`).
    """

    logarithms: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, network: InferenceNetwork, logarithms: Sequence[bool]):
        super().__init__(network.num_outputs, network.num_latents)
        self.network = network
        self.register_buffer("logarithms", torch.tensor(list(logarithms)))
        self.register_buffer("shift", torch.zeros(network.num_outputs))
        self.register_buffer("scale", torch.ones(network.num_outputs))

    def fit(self, targets: Tensor) -> None:
        """
        Take over mean and standard deviation of what there is.

        :param targets: NaN is missing (`N x P`).
        """
        values = self._transform(targets)
        self.shift.copy_(values.nanmean(0))
        self.scale.copy_((values - self.shift).square().nanmean(0).sqrt().clamp_min(1e-6))

    @property
    def row_wise(self) -> bool:  # type: ignore[override]
        return self.network.row_wise

    def forward(self, context: Context) -> GaussianSites:
        return self.network(context.map_outputs(self._standardize))

    def _standardize(self, y: Tensor) -> Tensor:
        return (self._transform(y) - self.shift) / self.scale

    def _transform(self, y: Tensor) -> Tensor:
        return torch.where(self.logarithms, torch.log1p(y.clamp_min(0.0)), y)


class Affine(torch.nn.Module):
    """
    The units of the decoder's values: shift + scale times what it gives, neither of which is learnt.

    :param size: How many values.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, size: int):
        super().__init__()
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, decoded: Tensor) -> Tensor:
        return torch.addcmul(self.shift, self.scale, decoded)


def _initial_lengthscale(inducing_points: Tensor) -> float:
    """
    That of the inputs' spread, 1, or three times the distance to the next inducing point where these are closer
    together: a long series starts with functions that can follow it.
    """
    if len(inducing_points) < 2:
        return 1.0
    distances = torch.cdist(inducing_points, inducing_points)
    nearest = (distances + torch.diag(torch.full_like(distances[0], torch.inf))).amin(-1)
    return min(1.0, 3 * float(nearest.mean()))
