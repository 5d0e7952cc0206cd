from __future__ import annotations

import gpytorch
import helpers
import pytest
import torch
from gpytorch.variational import CholeskyVariationalDistribution
from hypothesis import given
from hypothesis import strategies as st

from gpytorch_sgpvae import (
    AmortizedVariationalDistribution,
    AmortizedVariationalStrategy,
    Context,
    FactorNet,
    GaussianSites,
    TaskELBO,
    condition,
)


class TestInducingPoints:
    @pytest.mark.parametrize("num_inducing", [1, 5, 9])
    def test_can_be_changed_after_training_without_touching_the_network(self, num_inducing):
        model = helpers.make_model()
        x, y = helpers.make_data(4)
        network = {name: value.clone() for name, value in model.state_dict().items() if "network" in name}
        before = model.eval()(x, context=(x, y)).mean
        Z = torch.rand(num_inducing, 2, dtype=torch.float64) * 3
        model.strategy.set_inducing_points(Z)
        q_f = model(x, context=(x, y))
        assert q_f.mean.shape == before.shape
        assert model.variational_strategy.kl_divergence().shape == (4,)
        assert model.strategy.prior_distribution.event_shape == (num_inducing,)
        assert torch.equal(model.strategy.inducing_points, Z)
        assert all(torch.equal(model.state_dict()[name], value) for name, value in network.items())

    def test_more_of_them_bring_the_posterior_closer_to_the_dense_one(self):
        noise, x = 0.1, torch.linspace(0, 3, 30, dtype=torch.float64).unsqueeze(-1)
        y = torch.sin(3 * x.squeeze(-1))
        model = helpers.Model(x[::10], helpers.ExactSites(noise)).double().eval()
        model.strategy.set_inducing_points(x)
        dense = model(x, context=(x, y)).mean
        errors = []
        for step in (10, 5, 2):
            model.strategy.set_inducing_points(x[::step])
            errors.append((model(x, context=(x, y)).mean - dense).abs().max())
        assert errors[0] > errors[1] > errors[2]

    def test_new_ones_are_trained_or_not_as_the_old_ones_were(self):
        for learn in (True, False):
            model = helpers.make_model(learn_inducing_locations=learn)
            model.strategy.set_inducing_points(torch.rand(7, 2))
            assert isinstance(model.strategy.inducing_points, torch.nn.Parameter) is learn
            assert ("inducing_points" in dict(model.strategy.named_parameters(recurse=False))) is learn
            assert model.strategy.inducing_points.dtype == torch.float64
            assert model.state_dict()["variational_strategy.base_variational_strategy.inducing_points"].shape == (7, 2)

    def test_a_posterior_made_earlier_goes_on_with_the_old_ones(self):
        model = helpers.make_model().eval()
        x, y = helpers.make_data()
        posterior = condition(model, (x, y))
        before = posterior(x).mean
        model.strategy.set_inducing_points(torch.rand(9, 2))
        assert torch.equal(posterior(x).mean, before)

    @pytest.mark.parametrize("num_latents", [1, 2, 3])
    def test_may_differ_between_latent_functions(self, num_latents):
        model = helpers.make_model(num_latents=num_latents).eval()
        x, y = helpers.make_data(4)
        shared = model(x, context=(x, y))
        model.strategy.set_inducing_points(model.strategy.inducing_points.expand(num_latents, -1, -1))
        torch.testing.assert_close(model(x, context=(x, y)).mean, shared.mean)
        model.strategy.set_inducing_points(torch.rand(num_latents, 6, 2))
        assert model(x, context=(x, y)).event_shape == (12, num_latents)

    @pytest.mark.parametrize("shape", [(3, 2), (9, 2), (2, 5, 2)])
    def test_of_another_number_are_loaded_from_a_state_dict(self, shape):
        model, other = helpers.make_model().eval(), helpers.make_model().eval()
        model.strategy.set_inducing_points(torch.rand(shape))
        other.load_state_dict(model.state_dict())
        x, y = helpers.make_data()
        assert torch.equal(other(x, context=(x, y)).mean, model(x, context=(x, y)).mean)

    def test_of_the_same_number_stay_the_parameter_that_an_optimizer_knows(self):
        model, other = helpers.make_model(), helpers.make_model()
        before = model.strategy.inducing_points
        model.load_state_dict(other.state_dict())
        assert model.strategy.inducing_points is before
        assert torch.equal(before, other.strategy.inducing_points)

    def test_of_another_dimension_are_not_loaded(self):
        model = helpers.make_model()
        state = model.state_dict()
        state["variational_strategy.base_variational_strategy.inducing_points"] = torch.rand(5, 3)
        with pytest.raises(RuntimeError, match="size mismatch"):
            model.load_state_dict(state)

    @pytest.mark.parametrize(
        ("shape", "message"),
        [((3, 5, 2), "num_latents=2"), ((0, 2), "M >= 1"), ((5, 3), "another input dimension")],
    )
    def test_of_a_wrong_shape_are_errors_that_leave_the_model_as_it_was(self, shape, message):
        model = helpers.make_model()
        before = model.strategy.inducing_points
        with pytest.raises(ValueError, match=message):
            model.strategy.set_inducing_points(torch.rand(shape))
        assert model.strategy.inducing_points is before


