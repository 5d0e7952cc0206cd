from __future__ import annotations

import numpy as np
import scipy.special
import torch
from helpers import array, assert_equal, softplus

from gpytorch_sgpvae.likelihoods.observation_models.special_functions import log_ndtr, log_softplus, regularized_beta


def test_the_incomplete_beta_function_is_scipys():
    sizes = torch.tensor([1e-3, 0.5, 1.0, 7.3, 200.0, 1e5]).double()
    x = torch.tensor([0.0, 1e-9, 0.01, 0.3, 0.5, 0.9, 0.9999, 1.0]).double()
    a, b, x = torch.meshgrid(sizes, sizes, x, indexing="ij")
    assert_equal(regularized_beta(a, b, x), scipy.special.betainc(array(a), array(b), array(x)), rtol=1e-8, atol=1e-12)


def test_the_incomplete_beta_function_is_scipys_up_to_billions():
    random = np.random.default_rng(0)
    a, b = 10 ** random.uniform(-2, 9.5, (2, 2000))
    x = scipy.special.betaincinv(a, b, random.uniform(1e-6, 1 - 1e-6, 2000))
    assert_equal(
        regularized_beta(*map(torch.tensor, (a, b, x))), scipy.special.betainc(a, b, x), rtol=1e-10, atol=2e-11
    )


def test_a_complement_that_subtraction_would_lose_is_used():
    a, b, y = torch.tensor([1e18, 3.0, 2e-18], dtype=torch.float64)
    # I_x(a, b) = 1 - I_y(b, a), which is the incomplete gamma function of a y for large a
    expected = 1 - scipy.special.gammainc(3.0, 2.0)
    assert_equal(regularized_beta(a, b, 1 - y, y), expected, rtol=1e-10, atol=0.0)


def test_the_logarithm_of_softplus_keeps_its_value_and_gradient(dtype):
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


def test_the_logarithm_of_the_normal_distribution_function_keeps_its_value_and_gradient(dtype):
    z = torch.tensor([-1e12, -1e10, -1e5, -1e3, -30.1, -29.9, -3.0, 0.0, 5.0, 1e10], dtype=dtype, requires_grad=True)
    exact = array(z).astype(np.float64)
    (gradient,) = torch.autograd.grad(log_ndtr(z).sum(), z)
    tolerance = {"rtol": 1e-11, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 1e-7}
    assert_equal(log_ndtr(z).double(), scipy.special.log_ndtr(exact), **tolerance)
    # the inverse Mills ratio, φ(z) / Φ(z)
    below = np.minimum(exact, 0)
    ratio = np.sqrt(2 / np.pi) / scipy.special.erfcx(-below / np.sqrt(2))
    above = np.exp(-0.5 * exact**2) / np.sqrt(2 * np.pi) / scipy.special.ndtr(np.maximum(exact, 0))
    assert_equal(gradient.double(), np.where(exact < 0, ratio, above), **tolerance)
