"""A fit that several processes share, on one machine or on two, learns what one process would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_files import make_series

from gpytorch_sgpvae.table import SGPVAEImputer

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent
COMMAND = ["-m", "gpytorch_sgpvae.table.cli"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "table.csv"
    make_series(num_sites=8, num_days=24).to_csv(path, index=False)
    return path


def start(launcher, table, model, *options):
    fit = ["fit", table, "--inputs", "day", "--outputs", "temp", "--task", "site", "--max-epochs", "2", "-o", model]
    command = [sys.executable, *launcher, *COMMAND, *fit, "--batch-size", "4", "--no-comparison", *options]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(list(map(str, command)), env=environment, stderr=subprocess.PIPE, text=True)


def finish(process):
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return errors


@pytest.fixture(scope="module")
def alone(table, tmp_path_factory):
    model = tmp_path_factory.mktemp("alone") / "model"
    finish(start([], table, model))
    return SGPVAEImputer.load(model)


def assert_same_model(model, alone):
    found = SGPVAEImputer.load(model)
    for (name, ours), theirs in zip(found.model_.named_parameters(), alone.model_.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach(), theirs.detach(), rtol=1e-6, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(found.history_["val_score"], alone.history_["val_score"], rtol=1e-6)


def test_two_processes_learn_what_one_does_and_one_of_them_tells(table, alone, tmp_path):
    told = finish(start([], table, tmp_path / "model", "--devices", "2"))
    assert_same_model(tmp_path / "model", alone)
    assert told.count("Outputs: temp (real)") == told.count("Saved") == 1
    assert "Initializing distributed" not in told


def test_two_machines_learn_what_one_does(table, alone, tmp_path):
    """Each of them has one process here, and a port of this machine is where they meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    machines = [
        start(
            ["-m", "torch.distributed.run", *meet, "--node-rank", rank], table, tmp_path / "model", "--num-nodes", "2"
        )
        for rank in range(2)
    ]
    told = [finish(machine) for machine in machines]
    assert_same_model(tmp_path / "model", alone)
    assert ["Saved" in part for part in told] == [True, False]


@pytest.mark.parametrize("option", ["devices", "num_nodes"])
def test_the_number_of_processes_is_a_whole_one(option):
    with pytest.raises(ValueError, match=f"{option} must be a whole number from 1, got 0"):
        SGPVAEImputer(["day"], ["temp"], **{option: 0}).fit(make_series())
