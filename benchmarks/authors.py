"""The authors' package, `sgpvae`, as a contestant."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .contestants import Step, make_inducing_points, training_step
from .shapes import Shape, make_data

AVAILABLE = importlib.util.find_spec("sgpvae") is not None
HOW_TO_GET_IT = "The authors' package is not installed, and its figures are left out: `make bench` installs it."


@contextmanager
def _as_they_need_it() -> Iterator[None]:
    """Their code makes tensors of the default dtype, and calls functions that torch has deprecated."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"torch\.(cholesky|triangular_solve) is deprecated")
            yield
    finally:
        torch.set_default_dtype(before)


def authors(shape: Shape) -> Step:
    """Their SGP-VAE or GP-VAE with a FactorNet, for one task in float64."""
    from sgpvae.kernels import RBFKernel
    from sgpvae.likelihoods import FactorNet, NNHomoGaussian
    from sgpvae.models import GPVAE, SGPVAE

    x, y = make_data(shape)
    mask = (~y.isnan()).double()
    y = y.nan_to_num()
    torch.manual_seed(0)
    with _as_they_need_it():
        parts = (
            NNHomoGaussian(shape.num_latents, shape.num_outputs, shape.hidden_sizes, sigma=1.0),
            FactorNet(shape.num_outputs, shape.num_latents, shape.hidden_sizes, init_sigma=1.0),
            shape.num_latents,
            RBFKernel([1.0] * shape.input_dim, 1.0),
        )
        if shape.num_inducing is None:
            model = GPVAE(*parts, add_jitter=True)
        else:
            model = SGPVAE(*parts, make_inducing_points(shape), add_jitter=True)
        step = training_step(model.parameters(), lambda: -model.elbo(x, y, mask, num_samples=1))

    def their_step() -> None:
        with _as_they_need_it():
            step()

    return their_step
