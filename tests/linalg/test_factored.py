"""The posterior of which only what is asked for is computed."""

from __future__ import annotations

import pytest
import torch

from gpytorch_sgpvae.linalg.conditionals import DensePosterior, entry_posterior, shift_and_shrinkage
from gpytorch_sgpvae.linalg.factored import FactoredPosterior


@pytest.fixture(params=[(), (3,)], ids=["one task", "three tasks"])
def case(request):
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(*request.param, 9, 12, dtype=torch.float64, generator=generator)
    precision = 10 ** torch.linspace(-3, 4, 9, dtype=torch.float64).expand(*request.param, 9)
    h = torch.randn(*request.param, 9, dtype=torch.float64, generator=generator)
    cross = torch.randn(*request.param, 9, 5, dtype=torch.float64, generator=generator)
    return root @ root.mT, precision, h, cross


def test_it_is_regression_on_the_sites(case):
    K, precision, h, cross = case
    total = K + torch.diag_embed(1 / precision)
    posterior = FactoredPosterior(K, precision, h)
    weights = torch.linalg.solve(total, h / precision)
    torch.testing.assert_close(posterior.weights, weights, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(posterior.reduction, torch.linalg.inv(total), atol=1e-8, rtol=1e-8)
    covar = K - K @ torch.linalg.solve(total, K)
    torch.testing.assert_close(posterior.variance, covar.diagonal(dim1=-2, dim2=-1), atol=1e-8, rtol=1e-8)
    expected = (cross.mT @ torch.linalg.solve(total, cross)).diagonal(dim1=-2, dim2=-1)
    for columns in (cross[..., :2], cross):  # few of them by triangular solves, others by the inverse
        shift, shrinkage = FactoredPosterior(K, precision, h).shift_and_shrinkage(columns)
        torch.testing.assert_close(shift, (columns.mT @ weights.unsqueeze(-1)).squeeze(-1), atol=1e-8, rtol=1e-8)
        torch.testing.assert_close(shrinkage, expected[..., : columns.shape[-1]], atol=1e-8, rtol=1e-8)


def test_it_is_what_training_sees_where_some_precisions_are_zero(case):
    K, precision, h, cross = case
    precision, h = precision.clone(), h.clone()
    precision[..., 2:4] = 0.0
    seen = entry_posterior(K, precision, h)
    with torch.no_grad():
        factored = entry_posterior(K, precision, h)
    assert isinstance(seen, DensePosterior)
    assert isinstance(factored, FactoredPosterior)
    for name in DensePosterior._fields:
        torch.testing.assert_close(getattr(factored, name), getattr(seen, name), atol=1e-8, rtol=1e-8)
    for new, old in zip(shift_and_shrinkage(cross, factored), shift_and_shrinkage(cross, seen), strict=True):
        torch.testing.assert_close(new, old, atol=1e-8, rtol=1e-8)


def test_a_few_columns_take_no_inverse(case, monkeypatch):
    K, precision, h, cross = case
    monkeypatch.setattr(torch, "cholesky_inverse", None)
    FactoredPosterior(K, precision, h).shift_and_shrinkage(cross[..., :2])
    with pytest.raises(TypeError):
        FactoredPosterior(K, precision, h).shift_and_shrinkage(cross)
