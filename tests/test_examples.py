"""The examples run, in a small version; that they learn is for `make demo` and `make demo-balls` to show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"
BALLS = {"train-videos": 3, "test-videos": 2, "steps": 60, "pixels": 8, "prefix": 30, "iterations": 3, "batch-size": 2}
TABLE = {"days": 8, "max-epochs": 1}


def run(script, *options):
    command = [sys.executable, "-W", "ignore", EXAMPLES / script, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_two_balls_prints_a_table_and_writes_a_picture(tmp_path):
    picture = tmp_path / "balls.png"
    output = run("two_balls.py", *(f"--{name}={value}" for name, value in BALLS.items()), "--output", picture)
    for row in ("SGP-VAE", "pixel means", "last frame"):
        assert row in output
    assert "nan" not in output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(
    not Path(sys.executable).with_name("sgpvae").exists(), reason="the command sgpvae is not installed: pip install ."
)
def test_a_table_of_sensors_is_filled_compared_and_reported_on(tmp_path):
    folder = tmp_path / "demo"
    options = [f"--{name}={value}" for name, value in TABLE.items()]
    output = run("sensor_table.py", *options, "--no-comparison", "--output", folder)
    for command in ("fit", "impute", "report"):
        assert f"$ sgpvae {command} " in output
    for way in ("sgpvae", "interpolation", "boosted trees", "inside their 95 % intervals"):
        assert way in output
    table, filled = pd.read_csv(folder / "sensors.csv"), pd.read_csv(folder / "filled.csv")
    assert table.isna().any(axis=None)
    assert not filled[table.columns].isna().any(axis=None)
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (folder / "outages.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("script", "option"), [("two_balls.py", "--prefix"), ("sensor_table.py", "--missing")])
def test_an_example_explains_its_options(script, option):
    assert option in run(script, "--help")
