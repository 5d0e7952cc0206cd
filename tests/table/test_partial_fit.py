"""A fit that goes on with further tasks."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import OUTPUTS, make_imputer, make_table

from gpytorch_sgpvae.table import SGPVAEImputer, TableError
from gpytorch_sgpvae.table.calibration import FEWEST_ENTRIES, Calibration
from gpytorch_sgpvae.table.learning import CONTINUED_STEPS, NUM_STEPS

NEW_AND_OLD = ((1.0, "temp"), (2.0, "rain"))


def parameters_of(imputer):
    return torch.cat([value.detach().flatten() for value in imputer.model_.parameters()])


def test_the_first_one_is_a_fit(table):
    first = make_imputer(max_epochs=1).partial_fit(table)
    pd.testing.assert_frame_equal(first.transform(table), make_imputer(max_epochs=1).fit(table).transform(table))


def test_it_goes_on_from_the_parameters_and_keeps_columns_units_and_trend(imputer):
    new = make_table(num_tasks=4, seed=7).replace({"site": {f"site {i}": f"new {i}" for i in range(4)}})
    again = copy.deepcopy(imputer)
    before = parameters_of(again)
    first = again.fitted_
    again.set_params(max_epochs=2).partial_fit(new)
    after = parameters_of(again)
    assert 0 < (after - before).abs().max() < 1
    assert again.fitted_.reader is first.reader
    assert again.fitted_.trend is first.trend
    assert torch.equal(parameters_of(imputer), before)
    assert again.history_["val_score"].min() <= again.history_["val_score"].iloc[0]
    assert again.transform(new)[OUTPUTS].notna().all(axis=None)


def test_it_never_ends_with_parameters_that_predict_held_out_entries_worse_than_before(imputer, monkeypatch):
    monkeypatch.setattr("gpytorch_sgpvae.table.learning.LEARNING_RATE", 10.0)  # so large that every step does harm
    again = copy.deepcopy(imputer)
    before = parameters_of(again)
    again.set_params(max_epochs=1).partial_fit(make_table(seed=7))
    assert torch.equal(parameters_of(again), before)


@pytest.mark.slow
def test_it_learns_what_is_new_in_a_quarter_of_the_steps():
    def make(seed, noise, num_tasks=4):
        random, time = np.random.default_rng(seed), np.arange(40.0)
        waves = [np.sin(time / 4 + random.uniform(0, 6)) for _ in range(num_tasks)]
        table = pd.concat([pd.DataFrame({"t": time, "task": f"{seed}-{i}", "y": w}) for i, w in enumerate(waves)])
        table["y"] += noise * random.normal(size=len(table))
        return table.reset_index(drop=True)

    imputer = SGPVAEImputer(["t"], ["y"], "task", compare=False, progress=False).fit(make(0, 0.02))
    unseen = make(3, 0.5)
    before = imputer.scores(unseen, 0.3)["nll"]["y"]
    imputer.partial_fit(make(2, 0.5))
    assert imputer.scores(unseen, 0.3)["nll"]["y"] < before - 0.5
    assert imputer.history_["step"].max() <= CONTINUED_STEPS * NUM_STEPS["markov"]


def test_an_output_that_the_new_table_lacks_keeps_its_intervals(imputer):
    again = copy.deepcopy(imputer).set_params(max_epochs=1).partial_fit(make_table(seed=7).assign(temp=np.nan))
    old, calibration = imputer.fitted_.calibration, again.fitted_.calibration
    np.testing.assert_array_equal(calibration.factors[:, 0], old.factors[:, 0])
    assert calibration.marginal[0] == old.marginal[0]


def test_only_outputs_with_many_new_entries_are_calibrated_anew(imputer):
    new, old = (Calibration(np.full((2, 5), v), np.full((2, 5), v), np.full(5, v), (name,)) for v, name in NEW_AND_OLD)
    counts = np.array([FEWEST_ENTRIES, FEWEST_ENTRIES - 1, 0, 100, 0])
    both = new.or_earlier(old, counts, imputer.outputs_)
    for part in (*both.anchors, *both.factors, both.marginal):
        assert part.tolist() == [1, 2, 2, 1, 2]
    assert both.failed == ("temp", "rain")  # temp is judged by the new entries, and rain by the old ones


def test_other_columns_are_refused_and_change_nothing(imputer, table):
    again = copy.deepcopy(imputer)
    before = parameters_of(again)
    with pytest.raises(TableError, match="There is no column 'rain'"):
        again.partial_fit(table.drop(columns="rain"))
    assert torch.equal(parameters_of(again), before)
