"""Where dependencies point: the order of the package's rooms, read off its imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gpytorch_sgpvae

PACKAGE = Path(gpytorch_sgpvae.__file__).parent
# A room imports from itself and from those before it.
ORDER = [
    "_compat",
    "utils",
    "magnitudes",
    "context",
    "sites",
    "mlp",
    "inference_networks",
    "linalg",
    "variational",
    "likelihoods",
    "mlls",
    "models",
    "export",
    "refinement",
    "metrics",
    "plotting",
    "datasets",
    "training",
    "windows",
    "table",
    "xarray",
    "botorch",
]
MODULES = {
    ".".join((*path.relative_to(PACKAGE).parts[:-1], *([] if path.stem == "__init__" else [path.stem]))): path
    for path in PACKAGE.rglob("*.py")
}


def imports_of(module: str) -> Iterator[tuple[str, str]]:
    """The modules of the package that a module imports, anywhere in its code, with the names that it takes of them."""
    path = MODULES[module]
    parts = module.split(".") if module else []
    package = parts if path.stem == "__init__" else parts[:-1]
    for node in _nodes_that_run(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or (node.level == 0 and not _is_ours(node.module)):
            continue
        if node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
        else:
            base = node.module.split(".")[1:]
        for alias in node.names:
            name = ".".join((*base, alias.name))
            yield (name, "") if name in MODULES else (".".join(base), alias.name)


def _nodes_that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    if isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING":
        return
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from _nodes_that_run(child)


def _is_ours(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == gpytorch_sgpvae.__name__


def room(module: str) -> str:
    return module.split(".")[0]


@pytest.mark.parametrize("module", [name for name in MODULES if name])
def test_dependencies_point_one_way(module):
    for imported, name in imports_of(module):
        if not imported:
            assert name == "__version__", f"{module} takes {name} from the package itself, whose last import it is"
        else:
            assert ORDER.index(room(imported)) <= ORDER.index(room(module)), f"{module} imports {imported}"


def test_no_two_modules_import_each_other():
    # a package's own __init__ gathers its modules, so that they may not import from it
    graph = {module: {imported for imported, _ in imports_of(module) if imported} for module in MODULES if module}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("module", MODULES)
def test_what_a_room_keeps_to_itself_nobody_else_imports(module):
    for imported, name in imports_of(module):
        private = [part for part in (*imported.split("."), name) if part.startswith("_") and not part.endswith("__")]
        assert not private or room(imported) in (room(module), "_compat"), f"{module} imports {imported} {name}"


def test_every_room_has_its_place():
    assert {room(module) for module in MODULES if module} <= set(ORDER)