class TestErrors:
    def test_no_context_is_an_error_that_names_the_ways_to_give_one(self):
        model = helpers.make_model()
        for call in (
            lambda: model(torch.rand(4, 2).double()),
            lambda: model.strategy.variational_distribution,
            lambda: model.variational_strategy.kl_divergence(),
        ):
            with pytest.raises(ValueError, match=r"context=\(x_seen, y_seen\).*conditioned_on.*prior=True"):
                call()

    def test_inputs_of_another_dimension(self):
        model = helpers.make_model()
        x, y = helpers.make_data()
        with pytest.raises(ValueError, match=r"\(12, 3\) has 3 input dimensions.*\(5, 2\) have 2"):
            model(torch.rand(12, 3).double(), context=(x, y))
        with pytest.raises(ValueError, match=r"\(12, 3\) has 3 input dimensions"):
            model(x, context=(torch.rand(12, 3).double(), y))

    def test_another_number_of_outputs_than_the_networks(self):
        x, y = helpers.make_data(num_outputs=4)
        with pytest.raises(ValueError, match=r"num_outputs=3.*\(12, 4\)"):
            helpers.make_model()(x, context=(x, y))

    def test_another_dtype_than_the_models(self):
        model = helpers.make_model()
        x, y = helpers.make_data(dtype=torch.float32)
        with pytest.raises(ValueError, match=r"context's x is torch.float32.*model torch.float64.*model.double\(\)"):
            model(x.double(), context=(x, y))
        with pytest.raises(ValueError, match=r"^x is torch.float32.*model torch.float64"):
            model(x, context=(x.double(), y.double()))

    @pytest.mark.parametrize("num_latents", [None, 2])
    def test_inputs_of_another_number_of_tasks(self, num_latents):
        x, y = helpers.make_data(4)
        with pytest.raises(ValueError, match=r"\(3, 12, 2\) has the batch shape \(3,\).*\(4,\)"):
            helpers.make_model(num_latents=num_latents)(x[:3], context=(x, y))

    def test_a_free_form_distribution(self):
        with pytest.raises(TypeError, match=r"AmortizedVariationalDistribution.*CholeskyVariationalDistribution"):
            AmortizedVariationalStrategy(None, torch.rand(5, 2), CholeskyVariationalDistribution(5))

    def test_inducing_points_of_another_number_of_latent_functions(self):
        q_u = AmortizedVariationalDistribution(FactorNet(3, 2))
        with pytest.raises(ValueError, match=r"\(4, 5, 2\).*num_latents=2"):
            AmortizedVariationalStrategy(None, torch.rand(4, 5, 2), q_u)

    @pytest.mark.parametrize(
        ("output", "error", "message"),
        [
            (torch.zeros(2, 12), TypeError, "must return GaussianSites, got Tensor"),
            (GaussianSites(torch.zeros(12, 2), torch.zeros(12, 2)), ValueError, r"\(12, 2\).*expected \(2, 12\)"),
            (GaussianSites(torch.zeros(5, 2, 12), torch.zeros(5, 2, 12)), ValueError, r"expected \(2, 12\)"),
        ],
    )
    def test_a_network_that_returns_something_else(self, output, error, message):
        class Wrong(torch.nn.Module):
            num_latents = 2

            def forward(self, context):
                return output

        x, y = helpers.make_data(dtype=torch.float32)
        with pytest.raises(error, match=message):
            helpers.Model(torch.rand(5, 2), Wrong())(x, context=(x, y))


