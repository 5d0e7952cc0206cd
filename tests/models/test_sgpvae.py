from __future__ import annotations

import copy
import pickle

import gpytorch
import helpers
import pytest
import torch

from gpytorch_sgpvae import (
    MLP,
    SGPVAE,
    Context,
    FactorNet,
    GaussianObservations,
    JointFactorNet,
    Posterior,
    Prediction,
    condition,
)
from gpytorch_sgpvae.models import NETWORKS


def make(**kwargs):
    return SGPVAE(3, 2, torch.rand(5, 2, dtype=torch.float64) * 3, **kwargs)


@pytest.fixture
def data():
    return helpers.make_data(4)


def test_every_network_has_a_name():
    assert set(NETWORKS.values()) == {*helpers.NETWORKS, JointFactorNet}


@pytest.mark.parametrize("network", [*NETWORKS, "FactorNet", "zero_imputation", FactorNet(3, 2, (7,))])
def test_all_networks_train(network, data):
    sgpvae = make(network=network)
    optimizer = torch.optim.Adam(sgpvae.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = sgpvae.loss(data)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < sum(losses[:5])
    assert all(parameter.grad is not None for parameter in sgpvae.parameters())


def test_elbo_loss_and_posterior_have_their_documented_shapes(data):
    sgpvae = make()
    assert sgpvae.elbo(data).shape == (4,)
    assert sgpvae.loss(Context(*data)).shape == ()
    posterior = sgpvae.eval().condition(data)
    assert isinstance(posterior, Posterior)
    assert posterior(torch.rand(7, 2).double()).mean.shape == (4, 7, 2)


@pytest.mark.parametrize("chunk_size", [1, 7, 50, 1000])
def test_chunked_prediction_equals_unchunked(data, chunk_size):
    sgpvae = make().eval()
    x_new = torch.rand(50, 2).double()
    torch.manual_seed(1)
    whole = sgpvae.predict(x_new, data, num_samples=9)
    torch.manual_seed(1)
    chunked = sgpvae.predict(x_new, data, num_samples=9, chunk_size=chunk_size)
    assert isinstance(chunked, Prediction)
    torch.testing.assert_close(chunked.mean, whole.mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(chunked.variance, whole.variance, rtol=0, atol=1e-10)


def test_chunks_bound_the_memory(data):
    sgpvae = make().eval()
    x_new = torch.rand(5000, 2).double()
    with helpers.largest_allocation() as whole:
        sgpvae.predict(x_new, data, num_samples=1)
    with helpers.largest_allocation() as chunked:
        sgpvae.predict(x_new, data, num_samples=1, chunk_size=100)
    assert whole.numel >= 4 * 2 * 5 * 5000
    # what remains is the decoder's, (T, N, hidden)
    assert chunked.numel <= 4 * 5000 * 20


def test_a_prediction_has_no_graph_and_leaves_the_mode_alone(data):
    for training in (True, False):
        sgpvae = make().train(training)
        assert not sgpvae.predict(data[0], data).mean.requires_grad
        assert sgpvae.training is training


def test_the_parts_can_be_replaced():
    kernel = gpytorch.kernels.PeriodicKernel(batch_shape=torch.Size([2]))
    decoder, observations = MLP(2, 3, ()), GaussianObservations(3, shared_noise=True)
    sgpvae = make(kernel=kernel, decoder=decoder, observation_model=observations, learn_inducing_locations=False)
    assert sgpvae.model.covar_module is kernel
    assert sgpvae.likelihood.decoder is decoder
    assert sgpvae.likelihood.observation_model is observations
    assert "inducing_points" not in dict(sgpvae.strategy.named_parameters())


def test_a_kernel_without_a_batch_shape_is_shared_by_the_latent_functions(data):
    sgpvae = make(kernel=gpytorch.kernels.RBFKernel())
    assert sgpvae.elbo(data).shape == (4,)


@pytest.mark.parametrize("kwargs", [{"network": "factor"}, {"network": "transformer"}])
def test_an_unknown_network_is_an_error_that_lists_the_known(kwargs):
    with pytest.raises(ValueError, match="factornet, indexnet, pointnet, zeroimputation"):
        make(**kwargs)


@pytest.mark.parametrize("num_latents", [1, 3, None])
def test_a_network_with_another_number_of_latent_functions_is_an_error(num_latents):
    with pytest.raises(ValueError, match=f"num_latents={num_latents}, but the model num_latents=2"):
        make(network=FactorNet(3, num_latents))


def test_calling_it_gives_the_latent_functions(data):
    sgpvae = make().eval()
    assert torch.equal(sgpvae(data[0], context=data).mean, sgpvae.condition(data)(data[0]).mean)
    assert sgpvae(data[0], prior=True).event_shape == (12, 2)
    assert torch.equal(condition(sgpvae, data)(data[0]).mean, sgpvae.condition(data)(data[0]).mean)


@pytest.mark.parametrize("chunk_size", [0, -1])
def test_a_chunk_size_below_one_is_an_error(data, chunk_size):
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        make().predict(data[0], data, chunk_size=chunk_size)


def test_it_takes_on_the_dtype_of_the_inducing_points(dtype):
    sgpvae = SGPVAE(3, 2, torch.rand(5, 2, dtype=dtype))
    assert {parameter.dtype for parameter in sgpvae.parameters()} == {dtype}


def test_copies_and_state_dicts_are_faithful_after_training(data):
    sgpvae = make()
    sgpvae.loss(data).backward()
    other = make()
    other.load_state_dict(sgpvae.state_dict())
    x_new = torch.rand(7, 2).double()
    expected = sgpvae.eval().condition(data)(x_new).mean
    for twin in (copy.deepcopy(sgpvae), pickle.loads(pickle.dumps(sgpvae)), other.eval()):
        assert torch.equal(twin.condition(data)(x_new).mean, expected)


def test_one_dimensional_inputs_and_one_output():
    sgpvae = SGPVAE(1, 1, torch.linspace(0, 1, 5))
    x, y = torch.rand(12), torch.randn(12)
    assert sgpvae.elbo((x, y)).shape == ()
    assert sgpvae.predict(torch.rand(7), (x, y)).mean.shape == (7, 1)


def test_it_learns_to_fill_in_an_unseen_task():
    """Three outputs that are functions of one smooth latent function: one of them predicts the others."""

    def tasks(count):
        phase = 6.28 * torch.rand(count, 1)
        x = torch.linspace(0, 1, 30)
        f = torch.sin(6.28 * x + phase)
        y = torch.stack([f, -f, f.square()], dim=-1) + 0.05 * torch.randn(count, 30, 3)
        return x.unsqueeze(-1), y

    x, y = tasks(24)
    y[torch.rand(y.shape) < 0.2] = torch.nan
    sgpvae = SGPVAE(3, 1, x[::3])
    sgpvae.likelihood.observation_model.noise = 0.1
    optimizer = torch.optim.Adam(sgpvae.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        sgpvae.loss((x, y)).backward()
        optimizer.step()
    _, unseen = tasks(8)
    seen = unseen.clone()
    seen[:, 10:25, 1:] = torch.nan
    prediction = sgpvae.eval().predict(x, (x, seen))
    hidden = seen.isnan()
    error = (prediction.mean - unseen)[hidden].abs().mean()
    baseline = (y.nanmean((0, 1)) - unseen)[hidden].abs().mean()
    assert error < 0.35 * baseline
    inside = (unseen > prediction.quantile(0.05)) & (unseen < prediction.quantile(0.95))
    assert 0.75 < inside[hidden].float().mean() <= 1.0
