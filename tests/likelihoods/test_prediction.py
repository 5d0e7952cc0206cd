from __future__ import annotations

import gpytorch
import helpers
import numpy as np
import pytest
import scipy.stats
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch.distributions import Bernoulli, Gamma, LogNormal, Normal, Poisson, StudentT

from gpytorch_sgpvae import (
    GPVAE,
    SGPVAE,
    DecoderLikelihood,
    GaussianObservations,
    Prediction,
    PrivateLinear,
    point_covariances,
)
from gpytorch_sgpvae.likelihoods.mixture import NUM_DRAWS
from gpytorch_sgpvae.likelihoods.observation_models.distributions import ColumnwiseDistribution
from gpytorch_sgpvae.likelihoods.prediction import BLOCK_SIZE
from gpytorch_sgpvae.variational.dense_joint_encoding import DenseJointEncoding

N, K, P, S = 6, 2, 3, 5


class Observations(gpytorch.Module):
    """An observation model of a family of torch's, as it is."""

    def __init__(self, family):
        super().__init__()
        self.family = family

    def forward(self, decoded):
        return self.family(decoded)


class PoissonWithCdf(Poisson):
    def cdf(self, value):
        self._validate_sample(value)
        return torch.special.gammaincc(value + 1, self.rate)


class CauchyWithoutIcdf(torch.distributions.Cauchy):
    def icdf(self, value):
        raise NotImplementedError


def make_q_f(*batch_shape, num_points=N, dtype=torch.float64):
    root = torch.randn(*batch_shape, K, num_points, num_points, dtype=dtype)
    return MultitaskMultivariateNormal.from_batch_mvn(
        MultivariateNormal(
            torch.randn(*batch_shape, K, num_points, dtype=dtype),
            root @ root.mT + torch.eye(num_points, dtype=dtype),
        )
    )


def make(num_samples=S, tasks=()):
    """A prediction of a Gaussian decoder, the means of its components and their variance."""
    likelihood, q_f = helpers.make_likelihood(P, K), make_q_f(*tasks)
    samples = torch.randn(num_samples, *tasks, N, K).double()
    prediction = likelihood.predict(q_f, base_samples=samples)
    means = likelihood.decoder(q_f.mean + q_f.stddev * samples).detach()
    return prediction, means, likelihood.observation_model.noise.detach()


def make_of_family(family, num_samples=S, chunk_size=None, dtype=torch.float64):
    """A prediction whose components have the latent functions as their parameters."""
    likelihood = DecoderLikelihood(torch.nn.Identity(), Observations(family))
    mean, stddev = torch.randn(N, K, dtype=dtype), torch.rand(N, K, dtype=dtype)
    return Prediction(likelihood, mean, stddev, num_samples, chunk_size=chunk_size)


