from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import gpytorch_sgpvae

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings along

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_public_name_is_there_and_documented():
    for name in gpytorch_sgpvae.__all__:
        doc = getattr(gpytorch_sgpvae, name).__doc__
        assert doc, name
        if isinstance(getattr(gpytorch_sgpvae, name), type):
            assert ">>>" in doc, f"{name} has no example"
            assert ".. math::" in doc or name == "Posterior", f"{name} has no equation"


def test_the_import_brings_in_nothing_that_gpytorch_does_not():
    """So that it takes no longer: extras are imported by those who use them."""
    script = (
        "import sys, gpytorch; before = set(sys.modules); import gpytorch_sgpvae; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    output = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert output.stdout.split() == ["gpytorch_sgpvae"]


def test_the_version_is_the_changelogs_newest():
    assert importlib.metadata.version("gpytorch-sgpvae") == gpytorch_sgpvae.__version__
    assert f"## {gpytorch_sgpvae.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_constraints_are_exact_and_cover_every_dependency():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    assert all(line.count("==") == 1 for line in lines)
    project = PYPROJECT["project"]
    required = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    for requirement in required:
        name, _, bound = requirement.partition(">=")
        if not requirement.startswith("gpytorch-sgpvae["):
            assert bound, f"{requirement} has no lower bound"
            assert "<" not in requirement
            assert name.lower().replace("_", "-") in pinned


def test_the_command_is_there():
    module, _, function = PYPROJECT["project"]["scripts"]["sgpvae"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
