"""The command, for people and for scripts."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from command_files import folder_of, labelled_imputer, make_labelled, make_series, run, tiny_imputer

from gpytorch_sgpvae.table import SGPVAEImputer
from gpytorch_sgpvae.table.cli import INTERRUPTED, TERMINATED

OUTPUTS = ["temp", "cars", "wet", "garage"]
FIT = ["--inputs", "day", "--outputs", "temp", "--task", "site", "--max-epochs", "1"]
READ = {"dtype": str, "keep_default_na": False}


@pytest.fixture
def files(tmp_path):
    make_labelled().to_csv(tmp_path / "labelled.csv", index=False)
    make_series().to_csv(tmp_path / "series.csv", index=False)
    return tmp_path


class Pipe:
    """A standard input."""

    def __init__(self, data):
        self.buffer = io.BytesIO(data)


@pytest.mark.slow
def test_the_whole_way_from_a_pipe_in_a_process_of_its_own(files):
    command = [sys.executable, "-Wignore:`torch.jit", "-m", "gpytorch_sgpvae.table.cli"]
    data = (files / "series.csv").read_bytes()
    fit = [*command, "fit", "-", *FIT, "--quiet", "--json", "-o", str(files / "model")]
    told = subprocess.run(fit, capture_output=True, check=True, input=data)
    assert json.loads(told.stdout)["families"] == {"temp": "real"}
    assert not told.stderr
    impute = [*command, "impute", str(files / "model"), "-", "-o", "-", "--quiet"]
    told = subprocess.run(impute, capture_output=True, check=True, input=data)
    filled = pd.read_csv(io.BytesIO(told.stdout))
    assert filled["day"].tolist() == make_series()["day"].tolist()
    assert (filled["temp_filled"].to_numpy() == make_series()["temp"].isna().to_numpy()).all()


def test_impute_adds_intervals_and_flags(files, capsys):
    assert run("impute", folder_of(labelled_imputer), files / "labelled.csv", "-o", files / "filled.csv") == 0
    filled = pd.read_csv(files / "filled.csv", keep_default_na=False, na_values=[""])
    assert not filled[OUTPUTS].isna().any(axis=None)
    for name in OUTPUTS:
        assert {f"{name}_std", f"{name}_lower", f"{name}_upper", f"{name}_filled"} <= set(filled.columns)
    assert "Filled" in capsys.readouterr().err
    assert sorted(path.name for path in files.iterdir()) == ["filled.csv", "labelled.csv", "series.csv"]


def test_impute_changes_nothing_but_holes(files):
    odd = {"code": "007", "gone": "NA", "yes": "TRUE", "none": "None", "large": "9007199254740993", "a": "1.0"}
    lines = (files / "labelled.csv").read_text().splitlines()
    header, rows = lines[0], lines[1:]
    more = ",".join(odd.values())
    text = "\r\n".join([f"{header},{','.join(odd)},a", *(f'{row},{more},"x ""y"""' for row in rows)]) + "\r\n\r\n"
    (files / "odd.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert run("impute", folder_of(labelled_imputer), files / "odd.csv", "-o", files / "filled.csv", "--quiet") == 0
    data = (files / "filled.csv").read_bytes()
    assert data.startswith(b"\xef\xbb\xbfsite,day,temp,cars,wet,garage,code,gone,yes,none,large,a,a,temp_std")
    assert data.endswith(b"\r\n\r\n")
    assert data.count(f'{more},"x ""y"""'.encode()) == len(rows)
    found = pd.read_csv(io.BytesIO(data), **READ)
    before = pd.read_csv(files / "labelled.csv", **READ)
    for name in before:
        assert (found[name] == before[name])[before[name] != ""].all()
    assert (before["garage"] == "None").any()


def test_counts_and_labels_are_written_as_the_column_writes_them(files):
    text = (files / "labelled.csv").read_text().replace("True", "TRUE").replace("False", "FALSE").replace(".0,", ",")
    (files / "labelled.csv").write_text(text)
    assert run("impute", folder_of(labelled_imputer), files / "labelled.csv", "-o", files / "filled.csv") == 0
    filled = pd.read_csv(files / "filled.csv", **READ)
    assert filled["cars"].str.fullmatch(r"\d+").all()
    assert set(filled["wet"]) == {"TRUE", "FALSE"}
    assert set(filled["garage"]) == {"None", "brick", "wood"}


def test_semicolons_and_decimal_commas_stay(files):
    table = make_series()
    text = table.to_csv(index=False, sep=";", decimal=",")
    (files / "table.csv").write_text(text)
    arguments = ["impute", folder_of(tiny_imputer), files / "table.csv", "--decimal", ",", "-o", files / "out.csv"]
    assert run(*arguments) == 0
    found = pd.read_csv(files / "out.csv", sep=";", decimal=",")
    expected = tiny_imputer().transform(table, intervals=True)
    np.testing.assert_allclose(found["temp"], expected["temp"])
    np.testing.assert_allclose(found["temp_std"], expected["temp_std"])


def test_marks_of_missing_values_are_replaced_where_they_are_holes(files, capsys):
    text = make_series().fillna({"temp": -200}).to_csv(index=False)
    (files / "table.csv").write_text(text)
    arguments = ["impute", folder_of(tiny_imputer), files / "table.csv", "-o", files / "out.csv"]
    assert run(*arguments, "--na=-200") == 0
    assert "-200" not in (files / "out.csv").read_text()
    assert run(*arguments) == 0
    assert "-200 in temp (3 cells). If they stand for missing values, say --na=-200" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_packed_tables_are_read_and_written(files, suffix):
    table = make_series()
    table.to_csv(files / f"t.csv.{suffix}", index=False)
    assert run("impute", folder_of(tiny_imputer), files / f"t.csv.{suffix}", "-o", files / f"out.csv.{suffix}") == 0
    assert pd.read_csv(files / f"out.csv.{suffix}")["temp"].notna().all()


def test_pipes_have_tables_and_nothing_else(files, monkeypatch, capfdbinary):
    monkeypatch.setattr(sys, "stdin", Pipe((files / "series.csv").read_bytes()))
    assert run("impute", folder_of(tiny_imputer), "-", "-o", "-", "--json") == 0
    told = capfdbinary.readouterr()
    assert pd.read_csv(io.BytesIO(told.out))["temp"].notna().all()
    assert json.loads(told.err) == {"output": "-", "filled": {"temp": 3}}


def test_predict_writes_a_row_for_each_place(files, capsys):
    places = "site,remark,day\ns1,007,0.5\r\ns0,NA,1.5\n"
    (files / "places.csv").write_bytes(places.encode())
    arguments = ["predict", folder_of(tiny_imputer), files / "series.csv", "--at", files / "places.csv", "--json"]
    assert run(*arguments, "-o", files / "predicted.csv") == 0
    assert json.loads(capsys.readouterr().out) == {"output": str(files / "predicted.csv"), "rows": 2}
    lines = (files / "predicted.csv").read_bytes().split(b"\n")
    assert lines[0] == b"site,remark,day,temp,temp_std,temp_lower,temp_upper"
    assert lines[1].startswith(b"s1,007,0.5,")
    assert lines[1].endswith(b"\r")
    assert pd.read_csv(files / "predicted.csv")["temp_upper"].notna().all()


def test_predict_fills_columns_of_outputs_that_are_empty(files):
    (files / "places.csv").write_text("temp,site,day\n,s1,0.5\nNA,s0,1.5\n")
    arguments = ["predict", folder_of(tiny_imputer), files / "series.csv", "--at", files / "places.csv"]
    assert run(*arguments, "-o", files / "predicted.csv") == 0
    predicted = pd.read_csv(files / "predicted.csv")
    assert predicted.columns.tolist() == ["temp", "site", "day", "temp_std", "temp_lower", "temp_upper"]
    assert predicted["temp"].notna().all()


def test_long_format_is_fitted_filled_and_predicted(tmp_path, capsys):
    long = make_series(num_days=14).rename(columns={"site": "sensor", "temp": "value"}).assign(unit="007")
    long = long.replace({"sensor": {"s1": "12"}})  # also numbers are names
    long.to_csv(tmp_path / "long.csv", index=False)
    fit = ["--inputs", "day", "--long", "sensor,value", "--max-epochs", 1, "--no-comparison", "--quiet"]
    assert run("fit", tmp_path / "long.csv", *fit, "-o", tmp_path / "model") == 0
    assert run("impute", tmp_path / "model", tmp_path / "long.csv", "-o", tmp_path / "filled.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["filled"] == {"value": int(long["value"].isna().sum())}
    filled = pd.read_csv(tmp_path / "filled.csv", dtype={"unit": str, "sensor": str})
    assert filled.columns.tolist() == [*long.columns, "value_std", "value_lower", "value_upper", "value_filled"]
    assert filled["value"].notna().all()
    known = long["value"].notna()
    pd.testing.assert_frame_equal(filled[long.columns][known], long[known])
    assert run("predict", tmp_path / "model", tmp_path / "long.csv", "--horizon", 2, "-o", tmp_path / "ahead.csv") == 0
    ahead = pd.read_csv(tmp_path / "ahead.csv")
    assert ahead[["day", "sensor"]].to_numpy().tolist() == [[14, "s0"], [14, "12"], [15, "s0"], [15, "12"]]
    long[["day", "sensor"]].head(3).to_csv(tmp_path / "at.csv", index=False)
    at = ["--at", tmp_path / "at.csv", "-o", tmp_path / "predicted.csv"]
    assert run("predict", tmp_path / "model", tmp_path / "long.csv", *at) == 0
    assert pd.read_csv(tmp_path / "predicted.csv")["value"].notna().all()


def test_outputs_are_named_or_the_table_is_long(files, capsys):
    for more in ([], ["--outputs", "temp", "--long", "site,temp"], ["--long", "site"]):
        with pytest.raises(SystemExit) as error:
            run("fit", files / "table.csv", "--inputs", "day", *more, "-o", files / "other")
        assert error.value.code == 2


def test_score_prints_a_table_or_json(files, capsys):
    assert run("score", folder_of(labelled_imputer), files / "labelled.csv", "--seed", 1) == 0
    assert "coverage" in capsys.readouterr().out
    assert run("score", folder_of(labelled_imputer), files / "labelled.csv", "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert list(scores) == OUTPUTS
    assert scores["garage"]["rmse"] is None


def test_names_that_the_systems_code_page_lacks_are_printed_all_the_same(files, monkeypatch):
    """Windows has such a code page where the output goes into a file."""
    scores = SGPVAEImputer.scores
    output = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(SGPVAEImputer, "scores", lambda *args: scores(*args).rename({"temp": "温度"}))
    monkeypatch.setattr(sys, "stdout", output)
    assert run("score", folder_of(tiny_imputer), files / "series.csv") == 0
    output.flush()
    assert rb"\u6e29\u5ea6" in output.buffer.getvalue()


def test_fit_tells_how_it_compares_with_simpler_ways(files, capsys, caplog):
    caplog.set_level("INFO")
    assert run("fit", files / "series.csv", *FIT, "--json", "-o", files / "model") == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["comparison"]["rmse"]["temp"]) == {"model", "mean", "interpolation", "boosting"}
    assert told["comparison"]["n"]["temp"] > 0
    assert "Held-out entries, in standard deviations" in caplog.text
    assert "rmse boosting" in caplog.text
    assert SGPVAEImputer.load(files / "model").comparison_["rmse", "mean"].notna().all()


def test_a_seed_gives_the_same_model(files):
    for name in ("one", "two"):
        options = ["--seed", 3, "--quiet", "--no-comparison"]
        assert run("fit", files / "series.csv", *FIT, *options, "-o", files / name) == 0
    one, two = (next((files / name).glob("*.pt")).read_bytes() for name in ("one", "two"))
    assert one == two


def test_names_with_commas_are_put_into_quotes(files, capsys):
    make_series().rename(columns={"day": "day, of May"}).to_csv(files / "t.csv", index=False)
    options = ["--outputs", "temp", "--task", "site", "--max-epochs", 1, "--no-comparison", "--quiet"]
    assert run("fit", files / "t.csv", "--inputs", '"day, of May"', *options, "-o", files / "model") == 0
    assert SGPVAEImputer.load(files / "model").inputs == ["day, of May"]


@pytest.mark.parametrize("name", ["http://127.0.0.1:1/a.csv", "s3://bucket/a.parquet", "file:///etc/passwd"])
def test_an_address_is_refused_before_anything_is_asked_for(name, tmp_path, capsys):
    assert run("impute", folder_of(tiny_imputer), name, "-o", tmp_path / "filled.csv") == 1
    assert capsys.readouterr().err == (
        f"sgpvae: {name} is an address, not a file: download it, and give the name of the file.\n"
    )


def test_an_old_file_survives_bad_data(files, capsys):
    (files / "bad.csv").write_text("site,day,temp\ns0,1,warm\ns0,2,20\ns0,3,21\n")
    (files / "filled.csv").write_text("old")
    assert run("impute", folder_of(tiny_imputer), files / "bad.csv", "-o", files / "filled.csv") == 1
    assert capsys.readouterr().err == (
        "sgpvae: Column 'temp' has text where a number is expected: 'warm' in row 1. Correct it, or leave the cell "
        "empty if the value is missing.\n"
    )
    assert (files / "filled.csv").read_text() == "old"


def test_notes_are_told_and_quiet_silences_them(files, capsys):
    make_series().assign(wind=1).to_csv(files / "t.csv", index=False)
    arguments = ["impute", folder_of(tiny_imputer), files / "t.csv", "-o", files / "filled.csv"]
    assert run(*arguments) == 0
    assert "note: The table has columns that it was not fitted with" in capsys.readouterr().err
    assert run(*arguments, "--quiet") == 0
    assert not capsys.readouterr().err


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "t.parquet").write_bytes(b"")
    assert run("impute", folder_of(tiny_imputer), tmp_path / "t.parquet", "-o", tmp_path / "filled.csv") == 1
    assert "pip install pyarrow" in capsys.readouterr().err


@pytest.mark.parametrize(("source", "target"), [("t.parquet", "out.csv"), ("series.csv", "out.parquet")])
def test_tables_change_their_kind_by_the_name_of_the_output(files, source, target):
    make_series().to_parquet(files / "t.parquet")
    assert run("impute", folder_of(tiny_imputer), files / source, "-o", files / target) == 0
    filled = pd.read_parquet(files / target) if target.endswith("parquet") else pd.read_csv(files / target)
    assert filled["temp"].notna().all()
    assert filled["temp_filled"].sum() == make_series()["temp"].isna().sum()


@pytest.mark.parametrize("command", ["fit", "impute", "predict", "score", "report"])
def test_help_has_an_example_and_tells_what_is_taken_for_missing(command, capsys):
    with pytest.raises(SystemExit) as caught:
        run(command, "--help")
    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert f"sgpvae {command} " in told.split("examples:")[1]
    assert "%%" not in told
    assert "(default:NA,N/A,#N/A" in "".join(told.split())


def test_the_help_of_all_commands_has_no_double_percent_signs(capsys):
    with pytest.raises(SystemExit):
        run("--help")
    assert "%%" not in capsys.readouterr().out


def after_training_has_begun(monkeypatch, number):
    """Send a signal to this process as soon as the second step is done."""
    from gpytorch_sgpvae.table.learning import Monitor

    original = Monitor.on_train_batch_end

    def send(self, trainer, *args):
        original(self, trainer, *args)
        if trainer.global_step == 2:
            signal.raise_signal(number)

    monkeypatch.setattr(Monitor, "on_train_batch_end", send)


def test_an_interrupt_keeps_the_best_model_so_far_and_says_so(files, capsys, monkeypatch):
    after_training_has_begun(monkeypatch, signal.SIGINT)
    options = ["--max-epochs", 1000, "--no-comparison"]
    assert run("fit", files / "series.csv", *FIT, *options, "-o", files / "model") == 0
    told = capsys.readouterr().err
    assert "note: The training was interrupted after 2 of 1000 steps: the model is the best so far." in told
    assert SGPVAEImputer.load(files / "model").transform(make_series())["temp"].notna().all()


def test_an_interrupt_of_the_comparison_keeps_the_model(files, capsys, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpytorch_sgpvae.table.fitting.compared", interrupt)
    assert run("fit", files / "series.csv", *FIT, "-o", files / "model") == 0
    assert "The comparison with simpler ways was interrupted: the model is kept" in capsys.readouterr().err
    assert SGPVAEImputer.load(files / "model").comparison_.empty


def test_sigterm_ends_with_a_message_and_writes_nothing(files, capsys, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    after_training_has_begun(monkeypatch, signal.SIGTERM)
    assert run("fit", files / "series.csv", *FIT, "--max-epochs", 1000, "-o", files / "model") == TERMINATED == 143
    assert "sgpvae: Ended by SIGTERM: nothing was written." in capsys.readouterr().err
    assert not (files / "model").exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_interrupt_of_other_commands_writes_nothing(files, capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(SGPVAEImputer, "transform", interrupt)
    arguments = ["impute", folder_of(tiny_imputer), files / "series.csv", "-o", files / "out.csv"]
    assert run(*arguments) == INTERRUPTED == 130
    assert capsys.readouterr().err == "sgpvae: Interrupted: nothing was written.\n"
    assert not (files / "out.csv").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without asking it")
def test_sigterm_ends_a_process_that_trains(files):
    command = [sys.executable, "-Wignore:`torch.jit", "-m", "gpytorch_sgpvae.table.cli", "fit"]
    options = ["--max-epochs", "1000000", "-o", str(files / "model")]
    process = subprocess.Popen([*command, str(files / "series.csv"), *FIT, *options], stderr=subprocess.PIPE)
    told = b""
    while b"step=" not in told:
        told += process.stderr.read(20)
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 143
    assert b"Ended by SIGTERM" in rest
    assert b"Traceback" not in rest
    assert not (files / "model").exists()


def test_it_runs_in_another_thread_too(files):
    found = []
    arguments = ["impute", folder_of(tiny_imputer), files / "series.csv", "-o", files / "out.csv", "--quiet"]
    thread = threading.Thread(target=lambda: found.append(run(*arguments)))
    thread.start()
    thread.join()
    assert found == [0]
