"""The model of a table: a kernel for its inputs, latent functions that outputs share, and some of each one's own."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel
from sklearn.cluster import KMeans
from torch import Tensor

from ..linalg.kernels import GroupedKernel, learnt_by_logarithm
from ..linalg.label_kernels import LabelKernel, SameKernel
from ..linalg.place_kernel import PlaceKernel
from ..mlp import PrivateLinear
from ..models import GPVAE, SGPVAE, AmortizedModel, MarkovGPVAE
from .errors import TableError
from .outputs import Outputs
from .plan import Plan

# Roughness of the groups of shared latent functions, and of the private ones.
SHARED_ROUGHNESS = (0.5, 1.5, 0.5)
PRIVATE_ROUGHNESS = (0.5, 1.5)
# The variance of Gaussian noise on standardized outputs, to start from.
INITIAL_NOISE = 0.01
# Perceptrons of the network, which correct what outputs that are not Gaussian say.
HIDDEN_SIZES = (20, 20)
# k-means on more rows than that finds the same centers.
MOST_ROWS_FOR_CENTERS = 20_000


def make_model(outputs: Outputs, plan: Plan, inducing_points: Tensor | None = None) -> AmortizedModel:
    """
    :param outputs: The output columns.
    :param plan: What the model is like.
    :param inducing_points: (`M x D`), for a sparse model.
    """
    observation_model = outputs.observation_model()
    for part in observation_model.modules():
        if hasattr(part, "raw_noise"):
            part.noise = INITIAL_NOISE
    num_values = observation_model.decoder_size
    decoder = PrivateLinear(plan.num_shared, num_values, plan.num_private)
    options: dict[str, Any] = {
        "network": "jointfactornet",
        "kernel": make_kernel(plan, num_values),
        "decoder": decoder,
        "observation_model": observation_model,
        "hidden_sizes": HIDDEN_SIZES,
        "num_private": plan.num_private,
    }
    if plan.kind == "markov":
        model: AmortizedModel = MarkovGPVAE(len(outputs), plan.num_shared, **options)
    elif plan.kind == "dense":
        model = GPVAE(len(outputs), plan.num_shared, **options)
    else:
        assert inducing_points is not None
        model = SGPVAE(len(outputs), plan.num_shared, inducing_points, **options)
    network_of(model).correct_only(outputs.are_corrected)
    return model


def network_of(model: AmortizedModel) -> Any:
    """The inference network of a model."""
    return model.strategy._variational_distribution.network


def for_windows(model: AmortizedModel, plan: Plan) -> AmortizedModel:
    """
    The same model, with the same parameters, for windows of some dozen rows: over time a dense one, which has the same
    posterior and is several times as fast there.

    :param model: Model of :func:`make_model`.
    :param plan: What the model is like.
    """
    if plan.kind != "markov":
        return model
    likelihood: Any = model.likelihood
    network = network_of(model)
    parameter = next(model.parameters())
    dense = GPVAE(
        network.num_outputs,
        network.num_latents,
        network,
        model.model.covar_module,
        likelihood.decoder,
        likelihood.observation_model,
    )
    return dense.to(device=parameter.device, dtype=parameter.dtype)


def make_kernel(plan: Plan, num_values: int) -> GroupedKernel:
    """
    Groups of latent functions that all outputs share, with kernels that a group has in common: rough ones, smooth ones,
    and rough ones that last longer. After them what each of the decoder's values has for itself: a rough process and a
    smooth one, or, where places come again, one over all inputs and one of each place's own.
    """
    kernels = [_placed(_kernel(plan, SHARED_ROUGHNESS[g], 1), plan, plan.group_size) for g in range(plan.num_groups)]
    sizes = [plan.group_size] * plan.num_groups
    for i in range(plan.num_private):
        own = _kernel(plan, PRIVATE_ROUGHNESS[i], num_values)
        if i == 1 and plan.has_places:
            same = SameKernel(active_dims=plan.place)
            own = _matern(0.5, (plan.time,), num_values) * same  # type: ignore[arg-type]
        else:
            own = _placed(own, plan, num_values)
        kernels.append(own)
        sizes.append(num_values)
    return GroupedKernel(kernels, sizes)


def _kernel(plan: Plan, nu: float, size: int) -> Kernel:
    """A product over the kinds of inputs: rough or smooth along time, rough in space."""
    factors: list[Kernel] = []
    if plan.kind == "markov":
        return _matern(nu, (plan.time,), size)  # type: ignore[arg-type]
    if plan.time is not None:
        factors.append(_matern(nu, (plan.time,), size))
    if plan.space:
        factors.append(_matern(0.5 if plan.time is not None else nu, plan.space, size))
    batch_shape = torch.Size([size])
    if plan.labels:
        factor = LabelKernel(ard_num_dims=len(plan.labels), batch_shape=batch_shape, active_dims=plan.labels)
        factor.lengthscale = 1.0
        factors.append(factor)
    for d in plan.cycles:
        cycle = PeriodicKernel(batch_shape=batch_shape, active_dims=(d,))
        cycle.period_length = 1.0
        cycle.raw_period_length.requires_grad_(False)
        factors.append(cycle)
    return functools.reduce(operator.mul, factors)


def _placed(kernel: Kernel, plan: Plan, size: int) -> Kernel:
    """The kernel times one of the learnt embedding of places, if they have one."""
    if not plan.num_embedded:
        return kernel
    return kernel * PlaceKernel(plan.num_embedded, len(plan.place), size, active_dims=plan.place)


def _matern(nu: float, dims: tuple[int, ...], size: int) -> MaternKernel:
    return MaternKernel(
        nu=nu,
        ard_num_dims=len(dims),
        batch_shape=torch.Size([size]),
        active_dims=dims,
        lengthscale_constraint=learnt_by_logarithm(),
    )


def matern_of(kernel: Kernel, dims: tuple[int, ...]) -> MaternKernel | None:
    """The Matérn kernel that reads exactly these inputs, within a group's kernel."""
    for part in kernel.modules():
        if isinstance(part, MaternKernel) and tuple(part.active_dims.tolist()) == dims:
            return part
    return None


