"""Every odd table and every odd call of the command gets a sentence: no traceback, no hang, no file."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from command_files import dated_imputer, folder_of, labelled_imputer, make_labelled, make_series, run, tiny_imputer

from gpytorch_sgpvae.table import SGPVAEImputer, TableError

TABLE = make_series()
TEXT = TABLE.to_csv(index=False)
LINES = TEXT.splitlines()
FIT = ["--inputs", "day", "--outputs", "temp", "--task", "site", "--max-epochs", "1"]


def lines(*changes, end="\n"):
    """The table with some lines replaced: pairs of a number and a text, None to leave it out."""
    made = dict(enumerate(LINES)) | dict(changes)
    return end.join(made[number] for number in sorted(made) if made[number] is not None) + end


def frame(**columns):
    return TABLE.assign(**columns).to_csv(index=False)


def renamed(**names):
    return TABLE.rename(columns=names).to_csv(index=False)


# What `impute` says of a file: its contents, what is said.
CONTENTS = {
    "nothing": ("", "is empty"),
    "blanks": ("  \n\n", "is empty"),
    "a mark alone": ("\ufeff", "is empty"),
    "a header alone": ("site,day,temp\n", "The table has no rows"),
    "a header without an end": ("site,day,temp", "The table has no rows"),
    "a row alone": ("s0,1,20.5\n", "no column 'day'"),
    "one column": ("temp\n1\n2\n", "no column 'day'"),
    "no input": (TABLE.drop(columns="day").to_csv(index=False), "no column 'day'"),
    "no output": (TABLE.drop(columns="temp").to_csv(index=False), "no column 'temp'"),
    "no task": (TABLE.drop(columns="site").to_csv(index=False), "no column 'site'"),
    "another case": (renamed(temp="Temp"), "no column 'temp'.*Did you mean 'Temp'"),
    "an input twice": (lines((0, "day,day,temp")), "more than one column 'day'"),
    "an output twice": (lines((0, "temp,day,temp")), "no column 'site'|more than one column"),
    "a task twice": (lines((0, "site,day,site")), "more than one column 'site'|no column 'temp'"),
    "the same but for blanks": ("site,day,temp, temp\ns0,1,2,3\n", "more than one column 'temp'"),
    "a short row": (lines((3, "s0,2")), r"has 2 cells in line 4 \(row 3\), where the header has 3"),
    "a long row": (lines((3, "s0,2,20,1")), r"has 4 cells in line 4 \(row 3\)"),
    "a separator at each end": (lines((1, LINES[1] + ",")), r"has 4 cells in line 2"),
    "a decimal comma unquoted": (lines((1, "s0,0,20,5")), r"has 4 cells in line 2"),
    "a comment": ("# made by hand\n" + TEXT, "no column|where the header has 1"),
    "a title": ("Temperatures\n" + TEXT, "where the header has 1"),
    "units below the header": (lines((0, LINES[0] + "\n,d,C")), "The task 'site' is missing in 1 row, first in row 1"),
    "a sum at the end": (TEXT + "sum,,400\n", "'day' is missing in 1 row"),
    "a row of separators": (TEXT + ",,\n", "The task 'site' is missing in 1 row, first in row 21"),
    "an open quote": (lines((2, 's0,"1,20')), "a quote in line 3 that is never closed"),
    "an open quote at the end": (TEXT + '"', "a quote in line 22 that is never closed"),
    "html": ("<!DOCTYPE html>\n<html></html>\n", "no column 'day'"),
    "json": ('{"day": [1, 2]}\n', "no column 'day'|a quote"),
    "prose": ("Dear all, here is the table.\n", "The table has no rows|no column"),
    "blanks between cells": (TEXT.replace(",", " "), "no column 'day'"),
    "bars between cells": (TEXT.replace(",", "|"), "no column 'day'"),
    "text in an output": (lines((2, "s0,1,warm")), "'temp' has text where a number is expected: 'warm' in row 2"),
    "text in an input": (lines((2, "s0,one,20")), "'day' has text where a number is expected: 'one' in row 2"),
    "labels in an output": (frame(temp="warm"), "'temp' has text where a number is expected"),
    "dates in an output": (frame(temp="2024-01-02"), "'temp' has text where a number is expected|dates"),
    "dates in an input of numbers": (frame(day="2024-01-02"), "text where a number is expected|dates"),
    "a unit": (lines((2, "s0,1,20 C")), "'20 C' in row 2"),
    "a sign": (lines((2, "s0,1,<5")), "'<5' in row 2"),
    "a thousands comma": (lines((2, 's0,1,"1,000.5"')), "'1,000.5' in row 2"),
    "a thousands blank": (lines((2, "s0,1,1 000")), "'1 000' in row 2"),
    "decimal commas": (frame(temp="20,5"), "numbers with a comma, such as '20,5'.*--decimal=,"),
    "an unknown mark": (lines((2, "s0,1,None")), "'None' in row 2"),
    "a bar as a mark": (lines((2, "s0,1,-")), "'-' in row 2"),
    "a formula": (lines((2, "s0,1,=A1")), "'=A1' in row 2"),
    "an error of Excel": (lines((2, "s0,1,#DIV/0!")), "'#DIV/0!' in row 2"),
    "infinity": (lines((2, "s0,1,inf")), "infinite value in row 2"),
    "minus infinity": (lines((2, "s0,1,-Infinity")), "infinite value in row 2"),
    "a number beyond all": (lines((2, "s0,1,1e999")), "infinite value in row 2"),
    "an infinite input": (lines((2, "s0,inf,20")), "'day' has an infinite value in row 2"),
    "a missing input": (lines((2, "s0,,20")), "The input 'day' is missing in 1 row, first in row 2"),
    "an input that is nan": (lines((2, "s0,nan,20")), "'day' has text where a number is expected: 'nan' in row 2"),
    "a missing task": (lines((2, ",1,20")), "The task 'site' is missing in 1 row, first in row 2"),
    "a task of blanks": (lines((2, "  ,1,20")), "The task 'site' is missing in 1 row"),
    "the same place twice": (TEXT + LINES[-1] + "\n", "Row 21 is at the place of row 20 too"),
    "truth values for numbers": (frame(day=True), "at the place of|text where a number is expected"),
    "a column of ours": (frame(temp_std=1), "already has columns temp_std"),
    "all columns of ours": (frame(temp_lower=1, temp_filled=1), "already has columns temp_lower, temp_filled"),
}

# The same, of files that are no text in UTF-8.
BYTES = {
    "latin-1": (lines((2, "sä,1,20")).encode("latin-1"), "not written in utf-8 at byte .*--encoding"),
    "utf-16 without a mark": (TEXT.encode("utf-16-le"), "bytes that are zero.*--encoding utf-16-le"),
    "half of utf-16": (TEXT.encode("utf-16")[:-1], "not written in utf-16"),
    "a zero": (TEXT.replace("20", "\0").encode(), "bytes that are zero"),
    "zeros": (b"\0" * 1000, "bytes that are zero"),
    "noise": (bytes(range(128, 256)) * 10, "not written in utf-8 at byte 1"),
    "half of a letter": ("site,dé".encode()[:-1], "not written in utf-8"),
    "Excel": (b"PK\x03\x04" + b"rest" * 99, "a workbook of Excel or an archive: save it as CSV"),
    "old Excel": (b"\xd0\xcf\x11\xe0" + b"rest" * 99, "an old workbook of Excel"),
    "Parquet by another name": (b"PAR1rest", "give it a name that ends with .parquet"),
    "gzip by another name": (gzip.compress(TEXT.encode()), "give it a name that ends with .gz"),
}

# What is said of files by other names.
NAMED = {
    "a broken gzip": ("t.csv.gz", gzip.compress(TEXT.encode())[:-9], "cannot be unpacked"),
    "no gzip": ("t.csv.gz", TEXT.encode(), "cannot be unpacked"),
    "no bzip2": ("t.csv.bz2", TEXT.encode(), "cannot be unpacked"),
    "no xz": ("t.csv.xz", TEXT.encode(), "cannot be unpacked"),
    "an empty gzip": ("t.csv.gz", gzip.compress(b""), "is empty"),
    "an empty Parquet": ("t.parquet", b"", "cannot be read as a Parquet table"),
    "no Parquet": ("t.parquet", TEXT.encode(), "cannot be read as a Parquet table"),
    "half a Parquet": ("t.pq", b"PAR1" + b"x" * 500, "cannot be read as a Parquet table"),
}


def refused(capsys, *arguments, match, status=1):
    """The command ends with a sentence, which has no traceback in it."""
    assert run(*arguments) == status
    told = capsys.readouterr()
    assert not told.out
    last = [line for line in told.err.splitlines() if line.startswith("sgpvae: ") and "note: " not in line]
    assert len(last) == 1, told.err
    assert re.search(match, last[0]), last[0]
    assert "Traceback" not in told.err
    assert last[0][-1] in ".?)"


def impute(capsys, folder, *options, match, source=None, make=tiny_imputer):
    before = sorted(folder.rglob("*"))
    source = folder / "table.csv" if source is None else source
    refused(capsys, "impute", folder_of(make), source, "-o", folder / "out.csv", *options, match=match)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("text", "match"), CONTENTS.values(), ids=CONTENTS)
def test_an_odd_table_gets_a_sentence(text, match, tmp_path, capsys):
    (tmp_path / "table.csv").write_text(text, encoding="utf-8")
    impute(capsys, tmp_path, match=match)


@pytest.mark.parametrize(("data", "match"), BYTES.values(), ids=BYTES)
def test_odd_bytes_get_a_sentence(data, match, tmp_path, capsys):
    (tmp_path / "table.csv").write_bytes(data)
    impute(capsys, tmp_path, match=match)


@pytest.mark.parametrize(("name", "data", "match"), NAMED.values(), ids=NAMED)
def test_an_odd_file_gets_a_sentence(name, data, match, tmp_path, capsys):
    (tmp_path / name).write_bytes(data)
    impute(capsys, tmp_path, match=match, source=tmp_path / name)


# Errors of the options of `impute`.
OPTIONS = {
    "an encoding that there is not": (["--encoding", "klingon"], "no encoding 'klingon'"),
    "an encoding that is no text": (["--encoding", "base64"], "encoding|not written in base64"),
    "a separator that there is not": (["--sep", "tab"], "no column 'day'"),
    "another separator": (["--sep", ";"], "no column 'day'"),
    "utf-16 of utf-8": (["--encoding", "utf-16-le"], "not written in utf-16-le|no column"),
    "a device that there is not": (["--device", "abacus"], "The device 'abacus' cannot be used here"),
    "a device without numbers": (["--device", "meta"], "holds no numbers"),
    "a device with a number": (["--device", "cuda:99"], "The device 'cuda:99' cannot be used here"),
}


@pytest.mark.parametrize(("options", "match"), OPTIONS.values(), ids=OPTIONS)
def test_an_odd_option_gets_a_sentence(options, match, tmp_path, capsys):
    (tmp_path / "table.csv").write_text(TEXT)
    impute(capsys, tmp_path, *options, match=match)


# Errors of `fit`, all before anything is trained: its options, and the table.
FITS = {
    "an input that there is not": (["--inputs", "hour"], TEXT, "no column 'hour'"),
    "an output that there is not": (["--outputs", "rain"], TEXT, "no column 'rain'"),
    "a task that there is not": (["--task", "week"], TEXT, "no column 'week'"),
    "a covariate that there is not": (["--covariates", "sun"], TEXT, "no column 'sun'"),
    "a column twice": (["--inputs", "day,day"], TEXT, "day is named more than once"),
    "an input and an output": (["--inputs", "temp"], TEXT, "temp is named more than once"),
    "no inputs": (["--inputs", ""], TEXT, "inputs must be a list of column names"),
    "no outputs": (["--outputs", ","], TEXT, "outputs must be a list of column names"),
    "an output as the task": (["--task", "temp"], TEXT, "'temp' cannot be an output"),
    "a task of no dates": (["--task", "week(day)"], TEXT, "holds none: its first value"),
    "a task of a unit that there is not": (["--task", "fortnight(day)"], TEXT, "not 'fortnight'"),
    "a task for each row": (["--task", "n"], frame(n=range(20)), "Every task has one row only"),
    "a negative seed": (["--seed", "-1"], TEXT, "seed must be a whole number from 0"),
    "a huge seed": (["--seed", "99999999999999999999999"], TEXT, "seed must be a whole number from 0"),
    "no latent functions": (["--latents", "0"], TEXT, "num_latents must be a whole number from 1"),
    "many latent functions": (["--latents", "100000000"], TEXT, "num_latents must be at most"),
    "no inducing points": (["--inducing", "0"], TEXT, "num_inducing must be a whole number from 1"),
    "many inducing points": (["--inducing", "100000000"], TEXT, "num_inducing must be at most"),
    "no windows": (["--batch-size", "0"], TEXT, "batch_size must be a whole number from 1"),
    "no epochs": (["--max-epochs", "0"], TEXT, "max_epochs must be a whole number from 1"),
    "no minutes": (["--max-minutes", "0"], TEXT, "max_minutes must be positive"),
    "minutes that are none": (["--max-minutes", "nan"], TEXT, "max_minutes must be positive"),
    "a period that is text": (["--periodic", "day=week"], TEXT, "must be a number, got 'week'"),
    "a negative period": (["--periodic", "day=-7"], TEXT, "must be a positive number, got -7"),
    "a period that is none": (["--periodic", "day=nan"], TEXT, "must be a positive number, got nan"),
    "a period of another column": (["--periodic", "hour=24"], TEXT, "periodic names hour"),
    "a family that there is not": (["--family", "temp=price"], TEXT, "no family 'price'"),
    "a family of another column": (["--family", "rain=count"], TEXT, "families names rain"),
    "a family of an input": (["--family", "day=count"], TEXT, "The input 'day' cannot be of the family"),
    "a family that does not suit": (["--family", "temp=flag"], TEXT, "'temp' is to be a flag, but has"),
    "a device without numbers": (["--device", "meta"], TEXT, "holds no numbers"),
    "an output without values": ([], frame(temp=""), "'temp' has no values at all"),
    "an output of marks": ([], frame(temp="NA"), "'temp' has no values at all"),
    "an output of one value": ([], frame(temp=3), "'temp' has the same value"),
    "an output of free text": (
        [],
        frame(temp=[f"remark {n}" for n in range(20)]),
        "'temp' has another label in each row",
    ),
    "an output of dates": (
        [],
        frame(temp=[f"2024-01-{n + 1:02}" for n in range(20)]),
        "'temp' holds dates where real numbers are expected",
    ),
    "an input of one value": ([], TABLE.iloc[[0, 10]].assign(day=1).to_csv(index=False), "same value|One row|one row"),
    "an input of free text": (["--inputs", "n"], frame(n=[f"x{n}" for n in range(20)]), "different labels in 20 rows"),
    "an input of times of day": (["--inputs", "n"], frame(n=["10:00", "11:00"] * 10), "times of day without a date"),
    "one row": ([], "\n".join(LINES[:2]) + "\n", "same value|one row"),
    "two ways to read a date": (
        ["--inputs", "n"],
        frame(n=[f"{n % 10 + 1:02}/02/2024" for n in range(20)]),
        "'n' tells days from months.*--day-first or --month-first",
    ),
    "dates in two orders": (
        ["--inputs", "n"],
        frame(n=["13/01/2024", "01/14/2024"] * 10),
        "holds dates, but .* cannot be read as one",
    ),
    "dates that are none": (["--inputs", "n", "--day-first"], frame(n=["01/13/2024"] * 20), "no such date"),
    "an output beyond all computing": ([], frame(temp=[1e300, -1e300] * 10), "too large or too small to compute with"),
    "an output of almost nothing": (
        [],
        frame(temp=[n * 1e-320 for n in range(20)]),
        "too large or too small|same value",
    ),
    "a covariate with holes": (["--covariates", "sun"], frame(sun=[""] + [1.0] * 19), "'sun' is missing in row 1"),
    "a covariate of one value": (["--covariates", "sun"], frame(sun=1), "'sun' has the same value"),
    "decimal commas in another column": (["--covariates", "sun"], frame(sun="1,5"), "--decimal=,"),
}


@pytest.mark.parametrize(("options", "text", "match"), FITS.values(), ids=FITS)
def test_an_odd_fit_gets_a_sentence_before_anything_is_trained(options, text, match, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("gpytorch_sgpvae.table.fitting.train", lambda *args: pytest.fail("it was trained"))
    (tmp_path / "table.csv").write_text(text, encoding="utf-8")
    refused(capsys, "fit", tmp_path / "table.csv", *FIT, "--quiet", "-o", tmp_path / "m", *options, match=match)
    assert not (tmp_path / "m").exists()


@pytest.fixture
def place(tmp_path):
    """A folder with a table, a letter and a folder that is not empty."""
    (tmp_path / "table.csv").write_text(TEXT)
    (tmp_path / "letter").write_text("dear")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    return tmp_path


# What some systems have and others have not.
NULL, ZERO, PROC = (Path(name) for name in ("/dev/null", "/dev/zero", "/proc"))
TARGETS = {
    "a folder": ("full", "is a folder"),
    "below a file": ("letter/out.csv", "is a file, so that nothing can be written"),
    "far below a file": ("letter/a/b/out.csv", "is a file, so that nothing can be written"),
    "an address": ("s3://bucket/out.csv", "is an address"),
    "a name that is too long": ("x" * 300, "cannot be used as the name of a file"),
    "no name": ("", "has no name"),
    **({"a device": (str(NULL), "is a device")} if NULL.is_char_device() else {}),
    **({"a folder of the system": (f"{PROC}/out.csv", f"Nothing can be written to {PROC}")} if PROC.is_dir() else {}),
}


@pytest.mark.parametrize(("target", "match"), TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("command", ["impute", "predict", "report"])
def test_where_nothing_can_be_written_there_is_a_sentence_before_anything_is_read(
    command, target, match, place, capsys, monkeypatch
):
    monkeypatch.chdir(place)
    monkeypatch.setattr(SGPVAEImputer, "load", lambda *args, **kwargs: pytest.fail("it was loaded"))
    more = ["--horizon", 2] if command == "predict" else []
    if command == "report" and not target:
        match = "is a folder"
    if command == "report" and "://" in target:
        match = ".*"
        target = "full"
    refused(capsys, command, folder_of(tiny_imputer), "table.csv", "-o", target, *more, match=match)
    assert (place / "letter").read_text() == "dear"


@pytest.mark.parametrize(
    ("target", "match"),
    [
        ("letter", "is a file: a model is saved as a folder"),
        ("full", "holds other files, such as letter, and no saved model"),
        ("letter/model", "is a file, so that nothing can be written"),
        pytest.param(
            f"{PROC}/model",
            f"Nothing can be written to {PROC}",
            marks=pytest.mark.skipif(not PROC.is_dir(), reason=f"there is no {PROC}"),
        ),
    ],
)
def test_the_folder_of_a_model_is_checked_before_the_table_is_read(target, match, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    refused(capsys, "fit", "gone.csv", *FIT, "-o", target, match=match)


def test_a_folder_without_permission_is_told_before_anything_is_read(place, capsys, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    refused(
        capsys, "fit", "gone.csv", *FIT, "-o", place / "m", match=r"Nothing can be written to .* \(Permission denied\)"
    )


SOURCES = {
    "gone": ("gone.csv", "There is no file gone.csv"),
    "a folder": ("full", "full is a folder"),
    "below a file": ("letter/table.csv", "There is no file"),
    "an address": ("https://example.org/t.csv", "is an address"),
    "a name that is too long": ("x" * 300, "cannot be used as the name of a file"),
    "no name": ("", "There is no file|is a folder"),
    **({"a device": (str(ZERO), f"{ZERO} is a device")} if ZERO.is_char_device() else {}),
}


@pytest.mark.parametrize(("source", "match"), SOURCES.values(), ids=SOURCES)
def test_what_cannot_be_read_gets_a_sentence(source, match, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    refused(capsys, "score", folder_of(tiny_imputer), source, match=match)


def test_a_file_without_permission_gets_a_sentence(place, capsys, monkeypatch):
    read = Path.read_bytes

    def refuse(self):
        if self.name == "table.csv":
            raise PermissionError(13, "Permission denied", str(self))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    impute(capsys, place, match="table.csv cannot be read: Permission denied")


MODELS = {
    "gone": ("gone", "There is no saved model in gone"),
    "a file": ("letter", "There is no saved model in letter"),
    "another folder": ("full", "There is no saved model in full"),
    "a table": ("table.csv", "There is no saved model"),
    "no name": ("", "There is no saved model"),
}


@pytest.mark.parametrize(("model", "match"), MODELS.values(), ids=MODELS)
def test_what_is_no_model_gets_a_sentence(model, match, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    refused(capsys, "score", model, "table.csv", match=match)


CALLS = {
    "all hidden": (["score", "--fraction", "1"], "between 0 and 1, got 1"),
    "none hidden": (["score", "--fraction", "0"], "between 0 and 1, got 0"),
    "a fraction that is none": (["score", "--fraction", "nan"], "between 0 and 1, got nan"),
    "a negative seed of a score": (["score", "--seed", "-1"], "seed must be a whole number from 0"),
    "no horizon": (["predict", "--horizon", "0", "-o", "out.csv"], "horizon must be a whole number"),
    "a negative horizon": (["predict", "--horizon", "-5", "-o", "out.csv"], "horizon must be a whole number"),
    "a huge horizon": (["predict", "--horizon", "999999999999", "-o", "out.csv"], "horizon must be a whole number"),
    "places that are not there": (["predict", "--at", "gone.csv", "-o", "out.csv"], "There is no file gone.csv"),
    "places that have values": (["predict", "--at", "table.csv", "-o", "out.csv"], "'temp' with values"),
    "places without inputs": (["predict", "--at", "letter", "-o", "out.csv"], "no column 'day'|The table has no rows"),
    "a folder as places": (["predict", "--at", "full", "-o", "out.csv"], "full is a folder"),
}


@pytest.mark.parametrize(("call", "match"), CALLS.values(), ids=CALLS)
def test_an_odd_call_gets_a_sentence(call, match, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    refused(capsys, call[0], folder_of(tiny_imputer), "table.csv", *call[1:], match=match)
    assert not (place / "out.csv").exists()


USAGES = {
    "nothing": [],
    "no such command": ["guess"],
    "no inputs": ["fit", "t.csv", "--outputs", "y", "-o", "m"],
    "both places and a horizon": ["predict", "m", "t.csv", "--at", "p.csv", "--horizon", "3", "-o", "o.csv"],
    "neither places nor a horizon": ["predict", "m", "t.csv", "-o", "o.csv"],
    "half a horizon": ["predict", "m", "t.csv", "--horizon", "1.5", "-o", "o.csv"],
    "both orders of dates": ["impute", "m", "t.csv", "-o", "o.csv", "--day-first", "--month-first"],
    "a long separator": ["impute", "m", "t.csv", "-o", "o.csv", "--sep", "::"],
    "a quote as a separator": ["impute", "m", "t.csv", "-o", "o.csv", "--sep", '"'],
    "a letter as a separator": ["impute", "m", "t.csv", "-o", "o.csv", "--sep", "x"],
    "a decimal sign that there is not": ["impute", "m", "t.csv", "-o", "o.csv", "--decimal", ":"],
    "a seed that is text": ["score", "m", "t.csv", "--seed", "luck"],
    "a family without a column": ["fit", "t.csv", *FIT, "-o", "m", "--family", "count"],
    "a period without a column": ["fit", "t.csv", *FIT, "-o", "m", "--periodic", "=24"],
    "a period without a number": ["fit", "t.csv", *FIT, "-o", "m", "--periodic", "day="],
    "an unknown option": ["fit", "t.csv", *FIT, "-o", "m", "--magic"],
}


@pytest.mark.parametrize("arguments", USAGES.values(), ids=USAGES)
def test_wrong_usage_is_told_with_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: sgpvae")


# Errors that Python alone can make.
PARAMETERS = {
    "two tasks": ({"task": ["a", "b"]}, r"The task must be the name of one column, got \['a', 'b'\]"),
    "a number as the task": ({"task": 3}, "The task must be the name of one column, got 3"),
    "a text of inputs": ({"inputs": "day"}, "inputs must be a list"),
    "a number among inputs": ({"inputs": [3]}, "Columns are named by text, got 3"),
    "covariates as text": ({"covariates": "sun"}, "covariates must be a list"),
    "a seed of a half": ({"seed": 0.5}, "seed must be a whole number from 0"),
    "a true seed": ({"seed": True}, "seed must be a whole number from 0"),
    "a negative seed": ({"seed": -1}, "seed must be a whole number from 0"),
    "half a latent function": ({"num_latents": 1.5}, "num_latents must be a whole number"),
    "text of minutes": ({"max_minutes": -1}, "max_minutes must be positive"),
    "no numbers": ({"device": "meta"}, "holds no numbers"),
    "no device": ({"device": "abacus"}, "cannot be used here"),
}


@pytest.mark.parametrize(("changes", "match"), PARAMETERS.values(), ids=PARAMETERS)
def test_odd_parameters_get_a_sentence(changes, match):
    parameters = {"inputs": ["day"], "outputs": ["temp"], "task": "site", **changes}
    with pytest.raises(TableError, match=match):
        SGPVAEImputer(**parameters).fit(TABLE)


LABELS = {
    "an unknown label": (("garage", "glass"), "'garage' has 'glass' in row 1, which was not among"),
    "half a count": (("cars", "1.5"), "'cars' is of the family count"),
    "a negative count": (("cars", "-1"), "'cars' is of the family count"),
    "a third truth value": (("wet", "maybe"), "'wet' has .*, which was not among"),
}


@pytest.mark.parametrize(("change", "match"), LABELS.values(), ids=LABELS)
def test_values_that_the_model_does_not_know_get_a_sentence(change, match, tmp_path, capsys):
    table = make_labelled().astype(object)
    table.loc[0, change[0]] = change[1]
    table.to_csv(tmp_path / "table.csv", index=False)
    impute(capsys, tmp_path, match=match, make=labelled_imputer)


def test_dates_that_may_be_read_in_two_ways_are_refused_when_holes_are_filled_too(tmp_path, capsys):
    table = TABLE.rename(columns={"day": "date"})
    table["date"] = [f"{day + 1:02}/03/2024" for day in table["date"]]
    table.to_csv(tmp_path / "table.csv", index=False)
    impute(capsys, tmp_path, match="--day-first or --month-first", make=dated_imputer)


def test_two_pipes_get_a_sentence(capsys, tmp_path):
    arguments = ["predict", folder_of(tiny_imputer), "-", "--at", "-", "-o", tmp_path / "out.csv"]
    refused(capsys, *arguments, match="Only one of the two tables can come from a pipe")


def test_no_memory_gets_a_sentence(place, capsys, monkeypatch):
    def fail(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(SGPVAEImputer, "transform", fail)
    impute(capsys, place, match="not enough memory")


def test_parquet_with_a_column_twice_gets_a_sentence(tmp_path, capsys):
    arrays = [pyarrow.array(TABLE[name], from_pandas=True) for name in ("site", "day", "temp", "temp")]
    table = pyarrow.table(arrays, names=["site", "day", "temp", "temp"])
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    impute(capsys, tmp_path, match="more than one column 'temp'", source=tmp_path / "t.parquet")


def test_there_are_at_least_130_kinds():
    kinds = [CONTENTS, BYTES, NAMED, OPTIONS, FITS, TARGETS, SOURCES, MODELS, CALLS, USAGES, PARAMETERS, LABELS]
    assert sum(map(len, kinds)) >= 130
