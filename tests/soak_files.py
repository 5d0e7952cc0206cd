"""
Races, kills and damage for files, by processes that do nothing else: `soak.py` runs them for long, the tests briefly.
The processes load the modules of `gpytorch_sgpvae/utils` alone: the whole package takes seconds to load.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from gpytorch_sgpvae.utils import files
from gpytorch_sgpvae.utils.files import replacing
from gpytorch_sgpvae.utils.tensor_files import DamagedFileError, from_bytes

PACKAGE = Path(files.__file__).parent.parent

# Contents of many lengths, each with its sum.
WRITE = """
import hashlib, random, sys
from pathlib import Path
from utils.files import replacing

path, seed, times = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
generator = random.Random(seed)
for _ in range(times):
    content = generator.randbytes(generator.randrange(1, 100_000))
    with replacing(path) as file:
        for start in range(0, len(content), 10_000):
            file.write(content[start : start + 10_000])
        file.write(hashlib.sha256(content).digest())
    print(flush=True)
"""

COUNT = """
import sys
from pathlib import Path
from utils.files import replacing
from utils.locks import locked

folder, times = Path(sys.argv[1]), int(sys.argv[2])
for _ in range(times):
    with locked(folder):
        number = int((folder / "number").read_text())
        with replacing(folder / "number") as file:
            file.write(str(number + 1).encode())
"""


def start(script: str, *arguments: object) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"A process failed:\n{errors.decode()}")


def is_whole(path: Path) -> bool:
    """Whether a file is one of the contents, all of it."""
    data = path.read_bytes()
    return hashlib.sha256(data[:-32]).digest() == data[-32:]


def race(folder: Path, writers: int, times: int) -> tuple[int, int]:
    """
    Several processes write one file, while this one reads it.

    :return: How often it was read, and how often it was torn or missing.
    """
    path = folder / "raced"
    finish(start(WRITE, path, 0, 1))
    processes = [start(WRITE, path, seed, times) for seed in range(1, writers + 1)]
    reads, torn = 0, 0
    while any(process.poll() is None for process in processes):
        reads += 1
        try:
            torn += not is_whole(path)
        except FileNotFoundError:
            torn += 1
        time.sleep(0.0005)  # leave the others some of the processor
    for process in processes:
        finish(process)
    left = [other.name for other in folder.iterdir() if other != path]
    if left:
        raise RuntimeError(f"The writers left {', '.join(left)} behind.")
    return reads, torn


def kill_writers(folder: Path, kills: int, seed: int = 0) -> int:
    """
    Kill a process at random times while it writes, again and again.

    :return: How often the file was torn or missing afterwards.
    """
    path, generator, torn = folder / "killed", random.Random(seed), 0
    finish(start(WRITE, path, 0, 1))
    for kill in range(kills):
        process = start(WRITE, path, kill + 1, 10**9)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.02 * generator.random())
        process.kill()
        process.communicate()
        torn += not is_whole(path)
    before = path.read_bytes()
    with replacing(path) as file:  # also what the last one has left goes
        file.write(before)
    left = [other.name for other in folder.iterdir() if other != path]
    if left and os.name == "posix":  # elsewhere a leftover is only known by its age
        raise RuntimeError(f"The killed ones left {', '.join(left)} behind.")
    return torn


def count_together(folder: Path, processes: int, times: int) -> int:
    """
    Several processes add one to a number in a file, each under the folder's lock.

    :return: How many of their additions were lost.
    """
    folder.mkdir()
    (folder / "number").write_text("0")
    running = [start(COUNT, folder, times) for _ in range(processes)]
    for process in running:
        finish(process)
    if [path.name for path in folder.iterdir()] != ["number"]:
        raise RuntimeError("The lock was left behind.")
    return processes * times - int((folder / "number").read_text())


def flip_bits(data: bytes, flips: int, seed: int = 0) -> int:
    """
    Flip random bits of a file of tensors, one at a time.

    :return: How many of the damaged files were read as if nothing had been.
    """
    generator, unseen = random.Random(seed), 0
    for _ in range(flips):
        damaged = bytearray(data)
        bit = generator.randrange(8 * len(data))
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            from_bytes(bytes(damaged), "the file")
        except DamagedFileError:
            continue
        unseen += 1
    return unseen
