"""What the documentation says is so."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import runpy
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

import gpytorch_sgpvae

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)


def test_the_committed_architecture_is_what_the_code_draws():
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    if mpl.__version__ != pinned:
        pytest.skip(f"matplotlib {mpl.__version__} may draw it in other words than {pinned}")
    drawn = runpy.run_path(str(DOCS / "architecture.py"))["draw"]()
    assert drawn == (DOCS / "architecture.svg").read_text(), "run python docs/architecture.py"
