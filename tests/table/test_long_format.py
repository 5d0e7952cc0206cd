"""Tables in long format: a row for each reading of a sensor."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table import SGPVAEImputer, TableError, TableWarning

OPTIONS = {"max_epochs": 1, "compare": False, "progress": False}
SENSORS = ["CO", "NOx", "wet"]


def make_wide(hours=60, seed=0):
    random = np.random.default_rng(seed)
    wave = np.sin(np.arange(hours) / 9)
    return pd.DataFrame(
        {
            "time": pd.date_range("2025-01-01", periods=hours, freq="h"),
            "CO": 20 + wave + 0.1 * random.normal(size=hours),
            "NOx": 5 - 3 * wave + 0.3 * random.normal(size=hours),
            "wet": (wave > 0).astype(float),
        }
    )


def make_long(hours=60, seed=0):
    """Readings in any order: some rows are absent, and others have no value."""
    long = make_wide(hours, seed).melt("time", var_name="sensor", value_name="value")
    long = long.sample(frac=0.85, random_state=1).assign(unit="as measured")
    long["value"] = long["value"].mask(np.random.default_rng(seed + 1).random(len(long)) < 0.2)
    return long


@pytest.fixture(scope="module")
def long():
    return make_long()


@pytest.fixture(scope="module")
def imputer(long):
    return SGPVAEImputer(["time"], SENSORS, long=("sensor", "value"), **OPTIONS).fit(long)


@pytest.fixture(scope="module")
def wide_imputer(imputer, long):
    return SGPVAEImputer(["time"], SENSORS, **OPTIONS).fit(imputer.as_wide(long))


def wide_at(wide, long, end=""):
    """The entries of a wide table at the readings of a long one."""
    rows = pd.Index(wide["time"]).get_indexer(long["time"])
    return pd.Series([wide[f"{sensor}{end}"].iloc[row] for row, sensor in zip(rows, long["sensor"], strict=True)])


class TestTransform:
    def test_readings_without_a_value_get_one_and_nothing_else_changes(self, imputer, long):
        filled = imputer.transform(long)
        assert filled["value"].notna().all()
        pd.testing.assert_frame_equal(filled.drop(columns="value"), long.drop(columns="value"))
        known = long["value"].notna()
        assert (filled["value"] == long["value"])[known].all()

    def test_it_is_filled_as_the_table_with_a_column_for_each_sensor(self, imputer, wide_imputer, long):
        filled = imputer.transform(long, intervals=True)
        expected = wide_imputer.transform(imputer.as_wide(long), intervals=True)
        for end in ("", "_std", "_lower", "_upper"):
            values = wide_at(expected, long, end).to_numpy(float)
            np.testing.assert_allclose(filled[f"value{end}"], values, err_msg=end)
        assert filled["value_filled"].equals(long["value"].isna().rename("value_filled"))

    def test_the_order_of_the_readings_does_not_matter(self, imputer, long):
        filled = imputer.transform(long.sort_index())
        pd.testing.assert_series_equal(filled["value"], imputer.transform(long)["value"].sort_index())

    def test_sensors_may_be_numbers_and_tasks_are_told_apart(self):
        parts = [make_long(20, seed).assign(week=seed) for seed in range(3)]
        long = pd.concat(parts, ignore_index=True).replace({"sensor": {"CO": 7, "NOx": 12, "wet": 3}})
        imputer = SGPVAEImputer(["time"], task="week", long=["sensor", "value"], **OPTIONS).fit(long)
        assert sorted(imputer.families_) == ["12", "3", "7"]
        assert imputer.as_wide(long)["week"].nunique() == 3
        assert imputer.transform(long.astype({"sensor": float}))["value"].notna().all()

    def test_values_of_other_kinds_keep_it(self, long):
        labels = long.assign(value=np.where(long["sensor"] == "CO", "low", "high"))
        labels.loc[labels.index[::3], "value"] = "mid"
        labels.loc[labels.index[::7], "value"] = None
        imputer = SGPVAEImputer(["time"], long=("sensor", "value"), **OPTIONS).fit(labels)
        assert set(imputer.families_.values()) <= {"flag", "category"}
        assert set(imputer.transform(labels)["value"]) == {"low", "mid", "high"}

    def test_an_index_of_dates_is_the_input(self, imputer, long):
        indexed = long.set_index("time")
        by_index = SGPVAEImputer(None, SENSORS, long=("sensor", "value"), **OPTIONS).fit(indexed)
        np.testing.assert_allclose(by_index.transform(indexed)["value"], imputer.transform(long)["value"])


class TestPredict:
    def test_each_row_asks_for_its_sensor(self, imputer, wide_imputer, long):
        places = long[["time", "sensor"]].head(9).assign(time=lambda t: t["time"] + pd.Timedelta("30min"))
        predicted = imputer.predict(places, context=long)
        assert predicted.index.equals(places.index)
        times = places[["time"]].drop_duplicates()
        expected = wide_imputer.predict(times, context=imputer.as_wide(long)).assign(time=times["time"])
        for end in ("", "_std", "_lower", "_upper"):
            np.testing.assert_allclose(predicted[f"value{end}"], wide_at(expected, places, end).to_numpy(float))
        assert predicted["value_probability"].notna().equals(places["sensor"] == "wet")

    def test_a_forecast_has_rows_for_all_sensors(self, imputer, wide_imputer, long):
        ahead, expected = imputer.forecast(long, 3), wide_imputer.forecast(imputer.as_wide(long), 3)
        assert ahead["sensor"].tolist() == SENSORS * 3
        assert ahead["time"].tolist() == expected["time"].repeat(3).tolist()
        np.testing.assert_allclose(ahead["value"], expected[SENSORS].to_numpy(float).ravel())

    def test_distributions_are_those_of_all_sensors_in_each_row(self, imputer, long):
        predictive = imputer.predictive(long.head(5), context=long)
        assert predictive.mean.shape == (5, 3)
        of_sensor = [SENSORS.index(sensor) for sensor in long["sensor"].head(5)]
        predicted = imputer.predict(long.head(5), context=long)
        numbers = [number for number in range(5) if of_sensor[number] < 2]
        means = predictive.mean[numbers, [of_sensor[number] for number in numbers]]
        np.testing.assert_allclose(means, predicted["value"].iloc[numbers])


def test_scores_are_by_sensor_and_hidden_readings_were_known(imputer, long):
    assert imputer.scores(long).index.tolist() == SENSORS
    assert np.isfinite(imputer.score(long))
    masked, mask = imputer.hide(long, 0.2)
    assert mask.columns.tolist() == ["value"]
    assert masked["value"].isna().equals(long["value"].isna() | mask["value"])
    assert long["value"].notna()[mask["value"]].all()


def test_draws_fill_the_readings_that_have_none(imputer, long):
    first, second = imputer.sample(long, 2)
    holes = long["value"].isna() & (long["sensor"] != "wet")
    assert (first["value"] != second["value"])[holes].all()
    assert (first["value"] == long["value"])[~long["value"].isna()].all()


def test_polars_comes_and_goes_in_long_format(imputer, long):
    polars = pytest.importorskip("polars")
    frame = polars.from_pandas(long)
    filled = imputer.transform(frame)
    assert filled.schema == frame.schema
    assert filled["value"].to_list() == imputer.transform(long)["value"].tolist()
    assert imputer.forecast(frame, 2)["sensor"].to_list() == SENSORS * 2


def test_a_saved_model_takes_the_same_tables(imputer, long, tmp_path):
    imputer.save(tmp_path / "model")
    loaded = SGPVAEImputer.load(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.transform(long, intervals=True), imputer.transform(long, intervals=True))
    assert loaded.feature_names_in_.tolist() == ["time", "sensor", "value", "unit"]


class TestRefusals:
    def test_a_sensor_that_was_not_fitted_is_named(self, imputer, long):
        with pytest.raises(TableError, match=r"The sensor 'O3' in row .* is none of those that are fitted: CO, NOx"):
            imputer.transform(long.replace({"sensor": {"CO": "O3"}}))

    def test_a_sensor_that_is_missing_is_named_with_its_row(self, imputer, long):
        with pytest.raises(TableError, match="The sensor 'sensor' is missing in 1 row, first in row 3"):
            imputer.transform(long.assign(sensor=long["sensor"].where(np.arange(len(long)) != 2)))

    def test_many_readings_at_the_same_place_are_refused(self, imputer, long):
        with pytest.raises(
            TableError, match=r"a reading of the same sensor at the same place as row 1 .*\(20 such rows"
        ):
            imputer.transform(pd.concat([long, long.head(20)]))

    def test_of_few_the_mean_is_taken_and_told(self, imputer, long):
        again = long.dropna().head(1)
        twice = pd.concat([long, again.assign(value=again["value"] + 1)])
        with pytest.warns(TableWarning, match=r"\(1 such row\)\. Their mean is taken"):
            wide = imputer.as_wide(twice)
        row = wide.set_index("time").loc[again["time"].iloc[0]]
        assert row[again["sensor"].iloc[0]] == pytest.approx(again["value"].iloc[0] + 0.5)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"long": "value"}, "long must be the names of two columns"),
            ({"long": ("sensor", "reading")}, "There is no column 'reading'"),
            ({"long": ("time", "value")}, "'time' is named in long=.*, and a second time"),
            ({"outputs": ["CO"]}, "The sensor 'NOx' in row .* is none of those that are fitted: CO"),
            ({"outputs": "CO"}, "outputs must be a list of the names of sensors"),
            ({"inputs": None}, "The inputs of a table in long format must be named"),
        ],
    )
    def test_columns_that_do_not_make_sense_are_named(self, long, change, message):
        with pytest.raises(TableError, match=message):
            SGPVAEImputer(**{"inputs": ["time"], "long": ("sensor", "value"), **change}).fit(long)

    def test_a_data_set_larger_than_memory_is_wide(self, imputer, tmp_path):
        with pytest.raises(TableError, match="has a column for each output"):
            imputer.fit_dataset(tmp_path)
        make_long(5).to_csv(tmp_path / "part.csv", index=False)
        with pytest.raises(TableError, match="was fitted to a table in long format"):
            imputer.impute_dataset(tmp_path, tmp_path / "filled")
