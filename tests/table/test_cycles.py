"""Cycles are found where there are some, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from gpytorch_sgpvae.table.cycles import NUM_STRETCHES, Cycles

HOUR = 1 / 24


def fit(times, y, is_date=True):
    y = np.asarray(y, float).reshape(len(times), -1)
    return Cycles.fit(times, y, np.ones(y.shape[1], bool), is_date)


def red_noise(random, number, persistence):
    noise = random.normal(size=number)
    for i in range(1, number):
        noise[i] += persistence * noise[i - 1]
    return noise


@pytest.mark.parametrize("seed", range(3))
def test_a_daily_cycle_is_found_in_noise_with_holes(seed):
    random = np.random.default_rng(seed)
    times = HOUR * np.arange(40 * 24)
    truth = np.sin(2 * np.pi * times) + 0.4 * np.cos(4 * np.pi * times)
    y = truth + random.normal(size=len(times))
    y[random.random(len(y)) < 0.3] = np.nan
    y[200:300] = np.nan
    found = fit(times, y)
    assert found.periods == [1.0]
    assert np.corrcoef(found.at(times)[:, 0], truth)[0, 1] > 0.95


def test_a_daily_cycle_is_found_at_irregular_times():
    random = np.random.default_rng(0)
    times = np.sort(random.uniform(0, 60, 1500))
    found = fit(times, np.sin(2 * np.pi * times) + 0.5 * random.normal(size=len(times)))
    assert found.periods == [1.0]
    later = np.linspace(60, 62, 50)
    np.testing.assert_allclose(found.at(later)[:, 0], np.sin(2 * np.pi * later), atol=0.2)


def test_any_profile_of_a_week_is_found_in_daily_values():
    random = np.random.default_rng(0)
    days = np.arange(210.0)
    truth = np.array([1.0, 0.9, 0.9, 1.0, 1.3, 1.8, 0.3])[days.astype(int) % 7]
    found = fit(days, np.where(random.random(len(days)) < 0.3, np.nan, truth + 0.1 * random.normal(size=len(days))))
    assert (found.periods, found.harmonics) == ([7.0], [3])
    assert np.corrcoef(found.at(days)[:, 0], truth)[0, 1] > 0.98


@pytest.mark.parametrize("persistence", [0.0, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("holes", [0.0, 0.3])
def test_noise_has_no_cycles(persistence, holes):
    random = np.random.default_rng(0)
    times = HOUR * np.arange(1000)
    for _ in range(10):
        y = red_noise(random, len(times), persistence)
        y[random.random(len(y)) < holes] = np.nan
        assert not fit(times, y).periods


@pytest.mark.parametrize("every", [2, 3, 4, 6])
def test_regular_holes_do_not_mirror_slow_changes_as_cycles(every):
    times = np.arange(120.0)
    y = np.sin(times / 5)
    y[::every] = np.nan
    assert not fit(times, np.stack([y, np.cos(times / 5)], 1), is_date=False).periods


def test_a_year_is_found_in_daily_values_of_three():
    random = np.random.default_rng(0)
    times = np.arange(3 * 365.0)
    truth = 10 * np.cos(2 * np.pi * (times - 20) / 365.25)
    found = fit(times, truth + 4 * red_noise(random, len(times), 0.5))
    assert found.periods == [365.25]
    assert np.corrcoef(found.at(times)[:, 0], truth)[0, 1] > 0.97


def test_days_differ_from_season_to_season():
    times = np.arange(0, 2 * 365.25, 0.125)
    truth = (1.5 + np.cos(2 * np.pi * times / 365.25)) * np.sin(2 * np.pi * times)
    found = fit(times, truth + 0.3 * np.random.default_rng(0).normal(size=len(times)))
    assert set(found.periods) == {1.0, 365.25}
    assert np.abs(found.at(times)[:, 0] - truth).max() < 0.2


def test_tides_in_hours_are_found_among_numbers():
    random = np.random.default_rng(0)
    times = np.arange(24.0 * 60)
    found = fit(times, np.cos(2 * np.pi * times / 12.42) + 0.5 * random.normal(size=len(times)), is_date=False)
    assert found.periods[0] == pytest.approx(12.42, rel=0.005)


def test_only_outputs_that_have_a_cycle_and_may_have_one_get_it():
    random = np.random.default_rng(0)
    times = HOUR * np.arange(40 * 24)
    wave = np.sin(2 * np.pi * times)
    y = np.stack([wave, random.normal(size=len(times)), wave], 1)
    found = Cycles.fit(times, y, np.array([True, True, False]), is_date=True).at(times)
    assert found[:, 0].std() > 0.5
    assert not found[:, 1:].any()


def test_short_series_have_none():
    assert not fit(np.arange(9.0), np.arange(9.0) % 3).periods
    assert Cycles.none(2).at(np.arange(3.0)).shape == (3, 2)


@pytest.mark.parametrize("trend", [lambda years: 0.3 * years, lambda years: 0.03 * years**2 - np.sqrt(years)])
def test_a_yearly_cycle_is_found_beside_a_trend_that_has_nearly_all_of_the_variance(trend):
    random = np.random.default_rng(0)
    weeks = 7.0 * np.arange(20 * 52)
    cycle = 0.15 * np.sin(2 * np.pi * weeks / 365.25)
    y = trend(weeks / 365.25) + cycle + 0.05 * random.normal(size=len(weeks))
    y[300:340] = np.nan
    y[random.random(len(y)) < 0.1] = np.nan
    assert np.var(cycle) < 0.02 * np.nanvar(y)
    found = fit(weeks, y)
    assert found.periods[0] == 365.25
    np.testing.assert_allclose(found.at(weeks)[:, 0], cycle, atol=0.03)


def test_a_trend_is_no_cycle():
    random = np.random.default_rng(0)
    months = np.arange(240.0)
    for _ in range(5):
        assert not fit(months, np.exp(months / 100) + 0.02 * random.normal(size=240), is_date=False).periods


def test_an_output_known_in_every_other_stretch_only_has_no_cycles():
    times = np.arange(40.0)
    is_odd = np.floor(times / (39 / NUM_STRETCHES)) % 2 == 1
    assert fit(times, np.where(is_odd, np.sin(times), np.nan), is_date=False).periods == []
