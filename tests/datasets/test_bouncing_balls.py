from __future__ import annotations

import pytest
import torch

from gpytorch_sgpvae.datasets import two_bouncing_balls


def make(**kwargs):
    return two_bouncing_balls(4, 200, 30, generator=torch.Generator().manual_seed(0), **kwargs)


def test_shapes_and_reproducibility(dtype):
    balls, again = make(dtype=dtype), make(dtype=dtype)
    assert balls.x.shape == (200, 1)
    assert balls.y.shape == balls.truth.shape == (4, 200, 30)
    assert balls.positions.shape == (4, 200, 2)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(balls, again, strict=True))
    assert {tensor.dtype for tensor in balls} == {dtype}


@pytest.mark.parametrize("missing", [0.0, 0.25, 1.0])
def test_noise_and_holes_are_as_large_as_asked_for(missing):
    balls = make(missing=missing, noise_stddev=0.1)
    assert balls.y.isnan().float().mean() == pytest.approx(missing, abs=0.02)
    residuals = (balls.y - balls.truth)[~balls.y.isnan()]
    assert missing == 1.0 or residuals.std() == pytest.approx(0.1, abs=0.01)
    assert not balls.truth.isnan().any()


def test_one_ball_has_constant_speed_and_the_other_constant_acceleration_between_bounces():
    positions = make(periods=(41.3, 57.7), dtype=torch.float64).positions
    speed = positions[..., 0].diff(dim=-1).abs()
    assert (speed - speed.median()).abs().lt(1e-9).double().mean() > 0.9
    acceleration = positions[..., 1].diff(n=2, dim=-1)
    assert (acceleration - acceleration.median()).abs().lt(1e-9).double().mean() > 0.9
    assert acceleration.median() < 0


def test_motions_repeat_after_their_periods_and_start_anywhere():
    positions = make(periods=(20.0, 50.0), dtype=torch.float64).positions
    torch.testing.assert_close(positions[:, 20:, 0], positions[:, :-20, 0])
    torch.testing.assert_close(positions[:, 50:, 1], positions[:, :-50, 1])
    assert len(positions[:, 0, 0].unique()) == 4


def test_the_balls_are_where_the_positions_say():
    balls = make(brightness=(1.0, 1.0), background=0.0, dtype=torch.float64)
    heights = (torch.arange(30) + 0.5) / 30
    nearest = (heights - balls.positions[..., :1]).abs().argmin(-1)
    assert (balls.truth.gather(-1, nearest.unsqueeze(-1)) > 0.9).all()
