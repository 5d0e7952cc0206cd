from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from helpers import array, assert_equal, softplus

from gpytorch_sgpvae.likelihoods import mixture
from gpytorch_sgpvae.likelihoods.observation_models.distributions import (
    NegativeBinomial,
    Poisson,
    log_softplus,
    regularized_beta,
)

LEVELS = (0.025, 0.4, 0.975)
MEANS = (1e1, 1e4, 1e6, 1e9)


def negative_binomial(mean, dispersion, dtype=torch.float64):
    mean, dispersion = torch.broadcast_tensors(
        torch.as_tensor(mean, dtype=torch.float64), torch.as_tensor(dispersion, dtype=torch.float64)
    )
    return NegativeBinomial(dispersion.to(dtype), logits=(mean / dispersion).log().to(dtype), validate_args=False)


def scipys(mean, dispersion):
    return scipy.stats.nbinom(array(dispersion), array(dispersion / (dispersion + mean)))


class TestSpecialFunctions:
    def test_the_incomplete_beta_function_is_scipys(self):
        sizes = torch.tensor([1e-3, 0.5, 1.0, 7.3, 200.0, 1e5]).double()
        x = torch.tensor([0.0, 1e-9, 0.01, 0.3, 0.5, 0.9, 0.9999, 1.0]).double()
        a, b, x = torch.meshgrid(sizes, sizes, x, indexing="ij")
        assert_equal(
            regularized_beta(a, b, x), scipy.special.betainc(array(a), array(b), array(x)), rtol=1e-8, atol=1e-12
        )

    def test_the_incomplete_beta_function_is_scipys_up_to_billions(self):
        random = np.random.default_rng(0)
        a, b = 10 ** random.uniform(-2, 9.5, (2, 2000))
        x = scipy.special.betaincinv(a, b, random.uniform(1e-6, 1 - 1e-6, 2000))
        assert_equal(
            regularized_beta(*map(torch.tensor, (a, b, x))), scipy.special.betainc(a, b, x), rtol=1e-10, atol=2e-11
        )

    def test_a_complement_that_subtraction_would_lose_is_used(self):
        a, b, y = torch.tensor([1e18, 3.0, 2e-18], dtype=torch.float64)
        # I_x(a, b) = 1 - I_y(b, a), which is the incomplete gamma function of a y for large a
        expected = 1 - scipy.special.gammainc(3.0, 2.0)
        assert_equal(regularized_beta(a, b, 1 - y, y), expected, rtol=1e-10, atol=0.0)

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


class TestQuantilesOfCounts:
    @pytest.mark.parametrize("mean", MEANS)
    def test_of_negative_binomials_are_scipys(self, mean):
        dispersion = torch.tensor([0.1, 1.0, 50.0, 1e4, 1e9], dtype=torch.float64)
        distribution = negative_binomial(mean, dispersion)
        for level in LEVELS:
            quantiles = distribution.icdf(torch.tensor(level, dtype=torch.float64))
            # exact to a count where scipy's function is, which is wrong in the twelfth digit
            assert_equal(quantiles, scipys(mean, dispersion).ppf(level), rtol=1e-12, atol=0.0)

    @pytest.mark.parametrize("mean", MEANS)
    def test_of_poissons_are_scipys(self, mean):
        distribution = Poisson(torch.tensor([mean], dtype=torch.float64).log())
        for level in LEVELS:
            expected = scipy.stats.poisson(mean).ppf(level)
            assert_equal(distribution.icdf(torch.tensor(level, dtype=torch.float64)), [expected], rtol=0.0, atol=0.0)

    @pytest.mark.parametrize("mean", MEANS)
    def test_of_mixtures_are_the_smallest_with_that_probability_after_few_calls(self, mean, monkeypatch):
        generator = torch.Generator().manual_seed(0)
        means = mean * torch.randn(50, 20, 2, dtype=torch.float64, generator=generator).mul(0.5).exp()
        dispersion = torch.tensor([0.5, 80.0]).double()
        calls, cdf = [], NegativeBinomial.cdf
        monkeypatch.setattr(NegativeBinomial, "cdf", lambda self, value: calls.append(1) or cdf(self, value))
        quantiles = mixture.quantiles(negative_binomial(means, dispersion), torch.tensor(LEVELS, dtype=torch.float64))
        assert len(calls) <= 30 * len(LEVELS)  # bisection would take 35 for each component, and 35 for all of them
        oracle = scipys(means, dispersion)
        for level, quantile in zip(LEVELS, array(quantiles), strict=True):
            assert (quantile == np.floor(quantile)).all()
            # scipy is wrong in the twelfth digit
            assert (oracle.cdf(quantile).mean(0) >= level - 1e-11).all()
            assert (oracle.cdf(quantile - 1).mean(0) < level + 1e-11).all()

    @pytest.mark.parametrize("dispersion", [2.0, 1e9])
    def test_in_single_precision_are_as_exact_as_it_is(self, dispersion):
        for mean in MEANS:
            actual = negative_binomial([mean], dispersion, torch.float32).icdf(torch.tensor(0.975))
            expected = scipy.stats.nbinom(dispersion, dispersion / (dispersion + mean)).ppf(0.975)
            # the logarithm of the mean has an error of 1e-6
            assert_equal(actual.double(), [expected], rtol=1e-5, atol=0.0)
