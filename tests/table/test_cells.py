"""Cells of text become numbers, labels and dates as their owner means them."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table import TableError, TableWarning
from gpytorch_sgpvae.table.cells import USUAL_MARKS, Reading, warn_of_sentinels


def values(cells, has_holes=True, is_text=False, **options):
    column = Reading(**options).read_values(cells, "y", has_holes, is_text)
    return [None if cell is None or cell != cell else cell for cell in column]


def test_numbers_are_numbers_and_holes_are_holes():
    assert values(["1", " 2.5 ", "", "NA", "-3e2", "  "]) == [1.0, 2.5, None, None, -300.0, None]


@pytest.mark.parametrize("mark", USUAL_MARKS)
def test_usual_marks_stand_for_missing_values(mark):
    assert values(["1", mark, f" {mark} "]) == [1.0, None, None]


def test_none_is_a_label_and_no_hole():
    assert values(["None", "brick", "", "none"]) == ["None", "brick", None, "none"]


def test_marks_that_were_asked_for_take_the_place_of_the_usual_ones():
    assert values(["NA", "x", "gone"], marks=("gone",)) == ["NA", "x", None]
    assert values(["1", "-200", "-200.0", "-2e2", "200"], marks=("-200",)) == [1.0, None, None, None, 200.0]
    assert values(["NA", "x", ""], marks=()) == ["NA", "x", None]


def test_columns_without_holes_know_no_marks():
    assert values(["NA", "DE", ""], has_holes=False) == ["NA", "DE", None]


def test_a_word_among_labels_that_is_taken_for_a_hole_is_told():
    with pytest.warns(TableWarning, match=r"'y' has 'NA' in 2 cells, which is taken for a missing value. .* --na= "):
        values(["NA", "DE", "NA", "AT"])


def test_truth_values_are_read_as_pandas_reads_them():
    assert values(["TRUE", "False", "", "true"]) == [True, False, None, True]
    assert values(["TRUE", "maybe"]) == ["TRUE", "maybe"]
    assert values(["TRUE", "7"], is_text=True) == ["TRUE", "7"]


def test_labels_stay_text():
    assert values(["007", "7", "1.0"], is_text=True) == ["007", "7", "1.0"]
    assert Reading().read_text(["007", "7", "7.0", "", "9007199254740993"], "y").tolist() == [
        *["007", "7", "7", None, "9007199254740993"]
    ]


def test_decimal_commas_are_read_when_they_are_announced():
    assert values(["1,5", "-2", "1e3", ",5"], decimal=",") == [1.5, -2.0, 1000.0, 0.5]


def test_decimal_commas_that_nobody_announced_are_refused_with_the_option():
    with pytest.raises(TableError, match=r"'y' has numbers with a comma, such as '1,5': .* say --decimal=,"):
        values(["1,5", "2,5", "3"])


def test_dates_are_put_into_the_order_that_was_asked_for():
    frame = pd.DataFrame({"date": ["01/02/2024", "03/02/2024 12:00"]})
    assert Reading(day_first=True).check(frame.copy(), ["date"])["date"].tolist() == ["2024-02-01", "2024-02-03 12:00"]
    assert Reading(day_first=False).check(frame.copy(), ["date"])["date"].tolist()[0] == "2024-01-02"


def test_dates_that_may_be_read_in_two_ways_are_refused():
    frame = pd.DataFrame({"date": ["01/02/2024", "03/02/2024"]})
    with pytest.raises(
        TableError, match=r"'date' tells days from months: '01/02/2024' .* --day-first or --month-first"
    ):
        Reading().check(frame, ["date"])
    assert Reading().check(frame, ["date"], settled=["date"]).equals(frame)


@pytest.mark.parametrize(
    "cells",
    [["13/02/2024", "01/02/2024"], ["2024-01-02", "2024-02-01"], ["02/02/2024", "03/03/2024"], ["a/b", "1/2"]],
    ids=["day above 12", "iso", "day and month alike", "no dates"],
)
def test_dates_of_which_the_column_tells_the_order_are_left_as_they_are(cells):
    frame = pd.DataFrame({"date": cells})
    assert Reading().check(frame.copy(), ["date"]).equals(frame)


def test_a_date_that_is_none_in_the_order_that_was_asked_for_is_named():
    frame = pd.DataFrame({"date": ["01/02/2024", "01/13/2024"]})
    with pytest.raises(
        TableError, match=r"with the day first, but '01/13/2024' in row 2 is no such date.*--month-first"
    ):
        Reading(day_first=True).check(frame, ["date"])


def told(**columns):
    frame = pd.DataFrame({name: np.asarray(column, dtype=float) for name, column in columns.items()})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_sentinels(frame, list(columns), ["NA"])
    return str(caught[0].message) if caught else None


def many(*more, low=0.0, high=30.0):
    return [*np.random.default_rng(0).uniform(low, high, 200), *more]


@pytest.mark.parametrize("value", [-200, -999, -9999, 9999, 99999])
def test_values_far_from_all_others_that_come_again_are_named(value):
    text = told(co=many(value, value, value))
    assert f"{value} in co (3 cells)" in text
    assert text.endswith(f"say --na=NA,{value}")


def test_both_ends_are_looked_at():
    assert told(co=many(-999, -999, 9999, 9999)).endswith("--na=NA,-999,9999")


def test_what_is_far_in_one_column_is_named_in_others_too():
    text = told(co=many(-200, -200), nox=many(-200, -200, low=2, high=1400))
    assert "-200 in co (2 cells), nox (2 cells)" in text


@pytest.mark.parametrize(
    "column",
    [
        many(),
        many(30, 30),
        many(0, 0, 0),
        many(200),
        many(-200.5, -200.5),
        [0, 1] * 50,
        [0.0] * 50,
        [],
        np.random.default_rng(0).poisson(2, 500),
        np.exp(np.random.default_rng(0).normal(0, 2, 500)).round(),
        [0, 0, 0, 100, 100, 100],
    ],
    ids=["none", "end", "zero", "once", "no whole number", "flag", "constant", "empty", "counts", "long tail", "two"],
)
def test_usual_values_are_not_taken_for_missing_ones(column):
    assert told(y=column) is None
