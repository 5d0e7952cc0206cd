"""Points in chunks: the same numbers in the memory of one chunk."""

from __future__ import annotations

import gpytorch
import helpers
import pytest
import torch

from gpytorch_sgpvae import (
    GPVAE,
    SGPVAE,
    VAE,
    AmortizedVariationalDistribution,
    Context,
    FreeFormSites,
    InducingSitesVariationalStrategy,
    PairNet,
    TaskELBO,
    condition,
)


def make_sgpvae(**kwargs):
    return SGPVAE(3, 2, torch.rand(5, 2, dtype=torch.float64) * 3, hidden_sizes=(8,), **kwargs)


def gradients(model, elbo):
    model.zero_grad()
    elbo.sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@helpers.pairwise_cases(
    "chunk_size, inputs, network",
    [5, 1, 12, 100],
    ["of each task", "shared by all tasks", "of one task"],
    ["factornet", "pointnet"],
)
def test_the_elbo_and_its_gradient_are_those_without_chunks(chunk_size, inputs, network):
    sgpvae = make_sgpvae(network=network)
    tasks = () if inputs == "of one task" else (3,)
    x, y = helpers.make_data(*tasks)
    context = Context(x[0] if inputs == "shared by all tasks" else x, y)
    samples = torch.randn(2, *tasks, 12, 2, dtype=torch.float64)
    whole = sgpvae.elbo(context, base_samples=samples)
    expected = gradients(sgpvae, whole)
    chunked = sgpvae.elbo(context, base_samples=samples, chunk_size=chunk_size)
    torch.testing.assert_close(chunked, whole, rtol=1e-10, atol=1e-10)
    for gradient, wanted in zip(gradients(sgpvae, chunked), expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-9)


def test_gradients_reach_the_inputs_too():
    sgpvae = make_sgpvae()
    x, y = helpers.make_data()
    x.requires_grad_()
    samples = torch.randn(1, 12, 2, dtype=torch.float64)
    gradients = [
        torch.autograd.grad(sgpvae.loss(Context(x, y), base_samples=samples, chunk_size=size), x)[0]
        for size in (None, 5)
    ]
    torch.testing.assert_close(*gradients)


def test_the_backward_pass_may_run_outside_of_the_settings():
    sgpvae = make_sgpvae()
    with gpytorch.settings.num_likelihood_samples(3):
        loss = sgpvae.loss(helpers.make_data(), chunk_size=5)
    loss.backward()


def test_a_likelihood_of_gpytorchs_own_with_missing_targets():
    model, likelihood = helpers.make_model(1, None), gpytorch.likelihoods.GaussianLikelihood().double()
    x, y = helpers.make_data(num_outputs=1)
    context, objective = Context(x, y[:, 0]), TaskELBO(likelihood, model)
    with gpytorch.settings.observation_nan_policy("fill"):
        whole = objective(model(context.x, context=context), context.y)
        chunked = objective.of_context(context, chunk_size=5)
    torch.testing.assert_close(chunked, whole)
    chunked.backward()


def test_hidden_entries_and_subsets_go_along():
    sgpvae = make_sgpvae()
    context = Context(*helpers.make_data(4))
    values = []
    for chunk_size in (None, 5):
        torch.manual_seed(1)
        samples = torch.randn(1, 4, 9, 2, dtype=torch.float64)
        options = {"base_samples": samples, "hide": 0.5, "subset_size": 9, "beta": 0.3}
        values.append(sgpvae.elbo(context, chunk_size=chunk_size, **options))
    torch.testing.assert_close(*values)


@pytest.mark.parametrize("training", [True, False])
def test_conditioning_in_chunks_gives_the_same_posterior(training):
    model = helpers.make_model().train(training)
    data, x_new = helpers.make_data(3), torch.rand(4, 2, dtype=torch.float64)
    whole, chunked = (condition(model, data, chunk_size)(x_new) for chunk_size in (None, 5))
    torch.testing.assert_close(chunked.mean, whole.mean)
    torch.testing.assert_close(chunked.variance, whole.variance)
    assert chunked.mean.requires_grad == whole.mean.requires_grad


