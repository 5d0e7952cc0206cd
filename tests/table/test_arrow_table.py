"""Parquet tables keep the types that they came with."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from command_files import folder_of, labelled_imputer, make_labelled, run

from gpytorch_sgpvae.table import TableError
from gpytorch_sgpvae.table.arrow_table import ArrowTable, parse


@pytest.fixture
def table():
    frame = make_labelled()
    number = len(frame)
    types = {
        "site": pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
        "day": pyarrow.int16(),
        "temp": pyarrow.float32(),
        "cars": pyarrow.int32(),
        "wet": pyarrow.bool_(),
        "garage": pyarrow.dictionary(pyarrow.int16(), pyarrow.string()),
    }
    columns = {name: pyarrow.array(frame[name], kind, from_pandas=True) for name, kind in types.items()}
    columns["large"] = pyarrow.array([2**53 + 1, None] * (number // 2), pyarrow.int64())
    columns["price"] = pyarrow.array([decimal.Decimal("1.10")] * number, pyarrow.decimal128(9, 2))
    columns["when"] = pyarrow.array([datetime.datetime(2024, 1, 1)] * number, pyarrow.timestamp("ns", "Europe/Rome"))
    columns["list"] = pyarrow.array([[1, 2]] * number)
    return pyarrow.table(columns).replace_schema_metadata({"made by": "hand"})


def test_types_and_known_cells_are_kept_and_unnamed_columns_are_the_same(table, tmp_path):
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    assert run("impute", folder_of(labelled_imputer), tmp_path / "in.parquet", "-o", tmp_path / "out.parquet") == 0
    filled = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert filled.column_names[: len(table.column_names)] == table.column_names
    assert filled.schema.metadata[b"made by"] == b"hand"
    for name in table.column_names:
        assert filled.schema.field(name).type == table.schema.field(name).type
        old, new = table[name].to_pylist(), filled[name].to_pylist()
        assert [b for a, b in zip(old, new, strict=True) if a is not None] == [a for a in old if a is not None]
    for name in ("temp", "cars", "wet", "garage"):
        assert not filled[name].null_count
        assert filled[f"{name}_filled"].to_pylist() == [value is None for value in table[name].to_pylist()]


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"\0" * 100 + b"PAR1", b"a,b\n1,2\n"])
def test_a_broken_file_gets_a_sentence(data):
    with pytest.raises(TableError, match="it cannot be read as a Parquet table: "):
        parse(data, "it")


def test_a_type_that_cannot_hold_a_prediction_is_named():
    table = ArrowTable("it", pyarrow.table({"y": pyarrow.array([True, None])}))
    with pytest.raises(TableError, match="'y' of it is of type bool, which cannot hold"):
        table.changed({"y": (np.array([1]), ["maybe"])}, {})


def test_decimal_numbers_stay_decimal():
    table = ArrowTable("it", pyarrow.table({"y": pyarrow.array([decimal.Decimal("1.10"), None])}))
    filled = table.changed({"y": (np.array([1]), [2.3456])}, {}).table
    assert filled["y"].to_pylist()[0] == decimal.Decimal("1.10")
    assert float(filled["y"].to_pylist()[1]) == pytest.approx(2.35, abs=0.01)


def test_a_column_without_any_value_gets_the_type_of_what_is_filled_in():
    table = ArrowTable("it", pyarrow.table({"y": pyarrow.nulls(2)}))
    filled = table.changed({"y": (np.array([0, 1]), [1.5, 2.5])}, {"more": pd.Series([True, False])})
    assert filled.table.to_pydict() == {"y": [1.5, 2.5], "more": [True, False]}
