"""Every notebook runs from top to bottom, in a short mode, and is committed with its outputs; scripts run too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

TUTORIALS = Path(__file__).parent.parent / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def cells(request):
    notebook = json.loads(request.param.read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_the_code_runs(cells, monkeypatch):
    monkeypatch.setenv("SGPVAE_SHORT", "1")
    matplotlib.use("Agg")
    namespace: dict = {"__name__": "__main__"}
    for i, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"code cell {i}", "exec"), namespace)


def test_it_is_committed_as_it_ran(cells):
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell["outputs"] for cell in cells)
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])


def test_the_script_trains_gets_killed_goes_on_and_evaluates(tmp_path):
    command = [sys.executable, "-W", "ignore", TUTORIALS / "train_and_resume.py", "--epochs", "15", "--seconds", "0.2"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "Killed." in result.stdout
    assert "The parameters of the two runs are equal, bit for bit." in result.stdout
    assert "val_coverage" in result.stdout
    assert not list(tmp_path.iterdir())
