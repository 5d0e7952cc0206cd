from __future__ import annotations

import math
from types import SimpleNamespace

import gpytorch.metrics
import helpers
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from torch.distributions import Normal, Poisson

from gpytorch_sgpvae import (
    BernoulliObservations,
    CategoricalObservations,
    GaussianObservations,
    LogNormalObservations,
    MixedObservations,
    NegativeBinomialObservations,
    PoissonObservations,
    Prediction,
    StudentTObservations,
    metrics,
)
from gpytorch_sgpvae.likelihoods.observation_models.distributions import ColumnwiseDistribution

T, N, P, S = 2, 9, 4, 6
UNITS = torch.tensor([3.0, -1.0, 0.0, 10.0]), torch.tensor([2.0, 0.5, 1.0, 7.0])


def make(num_samples=S, tasks=(T,), num_points=N, dtype=torch.float64, chunk_size=None):
    """A prediction in original units, and values of which some are missing, and all of the last output."""
    likelihood = helpers.make_likelihood(P, 2, dtype=dtype)
    mean, stddev = torch.randn(*tasks, num_points, 2, dtype=dtype), torch.rand(*tasks, num_points, 2, dtype=dtype)
    with torch.no_grad():
        prediction = Prediction(likelihood, mean, stddev, num_samples, chunk_size=chunk_size).rescale(*UNITS)
    y = prediction.mean + prediction.stddev * torch.randn(*tasks, num_points, P, dtype=dtype)
    y[torch.rand(y.shape) < 0.3] = torch.nan
    y[..., -1] = torch.nan
    return prediction, y


def make_of_family(family, num_samples=S, num_points=N, num_outputs=1, **kwargs):
    """A prediction whose components have the latent functions as their parameters."""
    mean = torch.randn(num_points, num_outputs).double()
    return Prediction(family, mean, torch.rand(num_points, num_outputs).double(), num_samples, **kwargs)


def brute_force(prediction, y, score):
    """The mean over tasks and points, value by value, of a score of a value and its components."""
    means, stddevs = prediction.components.mean.numpy(), prediction.components.stddev.numpy()
    result = []
    for p in range(P):
        scores = [
            score(y[t, n, p].item(), means[:, t, n, p], stddevs[:, t, n, p])
            for t in range(y.shape[0])
            for n in range(y.shape[1])
            if not math.isnan(y[t, n, p])
        ]
        result.append(sum(scores) / len(scores) if scores else math.nan)
    return torch.tensor(result, dtype=y.dtype)


def absolute_error(value, means, stddevs):
    return abs(value - means.mean())


def squared_error(value, means, stddevs):
    return (value - means.mean()) ** 2


def gaussian_nll(value, means, stddevs):
    variance = (stddevs**2 + means**2).mean() - means.mean() ** 2
    return -scipy.stats.norm.logpdf(value, means.mean(), variance**0.5)


def mixture_nll(value, means, stddevs):
    return -np.log(scipy.stats.norm.pdf(value, means, stddevs).mean())


def integrated_crps(value, means, stddevs):
    def cdf(z):
        return scipy.stats.norm.cdf(z, means, stddevs).mean()

    low, high = (means - 10 * stddevs).min(), (means + 10 * stddevs).max()
    below, _ = scipy.integrate.quad(lambda z: cdf(z) ** 2, min(low, value), value)
    above, _ = scipy.integrate.quad(lambda z: (1 - cdf(z)) ** 2, value, max(high, value))
    return below + above


def central_coverage(value, means, stddevs):
    # inside the central interval of probability 0.6 if and only if 0.2 <= F(y) <= 0.8
    return float(0.2 <= scipy.stats.norm.cdf(value, means, stddevs).mean() <= 0.8)


class TestAgainstBruteForce:
    @pytest.mark.parametrize("chunk_size", [None, 4])
    @pytest.mark.parametrize(
        ("metric", "score"),
        [
            (metrics.mae, absolute_error),
            (lambda prediction, y: metrics.rmse(prediction, y).square(), squared_error),
            (metrics.nll, gaussian_nll),
            (lambda prediction, y: metrics.nll(prediction, y, mixture=True), mixture_nll),
            (metrics.crps, integrated_crps),
            (lambda prediction, y: metrics.coverage(prediction, y, level=0.6), central_coverage),
        ],
        ids=["mae", "mse", "nll", "mixture_nll", "crps", "coverage"],
    )
    def test_means_over_the_values_that_are_there(self, metric, score, chunk_size):
        prediction, y = make(chunk_size=chunk_size)
        actual, expected = metric(prediction, y), brute_force(prediction, y, score)
        assert actual.shape == (P,)
        assert torch.equal(actual.isnan(), torch.tensor([False, False, False, True]))
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-8, equal_nan=True)

    def test_smse_is_the_squared_error_over_the_variance_of_the_outputs_values(self):
        prediction, y = make()
        variance = torch.from_numpy(np.nanvar(y[..., :-1].numpy(), axis=(0, 1)))
        actual = metrics.smse(prediction, y)
        torch.testing.assert_close(actual[:-1], brute_force(prediction, y, squared_error)[:-1] / variance)
        assert actual[-1].isnan()

    def test_smse_of_the_values_own_mean_is_one(self):
        _, y = make()
        y[..., -1] = torch.randn(T, N)
        torch.testing.assert_close(metrics.smse(y.nanmean((0, 1)).expand_as(y), y), torch.ones(P).double())