def test_sites_of_inducing_values_add_over_chunks():
    class PairModel(helpers.Model):
        def __init__(self):
            gpytorch.models.ApproximateGP.__init__(self, None)
            q_u = AmortizedVariationalDistribution(PairNet(3, None, (8,), input_dim=2))
            self.variational_strategy = InducingSitesVariationalStrategy(self, torch.rand(4, 2), q_u)
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), gpytorch.kernels.RBFKernel()

    model = PairModel().double()
    data, x_new = helpers.make_data(2), torch.rand(4, 2, dtype=torch.float64)
    whole, chunked = (condition(model, data, chunk_size)(x_new) for chunk_size in (None, 5))
    torch.testing.assert_close(chunked.mean, whole.mean)
    torch.testing.assert_close(chunked.variance, whole.variance)


def test_nothing_larger_than_a_chunk_is_made():
    N, chunk_size, M, K, P = 4000, 50, 5, 2, 3
    sgpvae = make_sgpvae()
    context = Context(*helpers.make_data(num_points=N))
    with helpers.largest_allocation() as training:
        sgpvae.loss(context, chunk_size=chunk_size).backward()
    with helpers.largest_allocation() as conditioning:
        sgpvae.eval().condition(context, chunk_size)
    # views of the data themselves count as the data
    data = N * P
    assert max(training.numel, conditioning.numel) <= max(data, 10 * (M + chunk_size) * max(K * M, P * 8))
    with helpers.largest_allocation() as unchunked:
        sgpvae.train().loss(context).backward()
    assert unchunked.numel > data


def test_free_form_sites_have_no_chunks():
    sgpvae, (x, y) = make_sgpvae(), helpers.make_data()
    sites = FreeFormSites.from_sites(sgpvae.strategy.sites((x, y)))
    with pytest.raises(NotImplementedError, match=r"FreeFormSites.*row_wise"):
        make_sgpvae(network=sites).loss((x, y), chunk_size=5)


def test_a_misspelt_option_is_an_error():
    with pytest.raises(TypeError, match="chunksize"):
        make_sgpvae().loss(helpers.make_data(), chunksize=5)


@pytest.mark.parametrize("model", [GPVAE(3, 2), VAE(3, 2)])
def test_models_that_need_all_points_together_say_so(model):
    data = helpers.make_data(dtype=torch.float32)
    with pytest.raises(NotImplementedError, match="chunk_size is for the sparse"):
        model.loss(data, chunk_size=5)
    # prediction needs them once, and is chunked thereafter
    assert model.eval().predict(data[0], data, chunk_size=5).mean.shape == (12, 3)


class TestSplit:
    @pytest.mark.parametrize("one_output", [True, False])
    def test_the_pieces_are_views_that_make_up_the_whole(self, one_output):
        x, y = helpers.make_data(3)
        context = Context(x[0], y[..., 0] if one_output else y)
        chunks = list(context.split(5))
        assert [chunk.num_points for chunk in chunks] == [5, 5, 2]
        assert torch.equal(torch.cat([chunk.filled for chunk in chunks], dim=-2), context.filled)
        assert torch.equal(torch.cat([chunk.observed for chunk in chunks], dim=-2), context.observed)
        whole = torch.cat([chunk.y for chunk in chunks], dim=-1 if one_output else -2)
        assert torch.equal(whole.nan_to_num(7), context.y.nan_to_num(7))
        for chunk in chunks:
            assert chunk.batch_shape == context.batch_shape
            assert chunk.is_at(chunk.x)
            assert not chunk.is_at(context.x)
            assert chunk.x.untyped_storage().data_ptr() == context.x.untyped_storage().data_ptr()

    def test_a_context_without_points_is_one_piece(self):
        (chunk,) = Context(torch.zeros(0, 2), torch.zeros(0, 3)).split(5)
        assert chunk.num_points == 0

    def test_chunks_of_nothing_are_an_error(self):
        with pytest.raises(ValueError, match="at least 1, got 0"):
            list(Context(*helpers.make_data()).split(0))
