"""
What every amortized strategy promises, as a test case: name a strategy by a class that fills in `create_strategy`, and
it is tested. What GPyTorch's own tests check is in `upstream_case.py`.
"""

from __future__ import annotations

import copy
import io
import pickle

import gpytorch
import helpers
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import PredictiveLogLikelihood, VariationalELBO
from gpytorch.variational import IndependentMultitaskVariationalStrategy

from gpytorch_sgpvae import (
    AmortizedVariationalDistribution,
    Context,
    FactorNet,
    InferenceNetwork,
    Posterior,
    TaskELBO,
    condition,
    conditioned_on,
    persist_context,
    refine,
)

TOLERANCE = {torch.float64: {"rtol": 0, "atol": 1e-8}, torch.float32: {"rtol": 2e-3, "atol": 2e-3}}


class StrategyModel(gpytorch.models.ApproximateGP):
    """GPyTorch's own idiom around any strategy."""

    def __init__(self, case: StrategyCase, network: torch.nn.Module, **kwargs):
        latents = torch.Size([] if network.num_latents is None else [network.num_latents])
        strategy = case.create_strategy(self, AmortizedVariationalDistribution(network), **kwargs)
        if latents and not case.is_joint:
            strategy = IndependentMultitaskVariationalStrategy(strategy, num_tasks=network.num_latents)
        super().__init__(strategy)
        self.mean_module, self.covar_module = case.create_prior(latents)
        self.extractor = torch.nn.Identity()
        self.num_forwards = 0

    def forward(self, x):
        self.num_forwards += 1
        x = self.extractor(x)
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    @property
    def strategy(self):
        return getattr(self.variational_strategy, "base_variational_strategy", self.variational_strategy)


