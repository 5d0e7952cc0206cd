"""
Kill real training processes at random times, and fill up their disks; start them again until they are through, and
compare the result with that of a run that nobody has touched. Let processes race for a file and for a folder, kill them
while they write, and flip bits of checkpoints. Kill the command `sgpvae` while it writes models and tables.

    python tests/soak.py --kills 20 --disks 4 --writes 2000 --flips 2000 --table-kills 100
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import soak_files
import soak_tables
import torch

from gpytorch_sgpvae.utils.tensor_files import read_tensors

SCRIPT = Path(__file__).parent.parent / "tutorials" / "train_and_resume.py"
SIGNALS = (getattr(signal, "SIGKILL", signal.SIGTERM), signal.SIGTERM)  # Windows has one of them
DISK_BYTES = 8 * 2**20


def start(
    folder: Path, epochs: int, checkpoint_every: int, before: Callable[[], None] | None = None
) -> subprocess.Popen:
    options = [f"--epochs={epochs}", f"--checkpoint-every={checkpoint_every}"]
    command = [sys.executable, "-W", "ignore", SCRIPT, "train", folder, *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=before)


def wait_for_new_checkpoint(process: subprocess.Popen, path: Path, before: float) -> bool:
    """Wait, and tell whether one came before the process ended."""
    while process.poll() is None:
        if path.exists() and path.stat().st_mtime > before:
            return True
        time.sleep(0.005)
    return False


def last_step(path: Path) -> int:
    """Read the step from a checkpoint, which can always be read."""
    return read_tensors(path)["global_step"]


def kill_and_resume(
    folder: Path, num_kills: int, epochs: int, checkpoint_every: int, seconds: float, seed: int
) -> list[tuple[str, int]]:
    """
    :param seconds: A kill comes so late after a process' first checkpoint at the most.
    :return: The signals, and the step of the checkpoint that each of them left.
    """
    generator = random.Random(seed)
    path, kills = folder / "last.ckpt", []
    while len(kills) < num_kills:
        before = path.stat().st_mtime if path.exists() else 0.0
        process = start(folder, epochs, checkpoint_every)
        if not wait_for_new_checkpoint(process, path, before):
            break  # it was through before it could be killed
        time.sleep(seconds * generator.random())
        number = SIGNALS[len(kills) % len(SIGNALS)]
        process.send_signal(number)
        process.communicate(timeout=60)
        kills.append((number.name, last_step(path)))
    finish(folder, epochs, checkpoint_every)
    return kills


def finish(folder: Path, epochs: int, checkpoint_every: int) -> None:
    process = start(folder, epochs, checkpoint_every)
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"The training failed:\n{errors}")


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "last.ckpt")["state_dict"]


def differing(one: Path, other: Path) -> list[str]:
    """The names of the parameters of two runs that are not equal, bit for bit."""
    first, second = parameters(one), parameters(other)
    assert first.keys() == second.keys()
    return [name for name, value in first.items() if not torch.equal(value, second[name])]


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of a few MiB at a folder, or the folder alone where that cannot be had; and which it is."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = sys.platform == "linux" and shutil.which("mount") is not None
    mounted = mounted and subprocess.run(["mount", *options], capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write a file until its disk has no room left."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        for size in (2**16, 2**10, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def limit_files() -> None:
    """Let this process write no file as large as a checkpoint: a disk that is full for it alone."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, 2**14))


def fill_disk_and_resume(folder: Path, epochs: int, checkpoint_every: int) -> tuple[str, int]:
    """
    Take all room from a run after its first checkpoint, give it back, and let the run go on.

    :return: How the room was taken, and the step of the checkpoint that was left.
    """
    path, filler = folder / "last.ckpt", folder.parent / "filler"
    with small_disk(folder.parent) as mounted:
        process = start(folder, epochs, checkpoint_every)
        if not wait_for_new_checkpoint(process, path, 0.0):
            raise RuntimeError("The run was over before its disk was full: give more epochs.")
        if mounted:
            fill(filler)
        else:
            process.kill()
            process.communicate()
            process = start(folder, epochs, checkpoint_every, limit_files)
        _, errors = process.communicate(timeout=120)
        if process.returncode == 0 or "there is no room for it" not in errors.splitlines()[-1]:
            raise RuntimeError(f"A full disk should end a run with a sentence, but it ended with:\n{errors}")
        step = last_step(path)
        left = [other.name for other in folder.iterdir() if other.suffix == ".part"]
        if left:
            raise RuntimeError(f"The run left {', '.join(left)} behind.")
        filler.unlink(missing_ok=True)
        finish(folder, epochs, checkpoint_every)
        kept = shutil.copytree(folder, folder.parent.with_name(f"{folder.parent.name}-kept"))
    if mounted:  # the disk is gone, and with it what was on it
        shutil.copytree(kept, folder, dirs_exist_ok=True)
    return ("a small disk" if mounted else "a limit of the process"), step


