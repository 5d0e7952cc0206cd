from __future__ import annotations

import numpy as np
import pytest
import torch

from gpytorch_sgpvae.datasets.missingness import blackouts, columns_of, hold_out, random_points


def draw(seed=0, shape=(256, 64), length=16, probability=0.5, **kwargs):
    return blackouts(torch.zeros(shape), length, probability, np.random.RandomState(seed), **kwargs)


def test_every_known_entry_is_either_seen_or_held_out():
    y = torch.randn(40, 3)
    y[:5] = torch.nan
    seen, truth = hold_out(y, torch.rand(40, 3) < 0.5)
    assert torch.equal(seen.isnan() ^ truth.isnan(), ~y.isnan())
    assert torch.equal(torch.where(seen.isnan(), truth, seen).nan_to_num(), y.nan_to_num())


def test_blackouts_are_the_same_for_the_same_seed_and_others_for_another():
    assert torch.equal(draw(seed=3), draw(seed=3))
    assert not torch.equal(draw(seed=3), draw(seed=4))


@pytest.mark.parametrize(("length", "simultaneous"), [(16, False), (4, True)])
@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1.0])
def test_whole_windows_are_gone_with_the_probability_asked_for(length, simultaneous, probability):
    hidden = draw(shape=(4096, 64), length=length, probability=probability, simultaneous=simultaneous)
    windows = hidden.view(-1, length, 64)
    assert torch.equal(windows.any(1), windows.all(1))
    tolerance = 4 * 0.5 / np.sqrt(windows.shape[0] * (1 if simultaneous else 64))
    assert hidden.double().mean() == pytest.approx(probability, abs=tolerance if 0 < probability < 1 else 0)


def test_electrodes_fail_together_or_each_on_its_own():
    together, alone = draw(simultaneous=True), draw()
    assert torch.equal(together.any(-1), together.all(-1))
    assert not torch.equal(alone.any(-1), alone.all(-1))


def test_a_last_window_may_be_shorter():
    assert draw(shape=(10, 2), length=4).shape == (10, 2)


def test_random_points_are_numpys_choice():
    """The stream of random numbers of the weather experiment's authors, who drew from a list of rows."""
    rows = list(range(100, 1185))
    drawn = random_points(len(rows), 0.25, np.random.RandomState(1))
    expected = np.random.RandomState(1).choice(rows, len(rows) // 4, replace=False)
    assert sorted(expected - 100) == drawn.nonzero().squeeze(-1).tolist()


def test_columns_are_found_by_name():
    assert columns_of(["Ni", "Zn", "Cd"], ["Cd", "Ni"]).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw(probability=1.5), "Expected a probability between 0 and 1, got 1.5"),
        (lambda: draw(length=0), "at least 1 point, got 0"),
        (lambda: random_points(5, -0.5, np.random.RandomState(0)), "Expected a fraction between 0 and 1, got -0.5"),
        (lambda: columns_of(["Ni", "Zn"], ["Cd"]), "Cd cannot be held out: the outputs are Ni, Zn"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
