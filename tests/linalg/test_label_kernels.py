from __future__ import annotations

import pytest
import torch

from gpytorch_sgpvae.linalg.label_kernels import LabelKernel, SameKernel


def make_labels(*shape, dtype=torch.float64):
    return torch.randint(3, shape).to(dtype)


def make_kernel(batch_shape=(), num_dims=2, dtype=torch.float64, **options):
    kernel = LabelKernel(ard_num_dims=num_dims, batch_shape=torch.Size(batch_shape), **options).to(dtype)
    kernel.lengthscale = 0.5 + torch.rand_like(kernel.lengthscale)
    return kernel


def expected_matrix(lengthscale, x1, x2):
    """The matrix by its definition, entry by entry (`N x D`, `N' x D`)."""
    rows = [[(-(a != b).to(a.dtype) / lengthscale).sum().exp() for b in x2] for a in x1]
    return torch.stack([torch.stack(row) for row in rows])


def test_it_is_what_it_says_entry_by_entry(dtype):
    kernel, x1, x2 = make_kernel(dtype=dtype), make_labels(7, 2, dtype=dtype), make_labels(5, 2, dtype=dtype)
    actual = kernel(x1, x2).to_dense()
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected_matrix(kernel.lengthscale[0], x1, x2))


def test_functions_of_a_batch_have_lengthscales_of_their_own(dtype):
    kernel, x = make_kernel((4,), dtype=dtype), make_labels(6, 2, dtype=dtype)
    matrices = kernel(x).to_dense()
    assert matrices.shape == (4, 6, 6)
    for lengthscale, matrix in zip(kernel.lengthscale, matrices, strict=True):
        torch.testing.assert_close(matrix, expected_matrix(lengthscale[0], x, x))


@pytest.mark.parametrize("make", [make_kernel, lambda batch_shape: SameKernel(batch_shape=torch.Size(batch_shape))])
@pytest.mark.parametrize("batch_shape", [(), (3,), (5, 3)])
@pytest.mark.parametrize("tasks", [(), (5, 1)])
def test_the_diagonal_is_that_of_the_matrix(make, batch_shape, tasks):
    kernel, x1, x2 = make(batch_shape), make_labels(*tasks, 6, 2), make_labels(*tasks, 6, 2)
    matrix = kernel(x1, x2).to_dense()
    assert matrix.shape == (*torch.broadcast_shapes(tasks, batch_shape), 6, 6)
    torch.testing.assert_close(kernel(x1, x2, diag=True), matrix.diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize("diag", [True, False])
def test_gradients_of_lengthscales_are_right(diag):
    kernel, x1, x2 = make_kernel((2,)), make_labels(4, 2), make_labels(4, 2)

    def values(raw_lengthscale):
        lengthscale = kernel.raw_lengthscale_constraint.transform(raw_lengthscale)
        twin = LabelKernel(ard_num_dims=2, batch_shape=torch.Size([2])).double()
        del twin.raw_lengthscale
        twin.raw_lengthscale = raw_lengthscale
        assert torch.equal(twin.lengthscale, lengthscale)
        return twin.forward(x1, x2, diag=diag)

    assert torch.autograd.gradcheck(values, (kernel.raw_lengthscale.detach().requires_grad_(),))


def test_it_reads_the_inputs_that_it_is_told_to():
    kernel, x = make_kernel(num_dims=1, active_dims=(1,)), make_labels(6, 2)
    torch.testing.assert_close(kernel(x).to_dense(), expected_matrix(kernel.lengthscale[0], x[:, 1:], x[:, 1:]))


@pytest.mark.parametrize("make", [make_kernel, SameKernel])
def test_it_is_a_covariance(make):
    x = make_labels(30, 2)
    assert torch.linalg.eigvalsh(make()(x).to_dense()).min() > -1e-12


def test_rows_that_are_not_the_same_have_nothing_in_common(dtype):
    x1, x2 = torch.rand(4, 3, dtype=dtype), torch.rand(5, 3, dtype=dtype)
    x2[2], x2[4] = x1[1], x1[1]
    expected = torch.zeros(4, 5, dtype=dtype)
    expected[1, 2] = expected[1, 4] = 1.0
    actual = SameKernel()(x1, x2).to_dense()
    assert actual.dtype == dtype
    assert torch.equal(actual, expected)
