"""The ready-made model over time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import CosineKernel, MaternKernel, PeriodicKernel

from gpytorch_sgpvae import (
    GPVAE,
    BernoulliObservations,
    GroupedKernel,
    ImportanceWeightedELBO,
    MarkovGPVAE,
    PoissonObservations,
    refine,
)
from gpytorch_sgpvae.training import SGPVAEModule, TaskDataset, TaskLoader, make_trainer


def make_series(num_points=200, period=20.0):
    """Two outputs that share a slow wave, irregular times, a third of the entries gone."""
    x = torch.rand(num_points, 1, dtype=torch.float64).sort(0).values * num_points / 2
    wave = torch.sin(2 * math.pi * x / period)
    y = torch.cat([wave, -wave], dim=-1) + 0.1 * torch.randn(num_points, 2, dtype=torch.float64)
    seen = y.clone()
    seen[torch.rand(y.shape) < 0.33] = torch.nan
    return x, y, seen


@pytest.mark.parametrize("num_private", [0, 2])
def test_the_default_kernels_are_matern_32_with_private_ones_beside_them(num_private):
    kernel = MarkovGPVAE(3, 4, num_private=num_private).model.covar_module
    shared = kernel.kernels[0] if num_private else kernel
    assert shared.nu == 1.5
    torch.testing.assert_close(shared.lengthscale.flatten()[[0, -1]], torch.tensor([0.3, 3.0]))
    assert kernel.batch_shape == (4 + 3 * num_private,)


def test_inputs_with_other_columns_than_time_are_an_error_that_says_which_to_name():
    x, _, y = make_series(20)
    with pytest.raises(ValueError, match=r"active_dims=\(0,\)"):
        MarkovGPVAE(2, 2).double().loss((torch.cat([x, x], dim=-1), y))


@pytest.mark.parametrize("network", ["jointfactornet", "factornet", "pointnet"])
def test_it_is_gpvae_with_the_same_kernel(network):
    kernel = MaternKernel(nu=1.5, batch_shape=torch.Size([2]))
    markov, dense = (cls(2, 2, network, kernel=kernel).double() for cls in (MarkovGPVAE, GPVAE))
    prefix = "model.variational_strategy."
    names = {name.replace("base_variational_strategy.", ""): name for name in dense.state_dict()}
    assert set(names) - set(markov.state_dict()) == set()
    dense.load_state_dict({names[name]: value for name, value in markov.state_dict().items() if name in names})
    assert any(name.startswith(prefix) for name in names)
    x, _, y = make_series(30)
    torch.manual_seed(1)
    expected = dense.elbo((x, y))
    torch.manual_seed(1)
    torch.testing.assert_close(markov.elbo((x, y)), expected, rtol=0, atol=1e-8)


def test_refinement_has_nothing_to_gain_where_the_posterior_is_exact():
    model = MarkovGPVAE(2, 3, decoder=torch.nn.Linear(3, 2)).double()
    x, _, y = make_series(50)
    assert refine(model, (x, y), steps=2).gap < 1e-8


@pytest.mark.parametrize("network", ["jointfactornet", "factornet"])
def test_importance_weights_tighten_the_bound(network):
    model = MarkovGPVAE(2, 2, network, decoder=torch.nn.Linear(2, 2)).double()
    x, _, y = make_series(10)
    bounds = []
    for num_samples in (1, 64):
        objective = ImportanceWeightedELBO(model.likelihood, model.model, num_samples=num_samples)
        draws = [objective(model.model(x, context=(x, y), diag=False), y) for _ in range(40)]
        bounds.append(torch.stack(draws).mean())
    assert bounds[1] > bounds[0] - (1e-8 if network == "jointfactornet" else 0)


@pytest.mark.parametrize("cycle", [CosineKernel, PeriodicKernel])
def test_a_start_from_data_leaves_cycles_as_they_are(cycle):
    change = MaternKernel(nu=1.5)
    change.lengthscale = 50.0
    rough = MaternKernel(nu=0.5)
    kernel = GroupedKernel([cycle() * change, rough], [1, 1])
    model = MarkovGPVAE(2, 2, kernel=kernel, num_harmonics=2).double()
    x, _, y = make_series()
    model.initialize_from((x, y))
    assert change.lengthscale.item() == pytest.approx(50.0)
    assert rough.lengthscale.item() != pytest.approx(MaternKernel(nu=0.5).lengthscale.item(), abs=0.1)
    assert model.strategy.num_harmonics == 2


@pytest.mark.parametrize("observations", [PoissonObservations, BernoulliObservations])
def test_counts_and_flags(observations):
    model = MarkovGPVAE(2, 2, observation_model=observations(2), num_private=1).double()
    x, y, _ = make_series(60)
    y = (y > 0).double()
    y[::5] = torch.nan
    model.initialize_from((x, y))
    losses = []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(20):
        optimizer.zero_grad()
        loss = model.loss((x, y))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert model.eval().predict(x, (x, y)).mean.isfinite().all()


@pytest.mark.slow
def test_trained_on_windows_and_conditioned_on_the_whole_it_is_ahead_of_interpolation():
    x, y, seen = make_series(2000)
    model = MarkovGPVAE(2, 2, num_private=1).double()
    model.initialize_from((x, seen))
    windows = TaskDataset([(x, seen)]).windows(100)
    loader = TaskLoader(windows, batch_size=10)
    make_trainer(None, max_epochs=8, accelerator="cpu").fit(SGPVAEModule(model, learning_rate=0.02), loader)
    hidden = seen.isnan()
    mean = model.eval().predict(x, (x, seen), num_samples=20).mean
    error = (mean - y)[hidden].square().mean().sqrt()
    interpolated = torch.stack([_interpolate(x[:, 0], seen[:, p]) for p in range(2)], dim=-1)
    assert error < 0.9 * (interpolated - y)[hidden].square().mean().sqrt()


def _interpolate(times, values):
    known = ~values.isnan()
    return torch.from_numpy(np.interp(times.numpy(), times[known].numpy(), values[known].numpy()))
