"""Forecasts go on where each series ends."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from command_files import dated_imputer, folder_of, make_series, run, tiny_imputer

from gpytorch_sgpvae.table import TableError


def dated(table, start="2024-03-01", step="D"):
    table = table.rename(columns={"day": "date"})
    table["date"] = pd.Timestamp(start) + pd.to_timedelta(table["date"], step)
    return table


def test_each_series_goes_on_at_its_own_step():
    table = make_series()
    table.loc[table["site"] == "s1", "day"] *= 2
    found = tiny_imputer().forecast(table, 3)
    assert found.columns.tolist() == ["site", "day", "temp", "temp_std", "temp_lower", "temp_upper"]
    assert found["site"].tolist() == ["s0"] * 3 + ["s1"] * 3
    assert found["day"].tolist() == [10, 11, 12, 20, 22, 24]
    assert found["temp"].notna().all()


def test_it_is_what_predict_says_there():
    table = make_series()
    found = tiny_imputer().forecast(table.sample(frac=1, random_state=0), 2)
    expected = tiny_imputer().predict(found[["site", "day"]], context=table)
    pd.testing.assert_frame_equal(found[expected.columns], expected)


def test_dates_go_on_by_days_and_months():
    imputer = dated_imputer()
    found = imputer.forecast(dated(make_series()), 2)
    assert found["date"].tolist()[:2] == [pd.Timestamp("2024-03-11"), pd.Timestamp("2024-03-12")]
    monthly = make_series().rename(columns={"day": "date"})
    monthly["date"] = [pd.Timestamp("2024-01-01") + pd.DateOffset(months=month) for month in monthly["date"]]
    found = imputer.forecast(monthly, 3)
    assert found["date"].dt.strftime("%Y-%m-%d").tolist()[:3] == ["2024-11-01", "2024-12-01", "2025-01-01"]


def test_gaps_do_not_change_the_step():
    found = tiny_imputer().forecast(make_series().drop(index=[3, 4, 5]), 1)
    assert found["day"].tolist() == [10, 10]


def test_a_series_of_one_row_has_the_step_of_the_others():
    table = pd.concat([make_series(), pd.DataFrame({"site": ["s9"], "day": [4], "temp": [20.0]})])
    assert tiny_imputer().forecast(table, 1)["day"].tolist() == [10, 10, 5]


def test_without_any_step_there_is_a_sentence():
    with pytest.raises(TableError, match="Every series has one row only"):
        tiny_imputer().forecast(make_series(num_days=1), 1)


def test_what_nobody_knows_past_the_end_is_named():
    table = dated(make_series()).assign(sun=1.0, hour=np.arange(20) % 7)
    with pytest.raises(TableError, match="Nobody knows what the covariate 'sun' will be past the end"):
        dated_imputer(("sun",)).forecast(table, 1)
    with pytest.raises(TableError, match="Nobody knows what the input 'hour' will be past the end"):
        dated_imputer((), (("hour", 7.0),)).forecast(table, 1)


@pytest.mark.parametrize("horizon", [0, -1, 1.5, True, "3", 10**9])
def test_the_horizon_is_checked(horizon):
    with pytest.raises(TableError, match=r"The horizon must be a whole number of rows from 1 to .*, got"):
        tiny_imputer().forecast(make_series(), horizon)


def test_the_command_writes_them(tmp_path, capsys):
    make_series().to_csv(tmp_path / "table.csv", index=False, sep=";", decimal=",")
    arguments = ["predict", folder_of(tiny_imputer), tmp_path / "table.csv", "--horizon", 48, "--decimal", ","]
    assert run(*arguments, "-o", tmp_path / "out.csv") == 0
    assert capsys.readouterr().err == f"Predicted 96 rows: {tmp_path / 'out.csv'}.\n"
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("s0;10;")
    found = pd.read_csv(tmp_path / "out.csv", sep=";", decimal=",")
    assert found["day"].tolist() == [*range(10, 58), *range(10, 58)]
    assert found["temp_upper"].notna().all()
