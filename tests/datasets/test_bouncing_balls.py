from __future__ import annotations

import pytest
import torch

from gpytorch_sgpvae.datasets import bouncing_ball, bouncing_balls, estimate_periods


def make(**kwargs):
    return bouncing_balls(4, 200, 30, generator=torch.Generator().manual_seed(0), **kwargs)


@pytest.mark.parametrize(("generate", "num_balls"), [(bouncing_ball, 1), (bouncing_balls, 2)])
def test_shapes_and_reproducibility(generate, num_balls, dtype):
    def make(**kwargs):
        return generate(4, 200, 30, generator=torch.Generator().manual_seed(0), **kwargs)

    balls, again = make(dtype=dtype), make(dtype=dtype)
    assert balls.x.shape == (200, 1)
    assert balls.y.shape == balls.truth.shape == (4, 200, 30)
    assert balls.positions.shape == (4, 200, num_balls)
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


def test_without_arguments_they_are_the_papers_sets():
    one, two = bouncing_ball(), bouncing_balls()
    assert one.x.shape == (50, 1)
    assert one.y.shape == (80, 50, 10)
    assert not one.y.isnan().any()
    assert two.x.shape == (500, 1)
    assert two.y.shape == (80, 500, 100)
    assert two.y.isnan().float().mean() == pytest.approx(0.25, abs=0.01)


def test_one_ball_bounces_at_constant_speed_and_is_where_its_positions_say():
    ball = bouncing_ball(4, 200, 30, period=20.0, noise_stddev=0.0, dtype=torch.float64)
    torch.testing.assert_close(ball.positions[:, 20:], ball.positions[:, :-20])
    speed = ball.positions[..., 0].diff(dim=-1).abs()
    assert (speed - speed.median()).abs().lt(1e-9).double().mean() > 0.85  # but for two steps of twenty
    heights = (torch.arange(30) + 0.5) / 30
    nearest = (heights - ball.positions).abs().argmin(-1)
    assert torch.equal(ball.y.argmax(-1), nearest)
    assert ball.y.max() <= 1


def test_the_periods_are_found_through_noise_and_holes():
    ball, balls = bouncing_ball(20, 100, period=13.7), bouncing_balls(20, num_pixels=20, periods=(25.3, 17.1))
    assert estimate_periods(ball.y, 1).tolist() == pytest.approx([13.7], rel=0.01)
    assert estimate_periods(balls.y, 2).tolist() == pytest.approx([17.1, 25.3], rel=0.01)
