"""The tests' own tools, and what all tests promise."""

from __future__ import annotations

import ast
from itertools import combinations, product
from pathlib import Path

import helpers
import pytest

TESTS = Path(__file__).parent


class TestPairwiseCases:
    @pytest.mark.parametrize("sizes", [(2, 2), (2, 3, 4), (5, 2, 2, 3), (4, 3, 2, 5, 3, 2)])
    def test_any_two_values_of_any_two_parameters_meet_and_not_in_all_combinations(self, sizes):
        names = "abcdef"[: len(sizes)]
        values = [[f"{name}{j}" for j in range(size)] for name, size in zip(names, sizes, strict=True)]
        mark = helpers.pairwise_cases(",".join(names), *values)
        cases = [case.values for case in mark.args[1]]
        for i, j in combinations(range(len(sizes)), 2):
            assert {(case[i], case[j]) for case in cases} == set(product(values[i], values[j]))
        # no design has fewer than the product of the two largest sizes
        assert len(cases) <= 1.2 * sorted(sizes)[-1] * sorted(sizes)[-2]

    def test_a_case_is_named_after_its_values(self):
        mark = helpers.pairwise_cases("kernel, dtype, size", helpers.KERNELS, helpers.DTYPES, [(2, 3), None])
        assert mark.args[0] == "kernel, dtype, size"
        assert mark.args[1][0].id == "rbf-float64-(2, 3)"
        assert mark.args[1][0].values == (helpers.rbf, helpers.DTYPES[0], (2, 3))

    def test_a_free_choice_is_the_first_value(self):
        mark = helpers.pairwise_cases("a, b, c", "wxyz", "wxyz", ["usual", "empty"])
        chosen = [case.values[-1] for case in mark.args[1]]
        assert chosen.count("usual") > chosen.count("empty")


def functions_of_tests(tree: ast.Module) -> list[ast.FunctionDef]:
    """Tests and fixtures."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [f for f in functions if f.name.startswith("test_") or "fixture" in map(called, f.decorator_list)]


def called(node: ast.AST) -> str:
    """The last name of what a call calls, e.g. parametrize."""
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def parametrized_names(tree: ast.Module) -> set[str]:
    """The names that any parametrization in a file gives values to, and its fixtures that have several values."""
    names = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if called(call) in ("parametrize", "pairwise_cases"):
            given = [node.value for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)]
            names.update(",".join(given).replace(" ", "").split(","))
    for function in functions_of_tests(tree):
        decorators = [node for node in function.decorator_list if isinstance(node, ast.Call)]
        if any(keyword.arg == "params" for decorator in decorators for keyword in decorator.keywords):
            names.add(function.name)
    return names


def unused_parameters(source: str, shared: frozenset[str] = frozenset()) -> list[str]:
    """The parametrized arguments that no line of a test or a fixture uses, of those in the file and `shared` ones."""
    tree = ast.parse(source)
    names = parametrized_names(tree) | shared
    unused = []
    for function in functions_of_tests(tree):
        used = {node.id for line in function.body for node in ast.walk(line) if isinstance(node, ast.Name)}
        arguments = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
        unused += [f"{function.name}: {name}" for name in sorted(arguments & names - used)]
    return unused


def test_every_parametrized_value_is_used():
    """A value that is not used makes a test run several times to say one thing."""
    shared = frozenset().union(*(parametrized_names(ast.parse(p.read_text())) for p in TESTS.rglob("conftest.py")))
    assert "dtype" in shared
    unused = {path.name: unused_parameters(path.read_text(), shared) for path in TESTS.rglob("*.py")}
    assert not {name: found for name, found in unused.items() if found}


def test_a_parametrized_value_that_is_not_used_is_found():
    source = """
@pytest.fixture(params=[1, 2])
def size(request):
    return request.param

many = helpers.pairwise_cases("tasks, network", [1, 2], [3, 4])

@many
@pytest.mark.parametrize(("a", "b"), [(1, 2)])
def test_of_some(a, b, tasks, network, size, dtype, tmp_path):
    assert a + tasks
"""
    assert unused_parameters(source) == [f"test_of_some: {name}" for name in ("b", "network", "size")]
    assert "test_of_some: dtype" in unused_parameters(source, frozenset({"dtype"}))
