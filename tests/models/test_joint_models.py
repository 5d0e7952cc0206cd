"""Ready-made models whose latent functions are inferred together."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import helpers
import oracles
import pytest
import torch

from gpytorch_sgpvae import (
    GPVAE,
    SGPVAE,
    VAE,
    BernoulliObservations,
    Context,
    GaussianObservations,
    GroupedKernel,
    LinearPlus,
    MixedObservations,
    PoissonObservations,
    PrivateLinear,
)


def make_series(num_tasks=6, num_points=40, holes=0.3):
    """Four outputs: two that share a slow function, two with a rough one, each with something of its own, and noise."""
    x = torch.arange(num_points, dtype=torch.float64).unsqueeze(-1)
    distance = (x - x.mT).abs()

    def draw(lengthscale, num_functions):
        root = torch.linalg.cholesky(torch.exp(-distance / lengthscale))
        return root @ torch.randn(num_tasks, num_points, num_functions, dtype=torch.float64)

    weights = torch.tensor([[1.0, 0.0], [-0.8, 0.1], [0.2, 1.0], [0.0, 0.7]], dtype=torch.float64)
    shared = torch.cat([draw(20.0, 1), draw(3.0, 1)], -1)
    truth = shared @ weights.mT + 0.4 * draw(6.0, 4)
    y = truth + 0.1 * torch.randn_like(truth)
    hidden = torch.rand(y.shape) < holes
    return x, y.masked_fill(hidden, torch.nan), truth.masked_fill(~hidden, torch.nan)


def log_marginal(model, x, y):
    """The exact one of the linear model, for tasks with holes."""
    decoder = model.likelihood.decoder
    linear = decoder.linear if isinstance(decoder, LinearPlus) else decoder
    K = model.model.covar_module(x.expand(linear.in_features, *x.shape)).to_dense()
    noise = model.likelihood.observation_model.noise
    mean, covariance = oracles.gp_factor_analysis(K, linear.weight, linear.bias, noise)
    rows = [row.reshape(-1) for row in y]
    known = [~row.isnan() for row in rows]
    return torch.stack(
        [oracles.log_normal_density(r[k], mean[k], covariance[k][:, k]) for r, k in zip(rows, known, strict=True)]
    )


@pytest.mark.parametrize("num_private", [0, 1, 2])
def test_at_the_start_the_elbo_is_the_linear_models_log_marginal_likelihood(num_private):
    x, y, _ = make_series(3, 15)
    gpvae = GPVAE(4, 3, network="jointfactornet", num_private=num_private).double()
    torch.testing.assert_close(gpvae.elbo((x, y)), log_marginal(gpvae, x, y), rtol=0, atol=1e-8)
    gpvae.initialize_from((x, y))
    torch.testing.assert_close(gpvae.elbo((x, y)), log_marginal(gpvae, x, y), rtol=0, atol=1e-8)


def test_with_a_linear_decoder_it_is_at_every_step():
    x, y, _ = make_series(3, 15)
    gpvae = GPVAE(4, 3, network="jointfactornet", decoder=torch.nn.Linear(3, 4)).double()
    corrections = gpvae.strategy._variational_distribution.network.corrections
    corrections.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in gpvae.parameters() if p.requires_grad], lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        gpvae.loss((x, y)).backward()
        optimizer.step()
        torch.testing.assert_close(gpvae.elbo((x, y)), log_marginal(gpvae, x, y), rtol=0, atol=1e-8)


@pytest.mark.parametrize("num_private", [0, 2])
def test_a_start_from_data_is_better_than_none(num_private):
    x, y, truth = make_series(8)
    scores = []
    for start in (False, True):
        torch.manual_seed(0)
        gpvae = GPVAE(4, 4, network="jointfactornet", num_private=num_private).double()
        if start:
            gpvae.initialize_from((x, y))
        scores.append(gpvae.elbo((x, y)).mean())
        assert gpvae.eval().predict(x, (x, y)).mean.isfinite().all()
    assert scores[1] > scores[0] + 20
    # and fills holes better than each output's mean does
    error = (gpvae.predict(x, (x, y)).mean - truth).square().nanmean()
    assert error < 0.5 * truth.square().nanmean()


def test_private_functions_belong_to_one_output_each():
    decoder = PrivateLinear(num_shared=3, num_outputs=5, num_private=2)
    f = torch.randn(10, 13)
    before = decoder(f)
    f[:, 3 + 5 + 1] += 1.0  # the second one of output 1
    changed = (decoder(f) - before).abs().sum(0) > 1e-6
    assert changed.tolist() == [False, True, False, False, False]
    gpvae = GPVAE(5, 3, network="jointfactornet", num_private=2)
    kernel = gpvae.model.covar_module
    assert isinstance(kernel, GroupedKernel)
    assert sum(kernel.sizes) == gpvae.strategy.num_latents == 13


def test_the_perceptron_reads_the_shared_functions_alone():
    sgpvae = SGPVAE(4, 3, torch.rand(5, 1), network="jointfactornet", num_private=1)
    decoder = sgpvae.likelihood.decoder
    assert isinstance(decoder, LinearPlus)
    with torch.no_grad():
        decoder.mlp.output_bias.fill_(1.0)
    f = torch.randn(10, 7)
    assert torch.equal(decoder.perceptron(f), decoder.mlp(f[:, :3]))


@pytest.mark.parametrize("make", [lambda **k: GPVAE(4, 3, **k), lambda **k: SGPVAE(4, 3, torch.rand(6, 1) * 40, **k)])
def test_outputs_of_several_kinds_train_and_predict(make):
    x, y, _ = make_series(4, 30)
    counts, flags = y[..., 2:3].exp().round(), (y[..., 3:] > 0).double()
    y = torch.cat([y[..., :2], counts, torch.where(y[..., 3:].isnan(), torch.nan, flags)], -1)
    observations = MixedObservations([GaussianObservations(2), PoissonObservations(1), BernoulliObservations(1)])
    model = make(network="jointfactornet", num_private=1, observation_model=observations).double()
    model.initialize_from((x, y))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model.loss((x, y))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert torch.stack(losses[-5:]).mean() < torch.stack(losses[:5]).mean()
    prediction = model.eval().predict(x, (x, y), num_samples=20)
    assert prediction.mean.shape == (4, 30, 4)
    assert prediction.quantile([0.05, 0.95]).isfinite().all()
    assert prediction.sample(3, joint=True).shape == (3, 4, 30, 4)


def test_copies_keep_network_and_likelihood_tied_to_each_other():
    gpvae = GPVAE(4, 3, network="jointfactornet").double()
    x, y, _ = make_series(2, 10)
    for twin in (copy.deepcopy(gpvae), pickle.loads(pickle.dumps(gpvae))):
        with torch.no_grad():
            twin.likelihood.decoder.linear.weight.add_(1.0)
        sites = twin.strategy.sites(Context(x, y))
        assert sites.loadings is twin.likelihood.decoder.linear.weight
        assert gpvae.strategy.sites(Context(x, y)).loadings is gpvae.likelihood.decoder.linear.weight
    names = [name for name, _ in gpvae.named_parameters()]
    assert len(names) == len(set(names)) == len(list(gpvae.parameters()))


class TestErrors:
    def test_private_functions_need_the_joint_network(self):
        with pytest.raises(ValueError, match=r"num_private=1.*jointfactornet"):
            GPVAE(4, 3, num_private=1)

    def test_a_vae_has_no_functions_to_couple(self):
        with pytest.raises(ValueError, match="GPVAE or SGPVAE"):
            VAE(4, 3, network="jointfactornet")

    def test_a_start_from_data_needs_a_linear_decoder(self):
        with pytest.raises(NotImplementedError, match="jointfactornet"):
            SGPVAE(3, 2, torch.rand(5, 2)).initialize_from(helpers.make_data(dtype=torch.float32))

    def test_a_kernel_of_another_size(self):
        kernel = gpytorch.kernels.MaternKernel(nu=1.5, batch_shape=torch.Size([2]))
        with pytest.raises(ValueError, match=r"batch shape \(2,\).*3 latent functions"):
            GPVAE(4, 3, network="jointfactornet", kernel=kernel)
