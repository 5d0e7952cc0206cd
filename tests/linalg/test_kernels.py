from __future__ import annotations

import copy

import gpytorch
import helpers
import pytest
import torch

from gpytorch_sgpvae import SGPVAE
from gpytorch_sgpvae.linalg.kernels import ScaledRBFKernel


def make_kernels(ard_num_dims, batch_shape, dtype):
    """One of ours, and GPyTorch's with the same parameters."""
    options = {"ard_num_dims": ard_num_dims, "batch_shape": batch_shape}
    ours = ScaledRBFKernel(**options).to(dtype)
    theirs = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(**options), batch_shape=batch_shape).to(dtype)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("diag", [True, False])
@helpers.pairwise_cases(
    "ard_num_dims, batch_shape, tasks, dtype", [3, None], [(2,), ()], [(4, 2), (4, 1), ()], helpers.DTYPES
)
def test_it_is_gpytorchs_kernel_and_so_are_its_gradients(ard_num_dims, batch_shape, tasks, diag, dtype):
    kernels = make_kernels(ard_num_dims, torch.Size(batch_shape), dtype)
    x1 = torch.randn(*tasks, 7, 3, dtype=dtype, requires_grad=True)
    x2 = x1 if diag else torch.randn(*tasks, 5, 3, dtype=dtype, requires_grad=True)
    results = []
    for kernel in kernels:
        matrix = kernel(x1, x2)
        values = matrix.diagonal(dim1=-1, dim2=-2) if diag else matrix.to_dense()
        weights = torch.linspace(-1, 1, values.numel(), dtype=dtype).view(values.shape)
        inputs = [x1, x2, *kernel.parameters()]
        results.append([values, *torch.autograd.grad((weights * values).sum(), inputs, allow_unused=True)])
    for ours, theirs in zip(*results, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 if dtype == torch.float32 else 1e-10)


def test_of_equal_inputs_it_has_the_scale_on_its_diagonal_and_is_symmetric():
    ours, _ = make_kernels(3, torch.Size([2]), torch.float64)
    x = 100 + torch.randn(20, 3, dtype=torch.float64)
    matrix = ours(x).to_dense()
    torch.testing.assert_close(matrix, matrix.mT)
    torch.testing.assert_close(
        matrix.diagonal(dim1=-2, dim2=-1), ours.outputscale.unsqueeze(-1).expand(2, 20), rtol=1e-10, atol=0
    )


def test_blocks_and_batches_can_be_taken_out_of_it_and_copied():
    ours, theirs = make_kernels(3, torch.Size([2]), torch.float64)
    x = torch.randn(6, 3, dtype=torch.float64)
    for kernel in (copy.deepcopy(ours), ours):
        torch.testing.assert_close(kernel(x)[..., :2, 2:].to_dense(), theirs(x)[..., :2, 2:].to_dense())
        torch.testing.assert_close(kernel[1](x).to_dense(), theirs[1](x).to_dense())


def test_the_ready_made_models_have_it_under_gpytorchs_names():
    names = dict(SGPVAE(3, 2, torch.rand(5, 2)).model.covar_module.named_parameters())
    assert {name: tuple(parameter.shape) for name, parameter in names.items()} == {
        "raw_outputscale": (2,),
        "base_kernel.raw_lengthscale": (2, 1, 2),
    }
