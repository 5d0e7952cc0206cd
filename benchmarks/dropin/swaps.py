"""What a swap takes, counted from the scripts themselves."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from pathlib import Path

ORIGINAL, SWAPPED = "original", "swapped"
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Changes:
    """
    Lines that differ between a script and its swapped form: a line that replaces another counts once.

    :param code: All but the imports.
    :param imports: Import statements.
    """

    code: int
    imports: int

    @property
    def total(self) -> int:
        return self.code + self.imports


def source(kind: str, name: str) -> str:
    """
    :param kind: `original` or `swapped`.
    :param name: That of a script.
    """
    return (FOLDER / kind / f"{name}.py").read_text(encoding="utf-8")


def changes(before: str, after: str) -> Changes:
    """Count the lines that differ between two sources, blank ones and comments aside."""
    (code_before, imports_before), (code_after, imports_after) = split(before), split(after)
    return Changes(differing(code_before, code_after), differing(imports_before, imports_after))


def differing(before: list[str], after: list[str]) -> int:
    lines = list(difflib.ndiff(before, after))
    return max(sum(line.startswith(sign) for line in lines) for sign in ("- ", "+ "))


def split(text: str) -> tuple[list[str], list[str]]:
    """The lines of code of a source, and its imports, each as one line."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    numbers = {number for node in nodes for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = [line for number, line in enumerate(text.splitlines(), 1) if number not in numbers]
    code = [line for line in lines if line.strip() and not line.strip().startswith("#")]
    return code, [ast.unparse(node) for node in nodes]


def difference(name: str) -> str:
    """What `diff -u original swapped` says of a script."""
    before, after = (source(kind, name).splitlines() for kind in (ORIGINAL, SWAPPED))
    lines = difflib.unified_diff(before, after, f"{ORIGINAL}/{name}.py", f"{SWAPPED}/{name}.py", n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith("@@"))
