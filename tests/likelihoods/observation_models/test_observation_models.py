"""What every observation model promises. A new one is tested by adding it to `CASES`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import gpytorch
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from helpers import DTYPES, array, assert_equal, pairwise_cases, softplus
from torch import Tensor

import gpytorch_sgpvae.likelihoods.observation_models
from gpytorch_sgpvae import (
    MLP,
    BernoulliObservations,
    CategoricalObservations,
    CensoredGaussianObservations,
    DecoderLikelihood,
    GaussianObservations,
    HeteroscedasticGaussianObservations,
    LogNormalObservations,
    MixedObservations,
    NegativeBinomialObservations,
    ObservationModel,
    PoissonObservations,
    StudentTObservations,
)
from gpytorch_sgpvae.likelihoods.targets import check_support

N, P, C, S = 5, 3, 4, 6


class Scipy:
    """A frozen distribution of scipy, of shape (..., N, P)."""

    def __init__(self, frozen):
        self.mean, self.variance, self.cdf, self.icdf = frozen.mean(), frozen.var(), frozen.cdf, frozen.ppf
        self.log_prob = frozen.logpdf if hasattr(frozen, "logpdf") else frozen.logpmf


class Censored:
    """The oracle is scipy's Gaussian, and its part above zero."""

    def __init__(self, loc, scale):
        self.normal = scipy.stats.norm(loc, scale)
        above, positive = self.normal.sf(0.0), scipy.stats.truncnorm(-loc / scale, np.inf, loc, scale)
        self.mean = above * positive.mean()
        self.variance = above * (positive.var() + positive.mean() ** 2) - self.mean**2

    def log_prob(self, y):
        return np.where(y > 0, self.normal.logpdf(y), self.normal.logcdf(0.0))

    def cdf(self, y):
        return np.where(y >= 0, self.normal.cdf(y), 0.0)

    def icdf(self, p):
        return np.maximum(self.normal.ppf(p), 0)


class Classes:
    """The oracle is scipy's multinomial distribution of one draw, and counting."""

    def __init__(self, logits):
        self.probs, self.index = scipy.special.softmax(logits, -1), np.arange(logits.shape[-1])
        self.mean = (self.probs * self.index).sum(-1)
        self.variance = (self.probs * self.index**2).sum(-1) - self.mean**2

    def log_prob(self, y):
        return scipy.stats.multinomial.logpmf(y[..., None] == self.index, 1, self.probs)

    def cdf(self, y):
        return (self.probs * (self.index <= np.asarray(y)[..., None])).sum(-1)

    def icdf(self, p):
        return (self.probs.cumsum(-1) >= p).argmax(-1)


class Columns:
    def __init__(self, parts):
        self.mean = np.concatenate([part.mean for part in parts], -1)
        self.variance = np.concatenate([part.variance for part in parts], -1)
        self.parts = parts

    def log_prob(self, y):
        return np.concatenate([part.log_prob(y[..., [i]]) for i, part in enumerate(self.parts)], -1)

    def cdf(self, y):
        return np.concatenate([part.cdf(y[..., [i]]) for i, part in enumerate(self.parts)], -1)

    def icdf(self, p):
        return np.concatenate([part.icdf(p) for part in self.parts], -1)


@dataclass
class Case:
    make: Callable[[int], ObservationModel]
    # from the observation model and the decoder's values
    oracle: Callable[[ObservationModel, np.ndarray], Scipy | Classes | Columns]
    # from standard normal ones
    targets: Callable[[Tensor], Tensor]
    outside: tuple[float, ...]
    described: str
    learnt: tuple[str, ...] = ()


def spread(size, low, high):
    return torch.linspace(low, high, size)


def negative_binomial(model, h):
    r, mean = array(model.dispersion), softplus(h)
    return Scipy(scipy.stats.nbinom(r, r / (r + mean)))