class TestMixture:
    @pytest.mark.parametrize("tasks", [(), (2,)])
    def test_moments_are_those_of_the_mixture(self, tasks):
        prediction, means, noise = make(tasks=tasks)
        assert isinstance(prediction, Prediction)
        torch.testing.assert_close(prediction.mean, means.mean(0))
        second_moment = (means.square() + noise).mean(0)
        torch.testing.assert_close(prediction.variance, second_moment - means.mean(0).square())
        torch.testing.assert_close(prediction.stddev, prediction.variance.sqrt())

    def test_log_densities(self):
        prediction, means, noise = make()
        y = torch.randn(N, P).double()
        y[2, 1] = torch.nan
        kept = ~y.isnan()
        mixture = Normal(means, noise.sqrt()).log_prob(y.nan_to_num()).exp().mean(0).log()
        matched = Normal(prediction.mean, prediction.stddev).log_prob(y.nan_to_num())
        for actual, expected in ((prediction.log_prob(y), mixture), (prediction.gaussian_log_prob(y), matched)):
            torch.testing.assert_close(actual[kept], expected[kept])
            assert torch.equal(actual.isnan(), y.isnan())

    def test_samples_have_the_predictive_moments(self):
        prediction, *_ = make(num_samples=20_000)
        draws = prediction.sample(20_000)
        assert draws.shape == (20_000, N, P)
        assert not draws.requires_grad
        torch.testing.assert_close(draws.mean(0), prediction.mean.detach(), rtol=0, atol=0.05)
        torch.testing.assert_close(draws.var(0), prediction.variance.detach(), rtol=0.05, atol=0)

    @pytest.mark.parametrize("chunk_size", [None, 2])
    @pytest.mark.parametrize("num_samples", [2, S, 100])
    def test_the_mean_of_a_decoder_that_starts_out_linear_is_exact(self, num_samples, chunk_size):
        model = GPVAE(P, K, network="jointfactornet").double().eval()
        x, y = helpers.make_data(num_outputs=P)
        x_new = torch.rand(N, x.shape[-1], dtype=x.dtype)
        linear = model.likelihood.decoder.linear
        exact = linear(model(x_new, context=(x, y)).mean)
        torch.testing.assert_close(model.predict(x_new, (x, y), num_samples, chunk_size).mean, exact)

    def test_centered_samples_are_standard_normal_and_leave_the_variance_unbiased(self):
        likelihood = DecoderLikelihood(torch.nn.Identity(), Observations(lambda f: Normal(f, 1e-3)))
        num_points = 40_000
        prediction = Prediction(likelihood, torch.zeros(num_points, 1), torch.ones(num_points, 1), num_samples=4)
        samples = prediction.components.mean
        assert samples.sum(0).abs().max() < 1e-5
        for sample in samples:
            assert scipy.stats.kstest(sample.flatten(), "norm").pvalue > 1e-4
        assert abs(prediction.variance.mean() - 1) < 0.02  # three quarters with samples that are not centered

    def test_no_samples_are_an_error(self):
        with pytest.raises(ValueError, match="num_samples must be at least 1"):
            helpers.make_likelihood(P, K).predict(make_q_f(), num_samples=0)

    def test_base_samples_of_another_shape_are_an_error_that_names_both(self):
        with pytest.raises(ValueError, match=r"\('S', 2, 6, 2\), got \(5, 6, 2\)"):
            helpers.make_likelihood(P, K).predict(make_q_f(2), base_samples=torch.randn(S, N, K).double())

    @pytest.mark.parametrize("chunk_size", [None, 2])
    def test_it_is_differentiable(self, chunk_size):
        likelihood, q_f = helpers.make_likelihood(P, K), make_q_f()
        likelihood.predict(q_f, chunk_size=chunk_size).mean.sum().backward()
        assert all(p.grad is not None for p in likelihood.decoder.parameters())

    @pytest.mark.parametrize("chunk_size", [None, 2])
    def test_a_prediction_made_without_gradients_has_none(self, chunk_size):
        with torch.no_grad():
            prediction = helpers.make_likelihood(P, K).predict(make_q_f(), chunk_size=chunk_size)
        assert not prediction.mean.requires_grad
        assert not prediction.log_prob(torch.zeros(N, P).double()).requires_grad


