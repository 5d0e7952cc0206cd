"""What the documentation says is so."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import runpy
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

import gpytorch_sgpvae
from gpytorch_sgpvae import metrics, plotting

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)


def test_the_committed_architecture_is_what_the_code_draws():
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    if mpl.__version__ != pinned:
        pytest.skip(f"matplotlib {mpl.__version__} may draw it in other words than {pinned}")
    drawn = runpy.run_path(str(DOCS / "architecture.py"))["draw"]()
    assert drawn == (DOCS / "architecture.svg").read_text(), "run python docs/architecture.py"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(DOCS)) for page in PAGES])
def test_the_code_on_the_page_does_what_it_says(page):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert all(line.startswith((">>> ", "... ")) for block in blocks for line in block.splitlines()[:1])
    torch.manual_seed(0)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, str(page), 0)
    report: list[str] = []
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failures = doctest.DocTestRunner(optionflags=options, verbose=False).run(test, out=report.append).failed
    assert not failures, "".join(report)


def test_what_the_pages_link_to_is_there():
    broken = [
        (page.name, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert not broken


def test_the_reference_has_every_public_name():
    text = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.rst"))
    documented = set(re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.MULTILINE))
    packages = [name for _, name, is_package in pkgutil.iter_modules(gpytorch_sgpvae.__path__) if is_package]
    assert "training" in packages
    public = set(gpytorch_sgpvae.__all__)
    for name in packages:
        public.update(importlib.import_module(f"gpytorch_sgpvae.{name}").__all__)
    for module in (metrics, plotting):
        functions = inspect.getmembers(module, inspect.isfunction)
        public.update(name for name, function in functions if function.__module__ == module.__name__)
    missing = {name for name in public if not name.startswith("_")} - documented
    assert not missing
