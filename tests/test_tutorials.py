"""Every notebook runs from top to bottom, in a short mode, and is committed with its outputs; scripts run too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch

from gpytorch_sgpvae import datasets

TUTORIALS = Path(__file__).parent.parent / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))
# what reads a file of data: the loaders, and what they find their files with
LOADERS = [*(name for name in datasets.__all__ if name.startswith("load_")), "locate("]
MAX_BYTES = 2_000_000
# Folders of somebody's machine.
PATHS = re.compile(r"/(?:home|root|tmp|work|Users|var|usr|opt)/|[A-Z]:\\")


@pytest.fixture(params=NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return json.loads(path.read_text())


@pytest.fixture
def cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def text(notebook):
    return "\n\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")


@pytest.fixture
def _as_in_a_kernel(monkeypatch):
    """Run in the folder of the notebooks; what they set for themselves does not last."""
    monkeypatch.chdir(TUTORIALS)
    monkeypatch.setenv("SGPVAE_SHORT", "1")
    with mpl.rc_context():
        mpl.use("Agg")
        yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)


def test_there_are_fifteen_notebooks_with_numbers_of_their_own():
    numbers = [re.match(r"(\d\d)_[a-z_]+\.ipynb$", path.name)[1] for path in NOTEBOOKS]
    assert numbers == [f"{number:02}" for number in range(1, 16)]


@pytest.mark.slow
@pytest.mark.usefixtures("_as_in_a_kernel")
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_the_code_runs(cells):
    sources = ["".join(cell["source"]) for cell in cells]
    if any(name in source for name in LOADERS for source in sources) and not os.environ.get("SGPVAE_DATA"):
        pytest.skip("SGPVAE_DATA names no folder with the data")
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    drawn_by_torch, drawn_by_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    seed = torch.initial_seed()
    namespace: dict = {"__name__": "__main__"}
    for i, source in enumerate(sources):
        exec(compile(source, f"code cell {i}", "exec"), namespace)
    # It sets its own seed, or draws nothing without one.
    assert torch.initial_seed() != seed or torch.equal(torch.get_rng_state(), drawn_by_torch)
    assert "pyro" in namespace or np.array_equal(np.random.get_state()[1], drawn_by_numpy)


def test_it_is_committed_as_it_ran(path, cells):
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output["output_type"] == "error" for output in outputs)
    assert path.stat().st_size <= MAX_BYTES


def test_its_outputs_tell_nothing_of_the_machine(cells):
    for output in (output for cell in cells for output in cell["outputs"]):
        assert output.get("name") != "stderr"
        printed = output.get("text") or output["data"].get("text/plain", [])
        assert not PATHS.search("".join(printed))


def test_it_says_what_was_learnt_and_where_to_go(path, text):
    number = int(path.name[:2])
    assert text.startswith(f"# {number}. ")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[-2:] == ["What you learnt", "Where next"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("nbclient") is None, reason="make tutorials installs nbclient")
class TestRun:
    def run(self, folder, *sources):
        cells = [
            {"cell_type": "code", "id": f"cell{i}", "execution_count": None, "metadata": {}, "outputs": [], "source": s}
            for i, s in enumerate(sources)
        ]
        path = folder / "01_first.ipynb"
        path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
        before = path.read_text()
        environment = {key: value for key, value in os.environ.items() if key != "SGPVAE_DATA"}
        command = [sys.executable, TUTORIALS / "run.py", "01", "--folder", folder]
        result = subprocess.run(command, capture_output=True, text=True, env={**environment, "SGPVAE_SHORT": "1"})
        assert list(folder.iterdir()) == [path]
        return result, before, path.read_text()

    def test_outputs_are_kept_without_warnings(self, tmp_path):
        check = "import os, sys\nassert 'SGPVAE_SHORT' not in os.environ\nprint('seen')\nprint('gone', file=sys.stderr)"
        result, _, after = self.run(tmp_path, check)
        assert result.returncode == 0, result.stderr
        assert re.search(r"01_first +\d+ s  done", result.stdout)
        [cell] = json.loads(after)["cells"]
        assert cell["execution_count"] == 1
        assert [output["text"] for output in cell["outputs"]] == [["seen\n"]]

    def test_a_claim_that_does_not_hold_fails_and_leaves_the_notebook_as_it_was(self, tmp_path):
        result, before, after = self.run(tmp_path, "print('It is best')", "assert 1 > 2, 'FactorNet is not best'")
        assert result.returncode != 0
        assert "FAILED" in result.stdout
        assert "FactorNet is not best" in result.stderr
        assert after == before

    def test_a_notebook_without_its_data_is_skipped_with_the_reason(self, tmp_path):
        result, before, after = self.run(tmp_path, "raise ConnectionError('no network, no file')")
        assert result.returncode == 0
        assert "skipped, without its data: no network, no file" in result.stdout
        assert after == before


@pytest.mark.slow
def test_the_script_trains_gets_killed_goes_on_and_evaluates(tmp_path):
    command = [sys.executable, "-W", "ignore", TUTORIALS / "train_and_resume.py", "--epochs", "15", "--seconds", "0.2"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "Killed." in result.stdout
    assert "The parameters of the two runs are equal, bit for bit." in result.stdout
    assert "val_coverage" in result.stdout
    assert not list(tmp_path.iterdir())