@pytest.mark.parametrize("metric", [metrics.mae, metrics.rmse, metrics.smse])
def test_a_mean_alone_can_be_scored(metric):
    prediction, y = make()
    torch.testing.assert_close(metric(prediction.mean, y), metric(prediction, y), equal_nan=True)


def test_without_missing_values_they_are_gpytorchs():
    prediction, _ = make(tasks=())
    y = torch.randn(N, P).double()
    for p in range(P):
        # gpytorch reads the mean alone
        single = SimpleNamespace(mean=prediction.mean[:, p])
        mae = gpytorch.metrics.mean_absolute_error(single, y[:, p])
        rmse = gpytorch.metrics.mean_squared_error(single, y[:, p], squared=False)
        smse = gpytorch.metrics.standardized_mean_squared_error(single, y[:, p]) * N / (N - 1)
        torch.testing.assert_close(metrics.mae(prediction, y)[p], mae)
        torch.testing.assert_close(metrics.rmse(prediction, y)[p], rmse)
        torch.testing.assert_close(metrics.smse(prediction, y)[p], smse)


ALL = [metrics.mae, metrics.rmse, metrics.smse, metrics.nll, metrics.crps, metrics.coverage]


@pytest.mark.parametrize("metric", ALL)
class TestEveryMetric:
    def test_has_the_dtype_of_the_prediction(self, metric, dtype):
        prediction, y = make(dtype=dtype)
        assert metric(prediction, y).dtype == dtype

    def test_takes_values_that_all_tasks_share(self, metric):
        prediction, y = make()
        torch.testing.assert_close(
            metric(prediction, y[0]), metric(prediction, y[:1].expand_as(y).clone()), equal_nan=True
        )

    def test_takes_one_output_without_its_dimension(self, metric):
        prediction = make_of_family(lambda f: Normal(f, 1.0))
        y = torch.randn(N).double()
        assert torch.equal(metric(prediction, y), metric(prediction, y.unsqueeze(-1)))

    def test_rejects_values_of_another_shape(self, metric):
        prediction, y = make()
        with pytest.raises(ValueError, match=r"\(2, 9, 3\) does not fit predictions of shape \(2, 9, 4\)"):
            metric(prediction, y[..., :-1])

    def test_does_not_hide_a_prediction_that_is_nan(self, metric):
        prediction, y = make()
        prediction.function_mean[0, 0] = torch.nan
        broken = Prediction(prediction.decode, prediction.function_mean, prediction.function_stddev, S)
        y[0, 0, 0] = 1.0
        y[0, 0, 1] = torch.nan
        actual = metric(broken, y)
        assert actual[0].isnan()
        assert actual[1].isfinite()

    def test_makes_no_tensor_on_the_default_device(self, metric):
        prediction, y = make()
        with torch.device("meta"):
            assert metric(prediction, y).device.type == "cpu"

    def test_has_the_units_of_y_or_none(self, metric):
        prediction, y = make()
        scaled = metric(prediction.rescale(5.0, 3.0), 5 + 3 * y)
        if metric is metrics.nll:
            expected = metric(prediction, y) + math.log(3)
        else:
            expected = metric(prediction, y) * (3 if metric in (metrics.mae, metrics.rmse, metrics.crps) else 1)
        torch.testing.assert_close(scaled, expected, equal_nan=True)


