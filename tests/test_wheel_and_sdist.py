"""The wheel and the sdist are whole, and what somebody installs of them runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "gpytorch_sgpvae"
# What git does not have, and what only it has.
LEFT_OUT = (
    ".git",
    ".venv*",
    ".*_cache",
    ".hypothesis",
    "_build",
    "build",
    "dist",
    "htmlcov",
    "runs",
    "demo",
    "__pycache__",
)
# Some that need no other file than their own, one that reads the package's data, and one that fits a table.
FAST = ["tests/test_context.py", "tests/test_sites.py", "tests/utils/test_json_files.py", "tests/datasets/test_eeg.py"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("build") is None, reason="build is not installed"),
    pytest.mark.skipif(
        not (ROOT / PACKAGE).is_dir(), reason="there is only the installed package, and no source of it"
    ),
]


def run(*command, cwd, **environment) -> str:
    """What a command prints that knows nothing of this repository."""
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**clean, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with a wheel and an sdist, made of a copy of the repository."""
    folder = tmp_path_factory.mktemp("distributions")
    shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*LEFT_OUT, "*.egg-info", ".coverage*"))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "source", cwd=folder)
    return folder


def test_they_are_whole_and_the_wheel_runs_where_nothing_of_the_repository_is(built, tmp_path):
    (wheel,), (sdist,) = built.glob("dist/*.whl"), built.glob("dist/*.tar.gz")
    source = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if ".dist-info/" not in name} == source
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)

    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = (path for path in tmp_path.iterdir() if path.name != "environment")
    for name in (
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        "CITATION.cff",
    ):
        assert (unpacked / name).is_file(), name
    for folder in (PACKAGE, "tests", "docs", "tutorials", "examples", "benchmarks", "experiments", ".github", "conda"):
        ours = {path.relative_to(built / "source") for path in (built / "source" / folder).rglob("*") if path.is_file()}
        assert not [path for path in ours if not (unpacked / path).is_file()], folder

    shutil.rmtree(unpacked / PACKAGE)
    python = environment_with(wheel, tmp_path / "environment")
    where = run(python, "-W", "ignore", "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)", cwd=unpacked)
    assert Path(where.strip()).is_relative_to(tmp_path / "environment")
    table = "\n".join(
        ["site,day,temp", *(f"{site},{day},{'' if day == 3 else day % 4}" for site in "ab" for day in range(9))]
    )
    (tmp_path / "table.csv").write_text(table)
    options = [
        "--inputs",
        "day",
        "--outputs",
        "temp",
        "--task",
        "site",
        "--max-epochs",
        1,
        "--no-comparison",
        "--quiet",
    ]
    command = python.with_name("sgpvae")
    run(command, "fit", "table.csv", *options, "-o", "model", cwd=tmp_path)
    assert (tmp_path / "model").is_dir()
    told = run(python, "-m", "pytest", "-p", "no:cacheprovider", "-n0", *FAST, cwd=unpacked)
    assert "passed" in told or "100%" in told


def environment_with(wheel: Path, folder: Path) -> Path:
    """The Python of a new environment that has the wheel, and what is installed here beside the package."""
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = folder / ("Scripts" if os.name == "nt" else "bin") / Path(sys.executable).name
    scheme = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", scheme))
    # Folders, whose own .pth files nobody reads: an editable installation of the package does not count.
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "others.pth").write_text("\n".join(here))
    options = ["--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check", "--quiet"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=folder)
    return python
