from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table.baselines import fill_by_interpolation
from gpytorch_sgpvae.table.boosting import fill_by_boosting

NAN = float("nan")
HOURS = pd.date_range("2024-01-01", periods=480, freq="h")


def _rmse(filled: pd.DataFrame, truth: np.ndarray, hidden: np.ndarray) -> float:
    return float(np.sqrt(np.mean((filled["y"].to_numpy() - truth)[hidden] ** 2)))


@pytest.fixture
def daily():
    """A daily wave with a run of a day hidden."""
    truth = np.sin(2 * np.pi * HOURS.hour.to_numpy() / 24)
    frame = pd.DataFrame({"date": HOURS, "y": truth, "z": np.cos(np.arange(480))})
    hidden = np.zeros(480, bool)
    hidden[200:224] = True
    frame.loc[hidden, "y"] = NAN
    return frame, truth, hidden


@pytest.fixture
def places():
    """Four stations on a line, which share what happens; outages of a day hide all of one."""
    random = np.random.RandomState(0)
    shared = random.standard_normal(480).cumsum()
    truth = np.stack([shared + 0.1 * random.standard_normal(480) + place for place in range(4)])
    hidden = np.zeros((4, 480), bool)
    for place, start in enumerate((100, 200, 300, 400)):
        hidden[place, start : start + 24] = True
    frame = pd.DataFrame({"lon": np.repeat(range(4), 480), "date": np.tile(HOURS, 4), "y": truth.reshape(-1)})
    frame.loc[hidden.reshape(-1), "y"] = NAN
    return frame.sample(frac=1, random_state=0), truth.reshape(-1), hidden.reshape(-1)


def test_long_runs_of_a_daily_wave_are_filled_far_better_than_by_interpolation(daily):
    frame, truth, hidden = daily
    interpolated = _rmse(fill_by_interpolation(frame, ["date"], ["y"]), truth, hidden)
    assert _rmse(fill_by_boosting(frame, ["date"], ["y"]), truth, hidden) < 0.2 * interpolated


def test_outages_are_filled_from_the_other_places(places):
    frame, truth, hidden = places
    filled = fill_by_boosting(frame, ["lon", "date"], ["y"])
    assert filled.index.equals(frame.index)
    interpolated = fill_by_interpolation(frame, ["lon", "date"], ["y"]).sort_index()
    assert _rmse(filled.sort_index(), truth, hidden) < 0.5 * _rmse(interpolated, truth, hidden)


def test_the_other_outputs_of_a_row_tell_of_a_hole():
    random = np.random.RandomState(0)
    other = random.standard_normal(480)
    frame = pd.DataFrame({"t": np.arange(480), "y": 3 * other, "other": other})
    hidden = random.random_sample(480) < 0.2
    truth = frame["y"].to_numpy(copy=True)
    frame.loc[hidden, "y"] = NAN
    filled = fill_by_boosting(frame, ["t"], ["y", "other"])
    assert _rmse(filled, truth, hidden) < 0.2 * truth.std()
    assert filled["other"].equals(frame["other"])


def test_without_a_time_the_closest_rows_tell_of_a_hole():
    x = np.random.RandomState(0).random_sample((600, 2))
    truth = np.sin(6 * x[:, 0]) + np.cos(6 * x[:, 1])
    frame = pd.DataFrame({"x1": x[:, 0], "x2": x[:, 1], "y": truth})
    hidden = np.arange(600) % 5 == 0
    frame.loc[hidden, "y"] = NAN
    assert _rmse(fill_by_boosting(frame, ["x1", "x2"], ["y"]), truth, hidden) < 0.15 * truth.std()


def test_known_entries_and_everything_else_stay_as_they_are(daily):
    frame, _, hidden = daily
    before = frame.copy()
    filled = fill_by_boosting(frame, ["date"], ["y", "z"])
    assert frame.equals(before)
    assert filled[~hidden].equals(frame[~hidden])
    assert filled["y"].notna().all()


def test_one_seed_gives_one_answer(daily):
    frame = daily[0][150:300]
    first, second = (fill_by_boosting(frame, ["date"], ["y"], seed=3) for _ in range(2))
    assert first.equals(second)
    assert not first.equals(fill_by_boosting(frame, ["date"], ["y"], seed=4))