class TestCRPS:
    def test_of_a_single_gaussian_is_the_closed_form(self, dtype):
        mean, stddev = torch.randn(N, 2, dtype=dtype), torch.rand(N, 2, dtype=dtype)
        prediction = Prediction(lambda f: Normal(f, stddev), mean, torch.zeros_like(mean), num_samples=1)
        y = torch.randn(N, 2, dtype=dtype)
        z = (y - mean) / stddev
        standard = Normal(torch.zeros((), dtype=dtype), 1.0)
        expected = stddev * (z * (2 * standard.cdf(z) - 1) + 2 * standard.log_prob(z).exp() - math.pi**-0.5)
        torch.testing.assert_close(metrics.crps(prediction, y), expected.mean(0))

    def test_of_gaussians_entry_by_entry_is_the_integral_of_its_definition(self, dtype):
        mean, stddev, y = (
            torch.tensor(value, dtype=dtype) for value in ([0.3, -1.0, 2.0], [0.5, 2.0, 0.1], [1.0, -1.0, 0.0])
        )
        grid = torch.linspace(-15, 15, 100_001, dtype=torch.float64).unsqueeze(-1)
        cdf = torch.special.ndtr((grid - mean.double()) / stddev.double())
        expected = torch.trapezoid((cdf - (grid >= y.double()).double()).square(), grid, dim=0)
        torch.testing.assert_close(metrics.gaussian_crps(mean, stddev, y).double(), expected, rtol=1e-3, atol=1e-3)
        assert metrics.gaussian_crps(mean, stddev, torch.full_like(y, torch.nan)).isnan().all()
        sure = metrics.gaussian_crps(mean, 1e-6 * stddev, y)
        torch.testing.assert_close(sure, (mean - y).abs(), atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("num_draws", [4, 4000])
    def test_of_other_families_is_estimated_without_bias(self, num_draws, monkeypatch):
        """Many points average the noise out: what remains would be bias, and large with two draws a component."""
        monkeypatch.setattr("gpytorch_sgpvae.likelihoods.mixture.NUM_DRAWS", num_draws)
        num_points, rates = 16_000 if num_draws == 4 else 300, torch.tensor([0.5, 8.0]).double()
        base_samples = rates.log().view(-1, 1, 1).expand(2, num_points, 1)
        zero, one = torch.zeros(num_points, 1).double(), torch.ones(num_points, 1).double()
        prediction = Prediction(lambda f: Poisson(f.exp()), zero, one, 2, base_samples)
        counts = np.arange(100)
        cdf = scipy.stats.poisson.cdf(counts, rates.numpy()[:, None]).mean(0)
        for value in (0.0, 4.0):
            expected = ((cdf - (counts >= value)) ** 2).sum()
            actual = metrics.crps(prediction, torch.full((num_points, 1), value).double())
            assert actual.item() == pytest.approx(expected, abs=0.04)

    def test_of_gaussian_columns_beside_others_is_exact(self):
        def kinds(f):
            return ColumnwiseDistribution([Normal(f[..., :1], 1.0), Poisson(f[..., 1:].exp())])

        torch.manual_seed(1)
        mixed = make_of_family(kinds, num_outputs=2)
        torch.manual_seed(1)
        gaussian = make_of_family(lambda f: Normal(f, 1.0), num_outputs=2)
        y = torch.ones(N, 2).double()
        torch.testing.assert_close(metrics.crps(mixed, y)[0], metrics.crps(gaussian, y)[0])

    def test_does_not_depend_on_the_chunk_size(self):
        scores = []
        for chunk_size in (None, 7):
            torch.manual_seed(1)
            prediction = make_of_family(lambda f: Poisson(f.exp()), num_points=50, chunk_size=chunk_size)
            scores.append(metrics.crps(prediction, torch.ones(50, 1).double()))
        torch.testing.assert_close(*scores, rtol=0, atol=1e-12)

    def test_is_lowest_for_the_right_spread(self):
        y = torch.randn(2000, 1).double()
        scores = [
            metrics.crps(Prediction(lambda f, s=stddev: Normal(f, s), 0 * y, 0 * y, 1), y).item()
            for stddev in (0.5, 1.0, 2.0)
        ]
        assert scores[1] < min(scores[0], scores[2])


FAMILIES = {
    "gaussian": lambda: GaussianObservations(2),
    "student": lambda: StudentTObservations(2),
    "lognormal": lambda: LogNormalObservations(2),
    "bernoulli": lambda: BernoulliObservations(2),
    "categorical": lambda: CategoricalObservations(2, 3),
    "poisson": lambda: PoissonObservations(2),
    "negative binomial": lambda: NegativeBinomialObservations(2),
    "mixed": lambda: MixedObservations([GaussianObservations(1), PoissonObservations(1), BernoulliObservations(1)]),
}


class TestCoverage:
    @pytest.mark.parametrize("level", [0.5, 0.9])
    def test_of_a_calibrated_prediction_is_near_its_level(self, level):
        prediction, _ = make(num_samples=100, tasks=(), num_points=1500)
        # its own draws are calibrated, but for the error of 100 samples; four standard deviations of a fraction
        actual = metrics.coverage(prediction, prediction.sample(1)[0], level)
        assert (actual - level).abs().max() < 4 * (level * (1 - level) / 1500) ** 0.5 + 0.01

    def test_of_too_narrow_a_prediction_is_too_low(self):
        y = 2 * torch.randn(2000, 1).double()
        prediction = Prediction(lambda f: Normal(f, 1.0), 0 * y, 0 * y, 1)
        expected = 2 * scipy.stats.norm.cdf(1.96 / 2) - 1
        assert metrics.coverage(prediction, y).item() == pytest.approx(expected, abs=0.04)

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("level", [0.5, 0.95])
    def test_it_is_that_of_the_quantiles_which_it_does_not_search_for(self, family, level):
        observations = FAMILIES[family]().double()
        mean = torch.randn(300, observations.decoder_size).double()
        prediction = Prediction(observations, mean, 0.3 * torch.ones_like(mean), 40)
        y = prediction.sample(1)[0]
        lower, upper = prediction.quantile([0.5 - 0.5 * level, 0.5 + 0.5 * level])
        expected = ((lower <= y) & (y <= upper)).double().mean(0)
        assert torch.equal(metrics.coverage(prediction, y, level), expected)

    @pytest.mark.parametrize("level", [0.0, 1.0, 95])
    def test_a_level_that_is_no_probability_is_an_error(self, level):
        prediction, y = make()
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            metrics.coverage(prediction, y, level)
