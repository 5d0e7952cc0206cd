"""Tables of text: what nobody changes comes out byte for byte."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from command_files import make_series

from gpytorch_sgpvae.table import TableError
from gpytorch_sgpvae.table.cells import Reading
from gpytorch_sgpvae.table.families.number_columns import RealColumn
from gpytorch_sgpvae.table.lossless import Roles, read_file
from gpytorch_sgpvae.table.text_table import parse, unquote

# What other programs change when they read and write it.
ODD_CELLS = [
    "007", "NA", "TRUE", "None", "9007199254740993", "1e5", "1.50", "+3", " x ", "", '""', '"a"', "ä", "#N/A", "-0",
    "2024-01-02", "01/02/2024", "nan", "12345678901234567890123", "0x10", "1_000", "٣", "'", "=1+1", "\u2028", "\x0b",
]  # fmt: skip
SEPARATORS = [",", ";", "\t"]
ENDS = ["\n", "\r\n", "\r"]
ENCODINGS = {"utf-8": b"", "utf-8-sig": b"", "utf-16": b"", "utf-16-be": b"\xfe\xff", "cp1252": b""}


def quoted(text):
    return '"' + text.replace('"', '""') + '"'


class Generated:
    """A file that is put together cell by cell, with a day, a temperature with holes, and columns of all sorts."""

    def __init__(self, seed):
        self.random = random = np.random.default_rng(seed)
        self.separator, self.end = self.pick(SEPARATORS), self.pick(ENDS)
        self.encoding = self.pick(list(ENCODINGS))
        others = [self.pick(["a", "a", "", 'say "a"', f"b{self.separator}c", "note", "two\nlines"]) for _ in range(4)]
        self.names = ["day", "temp", *others[: random.integers(5)]]
        self.order = random.permutation(len(self.names))
        self.has_end = random.random() < 0.8
        number = int(random.integers(1, 8))
        self.holes = random.random(number) < 0.4
        self.header = [quoted(name) if self.must_quote(name) else name for name in self.names]
        self.rows = [self.make_row(n) for n in range(number)]
        self.blank = ["" if random.random() < 0.8 else self.pick(["", " ", "  "]) + self.end for _ in self.rows]
        self.before = "" if random.random() < 0.8 else self.end

    def pick(self, values):
        return values[int(self.random.integers(len(values)))]

    def must_quote(self, text):
        special = any(mark in text for mark in (self.separator, '"', "\r", "\n"))
        return special or self.random.random() < 0.2

    def make_row(self, n):
        temp = (
            self.pick(["", "NA", "nan", '""', '"NA"', " "]) if self.holes[n] else self.pick(["20", '"20.50"', " 3.1"])
        )
        odd = [self.pick(ODD_CELLS) for _ in self.names[2:]]
        if self.encoding == "cp1252":
            odd = [cell.encode("cp1252", "replace").decode("cp1252") for cell in odd]
        cells = [quoted(cell) if self.must_quote(cell) and cell[:1] != '"' else cell for cell in odd]
        return [str(n), temp, *cells]

    def file(self, header=(), added=None, temps=None):
        lines = [self.before, self.separator.join([*(self.header[i] for i in self.order), *header]), self.end]
        for n, row in enumerate(self.rows):
            cells = list(row)
            if temps is not None and self.holes[n]:
                cells[1] = quoted(temps[n]) if cells[1][:1] == '"' else temps[n]
            last = n == len(self.rows) - 1
            end = "" if last and not self.has_end else self.end + self.blank[n]
            lines += [self.separator.join([*(cells[i] for i in self.order), *(added[n] if added else ())]), end]
        text = "".join(lines)
        mark = ENCODINGS[self.encoding]
        return mark + text.encode(self.encoding)


@pytest.mark.parametrize("part", range(8))
def test_of_hundreds_of_files_only_holes_change(tmp_path, part):
    for seed in range(50 * part, 50 * part + 50):
        made = Generated(seed)
        (tmp_path / "in.csv").write_bytes(made.file())
        encoding = made.encoding if made.encoding == "cp1252" else None
        table = read_file(str(tmp_path / "in.csv"), Roles(("day",), ("temp",)), Reading(), None, encoding)
        assert table.frame["temp"].isna().tolist() == made.holes.tolist(), seed
        values = np.where(made.holes, 0.1 * np.arange(len(made.holes)) + 1 / 3, table.frame["temp"])
        filled = made.holes
        result = table.frame.copy()
        result["temp"] = values
        result["temp_std"], result["temp_filled"] = np.where(filled, 0.25, np.nan), filled
        table.write_filled(result, [RealColumn("temp")], str(tmp_path / "out.csv"))
        added = [["0.25" if hole else "", str(bool(hole))] for hole in filled]
        expected = made.file(["temp_std", "temp_filled"], added, [repr(float(value)) for value in values])
        assert (tmp_path / "out.csv").read_bytes() == expected, seed


@pytest.mark.parametrize("seed", range(50))
def test_any_file_comes_out_as_it_came(seed):
    made = Generated(1000 + seed)
    data = made.file()
    table = parse(data, "it", made.separator, made.encoding if made.encoding == "cp1252" else None)
    assert table.to_bytes() == data
    assert table.names == [made.names[i].strip() for i in made.order]


def test_text_is_read_as_pandas_reads_it():
    table = make_series()
    table["note"] = ['a "b"', "c,d", "e\nf", "", " g "] * 4
    text = table.to_csv(index=False)
    ours = parse(text.encode(), "it")
    theirs = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    for number, name in enumerate(theirs.columns):
        assert ours.column(number) == theirs[name].tolist()


@pytest.mark.parametrize(
    ("cell", "text"), [('"a"', "a"), ('"a""b"', 'a"b'), ("a", "a"), ('""', ""), ('"a"b', "ab"), ('a"b"', 'a"b"')]
)
def test_quotes_are_taken_off_as_spreadsheets_do(cell, text):
    assert unquote(cell) == text


def test_the_separator_is_guessed_from_the_header_outside_of_quotes():
    assert parse(b'"a,b,c";d\n1;2\n', "it").names == ["a,b,c", "d"]
    assert parse(b"a\tb,c\td\n1\t2\t3\n", "it").separator == "\t"
    assert parse(b"a b\n1\n", "it").names == ["a b"]


def test_a_cell_with_a_separator_is_quoted_when_it_is_filled():
    table = parse(b"a,b\n,1\n", "it").changed({"a": (np.array([0]), ['x,"y"'])}, {"c,d": ["1,5"]})
    assert table.to_bytes() == b'a,b,"c,d"\n"x,""y""",1,"1,5"\n'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (b"\n\n", "it is empty"),
        (b"a,b\n1\n", r"it has 1 cell in line 2 \(row 1\), where the header has 2"),
        (b"a,b\n\n1,2\n3,4,5\n", r"it has 3 cells in line 4 \(row 2\)"),
        (b'a,b\n"x\ny",2\n3\n', r"it has 1 cell in line 4 \(row 2\)"),
        (b'a,b\n1,"2\n', "a quote in line 2 that is never closed"),
        (b"a,b\n1,\xff\n", "not written in utf-8 at byte 7"),
        (b"a,\0b\n", "bytes that are zero"),
        (b"PK\x03\x04rest", "a workbook of Excel"),
        (b"PAR1rest", "a Parquet file"),
        (b"\x1f\x8brest", "packed by gzip"),
    ],
)
def test_what_is_no_table_is_told_with_its_line(data, message):
    with pytest.raises(TableError, match=message):
        parse(data, "it")
