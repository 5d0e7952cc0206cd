from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from helpers import array, assert_equal

from gpytorch_sgpvae.likelihoods import mixture
from gpytorch_sgpvae.likelihoods.observation_models.distributions import (
    CensoredNormal,
    LogNormal,
    NegativeBinomial,
    Poisson,
)
from gpytorch_sgpvae.magnitudes import ExtremeNumberError

LEVELS = (0.025, 0.4, 0.975)
MEANS = (1e1, 1e4, 1e6, 1e9)


def negative_binomial(mean, dispersion, dtype=torch.float64):
    mean, dispersion = torch.broadcast_tensors(
        torch.as_tensor(mean, dtype=torch.float64), torch.as_tensor(dispersion, dtype=torch.float64)
    )
    return NegativeBinomial(dispersion.to(dtype), logits=(mean / dispersion).log().to(dtype), validate_args=False)


def scipys(mean, dispersion):
    return scipy.stats.nbinom(array(dispersion), array(dispersion / (dispersion + mean)))


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


def censored_moment(mean, stddev, order):
    """E[z^order; z > 0], by quadrature."""
    return scipy.integrate.quad(
        lambda z: z**order * scipy.stats.norm.pdf(z, mean, stddev),
        *(0, max(mean, 0) + 12 * stddev),
        epsabs=0,
        epsrel=1e-12,
        points=[max(mean, 0.1)],
    )[0]


class TestExtremes:
    @pytest.mark.parametrize("power", [1, 2, 3])
    def test_the_variance_of_what_is_censored_is_that_of_quadrature_and_survives_large_means(self, power, dtype):
        loc, scale = torch.tensor([-3.0, 0.0, 0.5, 4.0, 30.0, 1e4, 1e8], dtype=dtype), torch.tensor(1.3, dtype=dtype)
        variance = CensoredNormal(loc, scale, power).variance
        exact = []
        for mean in loc.tolist():
            if mean > 100:  # far from zero, where relative deviations are small: Var[z^q] = (q μ^(q-1) σ)²
                exact.append((power * mean ** (power - 1) * 1.3) ** 2)
                continue
            first, second = (censored_moment(mean, 1.3, order) for order in (power, 2 * power))
            exact.append(second - first**2)
        tolerance = 1e-7 if dtype == torch.float64 else 1e-3
        assert_equal(variance.double(), np.array(exact), rtol=tolerance, atol=0.0)

    def test_a_censored_zero_has_a_finite_gradient_however_unlikely_it_is(self, dtype):
        loc = torch.tensor([1e2, 1e5, 1e10], dtype=dtype, requires_grad=True)
        log_prob = CensoredNormal(loc, torch.ones_like(loc)).log_prob(torch.zeros_like(loc))
        (gradient,) = torch.autograd.grad(log_prob.sum(), loc)
        assert log_prob.isfinite().all()
        # d/dμ log Φ(-μ) = -μ - 1 / μ + ..., far out
        torch.testing.assert_close(gradient, -loc.detach() - 1 / loc.detach(), rtol=1e-6, atol=0.0)

    @pytest.mark.parametrize("what", ["mean", "variance", "quantile"])
    def test_log_normal_moments_that_overflow_say_so(self, what, dtype):
        far = LogNormal(torch.full((2, 1), 1e3, dtype=dtype), torch.ones(2, 1, dtype=dtype))
        with pytest.raises(ExtremeNumberError, match=f"{what} of log-normal outputs .* means of their logarithms .*1e"):
            far.icdf(torch.tensor(0.5, dtype=dtype)) if what == "quantile" else getattr(far, what)
        near = LogNormal(torch.zeros(1, dtype=dtype), torch.full((1,), 0.5, dtype=dtype))
        assert_equal(near.variance.double(), scipy.stats.lognorm(0.5).var() * np.ones(1), rtol=1e-6, atol=0.0)