class TestQuantiles:
    def test_invert_the_distribution_function_of_the_mixture(self):
        prediction, means, noise = make()
        levels = torch.tensor([0.01, 0.5, 0.975])
        quantiles = prediction.quantile(levels)
        assert quantiles.shape == (3, N, P)
        for level, quantile in zip(levels, quantiles, strict=True):
            cdf = Normal(means, noise.sqrt()).cdf(quantile).mean(0)
            torch.testing.assert_close(cdf, level.double().expand_as(cdf), rtol=0, atol=1e-9)
        assert torch.equal(prediction.quantile(levels[1].item()), quantiles[1])
        assert torch.equal(prediction.quantile(levels.tolist()), quantiles)

    @pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, torch.tensor([[0.5]])])
    def test_levels_that_are_no_probabilities_are_errors(self, bad):
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            make()[0].quantile(bad)

    @pytest.mark.parametrize("level", [1e-4, 0.3, 0.999])
    @pytest.mark.parametrize(
        "family",
        [
            lambda decoded: LogNormal(decoded, 0.5),
            # torch's has no icdf, and its cdf rejects values outside its support
            lambda decoded: Gamma(2 + decoded.exp(), 2.0),
            lambda decoded: CauchyWithoutIcdf(decoded, 1.0),
        ],
        ids=["icdf", "cdf_of_positive_numbers", "cdf_without_moments"],
    )
    def test_of_continuous_families(self, family, level, dtype):
        prediction = make_of_family(family, dtype=dtype)
        quantile = prediction.quantile(level)
        assert quantile.dtype == dtype
        cdf = prediction.components.cdf(quantile).mean(0)
        atol = 1e-9 if dtype == torch.float64 else 2e-5
        torch.testing.assert_close(cdf, torch.full_like(cdf, level), rtol=0, atol=atol)

    @pytest.mark.parametrize("level", [1e-4, 0.3, 0.999])
    def test_of_counts_are_the_smallest_with_that_probability(self, level, dtype):
        prediction = make_of_family(lambda decoded: PoissonWithCdf((1 + decoded).exp()), dtype=dtype)
        rates, quantile = prediction.components.rate.double().numpy(), prediction.quantile(level).double().numpy()
        assert (quantile == np.floor(quantile)).all()
        assert (scipy.stats.poisson.cdf(quantile, rates).mean(0) >= level).all()
        assert (scipy.stats.poisson.cdf(quantile - 1, rates).mean(0) < level).all()

    @pytest.mark.parametrize(
        ("family", "oracle"),
        [
            (lambda decoded: Poisson(decoded.exp()), lambda c: scipy.stats.poisson(c.rate)),
            (lambda decoded: Bernoulli(logits=decoded), lambda c: scipy.stats.bernoulli(c.probs)),
            (lambda decoded: StudentT(3.0, decoded), lambda c: scipy.stats.t(c.df, c.loc)),
        ],
        ids=["poisson", "bernoulli", "student_t"],
    )
    def test_of_families_without_a_distribution_function_come_from_draws(self, family, oracle):
        prediction = make_of_family(family)
        for level in (0.1, 0.5, 0.8):
            quantile = prediction.quantile(level)
            # six standard deviations of the fraction of so many draws
            atol = 6 * (level * (1 - level) / NUM_DRAWS) ** 0.5
            mixture = oracle(prediction.components)
            assert (mixture.cdf(quantile).mean(0) >= level - atol).all()
            assert (mixture.cdf(quantile - 1e-6).mean(0) <= level + atol).all()

    def test_from_draws_do_not_cross(self):
        prediction = make_of_family(lambda decoded: StudentT(3.0, decoded))
        assert (prediction.quantile(torch.linspace(0.1, 0.9, 50)).diff(dim=0) >= 0).all()

    def test_of_columns_of_different_kinds_are_those_of_each_kind(self):
        def kinds(decoded):
            count, real = decoded.split(1, dim=-1)
            return ColumnwiseDistribution([PoissonWithCdf(count.exp()), Normal(real, 1.0)])

        prediction = make_of_family(kinds)
        counts, reals = prediction.components.parts
        actual = prediction.quantile(0.7)
        assert torch.equal(actual[:, 0], actual[:, 0].floor())
        assert (counts.cdf(actual[:, :1]).mean(0) >= 0.7).all()
        torch.testing.assert_close(reals.cdf(actual[:, 1:]).mean(0), torch.full((N, 1), 0.7).double())


class TestJointSamples:
    def make(self, **kwargs):
        likelihood = DecoderLikelihood(torch.nn.Identity(), GaussianObservations(K)).double()
        likelihood.observation_model.noise = 0.5
        return likelihood, make_q_f(**kwargs)

    def test_have_the_joint_covariance_and_marginal_ones_have_none(self):
        likelihood, q_f = self.make()
        prediction = likelihood.predict(q_f)
        noise = 0.5 * torch.eye(N).double()
        for joint in (True, False):
            draws = prediction.sample(40_000, joint=joint)
            assert draws.shape == (40_000, N, K)
            for k in range(K):
                latent = q_f.covariance_matrix[k::K, k::K]
                expected = (latent if joint else latent.diag().diag()) + noise
                torch.testing.assert_close(torch.cov(draws[..., k].T), expected, rtol=0.1, atol=0.3)
            torch.testing.assert_close(draws.mean(0), q_f.mean, rtol=0, atol=0.1)

    def test_go_through_more_inputs_than_a_block(self):
        likelihood, q_f = self.make(num_points=BLOCK_SIZE + 3)
        draws = likelihood.predict(q_f).sample(20_000, joint=True)
        covariance = torch.cov(draws[..., 0].T)[0, BLOCK_SIZE:]
        torch.testing.assert_close(covariance, q_f.covariance_matrix[0, BLOCK_SIZE * K :: K], rtol=0, atol=2.0)
        assert q_f.covariance_matrix[0, BLOCK_SIZE * K :: K].abs().max() > 4

    def test_the_joint_distribution_may_come_from_a_function_that_is_called_when_needed(self):
        likelihood, q_f = self.make()
        calls = []
        prediction = Prediction(likelihood, q_f.mean, q_f.stddev, 7, function_dist=lambda: calls.append(1) or q_f)
        prediction.sample(3)
        assert not calls
        assert prediction.sample(3, joint=True).shape == (3, N, K)
        assert calls

    def test_one_latent_function_may_be_an_event_of_n(self):
        q_f = MultivariateNormal(torch.zeros(2, N), torch.eye(N).expand(2, N, N))
        prediction = helpers.make_likelihood(P, 1, dtype=torch.float32).predict(q_f)
        assert prediction.sample(4, joint=True).shape == (4, 2, N, P)

    def test_without_a_joint_distribution_are_an_error_that_says_so(self):
        likelihood, q_f = self.make()
        with pytest.raises(ValueError, match="function_dist"):
            Prediction(likelihood, q_f.mean, q_f.stddev, 7).sample(3, joint=True)


