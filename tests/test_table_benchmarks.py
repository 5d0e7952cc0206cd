"""The tables of the study of imputers, their scores, and what fills them; see also `test_benchmarks.py`."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import beijing
from benchmarks.imputers import IMPUTERS, OURS, WIDE, boosting, kriging, wide_ridge
from benchmarks.kriging import krige
from benchmarks.studies import tables
from benchmarks.tables import TABLES, Problem, hidden_entries
from gpytorch_sgpvae import Prediction

NAN = float("nan")


@pytest.fixture
def two_places():
    """Two stations that measure the same; one is silent for twenty hours, and asked for `a` alone."""
    hours = pd.date_range("2024-01-01", periods=100, freq="h")
    shared = np.random.RandomState(0).standard_normal(100).cumsum()
    table = pd.DataFrame({"lat": np.repeat([0.0, 1.0], 100), "date": np.tile(hours, 2), "a": np.tile(shared, 2)})
    table["b"] = table["a"] + 1
    hidden = np.zeros((200, 2), bool)
    hidden[40:60, 0] = True
    seen = table.copy()
    seen[["a", "b"]] = table[["a", "b"]].mask(hidden)
    seen.loc[40:59, "b"] = NAN
    truth = table[["a", "b"]].where(hidden).to_numpy()
    return Problem(seen, seen, truth, ["lat", "date"], ["a", "b"], None, ["lat"], "date", 20)


def _outcome(error):
    return {
        "seconds": 2.0,
        "rmse_over_sd": error,
        "rmse": {"all": 2 * error, "wind": 7.0},
        "crps": {"all": 0.1, "wind": 0.1},
    }


def test_the_table_of_imputers_has_the_means_over_seeds_and_marks_the_best():
    first, *others = IMPUTERS
    cells = {first: [_outcome(0.2), _outcome(0.4)]} | {name: [_outcome(0.5)] for name in others}
    text = tables.problem_table(cells, list(IMPUTERS))
    assert f"| {first} | **0.300** | 0.600 | 0.100 | - | 7 | 2 s | 2 |" in text
    assert f"| {others[-1]} | 0.500 | 1.000 | 0.100 | - | 7 | 2 s | 1 |" in text
    del cells[others[-1]]
    unfinished = tables.problem_table(cells, list(IMPUTERS))
    assert "**" not in unfinished
    assert f"| {others[-1]} | not run yet |" in unfinished
    assert "**" in tables.problem_table(cells, list(cells))


def test_a_wide_table_is_asked_for_only_where_places_come_again():
    runs = tables.planned(["AMeDAS", "EEG", "Beijing station", "twelve stations"], range(1))
    assert {run.experiment for run in runs if run.model == WIDE} == {"AMeDAS", "twelve stations"}
    assert {run.experiment for run in runs if run.model == OURS} == {run.experiment for run in runs}


@pytest.mark.parametrize("hide", ["10 %", "50 %", "blocks"])
def test_hidden_entries_of_a_table_are_what_its_truth_has(hide):
    problem = TABLES["generated"](hide, 0)
    seen = problem.test[problem.outputs].to_numpy()
    hidden = np.isfinite(problem.truth)
    assert hidden.any()
    assert np.isnan(seen[hidden]).all()
    if hide == "blocks":
        blocks = hidden_entries(300, 2, hide, 0).reshape(-1, 3, 2)
        assert (blocks.all((1, 2)) == blocks.any((1, 2))).all()


def test_runs_hide_all_pollutants_for_a_day_and_outages_all_outputs_of_a_station():
    runs = beijing.runs_of_pollutants(5000, 0)
    assert (runs[:, :6].all(1) == runs[:, :6].any(1)).all()
    assert not runs[:, 6:].any()
    assert 0 < runs[:, 0].sum() <= 60 * 24
    assert not np.array_equal(runs, beijing.runs_of_pollutants(5000, 1))
    outages = beijing.outages(12 * 1488, 0)
    assert (outages.all(1) == outages.any(1)).all()
    starts = np.diff(outages.reshape(12, 1488, 10)[:, :, 0].astype(int), axis=1) > 0
    assert 12 < starts.sum() <= 75


def test_scores_are_of_the_outputs_of_which_something_is_hidden(two_places):
    scores = tables.score(two_places.truth + 2.0, two_places)
    relative = 2.0 / two_places.scale[0]
    assert scores["rmse_over_sd"] == pytest.approx(relative)
    assert scores["rmse"] == pytest.approx({"all": relative, "a": 2.0})
    assert scores["crps"] == pytest.approx({"all": relative, "a": 2.0})
    gaussian = Prediction.gaussian(torch.tensor(two_places.truth), torch.ones(200, 2).double())
    assert tables.score(gaussian, two_places)["coverage"] == {"all": 1.0, "a": 1.0}
    missing = np.where(np.arange(200)[:, None] == 50, NAN, two_places.truth)
    assert math.isnan(tables.score(missing, two_places)["rmse_over_sd"])


@pytest.mark.parametrize(("imputer", "bound"), [(wide_ridge, 0.9), (boosting, 0.8), (kriging, 0.8)])
def test_places_tell_of_each_other(two_places, imputer, bound):
    interpolated = tables.score(IMPUTERS["linear interpolation"](two_places, 0, False), two_places)
    filled = tables.score(imputer(two_places, 0, imputer is kriging), two_places)
    assert filled["rmse_over_sd"] < bound * interpolated["rmse_over_sd"]


def test_boosting_fills_a_test_that_is_not_what_it_learns_from(two_places):
    frame, train = two_places.test, two_places.test.assign(trial=0)
    train["b"] = train["b"].fillna(0.0)
    test = train[:7].assign(a=NAN)  # nothing is known of these but what the training table tells
    problem = Problem(train, test, test[["a", "b"]].to_numpy(), ["date"], ["a", "b"], "trial", ["trial"], "date", 7)
    train.loc[40:59, "a"] = frame["b"].fillna(0.0)[40:60]
    filled = boosting(problem, 0, False)
    assert filled.shape == (7, 2)
    assert np.abs(filled[:, 0] - (test["b"] - 1)).max() < train["a"].std()


def test_kriging_is_between_values_where_they_are_close_and_the_mean_far_away():
    x = np.concatenate([np.arange(50.0), [20.5, 1000.0]])[:, None]
    y = np.concatenate([10 + np.sin(x[:50, 0] / 5), [NAN, NAN]])[:, None]
    prediction = krige(x, y, np.ones(1), np.zeros(52, int), seed=0, quick=False)
    mean, stddev = prediction.mean[:, 0], prediction.stddev[:, 0]
    assert torch.equal(mean[:50], torch.tensor(y[:50, 0]))
    assert abs(mean[50] - 10 - math.sin(20.5 / 5)) < 0.1
    assert abs(mean[51] - 10) < 1
    assert stddev[50] < 0.3 < 0.5 < stddev[51]


def test_kriging_keeps_groups_apart():
    x, groups = np.tile(np.arange(30.0), 2)[:, None], np.repeat([0, 1], 30)
    y = np.concatenate([np.full(30, 5.0) + np.sin(np.arange(30)), np.full(30, -5.0)])[:, None]
    y[10] = y[40] = NAN
    mean = krige(x, y, np.ones(1), groups, seed=0, quick=True).mean[:, 0]
    assert mean[10] > 0 > mean[40]
