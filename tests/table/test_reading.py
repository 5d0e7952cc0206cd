"""Tables of all kinds become numbers: labels, indices, tasks made of dates, covariates."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from conftest import make_table

from gpytorch_sgpvae.table import SGPVAEImputer, TableError, TableWarning
from gpytorch_sgpvae.table.cli import main
from gpytorch_sgpvae.table.reading import TableReader


def make_frame(num_days=28, seed=0):
    """Four weeks of two sites."""
    random = np.random.default_rng(seed)
    dates = pd.date_range("2024-01-01", periods=num_days)
    frame = pd.DataFrame({"date": np.repeat(dates, 2), "site": ["a", "b"] * num_days})
    return frame.assign(y=random.normal(size=len(frame)), wind=random.normal(size=len(frame)))


def fit(frame, inputs=("date", "site"), task=None, **kwargs):
    return TableReader.fit(frame, list(inputs), ["y"], task, {}, {}, **kwargs)


def assert_same(table, other):
    np.testing.assert_array_equal(table.x, other.x)
    np.testing.assert_array_equal(table.y, other.y)
    assert [rows.tolist() for rows in table.rows] == [rows.tolist() for rows in other.rows]


@pytest.mark.parametrize(
    ("indexed", "inputs", "task"),
    [
        (lambda frame: frame.set_index("date"), ("date", "site"), None),
        (lambda frame: frame.set_index("date").rename_axis(None), ("index", "site"), None),
        (lambda frame: frame.set_index(["date", "site"]), ("date", "site"), None),
        (lambda frame: frame.set_index(["site", "date"]), ("date",), "site"),
        (lambda frame: frame.set_index(pd.PeriodIndex(frame["date"], freq="D")), ("date", "site"), None),
        (lambda frame: frame.set_index("date"), ("date", "site"), "week(date)"),
        (lambda frame: frame.set_index("date").rename_axis(None), ("index", "site"), "month(index)"),
    ],
    ids=["dates", "no name", "levels", "level as task", "periods", "weeks", "months"],
)
def test_levels_of_the_index_are_columns(indexed, inputs, task):
    frame = make_frame()
    plain = [name if name != "index" else "date" for name in inputs]
    expected = fit(frame, plain, None if task is None else task.replace("index", "date"))
    table = indexed(frame)
    columns = table.drop(columns=[name for name in inputs if name in table.index.names], errors="ignore")
    assert_same(fit(columns, inputs, task).read(columns), expected.read(frame))


def test_a_column_comes_before_a_level_of_the_same_name():
    frame = make_frame()
    table = frame.set_index(pd.DatetimeIndex(frame["date"] + pd.Timedelta(days=500), name="date"))
    assert_same(fit(table).read(table), fit(frame).read(frame))


def test_an_index_without_dates_and_name_is_no_input():
    with pytest.raises(TableError, match="no column 'index' in the table, which has date, site, y, wind"):
        fit(make_frame(), ("index",))


def test_missing_columns_are_told_with_the_levels_of_the_index():
    with pytest.raises(TableError, match=r"which has y, wind and the index date, site\. Did you mean 'date'\?"):
        fit(make_frame().set_index(["date", "site"]), ("dat", "site"))


def test_an_output_in_the_index_is_refused():
    with pytest.raises(TableError, match="There is no column 'y' in the table"):
        fit(make_frame().set_index("y"))


def test_weeks_of_dates_are_tasks_also_of_other_tables():
    frame = make_frame()
    reader = fit(frame, task="week(date)")
    table = reader.read(frame)
    assert table.keys == ["2024-W01", "2024-W02", "2024-W03", "2024-W04"]
    places = reader.read_places(frame.iloc[[-1]].assign(date="2024-01-10"), frame, table)
    assert [rows.tolist() for rows in places.rows] == [[], [0], [], []]
    # Wednesday is two days after the first row of its week
    assert places.x[0, 0] == pytest.approx(reader.inputs[0].encode(np.array(2.0)))
    later = reader.read_places(frame.iloc[[0]].assign(date="2025-01-01"), frame, table)
    assert later.keys == [*table.keys, "2025-W01"]


def test_tasks_may_be_made_of_a_date_that_is_no_input():
    frame = make_frame().assign(day=lambda table: table["date"].dt.day_of_week)
    table = fit(frame, ("day", "site"), "week(date)").read(frame)
    assert len(table.keys) == 4


def test_a_reader_is_the_same_after_it_has_been_text():
    frame = make_frame().assign(date=lambda table: table["date"].dt.strftime("%d/%m/%Y"))
    reader = fit(frame, task="week(date)", covariates=["wind"])
    again = TableReader.from_dict(json.loads(json.dumps(reader.to_dict())))
    assert_same(again.read(frame), reader.read(frame))
    assert again.to_dict() == reader.to_dict()
    assert again.inputs[1].levels == ("a", "b")
    assert again.inputs[0].day_first is True
    assert again.task == reader.task


def test_a_complete_table_has_all_columns_and_is_read_as_before():
    frame = make_frame().set_index("date")
    reader = fit(frame, task="week(date)")
    complete = reader.complete(frame)
    assert {"date", "week(date)"} < set(complete.columns)
    assert complete.groupby(["week(date)", "date"]).ngroups == 28  # no name stands for two things
    assert_same(reader.read(complete), reader.read(frame))
    assert frame.index.name == "date"


@pytest.mark.parametrize(
    "write",
    [
        lambda dates: dates.dt.strftime("%d/%m/%Y"),
        lambda dates: dates.dt.strftime("%Y-%m-%dT00:00+02:00"),
        lambda dates: dates.dt.to_period("D"),
        lambda dates: dates.dt.tz_localize("Europe/Berlin"),
        lambda dates: dates.dt.date,
    ],
    ids=["day first", "offsets", "periods", "zone", "objects"],
)
def test_a_complete_table_has_dates_of_pandas_own(write):
    frame = make_frame(70).assign(date=lambda table: write(table["date"]))
    reader = fit(frame, task="week(date)")
    complete = reader.complete(frame)
    assert pd.api.types.is_datetime64_any_dtype(complete["date"].dtype)
    assert_same(reader.read(complete), reader.read(frame))


def test_labels_are_numbers_of_levels():
    frame = make_frame()
    reader = fit(frame)
    assert reader.inputs[1].is_category
    assert not reader.inputs[0].is_category
    np.testing.assert_array_equal(reader.read(frame).x[:, 1], np.tile([0, 1], 28))


def test_new_labels_have_one_number_in_a_context_and_its_places():
    frame = make_frame()
    reader = fit(frame)
    context = frame.assign(site=frame["site"].replace({"a": "z"}))
    with pytest.warns(TableWarning, match="'site' has 1 label that it was not fitted with: z"):
        table = reader.read(context)
    asked = frame.iloc[:4].assign(site=["q", "z", "a", "b"], date="2025-01-01")
    with pytest.warns(TableWarning, match="1 label that it was not fitted with: q"):
        places = reader.read_places(asked, context, table)
    np.testing.assert_array_equal(table.x[:, 1], np.tile([2, 1], 28))
    np.testing.assert_array_equal(places.x[:, 1], [3, 2, 0, 1])


def test_places_have_the_order_of_dates_that_their_context_has():
    frame = make_frame()
    reader = fit(frame, task="week(date)")
    context = frame.assign(date=frame["date"].dt.strftime("%d/%m/%Y"))
    table = reader.read(context)
    places = reader.read_places(context.iloc[:8], context, table)  # 04/01/2024 alone leaves it open
    np.testing.assert_array_equal(places.x, table.x[:8])
    assert places.keys == table.keys


def test_rows_at_one_time_that_is_written_in_two_ways_are_found():
    frame = make_frame().astype({"date": str})
    again = pd.concat([frame, frame.iloc[[4]].assign(date="3 January 2024")], ignore_index=True)
    with pytest.raises(TableError, match="Row 57 is at the place of row 5 too: date = 3 January 2024, site = a"):
        fit(again).read(again)


def test_covariates_stand_after_the_outputs_and_are_known_at_places():
    frame = make_frame()
    reader = fit(frame, covariates=["wind"])
    assert reader.num_filled == 1
    assert reader.outputs.names == ["y", "wind"]
    table = reader.read(frame)
    assert table.y.shape == (56, 2)
    asked = frame.drop(columns="y").iloc[::2]
    y = reader.read_places(asked, frame, table).y
    assert np.isnan(y[:, 0]).all()
    np.testing.assert_array_equal(y[:, 1], table.y[::2, 1])


def test_without_covariates_all_outputs_are_filled():
    frame = make_frame()
    assert fit(frame).num_filled == 1
    assert np.isnan(fit(frame).read_places(frame, frame, fit(frame).read(frame)).y).all()


def test_covariates_with_holes_are_named_wherever_they_are():
    frame = make_frame()
    holes = frame.assign(wind=frame["wind"].where(frame.index != 7))
    message = r"covariate 'wind' is missing in row 8: .* never filled\. Fill these cells, drop .* among the outputs"
    with pytest.raises(TableError, match=message):
        fit(holes, covariates=["wind"])
    reader = fit(frame, covariates=["wind"])
    with pytest.raises(TableError, match=message):
        reader.read(holes)
    with pytest.raises(TableError, match=message):
        reader.read_places(holes, frame, reader.read(frame))
    with pytest.raises(TableError, match="no column 'wind'"):
        reader.read_places(frame.drop(columns="wind"), frame, reader.read(frame))


@pytest.mark.parametrize(
    ("change", "kwargs", "message"),
    [
        ({"wind": 3.0}, {"covariates": ["wind"]}, "covariate 'wind' has the same value, .*3.0.*leave it out"),
        ({}, {"covariates": ["y"]}, "y is named more than once among the inputs, outputs and covariates"),
        ({}, {"covariates": "wind"}, "covariates must be a list of column names, got 'wind'"),
        ({}, {"covariates": ["wind"], "task": "wind"}, "'wind' cannot be a covariate"),
        ({}, {"task": ["date", "site"]}, r"name of one column, got \['date', 'site'\]"),
        ({}, {"inputs": [0]}, r"named by text, got 0\. Rename them"),
        ({"site": [["a"]] * 56}, {}, "'site' has a list in row 1 and 55 more, where one number, date or label"),
        ({"site": [{}] * 56}, {"inputs": ["date"], "task": "site"}, "'site' has a dict in row 1"),
        ({"date": 1j}, {}, "'date' holds complex numbers where real numbers are expected"),
        ({"date": [1j, 2.0] * 28}, {}, "'date' holds complex numbers where real numbers are expected"),
        ({"date": np.array([1j, "2", 3, 4] * 14, dtype=object)}, {}, "'date' has text where a number is expected: 1j"),
        ({"date": [0, 5e-324] * 28}, {"task": "site"}, "'date' has the same value in all 56 rows"),
        ({"y": pd.Timestamp("2024")}, {}, "'y' holds dates where real numbers are expected"),
        ({"site": [b"a", b"b"] * 28}, {}, "'site' has a label that is a bytes: make it text"),
        ({"site": [*"abcdefghijklmn"] * 4}, {"periodic": {"site": 3}}, "labels have no period, got 3"),
        ({"site": [f"note {i}" for i in range(56)]}, {}, "56 different labels in 56 rows, such as note 0, .* no dist"),
        ({"site": "a"}, {}, "'site' has the same value in all 56 rows"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_odd_columns_are_explained(change, kwargs, message):
    frame = make_frame().assign(**change)
    given = {"inputs": ["date", "site"], "task": None, "periodic": {}, **kwargs}
    with pytest.raises(TableError, match=message):
        TableReader.fit(frame, outputs=["y"], families={}, **given)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", " 2.5", "1e3"], [1, 2.5, 1000]),
        ([Decimal("1.5"), Decimal("2"), Decimal("-3")], [1.5, 2, -3]),
        (pd.array([1, 2, 4], dtype="Int64"), [1, 2, 4]),
        (pd.array([0.5, 2, 4], dtype="Float64"), [0.5, 2, 4]),
        (pd.to_timedelta([0, 12, 36], unit="h"), [0, 0.5, 1.5]),
        (pd.arrays.SparseArray([0, -1, 1.5]), [0, -1, 1.5]),
        ([1e300, -1e300, 0.0], [1e300, -1e300, 0.0]),
    ],
    ids=["text", "Decimal", "Int64", "Float64", "durations", "sparse", "huge"],
)
def test_numbers_of_any_type_are_standardized(cells, expected):
    frame = pd.DataFrame({"x": cells, "y": [1.0, 2.0, 4.0]})
    reader = fit(frame, ["x"])
    np.testing.assert_array_equal(reader.inputs[0].read(frame["x"]), expected)
    x = reader.read(frame).x
    assert np.mean(x) == pytest.approx(0)
    assert np.std(x) == pytest.approx(1)


@pytest.mark.parametrize(
    ("cells", "levels", "numbers"),
    [
        ([True, False, True, False], (False, True), [1, 0, 1, 0]),
        (np.array([True, False, True, False], dtype=object), (False, True), [1, 0, 1, 0]),
        (pd.array([True, False, True, False], dtype="boolean"), (False, True), [1, 0, 1, 0]),
        (pd.array(["b", "a", "b", "a"], dtype="string"), ("a", "b"), [1, 0, 1, 0]),
        (pd.Categorical(["b", "a", "b", "a"], categories=[*"xab"]), ("a", "b"), [1, 0, 1, 0]),
        (pd.Categorical([7, 3, 7, 3]), (3, 7), [1, 0, 1, 0]),
        (["b", 1, "b", "a"], (1, "a", "b"), [2, 0, 2, 1]),
        ([np.str_("b"), np.int64(1), "b", "a"], (1, "a", "b"), [2, 0, 2, 1]),
    ],
    ids=["bool", "objects", "boolean", "string", "unused level", "numbers", "mixed", "numpy"],
)
def test_labels_of_any_type_are_levels(cells, levels, numbers):
    frame = pd.DataFrame({"x": pd.Series(cells), "t": range(4), "y": [1.0, 2.0, 4.0, 3.0]})
    reader = fit(frame, ["t", "x"])
    assert reader.inputs[1].levels == levels
    assert json.loads(json.dumps(levels)) == list(levels)
    np.testing.assert_array_equal(reader.read(frame).x[:, 1], numbers)


def test_labels_are_found_that_a_file_has_made_numbers():
    frame = pd.DataFrame({"x": ["1", "2", "3a", "3a", "3b"], "t": range(5), "y": [1.0, 2.0, 4.0, 3.0, 2.0]})
    reader = fit(frame, ["t", "x"])
    other = pd.DataFrame({"x": [2, 1], "t": [0, 1], "y": [1.0, 2.0]})
    np.testing.assert_array_equal(reader.read(other).x[:, 1], [1, 0])


@pytest.mark.parametrize("cells", [[3, 1, 3, 1], [3.0, 1.0, 3.0, 1.0], ["3", 1, "3", 1], [3, "x", 3, 1]])
def test_numbers_are_labels_where_that_is_said(cells):
    frame = pd.DataFrame({"x": pd.Series(cells), "t": range(4), "y": [1.0, 2.0, 4.0, 3.0]})
    reader = TableReader.fit(frame, ["t", "x"], ["y"], None, {}, {"x": "category"})
    assert reader.inputs[1].is_category
    assert set(reader.inputs[1].levels) <= {1, 3, "3", "x"}


def test_text_among_numbers_is_told_with_a_way_to_keep_it():
    frame = pd.DataFrame({"x": [1, 2, 1, "3a"], "t": range(4), "y": [1.0, 2.0, 4.0, 3.0]})
    with pytest.raises(TableError, match=r"text where a number is expected: '3a' .* families=\{'x': 'category'\}"):
        fit(frame, ["t", "x"])


def test_an_input_is_of_no_family_but_category():
    with pytest.raises(TableError, match=r"input 'date' cannot be of the family 'real': .* only 'category'"):
        TableReader.fit(make_frame(), ["date"], ["y"], "site", {}, {"date": "real"})


@pytest.mark.parametrize("cell", [None, "", "  ", np.nan, pd.NA])
def test_missing_labels_are_named(cell):
    frame = make_frame().astype({"site": object})
    frame.loc[3, "site"] = cell
    with pytest.raises(TableError, match="'site' is missing in 1 row, first in row 4"):
        fit(frame)


def test_tables_with_an_index_of_dates_keep_it():
    table = make_table(num_tasks=2, num_points=14)
    table = table[table["site"] == "site 0"].set_index(pd.date_range("2024-01-01", periods=14))
    imputer = SGPVAEImputer(["index"], ["temp", "wet"], "week(index)", max_epochs=1, compare=False, progress=False).fit(
        table
    )
    filled = imputer.transform(table)
    pd.testing.assert_index_equal(filled.index, table.index)
    assert filled[["temp", "wet"]].notna().all(axis=None)
    asked = pd.DataFrame(index=pd.date_range("2024-01-03 12:00", periods=3))
    pd.testing.assert_index_equal(imputer.predict(asked, table).index, asked.index)


def test_a_saved_model_makes_the_same_tasks_and_labels(tmp_path):
    frame = make_frame(14).assign(date=lambda table: table["date"].dt.strftime("%d/%m/%Y"))
    options = {"task": "week(date)", "max_epochs": 1, "compare": False, "progress": False}
    imputer = SGPVAEImputer(["date", "site"], ["y", "wind"], **options).fit(frame)
    imputer.save(tmp_path / "model")
    holes = frame.assign(y=frame["y"].where(frame.index % 3 > 0))
    again = SGPVAEImputer.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.transform(holes), imputer.transform(holes))


def test_the_command_keeps_an_index_of_dates(tmp_path):
    table, model, filled = (tmp_path / name for name in ("table.parquet", "model", "filled.parquet"))
    frame = make_frame(14).iloc[::2].set_index("date")
    frame.iloc[3, 1] = np.nan
    frame.to_parquet(table)
    given = ["--inputs", "date", "--outputs", "y,wind", "--max-epochs", "1", "--quiet"]
    assert main(["fit", str(table), *given, "-o", str(model)]) == 0
    assert main(["impute", str(model), str(table), "-o", str(filled), "--quiet"]) == 0
    result = pd.read_parquet(filled)
    pd.testing.assert_index_equal(result.index, frame.index, exact=False)
    assert result["y"].notna().all()


def test_the_command_makes_tasks_of_dates(tmp_path, capsys):
    table, model, filled = (str(tmp_path / name) for name in ("table.csv", "model", "filled.csv"))
    frame = make_frame()
    frame.loc[::5, "y"] = np.nan
    frame.to_csv(table, index=False)
    given = ["--inputs", "date", "--outputs", "y,wind", "--task", "week(date)", "--max-epochs", "1", "--quiet"]
    frame[frame["site"] == "a"].to_csv(table, index=False)
    assert main(["fit", table, *given, "-o", model]) == 0
    assert main(["impute", model, table, "-o", filled, "--quiet"]) == 0
    assert pd.read_csv(filled)["y"].notna().all()
    assert main(["fit", table, *given[:5], "fortnight(date)", *given[6:], "-o", model]) == 1
    assert "tasks made of dates are hour, day, week" in capsys.readouterr().err


ODD = [
    1,
    2.5,
    1e300,
    np.inf,
    np.nan,
    None,
    pd.NA,
    pd.NaT,
    "a",
    "1",
    "",
    " ",
    "nan",
    "inf",
    "TRUE",
    "0x10",
    "12:30",
    "now",
]
ODD += [
    "2024-01-01",
    "1/2/2024",
    "13/2/2024",
    "2/13/2024",
    "1.2.24",
    "20240101",
    "2024-02-30",
    "0000-00-00",
    "9999-12-31",
]
ODD += [
    "2024-01-01T00:00Z",
    "2024-01-01T00:00:00.123456789+05:30",
    "2024-W05",
    "1 Jan",
    "31.12.",
    "24-12-31",
    b"x",
    (1, 2),
]
ODD += [dt.date(2024, 1, 1), dt.date(1, 1, 1), dt.time(1), dt.timedelta(1), pd.Timestamp("2024", tz="UTC"), 1j, [1], {}]
ODD += [
    pd.Timestamp("2024"),
    pd.Period("2024-01"),
    pd.Interval(0, 1),
    Decimal("1.5"),
    True,
    np.bool_(False),
    np.int8(1),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore::gpytorch_sgpvae.table.TableWarning")
def test_odd_cells_are_read_the_same_everywhere_or_explained(seed):
    random = np.random.default_rng(seed)
    num_read = 0
    for _ in range(80):
        cells = np.empty(random.integers(2, 8), dtype=object)
        cells[:] = [ODD[i] for i in random.choice(random.integers(0, len(ODD), 3), len(cells))]
        column = pd.Series(cells).infer_objects() if random.random() < 0.5 else pd.Series(cells)
        frame = pd.DataFrame({"x": column, "t": np.arange(len(cells)), "y": random.normal(size=len(cells))})
        task = str(random.choice(["x", "week(x)", "hour(x)"])) if random.random() < 0.7 else None
        try:
            reader = fit(frame, ["t", "x"] if random.random() < 0.6 else ["t"], task)
            table = reader.read(frame)
        except TableError:
            continue
        num_read += 1
        assert np.isfinite(table.x).all()
        assert_same(TableReader.from_dict(json.loads(json.dumps(reader.to_dict()))).read(frame), table)
        np.testing.assert_array_equal(reader.read_places(frame, frame, table).x, table.x)
        np.testing.assert_array_equal(reader.read(reader.complete(frame)).x, table.x)
    assert num_read >= 5


def test_a_few_rows_at_one_place_are_repeated_measurements():
    hours = pd.date_range("2024-10-27", periods=300, freq="h").to_series().reset_index(drop=True)
    table = pd.DataFrame({"time": hours, "y": np.sin(np.arange(300.0))})
    table.loc[4, "time"] = table.loc[3, "time"]
    reader = TableReader.fit(table, ["time"], ["y"], None, {}, {}, ())
    with pytest.warns(TableWarning, match="Row 5 is at the place of row 4 too.*repeated measurements"):
        rows = reader.read(table)
    assert rows.x[4] == rows.x[3]
    table.loc[10:13, "time"] = table.loc[3, "time"]
    with pytest.raises(TableError, match=r"\(5 such rows\)\. Drop or average them"):
        reader.read(table)