def check(name: str, failures: int, what: str) -> None:
    print(f"{name}: {what}, {failures} failures.", flush=True)
    if failures:
        raise SystemExit(1)


def soak_files_and_locks(folder: Path, arguments: argparse.Namespace) -> None:
    for part in ("race", "kill"):
        (folder / part).mkdir()
    reads, torn = soak_files.race(folder / "race", writers=2, times=arguments.writes)
    check("races", torn, f"2 processes wrote a file {arguments.writes} times each, {reads} reads")
    kills = max(arguments.writes // 20, 1)
    check("kills of writers", soak_files.kill_writers(folder / "kill", kills, arguments.seed), f"{kills} kills")
    times = max(arguments.writes // 4, 1)
    check("locks", soak_files.count_together(folder / "lock", 3, times), f"3 processes, {times} turns each")


def soak_commands(folder: Path, kills: int, seed: int) -> None:
    done = soak_tables.kill_commands(folder / "kills", kills, seed)
    print(*done.failures, sep="\n", end="\n" if done.failures else "")
    check("kills of sgpvae", len(done.failures), f"{done.number} kills, {done.amid} of them amid a write")
    for kind in soak_tables.KINDS:
        times = max(kills // (1 if kind in ("save", "write") else 10), 1)
        reads, torn = soak_tables.race(folder / f"race-{kind}", kind, 2, times)
        check(f"races of {kind}", torn, f"2 processes wrote {times} times each, {reads} reads")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="kills of training processes (default: %(default)s)")
    parser.add_argument("--kills-per-run", type=int, default=5, help="kills of one run (default: %(default)s)")
    parser.add_argument("--disks", type=int, default=4, help="that are filled up (default: %(default)s)")
    parser.add_argument("--writes", type=int, default=2000, help="writes of each racing process (default: %(default)s)")
    parser.add_argument("--flips", type=int, default=2000, help="flipped bits of a checkpoint (default: %(default)s)")
    parser.add_argument(
        "--table-kills", type=int, default=100, help="kills of the command sgpvae (default: %(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=120, help="epochs of each run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the times (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        reference = Path(name) / "reference"
        soak_files_and_locks(Path(name), arguments)
        if arguments.table_kills:
            soak_commands(Path(name) / "tables", arguments.table_kills, arguments.seed)
        finish(reference, arguments.epochs, checkpoint_every=10)
        data = (reference / "last.ckpt").read_bytes()
        flips = arguments.flips
        check("flipped bits", soak_files.flip_bits(data, flips, arguments.seed), f"{flips} flips of {len(data)} bytes")
        for disk in range(arguments.disks):
            folder = Path(name) / f"disk{disk}" / "run"
            how, step = fill_disk_and_resume(folder, arguments.epochs, checkpoint_every=(1, 5)[disk % 2])
            check("full disks", len(differing(reference, folder)), f"{how}, full after step {step}, gone on")
        done, run = 0, 0
        while done < arguments.kills:
            folder, run = Path(name) / str(run), run + 1
            wanted = min(arguments.kills_per_run, arguments.kills - done)
            checkpoint_every = (1, 3, 10)[run % 3]
            kills = kill_and_resume(folder, wanted, arguments.epochs, checkpoint_every, 2.0, arguments.seed + run)
            if not kills:
                raise SystemExit("The runs are over before they can be killed: give more --epochs.")
            done += len(kills)
            marks = ", ".join(f"{number} at {step}" for number, step in kills)
            wrong = differing(reference, folder)
            check("kills", len(wrong), f"run {run}, a checkpoint every {checkpoint_every} steps, {marks}")
    print(f"{done} kills of {run} runs, {arguments.disks} full disks: all of them as if nothing had happened.")


if __name__ == "__main__":
    main()