class TestUnits:
    mean, stddev = torch.tensor([3.0, -10.0, 0.0]).double(), torch.tensor([2.0, 0.1, 1.0]).double()

    def test_moments_quantiles_and_components_are_rescaled(self):
        prediction, *_ = make()
        rescaled = prediction.rescale(self.mean, self.stddev)
        torch.testing.assert_close(rescaled.mean, self.mean + self.stddev * prediction.mean)
        torch.testing.assert_close(rescaled.stddev, self.stddev * prediction.stddev)
        torch.testing.assert_close(rescaled.quantile(0.2), self.mean + self.stddev * prediction.quantile(0.2))
        torch.testing.assert_close(rescaled.components.mean.mean(0), rescaled.mean)
        # the original stays what it is
        torch.testing.assert_close(prediction.components.mean.mean(0), prediction.mean)

    def test_samples_are_rescaled(self):
        prediction, *_ = make(num_samples=20_000)
        rescaled = prediction.rescale(self.mean, self.stddev)
        for joint in (True, False):
            draws = rescaled.sample(20_000, joint=joint)
            error = (draws.mean(0) - rescaled.mean.detach()) / rescaled.stddev.detach()
            assert error.abs().max() < 0.05
            torch.testing.assert_close(draws.std(0), rescaled.stddev.detach(), rtol=0.03, atol=0)

    def test_densities_integrate_to_one(self):
        prediction, *_ = make()
        rescaled = prediction.rescale(self.mean, self.stddev)
        grid = torch.linspace(-12, 12, 501).double()
        y = rescaled.mean + rescaled.stddev * grid.view(-1, 1, 1)  # (501, N, P)
        for density in (rescaled.log_prob, rescaled.gaussian_log_prob):
            values = torch.stack([density(row) for row in y]).exp()
            integral = torch.trapezoid(values, y, dim=0)
            torch.testing.assert_close(integral, torch.ones(N, P).double(), rtol=0, atol=1e-6)

    def test_densities_agree_with_those_of_the_rescaled_components_and_missing_values_stay_so(self):
        prediction = make_of_family(lambda decoded: LogNormal(decoded, 0.5))
        rescaled = prediction.rescale(5.0, torch.tensor([2.0, 0.3]))
        y = 5 + torch.rand(N, K).double()
        expected = rescaled.components.log_prob(y).exp().mean(0).log()
        y[0, 0] = torch.nan
        actual = rescaled.log_prob(y)
        assert torch.equal(actual.isnan(), y.isnan())
        torch.testing.assert_close(actual[1:], expected[1:])

    def test_changes_of_units_compose(self):
        prediction, *_ = make()
        there_and_back = prediction.rescale(self.mean, self.stddev).rescale(-self.mean / self.stddev, 1 / self.stddev)
        y = torch.randn(N, P).double()
        torch.testing.assert_close(there_and_back.mean, prediction.mean)
        torch.testing.assert_close(there_and_back.log_prob(y), prediction.log_prob(y))

    @pytest.mark.parametrize("shape", [(P + 1,), (1, P), (N, P)])
    def test_of_another_number_of_outputs_are_errors(self, shape):
        with pytest.raises(ValueError, match=r"expected a number or \(3,\)"):
            make()[0].rescale(0.0, torch.ones(shape))

    @pytest.mark.parametrize("stddev", [0.0, -1.0, torch.nan])
    def test_that_are_not_positive_are_errors(self, stddev):
        with pytest.raises(ValueError, match="positive"):
            make()[0].rescale(0.0, stddev)


