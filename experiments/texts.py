"""What the report says about each experiment, in Markdown beside this file."""

from __future__ import annotations

from pathlib import Path

TEXTS = Path(__file__).parent / "texts"


def text_of(name: str) -> str:
    """Read a text of `experiments/texts/`, without the end of its last line."""
    return (TEXTS / f"{name}.md").read_text(encoding="utf-8").rstrip("\n")
