"""
Kill real training processes at random times, start them again until they are through, and compare the result with that
of a run that nobody has touched.

    python tests/soak.py --kills 20
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

SCRIPT = Path(__file__).parent.parent / "tutorials" / "train_and_resume.py"
SIGNALS = (signal.SIGKILL, signal.SIGTERM)


def start(folder: Path, epochs: int, checkpoint_every: int) -> subprocess.Popen:
    options = [f"--epochs={epochs}", f"--checkpoint-every={checkpoint_every}"]
    command = [sys.executable, "-W", "ignore", SCRIPT, "train", folder, *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for_new_checkpoint(process: subprocess.Popen, path: Path, before: float) -> bool:
    """Whether one came, before the process ended."""
    while process.poll() is None:
        if path.exists() and path.stat().st_mtime > before:
            return True
        time.sleep(0.005)
    return False


def last_step(path: Path) -> int:
    """Of a checkpoint, which can always be read."""
    return torch.load(path, weights_only=True)["global_step"]


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
    return torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]


def differing(one: Path, other: Path) -> list[str]:
    """The names of the parameters of two runs that are not equal, bit for bit."""
    first, second = parameters(one), parameters(other)
    assert first.keys() == second.keys()
    return [name for name, value in first.items() if not torch.equal(value, second[name])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument("--kills-per-run", type=int, default=5, help="of one run (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=120, help="of each run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the times (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        reference = Path(name) / "reference"
        finish(reference, arguments.epochs, checkpoint_every=10)
        done, run = 0, 0
        while done < arguments.kills:
            folder, run = Path(name) / str(run), run + 1
            wanted = min(arguments.kills_per_run, arguments.kills - done)
            checkpoint_every = (1, 3, 10)[run % 3]
            kills = kill_and_resume(folder, wanted, arguments.epochs, checkpoint_every, 2.0, arguments.seed + run)
            if not kills:
                raise SystemExit("The runs are over before they can be killed: give more --epochs.")
            done += len(kills)
            wrong = differing(reference, folder)
            marks = ", ".join(f"{number} at {step}" for number, step in kills)
            print(f"run {run}, a checkpoint every {checkpoint_every} steps: {marks}: ", end="")
            print("the parameters are equal." if not wrong else f"different: {', '.join(wrong)}", flush=True)
            if wrong:
                raise SystemExit(1)
    print(f"{done} kills, {run} runs, all of them as if nothing had happened.")


if __name__ == "__main__":
    main()