class TestChunks:
    num_points = 2 * BLOCK_SIZE + 7

    def make(self, chunk_size, dtype=torch.float64, tasks=(2,)):
        torch.manual_seed(3)
        likelihood = DecoderLikelihood(torch.nn.Identity(), GaussianObservations(K)).to(dtype)
        mean, stddev = torch.randn(*tasks, self.num_points, K, dtype=dtype), torch.rand(self.num_points, K, dtype=dtype)
        return Prediction(likelihood, mean, stddev.expand_as(mean), S, chunk_size=chunk_size)

    @pytest.mark.parametrize("chunk_size", [1, 5, BLOCK_SIZE, BLOCK_SIZE + 1, 1000])
    def test_change_no_result(self, chunk_size, dtype):
        whole, chunked = self.make(None, dtype), self.make(chunk_size, dtype)
        assert torch.equal(chunked.components.mean, whole.components.mean)
        y = torch.randn(2, self.num_points, K, dtype=dtype)
        y[0, 3, 1] = torch.nan
        for quantity in (
            lambda prediction: prediction.mean,
            lambda prediction: prediction.variance,
            lambda prediction: prediction.quantile([0.1, 0.7]),
            lambda prediction: prediction.log_prob(y),
            lambda prediction: prediction.gaussian_log_prob(y),
            lambda prediction: prediction.rescale(3.0, 2.0).log_prob(y[0]),
        ):
            expected = quantity(whole)
            assert expected.dtype == dtype
            # sums over samples may be vectorized in another order
            rounding = 20 * torch.finfo(dtype).eps
            torch.testing.assert_close(quantity(chunked), expected, rtol=rounding, atol=rounding, equal_nan=True)

    def test_change_no_draws(self):
        draws = []
        for chunk_size in (None, 5):
            prediction = self.make(chunk_size)
            torch.manual_seed(4)
            draws.append(prediction.sample(3))
        assert torch.equal(*draws)
        quantiles = []
        for chunk_size in (None, 5):
            torch.manual_seed(4)
            prediction = make_of_family(lambda decoded: StudentT(3.0, decoded), chunk_size=chunk_size)
            quantiles.append(prediction.quantile(0.3))
        assert torch.equal(*quantiles)

    def test_explicit_base_samples_are_used(self):
        likelihood, q_f = helpers.make_likelihood(P, K), make_q_f()
        samples = torch.randn(S, N, K).double()
        chunked = likelihood.predict(q_f, base_samples=samples, chunk_size=4)
        torch.testing.assert_close(chunked.mean, likelihood.predict(q_f, base_samples=samples).mean)
        torch.testing.assert_close(
            chunked.components.mean, likelihood.decoder(q_f.mean + q_f.stddev * samples), rtol=0, atol=1e-12
        )

    def test_noise_is_standard_normal_and_independent_from_input_to_input(self):
        likelihood = DecoderLikelihood(torch.nn.Identity(), GaussianObservations(K))
        num_points = 4 * BLOCK_SIZE
        prediction = Prediction(likelihood, torch.zeros(num_points, K), torch.ones(num_points, K), 20_000)
        noise = prediction.components.mean.detach().flatten(1)
        covariance = torch.cov(noise.T)
        assert noise.mean(0).abs().max() < 0.04
        assert (covariance - torch.eye(num_points * K)).abs().max() < 0.06

    def test_predictions_differ_from_one_to_the_next(self):
        likelihood, q_f = helpers.make_likelihood(P, K), make_q_f()
        assert not torch.equal(likelihood.predict(q_f, chunk_size=2).mean, likelihood.predict(q_f, chunk_size=2).mean)

    def test_bound_the_memory(self):
        num_points, num_samples, chunk_size, hidden = 1000, 50, 40, 8
        likelihood = helpers.make_likelihood(P, K)
        mean, stddev = torch.randn(num_points, K).double(), torch.rand(num_points, K).double()
        y = torch.randn(num_points, P).double()
        bound = max(num_samples * 2 * BLOCK_SIZE * hidden, 2 * num_points * P)
        for size in (None, chunk_size):
            with torch.no_grad(), helpers.largest_allocation() as memory:
                prediction = Prediction(likelihood, mean, stddev, num_samples, chunk_size=size)
                _ = prediction.mean, prediction.variance, prediction.quantile([0.1, 0.9])
                _ = prediction.log_prob(y), prediction.gaussian_log_prob(y)
            assert (memory.numel <= bound) is (size is not None)

    def test_of_no_inputs_are_empty(self):
        likelihood = helpers.make_likelihood(P, K)
        for chunk_size in (None, 4):
            empty = torch.zeros(2, 0, K).double()
            prediction = Prediction(likelihood, empty, empty, S, chunk_size=chunk_size)
            assert prediction.mean.shape == (2, 0, P)
            assert prediction.quantile([0.1, 0.9]).shape == (2, 2, 0, P)
            assert prediction.sample(3).shape == (3, 2, 0, P)

    def test_of_a_size_below_one_are_errors(self):
        with pytest.raises(ValueError, match="chunk_size must be at least 1"):
            self.make(0)

    def test_a_decoder_of_another_size_is_an_error_at_once(self):
        with pytest.raises(ValueError, match="takes 2 features"):
            helpers.make_likelihood(P, 2).predict(
                MultivariateNormal(torch.zeros(N).double(), torch.eye(N).double()), chunk_size=2
            )


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_no_tensor_is_made_on_the_default_device(chunk_size, dtype):
    likelihood, q_f = helpers.make_likelihood(P, K, dtype=dtype), make_q_f(dtype=dtype)
    y = torch.randn(N, P, dtype=dtype)
    with torch.device("meta"):
        prediction = likelihood.predict(q_f, num_samples=7, chunk_size=chunk_size).rescale(3.0, 2.0)
        counts, heavy = (
            Prediction(DecoderLikelihood(torch.nn.Identity(), Observations(family)), y, y.exp(), S, None, chunk_size)
            for family in (lambda decoded: PoissonWithCdf(decoded.exp()), lambda decoded: StudentT(3.0, decoded))
        )
        results = [
            prediction.mean,
            prediction.variance,
            prediction.quantile([0.1, 0.9]),
            prediction.sample(3),
            prediction.sample(3, joint=True),
            prediction.log_prob(y),
            prediction.gaussian_log_prob(y),
            counts.quantile(0.3),
            heavy.quantile(0.3),
        ]
    assert all(result.device.type == "cpu" and result.isfinite().all() for result in results)