class TestEdges:
    """A clear error or the right answer, never NaN and never a silent wrong shape."""

    def test_an_empty_task_is_the_prior(self):
        model = helpers.make_model().eval()
        x_new = torch.rand(3, 2).double()
        q_f = model(x_new, context=(torch.rand(0, 2).double(), torch.rand(0, 3).double()))
        torch.testing.assert_close(q_f.mean, model(x_new, prior=True).mean)
        torch.testing.assert_close(q_f.covariance_matrix, model(x_new, prior=True).covariance_matrix)

    def test_duplicate_inputs_are_several_observations_of_one_value(self, dtype):
        model = helpers.Model(torch.rand(5, 2), helpers.ExactSites(0.1)).to(dtype).eval()
        x, y = torch.rand(1, 2, dtype=dtype), torch.randn(40, dtype=dtype)
        repeated = model(x, context=(x.expand(40, 2), y))
        model.strategy._variational_distribution.network.noise = 0.1 / 40
        averaged = model(x, context=(x, y.mean().view(1)))
        torch.testing.assert_close(repeated.mean, averaged.mean, rtol=1e-3, atol=1e-3)

    def test_inducing_points_that_coincide_are_harmless(self, dtype):
        model, likelihood = helpers.make_model(dtype=dtype), helpers.make_likelihood(dtype=dtype)
        x, y = helpers.make_data(4, dtype=dtype)
        once = model.eval()(x, context=(x, y))
        Z = model.strategy.inducing_points.detach()
        model.strategy.set_inducing_points(torch.cat([Z, Z, Z]))
        thrice = model(x, context=(x, y))
        # three copies share the jitter, which is then a third of what it was
        tolerance = 1e-3 if dtype == torch.float64 else 2e-2
        torch.testing.assert_close(thrice.mean, once.mean, rtol=0, atol=tolerance)
        TaskELBO(likelihood, model)(model.train()(x, context=(x, y)), y).sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())

    def test_constant_outputs_train(self, dtype):
        model, likelihood = helpers.make_model(dtype=dtype), helpers.make_likelihood(dtype=dtype)
        x, y = helpers.make_data(4, missing=0, dtype=dtype)
        y = torch.ones_like(y)
        optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            (-TaskELBO(likelihood, model)(model(x, context=(x, y)), y).mean()).backward()
            optimizer.step()
        assert all(parameter.isfinite().all() for parameter in model.parameters())

    def test_many_confident_sites_in_float32_do_not_break_the_cholesky(self):
        """2,000 sites with the largest precision there is: their sum exceeds what float32 can add to I."""
        model = helpers.make_model(num_inducing=40, dtype=torch.float32)

        class Confident(FactorNet):
            def encode(self, context):
                precision_mean, precision = super().encode(context)
                return precision_mean, torch.full_like(precision, 3e6)

        model.strategy._variational_distribution.network = Confident(3, 2)
        x, y = helpers.make_data(2, num_points=2000, dtype=torch.float32)
        q_f = model(x, context=(x, 1e3 * y))
        assert q_f.mean.isfinite().all()
        assert (q_f.variance > 0).all()
        assert model.variational_strategy.kl_divergence().isfinite().all()

    @given(
        data=st.data(),
        context_batch=st.lists(st.integers(1, 3), max_size=2),
        num_latents=st.sampled_from([None, 1, 2, 3]),
        num_points=st.integers(0, 4),
        num_new=st.integers(1, 3),
        missing=st.sampled_from([0.0, 0.5, 1.1]),
        training=st.booleans(),
    )
    def test_shapes_broadcast_as_documented(
        self, data, context_batch, num_latents, num_points, num_new, missing, training
    ):
        """Inputs with the context's batch shape, with none, or sharing one x among all tasks."""
        model = helpers.make_model(2, num_latents, 3).train(training)
        x, y = helpers.make_data(*context_batch, num_points=num_points, num_outputs=2, missing=missing)
        if data.draw(st.booleans(), label="shared context inputs"):
            x = torch.rand(num_points, 2, dtype=torch.float64)
        new_batch = data.draw(st.sampled_from([[], context_batch]), label="batch shape of the new inputs")
        q_f = model(torch.rand(*new_batch, num_new, 2, dtype=torch.float64), context=Context(x, y))
        event = (num_new,) if num_latents is None else (num_new, num_latents)
        assert q_f.batch_shape == tuple(context_batch)
        assert q_f.event_shape == event
        assert q_f.mean.shape == q_f.variance.shape == (*context_batch, *event)
        assert q_f.mean.isfinite().all()
        assert (q_f.variance > 0).all()


def test_one_dimensional_inputs_may_come_without_their_last_dimension():
    model = helpers.Model(torch.linspace(0, 1, 5), FactorNet(1, None)).eval()
    x, y = torch.rand(12), torch.randn(12)
    flat = model(x, context=(x, y))
    assert torch.equal(flat.mean, model(x.unsqueeze(-1), context=(x.unsqueeze(-1), y.unsqueeze(-1))).mean)


def test_jitter_is_the_settings_unless_named():
    x, y = helpers.make_data()
    model = helpers.make_model()
    with gpytorch.settings.variational_cholesky_jitter(double_value=1e-3):
        large = model(x, context=(x, y)).mean
    assert not torch.allclose(large, model(x, context=(x, y)).mean, rtol=1e-6)
    model.strategy.jitter_val = 1e-3
    torch.testing.assert_close(large, model(x, context=(x, y)).mean)
