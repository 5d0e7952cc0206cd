from __future__ import annotations

import gpytorch
import helpers
import pytest
import torch

from gpytorch_sgpvae import Context, Posterior, TaskELBO, condition, conditioned_on


@pytest.fixture
def data():
    return helpers.make_data(4)


@pytest.fixture
def x_new():
    return torch.rand(50, 2, dtype=torch.float64) * 3


class TestCondition:
    @pytest.mark.parametrize("num_latents", [None, 2])
    def test_the_posterior_is_what_the_model_returns_with_a_context(self, data, x_new, num_latents):
        model = helpers.make_model(num_latents=num_latents).eval()
        posterior = condition(model, data)
        assert isinstance(posterior, Posterior)
        expected = model(x_new, context=data)
        torch.testing.assert_close(posterior(x_new).mean, expected.mean, rtol=0, atol=0)
        torch.testing.assert_close(posterior(x_new).variance, expected.variance, rtol=0, atol=0)
        torch.testing.assert_close(posterior(x_new).covariance_matrix, expected.covariance_matrix, rtol=0, atol=1e-14)

    def test_it_is_encoded_once(self, data, x_new):
        model = helpers.make_model().eval()
        with helpers.cholesky_calls() as shapes:
            posterior = condition(model, data)
            for chunk in x_new.split(7):
                posterior(chunk)
        assert sorted(shapes) == [(2, 5, 5), (4, 2, 5, 5)]

    def test_chunks_equal_the_whole(self, data, x_new):
        posterior = condition(helpers.make_model().eval(), data)
        chunks = [posterior(chunk) for chunk in x_new.split(7)]
        whole = posterior(x_new)
        torch.testing.assert_close(torch.cat([c.mean for c in chunks], -2), whole.mean, rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.cat([c.variance for c in chunks], -2), whole.variance, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("num_latents", [None, 2])
    @pytest.mark.parametrize("chunk_size", [None, 1, 7, 100])
    def test_marginals_are_those_of_the_whole_whatever_the_chunks(self, data, x_new, num_latents, chunk_size):
        posterior = condition(helpers.make_model(num_latents=num_latents).eval(), data)
        mean, variance = posterior.marginals(x_new, chunk_size)
        torch.testing.assert_close(mean, posterior(x_new).mean, rtol=0, atol=1e-12)
        torch.testing.assert_close(variance, posterior(x_new).variance, rtol=0, atol=1e-12)

    def test_two_posteriors_of_one_model_do_not_mix(self, data, x_new):
        model = helpers.make_model().eval()
        x, y = data
        posteriors = [condition(model, (x[t], y[t])) for t in range(2)]
        first = posteriors[0](x_new).mean
        posteriors[1](x_new)
        assert torch.equal(posteriors[0](x_new).mean, first)
        assert torch.equal(first, model(x_new, context=(x[0], y[0])).mean)

    def test_in_eval_mode_gradients_by_the_inputs_can_be_taken_again_and_again(self, data, x_new):
        posterior = condition(helpers.make_model().eval(), data)
        x_new.requires_grad_()
        gradients = [torch.autograd.grad(posterior(x_new).mean.sum(), x_new)[0] for _ in range(2)]
        assert torch.equal(*gradients)

    def test_the_graph_stays_in_training_or_with_gpytorchs_setting(self, data):
        model = helpers.make_model()
        assert condition(model, data).encoding.Luu_inv.requires_grad
        assert not condition(model.eval(), data).encoding.Luu_inv.requires_grad
        with gpytorch.settings.detach_test_caches(False):
            assert condition(model, data).encoding.Luu_inv.requires_grad

    def test_models_without_the_strategy_are_errors(self, data):
        with pytest.raises(ValueError, match="no AmortizedVariationalStrategy"):
            condition(torch.nn.Linear(1, 1), data)

    def test_models_with_several_are_errors(self, data):
        with pytest.raises(ValueError, match="2 amortized strategies"):
            condition(torch.nn.ModuleList([helpers.make_model(), helpers.make_model()]), data)


class TestUpdate:
    def test_updates_equal_conditioning_on_everything_at_once(self, x_new):
        model = helpers.make_model().eval()
        x, y = helpers.make_data(4, num_points=30)
        posterior = condition(model, (x[:, :10], y[:, :10]))
        assert posterior.update((x[:, 10:17], y[:, 10:17])) is posterior
        posterior.update(Context(x[:, 17:], y[:, 17:]))
        everything = condition(model, (x, y))
        torch.testing.assert_close(posterior(x_new).mean, everything(x_new).mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(posterior(x_new).variance, everything(x_new).variance, rtol=0, atol=1e-8)

    def test_a_thousand_updates_do_not_drift(self, x_new):
        model = helpers.make_model().eval()
        x, y = helpers.make_data(num_points=1000)
        posterior = condition(model, (x[:0], y[:0]))
        for n in range(1000):
            posterior.update((x[n : n + 1], y[n : n + 1]))
        everything = condition(model, (x, y))
        torch.testing.assert_close(posterior(x_new).mean, everything(x_new).mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(posterior(x_new).variance, everything(x_new).variance, rtol=0, atol=1e-6)

    def test_rows_that_come_again_with_other_outputs_add_up_for_factor_net(self, x_new):
        model = helpers.make_model().eval()
        x, y = helpers.make_data(missing=0)
        first, rest = y.clone(), y.clone()
        first[:, 1:], rest[:, :1] = torch.nan, torch.nan
        posterior = condition(model, (x, first)).update((x, rest))
        torch.testing.assert_close(posterior(x_new).mean, condition(model, (x, y))(x_new).mean, rtol=0, atol=1e-8)

    def test_its_cost_does_not_depend_on_what_was_seen_before(self):
        model = helpers.make_model().eval()
        x, y = helpers.make_data(num_points=3000)
        allocations = []
        for seen in (10, 2990):
            posterior = condition(model, (x[:seen], y[:seen]))
            with helpers.largest_allocation() as allocation, helpers.cholesky_calls() as shapes:
                posterior.update((x[2990:], y[2990:]))
            allocations.append(allocation.numel)
            assert shapes == [(2, 5, 5)]
        assert allocations[0] == allocations[1]

    def test_it_can_be_saved_and_loaded(self, data, x_new, tmp_path):
        model = helpers.make_model().eval()
        posterior = condition(model, data)
        torch.save(posterior.state_dict(), tmp_path / "posterior.pt")
        loaded = Posterior.from_state_dict(model, torch.load(tmp_path / "posterior.pt", weights_only=True))
        assert torch.equal(loaded(x_new).mean, posterior(x_new).mean)
        x, y = data
        loaded.update((x, y))
        torch.testing.assert_close(loaded(x_new).variance, posterior.update((x, y))(x_new).variance)

    @pytest.mark.parametrize("tasks", [(), (4,)])
    def test_other_tasks_are_an_error(self, tasks):
        model = helpers.make_model().eval()
        posterior = condition(model, helpers.make_data(*tasks))
        with pytest.raises(ValueError, match=r"\(3, 2\).*an update is for the same tasks"):
            posterior.update(helpers.make_data(3))

    def test_the_dense_strategy_cannot_be_saved_and_says_so(self, data):
        posterior = condition(helpers.DenseModel(helpers.make_model()).eval(), data)
        with pytest.raises(NotImplementedError, match="sparse AmortizedVariationalStrategy"):
            posterior.state_dict()


class TestConditionedOn:
    def test_calls_need_no_context_inside(self, data, x_new):
        model = helpers.make_model().eval()
        expected = model(x_new, context=data)
        with conditioned_on(model, data) as same:
            assert same is model
            torch.testing.assert_close(model(x_new).mean, expected.mean, rtol=0, atol=0)
        with pytest.raises(ValueError, match="context="):
            model(x_new)

    def test_it_encodes_once_in_eval_mode(self, data, x_new):
        model = helpers.make_model().eval()
        with helpers.cholesky_calls() as shapes, conditioned_on(model, data):
            for chunk in x_new.split(7):
                model(chunk)
        assert len(shapes) == 2

    def test_q_u_is_there_before_any_call(self, data):
        model = helpers.make_model()
        for training in (True, False):
            model.train(training)
            model(data[0], context=data)
            expected = model.strategy.variational_distribution.mean
            with conditioned_on(model, data):
                assert model.strategy.prior_distribution.batch_shape == (4, 2)
                torch.testing.assert_close(model.strategy.variational_distribution.mean, expected)

    def test_in_training_every_step_has_a_graph_of_its_own(self, data):
        model = helpers.make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with conditioned_on(model, data):
            for _ in range(3):
                optimizer.zero_grad()
                (model.variational_strategy.kl_divergence().sum() + model(data[0]).mean.sum()).backward()
                optimizer.step()

    def test_gradients_add_up_over_passes_without_a_step(self, data):
        model = helpers.make_model()

        def gradients(num_passes):
            model.zero_grad()
            for _ in range(num_passes):
                (model.variational_strategy.kl_divergence().sum() + model(data[0]).mean.sum()).backward()
            return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

        with conditioned_on(model, data):
            once = gradients(1)
            torch.testing.assert_close(gradients(3), [3 * gradient for gradient in once])

    def test_a_training_step_factorizes_once_and_its_kl_is_that_of_its_call(self, data):
        model, likelihood = helpers.make_model(), helpers.make_likelihood()
        x, y = data
        with conditioned_on(model, data):
            with helpers.cholesky_calls() as shapes:
                TaskELBO(likelihood, model)(model(x), y).sum().backward()
            assert len(shapes) == 2
            model(x, context=(x, torch.full_like(y, torch.nan)))
            assert (model.variational_strategy.kl_divergence() == 0).all()

    def test_a_look_without_gradients_does_not_cost_the_next_step_its_gradients(self, data):
        model = helpers.make_model()
        with conditioned_on(model, data):
            with torch.no_grad():
                model(data[0])
            assert model.variational_strategy.kl_divergence().requires_grad

    @pytest.mark.parametrize("how", ["training", "loading"])
    def test_validation_between_steps_sees_the_new_parameters(self, data, how):
        model, other = helpers.make_model(), helpers.make_model()
        x = data[0]
        with conditioned_on(model, data):
            before = model.eval()(x).mean.detach()
            if how == "training":
                model.train()
                optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
                (model(x).mean.sum() + model.variational_strategy.kl_divergence().sum()).backward()
                optimizer.step()
                model.eval()
            else:
                model.load_state_dict(other.state_dict())
            after = model(x).mean.detach()
            kl = model.variational_strategy.kl_divergence()
        assert not torch.allclose(before, after)
        assert torch.equal(after, model(x, context=data).mean)
        assert torch.equal(kl, model.variational_strategy.kl_divergence())

    def test_an_earlier_q_u_is_not_taken_for_the_contexts(self, data):
        model = helpers.make_model().eval()
        x, y = data
        model(x[0], context=(x[0], y[0]))
        with conditioned_on(model, data):
            assert model.strategy.variational_distribution.batch_shape == (4, 2)
            with conditioned_on(model, (x[0], y[0])):
                assert model.strategy.variational_distribution.batch_shape == (2,)
            assert model.strategy.variational_distribution.batch_shape == (4, 2)

    def test_a_context_that_is_passed_comes_first(self, data, x_new):
        model = helpers.make_model().eval()
        x, y = data
        with conditioned_on(model, data):
            assert torch.equal(model(x_new, context=(x[0], y[0])).mean, condition(model, (x[0], y[0]))(x_new).mean)

    def test_it_ends_with_an_error_too(self, data, x_new):
        model = helpers.make_model().eval()
        with pytest.raises(RuntimeError, match="on purpose"), conditioned_on(model, Context(*data)):
            raise RuntimeError("on purpose")
        with pytest.raises(ValueError, match="context="):
            model(x_new)
        assert not any(parameter._backward_hooks for parameter in model.parameters())
