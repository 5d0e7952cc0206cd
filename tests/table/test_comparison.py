"""What simpler ways would do with the same holes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_sgpvae.likelihoods import Prediction
from gpytorch_sgpvae.table import SGPVAEImputer, TableWarning, fitting, judgment
from gpytorch_sgpvae.table.comparison import FEWEST_ENTRIES, compare, describe, rivals_ahead
from gpytorch_sgpvae.table.families import FAMILIES
from gpytorch_sgpvae.table.outputs import Outputs


def make_comparison(model, n=100, **rivals):
    """Errors of some outputs, by the name of each way."""
    scores = {("n", ""): n, ("rmse", "model"): model} | {("rmse", name): values for name, values in rivals.items()}
    frame = pd.DataFrame(scores, index=pd.Index(["a", "b"], name="output"))
    frame.columns = pd.MultiIndex.from_tuples(frame.columns, names=["score", "method"])
    return frame


class TestRivals:
    def test_those_that_are_ahead_are_named_with_their_outputs(self):
        text = rivals_ahead(make_comparison([0.5, 0.5], mean=[1.0, 0.9], interpolation=[0.3, 0.7], boosting=[0.4, 0.4]))
        assert "interpolation for a; boosting for a, b." in text
        assert "mean" not in text

    def test_nothing_is_told_if_there_are_none_or_if_they_are_as_good(self):
        assert rivals_ahead(make_comparison([0.5, 0.5], mean=[1.0, 0.6], boosting=[0.499, 0.5])) is None
        assert rivals_ahead(pd.DataFrame()) is None

    def test_a_few_entries_tell_no_way_from_another(self):
        few = [FEWEST_ENTRIES - 1, FEWEST_ENTRIES]
        assert "mean for b." in rivals_ahead(make_comparison([0.5, 0.5], n=few, mean=[0.1, 0.1]))


def compared(mean):
    """A straight line, of which a model predicts something at held-out places."""
    time = np.arange(100.0)
    rows = np.arange(1, 99, 3)
    frame = pd.DataFrame({"time": time, "y": 3 * time})
    truth = frame["y"].to_numpy()[rows, None].copy()
    frame.loc[rows, "y"] = np.nan
    prediction = Prediction.gaussian(torch.tensor(truth) + mean, torch.full((len(rows), 1), 10.0).double())
    return compare(Outputs([FAMILIES["real"]("y")]), prediction, frame, rows, truth, ["time"], None, 0)


def test_errors_are_in_standard_deviations_of_the_output():
    result = compared(mean=5.0)
    scale = np.std(3 * np.arange(100.0))
    assert result.loc["y", ("n", "")] == 33
    assert result.loc["y", ("rmse", "model")] == pytest.approx(5 / scale)
    assert result.loc["y", ("rmse", "mean")] == pytest.approx(1.0, abs=0.05)
    assert result.loc["y", ("rmse", "interpolation")] < 1e-6
    assert result.loc["y", ("coverage", "model")] == 1
    assert "interpolation for y" in rivals_ahead(result)
    assert "rmse boosting" in describe(result)


def test_numbers_of_entries_are_shown_whole_with_their_sum():
    text = describe(make_comparison([0.5, 0.25], n=[3, 4], mean=[1.0, 1.0]))
    assert text.splitlines()[-1].split() == ["mean", "7", "0.375", "1.000"]


def test_labels_are_not_compared():
    outputs = Outputs([FAMILIES["category"]("sky", levels=("a", "b", "c"))])
    assert compare(outputs, None, pd.DataFrame(), np.zeros(0), np.zeros((0, 1)), [], None, 0).empty
    assert "no outputs with numbers" in describe(pd.DataFrame())


@pytest.fixture
def waves():
    random = np.random.default_rng(0)
    time = np.arange(160.0)
    table = pd.DataFrame({"time": time, "y": np.sin(time / 4), "z": random.normal(size=160)})
    return table.mask(random.random(table.shape) < [0.0, 0.1, 0.1])


def fit(table, **options):
    return SGPVAEImputer(["time"], ["y", "z"], max_epochs=1, progress=False, **options).fit(table)


def test_all_ways_see_the_same_holes_and_none_sees_what_was_held_out(waves, monkeypatch):
    calls = []
    monkeypatch.setattr(fitting, "rivals_ahead", lambda comparison: None)
    monkeypatch.setattr(judgment, "compare", lambda *args: calls.append(args) or compare(*args))
    imputer = fit(waves)
    ((_, prediction, frame, rows, truth, *_),) = calls
    assert prediction.mean.shape == truth.shape == (len(rows), 2)
    held_out = ~np.isnan(truth)
    assert held_out.any(0).all()
    values = frame[["y", "z"]].to_numpy()
    assert np.isnan(values[rows][held_out]).all()
    np.testing.assert_allclose(waves[["y", "z"]].to_numpy()[rows][held_out], truth[held_out])
    known = waves[["y", "z"]].notna().to_numpy()
    assert known.sum() == (~np.isnan(values)).sum() + held_out.sum()
    assert imputer.comparison_["n", ""].tolist() == held_out.sum(0).tolist()
    assert {"model", "mean", "interpolation", "boosting"} == set(imputer.comparison_["rmse"].columns)


def test_the_owner_of_a_table_is_told_of_simpler_ways_that_are_better(waves, monkeypatch):
    monkeypatch.setattr("gpytorch_sgpvae.table.comparison.FEWEST_ENTRIES", 1)
    monkeypatch.setattr(
        judgment,
        "compare",
        lambda *args: make_comparison([0.5, 0.5], mean=[0.6, 0.4]).rename(index={"a": "y", "b": "z"}),
    )
    with pytest.warns(TableWarning, match=r"better by simpler ways than by this model: mean for z\."):
        fit(waves)


def test_nothing_is_compared_if_nobody_wants_it(waves, monkeypatch):
    monkeypatch.setattr(judgment, "compare", None)
    assert fit(waves, compare=False).comparison_.empty
