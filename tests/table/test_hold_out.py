"""Which entries a fit does not see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpytorch_sgpvae.table import hold_out as rules
from gpytorch_sgpvae.table.hold_out import hold_out
from gpytorch_sgpvae.table.plan import Plan
from gpytorch_sgpvae.table.reading import TaskTable

SERIES = Plan("markov", 0, (), (), (), False, 1, 3, 2)
STATIONS = Plan("dense", 0, (1,), (), (), True, 1, 3, 2)
FIELD = Plan("dense", None, (0, 1), (), (), False, 1, 3, 2)


def make_table(num_rows=2000, num_outputs=3, num_tasks=1, missing=0.2):
    random = np.random.default_rng(0)
    time = np.arange(num_rows, dtype=float) // 4
    x = np.stack([time, np.arange(num_rows) % 4.0], 1)
    y = random.normal(size=(num_rows, num_outputs))
    y[random.random(y.shape) < missing] = np.nan
    return TaskTable(x, y, np.array_split(np.arange(num_rows), num_tasks), list(range(num_tasks)), x)


@pytest.mark.parametrize("plan", [STATIONS, FIELD])
@pytest.mark.parametrize("num_tasks", [1, 20])
def test_a_tenth_of_what_is_known_is_held_out(plan, num_tasks):
    table = make_table(num_tasks=num_tasks)
    hidden = hold_out(table, plan, 3, seed=0)
    known = ~np.isnan(table.y)
    assert not hidden[~known].any()
    assert 0.08 < hidden.sum() / known.sum() < 0.13


def longest_runs(hidden):
    edges = np.diff(np.pad(hidden.astype(int), 1))
    return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)


def test_half_of_it_are_runs_along_time():
    table = make_table(num_outputs=1, missing=0.0)
    hidden = hold_out(table, STATIONS, 1, seed=0)
    lengths = np.concatenate([longest_runs(hidden[place::4, 0]) for place in range(4)])
    assert 0.3 < lengths[lengths >= 3].sum() / lengths.sum() < 0.8
    assert lengths.max() > 10
    alone = hold_out(table, FIELD, 1, seed=0)[:, 0]
    assert longest_runs(alone).max() < 10  # where there is no time there are no runs


def test_runs_are_of_one_output_or_of_all():
    hidden = hold_out(make_table(missing=0.0), STATIONS, 3, seed=0)
    counts = hidden.sum(1)
    assert (counts == 3).sum() > 20
    assert (counts == 1).sum() > 20


def test_one_entry_of_each_output_stays_and_one_is_held_out():
    table = make_table(num_rows=40, num_outputs=3)
    table.y[:, 1:] = np.nan
    table.y[[3, 30], 1], table.y[7, 2] = 1.0, 2.0
    for seed in range(20):
        hidden = hold_out(table, STATIONS, 3, seed)
        assert hidden[:, 1].sum() == 1
        assert hidden[:, 2].sum() == 0  # the only one stays
        assert 1 <= hidden[:, 0].sum() < (~np.isnan(table.y[:, 0])).sum()


def test_covariates_are_never_held_out():
    hidden = hold_out(make_table(), STATIONS, 2, seed=0)
    assert hidden.shape == (2000, 3)
    assert hidden[:, :2].any(0).all()
    assert not hidden[:, 2].any()


def test_a_seed_makes_the_same_choice():
    table = make_table()
    first, second, other = (hold_out(table, STATIONS, 3, seed) for seed in (1, 1, 2))
    assert (first == second).all()
    assert (first != other).any()


@pytest.mark.parametrize("num_tasks", [1, 1000])
def test_of_a_large_table_some_stretches_are_enough(num_tasks):
    table = make_table(num_rows=400_000, num_outputs=1, num_tasks=num_tasks)
    rows = np.flatnonzero(hold_out(table, STATIONS, 1, seed=0).any(1))
    most = rules.SHARE * rules.MOST_ROWS[STATIONS.kind]
    assert 0.5 * most < len(rows) < 1.5 * most
    assert len(np.unique(rows // 1000)) < 100  # together, so that a validation looks at few of the others
    assert np.ptp(rows) > 200_000  # from everywhere


def test_other_entries_are_held_out_than_score_hides_by_the_same_seed():
    table = make_table()
    hidden = hold_out(table, replace(STATIONS, kind="dense", time=None), 3, seed=0)
    known = ~np.isnan(table.y)
    scored = known & (np.random.default_rng(0).random(known.shape) < rules.SHARE)
    assert (hidden & scored).sum() < 0.3 * hidden.sum()
