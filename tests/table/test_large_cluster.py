"""Partitions that are filled by the workers of a Dask cluster: the same files, whoever dies."""

from __future__ import annotations

import json
import logging
import os
import signal
from functools import partial

import numpy as np
import pandas as pd
import pytest
from command_files import run

from gpytorch_sgpvae.table import SGPVAEImputer, TableError
from gpytorch_sgpvae.table.large import cluster, job
from gpytorch_sgpvae.table.large import impute as impute_module

distributed = pytest.importorskip("distributed", reason="Dask is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL"),
    # Dask's own, of workers that have been killed, and of its files
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
OUTPUTS, FILES = ["temp", "load"], 6


def make_table(sensors=12, rows=30):
    random = np.random.default_rng(0)
    hour = np.tile(np.arange(rows), sensors)
    wave = np.sin(hour / 3 + np.repeat(random.uniform(0, 6, sensors), rows))
    table = pd.DataFrame({"sensor": np.repeat([f"s{i}" for i in range(sensors)], rows), "hour": hour})
    table["temp"] = 20 + 5 * wave + 0.1 * random.normal(size=len(wave))
    table["load"] = 3 * wave + 0.1 * random.normal(size=len(wave))
    table[OUTPUTS] = table[OUTPUTS].mask(random.random((len(table), 2)) < 0.25)
    return table


@pytest.fixture(scope="module")
def table():
    return make_table()


@pytest.fixture(scope="module")
def imputer(table):
    options = {"max_epochs": 1, "compare": False, "progress": False}
    return SGPVAEImputer(["hour"], OUTPUTS, task="sensor", **options).fit(table)


@pytest.fixture(scope="module")
def source(table, tmp_path_factory):
    """Files that cut tasks, so that some partitions need rows of others."""
    folder = tmp_path_factory.mktemp("readings")
    for number, part in enumerate(np.array_split(np.arange(len(table)), FILES)):
        table.iloc[part[0] - 5 * (number > 0) : part[-1] + 1 - 5 * (number < FILES - 1)].to_parquet(
            folder / f"part-{number}.parquet", index=False
        )
    return folder


@pytest.fixture(scope="module")
def expected(imputer, source, tmp_path_factory):
    """The files that one process writes."""
    folder = tmp_path_factory.mktemp("one process")
    imputer.impute_dataset(source, folder)
    return contents(folder)


@pytest.fixture(scope="module")
def scheduler():
    """The address of a cluster that somebody else has started."""
    options = {"n_workers": 2, "threads_per_worker": 1, "silence_logs": logging.CRITICAL}
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with distributed.LocalCluster(**options, dashboard_address="127.0.0.1:0") as started:
        yield started.scheduler_address


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def die(task, shared, times):
    """Fill a partition on a worker, which is killed while it writes the fourth, this many times."""
    killed = task.target.parent.parent / "killed"
    write = job.pyarrow.parquet.write_table

    def write_and_die(table, file):
        count = len(killed.read_text()) if killed.exists() else 0
        if count < times:
            killed.write_text("x" * (count + 1))
            file.write(b"PAR1 and no more")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        write(table, file)

    if task.target.name == "part-3.parquet":
        job.pyarrow.parquet.write_table = write_and_die
    try:
        return job.fill_partition(task, *shared)
    finally:
        job.pyarrow.parquet.write_table = write


def test_two_workers_write_the_same_files_as_one_process(imputer, source, expected, tmp_path, capfd):
    done = imputer.impute_dataset(source, tmp_path / "out", workers=2)
    assert contents(tmp_path / "out") == expected
    assert done["partition"].tolist() == [f"part-{number}.parquet" for number in range(FILES)]
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""  # Dask would tell of every connection


def test_workers_of_a_scheduler_write_the_same_files(imputer, source, expected, scheduler, tmp_path):
    imputer.impute_dataset(source, tmp_path / "out", scheduler=scheduler)
    assert contents(tmp_path / "out") == expected
    (tmp_path / "out" / "part-2.parquet").unlink()
    again = imputer.impute_dataset(source, tmp_path / "out", scheduler=scheduler)
    assert again["skipped"].tolist() == [True, True, False, True, True, True]
    assert contents(tmp_path / "out") == expected


