"""One process at a time in a folder, and none that blocks the next for good."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpytorch_sgpvae.utils import locks
from gpytorch_sgpvae.utils.locks import LOCK_NAME, locked

needs_posix = pytest.mark.skipif(os.name != "posix", reason="links as POSIX has them")

# The module alone: the package would load torch, which takes seconds.
HOLD = """
import sys, time
from pathlib import Path
from utils.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def hold_in_another_process(folder):
    environment = {**os.environ, "PYTHONPATH": str(Path(locks.__file__).parent.parent)}
    process = subprocess.Popen([sys.executable, "-c", HOLD, folder], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_it_makes_the_folder_and_leaves_nothing_in_it(tmp_path):
    folder = tmp_path / "a" / "b"
    with locked(folder):
        assert [path.name for path in folder.iterdir()] == [LOCK_NAME]
    assert not list(folder.iterdir())


def test_it_ends_with_an_error_too(tmp_path):
    with pytest.raises(ValueError, match="on purpose"), locked(tmp_path):
        raise ValueError("on purpose")
    with locked(tmp_path, seconds=0):
        pass


def test_the_second_waits_for_the_first(tmp_path):
    inside, most = 0, 0

    def write_often():
        nonlocal inside, most
        for _ in range(10):
            with locked(tmp_path):
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1

    threads = [threading.Thread(target=write_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert not list(tmp_path.iterdir())


def test_another_process_waits_no_longer_than_it_was_told_and_a_killed_one_blocks_nobody(tmp_path):
    process = hold_in_another_process(tmp_path)
    try:
        with (
            pytest.raises(TimeoutError, match=r"being written by another process, and still is after 0.1 s: wait"),
            locked(tmp_path, seconds=0.1),
        ):
            pass
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / LOCK_NAME).exists()  # it had no time to remove it
    with locked(tmp_path, seconds=5):
        pass
    assert not list(tmp_path.iterdir())


@needs_posix
def test_a_planted_link_is_refused_and_not_followed(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / LOCK_NAME).symlink_to("victim")
    with pytest.raises(OSError, match=r"cannot be locked, because .* cannot be opened .*: remove it"), locked(tmp_path):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


@needs_posix
def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch):
    def unsupported(descriptor):
        raise OSError(locks.errno.ENOLCK, "no locks available")

    monkeypatch.setattr(locks, "_lock", unsupported)
    with locked(tmp_path):
        pass
    descriptor = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    try:
        assert locks.try_lock(descriptor)
        assert not locks.try_lock(descriptor, without_locks=False)
    finally:
        os.close(descriptor)
