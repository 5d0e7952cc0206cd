from __future__ import annotations

import numpy as np
import scipy.special
import torch
from helpers import array, assert_equal, softplus

from gpytorch_sgpvae.likelihoods.observation_models.distributions import log_softplus, regularized_beta


class TestSpecialFunctions:
    def test_the_incomplete_beta_function_is_scipys(self):
        sizes = torch.tensor([1e-3, 0.5, 1.0, 7.3, 200.0, 1e5]).double()
        x = torch.tensor([0.0, 1e-9, 0.01, 0.3, 0.5, 0.9, 0.9999, 1.0]).double()
        a, b, x = torch.meshgrid(sizes, sizes, x, indexing="ij")
        assert_equal(
            regularized_beta(a, b, x), scipy.special.betainc(array(a), array(b), array(x)), rtol=1e-8, atol=1e-12
        )

    def test_the_logarithm_of_softplus_keeps_its_value_and_gradient(self, dtype):
        x = torch.tensor([-40.1, -39.9, -1.0, 0.0, 3.0, 1e3], dtype=dtype, requires_grad=True)
        exact = array(x).astype(np.float64)
        (gradient,) = torch.autograd.grad(log_softplus(x).sum(), x)
        assert_equal(log_softplus(x).double(), np.log(softplus(exact)), rtol=1e-6, atol=1e-6)
        assert_equal(gradient.double(), scipy.special.expit(exact) / softplus(exact), rtol=1e-5, atol=1e-5)
        # where the exponential has underflowed: log softplus(x) = x
        x = torch.tensor([-1e3, -1e6], dtype=dtype, requires_grad=True)
        (gradient,) = torch.autograd.grad(log_softplus(x).sum(), x)
        assert torch.equal(log_softplus(x), x)
        assert torch.equal(gradient, torch.ones_like(x))