def lengthscales_of(model: AmortizedModel, plan: Plan) -> np.ndarray:
    """The typical lengthscale of the shared latent functions in each input, infinite for labels and cycles (`D`)."""
    kernels = list(model.model.covar_module.kernels)[: plan.num_groups]
    result = np.full(len(plan.numbers) + len(plan.labels) + len(plan.cycles), np.inf)
    time = () if plan.time is None else (plan.time,)
    for dims in (time, plan.space) if time else (plan.space,):
        if not dims:
            continue
        found = [matern_of(kernel, dims) for kernel in kernels]
        scales = [part.lengthscale.detach().reshape(-1, len(dims)).log().mean(0) for part in found if part is not None]
        if scales:
            result[list(dims)] = torch.stack(scales).mean(0).exp().cpu().numpy()
    return result


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A type of torch's, also by its name."""
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def check_device(device: str | torch.device | None) -> None:
    """Raise unless numbers can be kept on a device."""
    try:
        usable = torch.device(device or "cpu").type != "meta"
        torch.empty(0, device=device or "cpu")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise TableError(f"The device {str(device)!r} cannot be used here: {reason}.") from error
    if not usable:
        raise TableError("The device 'meta' holds no numbers: choose cpu or cuda.")


def find_centers(x: np.ndarray, num_centers: int, seed: int) -> np.ndarray:
    """Inducing points: the centers of k-means over a sample of the rows (`M x D`)."""
    random = np.random.default_rng(seed)
    if len(x) > MOST_ROWS_FOR_CENTERS:
        x = x[random.choice(len(x), MOST_ROWS_FOR_CENTERS, replace=False)]
    return KMeans(num_centers, n_init=1, random_state=seed).fit(x).cluster_centers_
