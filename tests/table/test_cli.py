"""The command, for people and for scripts."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import OUTPUTS

from gpytorch_sgpvae.table.cli import main

FIT = [
    "--inputs",
    "day",
    "--outputs",
    ",".join(OUTPUTS),
    "--task",
    "site",
    "--max-epochs",
    "2",
    "--no-comparison",
    "--quiet",
]


@pytest.fixture(scope="session")
def files(imputer, table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    imputer.save(folder / "model")
    table.to_csv(folder / "table.csv", index=False)
    return folder


def run(*arguments):
    return main([str(argument) for argument in arguments])


@pytest.mark.slow
def test_the_whole_way_from_a_pipe_in_a_process_of_its_own(files, table, tmp_path, monkeypatch, capsys):
    text = (files / "table.csv").read_text()
    line = [
        sys.executable,
        "-Wignore:`torch.jit",  # from importing linear_operator, and no longer hidden by Python in torch 2.15
        "-m",
        "gpytorch_sgpvae.table.cli",
        "fit",
        "-",
        *FIT,
        "--json",
        "-o",
        str(tmp_path / "model"),
    ]
    told = subprocess.run(line, capture_output=True, text=True, check=True, input=text)
    assert json.loads(told.stdout)["families"]["rain"] == "amount"
    assert not told.stderr
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert run("impute", tmp_path / "model", "-", "-o", "-") == 0
    filled = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert filled["day"].tolist() == table["day"].tolist()
    assert (filled["temp_filled"].to_numpy() == table["temp"].isna().to_numpy()).all()


def test_impute_adds_intervals_and_flags(files, table, tmp_path, capsys):
    assert run("impute", files / "model", files / "table.csv", "-o", tmp_path / "filled.csv") == 0
    filled = pd.read_csv(tmp_path / "filled.csv")
    assert not filled[OUTPUTS].isna().any(axis=None)
    for name in OUTPUTS:
        assert {f"{name}_std", f"{name}_lower", f"{name}_upper", f"{name}_filled"} <= set(filled.columns)
    assert "Filled" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["filled.csv"]


def test_counts_with_holes_come_back_as_whole_numbers(files, tmp_path):
    text = (files / "table.csv").read_text().replace(".0,", ",")
    (tmp_path / "table.csv").write_text(text)
    read = {"dtype": str, "keep_default_na": False}
    cars = pd.read_csv(tmp_path / "table.csv", **read)["cars"]
    assert (cars == "").any()
    assert cars.str.fullmatch(r"\d*").all()
    assert run("impute", files / "model", tmp_path / "table.csv", "-o", tmp_path / "filled.csv") == 0
    filled = pd.read_csv(tmp_path / "filled.csv", **read)["cars"]
    assert filled.str.fullmatch(r"\d+").all()
    assert (filled == cars)[cars != ""].all()


def test_predict_writes_a_row_for_each_place(files, tmp_path, capsys):
    places = pd.DataFrame({"site": ["site 1", "site 0"], "day": [0.5, 1.5], "remark": ["a", "b"]})
    places.to_csv(tmp_path / "places.csv", index=False)
    arguments = ["predict", files / "model", files / "table.csv", "--at", tmp_path / "places.csv", "--json"]
    assert run(*arguments, "-o", tmp_path / "predicted.csv") == 0
    assert json.loads(capsys.readouterr().out) == {"output": str(tmp_path / "predicted.csv"), "rows": 2}
    predicted = pd.read_csv(tmp_path / "predicted.csv")
    assert predicted["remark"].tolist() == ["a", "b"]
    assert predicted["temp_upper"].notna().all()


def test_score_prints_a_table_or_json(files, capsys):
    assert run("score", files / "model", files / "table.csv", "--seed", 1) == 0
    assert "coverage" in capsys.readouterr().out
    assert run("score", files / "model", files / "table.csv", "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert list(scores) == OUTPUTS
    assert scores["sky"]["rmse"] is None


def test_a_seed_gives_the_same_model(files, tmp_path, capsys):
    for name in ("one", "two"):
        assert run("fit", files / "table.csv", *FIT, "--seed", 3, "-o", tmp_path / name) == 0
    one, two = (next((tmp_path / name).glob("*.pt")).name for name in ("one", "two"))
    assert one == two  # it is called after what is in it


@pytest.mark.parametrize("name", ["http://127.0.0.1:1/a.csv", "s3://bucket/a.parquet", "file:///etc/passwd"])
def test_an_address_is_refused_before_anything_is_asked_for(name, files, tmp_path, capsys):
    assert run("impute", files / "model", name, "-o", tmp_path / "filled.csv") == 1
    assert capsys.readouterr().err == (
        f"sgpvae: {name} is an address, not a file: download it, and give the name of the file.\n"
    )


def test_bad_data_is_told_in_a_line_and_writes_nothing(files, tmp_path, capsys):
    table = pd.read_csv(files / "table.csv").astype({"temp": object})
    table.loc[10, "temp"] = "warm"
    table.to_csv(tmp_path / "bad.csv", index=False)
    for arguments in (
        ["fit", tmp_path / "bad.csv", *FIT, "-o", tmp_path / "model"],
        ["impute", files / "model", tmp_path / "bad.csv", "-o", tmp_path / "filled.csv"],
    ):
        assert run(*arguments) == 1
        told = capsys.readouterr()
        assert told.err == (
            "sgpvae: Column 'temp' has text where a number is expected: 'warm' in row 11. Correct it, or leave the "
            "cell empty if the value is missing.\n"
        )
        assert not told.out
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="rain"), "no column 'rain'"),
        (lambda table: pd.concat([table, table.tail(1)]), "is at the place of row 160 too"),
        (lambda table: table.assign(day=table["day"].where(table.index > 0)), "'day' is missing in 1 row"),
        (lambda table: table.assign(sky=table["sky"].fillna("green")), "'green'"),
        (lambda table: table.assign(temp=np.inf), "infinite"),
    ],
    ids=["column", "duplicate", "input", "label", "infinite"],
)
def test_an_old_file_survives_bad_data(files, tmp_path, capsys, change, message):
    change(pd.read_csv(files / "table.csv")).to_csv(tmp_path / "bad.csv", index=False)
    (tmp_path / "filled.csv").write_text("old")
    assert run("impute", files / "model", tmp_path / "bad.csv", "-o", tmp_path / "filled.csv") == 1
    assert message in capsys.readouterr().err
    assert (tmp_path / "filled.csv").read_text() == "old"


def test_notes_are_told_and_quiet_silences_them(files, tmp_path, capsys):
    table = pd.read_csv(files / "table.csv").assign(wind=1)
    table.to_csv(tmp_path / "table.csv", index=False)
    arguments = ["impute", files / "model", tmp_path / "table.csv", "-o", tmp_path / "filled.csv"]
    assert run(*arguments) == 0
    assert "note: The table has columns that it was not fitted with" in capsys.readouterr().err
    assert run(*arguments, "--quiet") == 0
    assert not capsys.readouterr().err


def test_files_that_are_not_there_or_no_tables_are_told(files, tmp_path, capsys):
    assert run("impute", files / "model", tmp_path / "gone.csv", "-o", tmp_path / "filled.csv") == 1
    assert "gone.csv" in capsys.readouterr().err
    (tmp_path / "empty.csv").write_text("")
    assert run("impute", files / "model", tmp_path / "empty.csv", "-o", tmp_path / "filled.csv") == 1
    assert "cannot be read as a CSV table" in capsys.readouterr().err
    assert run("impute", tmp_path / "gone", files / "table.csv", "-o", tmp_path / "filled.csv") == 1
    assert "no saved model" in capsys.readouterr().err


def test_a_device_that_is_not_there_is_told(files, tmp_path, capsys):
    assert run("fit", files / "table.csv", *FIT, "--device", "abacus", "-o", tmp_path / "model") == 1
    assert "The device 'abacus' cannot be used here" in capsys.readouterr().err
    assert run("score", files / "model", files / "table.csv", "--device", "abacus") == 1


def test_parquet_without_pyarrow_says_what_to_install(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run("impute", files / "model", tmp_path / "table.parquet", "-o", tmp_path / "filled.csv") == 1
    assert "pip install pyarrow" in capsys.readouterr().err


def test_parquet_files_are_read_and_written(files, table, tmp_path):
    table.to_parquet(tmp_path / "table.parquet")
    assert run("impute", files / "model", tmp_path / "table.parquet", "-o", tmp_path / "filled.parquet") == 0
    assert pd.read_parquet(tmp_path / "filled.parquet")["temp"].notna().all()


def test_wrong_usage_exits_with_2(capsys):
    for arguments in ([], ["fit", "table.csv"], ["fit", "t.csv", *FIT, "-o", "m", "--periodic", "hour"], ["guess"]):
        with pytest.raises(SystemExit) as caught:
            run(*arguments)
        assert caught.value.code == 2
    assert "expected COLUMN=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["fit", "impute", "predict", "score", "report"])
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as caught:
        run(command, "--help")
    assert caught.value.code == 0
    assert f"sgpvae {command} " in capsys.readouterr().out.split("examples:")[1]
