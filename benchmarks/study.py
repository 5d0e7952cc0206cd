"""What a study is given, what it returns, and how that is written down."""

from __future__ import annotations

import datetime
import importlib.metadata
import io
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gpytorch_sgpvae.plotting.styles import STYLES

from .measure import Memory, Spread
from .shapes import SHAPES, Shape

# Okabe and Ito's colours, which everybody can tell apart, without the yellow that nobody sees on white.
COLOURS = [style["color"] for style in STYLES]

GIB = 2**30

QUICK = "a quick run with small sizes: no results"


@dataclass(frozen=True)
class Options:
    """
    :param shapes: By key; of the studies that compare shapes.
    :param repeats: Rounds of an interleaved measurement.
    :param threads: Threads of torch.
    :param quick: Small sizes, to see that everything runs.
    :param gpu_tflops: The product rate of a GPU that predictions assume, in float64.
    :param folder: Folder of the results, for studies that keep single runs there too.
    :param seeds: How many runs a study of accuracy has that differ in their seeds alone.
    :param again: Imputers whose runs are forgotten and run anew.
    :param files: Files of the table of the study `large`, if not the usual number.
    """

    shapes: dict[str, Shape]
    repeats: int
    threads: int
    quick: bool
    gpu_tflops: float
    folder: Path
    seeds: int
    again: Sequence[str] = ()
    files: int | None = None

    @property
    def weather(self) -> Shape:
        """The shape of the studies that vary one."""
        return SHAPES["weather"].shrunk() if self.quick else SHAPES["weather"]


@dataclass(frozen=True)
class Goal:
    """A figure, and what it should be at most (or at least), if anybody said."""

    what: str
    measured: Spread
    limit: float | None = None
    at_least: bool = False
    unit: str = ""

    @property
    def reached(self) -> bool | None:
        if self.limit is None:
            return None
        return self.measured.median >= self.limit if self.at_least else self.measured.median <= self.limit

    @property
    def row(self) -> tuple[str, str, str, str]:
        bound = "" if self.limit is None else f"{'≥' if self.at_least else '≤'} {number(self.limit)}{self.unit}"
        verdict = {None: "", True: "reached", False: "**short**"}[self.reached]
        return self.what, spread(self.measured, lambda value: f"{number(value)}{self.unit}"), bound, verdict


@dataclass(frozen=True)
class Report:
    """
    :param text: What was measured, and how.
    :param tables: In markdown (see :func:`table`).
    :param figures: All that was measured, for the JSON file.
    :param notes: What a reader of the figures should know.
    """

    title: str
    text: str
    figures: dict[str, Any]
    figure: Figure
    tables: Sequence[str] = ()
    goals: Sequence[Goal] = ()
    notes: str = ""

    def markdown(self, name: str, options: Options) -> str:
        where = environment(options)
        machine = (
            f"{where['processor']}, threads: {where['threads']}, repeats: {where['repeats']}, memory that is freed: "
            f"{where['allocator']}, {where['date']}"
        )
        versions = ", ".join(f"{key} {value}" for key, value in where["versions"].items())
        goals = table(["", "measured", "target", ""], [goal.row for goal in self.goals]) if self.goals else ""
        title = f"{self.title} ({QUICK})" if options.quick else self.title
        picture = f"![{title}]({name}.png)"
        parts = [f"# {title}", self.text, *self.tables, goals, self.notes, picture, f"{machine}. {versions}."]
        return "\n\n".join(part for part in parts if part) + "\n"

    def write(self, name: str, folder: Path, options: Options) -> str:
        """The files `name.json`, `name.md` and `name.png`; returns the second."""
        goals = [{"what": g.what, **_plain(g.measured), "target": g.limit, "reached": g.reached} for g in self.goals]
        content = {"quick": options.quick, **environment(options), "goals": goals, **self.figures}
        markdown, picture = self.markdown(name, options), io.BytesIO()
        if options.quick:
            self.figure.suptitle(QUICK)
        self.figure.savefig(picture, format="png", dpi=120)
        write_file(folder / f"{name}.json", (json.dumps(content, indent=1, default=_plain) + "\n").encode())
        write_file(folder / f"{name}.png", picture.getvalue())
        write_file(folder / f"{name}.md", markdown.encode())
        return markdown


def environment(options: Options) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in (
        "torch",
        "gpytorch",
        "linear_operator",
        "lightning",
        "gpytorch_sgpvae",
        "sgpvae",
        "scikit-learn",
        "pypots",
        "celerite2",
        "smolgp",
        "jax",
    ):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "processor": _processor(),
        "threads": options.threads,
        "repeats": options.repeats,
        "allocator": "kept" if "MALLOC_TRIM_THRESHOLD_" in os.environ else "as the allocator likes",
        "versions": versions,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def write_file(path: Path, content: bytes) -> None:
    """Write all of a file or nothing: a run that is stopped leaves no half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return {"median": value.median, "quartiles": value.quartiles, "values": value.values}
    if isinstance(value, Memory):
        return {"before": value.before, "peak": value.peak}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON.")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if seconds >= size:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds / 1e-6)} µs"


def size(num_bytes: float) -> str:
    return f"{number(num_bytes / GIB)} GiB" if num_bytes >= GIB else f"{number(num_bytes / 2**20)} MiB"


def spread(measured: Spread, text: Callable[[float], str]) -> str:
    """Median and quartiles."""
    if len(measured.values) == 1:
        return text(measured.median)
    lower, upper = measured.quartiles
    return f"{text(measured.median)} ({text(lower)} to {text(upper)})"
