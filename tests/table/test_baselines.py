from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table.baselines import (
    fill_by_interpolation,
    fill_by_last_value,
    fill_by_mean,
    group_numbers,
    groups_of_rows,
    has_time,
    time_column,
)

NAN = float("nan")


@pytest.fixture
def frame():
    """Two stations in two weeks, rows in no order; one station knows nothing in the second week."""
    return pd.DataFrame(
        {
            "week": [0, 0, 0, 0, 0, 0, 1, 1, 1, 1],
            "station": [1, 1, 1, 2, 2, 2, 1, 1, 2, 2],
            "day": [4, 0, 1, 0, 1, 2, 0, 1, 0, 1],
            "y": [8.0, 0.0, NAN, NAN, 5.0, NAN, NAN, NAN, 7.0, 7.0],
        },
        index=[f"row {i}" for i in range(10)],
    )


def test_interpolation_is_linear_in_time_within_a_series(frame):
    filled = fill_by_interpolation(frame, ["station", "day"], ["y"], "week")
    mean = frame["y"].mean()
    assert filled["y"].tolist() == pytest.approx([8, 0, 2, 5, 5, 5, mean, mean, 7, 7])


def test_last_values_are_those_before_in_time(frame):
    filled = fill_by_last_value(frame, ["station", "day"], ["y"], "week")
    mean = frame["y"].mean()
    assert filled["y"].tolist() == pytest.approx([8, 0, 0, 5, 5, 5, mean, mean, 7, 7])


@pytest.mark.parametrize("fill", [fill_by_interpolation, fill_by_last_value])
def test_what_is_known_and_everything_else_stay_as_they_are(frame, fill):
    before = frame.copy()
    filled = fill(frame, ["station", "day"], ["y"], "week")
    assert frame.equals(before)
    assert filled.index.equals(frame.index)
    assert filled.drop(columns="y").equals(frame.drop(columns="y"))
    known = frame["y"].notna()
    assert filled["y"][known].equals(frame["y"][known])


def test_without_a_task_and_other_inputs_the_table_is_one_series():
    frame = pd.DataFrame({"t": [0, 10, 5], "y": [0.0, 1.0, NAN]})
    assert fill_by_interpolation(frame, ["t"], ["y"])["y"].tolist() == [0.0, 1.0, 0.5]


def test_dates_are_times_also_as_text():
    dates = ["2024-01-01", "2024-01-02", "2024-01-05"]
    for column in (dates, pd.to_datetime(dates)):
        frame = pd.DataFrame({"when": column, "y": [0.0, NAN, 4.0]})
        assert fill_by_interpolation(frame, ["when"], ["y"])["y"].tolist() == pytest.approx([0, 1, 4])


def test_means_are_of_what_is_known():
    frame = pd.DataFrame({"a": [1.0, NAN, 3.0], "b": [NAN, 4.0, NAN]})
    assert np.array_equal(fill_by_mean(frame, ["a", "b"]).to_numpy(), [[1, 4], [2, 4], [3, 4]])


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [(["lat", "day", "lon"], "day"), (["Hour", "lat"], "Hour"), (["lat", "when", "day"], "when"), (["a", "b"], "b")],
)
def test_the_time_is_a_date_or_named_so_or_last(inputs, expected):
    frame = pd.DataFrame({name: [1.0, 2.0] for name in inputs})
    if "when" in inputs:
        frame["when"] = pd.to_datetime(["2024-01-01", "2024-01-02"])
    assert time_column(frame, inputs) == expected


@pytest.mark.parametrize(("inputs", "expected"), [(["lat", "Day"], True), (["when"], True), (["lat", "lon"], False)])
def test_a_table_has_a_time_if_an_input_is_a_date_or_named_so(inputs, expected):
    frame = pd.DataFrame({name: ["2024-01-01"] if name == "when" else [1.0] for name in inputs})
    assert has_time(frame, inputs) == expected


def test_rows_that_agree_in_columns_share_a_number_and_a_group_missing_values_too():
    frame = pd.DataFrame({"a": ["x", None, "x", None], "b": [1, 2, 1, 2]})
    assert group_numbers(frame, ["a", "b"]).tolist() == [0, 1, 0, 1]
    assert [rows.tolist() for rows in groups_of_rows(frame, ["a", "b"])] == [[0, 2], [1, 3]]
    assert group_numbers(frame, []).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("fill", [fill_by_interpolation, fill_by_last_value])
def test_inputs_and_outputs_of_any_kind_are_filled(fill):
    flags = pd.array([True, None, True], dtype="boolean")
    frame = pd.DataFrame({"kind": ["a", "b", "c"], 0: flags})
    assert fill(frame, ["kind"], [0])[0].tolist() == [1.0, 1.0, 1.0]
