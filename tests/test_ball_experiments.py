"""Predictions of bouncing balls, and the linear dynamical system that they are compared with."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import MultivariateNormal

pytest.importorskip("lightning", reason="the experiments train with the extra train")
pytest.importorskip("pandas", reason="the experiments read files with the extra datasets")

from experiments.balls import BALLS_PRESETS, NUM_AHEAD, by_prefix, draw_balls, images_ahead, make_model
from experiments.execution import execute_one
from experiments.lds import LinearDynamicalSystem
from experiments.runs import Run
from gpytorch_sgpvae import Context, Prediction
from gpytorch_sgpvae.datasets import bouncing_ball, bouncing_balls


def make_system(num_states=3, num_outputs=2):
    system = LinearDynamicalSystem(num_states, num_outputs)
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape))
    return system


def joint_of(system, num_images):
    """The images as one Gaussian vector: mean (N P), covariance (N P, N P)."""
    A, C, Q = system.A, system.C, system.Q
    means, covars = [system.m], [system.V]
    for _ in range(num_images - 1):
        means.append(A @ means[-1])
        covars.append(A @ covars[-1] @ A.mT + Q)
    blocks = [[None] * num_images for _ in range(num_images)]
    for i in range(num_images):
        for j in range(i, num_images):
            # cov(z_j, z_i) = A^(j - i) cov(z_i)
            cross = C @ torch.linalg.matrix_power(A, j - i) @ covars[i] @ C.mT
            noise = system.r.diag() if i == j else 0.0
            blocks[j][i], blocks[i][j] = cross + noise, cross.mT + noise
    mean = torch.cat([C @ mean + system.d for mean in means])
    return mean, torch.cat([torch.cat(row, dim=1) for row in blocks])


@torch.no_grad()
def test_the_likelihood_of_a_linear_dynamical_system_is_that_of_its_joint_gaussian():
    system, y = make_system(), torch.randn(4, 6, 2, dtype=torch.float64)
    mean, covar = joint_of(system, 6)
    expected = MultivariateNormal(mean, covar).log_prob(y.flatten(1))
    torch.testing.assert_close(system.filter(y).log_likelihood, expected, rtol=0, atol=1e-8)


@torch.no_grad()
def test_a_linear_dynamical_system_predicts_by_conditioning_its_joint_gaussian():
    system, y = make_system(), torch.randn(4, 5, 2, dtype=torch.float64)
    means, variances = system.predict(y, num_ahead=3)
    mean, covar = joint_of(system, 8)
    for num_seen in range(1, 6):
        n = 2 * num_seen
        gain = torch.linalg.solve(covar[:n, :n], covar[:n, n:]).mT
        expected = mean[n:] + (y.flatten(1)[:, :n] - mean[:n]) @ gain.mT
        variance = (covar[n:, n:] - gain @ covar[:n, n:]).diagonal()
        torch.testing.assert_close(means[:, num_seen - 1].flatten(1), expected[:, :6], rtol=0, atol=1e-8)
        torch.testing.assert_close(variances[num_seen - 1].flatten(), variance[:6], rtol=0, atol=1e-8)


def test_a_linear_dynamical_system_learns_a_rotation():
    angles = 0.7 * torch.arange(30, dtype=torch.float64) + 6 * torch.rand(20, 1, dtype=torch.float64)
    truth = torch.stack([angles.cos(), 1 + 2 * angles.cos()], dim=-1)  # velocity is not to be seen in one image
    y = truth + 0.05 * torch.randn(truth.shape, dtype=torch.float64)
    system = LinearDynamicalSystem(2, 2).initialize(y)
    before = system.filter(y).log_likelihood.sum()
    system.fit(y, num_steps=20)
    assert system.filter(y).log_likelihood.sum() > before
    means, _ = system.predict(y, num_ahead=5)
    assert (means[:, 9:-5, 4] - truth[:, 14:]).abs().mean() < 0.1


def test_a_linear_dynamical_system_refuses_what_it_cannot_do():
    y = torch.randn(4, 6, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="10 components, but there are 11 states: take a longer window"):
        LinearDynamicalSystem(11, 2).initialize(y)
    y[0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="1 missing values: fill them in"):
        make_system().filter(y)


def test_images_ahead_are_those_after_each_prefix():
    """The prediction of who has read on is right at every place, and says nothing after the end of the videos."""
    videos = bouncing_ball(num_tasks=3, num_steps=14)

    def predict(x, seen):
        places = [videos.x.flatten().tolist().index(value) for value in x.flatten()]
        assert places[0] == seen.num_points
        assert not seen.y.isnan().any()
        return Prediction.gaussian(videos.truth[:, places], torch.full_like(videos.truth[:, places], 0.5))

    prediction, truth = by_prefix(videos, predict), images_ahead(videos.truth)
    assert prediction.mean.shape == truth.shape == (3, 13, NUM_AHEAD, videos.y.shape[-1])
    inside = torch.arange(1, 14).unsqueeze(-1) + torch.arange(NUM_AHEAD) < 14
    assert torch.equal(~truth.isnan().any(-1).any(0), inside)
    torch.testing.assert_close(prediction.mean[:, inside], truth[:, inside])
    assert (prediction.stddev[:, inside] == 0.5).all()
    torch.testing.assert_close(truth[:, 2, 4], videos.truth[:, 7])


@torch.no_grad()
def test_with_cosine_kernels_ten_inducing_points_lose_nothing():
    """A cosine has a state of two dimensions: the sparse model and the Markov model have the same bound."""
    videos = bouncing_balls(2, num_steps=60, num_pixels=12, dtype=torch.float64)
    bounds = []
    for name in ("sgpvae", "markov"):
        torch.manual_seed(0)
        run = Run("balls", name, "factornet", 10, "timed")
        model = make_model(run, BALLS_PRESETS["timed"], videos, num_latents=2)
        torch.manual_seed(0)
        bounds.append(model.elbo(Context(videos.x, videos.y)))
    # the covariance of the inducing points has a jitter
    torch.testing.assert_close(*bounds, rtol=1e-6, atol=0)


@pytest.mark.parametrize("model", ["sgpvae", "markov"])
def test_a_timed_run_says_what_its_training_took_and_keeps_no_picture(model):
    outcome = execute_one(Run("balls", model, "factornet", 10 if model == "sgpvae" else 0, "timed"), smoke=True)
    assert outcome["training_steps"] == 1
    assert outcome["training_seconds"] > 0
    assert "picture" not in outcome


def test_balls_without_inducing_points_can_be_drawn():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    run = Run("balls", "markov", "factornet", 0, "tuned")
    assert draw_balls({run: execute_one(run, smoke=True)}) is not None
