from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import MaternKernel

from gpytorch_sgpvae.linalg.place_kernel import PlaceKernel


def make_kernel(num_places=4, size=3, dtype=torch.float64, **options):
    kernel = PlaceKernel(num_places, 2, size, **options).to(dtype)
    kernel.places.copy_(torch.rand_like(kernel.places))
    return kernel.initialize(embedding=torch.randn_like(kernel.embedding))


def make_inputs(kernel, *shape):
    """Known places, and every third one that is none."""
    x = kernel.places[torch.randint(len(kernel.places), shape)]
    x[..., ::3, :] += 1.0
    return x


def coordinates(kernel, k, row):
    """The embedding of one row, by its definition."""
    for place, coordinates in zip(kernel.places, kernel.embedding[k], strict=True):
        if torch.equal(place, row):
            return coordinates
    return torch.zeros_like(kernel.embedding[k, 0])


def test_it_is_what_it_says_entry_by_entry(dtype):
    kernel = make_kernel(dtype=dtype)
    x1, x2 = make_inputs(kernel, 7), make_inputs(kernel, 5)
    actual = kernel(x1, x2).to_dense()
    assert actual.dtype == dtype
    for k in range(3):
        rows = [[coordinates(kernel, k, a) - coordinates(kernel, k, b) for b in x2] for a in x1]
        expected = torch.stack([torch.stack([(-0.5 * d.square().sum()).exp() for d in row]) for row in rows])
        torch.testing.assert_close(actual[k], expected)


@pytest.mark.parametrize("tasks", [(), (5, 1), (5, 3)])
def test_the_diagonal_is_that_of_the_matrix(tasks):
    kernel = make_kernel()
    x1, x2 = make_inputs(kernel, *tasks, 6), make_inputs(kernel, *tasks, 6)
    matrix = kernel(x1, x2).to_dense()
    assert matrix.shape == (*tasks[:1], 3, 6, 6)
    torch.testing.assert_close(kernel(x1, x2, diag=True), matrix.diagonal(dim1=-2, dim2=-1))


def test_matrices_are_covariances_of_rank_up_to_the_number_of_places():
    kernel = make_kernel()
    matrices = kernel(make_inputs(kernel, 20)).to_dense()
    eigenvalues = torch.linalg.eigvalsh(matrices)
    assert eigenvalues.min() > -1e-12
    assert (eigenvalues[:, :-5].abs() < 1e-12).all()


def test_places_at_one_point_of_the_embedding_are_alike():
    kernel = make_kernel().initialize(embedding=torch.ones(3, 4, 2))
    torch.testing.assert_close(
        kernel(kernel.places).to_dense(), torch.ones(3, 4, 4, dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_single_precision_finds_the_places_of_double_precision():
    kernel = make_kernel().float()
    places = make_kernel().places
    kernel.places.copy_(places)
    torch.testing.assert_close(kernel._embedded(places.float()), kernel.embedding)


def test_times_another_kernel_it_reads_its_own_inputs():
    place = make_kernel(active_dims=(0, 2))
    kernel = MaternKernel(nu=0.5, active_dims=(1,)).double() * place
    x = torch.rand(6, 3, dtype=torch.float64)
    x[:, [0, 2]] = make_inputs(place, 6)
    expected = kernel.kernels[0](x).to_dense() * place(x).to_dense()
    torch.testing.assert_close(kernel(x).to_dense(), expected)
    assert kernel(x).shape == (3, 6, 6)


def test_gradients_of_embeddings_are_right():
    kernel, embedding = make_kernel(), torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    x1, x2 = make_inputs(kernel, 4), make_inputs(kernel, 3)

    def values(embedding):
        twin = make_kernel()
        twin.places.copy_(kernel.places)
        del twin.embedding
        twin.embedding = embedding
        return twin.forward(x1, x2)

    assert torch.autograd.gradcheck(values, embedding)
