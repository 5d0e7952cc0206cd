from __future__ import annotations

import ast
import importlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import gpytorch_sgpvae

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings along

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# The files of exact versions, and the extras that are installed with them.
TESTED = ["test", "datasets", "examples", "plot", "table", "train", "tutorials"]
CONSTRAINTS = {
    "constraints.txt": list(PYPROJECT["project"]["optional-dependencies"]),
    "constraints-oldest.txt": TESTED,
    "constraints-newest.txt": TESTED,
}
# GPyTorch documents these for others to inherit from.
BASE_CLASSES = {"_VariationalStrategy", "_VariationalDistribution"}


def test_every_public_name_is_there_and_documented():
    for name in gpytorch_sgpvae.__all__:
        doc = getattr(gpytorch_sgpvae, name).__doc__
        assert doc, name
        if isinstance(getattr(gpytorch_sgpvae, name), type):
            assert ">>>" in doc, f"{name} has no example"
            assert ".. math::" in doc or name == "Posterior", f"{name} has no equation"


def test_the_import_brings_in_nothing_that_gpytorch_does_not():
    """It takes no longer, because extras are imported by those who use them."""
    script = (
        "import sys, gpytorch; before = set(sys.modules); import gpytorch_sgpvae; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    output = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert output.stdout.split() == ["gpytorch_sgpvae"]


def test_the_version_is_the_changelogs_newest():
    assert importlib.metadata.version("gpytorch-sgpvae") == gpytorch_sgpvae.__version__
    assert f"## {gpytorch_sgpvae.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("which", CONSTRAINTS)
def test_constraints_are_exact_and_cover_every_dependency(which):
    lines = [line for line in (ROOT / which).read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines)
    pinned = pins(which)
    for name, bound in lower_bounds(CONSTRAINTS[which]).items():
        assert pinned[name] >= bound, f"{which} has {name} {pinned[name]}"


def test_the_oldest_versions_are_the_lower_bounds():
    which = "constraints-oldest.txt"
    assert pins(which).items() >= lower_bounds(CONSTRAINTS[which]).items()


def test_the_tools_check_the_code_for_the_oldest_python():
    oldest = PYPROJECT["project"]["requires-python"].removeprefix(">=")
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert f"PYTHON_OLDEST ?= python{oldest}" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import torch; torch.utils._pytree.tree_map", ["_pytree"]),
        ("from torch.utils import _pytree", ["_pytree"]),
        ("from torch.utils._pytree import tree_map as map", ["_pytree"]),
        ("import torch._dynamo as dynamo", ["_dynamo"]),
        ("from gpytorch import settings; settings._linalg_dtype_cholesky.value()", ["_linalg_dtype_cholesky"]),
        ("import torch; torch.__version__; self._model; Mine._name", []),
        ("from gpytorch.variational import _VariationalDistribution", []),
    ],
)
def test_private_names_are_found(code, found):
    assert private_names(ast.parse(code)) == found


def test_private_names_of_torch_and_gpytorch_are_in_one_room():
    package = ROOT / "gpytorch_sgpvae"
    found = {
        str(path.relative_to(package)): names
        for path in package.rglob("*.py")
        if (names := private_names(ast.parse(path.read_text())))
    }
    assert found.keys() == {"_compat.py"}, found


def test_the_command_is_there():
    module, _, function = PYPROJECT["project"]["scripts"]["sgpvae"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def pins(which: str) -> dict[str, Version]:
    """The versions in a file of constraints, by name."""
    lines = [line for line in (ROOT / which).read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in lines)}


def lower_bounds(extras: Iterable[str]) -> dict[str, Version]:
    """The bounds of the core and of what the extras ask for themselves, by name."""
    optional = PYPROJECT["project"]["optional-dependencies"]
    required = [*PYPROJECT["project"]["dependencies"], *(line for extra in extras for line in optional[extra])]
    bounds = {}
    for requirement in map(Requirement, required):
        if requirement.name != "gpytorch-sgpvae":
            (bound,) = requirement.specifier
            assert bound.operator == ">=", f"{requirement} must have a lower bound, and no other"
            bounds[canonicalize_name(requirement.name)] = Version(bound.version)
    return bounds


def private_names(tree: ast.AST) -> list[str]:
    """Names of torch, GPyTorch and linear_operator that a module uses, but for GPyTorch's documented base classes."""
    paths, ours = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            for alias in node.names:
                path = f"{module}.{alias.name}" if module else alias.name
                if not getattr(node, "level", 0) and path.split(".")[0] in {"torch", "gpytorch", "linear_operator"}:
                    paths.append(path)
                    ours.add((alias.asname or alias.name).split(".")[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(root := innermost(node), ast.Name) and root.id in ours:
            paths.append(node.attr)
    names = [name for path in paths for name in path.split(".")]
    return [name for name in names if name.startswith("_") and not name.startswith("__") and name not in BASE_CLASSES]


def innermost(node: ast.AST) -> ast.AST:
    """The torch in torch.nn.Linear."""
    return innermost(node.value) if isinstance(node, ast.Attribute) else node