class TestRows:
    """What is known of each input beside the latent functions goes with it."""

    num_points = BLOCK_SIZE + 5

    def make(self, chunk_size=None):
        """A prediction with a shift of each input and output, the same without, and the shift."""
        mean, stddev, shift = (torch.rand(self.num_points, K).double() for _ in range(3))
        samples = torch.randn(S, self.num_points, K).double()
        plain = Prediction(lambda f: Normal(f, 0.1), mean, stddev, base_samples=samples)
        shifted = Prediction(
            lambda f, added: Normal(f + added, 0.1),
            mean,
            stddev,
            base_samples=samples,
            chunk_size=chunk_size,
            rows=(shift,),
        )
        return shifted, plain, shift

    @pytest.mark.parametrize("chunk_size", [None, 3])
    def test_the_decoder_is_given_them(self, chunk_size):
        prediction, plain, shift = self.make(chunk_size)
        torch.testing.assert_close(prediction.mean, plain.mean + shift)
        torch.manual_seed(0)
        draws = prediction.sample(4)
        torch.manual_seed(0)
        torch.testing.assert_close(draws, plain.sample(4) + shift)

    @pytest.mark.parametrize("chunk_size", [None, 3])
    def test_so_is_a_transformation_beside_those_of_the_decoder(self, chunk_size):
        prediction, *_ = self.make(chunk_size)
        factor = 1 + torch.rand(self.num_points, 1).double()
        scaled = prediction.transform(lambda values, by: Normal(by * values.loc, by * values.scale), factor)
        torch.testing.assert_close(scaled.mean, factor * prediction.mean)
        torch.testing.assert_close(scaled.quantile(0.2), factor * prediction.quantile(0.2))
        torch.manual_seed(0)
        draws = scaled.sample(3)
        torch.manual_seed(0)
        torch.testing.assert_close(draws, factor * prediction.sample(3))

    def test_of_another_number_of_inputs_are_an_error_that_names_both(self):
        with pytest.raises(ValueError, match=r"\(\.\.\., 37, C\), got \(3, 1\)"):
            self.make()[0].transform(lambda values, _: values, torch.zeros(3, 1))


