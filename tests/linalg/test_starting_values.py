"""Starting values are close to the truth that made the data, for any pattern of missing entries, and always finite."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from oracles import log_normal_density
from torch import Tensor

from gpytorch_sgpvae.linalg.autocorrelation import autocorrelation, private_split
from gpytorch_sgpvae.linalg.factor_analysis import (
    MAX_ROWS,
    PRIOR_NOISE_SHARE,
    PRIOR_ROWS,
    SMALL_LOADING,
    FactorAnalysis,
    factor_analysis,
    factor_scores,
)

# The correlation of a Matérn-3/2 kernel falls to exp(-1) at 1.24 lengthscales.
E_FOLDING = {0.5: 1.0, 1.5: 1.239}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=generator(1000 + seed))


def everything(y: Tensor) -> Tensor:
    return torch.ones_like(y, dtype=torch.bool)


def covariance(analysis: FactorAnalysis) -> Tensor:
    return analysis.loadings @ analysis.loadings.mT + torch.diag(analysis.noise)


def rows_of_factors(num_rows: int, num_outputs: int = 8, num_factors: int = 2) -> tuple[Tensor, FactorAnalysis]:
    """Rows, and the factor analysis that they come from, in units that differ by orders of magnitude."""
    unit = torch.logspace(-2, 3, num_outputs, dtype=torch.float64)
    truth = FactorAnalysis(
        unit * normal(num_outputs, seed=1),
        unit.unsqueeze(-1) * normal(num_outputs, num_factors, seed=2),
        unit.square() * (0.2 + uniform(num_outputs, seed=3)),
    )
    noise = truth.noise.sqrt() * normal(num_rows, num_outputs, seed=5)
    return truth.mean + normal(num_rows, num_factors, seed=4) @ truth.loadings.mT + noise, truth


def log_likelihood(y: Tensor, observed: Tensor, analysis: FactorAnalysis) -> float:
    C = covariance(analysis)
    return float(
        sum(
            log_normal_density(row[seen], analysis.mean[seen], C[seen][:, seen])
            for row, seen in zip(y, observed, strict=True)
            if seen.any()
        )
    )


def series(x: Tensor, lengthscale: float, smoothness: float, num_series: int, seed: int = 0) -> Tensor:
    """Draws (`T x N x C`) from a GP with a Matérn kernel of unit variance."""
    d = (x - x.mT).abs() * math.sqrt(2 * smoothness) / lengthscale
    K = (1.0 if smoothness == 0.5 else 1.0 + d) * torch.exp(-d)
    L = torch.linalg.cholesky(K + 1e-8 * torch.eye(x.shape[-2], dtype=x.dtype))
    return L @ normal(*x.shape[:-1], num_series, seed=seed)


class TestFactorAnalysis:
    @pytest.mark.parametrize(("holes", "tolerance"), [(0.0, 0.06), (0.3, 0.08), (0.7, 0.12)])
    def test_recovers_mean_and_covariance(self, holes, tolerance):
        y, truth = rows_of_factors(4000)
        observed = uniform(*y.shape) >= holes
        y = torch.where(observed, y, torch.nan)
        analysis = factor_analysis(y, observed, num_factors=2)
        scale = covariance(truth).diagonal().sqrt()
        error = (covariance(analysis) - covariance(truth)) / scale / scale.unsqueeze(-1)
        assert error.abs().max() < tolerance
        assert ((analysis.mean - truth.mean) / scale).abs().max() < tolerance

    def test_two_outputs_that_are_never_seen_together_are_related_by_a_third(self):
        y, truth = rows_of_factors(4000, num_outputs=6, num_factors=1)
        observed = everything(y)
        observed[::2, 0] = False
        observed[1::2, 1] = False
        estimate, expected = (covariance(a)[0, 1] for a in (factor_analysis(y, observed, 1), truth))
        torch.testing.assert_close(estimate, expected, rtol=0.1, atol=0.0)

    def test_likelihood_never_decreases(self):
        y, _ = rows_of_factors(60)
        observed = uniform(*y.shape) >= 0.4
        variance = torch.stack([column[seen].var(correction=0) for column, seen in zip(y.mT, observed.mT, strict=True)])

        def objective(num_iterations):
            analysis = factor_analysis(y, observed, 2, num_iterations)
            prior = analysis.noise.log() + PRIOR_NOISE_SHARE * variance / analysis.noise
            return log_likelihood(y, observed, analysis) - 0.5 * PRIOR_ROWS * float(prior.sum())

        values = [objective(n) for n in range(15)]
        assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(values))
        assert values[-1] > values[0] + 1.0

    def test_agrees_with_scikit_learn_on_complete_data(self):
        decomposition = pytest.importorskip("sklearn.decomposition")
        y, _ = rows_of_factors(2000)
        y = y / y.std(0)
        theirs = decomposition.FactorAnalysis(2, tol=1e-8, max_iter=5000, svd_method="lapack").fit(y.numpy())
        ours = factor_analysis(y, everything(y), 2)
        torch.testing.assert_close(covariance(ours), torch.as_tensor(theirs.get_covariance()), rtol=0.0, atol=2e-3)
        assert log_likelihood(y, everything(y), ours) > 2000 * theirs.score(y.numpy()) - 0.5

    def test_columns_are_orthogonal_and_sorted_and_their_largest_entry_is_positive(self):
        y, _ = rows_of_factors(500, num_factors=3)
        y = y / y.std(0, correction=0)
        W = factor_analysis(y, everything(y), 3).loadings
        gram = W.mT @ W
        torch.testing.assert_close(gram, torch.diag(gram.diagonal()), atol=1e-10, rtol=0.0)
        assert gram.diagonal().tolist() == sorted(gram.diagonal().tolist(), reverse=True)
        assert (W.amax(0) >= W.abs().amax(0)).all()

    def test_units_do_not_matter(self):
        y, _ = rows_of_factors(200)
        observed = uniform(*y.shape) >= 0.3
        one, other = factor_analysis(y, observed, 2), factor_analysis(1e4 * y - 3.0, observed, 2)
        torch.testing.assert_close(other.loadings, 1e4 * one.loadings)
        torch.testing.assert_close(other.mean, 1e4 * one.mean - 3.0)
        torch.testing.assert_close(other.noise, 1e8 * one.noise)

    def test_rows_without_data_and_what_stands_in_holes_are_ignored(self):
        y, _ = rows_of_factors(100)
        observed = uniform(*y.shape) >= 0.3
        longer = torch.cat([torch.where(observed, y, torch.inf), torch.full_like(y, torch.nan)])
        padded = factor_analysis(longer, torch.cat([observed, torch.zeros_like(observed)]), 2)
        for one, other in zip(factor_analysis(y, observed, 2), padded, strict=True):
            assert torch.equal(one, other)

    @pytest.mark.parametrize(("num_outputs", "num_factors"), [(1, 1), (1, 4), (3, 3), (3, 10)])
    def test_more_factors_than_outputs_are_small_and_differ(self, num_outputs, num_factors):
        y = normal(300, num_outputs)
        analysis = factor_analysis(y, everything(y), num_factors)
        extra = analysis.loadings[:, num_outputs:] / y.std(0, correction=0).unsqueeze(-1)
        assert (extra.abs() >= 0.49 * SMALL_LOADING).all()
        assert (extra.abs() <= 1.01 * SMALL_LOADING).all()
        assert len(torch.unique(extra, dim=1).mT) == extra.shape[1]
        variance = covariance(analysis).diagonal()
        torch.testing.assert_close(variance, y.var(0, correction=0), rtol=0.03, atol=0.0)

    def test_a_factor_that_explains_nothing_can_still_learn(self):
        y, _ = rows_of_factors(300, num_factors=1)
        y[:, 1:] = y[:, :1] * torch.arange(2, 9)
        loadings = factor_analysis(y, everything(y), 3).loadings
        assert (loadings != 0).all()
        assert torch.linalg.matrix_rank(loadings / y.std(0).unsqueeze(-1)) == 3

    def test_constant_and_unobserved_columns(self):
        y, _ = rows_of_factors(300)
        y = y / y.std(0)
        y[:, 3] = 0.1
        observed = everything(y)
        observed[:, 5] = False
        observed[1:, 6] = False
        mean, loadings, noise = factor_analysis(y, observed, 2)
        torch.testing.assert_close(mean[3], y[0, 3])
        assert loadings[3].abs().max() < 0.01
        assert 0 < noise[3] < 0.01
        assert mean[5] == 0
        assert noise[5] == 1
        assert 0 < loadings[5].abs().min() <= loadings[5].abs().max() <= 1.01 * SMALL_LOADING
        torch.testing.assert_close(mean[6], y[0, 6], atol=0.5, rtol=0.0)
        assert 0.1 < noise[6] < 1

    @pytest.mark.parametrize("num_rows", [0, 1, 2, 5])
    @pytest.mark.parametrize("num_factors", [1, 3, 12])
    def test_few_rows_leave_noise(self, num_rows, num_factors):
        y = normal(num_rows, 9)
        analysis = factor_analysis(y, everything(y), num_factors)
        assert all(torch.isfinite(tensor).all() for tensor in analysis)
        assert (analysis.loadings.abs().amax(0) > 0).all()
        variance = y.var(0, correction=0) if num_rows > 1 else torch.ones(9, dtype=y.dtype)
        assert (analysis.noise >= 0.99 / (num_rows + PRIOR_ROWS) * variance).all()

    def test_many_rows_are_thinned_and_no_period_is_missed(self):
        num_rows = 12 * MAX_ROWS
        clock = torch.arange(num_rows, dtype=torch.float64) * 2 * math.pi / 24
        y = torch.stack([clock.sin(), clock.sin() + clock.cos(), clock.cos()], dim=-1) + 0.1 * normal(num_rows, 3)
        analysis = factor_analysis(y, everything(y), 2)
        torch.testing.assert_close(covariance(analysis), torch.cov(y.mT), atol=0.01, rtol=0.0)

    def test_bad_arguments_are_named(self):
        y = normal(4, 3)
        with pytest.raises(ValueError, match="at least 1 factor, got 0"):
            factor_analysis(y, everything(y), 0)
        with pytest.raises(ValueError, match=r"\(4, 3\) and observed \(4, 2\)"):
            factor_analysis(y, everything(y)[:, :2], 1)


class TestFactorScores:
    def test_equal_the_conditional_of_the_joint_gaussian(self):
        y, truth = rows_of_factors(20)
        observed = uniform(*y.shape) >= 0.5
        observed[0] = False
        scores = factor_scores(y.reshape(4, 5, -1), observed.reshape(4, 5, -1), truth)
        for n, seen in enumerate(observed):
            W, C = truth.loadings[seen], covariance(truth)[seen][:, seen]
            gain = W.mT @ torch.linalg.inv(C)
            mean, variance = gain @ (y[n] - truth.mean)[seen], 1 - (gain @ W).diagonal()
            torch.testing.assert_close(scores.mean[n // 5, n % 5], mean)
            torch.testing.assert_close(scores.variance[n // 5, n % 5], variance)


class TestAutocorrelation:
    @pytest.mark.parametrize("smoothness", [0.5, 1.5])
    @pytest.mark.parametrize("lengthscale", [2.0, 5.0, 20.0])
    def test_lengthscale_within_a_factor_of_two_of_irregular_noisy_series_with_gaps(self, smoothness, lengthscale):
        x = 100 * uniform(20, 150, 1)
        noise = torch.tensor([0.0, 0.1, 0.3, 1.0], dtype=torch.float64)
        values = series(x, lengthscale, smoothness, num_series=4) + noise.sqrt() * normal(20, 150, 4, seed=1)
        observed = (uniform(20, 150, 4, seed=2) >= 0.3) & ~((x > 40) & (x < 60))
        share, estimate = autocorrelation(x, torch.where(observed, values, torch.nan), observed)
        ratio = estimate.squeeze(-1) / (E_FOLDING[smoothness] * lengthscale)
        assert (ratio > 0.5).all()
        assert (ratio < 2.0).all()
        torch.testing.assert_close(share, 1 / (1 + noise), atol=0.2, rtol=0.0)

    def test_one_long_series(self):
        x = torch.arange(20_000, dtype=torch.float64).unsqueeze(-1)
        values = [normal(1)]
        shocks = normal(20_000, seed=1) * math.sqrt(1 - math.exp(-2 / 100))
        for shock in shocks[1:]:
            values.append(math.exp(-1 / 100) * values[-1] + shock)
        y = torch.stack(values)
        share, lengthscale = autocorrelation(x, y, everything(y))
        assert 50 < lengthscale.item() < 200
        assert share.item() > 0.9

    def test_many_inputs_are_isotropic_in_their_own_units(self):
        x = uniform(5, 400, 2) * torch.tensor([1.0, 1000.0], dtype=torch.float64)
        distance = torch.cdist(x / x.new_tensor([0.2, 200.0]), x / x.new_tensor([0.2, 200.0]))
        L = torch.linalg.cholesky(torch.exp(-distance) + 1e-8 * torch.eye(400, dtype=x.dtype))
        values = L @ normal(5, 400, 3) + 0.3 * normal(5, 400, 3, seed=1)
        lengthscale = autocorrelation(x, values, everything(values)).lengthscale
        assert lengthscale.shape == (3, 2)
        ratio = lengthscale / x.new_tensor([0.2, 200.0])
        assert ratio.min() > 0.5
        assert ratio.max() < 2.0

    def test_lies_between_the_nearest_distance_and_ten_times_the_extent(self):
        x = torch.linspace(0, 100, 101, dtype=torch.float64).unsqueeze(-1)
        fast, slow = (-1.0) ** x.squeeze(-1), torch.sign(uniform(40) - 0.5)
        values = torch.stack([fast.expand(40, -1), slow.unsqueeze(-1).expand(-1, 101)], dim=-1)
        lengthscale = autocorrelation(x, values, everything(values)).lengthscale
        assert (lengthscale >= 1.0 - 1e-12).all()
        assert (lengthscale <= 1000.0 + 1e-9).all()
        assert lengthscale[1] > 500.0

    def test_white_noise_has_no_share_and_the_default_lengthscale(self):
        x = 100 * uniform(50, 100, 1)
        values = normal(50, 100, 1)
        share, lengthscale = autocorrelation(x, values, everything(values))
        assert share.item() < 0.05
        torch.testing.assert_close(lengthscale.item(), 0.2 * float((x.amax(1) - x.amin(1)).max()), rtol=0.1, atol=0.0)

    def test_few_pairs_give_the_defaults(self):
        x = torch.tensor([[0.0], [1.0], [10.0]])
        y = torch.tensor([[0.3, 1.0], [0.1, torch.nan], [0.2, torch.nan]])
        share, lengthscale = autocorrelation(x, y, ~torch.isnan(y))
        assert share.tolist() == [0.5, 0.5]
        torch.testing.assert_close(lengthscale, torch.full((2, 1), 2.0))

    @pytest.mark.parametrize("shape", [(1, 1), (0, 1), (50, 1), (50, 2), (3, 20, 2)])
    def test_inputs_that_never_differ(self, shape):
        values = torch.ones(*shape[:-1], 2)
        share, lengthscale = autocorrelation(torch.zeros(shape), values, everything(values))
        assert share.tolist() == [0.5, 0.5]
        assert (lengthscale == 1).all()

    def test_one_input_that_never_differs(self):
        x = torch.cat([100 * uniform(10, 80, 1), torch.full((10, 80, 1), 7.0, dtype=torch.float64)], dim=-1)
        values = series(x[..., :1], 10.0, 0.5, num_series=1)
        lengthscale = autocorrelation(x, values, everything(values)).lengthscale
        assert 5 < lengthscale[0, 0] < 20
        assert lengthscale[0, 1] == 1

    @pytest.mark.parametrize("num_inputs", [1, 2])
    def test_constant_series_and_nothing_observed_are_finite(self, num_inputs):
        x, values = uniform(4, 30, num_inputs), torch.ones(4, 30, 3, dtype=torch.float64)
        observed = everything(values)
        observed[..., 1] = False
        for seen in (observed, torch.zeros_like(observed)):
            result = autocorrelation(x, values, seen)
            assert all(torch.isfinite(tensor).all() for tensor in result)
            assert (result.lengthscale > 0).all()

    def test_padding_changes_nothing(self):
        x = 100 * uniform(3, 40, 1)
        values = series(x, 10.0, 0.5, num_series=2)
        observed = uniform(3, 40, 2, seed=1) >= 0.3
        padded = [
            torch.cat([tensor, fill.expand(3, 10, -1)], dim=1)
            for tensor, fill in ((x, x[:, -1:]), (values, values[:, :1]), (observed, torch.zeros(1, 1, 2) > 0))
        ]
        for one, other in zip(autocorrelation(x, values, observed), autocorrelation(*padded), strict=True):
            torch.testing.assert_close(one, other)

    def test_bad_shapes_are_named(self):
        with pytest.raises(ValueError, match=r"\(4, 1\), values \(5, 2\) and weights \(5, 2\)"):
            autocorrelation(normal(4, 1), normal(5, 2), normal(5, 2))


class TestPrivateSplit:
    @pytest.mark.parametrize(("holes", "tolerance"), [(0.0, 0.2), (0.3, 0.25), (0.7, 0.4)])
    def test_recovers_the_shares(self, holes, tolerance):
        x = 100 * uniform(30, 100, 1)
        share = torch.linspace(0, 1, 12, dtype=torch.float64)
        loadings = torch.nn.functional.normalize(normal(12, 2, seed=1), dim=-1)
        shared = series(x, 15.0, 1.5, num_series=2, seed=2) @ loadings.mT
        private = series(x, 5.0, 0.5, num_series=12, seed=3)
        left = (0.5 * share).sqrt() * private + (0.5 * (1 - share)).sqrt() * normal(30, 100, 12, seed=4)
        y, observed = shared + left, uniform(30, 100, 12, seed=5) >= holes
        y = torch.where(observed, y, torch.nan)
        analysis = factor_analysis(y, observed, 2)
        split = private_split(x, y, observed, analysis)
        torch.testing.assert_close(split.private_variance + split.noise, analysis.noise)
        assert (split.private_variance / analysis.noise - share).abs().max() < tolerance
        mostly_private = split.private_lengthscale[share > 0.5].squeeze(-1)
        assert (mostly_private > 2.5).all()
        assert (mostly_private < 10.0 if holes < 0.5 else mostly_private < 15.0).all()
        assert (split.noise > 0).all()
        assert (split.private_variance > 0).all()

        scores = factor_scores(y, observed, analysis)
        lengthscale = autocorrelation(x, scores.mean, 1 - scores.variance).lengthscale / (E_FOLDING[1.5] * 15.0)
        assert (lengthscale > 0.5).all()
        assert (lengthscale < 2.0).all()

    def test_nothing_observed(self):
        x, y = normal(2, 5, 1), torch.full((2, 5, 3), torch.nan)
        x, observed = x.float(), ~torch.isnan(y)
        split = private_split(x, y, observed, factor_analysis(y, observed, 2))
        assert all(torch.isfinite(tensor).all() for tensor in split)
        torch.testing.assert_close(split.private_variance + split.noise, torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_have_the_dtype_and_device_of_the_data(dtype):
    x, y = normal(3, 20, 1).to(dtype), normal(3, 20, 4).to(dtype)
    observed = everything(y)
    with torch.device("meta"):  # what is made on the default device has no values
        analysis = factor_analysis(y, observed, 6)
        scores = factor_scores(y, observed, analysis)
        lengths = autocorrelation(x, scores.mean, 1 - scores.variance)
        plane = autocorrelation(torch.cat([x, x], dim=-1), y, observed)
        split = private_split(x, y, observed, analysis)
    for tensor in (*analysis, *scores, *lengths, *plane, *split):
        assert tensor.dtype == dtype
        assert tensor.device.type == "cpu"
        assert torch.isfinite(tensor).all()


def test_large_values_in_float32_stay_finite():
    y = (1e6 * (1 + 1e-3 * normal(2, 50, 4))).float()
    x, observed = normal(2, 50, 1).float(), uniform(2, 50, 4) >= 0.3
    analysis = factor_analysis(y, observed, 3)
    split = private_split(x, y, observed, analysis)
    assert all(torch.isfinite(tensor).all() for tensor in (*analysis, *split))


def test_equal_data_give_equal_starts_and_no_random_number_is_drawn():
    y = normal(3, 40, 4)
    state = torch.get_rng_state()
    one, other = (factor_analysis(y, everything(y), 6) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
