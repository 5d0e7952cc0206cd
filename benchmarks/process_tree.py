"""What a command costs with all processes that it starts: time, processor time and memory. Linux only."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# How often the processes are looked at, in seconds.
INTERVAL = 0.1
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Usage:
    """
    :param output: What the command printed.
    :param seconds: By the clock on the wall.
    :param processor: Seconds of the processor of each process, the command itself first, then the others by what they
        took. A process that ends between two looks lacks what it took since the last one.
    :param peak: The most memory of all processes that lived at the same time, in bytes: the sum of the highest that
        each had reached until then, in which pages that they share count for each of them.
    """

    output: str
    seconds: float
    processor: tuple[float, ...]
    peak: int


@dataclass
class _Process:
    parent: int
    seconds: float
    highest: int


def run_and_watch(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> Usage:
    """
    Run a command to its end.

    :param command: The command and its arguments.
    :param environment: Variables that it gets beside those of this process.
    """
    began, seen, peak = time.perf_counter(), dict[int, _Process](), 0
    with subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    ) as process:
        while process.poll() is None:
            alive = _tree(process.pid)
            seen.update(alive)
            peak = max(peak, sum(part.highest for part in alive.values()))
            time.sleep(INTERVAL)
        output = process.stdout.read() if process.stdout else ""
    seconds = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {process.returncode}.")
    first = seen.pop(process.pid)
    others = sorted((part.seconds for part in seen.values()), reverse=True)
    return Usage(output, seconds, (first.seconds, *others), peak)


def _tree(root: int) -> dict[int, _Process]:
    """A process and its descendants, those that are alive."""
    every = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (found := _read(folder)) is not None:
            every[int(folder.name)] = found
    inside = {root} & every.keys()
    while more := {pid for pid, process in every.items() if process.parent in inside and pid not in inside}:
        inside |= more
    return {pid: every[pid] for pid in inside}


def _read(folder: Path) -> _Process | None:
    try:
        status = (folder / "status").read_text()
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return None
    found = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    highest = 1024 * int(found[0].split()[1]) if found else 0
    return _Process(int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS, highest)
