"""The examples run, in a small version; that they learn is for `make demo` to show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {"train-videos": 3, "test-videos": 2, "steps": 60, "pixels": 8, "prefix": 30, "iterations": 3, "batch-size": 2}


def test_two_balls_prints_a_table_and_writes_a_picture(tmp_path):
    picture = tmp_path / "balls.png"
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    command = [sys.executable, "-W", "ignore", EXAMPLES / "two_balls.py", *options, "--output", picture]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    for row in ("SGP-VAE", "pixel means", "last frame"):
        assert row in result.stdout
    assert "nan" not in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_two_balls_explains_its_options():
    command = [sys.executable, "-W", "ignore", EXAMPLES / "two_balls.py", "--help"]
    assert "--prefix" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
