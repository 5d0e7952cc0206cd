from __future__ import annotations

import copy
import pickle

import gpytorch
import helpers
import pytest
import torch
from gpytorch.likelihoods import MultitaskGaussianLikelihood
from gpytorch.variational import LMCVariationalStrategy
from linear_operator.operators import LinearOperator

from gpytorch_sgpvae import Context, DenseAmortizedVariationalStrategy, TaskELBO, condition, conditioned_on


def make_dense(*args, jitter_val=None, **kwargs):
    return helpers.DenseModel(helpers.make_model(*args, **kwargs), jitter_val)


@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_one_cholesky_of_b_per_latent_function_and_task_and_step(tasks):
    model, likelihood = make_dense(), helpers.make_likelihood()
    context = Context(*helpers.make_data(tasks))
    with helpers.cholesky_calls() as shapes:
        TaskELBO(likelihood, model)(model(context.x, context=context), context.y).sum().backward()
    assert shapes == [(tasks, 2, 12, 12)]


@pytest.mark.parametrize("network", helpers.NETWORKS)
def test_padding_changes_nothing_and_nothing_observed_is_the_prior(network, dtype):
    model, likelihood = make_dense(network=network, dtype=dtype), helpers.make_likelihood(dtype=dtype)
    tasks = [helpers.make_data(num_points=n, dtype=dtype) for n in (12, 5, 1)]
    padded = Context.pad(tasks)
    samples = torch.randn(3, 3, 12, 2, dtype=dtype)
    objective = TaskELBO(likelihood, model)
    elbos = objective(model(padded.x, context=padded), padded.y, base_samples=samples)
    tolerance = {"rtol": 1e-8, "atol": 1e-8} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-3}
    for t, (x, y) in enumerate(tasks):
        elbo = objective(model(x, context=(x, y)), y, base_samples=samples[:, t, : len(x)])
        torch.testing.assert_close(elbos[t], elbo, **tolerance)
    x, y = helpers.make_data(4, missing=1.1, dtype=dtype)
    q_f, prior = model(x, context=(x, y)), model(x, prior=True)
    assert torch.equal(q_f.mean, prior.mean)
    torch.testing.assert_close(q_f.variance, prior.variance)
    assert (model.variational_strategy.kl_divergence() == 0).all()
    (q_f.mean.sum() + q_f.variance.sum() + model.variational_strategy.kl_divergence().sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kernel", helpers.KERNELS.values(), ids=helpers.KERNELS.keys())
def test_gradients_by_all_parameters(kernel):
    model = make_dense(2, 2, 3, kernel=kernel, activation=torch.nn.Tanh)
    likelihood = helpers.make_likelihood(2, 2, activation=torch.nn.Tanh)
    helpers.check_gradients_of_elbo(model, likelihood)


def test_covariances_are_lazy_and_right():
    model = make_dense(1, None).eval()
    x, y = helpers.make_data(num_outputs=1)
    q_f = model(torch.rand(7, 2).double(), context=(x, y))
    assert isinstance(q_f.lazy_covariance_matrix, LinearOperator)
    torch.testing.assert_close(q_f.covariance_matrix.diagonal(), q_f.variance)
    q_u, own = model.strategy.variational_distribution, model(x, context=(x, y))
    torch.testing.assert_close(q_u.mean, own.mean)
    torch.testing.assert_close(q_u.covariance_matrix, own.covariance_matrix)


def test_the_kl_divergence_is_that_of_the_distributions():
    model = make_dense(jitter_val=1e-3)
    x, y = helpers.make_data(4)
    model(x, context=(x, y))
    q, p = model.strategy.variational_distribution, model.strategy.prior_distribution
    assert q.batch_shape == p.batch_shape == (4, 2)
    generic = torch.distributions.kl_divergence(
        torch.distributions.MultivariateNormal(q.mean, q.covariance_matrix),
        torch.distributions.MultivariateNormal(p.mean, p.covariance_matrix),
    )
    torch.testing.assert_close(model.strategy.kl_divergence(), generic, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [1e3, 1e6])
@pytest.mark.parametrize("network", helpers.NETWORKS)
def test_whole_steps_stay_finite_for_large_outputs_and_smooth_kernels(network, dtype, scale):
    model, likelihood = make_dense(network=network, dtype=dtype), helpers.make_likelihood(dtype=dtype)
    x, y = helpers.make_data(num_points=150, dtype=dtype)
    parameters = [*model.parameters(), *likelihood.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        loss = -TaskELBO(likelihood, model)(model(x, context=(x, scale * y)), scale * y)
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
        assert all(parameter.isfinite().all() for parameter in parameters)


def test_posteriors_can_be_copied_and_pickled_after_a_call():
    model = make_dense().eval()
    x, y = helpers.make_data(4)
    posterior = condition(model, (x, y))
    expected = posterior(x).mean
    for twin in (copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        assert torch.equal(twin(x).mean, expected)


def test_singular_kernel_matrices_need_no_jitter(dtype):
    model = make_dense(dtype=dtype).eval()
    x, y = helpers.make_data(dtype=dtype)
    x = x[:1].expand(12, 2)
    q_f = model(x, context=(x, y))
    assert q_f.mean.isfinite().all()
    assert (q_f.variance > 0).all()


def test_lmc_and_conditioning_work_as_with_the_sparse_strategy(dtype):
    model = make_dense(dtype=dtype)
    x, y = helpers.make_data(4, missing=0, dtype=dtype)
    x_new = torch.rand(7, 2, dtype=dtype)
    model.eval()
    expected = model(x_new, context=(x, y)).mean
    assert torch.equal(condition(model, (x, y))(x_new).mean, expected)
    with conditioned_on(model, (x, y)), helpers.cholesky_calls() as shapes:
        chunks = [model(chunk).mean for chunk in x_new.split(2)]
    assert shapes == [(4, 2, 12, 12)]
    torch.testing.assert_close(torch.cat(chunks, -2), expected)

    model.train()
    model.variational_strategy = LMCVariationalStrategy(model.strategy, num_tasks=3, num_latents=2).to(dtype)
    likelihood = MultitaskGaussianLikelihood(num_tasks=3).to(dtype)
    TaskELBO(likelihood, model)(model(x, context=(x, y)), y).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("after_a_forward", [False, True])
def test_deepcopy_pickle_and_state_dict(after_a_forward):
    model = make_dense()
    x, y = helpers.make_data(4)
    if after_a_forward:
        model(x, context=(x, y))
    other = make_dense()
    other.load_state_dict(model.state_dict())
    expected = model.eval()(x, context=(x, y)).mean
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), other.eval()):
        assert torch.equal(twin(x, context=(x, y)).mean, expected)


def test_no_tensor_is_made_on_the_default_device():
    model, likelihood = make_dense(), helpers.make_likelihood()
    x, y = helpers.make_data(4)
    with torch.device("meta"):
        TaskELBO(likelihood, model)(model(x, context=(x, y)), y).sum().backward()
        prediction = likelihood.predict(model.eval()(x[:, :3], context=(x, y)), num_samples=5)
    assert prediction.mean.isfinite().all()


class TestErrors:
    def test_many_points_are_warned_of(self, monkeypatch):
        monkeypatch.setattr(DenseAmortizedVariationalStrategy, "max_points", 10)
        x, y = helpers.make_data()
        with pytest.warns(UserWarning, match=r"12 x 12.*beyond 10 points.*SGPVAE.*MarkovGPVAE.*from about 300 points"):
            make_dense()(x, context=(x, y))

    def test_no_context(self):
        with pytest.raises(ValueError, match="conditioned_on"):
            make_dense()(torch.rand(3, 2).double())

    def test_inputs_of_another_dimension(self):
        x, y = helpers.make_data()
        with pytest.raises(ValueError, match=r"\(3, 1\) has 1 input dimensions.*\(12, 2\) has 2"):
            make_dense()(torch.rand(3, 1).double(), context=(x, y))

    def test_fantasies(self):
        model = make_dense(1, None)
        with pytest.raises(NotImplementedError, match=r"condition\(model"):
            model.get_fantasy_model(torch.rand(3, 2), torch.rand(3))


def test_jitter_is_added_where_it_is_asked_for():
    x, y = helpers.make_data()
    without, with_jitter = make_dense(), make_dense(jitter_val=0.1)
    with_jitter.load_state_dict(without.state_dict())
    assert without.strategy.jitter_val == 0
    difference = with_jitter(x, context=(x, y)).variance - without(x, context=(x, y)).variance
    assert (difference > 0).all()
    with gpytorch.settings.variational_cholesky_jitter(double_value=0.1):
        assert torch.equal(without(x, context=(x, y)).mean, make_and_load(without)(x, context=(x, y)).mean)


def make_and_load(model):
    other = make_dense()
    other.load_state_dict(model.state_dict())
    return other