CASES = {
    GaussianObservations: Case(
        lambda p: GaussianObservations(p).initialize(noise=spread(p, 0.2, 0.7)),
        lambda model, h: Scipy(scipy.stats.norm(h, np.sqrt(array(model.noise)))),
        lambda z: z,
        (torch.inf,),
        "finite numbers",
        ("noise",),
    ),
    HeteroscedasticGaussianObservations: Case(
        HeteroscedasticGaussianObservations,
        lambda model, h: Scipy(
            scipy.stats.norm(h[..., : h.shape[-1] // 2], np.sqrt(1e-4 + softplus(h[..., h.shape[-1] // 2 :])))
        ),
        lambda z: z,
        (-torch.inf,),
        "finite numbers",
    ),
    StudentTObservations: Case(
        lambda p: StudentTObservations(p).initialize(noise=spread(p, 0.2, 0.7), deg_free=spread(p, 7.0, 12.0)),
        lambda model, h: Scipy(scipy.stats.t(array(model.deg_free), h, np.sqrt(array(model.noise)))),
        lambda z: z,
        (torch.inf,),
        "finite numbers",
        ("noise", "deg_free"),
    ),
    LogNormalObservations: Case(
        lambda p: LogNormalObservations(p).initialize(noise=spread(p, 0.05, 0.1)),
        lambda model, h: Scipy(scipy.stats.lognorm(s=np.sqrt(array(model.noise)), scale=np.exp(h))),
        torch.exp,
        (0.0, -1.0, torch.inf),
        "finite numbers greater than 0",
        ("noise",),
    ),
    CensoredGaussianObservations: Case(
        lambda p: CensoredGaussianObservations(p).initialize(noise=spread(p, 0.2, 0.7)),
        lambda model, h: Censored(h, np.sqrt(array(model.noise))),
        torch.relu,
        (-1.0, torch.inf),
        "finite numbers from 0",
        ("noise",),
    ),
    BernoulliObservations: Case(
        BernoulliObservations,
        lambda model, h: Scipy(scipy.stats.bernoulli(scipy.special.expit(h))),
        lambda z: (z > 0).to(z),
        (0.5, -1.0, 2.0),
        "0 or 1",
    ),
    CategoricalObservations: Case(
        lambda p: CategoricalObservations(p, C),
        lambda model, h: Classes(h.reshape(*h.shape[:-1], -1, C)),
        lambda z: (z + 2).floor().clamp(0, C - 1),
        (0.5, -1.0, float(C)),
        "whole numbers from 0 to 3",
    ),
    PoissonObservations: Case(
        PoissonObservations,
        lambda model, h: Scipy(scipy.stats.poisson(softplus(h))),
        lambda z: (3 * z).abs().floor(),
        (0.5, -1.0, torch.inf),
        "whole numbers from 0",
    ),
    NegativeBinomialObservations: Case(
        lambda p: NegativeBinomialObservations(p).initialize(dispersion=spread(p, 0.5, 4.0)),
        negative_binomial,
        lambda z: (3 * z).abs().floor(),
        (0.5, -1.0, torch.inf),
        "whole numbers from 0",
        ("dispersion",),
    ),
}


def mixed_parts(num_outputs: int) -> list[type[ObservationModel]]:
    families = [LogNormalObservations, CategoricalObservations, NegativeBinomialObservations]
    return [families[i % 3] for i in range(num_outputs)]


def mixed_oracle(model, h):
    parts = zip(mixed_parts(model.num_outputs), model.observation_models, strict=True)
    columns = np.split(h, np.cumsum([part.decoder_size for part in model.observation_models])[:-1], -1)
    return Columns([CASES[family].oracle(part, x) for (family, part), x in zip(parts, columns, strict=True)])


def mixed_targets(z):
    families = mixed_parts(z.shape[-1])
    return torch.stack([CASES[family].targets(z[..., i]) for i, family in enumerate(families)], -1)


CASES[MixedObservations] = Case(
    lambda p: MixedObservations([CASES[family].make(1) for family in mixed_parts(p)]),
    mixed_oracle,
    mixed_targets,
    (0.0, -1.0),  # in the first column, which is log-normal
    "finite numbers greater than 0",
)


@pytest.fixture(params=CASES, ids=lambda family: family.__name__)
def family(request):
    return request.param


@pytest.fixture
def case(family):
    return CASES[family]


def test_every_observation_model_is_tested():
    module = gpytorch_sgpvae.likelihoods.observation_models
    assert set(CASES) == {getattr(module, name) for name in module.__all__} - {ObservationModel}
    assert set(module.__all__) <= set(gpytorch_sgpvae.__all__)


def make(case, *batch_shape, num_points=N, dtype=torch.float64):
    """An observation model, the decoder's values and targets."""
    model = case.make(P).to(dtype)
    decoded = 1.5 * torch.randn(*batch_shape, num_points, model.decoder_size, dtype=dtype)
    return model, decoded, case.targets(torch.randn(*batch_shape, num_points, P, dtype=dtype))


def make_q_f(num_latents, *batch_shape, dtype=torch.float64):
    covariance = torch.eye(N, dtype=dtype).expand(*batch_shape, num_latents, N, N) * 0.3
    mean = torch.randn(*batch_shape, num_latents, N, dtype=dtype, requires_grad=True)
    return mean, MultitaskMultivariateNormal.from_batch_mvn(MultivariateNormal(mean, covariance))


class TestDistributions:
    @pytest.mark.parametrize("batch_shape", [(), (2, 3)])
    def test_density_and_moments_are_scipys(self, case, batch_shape):
        model, decoded, y = make(case, *batch_shape)
        distribution, oracle = model(decoded), case.oracle(model, array(decoded))
        assert_equal(distribution.log_prob(y), oracle.log_prob(array(y)))
        assert_equal(distribution.mean, oracle.mean)
        assert_equal(distribution.variance, oracle.variance)

    def test_distribution_functions_are_scipys_also_outside_the_support(self, case):
        model, decoded, y = make(case)
        distribution, oracle = model(decoded), case.oracle(model, array(decoded))
        for value in (y, y + 0.3, y - 0.3, torch.full_like(y, -2.0), torch.full_like(y, 40.0)):
            assert_equal(distribution.cdf(value), oracle.cdf(array(value)), rtol=1e-9, atol=1e-12)

    def test_quantiles_are_scipys(self, case):
        model, decoded, _ = make(case)
        distribution, oracle = model(decoded), case.oracle(model, array(decoded))
        for p in (0.003, 0.1, 0.5, 0.95, 0.9999):
            quantiles = distribution.icdf(torch.tensor(p, dtype=decoded.dtype))
            assert_equal(quantiles, oracle.icdf(p), rtol=1e-7, atol=1e-9)

    @pairwise_cases("family, batch_shape, num_points, dtype", list(CASES), [(2, 3), (), (0,)], [5, 0], DTYPES)
    def test_shapes_and_dtypes(self, case, batch_shape, num_points, dtype):
        model, decoded, y = make(case, *batch_shape, num_points=num_points, dtype=dtype)
        distribution, p = model(decoded), torch.tensor(0.3, dtype=dtype)
        shape = (*batch_shape, num_points, P)
        assert distribution.batch_shape == shape
        assert distribution.event_shape == ()
        for value in (distribution.log_prob(y), distribution.mean, distribution.variance, distribution.sample()):
            assert (value.shape, value.dtype) == (shape, dtype)
        for value in (distribution.cdf(y), distribution.icdf(p), distribution.icdf(p.expand(P))):
            assert (value.shape, value.dtype) == (shape, dtype)
        assert distribution.sample((7,)).shape == (7, *shape)
        expanded = distribution.expand((2, *shape))
        assert expanded.batch_shape == (2, *shape)
        torch.testing.assert_close(expanded.log_prob(y), distribution.log_prob(y).expand(2, *shape))

    def test_samples_have_the_moments_and_are_in_the_support(self, case):
        model, decoded, _ = make(case)
        distribution, size = model(decoded), 20_000
        draws = distribution.sample((size,))
        assert not draws.requires_grad
        assert distribution.support.check(draws).all()
        errors = (draws.mean(0) - distribution.mean) / (distribution.stddev / size**0.5)
        assert errors.abs().max() < 5
        torch.testing.assert_close(draws.var(0), distribution.variance.detach(), rtol=0.15, atol=1e-3)

    def test_gradients_are_right(self, case):
        model, decoded, y = make(case)
        assert torch.autograd.gradcheck(lambda h: model(h).log_prob(y), decoded.requires_grad_())

    @pytest.mark.parametrize("scale", [1.0, 1e3])
    def test_extreme_values_of_the_decoder_have_finite_densities_and_gradients(self, case, scale, dtype):
        model, decoded, y = make(case, dtype=dtype)
        for sign in (decoded.sign(), torch.ones_like(decoded), -torch.ones_like(decoded)):
            h = (scale * sign).requires_grad_()
            log_probs = model(h).log_prob(y)
            log_probs.sum().backward()
            assert log_probs.isfinite().all()
            assert h.grad.isfinite().all()
            assert all(parameter.grad.isfinite().all() for parameter in model.parameters())

    def test_tensors_are_made_where_the_inputs_are(self, case):
        model, decoded, y = make(case)
        filled, observed = y, torch.ones_like(y, dtype=torch.bool)
        p = torch.tensor(0.3, dtype=decoded.dtype)
        with torch.device("meta"):
            for name in case.learnt:
                setattr(model, name, 3.0)
            distribution = model(decoded)
            check_support(distribution, filled, observed)
            values = [distribution.log_prob(y), distribution.mean, distribution.variance]
            values += [distribution.sample(), distribution.cdf(y), distribution.icdf(p)]
        assert all(value.device.type == "cpu" for value in values)


@pytest.mark.parametrize("family", [PoissonObservations, NegativeBinomialObservations])
def test_a_rate_that_starts_far_too_low_still_learns(family):
    decoded = torch.full((1, P), -1e3, requires_grad=True)
    CASES[family].make(P)(decoded).log_prob(torch.ones(1, P)).sum().backward()
    torch.testing.assert_close(decoded.grad, torch.ones(1, P))


def test_the_means_of_counts_have_a_scale_that_is_no_part_of_the_state():
    decoded = torch.tensor([[0.0, 10.0]])
    plain, scaled = (
        NegativeBinomialObservations(2),
        NegativeBinomialObservations(2, rate_scale=torch.tensor([1.0, 1e6])),
    )
    torch.testing.assert_close(scaled(decoded).mean, plain(decoded).mean * torch.tensor([1.0, 1e6]))
    assert scaled.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("rate_scale", [0.0, torch.tensor([1.0, -1.0]), torch.ones(3)])
def test_a_scale_that_is_not_positive_or_of_another_size_is_refused(rate_scale):
    with pytest.raises(ValueError, match="rate_scale must be a positive number or 2 of them, one for each output, got"):
        NegativeBinomialObservations(2, rate_scale=rate_scale)


class TestModules:
    def test_the_decoder_must_give_as_many_values_as_they_take(self, case, family):
        model = case.make(P)
        size = model.decoder_size
        for width in (size - 1, size + 1):
            with pytest.raises(
                ValueError, match=rf"{family.__name__}.*takes {size} values.*\(2, {width}\).*out_size={size}"
            ):
                model(torch.zeros(2, width))
        assert model(MLP(2, size)(torch.zeros(N, 2))).batch_shape == (N, P)

    def test_learnt_parameters_have_gradients_and_can_be_set(self, case):
        model, decoded, y = make(case)
        model(decoded.requires_grad_()).log_prob(y).sum().backward()
        assert all((parameter.grad != 0).all() for parameter in model.parameters())
        for name in case.learnt:
            assert getattr(model, name).shape == (P,)
            setattr(model, name, 3.0)
            torch.testing.assert_close(getattr(model, name), torch.full((P,), 3.0).double())
            values = torch.tensor([3.0, 4.0, 5.0])
            torch.testing.assert_close(getattr(model.initialize(**{name: values}), name), values.double())

    def test_learnt_parameters_take_gpytorchs_constraints_and_priors(self, family, case):
        for name in case.learnt:
            constraint = gpytorch.constraints.Interval(3.0, 9.0)
            prior = gpytorch.priors.GammaPrior(2.0, 0.5)
            model = family(P, **{f"{name}_constraint": constraint, f"{name}_prior": prior})
            assert ((getattr(model, name) > 3) & (getattr(model, name) < 9)).all()
            ((_, module, registered, closure, _),) = pickle.loads(pickle.dumps(model)).named_priors()
            assert isinstance(registered, gpytorch.priors.GammaPrior)
            torch.testing.assert_close(closure(module), getattr(model, name))
            ((*_, setting),) = model.named_priors()
            setting(model, torch.tensor(4.0))
            torch.testing.assert_close(getattr(model, name), torch.full((P,), 4.0))

    def test_copies_pickles_and_states_give_the_same_densities(self, case, dtype):
        model, decoded, y = make(case, dtype=dtype)
        expected = model(decoded).log_prob(y)
        fresh = case.make(P).to(dtype)
        for parameter in fresh.parameters():
            parameter.data.add_(1)
        fresh.load_state_dict(model.state_dict())
        for other in (fresh, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(decoded).log_prob(y), expected)

    @pytest.mark.parametrize(
        ("build", "error", "message"),
        [
            (lambda: PoissonObservations(0), ValueError, "num_outputs must be at least 1, got 0"),
            (lambda: MixedObservations([]), ValueError, "num_outputs must be at least 1, got 0"),
            (lambda: CategoricalObservations(2, 1), ValueError, "num_classes must be at least 2, got 1"),
            (lambda: MixedObservations([torch.nn.ReLU()]), TypeError, r"got ReLU\(\).*GaussianObservations\(2\)"),
            (lambda: ObservationModel(1)(torch.zeros(1, 1)), NotImplementedError, r"implement distribution\(decoded\)"),
        ],
    )
    def test_what_cannot_be_is_an_error(self, build, error, message):
        with pytest.raises(error, match=message):
            build()


class TestTargets:
    @pairwise_cases("family, batch_shape, dtype", list(CASES), [(2,), ()], DTYPES)
    def test_that_are_missing_have_no_part_in_values_or_gradients(self, case, batch_shape, dtype):
        model, _, y = make(case, *batch_shape, dtype=dtype)
        likelihood = DecoderLikelihood(torch.nn.Identity(), model)
        mean, q_f = make_q_f(model.decoder_size, *batch_shape, dtype=dtype)
        samples = torch.randn(S, *batch_shape, N, model.decoder_size, dtype=dtype)
        observed = torch.rand(y.shape) < 0.6
        observed[..., 0, :] = False
        observed[..., 1] = False
        leaves = [mean, *model.parameters()]

        actual = likelihood.expected_log_prob(torch.where(observed, y, torch.nan), q_f, base_samples=samples)
        gradients = torch.autograd.grad(actual.sum(), leaves)
        f = mean.mT + q_f.stddev * samples
        expected = model(f).log_prob(y).masked_fill(~observed, 0.0).mean(0).sum(-1)
        torch.testing.assert_close(actual, expected)
        for gradient, other in zip(gradients, torch.autograd.grad(expected.sum(), leaves), strict=True):
            torch.testing.assert_close(gradient, other)
            assert torch.equal(gradient == 0, other == 0)
        assert (actual[..., 0] == 0).all()
        assert (gradients[0][..., 0] == 0).all()
        assert (gradients[0] != 0).any()

    @pytest.mark.parametrize("density", ["expected_log_prob", "log_marginal"])
    def test_outside_the_support_are_errors_that_say_where_and_why(self, case, density):
        model, _, y = make(case, 2)
        likelihood = DecoderLikelihood(torch.nn.Identity(), model)
        _, q_f = make_q_f(model.decoder_size, 2)
        y[0, 1] = torch.nan
        getattr(likelihood, density)(y, q_f)
        for value in case.outside:
            bad = y.clone()
            bad[1, 3:, 0] = value
            bad[1, 3, 1:] = torch.nan
            message = rf"^2 observed.*which are {case.described}\. The first is {value:g}, in output column 0 at "
            with pytest.raises(ValueError, match=message + r"index \(1, 3\).*MixedObservations"):
                getattr(likelihood, density)(bad, q_f)
            bad[1, 3:, 0] = torch.nan
            assert getattr(likelihood, density)(bad, q_f).isfinite().all()

    def test_of_mixed_outputs_are_reported_by_the_family_and_column_they_stand_in(self):
        model = MixedObservations(
            [GaussianObservations(2), MixedObservations([PoissonObservations(1), BernoulliObservations(2)])]
        )
        distribution, y = model(torch.zeros(N, 5)), torch.ones(N, 5)
        y[:, :2] = -0.5
        check_support(distribution, y, torch.ones(N, 5, dtype=torch.bool))
        y[3, 4] = 0.5
        with pytest.raises(
            ValueError, match=r"^1 observed.*Bernoulli.*0 or 1.*is 0.5, in output column 4 at index \(3,"
        ):
            check_support(distribution, y, torch.ones(N, 5, dtype=torch.bool))
        y[2, 2] = -3
        with pytest.raises(ValueError, match=r"^1 observed.*Poisson.*whole.*is -3, in output column 2 at .*\(2,"):
            check_support(distribution, y, torch.ones(N, 5, dtype=torch.bool))
        check_support(distribution, y, ~((y == 0.5) | (y == -3)))

    def test_are_not_looked_at_outside_debug_mode(self):
        distribution = PoissonObservations(1)(torch.zeros(N, 1))
        with gpytorch.settings.debug(False):
            check_support(distribution, -torch.ones(N, 1), torch.ones(N, 1, dtype=torch.bool))

    def test_are_checked_against_supports_that_differ_from_sample_to_sample_or_do_not_exist(self):
        y, observed = torch.ones(N, P), torch.ones(N, P, dtype=torch.bool)
        upper = torch.full((S, N, P), 3.0)
        upper[2, 1, 1] = 0.5
        with pytest.raises(ValueError, match=r"^1 observed.*Uniform.*is 1, in output column 1 at index \(1,\)"):
            check_support(torch.distributions.Uniform(torch.zeros(S, N, P), upper), y, observed)
        check_support(torch.distributions.Distribution(torch.Size([S, N, P]), validate_args=False), y, observed)


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_predictions_have_the_moments_of_the_mixture(case, batch_shape):
    model, *_ = make(case)
    _, q_f = make_q_f(model.decoder_size, *batch_shape)
    samples = torch.randn(S, *batch_shape, N, model.decoder_size).double()
    prediction = DecoderLikelihood(torch.nn.Identity(), model).predict(q_f, base_samples=samples)
    components = case.oracle(model, array(q_f.mean + q_f.stddev * samples))
    mean = components.mean.mean(0)
    assert_equal(prediction.mean, mean)
    assert_equal(prediction.variance, (components.variance + components.mean**2).mean(0) - mean**2)