class TestDerived:
    @pytest.mark.parametrize("chunk_size", [None, 2])
    def test_transformed_values_have_the_same_samples_and_may_be_of_another_family_and_number(self, chunk_size):
        prediction = make_of_family(lambda decoded: Normal(decoded, 0.5), chunk_size=chunk_size)
        first = prediction.transform(lambda values: LogNormal(values.loc[..., :1], values.scale[..., :1]))
        assert first.family is LogNormal
        torch.testing.assert_close(first.quantile(0.3), prediction.quantile(0.3)[:, :1].exp())
        assert first.sample(2).shape == (2, N, 1)
        assert torch.equal(first.function_mean, prediction.function_mean)

    def test_the_transformation_is_given_the_units_of_a_rescaled_prediction(self):
        rescaled = make_of_family(lambda decoded: Normal(decoded, 0.5)).rescale(3.0, 2.0)
        exponential = rescaled.transform(lambda values: LogNormal(values.loc, values.scale))
        torch.testing.assert_close(exponential.quantile(0.3), rescaled.quantile(0.3).exp())
        torch.manual_seed(0)
        draws = exponential.sample(3)
        torch.manual_seed(0)
        torch.testing.assert_close(draws, rescaled.sample(3).exp())

    @pytest.mark.parametrize("chunk_size", [None, 4])
    def test_concatenated_inputs_come_in_the_order_that_is_asked_for(self, chunk_size):
        likelihood, q_f = helpers.make_likelihood(P, K), make_q_f()
        mean, shift = q_f.mean, torch.randn(N, P).double()
        order = torch.randperm(N)
        parts = [
            Prediction(likelihood, mean[rows], 0 * mean[rows], S, chunk_size=chunk_size).transform(_add, shift[rows])
            for rows in order.split(4)
        ]
        joined = Prediction.concatenate(parts, order.argsort())
        assert torch.equal(joined.function_mean, mean)
        torch.testing.assert_close(joined.mean, likelihood.decoder(mean) + shift)

    def test_samples_that_were_given_go_along_with_their_inputs(self):
        likelihood, q_f = helpers.make_likelihood(P, K), make_q_f()
        mean, stddev, samples = q_f.mean, q_f.stddev, torch.randn(S, N, K).double()
        order = torch.randperm(N)
        parts = [
            Prediction(likelihood, mean[rows], stddev[rows], base_samples=samples[:, rows]) for rows in order.split(4)
        ]
        joined = Prediction.concatenate(parts, order.argsort())
        expected = Prediction(likelihood, mean, stddev, base_samples=samples)
        torch.testing.assert_close(joined.mean, expected.mean)
        torch.testing.assert_close(joined.quantile(0.3), expected.quantile(0.3))

    def test_only_predictions_of_one_decoder_are_concatenated(self):
        parts = [make()[0] for _ in range(2)]
        with pytest.raises(ValueError, match="share a decoder"):
            Prediction.concatenate(parts, torch.arange(2 * N))


def _add(values, shift):
    return Normal(values.loc + shift, values.scale)


class TestPool:
    def test_draws_come_from_all_models_alike(self):
        models = [Prediction.gaussian(torch.full((N, 1), mean), torch.full((N, 1), 0.1)) for mean in (-5.0, 5.0)]
        draws = Prediction.pool(models).sample(4000)
        assert draws.shape == (4000, N, 1)
        assert (draws > 0).float().mean() == pytest.approx(0.5, abs=0.05)
        assert (draws.abs() - 5).std() == pytest.approx(0.1, rel=0.1)

    def test_of_other_than_gaussian_components_is_refused(self):
        with pytest.raises(TypeError, match="Gaussian components can be pooled, got Poisson"):
            Prediction.pool([make_of_family(lambda decoded: Poisson(decoded.exp()))])


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_a_posterior_and_its_distribution_of_the_functions_predict_the_same(chunk_size):
    x, y = helpers.make_data()
    model = SGPVAE(y.shape[-1], K, torch.rand(4, x.shape[-1])).double().eval()
    posterior, samples = model.condition((x, y)), torch.randn(S, *x.shape[:-1], K).double()
    with torch.no_grad():
        actual = Prediction.from_posterior(model.likelihood, posterior, x, base_samples=samples, chunk_size=chunk_size)
        expected = Prediction.from_functions(model.likelihood, posterior(x), base_samples=samples)
    torch.testing.assert_close(actual.mean, expected.mean)
    assert actual.sample(2, joint=True).shape == (2, *y.shape)


