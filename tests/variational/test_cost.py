"""Costs are counted, not timed."""

from __future__ import annotations

from unittest.mock import patch

import gpytorch
import helpers
import pytest
import torch

from gpytorch_sgpvae import Context, TaskELBO, condition
from gpytorch_sgpvae.variational import amortized_variational_strategy as module

N, M, K, P = 700, 6, 2, 3


def training_step(model, likelihood, context):
    TaskELBO(likelihood, model)(model(context.x, context=context), context.y).sum().backward()


@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_one_cholesky_of_kuu_per_latent_batch_and_step_whatever_the_number_of_tasks(tasks):
    model, likelihood = helpers.make_model(), helpers.make_likelihood()
    context = Context(*helpers.make_data(tasks))
    with helpers.cholesky_calls() as shapes:
        training_step(model, likelihood, context)
    assert sorted(shapes) == sorted([(K, 5, 5), (tasks, K, 5, 5)])


@pytest.mark.parametrize("kernel", helpers.KERNELS.values(), ids=helpers.KERNELS.keys())
@pytest.mark.parametrize("shared_inputs", [True, False])
def test_no_matrix_of_n_by_n_in_a_training_step_or_in_marginal_prediction(kernel, shared_inputs):
    model, likelihood = helpers.make_model(P, K, M, kernel=kernel), helpers.make_likelihood()
    x, y = helpers.make_data(3, num_points=N)
    context = Context(x[0] if shared_inputs else x, y)
    with gpytorch.settings.num_likelihood_samples(1):
        with helpers.largest_allocation() as training:
            training_step(model, likelihood, context)
        with helpers.largest_allocation() as prediction, torch.no_grad():
            model.eval()
            _ = likelihood.predict(model(x, context=context), num_samples=1).variance
            _ = likelihood.predict(condition(model, context)(x), num_samples=1).mean
            _ = likelihood(model(x, context=context)).mean
    assert training.numel < N * N
    assert prediction.numel < N * N
    # nothing larger than K_uf, or the hidden units of the network
    assert max(training.numel, prediction.numel) <= 3 * (M + N) * max(K * M, P * 8)


def test_the_measuring_device_sees_an_n_by_n_matrix():
    x, y = helpers.make_data(num_points=N)
    model = helpers.make_model().eval()
    with helpers.largest_allocation() as allocation:
        _ = model(x, context=(x, y)).covariance_matrix
    assert allocation.numel >= N * N


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("given", ["context", "pair", "own"])
def test_a_is_computed_once_when_the_model_is_called_at_the_contexts_own_inputs(wrapped, training, given):
    model = helpers.make_model(wrapped=wrapped).train(training)
    x, y = helpers.make_data(4)
    context = Context(x, y)
    arguments = {"context": (context.x, context), "pair": (x, (x, y)), "own": (x, context)}[given]
    with patch.object(module, "whitened_cross_covariance", wraps=module.whitened_cross_covariance) as A:
        model(arguments[0], context=arguments[1])
        assert A.call_count == 1
        model(x.clone(), context=arguments[1])
        assert A.call_count == 3


def test_a_is_computed_once_for_flat_inputs_too():
    model = helpers.Model(torch.linspace(0, 1, 5), helpers.ExactSites(0.1))
    x, y = torch.rand(12), torch.randn(12)
    with patch.object(module, "whitened_cross_covariance", wraps=module.whitened_cross_covariance) as A:
        model(x, context=(x, y))
        assert A.call_count == 1


def test_inputs_shared_by_all_tasks_have_one_a():
    model = helpers.make_model()
    x, y = helpers.make_data(4)
    with patch.object(module, "whitened_cross_covariance", wraps=module.whitened_cross_covariance) as A:
        model(x[0], context=(x[0], y))
    ((_, Kuf), _) = A.call_args
    assert Kuf.shape == (K, 5, 12)


