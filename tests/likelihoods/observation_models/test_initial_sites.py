"""Gaussian approximations of p(y | h) to start inference networks from, for every observation model in `CASES`."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.special
import torch
from helpers import DTYPES, array, needs_compile, pairwise_cases
from test_observation_models import CASES, N, P, make

from gpytorch_sgpvae import (
    BernoulliObservations,
    CategoricalObservations,
    CensoredGaussianObservations,
    GaussianObservations,
    HeteroscedasticGaussianObservations,
    LogNormalObservations,
    MixedObservations,
    NegativeBinomialObservations,
    ObservationModel,
    PoissonObservations,
    StudentTObservations,
)
from gpytorch_sgpvae.likelihoods.observation_models.initial_sites import LOGISTIC_SHIFT

# Families with one value of the decoder for each output, and how far the posterior mean of h by the site may be from
# the exact one, on average over data that come from a standard normal h themselves. By the prior alone it would be 0.24
# (counts of dispersion 0.5) to 0.77 off.
TOLERANCES = {
    GaussianObservations: 0.0,
    LogNormalObservations: 0.0,
    CensoredGaussianObservations: 0.0,
    BernoulliObservations: 0.0,
    StudentTObservations: 0.02,
    PoissonObservations: 0.05,
    NegativeBinomialObservations: 0.11,
}
COUNTS = [PoissonObservations, NegativeBinomialObservations]

all_families = pytest.mark.parametrize("family", CASES, ids=lambda family: family.__name__)
scalar_families = pytest.mark.parametrize("family", TOLERANCES, ids=lambda family: family.__name__)


def posterior_mean(sites):
    """The posterior mean of h, with a standard normal prior."""
    g, precision = sites
    return array(precision * g / (1 + precision))


def predicted_targets(model, num_points):
    """Targets from a standard normal h."""
    return model(torch.randn(num_points, model.decoder_size, dtype=torch.float64)).sample()


def exact_posterior_mean(case, model, y):
    """The posterior mean of h, with a standard normal prior, by the trapezoidal rule."""
    h = np.linspace(-10, 10, 801)[:, None, None]  # (H, 1, 1)
    log_likelihood = case.oracle(model, np.broadcast_to(h, (len(h), 1, P))).log_prob(array(y))  # (H, N, P)
    weights = scipy.special.softmax(log_likelihood - h**2 / 2, 0)
    return (weights * h).sum(0)


class TestForm:
    @pairwise_cases("family, batch_shape, num_points, dtype", list(CASES), [(2, 3), (), (0,)], [5, 0], DTYPES)
    def test_shapes_and_dtypes(self, family, batch_shape, num_points, dtype):
        model, decoded, y = make(CASES[family], *batch_shape, num_points=num_points, dtype=dtype)
        for observed in (None, torch.rand(y.shape) < 0.5):
            for value in model.initial_sites(y, observed):
                assert (value.shape, value.dtype) == (decoded.shape, dtype)
                assert value.isfinite().all()

    @pairwise_cases("family, batch_shape, dtype", list(CASES), [(2,), ()], DTYPES)
    def test_what_is_missing_has_precision_zero_and_no_part_in_gradients(self, family, batch_shape, dtype):
        model, _, y = make(CASES[family], *batch_shape, dtype=dtype)
        y.requires_grad_()
        leaves = [y, *model.parameters()]
        observed = torch.rand(y.shape) < 0.6
        observed[..., 0, :] = False
        # every value of the decoder that belongs to a missing output
        gone = ~values_of(model, observed)
        expected = [value.masked_fill(gone, 0.0) for value in model.initial_sites(y)]
        expected_gradients = gradients_of(expected, leaves)

        nan, nonsense = (torch.where(observed, y, value) for value in (torch.nan, -torch.inf))
        for sites in (model.initial_sites(nan), model.initial_sites(nonsense, observed)):
            assert all(torch.equal(value, other) for value, other in zip(sites, expected, strict=True))
            for gradient, other in zip(gradients_of(sites, leaves), expected_gradients, strict=True):
                torch.testing.assert_close(gradient, other)

    @all_families
    def test_holes_by_nan_and_by_observed_add_up(self, family):
        model, _, y = make(CASES[family])
        first, second = torch.rand(2, *y.shape) < 0.6
        actual = model.initial_sites(torch.where(first, y, torch.nan), second)
        for value, other in zip(actual, model.initial_sites(y, first & second), strict=True):
            assert torch.equal(value, other)

    @all_families
    def test_learnt_parameters_have_gradients(self, family):
        model, _, y = make(CASES[family])
        for name in CASES[family].learnt:
            (gradient,) = gradients_of(model.initial_sites(y), [getattr(model, f"raw_{name}")])
            assert (gradient != 0).all()

    @all_families
    def test_tensors_are_made_where_the_inputs_are(self, family):
        model, _, y = make(CASES[family])
        with torch.device("meta"):
            sites = model.initial_sites(y)
        assert all(value.device.type == "cpu" for value in sites)

    @needs_compile
    @all_families
    def test_compiles_as_one_graph(self, family):
        model, _, y = make(CASES[family])
        y[0] = torch.nan
        torch._dynamo.reset()
        compiled = torch.compile(model.initial_sites, backend="eager", fullgraph=True)
        for value, other in zip(compiled(y), model.initial_sites(y), strict=True):
            assert torch.equal(value, other)

    @all_families
    def test_outputs_of_another_number_are_an_error(self, family):
        model = CASES[family].make(P)
        message = rf"{family.__name__} has num_outputs=3.*\(5, 1\).*expected \(\.\.\., N, 3\)"
        with pytest.raises(ValueError, match=message):
            model.initial_sites(torch.ones(5, 1))

    def test_a_family_without_them_says_what_to_implement(self):
        class Laplace(ObservationModel):
            pass

        message = r"Laplace must implement initial_sites\(y, observed=None\).*\(\.\.\., N, 2\)"
        for model in (Laplace(2), MixedObservations([GaussianObservations(1), Laplace(2)])):
            with pytest.raises(NotImplementedError, match=message):
                model.initial_sites(torch.ones(5, model.num_outputs))


def values_of(model, outputs):
    """What is true of an output, for each value of the decoder that belongs to it."""
    if isinstance(model, HeteroscedasticGaussianObservations):
        return torch.cat([outputs, outputs], -1)
    if isinstance(model, CategoricalObservations):
        return outputs.repeat_interleave(model.num_classes, -1)
    if isinstance(model, MixedObservations):
        columns = outputs.split([part.num_outputs for part in model.observation_models], -1)
        return torch.cat([values_of(*pair) for pair in zip(model.observation_models, columns, strict=True)], -1)
    return outputs


def gradients_of(sites, leaves):
    """Gradients of all values with different weights; zeros for what they do not depend on."""
    g, precision = sites
    weights = torch.linspace(1, 2, g.shape[-1], dtype=g.dtype)
    total = (weights * (g + precision)).sum() + 0.0 * sum(leaf.sum() for leaf in leaves)
    return torch.autograd.grad(total, leaves)


class TestApproximation:
    def test_every_family_is_compared_with_its_exact_posterior(self):
        apart = {HeteroscedasticGaussianObservations, CategoricalObservations, MixedObservations}
        assert set(TOLERANCES) | apart == set(CASES)

    @scalar_families
    def test_posterior_means_are_close_to_the_exact_ones(self, family):
        model = CASES[family].make(P).double()
        y = predicted_targets(model, 2000)
        actual = posterior_mean(model.initial_sites(y))
        expected = exact_posterior_mean(CASES[family], model, y)
        assert (np.sign(actual) == np.sign(expected)).all()
        assert (np.abs(actual - expected).mean(0) <= TOLERANCES[family] + 1e-8).all()

    @pytest.mark.parametrize("family", [GaussianObservations, LogNormalObservations])
    def test_gaussian_likelihoods_are_the_sites_themselves(self, family):
        model, decoded, y = make(CASES[family])
        g, precision = model.initial_sites(y)
        # log p(y | h) - log p(y | 0) = -λ h² / 2 + λ g h
        actual = -0.5 * precision * decoded.square() + precision * g * decoded
        torch.testing.assert_close(actual, model(decoded).log_prob(y) - model(torch.zeros_like(decoded)).log_prob(y))

    def test_shared_noise_is_every_outputs(self):
        model = GaussianObservations(P, shared_noise=True).initialize(noise=0.25)
        torch.testing.assert_close(model.initial_sites(torch.zeros(N, P))[1], torch.full((N, P), 4.0))

    @scalar_families
    def test_a_larger_value_never_points_lower(self, family):
        model, _, y = make(CASES[family], num_points=50)
        y = y.sort(-2).values
        steps = model.initial_sites(y)[0].diff(dim=-2)
        assert torch.equal(steps > 0, y.diff(dim=-2) > 0)
        assert (steps >= 0).all()

    @pytest.mark.parametrize("family", COUNTS)
    def test_positive_counts_have_the_likelihoods_mode_and_curvature(self, family):
        model = CASES[family].make(P).double()
        y = torch.tensor([1.0, 2.0, 5.0, 30.0, 1e4]).double().unsqueeze(-1).expand(-1, P)
        g, precision = (value.detach() for value in model.initial_sites(y))
        h = g.requires_grad_()
        (slope,) = torch.autograd.grad(model(h).log_prob(y).sum(), h, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), h)
        torch.testing.assert_close(slope, torch.zeros_like(slope))
        torch.testing.assert_close(-curvature, precision, rtol=1e-6, atol=0.0)

    @pytest.mark.parametrize("family", COUNTS)
    def test_counts_up_to_a_million_stay_finite(self, family, dtype):
        model = CASES[family].make(P).to(dtype)
        y = torch.cat([torch.zeros(1), torch.logspace(0, 6, 50).round()]).to(dtype).unsqueeze(-1).repeat(1, P)
        g, precision = sites = model.initial_sites(y.requires_grad_())
        assert g.isfinite().all()
        assert (precision > 0).all()
        assert precision.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in gradients_of(sites, [y, *model.parameters()]))

    def test_negative_binomial_becomes_poisson_as_the_dispersion_grows(self):
        y = torch.arange(10.0).double().unsqueeze(-1)
        model = NegativeBinomialObservations(1).double().initialize(dispersion=1e9)
        for value, other in zip(model.initial_sites(y), PoissonObservations(1).initial_sites(y), strict=True):
            torch.testing.assert_close(value, other)

    def test_large_counts_in_units_have_the_likelihoods_mode_and_curvature(self):
        model = NegativeBinomialObservations(1, rate_scale=1e5).double().initialize(dispersion=40.0)
        y = torch.tensor([[1e5], [1e6], [3e6]]).double()
        h, precision = (value.detach() for value in model.initial_sites(y))
        assert (h.abs() < 100).all()
        (slope,) = torch.autograd.grad(model(h.requires_grad_()).log_prob(y).sum(), h, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), h)
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0.0, atol=1e-8)
        torch.testing.assert_close(-curvature, precision, rtol=1e-6, atol=0.0)

    def test_zeros_of_counts_are_flags(self):
        zeros = torch.zeros(N, P)
        flags = BernoulliObservations(P).initial_sites(zeros)
        for value, other in zip(PoissonObservations(P).initial_sites(zeros), flags, strict=True):
            assert torch.equal(value, other)

    def test_a_zero_of_an_amount_says_less_than_an_amount(self):
        model = CASES[CensoredGaussianObservations].make(P)
        g, precision = model.initial_sites(torch.tensor([[0.0], [0.1]]).expand(2, P))
        assert (g[0] < 0).all()
        assert (precision[0] < precision[1]).all()

    def test_the_constant_of_the_logistic_function_is_its_posterior_mean(self):
        h = np.linspace(-10, 10, 801)
        weights = scipy.special.softmax(scipy.special.log_expit(h) - h**2 / 2)
        np.testing.assert_allclose(LOGISTIC_SHIFT, (weights * h).sum(), rtol=1e-12)

    def test_heteroscedastic_means_are_close_to_the_exact_ones_and_nothing_is_said_about_noise(self):
        model = HeteroscedasticGaussianObservations(1).double()
        y = predicted_targets(model, 100)
        g, precision = model.initial_sites(y)
        assert (g[:, 1] == 0).all()
        assert (precision[:, 1] == 0).all()

        nodes = np.linspace(-8, 8, 161)
        mean, raw_noise = (axis[..., None] for axis in np.meshgrid(nodes, nodes, indexing="ij"))  # (H, H, 1)
        decoded = np.concatenate([mean, raw_noise], -1)
        log_likelihood = CASES[HeteroscedasticGaussianObservations].oracle(model, decoded).log_prob
        weights = [log_likelihood(value) - (mean**2 + raw_noise**2) / 2 for value in array(y)]
        weights = scipy.special.softmax(np.stack(weights), (1, 2))  # (N, H, H, 1)
        expected = (weights * mean).sum((1, 2))
        actual = posterior_mean((g[:, :1], precision[:, :1]))
        assert (np.sign(actual) == np.sign(expected)).all()
        assert np.abs(actual - expected).mean() < 0.06
        # what is lost by saying nothing
        assert np.abs((weights * raw_noise).sum((1, 2))).mean() < 0.2

    @pytest.mark.parametrize("num_classes", [2, 3, 4])
    def test_logits_are_close_to_the_exact_ones_and_sum_to_zero(self, num_classes):
        model = CategoricalObservations(1, num_classes)
        g, precision = model.initial_sites(torch.arange(num_classes).double().unsqueeze(-1))  # (C, C)
        torch.testing.assert_close(g.sum(-1), torch.zeros(num_classes).double())

        nodes, weights = np.polynomial.hermite_e.hermegauss(20)
        h = np.array(list(product(nodes, repeat=num_classes)))  # (H, C)
        prior = np.array(list(product(weights, repeat=num_classes))).prod(-1)
        posterior = prior[:, None] * scipy.special.softmax(h, -1)  # (H, y)
        expected = (posterior / posterior.sum(0)).T @ h
        actual = posterior_mean((g, precision))
        assert (np.sign(actual) == np.sign(expected)).all()
        assert np.abs(actual - expected).max() < 0.04

    def test_mixed_ones_are_those_of_the_groups_side_by_side(self):
        model, _, y = make(CASES[MixedObservations])
        groups = [part.initial_sites(y[:, [i]]) for i, part in enumerate(model.observation_models)]
        for value, others in zip(model.initial_sites(y), zip(*groups, strict=True), strict=True):
            assert torch.equal(value, torch.cat(others, -1))
