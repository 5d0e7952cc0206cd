"""Bad tables get a message that their owner understands."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from conftest import make_table

from gpytorch_sgpvae.table import SGPVAEImputer, TableError, TableWarning


def fit(table, outputs=("y",), **kwargs):
    return SGPVAEImputer(
        ["day"], list(outputs), **{"task": "week", "max_epochs": 1, "compare": False, "progress": False, **kwargs}
    ).fit(table)


def test_an_unknown_column_is_named_with_those_there_are(numbers):
    with pytest.raises(TableError, match=r"no column 'Day' in .*, which has week, day, y.* Did you mean 'day'\?"):
        SGPVAEImputer(["Day"], ["y"]).fit(numbers)


def test_text_in_a_number_column_is_named_with_its_row(numbers):
    table = numbers.astype({"y": object})
    table.loc[4, "y"] = "n/a?"
    with pytest.raises(TableError, match=r"'y' has text where a number is expected: 'n/a\?' in row 5\. Correct it"):
        fit(table)


def test_text_in_an_input_is_named_with_its_row_and_label(numbers):
    table = numbers.astype({"day": object}).set_index(pd.Index(list("abcdefghijkl")))
    table.loc["c", "day"] = "Tuesday"
    with pytest.raises(TableError, match=r"'day' has text .* 'Tuesday' in row 3 \(index 'c'\)"):
        fit(table)


def test_rows_at_the_same_place_are_named(numbers):
    table = pd.concat([numbers, numbers.iloc[[2]]], ignore_index=True)
    with pytest.raises(TableError, match=r"Row 13 is at the place of row 3 too: week = 1.*, day = 2.0 \(1 such row\)"):
        fit(table)


def test_a_task_with_one_row_is_left_out_and_told(numbers):
    table = pd.concat([numbers, pd.DataFrame({"week": [9], "day": [1.0], "y": [0.5]})], ignore_index=True)
    with pytest.warns(TableWarning, match="1 task has one row only and little to learn from: 9"):
        fit(table)


def test_tasks_that_all_have_one_row_are_refused(numbers):
    with pytest.raises(TableError, match="Every task has one row only: the column 'week'"):
        fit(numbers.assign(week=np.arange(12)))


def test_an_output_without_values_is_named(numbers):
    with pytest.raises(TableError, match="'y' has no values at all"):
        fit(numbers.assign(y=np.nan))


def test_constant_columns_are_named(numbers):
    with pytest.raises(TableError, match=r"The output 'y' has the same value, .*3.*, in all its rows"):
        fit(numbers.assign(y=3.0))
    with pytest.raises(TableError, match="The input 'day' has the same value in all 12 rows"):
        fit(numbers.assign(day=1.0))
    with pytest.raises(TableError, match="The output 'y' has the same value, 'dry'"):
        fit(numbers.assign(y="dry"))


def test_infinite_values_are_named_with_their_row(numbers):
    numbers.loc[7, "y"] = np.inf
    with pytest.raises(TableError, match="'y' has an infinite value in row 8"):
        fit(numbers)


def test_missing_inputs_and_tasks_are_named_with_their_row(numbers):
    with pytest.raises(TableError, match="The input 'day' is missing in 2 rows, first in row 3"):
        fit(numbers.assign(day=numbers["day"].where(numbers.index.isin([0, 1, *range(4, 12)]))))
    with pytest.raises(TableError, match="The task 'week' is missing in 1 row, first in row 2"):
        fit(numbers.assign(week=numbers["week"].where(numbers.index != 1)))


def test_new_columns_are_left_alone_and_told(imputer, table):
    with pytest.warns(TableWarning, match="not fitted with, and that are left as they are: wind"):
        filled = imputer.transform(table.assign(wind=7))
    assert (filled["wind"] == 7).all()


def test_a_table_without_holes_comes_back_and_is_told(imputer, table):
    filled = imputer.transform(table)
    with pytest.warns(TableWarning, match="no holes"):
        pd.testing.assert_frame_equal(imputer.transform(filled), filled)


def test_a_label_that_was_not_fitted_is_named_with_those_that_were(imputer):
    table = make_table()
    table.loc[3, "sky"] = "green"
    with pytest.raises(TableError, match=r"'sky' has 'green' in row 4, which was not among .*: clear, dark, gray"):
        imputer.transform(table)


def test_a_missing_column_is_named_at_transform_too(imputer, table):
    with pytest.raises(TableError, match="There is no column 'rain'"):
        imputer.transform(table.drop(columns="rain"))


@pytest.mark.parametrize(
    ("family", "value", "message"),
    [
        ("positive", -1.0, "numbers that are not negative, but has -1 in row 3"),
        ("amount", -1.0, "numbers that are not negative, but has -1 in row 3"),
        ("count", 1.5, "whole numbers from 0, but has 1.5 in row 3"),
        ("flag", 2.0, "is to be a flag, but has 3 different values: 0.0, 1.0, 2.0"),
        ("price", 1.0, "There is no family 'price'"),
    ],
)
def test_values_that_do_not_fit_the_family_are_named(numbers, family, value, message):
    numbers["y"] = np.arange(12.0) % 2 if family == "flag" else np.arange(1.0, 13.0)
    numbers.loc[2, "y"] = value
    with pytest.raises(TableError, match=message):
        fit(numbers, families={"y": family})


def test_names_are_checked(numbers):
    with pytest.raises(TableError, match="inputs must be a list"):
        SGPVAEImputer("day", ["y"]).fit(numbers)
    with pytest.raises(TableError, match="outputs must be a list of column names with at least one"):
        SGPVAEImputer(["day"], []).fit(numbers)
    with pytest.raises(TableError, match="day is named more than once"):
        SGPVAEImputer(["day"], ["day"]).fit(numbers)
    with pytest.raises(TableError, match="cannot be an output"):
        SGPVAEImputer(["day"], ["y"], task="y").fit(numbers)
    with pytest.raises(TableError, match="periodic names hour, which is not among day"):
        fit(numbers, periodic={"hour": 24})
    with pytest.raises(TableError, match="must be a positive number, got -1"):
        fit(numbers, periodic={"day": -1})


def test_no_table_and_no_rows_are_refused(numbers):
    with pytest.raises(TableError, match="Expected a pandas DataFrame, got a dict"):
        fit({"day": [1]})
    with pytest.raises(TableError, match="has no rows"):
        fit(numbers.iloc[:0])


def test_a_column_that_comes_twice_is_named(numbers):
    with pytest.raises(TableError, match="more than one column 'y'"):
        fit(pd.concat([numbers, numbers[["y"]]], axis=1))


def test_columns_that_are_to_be_added_may_not_be_there(imputer, table):
    with pytest.warns(TableWarning), pytest.raises(TableError, match="already has columns temp_std"):
        imputer.transform(table.assign(temp_std=1.0), intervals=True)


def test_free_text_is_no_category(numbers):
    long = pd.concat([numbers.assign(week=numbers["week"] + 3 * i) for i in range(5)], ignore_index=True)
    with pytest.raises(TableError, match="60 different labels"):
        fit(long.assign(y=[f"remark {i}" for i in range(60)]))


def test_fractions_and_numbers_of_samples_are_checked(imputer, table):
    with pytest.raises(TableError, match=r"between 0 and 1, got 1\.5"):
        imputer.scores(table, fraction=1.5)
    with pytest.raises(TableError, match="at least 1, got 0"):
        imputer.sample(table, 0)