def test_a_partition_whose_worker_is_killed_is_filled_by_another(
    imputer, source, expected, scheduler, tmp_path, monkeypatch
):
    monkeypatch.setattr(cluster, "run_job", partial(die, times=1))
    imputer.impute_dataset(source, tmp_path / "out", scheduler=scheduler)
    assert (tmp_path / "killed").read_text() == "x"
    assert contents(tmp_path / "out") == expected
    assert len(list((tmp_path / "out").iterdir())) == FILES  # what the killed one had written is gone


def test_a_partition_over_which_all_workers_die_is_an_error_and_the_next_run_goes_on(
    imputer, source, expected, scheduler, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "run_job", partial(die, times=100))
        with pytest.raises(TableError, match=r"part-3\.parquet: 4 workers have died over this partition"):
            imputer.impute_dataset(source, tmp_path / "out", scheduler=scheduler)
    assert len((tmp_path / "killed").read_text()) == cluster.MOST_DEATHS + 1
    done = contents(tmp_path / "out")
    assert "part-3.parquet" not in done
    assert all(expected[name] == content for name, content in done.items())
    again = imputer.impute_dataset(source, tmp_path / "out", scheduler=scheduler)
    assert again["skipped"].sum() == len(done)
    assert contents(tmp_path / "out") == expected


def test_what_is_wrong_with_a_partition_is_told_with_its_name(imputer, source, scheduler, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for path in source.iterdir():
        frame = pd.read_parquet(path)
        if path.name == "part-4.parquet":
            frame.loc[3, "temp"] = np.inf
        frame.to_parquet(folder / path.name, index=False)
    message = r"part-[34]\.parquet: Column 'temp' has an infinite value in row .* followed by those it needs of part-"
    with pytest.raises(TableError, match=message):
        imputer.impute_dataset(folder, tmp_path / "out", scheduler=scheduler)


def test_workers_with_another_version_are_refused_before_anything_is_filled(
    imputer, source, scheduler, tmp_path, monkeypatch
):
    monkeypatch.setitem(cluster.VERSIONS, "gpytorch_sgpvae", "0.0.1")
    with pytest.raises(TableError, match=r"has gpytorch_sgpvae .*, and here it is 0\.0\.1: install the same"):
        imputer.impute_dataset(source, tmp_path / "out", scheduler=scheduler)
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_an_address_at_which_nobody_answers_is_refused(imputer, source, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "SECONDS_TO_CONNECT", 1)
    for address in ("tcp://127.0.0.1:1", "nonsense"):
        with pytest.raises(TableError, match=f"No Dask scheduler answers at {address}"):
            imputer.impute_dataset(source, tmp_path / "out", scheduler=address)


def test_a_bar_goes_over_partitions(imputer, source, scheduler, tmp_path, capfd):
    SGPVAEImputer(**imputer.get_params()).set_params(progress=True)._take(imputer.fitted_).impute_dataset(
        source, tmp_path / "out", scheduler=scheduler
    )
    shown = capfd.readouterr().err
    assert f"{FILES}/{FILES}" in shown
    assert "rows/s" in shown


def test_the_command_has_workers_and_a_scheduler(imputer, source, expected, scheduler, tmp_path, capsys):
    imputer.save(tmp_path / "model")
    command = ["impute", tmp_path / "model", source, "--quiet", "--json"]
    assert run(*command, "-o", tmp_path / "out", "--scheduler", scheduler) == 0
    assert json.loads(capsys.readouterr().out)["partitions"] == FILES
    assert contents(tmp_path / "out") == expected
    single = source / "part-0.parquet"
    assert run("impute", tmp_path / "model", single, "-o", tmp_path / "one.parquet", "--workers", "2") == 1
    assert "leave --workers and --scheduler out" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, 1.5, True])
def test_the_number_of_workers_is_a_whole_one(imputer, source, tmp_path, workers):
    with pytest.raises(TableError, match="workers must be a whole number from 1"):
        imputer.impute_dataset(source, tmp_path / "out", workers=workers)


def test_without_dask_it_says_what_to_install(imputer, source, tmp_path, monkeypatch):
    monkeypatch.setattr(impute_module, "find_spec", lambda name: None)
    with pytest.raises(TableError, match=r"pip install 'gpytorch-sgpvae\[distributed\]'"):
        imputer.impute_dataset(source, tmp_path / "out", workers=2)