def test_a_gaussian_is_a_prediction_too():
    mean, stddev = torch.randn(40, 3).double(), torch.rand(40, 3).double() + 0.1
    prediction, y = Prediction.gaussian(mean, stddev), torch.randn(40, 3).double()
    expected = Normal(mean, stddev)
    torch.testing.assert_close(prediction.mean, mean)
    torch.testing.assert_close(prediction.stddev, stddev)
    torch.testing.assert_close(prediction.log_prob(y), expected.log_prob(y))
    torch.testing.assert_close(prediction.gaussian_log_prob(y), expected.log_prob(y))
    torch.testing.assert_close(prediction.quantile(0.9), expected.icdf(torch.tensor(0.9).double()), rtol=0, atol=1e-6)
    assert prediction.sample(2000).std(0).sub(stddev).abs().max() < 0.15
    assert prediction.function_mean.shape == (40, 0)  # it has no latent functions


class TestGaussianOutputs:
    """A linear decoder with Gaussian noise needs no samples, but for draws."""

    def make(self, tasks=(2,)):
        gpvae = GPVAE(3, 2, network="jointfactornet", num_private=1, decoder=PrivateLinear(2, 3, 1)).double().eval()
        x, y = helpers.make_data(*tasks, num_points=5)
        return gpvae, gpvae.condition((x, y)), torch.rand(*tasks, 4, 2).double()

    @pytest.mark.parametrize("chunk_size", [None, 3])
    def test_are_the_exact_ones(self, chunk_size):
        gpvae, posterior, x = self.make()
        exact = gpvae.likelihood.gaussian_marginals(posterior(x))
        prediction = Prediction.from_posterior(gpvae.likelihood, posterior, x, 7, chunk_size=chunk_size)
        for other in (prediction, gpvae.likelihood.predict(posterior(x), 7)):
            torch.testing.assert_close(other.mean, exact.mean)
            torch.testing.assert_close(other.stddev, exact.stddev)
            torch.testing.assert_close(other.quantile(0.9), exact.icdf(torch.tensor(0.9).double()))
            assert other.num_samples == 1

    def test_base_samples_are_still_used(self):
        gpvae, posterior, x = self.make()
        base_samples = torch.randn(6, 2, 4, 5).double()
        assert gpvae.likelihood.predict(posterior(x), base_samples=base_samples).num_samples == 6

    @pytest.mark.parametrize("joint", [False, True])
    def test_draws_of_the_outputs_of_a_point_depend_on_each_other(self, joint):
        """In any units, after any change."""
        gpvae, posterior, x = self.make(())
        q_f, W = posterior(x), gpvae.likelihood.decoder.weight.detach()
        covariance = W @ point_covariances(q_f) @ W.mT + gpvae.likelihood.observation_model.noise.detach().diag()
        prediction = gpvae.likelihood.predict(q_f, 50)
        scale = torch.tensor([1.0, 2.0, 3.0]).double()
        doubled = prediction.rescale(1.0, scale).transform(lambda p: Normal(2 * p.mean, 2 * p.stddev))
        for changed, factor in ((prediction, scale**0), (prediction.rescale(1.0, scale), scale), (doubled, 2 * scale)):
            draws = changed.sample(20_000, joint=joint)  # (n, N, P)
            residual = (draws - draws.mean(0)).movedim(0, -1)
            expected = factor.unsqueeze(-1) * covariance * factor
            size = expected.diagonal(dim1=-2, dim2=-1).sqrt()
            error = (residual @ residual.mT / 20_000 - expected).abs()
            assert (error < 6 / 141 * size.unsqueeze(-1) * size.unsqueeze(-2)).all()
            torch.testing.assert_close(changed.variance, expected.diagonal(dim1=-2, dim2=-1))

    def test_can_be_concatenated_and_know_their_latent_functions(self):
        gpvae, posterior, x = self.make()
        order = torch.tensor([2, 0, 3, 1])
        parts = [gpvae.likelihood.predict(posterior(part), 5) for part in x.split(2, dim=-2)]
        joined = Prediction.concatenate(parts, order)
        whole = gpvae.likelihood.predict(posterior(x), 5)
        torch.testing.assert_close(joined.stddev, whole.stddev[..., order, :])
        torch.testing.assert_close(joined.function_stddev, whole.function_stddev[..., order, :])
        assert joined.sample(3).shape == (3, 2, 4, 3)

    def test_no_covariances_of_the_latent_functions_are_computed(self, monkeypatch):
        gpvae, _, x = self.make()
        monkeypatch.setattr(DenseJointEncoding, "_blocks", lambda *args: 1 / 0)
        assert gpvae.predict(x, (x, torch.randn(2, 4, 3).double())).quantile([0.1, 0.9]).isfinite().all()