def test_only_wanted_holes_are_filled_by_trees(daily):
    frame, truth, hidden = daily
    frame.loc[10:14, "y"] = NAN
    interpolated = fill_by_interpolation(frame, ["date"], ["y"])
    filled = fill_by_boosting(frame, ["date"], ["y"], wanted=hidden[:, None])
    assert filled["y"][10:15].equals(interpolated["y"][10:15])
    assert _rmse(filled, truth, hidden) < 0.2 * _rmse(interpolated, truth, hidden)


def test_flags_become_numbers_between_which_a_hole_lies():
    flags = pd.array([*[True, False] * 30, None], dtype="boolean")
    filled = fill_by_boosting(pd.DataFrame({"t": range(61), "y": flags}), ["t"], ["y"])
    assert filled["y"].dtype == float
    assert 0 <= filled["y"].iloc[-1] <= 1


def _odd_columns() -> dict[str, list]:
    n = 60
    return {
        "text": ["a", "b", "c"] * 20,
        "text with gaps": ["a", None, "c"] * 20,
        "flags": [True, False] * 30,
        "constant": [1.0] * n,
        "missing": [NAN] * n,
        "some missing": [1.0, NAN, 2.0] * 20,
        "infinite": [np.inf, 1.0] * 30,
        "huge": list(1e300 * np.arange(n)),
        "text dates": [f"2024-01-{1 + i % 28:02d}" for i in range(n)],
        "half dates": ["2024-01-01", "2024-01-02", "soon"] * 20,
        "late dates": [pd.Timestamp("2261-01-01") + pd.Timedelta(days=i) for i in range(n)],
        "missing dates": [pd.NaT, pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-02")] * 20,
        "mixed": [1, "a", None, 2.5] * 15,
    }


@pytest.mark.parametrize("odd", list(_odd_columns()))
@pytest.mark.parametrize("beside", [[], ["t"], ["date"]])
def test_any_input_is_read(odd, beside):
    frame = pd.DataFrame({"odd": _odd_columns()[odd], "t": range(60), "date": HOURS[:60]})
    frame["y"] = np.where(np.arange(60) % 7, np.arange(60.0), NAN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filled = fill_by_boosting(frame, ["odd", *beside], ["y"])
    assert np.isfinite(filled["y"]).all()


@pytest.mark.parametrize("odd", ["text", "some missing", "missing dates"])
def test_any_task_is_read(odd):
    frame = pd.DataFrame({"odd": _odd_columns()[odd], "t": range(60)})
    frame["y"] = np.where(np.arange(60) % 7, np.arange(60.0), NAN)
    assert np.isfinite(fill_by_boosting(frame, ["t"], ["y"], "odd")["y"]).all()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([NAN] * 60, NAN),
        ([5.0] * 59 + [NAN], 5.0),
        ([NAN] * 59 + [5.0], 5.0),
        ([2e30] * 59 + [NAN], 2e30),
    ],
)
def test_outputs_that_say_little_are_filled_with_what_they_say(column, expected):
    frame = pd.DataFrame({"t": range(60), "y": column, "none": [NAN] * 60})
    filled = fill_by_boosting(frame, ["t"], ["y", "none"])
    assert filled["y"].iloc[0 if np.isnan(column[0]) else -1] == pytest.approx(expected, rel=0.5, nan_ok=True)
    assert filled["none"].isna().all()


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_rows_are_no_error(rows):
    frame = pd.DataFrame({"t": range(3), "y": [1.0, NAN, NAN]})[:rows]
    assert fill_by_boosting(frame, ["t"], ["y"])["y"].tolist() == [1.0] * rows


def test_names_and_indices_may_be_anything():
    frame = pd.DataFrame({0: range(60), 1: np.where(np.arange(60) % 7, 1.0 * np.arange(60), NAN)}, index=[0] * 60)
    filled = fill_by_boosting(frame, [0], [1])
    assert filled[1].notna().all()
    assert filled.index.equals(frame.index)


def test_outputs_that_are_known_once_or_twice_are_no_error():
    """This holds whatever entries scikit-learn sets aside to stop by."""
    values = np.random.default_rng(0).standard_normal((40, 2))
    frame = pd.DataFrame({"day": np.arange(40.0), "y": values[:, 0], "z": NAN})
    frame.loc[[3, 5], "y"] = NAN
    frame.loc[[7, 8], "z"] = values[7:9, 1]
    for seed in range(40):
        filled = fill_by_boosting(frame, ["day"], ["y", "z"], seed=seed)
        assert not filled.isna().any(axis=None)
