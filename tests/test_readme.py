"""The code in the README runs as it stands there, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_python_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # training leaves a folder behind
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert namespace["pred"].mean.shape == (100, 5)
    assert namespace["loss"].isfinite()


def test_what_the_readme_links_to_is_there():
    root = Path(__file__).parent.parent
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    local = [target for target in targets if not target.startswith("http")]
    assert local
    assert all((root / target).exists() for target in local)


def test_the_readme_shows_the_two_commands():
    assert "make demo" in README
    assert "make test" in README