class StrategyCase:
    """
    The promises. A subclass fills in :meth:`create_strategy`, and :meth:`create_network` or :meth:`create_prior` if it
    needs its own.
    """

    # What the strategy cannot do, and says so: "chunks", "update", "state_dict", "refine", "dense forward".
    refuses: frozenset[str] = frozenset()
    # What it has no use for: "other networks" than its own kind, "x_has_latents".
    lacks: frozenset[str] = frozenset()
    # Whether it returns all latent functions together, without a wrapper.
    is_joint = False
    # Matrices that a call factorizes.
    num_choleskies = 2
    # Whether it has inducing points, and whether all tasks and latent functions share them.
    has_inducing_points = False
    shares_inducing_points = False

    def create_strategy(self, model, variational_distribution, **kwargs):
        raise NotImplementedError

    def create_network(self, num_outputs, num_latents, activation=torch.nn.Tanh):
        return FactorNet(num_outputs, num_latents, (8,), activation)

    def create_prior(self, latents):
        """The mean and the kernel."""
        return gpytorch.means.ConstantMean(batch_shape=latents), helpers.rbf(latents)

    def make(self, num_outputs=3, num_latents=2, dtype=torch.float64, network=None, **kwargs):
        """A model whose parameters are all different from their defaults."""
        network = self.create_network(num_outputs, num_latents) if network is None else network
        model = StrategyModel(self, network, **kwargs).to(dtype)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.startswith(("mean_module", "covar_module")):
                    parameter.add_(0.3 * torch.randn_like(parameter))
        return model

    def raises_if_refused(self, what):
        """A context in which whatever the strategy cannot do is an error that names a way out."""
        return pytest.raises(NotImplementedError, match=r"condition|SGPVAE|sites") if what in self.refuses else None

    # --- shapes and values

    @helpers.pairwise_cases(
        "num_points, num_outputs, num_latents, tasks, dtype",
        [1, 0],
        [3, 1],
        [2, 1, None],
        [(2,), (1,), ()],
        helpers.DTYPES,
    )
    def test_the_smallest_of_everything(self, num_points, num_outputs, num_latents, tasks, dtype):
        model = self.make(num_outputs, num_latents, dtype=dtype)
        likelihood = helpers.make_likelihood(num_outputs, num_latents or 1, dtype=dtype)
        x, y = helpers.make_data(*tasks, num_points=num_points, num_outputs=num_outputs, missing=0, dtype=dtype)
        elbo = TaskELBO(likelihood, model)(model(x, context=(x, y)), y)
        assert elbo.shape == tasks
        assert elbo.isfinite().all()
        elbo.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        q_f = model.eval()(torch.rand(3, 2, dtype=dtype), context=(x, y))
        assert q_f.mean.shape == (*tasks, 3, *(() if num_latents is None else (num_latents,)))
        assert (q_f.variance > 0).all()
        prediction = likelihood.predict(q_f, num_samples=4)
        assert prediction.mean.shape == (*tasks, 3, num_outputs)
        assert prediction.mean.isfinite().all()

    @helpers.pairwise_cases(
        "num_latents, tasks, training, dtype", [2, 1, None], [(4,), (2, 3), ()], [True, False], helpers.DTYPES
    )
    def test_shapes(self, num_latents, tasks, training, dtype):
        model = self.make(num_latents=num_latents, dtype=dtype).train(training)
        x, y = helpers.make_data(*tasks, dtype=dtype)
        event = (12,) if num_latents is None else (12, num_latents)
        for inputs, context in ((x, (x, y)), (x[..., :5, :].clone(), (x, y)), (x, Context(x, y))):
            q_f = model(inputs, context=context)
            shape = (*tasks, inputs.shape[-2], *event[1:])
            assert q_f.mean.shape == q_f.variance.shape == shape
            assert (q_f.variance > 0).all()
            assert q_f.mean.dtype == dtype
        assert model.variational_strategy.kl_divergence().shape == tasks

    @pytest.mark.parametrize("tasks", [(), (4,)])
    def test_inputs_shared_by_all_tasks_are_those_of_each(self, tasks):
        model = self.make().eval()
        x, (_, y) = helpers.make_data()[0], helpers.make_data(*tasks)
        shared, own = model(x, context=(x, y)), model(x.expand(*tasks, 12, 2), context=(x.expand(*tasks, 12, 2), y))
        torch.testing.assert_close(shared.mean, own.mean, **TOLERANCE[torch.float64])
        torch.testing.assert_close(shared.variance, own.variance, **TOLERANCE[torch.float64])

    def test_a_batch_is_its_tasks_one_by_one_and_padding_changes_nothing(self, dtype):
        model, likelihood = self.make(dtype=dtype), helpers.make_likelihood(dtype=dtype)
        tasks = [helpers.make_data(num_points=n, dtype=dtype) for n in (12, 5, 1)]
        samples = torch.randn(3, 3, 12, 2, dtype=dtype)
        padded = Context.pad(tasks)
        elbos = TaskELBO(likelihood, model)(model(padded.x, context=padded), padded.y, base_samples=samples)
        for t, (x, y) in enumerate(tasks):
            alone = TaskELBO(likelihood, model)(model(x, context=(x, y)), y, base_samples=samples[:, t, : len(x)])
            torch.testing.assert_close(elbos[t], alone, **TOLERANCE[dtype])

    def test_a_missing_row_is_a_row_deleted(self):
        model = self.make().eval()
        x, y = helpers.make_data()
        y[3] = torch.nan
        kept = [n for n in range(12) if n != 3]
        missing, deleted = model(x[kept], context=(x, y)), model(x[kept], context=(x[kept], y[kept]))
        torch.testing.assert_close(missing.mean, deleted.mean, **TOLERANCE[torch.float64])
        torch.testing.assert_close(missing.covariance_matrix, deleted.covariance_matrix, **TOLERANCE[torch.float64])

    def test_nothing_observed_gives_the_prior_with_finite_gradients(self, dtype):
        model, likelihood = self.make(dtype=dtype), helpers.make_likelihood(dtype=dtype)
        x, y = helpers.make_data(4, missing=1.1, dtype=dtype)
        q_f, prior = model(x, context=(x, y)), model(x, prior=True)
        torch.testing.assert_close(q_f.mean, prior.mean, **TOLERANCE[dtype])
        torch.testing.assert_close(q_f.variance, prior.variance, **TOLERANCE[dtype])
        assert (model.variational_strategy.kl_divergence() == 0).all()
        TaskELBO(likelihood, model)(q_f, y).sum().backward()
        assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())

    def test_the_kl_divergence_is_that_of_the_distributions(self):
        model = self.make()
        x, y = helpers.make_data(4, num_points=6)
        model(x, context=(x, y))
        q, p = model.strategy.variational_distribution, model.strategy.prior_distribution
        assert (q.batch_shape, q.event_shape) == (p.batch_shape, p.event_shape)
        generic = torch.distributions.kl_divergence(
            MultivariateNormal(q.mean, q.covariance_matrix),
            MultivariateNormal(p.mean, p.covariance_matrix),
        )
        # K_ff has no jitter in the dense strategy, and its inverse fewer digits
        torch.testing.assert_close(model.strategy.kl_divergence(), generic, rtol=1e-5, atol=1e-6)

    def test_every_gradient_of_the_elbo(self):
        model = self.make(2)
        helpers.check_gradients_of_elbo(model, helpers.make_likelihood(2, activation=torch.nn.Tanh))

    def test_draws_of_the_posterior_have_its_moments(self):
        posterior = condition(self.make().eval(), helpers.make_data(missing=0))
        x = torch.rand(4, 2).double() * 3
        draws = posterior.sample(x, 20_000)  # (n, N, K)
        q_f = posterior(x)
        assert draws.shape == (20_000, 4, 2)
        torch.testing.assert_close(draws.mean(0), q_f.mean, rtol=0, atol=0.05)
        covariance = torch.cov(draws.flatten(1).T)
        torch.testing.assert_close(covariance, q_f.covariance_matrix, rtol=0, atol=0.06)

    # --- one call of forward

    @pytest.mark.parametrize("own_inputs", [True, False])
    @pytest.mark.parametrize("tasks", [(), (3,)])
    @pytest.mark.parametrize("layer", [torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5)], ids=["batchnorm", "dropout"])
    def test_a_forward_that_depends_on_the_batch_makes_no_negative_variance(self, layer, tasks, own_inputs):
        model = self.make(num_latents=None)
        layers = (torch.nn.Linear(2, 2), copy.deepcopy(layer), torch.nn.Tanh(), torch.nn.Linear(2, 2))
        model.extractor = torch.nn.Sequential(*layers).double()
        x, y = helpers.make_data(*tasks, num_points=60)
        model.num_forwards = 0
        q_f = model(x if own_inputs else x[..., :30, :] + 0.1, context=(x, 3 * y))
        assert (q_f.variance > 0).all()
        assert model.num_forwards <= 1

    def test_a_forward_that_makes_dense_matrices(self):
        model = self.make().eval()
        x, y = helpers.make_data(3)
        lazy = model(x[:, :5].clone(), context=(x, y))
        if "dense forward" in self.refuses:
            with gpytorch.settings.lazily_evaluate_kernels(False), pytest.raises(TypeError, match="lazy matrix"):
                model(x[:, :5].clone(), context=(x, y))
            return
        with gpytorch.settings.lazily_evaluate_kernels(False):
            dense = model(x[:, :5].clone(), context=(x, y))
        torch.testing.assert_close(dense.mean, lazy.mean, **TOLERANCE[torch.float64])
        torch.testing.assert_close(dense.covariance_matrix, lazy.covariance_matrix, **TOLERANCE[torch.float64])

    def test_a_sum_of_two_kernels_in_forward(self):
        model, x = self.make().eval(), helpers.make_data(3)[0]
        _, y = helpers.make_data(3)
        kernel, forward = model.covar_module, model.forward

        def sum_of_two(x):
            prior = forward(x)
            return MultivariateNormal(prior.mean, 0.5 * kernel(x) + kernel(x) * 0.5)

        expected = model(x[:, :5].clone(), context=(x, y))
        model.forward = sum_of_two
        q_f = model(x[:, :5].clone(), context=(x, y))
        torch.testing.assert_close(q_f.mean, expected.mean, **TOLERANCE[torch.float64])
        torch.testing.assert_close(q_f.covariance_matrix, expected.covariance_matrix, **TOLERANCE[torch.float64])

    # --- contexts

    def test_no_context_is_an_error_that_names_the_ways_to_give_one(self):
        with pytest.raises(ValueError, match=r"context=\(x_seen, y_seen\).*conditioned_on.*prior=True"):
            self.make()(torch.rand(4, 2).double())

    def test_a_posterior_is_what_the_model_returns_with_the_context(self):
        model = self.make().eval()
        x, y = helpers.make_data(4)
        new = torch.rand(4, 7, 2).double()
        expected, posterior = model(new, context=(x, y)), condition(model, (x, y))
        torch.testing.assert_close(posterior(new).mean, expected.mean, **TOLERANCE[torch.float64])
        torch.testing.assert_close(posterior(new).variance, expected.variance, **TOLERANCE[torch.float64])
        mean, variance = posterior.marginals(new, chunk_size=3)
        torch.testing.assert_close(mean, expected.mean, **TOLERANCE[torch.float64])
        torch.testing.assert_close(variance, expected.variance, **TOLERANCE[torch.float64])

    @pytest.mark.parametrize("training", [True, False])
    def test_a_context_can_be_set_for_a_while_or_for_good(self, training):
        model = self.make().train(training)
        x, y = helpers.make_data(4)
        expected = model(x, context=(x, y)).mean
        with conditioned_on(model, (x, y)):
            torch.testing.assert_close(model(x).mean, expected, rtol=0, atol=1e-12)
            assert model.variational_strategy.kl_divergence().shape == (4,)
            temporary = copy.deepcopy(model)
        persist_context(model, (x, y))
        for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(twin(x).mean, expected, rtol=0, atol=1e-12)
        persist_context(model, None)
        for twin in (model, temporary):
            with pytest.raises(ValueError, match="context="):
                twin(x)

    def test_a_persistent_context_serves_training_steps_and_what_comes_after(self):
        model, likelihood = self.make(), helpers.make_likelihood()
        x, y = helpers.make_data(4)
        persist_context(model, (x, y))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            (-TaskELBO(likelihood, model)(model(x), y).sum()).backward()
            optimizer.step()
        model.eval()
        torch.testing.assert_close(model(x).mean, model(x, context=(x, y)).mean, **TOLERANCE[torch.float64])

    def test_further_points_are_taken_in_or_refused_with_a_way_out(self):
        model = self.make().eval()
        x, y = helpers.make_data(4)
        new = torch.rand(5, 2).double()
        persist_context(model, (x[:, :7], y[:, :7]))
        refusal = self.raises_if_refused("update")
        if refusal is not None:
            with refusal:
                condition(model, (x[:, :7], y[:, :7])).update((x[:, 7:], y[:, 7:]))
            with self.raises_if_refused("update"):
                model.strategy.get_fantasy_model(x[:, 7:], y[:, 7:])
            return
        everything = condition(model, (x, y))(new)
        updated = condition(model, (x[:, :7], y[:, :7])).update((x[:, 7:], y[:, 7:]))
        fantasy = model.strategy.get_fantasy_model(x[:, 7:], y[:, 7:])
        again = fantasy.strategy.get_fantasy_model(x[:, :0], y[:, :0])
        for q_f in (updated(new), fantasy(new), again(new), pickle.loads(pickle.dumps(fantasy))(new)):
            torch.testing.assert_close(q_f.mean, everything.mean, **TOLERANCE[torch.float64])
            torch.testing.assert_close(q_f.variance, everything.variance, **TOLERANCE[torch.float64])
        # the model itself has seen no more than before
        torch.testing.assert_close(model(new).mean, model(new, context=(x[:, :7], y[:, :7])).mean)

    def test_a_fantasy_model_needs_a_context_to_start_from(self):
        with pytest.raises(NotImplementedError, match=r"persist_context\(model.*condition\(model"):
            self.make().strategy.get_fantasy_model(*helpers.make_data())

    def test_a_posterior_is_saved_or_says_why_not(self):
        model = self.make().eval()
        posterior, new = condition(model, helpers.make_data(4)), torch.rand(5, 2).double()
        refusal = self.raises_if_refused("state_dict")
        if refusal is not None:
            with refusal:
                posterior.state_dict()
            return
        loaded = Posterior.from_state_dict(model, posterior.state_dict())
        torch.testing.assert_close(loaded(new).mean, posterior(new).mean, rtol=0, atol=1e-12)

    def test_chunks_of_a_context_equal_the_whole_or_are_refused(self):
        model, data, new = self.make().eval(), helpers.make_data(4), torch.rand(5, 2).double()
        refusal = self.raises_if_refused("chunks")
        if refusal is not None:
            with refusal:
                condition(model, data, chunk_size=5)
        else:
            chunks = condition(model, data, chunk_size=5)(new)
            torch.testing.assert_close(chunks.mean, condition(model, data)(new).mean, **TOLERANCE[torch.float64])
        whole = condition(model, data, chunk_size=5, strict=False)(new)
        torch.testing.assert_close(whole.mean, condition(model, data)(new).mean, **TOLERANCE[torch.float64])

    def test_a_network_whose_rows_depend_on_each_other_is_never_given_a_part_of_them(self):
        class Centered(InferenceNetwork):
            """Reads how far each row is from the mean of all rows."""

            def encode(self, context):
                y = context.filled - context.filled.mean(-2, keepdim=True)
                ones = torch.ones(*y.shape[:-1], self.latent_size, dtype=y.dtype, device=y.device)
                return y.sum(-1, keepdim=True) * ones, ones

        if "other networks" in self.lacks:
            pytest.skip("the strategy takes networks of its own kind")
        model = self.make(network=Centered(3, 2)).eval()
        x, y = helpers.make_data(4)
        assert model(x, context=(x, y)).mean.isfinite().all()
        with pytest.raises(NotImplementedError):
            condition(model, (x, y), chunk_size=5)
        with pytest.raises(NotImplementedError):
            condition(model, (x, y)).update((x, y))
        whole = condition(model, (x, y), chunk_size=5, strict=False)(x)
        torch.testing.assert_close(whole.mean, model(x, context=(x, y)).mean, **TOLERANCE[torch.float64])

    def test_refinement_grows_the_bound_or_is_refused(self):
        model, likelihood, data = self.make(), helpers.make_likelihood(), helpers.make_data(3)
        refusal = self.raises_if_refused("refine")
        if refusal is not None:
            with refusal:
                refine(model, data, likelihood=likelihood)
            return
        assert (refine(model, data, steps=3, likelihood=likelihood).gap >= 0).all()

    # --- GPyTorch

    @pytest.mark.parametrize("mll_cls", [VariationalELBO, PredictiveLogLikelihood, TaskELBO])
    def test_objectives_train_through_a_decoder_with_missing_outputs(self, mll_cls, dtype):
        model, likelihood = self.make(dtype=dtype), helpers.make_likelihood(dtype=dtype)
        context = Context(*helpers.make_data(4, dtype=dtype))
        mll = mll_cls(likelihood, model) if mll_cls is TaskELBO else mll_cls(likelihood, model, num_data=12)
        optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=1e-2)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = -mll(model(context.x, context=context), context.y).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        assert all(loss.isfinite() for loss in losses)
        assert losses[-1] < losses[0]

    def test_the_weights_of_the_network_are_the_variational_parameters(self):
        model = self.make()
        weights = set(model.strategy._variational_distribution.network.parameters())
        assert set(model.variational_parameters()) == weights
        assert set(model.hyperparameters()) == set(model.parameters()) - weights
        names = [name for name, _ in (*model.named_hyperparameters(), *model.named_variational_parameters())]
        assert sorted(names) == sorted(name for name, _ in model.named_parameters())
        with pytest.raises(TypeError, match=r"torch.optim.Adam\(model.variational_parameters\(\)\).*refine"):
            gpytorch.optim.NGD(model.variational_parameters(), num_data=12)

    def test_inputs_with_a_latent_dimension_are_asked_for(self):
        if "x_has_latents" in self.lacks:
            pytest.skip("the strategy is for a ready-made model, which never gives such inputs")
        plain = self.make(num_latents=3).eval()
        model = self.make(num_latents=3, x_has_latents=True).eval()
        model.load_state_dict(plain.state_dict())
        x, y = helpers.make_data()
        new = torch.rand(7, 2).double()
        expected = plain(new, context=(x, y))
        q_f = model(new.expand(3, 7, 2), context=(x, y))
        torch.testing.assert_close(q_f.mean, expected.mean, **TOLERANCE[torch.float64])
        torch.testing.assert_close(q_f.covariance_matrix, expected.covariance_matrix, **TOLERANCE[torch.float64])
        several = model(new.expand(10, 3, 7, 2), context=(x, y))
        assert several.batch_shape == (10,)
        torch.testing.assert_close(several.mean[4], expected.mean, **TOLERANCE[torch.float64])
        assert model(new.expand(3, 7, 2), prior=True).event_shape == (7, 3)
        for inputs in (new.expand(3, 7, 2), new.expand(10, 3, 7, 2)):
            with pytest.raises(ValueError, match="x_has_latents=True"):
                plain(inputs, context=(x, y))
            # they are tasks, if the caller says so
            for strategy in (plain, model):
                q_f = strategy(inputs, context=(x, y), x_has_latents=False)
                assert q_f.batch_shape == inputs.shape[:-2]
                torch.testing.assert_close(q_f.mean, expected.mean.expand(q_f.mean.shape), **TOLERANCE[torch.float64])
        with pytest.raises(ValueError, match="is for x without a latent dimension"):
            plain(new.expand(3, 7, 2), context=(x, y), x_has_latents=True)
        with pytest.raises(ValueError, match=r"\(7, 2\).*x_has_latents=True.*3, N, D"):
            model(new, context=(x, y))
        with pytest.raises(ValueError, match="num_latents=None"):
            self.make(num_latents=None, x_has_latents=True)

    @pytest.mark.parametrize("mode", ["train", "eval"])
    @pytest.mark.parametrize("after_a_forward", [False, True])
    def test_copies_are_faithful(self, after_a_forward, mode):
        model, likelihood = self.make(), helpers.make_likelihood()
        x, y = helpers.make_data(4)
        getattr(model, mode)()
        if after_a_forward:
            TaskELBO(likelihood, model)(model(x, context=(x, y)), y).sum().backward()
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        loaded = self.make()
        loaded.train(mode == "train").load_state_dict(model.state_dict())
        twins = [
            copy.deepcopy(model),
            pickle.loads(pickle.dumps(model)),
            torch.load(buffer, weights_only=False),
            loaded,
        ]
        expected = model(x, context=(x, y))
        for twin in twins:
            actual = twin(x, context=(x, y))
            assert torch.equal(actual.mean, expected.mean)
            assert torch.equal(actual.variance, expected.variance)
            assert twin.strategy.model is twin
            TaskELBO(likelihood, twin.train())(twin(x, context=(x, y)), y).sum().backward()
        assert all(isinstance(value, torch.Tensor) for value in model.state_dict().values())

    def test_conversion_to_another_dtype_after_a_forward(self):
        model = self.make(dtype=torch.float32).eval()
        x, y = helpers.make_data(4, dtype=torch.float32)
        single = model(x, context=(x, y)).mean
        double = model.double()(x.double(), context=(x.double(), y.double())).mean
        assert double.dtype == torch.float64
        torch.testing.assert_close(single.double(), double, rtol=1e-2, atol=1e-2)

    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_no_q_u_survives_into_a_call_with_another_context(self, mode):
        model = self.make()
        getattr(model, mode)()
        x, y = helpers.make_data(2)
        first = model(x[0], context=(x[0], y[0])).mean.detach()
        kl_first = model.variational_strategy.kl_divergence().detach()
        model(x[1], context=(x[1], y[1]))
        assert not torch.allclose(kl_first, model.variational_strategy.kl_divergence().detach())
        assert torch.equal(model(x[0], context=(x[0], y[0])).mean.detach(), first)
        assert torch.equal(model.variational_strategy.kl_divergence().detach(), kl_first)

    def test_no_tensor_is_made_on_the_default_device(self, dtype):
        """The default device is `meta`, which stands in for a GPU, and everything else is on the CPU."""
        model, likelihood = self.make(dtype=dtype), helpers.make_likelihood(dtype=dtype)
        x, y = helpers.make_data(4, dtype=dtype)
        x_new = torch.rand(5, 2, dtype=dtype)
        parameters = [*model.parameters(), *likelihood.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=1e-3)
        with torch.device("meta"):
            context = Context.pad([(x[0], y[0]), (x[1, :5], y[1, :5])])
            loss = -TaskELBO(likelihood, model)(model(context.x, context=context), context.y).mean()
            loss.backward()
            optimizer.step()
            model.eval()
            prediction = likelihood.predict(model(x_new, context=context), num_samples=7)
            results = [
                loss,
                prediction.mean,
                prediction.variance,
                condition(model, context)(x_new).variance,
                model(x_new, prior=True).variance,
                likelihood.log_marginal(context.y, model(context.x, context=context)),
            ]
        assert all(result.device.type == "cpu" and result.isfinite().all() for result in results)
