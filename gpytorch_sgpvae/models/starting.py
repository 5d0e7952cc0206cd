"""A start that is already good: what data say about a linear model before any training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gpytorch
import torch
from torch import Tensor

from ..context import Context
from ..likelihoods import DecoderLikelihood
from ..linalg.autocorrelation import autocorrelation, private_split
from ..linalg.factor_analysis import factor_analysis, factor_scores
from ..linalg.kernels import GroupedKernel
from ..mlp import PrivateLinear, linear_part

# Where the correlation of a Matérn kernel with lengthscale 1 has fallen to 1 / e.
RANGES = {0.5: 1.0, 1.5: 1.24, 2.5: 1.31}
# The private functions of an output start with lengthscales this factor apart.
PRIVATE_SPREAD = 4.0
# The least noise variance to start from, above the bound of its constraint.
LEAST_NOISE = 1e-3


def start_from(
    model: gpytorch.models.ApproximateGP, likelihood: DecoderLikelihood, context: Context, lengthscales: bool
) -> None:
    """See :meth:`~gpytorch_sgpvae.AmortizedModel.initialize_from`."""
    linear: Any = linear_part(likelihood.decoder)
    if linear is None or not hasattr(likelihood.observation_model, "initial_sites"):
        raise NotImplementedError(
            f"initialize_from is for a decoder that is torch.nn.Linear or LinearPlus, got "
            f"{type(likelihood.decoder).__name__}: SGPVAE and GPVAE have one with network='jointfactornet'."
        )
    observation_model: Any = likelihood.observation_model
    values, precision = observation_model.initial_sites(context.filled, context.observed)
    known = precision > 0  # (*T, N, J)
    is_private = isinstance(linear, PrivateLinear)
    shared = linear.shared if is_private else linear.weight  # (J, K)
    groups = list(_groups(model.covar_module, shared.shape[1]))
    analysis = factor_analysis(values, known, max(size for _, size in groups))
    # each group explains its part of the factors' covariance
    shared.copy_(torch.cat([analysis.loadings[:, :size] for _, size in groups], -1) / math.sqrt(len(groups)))
    if linear.bias is not None:
        linear.bias.copy_(analysis.mean)
    if lengthscales:
        scores = factor_scores(values, known, analysis)
        found = autocorrelation(context.x, scores.mean, 1 - scores.variance).lengthscale  # (F, D)
        for kernel, size in groups:
            _set_lengthscales(kernel, found[:size])
    noise = analysis.noise
    if is_private:
        split = private_split(context.x, values, known, analysis)
        num_private, noise = linear.private.shape[1], split.noise
        linear.private.copy_((split.private_variance / num_private).sqrt().unsqueeze(-1).expand_as(linear.private))
        private_kernels = _private_kernels(model.covar_module, num_private) if lengthscales else []
        for i, kernel in enumerate(private_kernels):
            factor = PRIVATE_SPREAD ** (i - 0.5 * (num_private - 1))
            _set_lengthscales(kernel, factor * split.private_lengthscale)
    if hasattr(observation_model, "raw_noise"):
        noise, shape = noise.clamp_min(LEAST_NOISE), observation_model.raw_noise.shape
        observation_model.noise = noise if noise.shape == shape else noise.mean().expand(shape)


def _groups(kernel: gpytorch.kernels.Kernel, num_shared: int) -> Iterator[tuple[gpytorch.kernels.Kernel, int]]:
    """The kernels of the shared latent functions, and how many each is for."""
    if not isinstance(kernel, GroupedKernel):
        yield kernel, num_shared
        return
    count = 0
    for part, size in zip(kernel.kernels, kernel.sizes, strict=True):
        if count == num_shared:
            return
        count += size
        yield part, size


def _private_kernels(kernel: gpytorch.kernels.Kernel, num_private: int) -> list[gpytorch.kernels.Kernel]:
    return list(kernel.kernels)[-num_private:] if isinstance(kernel, GroupedKernel) else []


def _set_lengthscales(kernel: gpytorch.kernels.Kernel, lengthscales: Tensor) -> None:
    """
    Set the lengthscales of a group's kernel, where it has one for each latent function. Those of cycles stay as they
    are.

    :param lengthscales: The distances at which correlations fall to 1 / e (`K x D`).
    """
    parts = list(kernel.modules())
    if any(isinstance(part, (gpytorch.kernels.PeriodicKernel, gpytorch.kernels.CosineKernel)) for part in parts):
        return
    for part in parts:
        own = getattr(part, "lengthscale", None)
        if not isinstance(own, Tensor):
            continue
        scaled = lengthscales / RANGES.get(getattr(part, "nu", 0.5), math.sqrt(2.0))
        scaled = scaled if own.shape[-1] == scaled.shape[-1] else scaled.log().mean(-1, keepdim=True).exp()
        scaled = scaled if own.shape[:-2] else scaled.log().mean(0, keepdim=True).exp()
        part.lengthscale = scaled.view(*own.shape[:-2], 1, -1).expand_as(own)
