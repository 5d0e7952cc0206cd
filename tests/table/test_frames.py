"""The frame that comes in is the kind that goes out, and nothing changes in it but its holes."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest
from conftest import OUTPUTS, make_imputer, make_table

from gpytorch_sgpvae.table import SGPVAEImputer, TableError
from gpytorch_sgpvae.table.frames import read_frame

polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")


def typed_table():
    """A table of pandas whose columns have types of all kinds."""
    table = make_table(num_tasks=4, num_points=12)
    start = pd.Timestamp("2024-03-29", tz="Europe/Berlin")  # clocks change in between
    table["date"] = start + pd.to_timedelta(table["day"], "D")
    return table.astype({"cars": "Int64", "wet": "boolean", "sky": "category", "temp": "float32", "site": "category"})


@pytest.fixture(scope="module")
def frame():
    """The same of Polars, with holes that are null and holes that are NaN, and columns that pandas does not have."""
    number = polars.int_range(polars.len())
    hole = polars.when(number % 7 == 0).then(float("nan")).otherwise(polars.col("temp"))
    return polars.from_pandas(typed_table()).with_columns(
        temp=hole.cast(polars.Float32),
        cars=polars.col("cars").cast(polars.Int16),
        sky=polars.col("sky").cast(polars.String).cast(polars.Enum(["clear", "dark", "gray", "green"])),
        since=polars.lit(datetime.date(2020, 1, 1)),
        parts=polars.concat_list(number, number),
        price=polars.lit("1.25").cast(polars.Decimal(10, 2)),
    )


@pytest.fixture(scope="module")
def dated(frame):
    imputer = SGPVAEImputer(["date"], OUTPUTS, "site", max_epochs=1, compare=False, progress=False)
    return imputer.fit(frame)


def holes_of(frame):
    """True for what is null or NaN in the outputs."""
    kinds = frame.schema
    nan = [polars.col(name).is_nan().fill_null(False) for name in OUTPUTS if kinds[name].is_float()]
    return frame.select(polars.col(name).is_null() for name in OUTPUTS).with_columns(
        (frame[name].is_null() | frame.select(expression)[name])
        for name, expression in zip([n for n in OUTPUTS if kinds[n].is_float()], nan, strict=True)
    )


class TestPolars:
    def test_null_and_nan_are_filled_and_all_else_stays_with_its_type(self, dated, frame):
        filled = dated.transform(frame)
        assert filled.schema == frame.schema
        holes = holes_of(frame)
        assert holes["temp"].sum() > frame["temp"].null_count() > 0
        assert holes_of(filled).sum().row(0) == (0,) * len(OUTPUTS)
        for name in frame.columns:
            known = ~holes[name] if name in OUTPUTS else polars.repeat(True, len(frame), eager=True)
            assert filled[name].filter(known).equals(frame[name].filter(known))

    def test_it_is_filled_as_the_same_table_of_pandas(self, dated, frame):
        pandas = frame.drop("parts").to_pandas()
        expected = dated.transform(pandas.assign(parts=None))
        np.testing.assert_array_equal(dated.transform(frame)["temp"].to_numpy(), expected["temp"])

    def test_intervals_follow_its_columns(self, dated, frame):
        filled = dated.transform(frame, intervals=True)
        assert filled.columns[: frame.width] == frame.columns
        assert filled["temp_filled"].equals(holes_of(frame)["temp"].rename("temp_filled"))
        assert filled["temp_std"].is_null().equals(~filled["temp_filled"])

    def test_predictions_and_forecasts_and_scores_are_of_polars(self, dated, frame):
        places = frame.select("date", "site").head(3)
        assert dated.predict(places, context=frame).shape == (3, 4 * len(OUTPUTS) + 2)
        ahead = dated.forecast(frame, 2)
        assert ahead.schema["date"] == frame.schema["date"]
        assert ahead.shape == (8, 2 + 4 * len(OUTPUTS) + 2)
        assert dated.scores(frame)["output"].to_list() == OUTPUTS

    def test_draws_are_filled_frames(self, dated, frame):
        for draw in dated.sample(frame, 2):
            assert draw.schema == frame.schema
            assert holes_of(draw).sum().row(0) == (0,) * len(OUTPUTS)

    def test_what_is_hidden_is_null(self, dated, frame):
        masked, mask = dated.hide(frame, 0.2)
        assert masked.schema == frame.schema
        assert set(mask.dtypes) == {polars.Boolean}
        for name in OUTPUTS:
            assert masked[name].filter(mask[name]).null_count() == mask[name].sum() > 0
            assert masked[name].filter(~mask[name]).equals(frame[name].filter(~mask[name]))

    def test_what_is_made_of_a_lazy_frame_is_lazy(self, dated, frame):
        lazy = frame.lazy()
        filled = dated.transform(lazy)
        assert isinstance(filled, polars.LazyFrame)
        assert filled.collect().equals(dated.transform(frame))
        made = [dated.forecast(lazy, 1), dated.scores(lazy), *dated.hide(lazy), *dated.sample(lazy, 1)]
        assert all(isinstance(part, polars.LazyFrame) for part in made)
        chosen = SGPVAEImputer(**dated.get_params())._take(dated.fitted_)
        assert isinstance(chosen.set_output(transform="polars").transform(lazy), polars.DataFrame)
        assert isinstance(chosen.set_output(transform="pandas").transform(lazy.drop("parts")), pd.DataFrame)

    def test_without_holes_it_comes_back_as_it_is(self, dated, frame):
        filled = dated.transform(frame)
        with pytest.warns(UserWarning, match="no holes"):
            assert dated.transform(filled).equals(filled)


class TestArrow:
    def test_holes_are_filled_and_the_schema_stays(self, dated, frame):
        table = frame.to_arrow()
        filled = dated.transform(table)
        assert filled.schema.equals(table.schema, check_metadata=True)
        assert polars.from_arrow(filled).equals(dated.transform(frame))

    def test_what_is_made_of_it_are_tables_of_arrow(self, dated, frame):
        table = frame.to_arrow()
        places = table.select(["date", "site"]).slice(0, 3)
        made = [dated.predict(places, context=table), dated.forecast(table, 1), dated.scores(table), *dated.hide(table)]
        assert all(isinstance(part, pyarrow.Table) for part in made)
        assert made[1].schema.field("date").type == table.schema.field("date").type
        assert made[3].schema.types == table.schema.types

    def test_pandas_and_polars_can_be_chosen_instead(self, dated, frame):
        table = frame.drop("parts").to_arrow()
        chosen = SGPVAEImputer(**dated.get_params())._take(dated.fitted_)
        assert chosen.set_output(transform="polars").transform(table).equals(dated.transform(frame).drop("parts"))
        assert isinstance(chosen.set_output(transform="pandas").transform(table), pd.DataFrame)

    def test_pandas_with_types_of_arrow_keeps_them(self):
        table = make_table(num_tasks=4).convert_dtypes(dtype_backend="pyarrow")
        filled = make_imputer(max_epochs=1).fit_transform(table)
        assert filled[OUTPUTS].notna().all(axis=None)
        assert (filled.dtypes == table.dtypes).all()
        known = table.notna()
        for name in OUTPUTS:
            assert (filled[name][known[name]] == table[name][known[name]]).all()


class TestPandas:
    def test_decimals_of_arrow_are_numbers_with_as_many_places(self):
        table = make_table(num_tasks=4)
        prices = pd.ArrowDtype(pyarrow.decimal128(7, 2))
        table["temp"] = table["temp"].round(2).astype("double[pyarrow]").astype(prices)
        filled = make_imputer(max_epochs=1).fit_transform(table)
        assert filled["temp"].dtype == prices
        assert filled["temp"].notna().all()
        known = table["temp"].notna()
        assert (filled["temp"] == table["temp"])[known].all()

    def test_columns_in_arrows_dictionary_encoding_are_labels_and_stay_encoded(self):
        labels = make_table(num_tasks=4)
        encoded = pd.ArrowDtype(pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))
        table = labels.astype({"sky": encoded, "site": encoded})
        imputer = make_imputer(max_epochs=1).fit(table)
        filled = imputer.transform(table, intervals=True)
        assert imputer.families_["sky"] == "category"
        assert filled[table.columns].dtypes.equals(table.dtypes)
        assert filled["sky"].notna().all()
        assert (filled["sky"] == table["sky"])[table["sky"].notna()].all()
        expected = make_imputer(max_epochs=1).fit_transform(labels)
        np.testing.assert_array_equal(filled["sky"].astype(object), expected["sky"].astype(object))
        assert set(imputer.predict(table)["sky"]) <= set(labels["sky"].dropna())
        assert imputer.hide(table)[0].dtypes.equals(table.dtypes)


@pytest.mark.parametrize("other", [{"a": [1]}, "table.csv", pd.Series([1.0, 2.0]), polars.Series([1.0]), 7, None])
def test_what_is_no_table_is_refused(other):
    with pytest.raises(
        TableError, match=r"Expected a pandas DataFrame, got a .* arrays of two dimensions are taken too"
    ):
        read_frame(other)
