from __future__ import annotations

import pytest
import torch
from linear_operator.utils.errors import NanError, NotPSDError

from gpytorch_sgpvae import GPVAE, SGPVAE
from gpytorch_sgpvae.linalg.cholesky import safe_cholesky, safe_root


def test_the_factor_of_a_covariance_is_torchs(dtype):
    root = torch.randn(2, 4, 4, dtype=dtype)
    covariance = root @ root.mT + torch.eye(4, dtype=dtype)
    torch.testing.assert_close(safe_cholesky(covariance), torch.linalg.cholesky(covariance))


@pytest.mark.filterwarnings("ignore:A not p.d.")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_entries_that_are_not_finite_are_counted_with_advice(bad, dtype):
    with pytest.raises(NanError, match=r"\(3, 3\) has 9 entries that are not finite in .*named_parameters"):
        safe_cholesky(torch.full((3, 3), bad, dtype=dtype))


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_a_matrix_that_is_no_covariance_is_an_error_with_advice(dtype):
    with pytest.raises(NotPSDError, match=r"\(3, 3\) is not positive definite .*jitter_val"):
        safe_cholesky(-torch.eye(3, dtype=dtype))


def test_a_model_with_a_broken_parameter_says_where_to_look():
    model = SGPVAE(3, 2, torch.rand(4, 1))
    with torch.no_grad():
        model.strategy.inducing_points.fill_(torch.nan)
    with pytest.raises(NanError, match="inducing point, is not finite"):
        model.elbo((torch.rand(5, 1), torch.randn(5, 3)))


def test_coincident_inducing_points_need_no_distance(dtype):
    model = SGPVAE(3, 2, torch.zeros(4, 1, dtype=dtype))
    loss = model.loss((torch.rand(5, 1, dtype=dtype), torch.randn(5, 3, dtype=dtype)))
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_root_of_a_singular_covariance_is_one(dtype):
    factor = torch.randn(2, 5, 3, dtype=dtype)
    root = safe_root(factor @ factor.mT)
    torch.testing.assert_close(root @ root.mT, factor @ factor.mT)


def test_a_broken_parameter_of_shared_functions_says_where_to_look_too():
    model = GPVAE(8, 2, network="jointfactornet", num_private=1)
    with torch.no_grad():
        model.model.covar_module.kernels[0].raw_lengthscale.fill_(torch.nan)
    with pytest.raises(NanError, match="a parameter of the kernel"):
        model.elbo((torch.rand(5, 1), torch.randn(5, 8)))