def test_the_networks_of_all_outputs_are_evaluated_together():
    """The number of operations does not grow with P."""

    class Counter(torch.utils._python_dispatch.TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    for network_class in helpers.NETWORKS:
        counts = []
        for num_outputs in (2, 40):
            network = network_class(num_outputs, K)
            y = torch.randn(12, num_outputs)
            with Counter() as counter:
                network(helpers.rows(y, y > 0))
            counts.append(counter.count)
        assert counts[0] == counts[1]


class LargeProducts(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the multiplications of matrix products, in units of (M x M)(M x N) for each latent function and task."""

    def __init__(self, unit):
        super().__init__()
        self.unit, self.multiplications = unit, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in ("aten::bmm", "aten::mm"):
            left, right = args[:2]
            self.multiplications += left.numel() * right.shape[-1]
        return func(*args, **(kwargs or {}))

    @property
    def count(self):
        return self.multiplications / self.unit


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_training_step_has_seven_products_of_m_by_m_by_n(tasks):
    """Three forward, for A, A Λ Aᵀ and F A; four backward, two for the first and one for each of the others."""
    N, M, K = 3000, 60, 2
    model, likelihood = helpers.make_model(1, K, M), helpers.make_likelihood(1)
    context = Context(*helpers.make_data(tasks, num_points=N, num_outputs=1))
    with LargeProducts(tasks * K * M * M * N) as products:
        training_step(model, likelihood, context)
    assert 7 <= products.count < 8


def test_a_dense_training_step_has_three_products_of_n_by_n_by_n():
    """P K forward; K E and E (V Eᵀ − ½ κ P) backward."""
    N, K = 300, 2
    model, likelihood = helpers.DenseModel(helpers.make_model(1, K)), helpers.make_likelihood(1)
    context = Context(*helpers.make_data(num_points=N, num_outputs=1))
    with LargeProducts(K * N**3) as products:
        training_step(model, likelihood, context)
    assert 3 <= products.count < 3.5


class TestJoint:
    """Latent functions that are inferred together, with a linear decoder: no samples, no K x K matrices."""

    def step(self, num_latents, tasks=2, N=20, J=4, inducing_points=None, shared_inputs=False):
        """A training step; the largest number of entries that a task has."""
        network, likelihood = helpers.make_tied(J, num_latents)
        model = helpers.JointModel(network, inducing_points)
        x, y = helpers.make_data(tasks, num_points=N, num_outputs=J)
        context = Context(x[0] if shared_inputs else x, y)
        return int(context.observed.sum((-2, -1)).max()), lambda: training_step(model, likelihood, context)

    @pytest.mark.parametrize("num_latents", [1, 3, 8])
    @pytest.mark.parametrize("shared_inputs", [True, False])
    def test_a_dense_step_factorizes_one_matrix_of_the_observed_entries_for_each_task(self, num_latents, shared_inputs):
        E, step = self.step(num_latents, shared_inputs=shared_inputs)
        assert E < 20 * 4
        with helpers.cholesky_calls() as shapes:
            step()
        assert shapes == [(2, E, E)]

    @pytest.mark.parametrize("num_latents", [3, 6, 12])
    def test_nothing_in_a_dense_step_is_larger_than_the_covariance_of_all_sums(self, num_latents):
        """G is of all J N sums before the observed ones are selected: no array has all pairs for each latent."""
        E, step = self.step(num_latents)
        with helpers.largest_allocation() as allocation:
            step()
        assert allocation.numel <= 2 * (4 * 20) ** 2
        assert allocation.numel < 2 * num_latents * E * E

    def test_the_products_of_a_dense_step_do_not_grow_with_the_number_of_latent_functions(self):
        counts = []
        for num_latents in (4, 8):
            torch.manual_seed(0)
            E, step = self.step(num_latents, N=60)
            with LargeProducts(2 * E**3) as products:
                step()
            counts.append(products.count)
        # what does grow are the products that make G: K / E of one of these each
        assert counts[1] < 1.05 * counts[0]

    def test_a_dense_step_without_missing_entries_has_one_product_of_e_by_e_by_e(self):
        """E (V Eᵀ − ½ κ P) backward: where every entry says something, P G and G E follow without a product."""
        network, likelihood = helpers.make_tied(3, 2)
        model, E = helpers.JointModel(network), 3 * 100
        context = Context(*helpers.make_data(num_points=100, missing=0))
        with LargeProducts(E**3) as products:
            training_step(model, likelihood, context)
        assert 1 <= products.count < 1.5

    @pytest.mark.parametrize("tasks", [1, 3])
    @pytest.mark.parametrize("shared_inputs", [True, False])
    def test_a_sparse_step_factorizes_kuu_once_and_one_matrix_of_all_inducing_values_for_each_task(
        self, tasks, shared_inputs
    ):
        _, step = self.step(3, tasks, inducing_points=torch.rand(5, 2).double(), shared_inputs=shared_inputs)
        with helpers.cholesky_calls() as shapes:
            step()
        assert sorted(shapes) == sorted([(3, 5, 5), (tasks, 15, 15)])

    def test_no_matrix_of_n_by_n_in_a_sparse_step_or_in_marginal_prediction(self):
        network, likelihood = helpers.make_tied(3, 2)
        model = helpers.JointModel(network, torch.rand(M, 2).double() * 3)
        x, y = helpers.make_data(2, num_points=N)
        context = Context(x, y)
        with helpers.largest_allocation() as allocation:
            training_step(model, likelihood, context)
            with torch.no_grad():
                model.eval()
                _ = likelihood.predict(model(x, context=context), num_samples=1).variance
                _ = likelihood.predict(condition(model, context)(x), num_samples=1).mean
        # nothing larger than A, for one latent function with each of the others, or the hidden units of the network
        assert allocation.numel <= 2 * (M + N) * max(K * M, 3 * 4)
