"""What Windows does otherwise, tried on this system: the modules again, on a Windows of a few lines."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import gpytorch_sgpvae.utils

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="here the other tests show it")

# What os has on POSIX alone, and what signal has.
POSIX_ONLY = ["O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fchown", "fork", "getuid", "mkfifo"]


def is_open(path) -> bool:
    """Whether this process holds a file, which Windows then neither moves nor removes."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    for descriptor in range(3, 256):
        try:
            if os.path.samestat(os.fstat(descriptor), there):
                return True
        except OSError:
            continue
    return False


@pytest.fixture
def windows(tmp_path, monkeypatch):
    """The modules `files` and `locks` as they are on Windows."""
    fcntl = importlib.import_module("fcntl")
    open_file, move, remove = os.open, os.replace, os.unlink
    one_call = threading.Lock()  # to look whether a file is open and to remove it is one step there

    def locking(descriptor: int, mode: int, num_bytes: int) -> None:
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 0, "Windows locks bytes from where the file is being read"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    def open_no_folder(path, flags, mode=0o777, **kwargs):
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied")
        with one_call:
            return open_file(path, flags, mode, **kwargs)

    def move_closed(source, target, **kwargs):
        with one_call:
            if is_open(source) or is_open(target):
                raise PermissionError(errno.EACCES, "The process cannot access the file")
            move(source, target, **kwargs)

    def remove_closed(path, **kwargs):
        with one_call:
            if is_open(path):
                raise PermissionError(errno.EACCES, "The process cannot access the file")
            remove(path, **kwargs)

    msvcrt = ModuleType("msvcrt")
    vars(msvcrt).update(LK_NBLCK=2, LK_UNLCK=0, locking=locking)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        patch.setitem(sys.modules, "fcntl", None)
        patch.setitem(sys.modules, "msvcrt", msvcrt)
        for name in POSIX_ONLY:
            patch.delattr(os, name, raising=False)
        patch.setattr(os, "open", open_no_folder)
        patch.setattr(os, "replace", move_closed)
        patch.setattr(os, "unlink", remove_closed)
        # Copies beside the real modules, which other tests have imported.
        package = ModuleType("windows_utils")
        package.__path__ = gpytorch_sgpvae.utils.__path__
        patch.setitem(sys.modules, "windows_utils", package)
        modules = [importlib.import_module(f"windows_utils.{name}") for name in ("locks", "files")]
        yield SimpleNamespace(locks=modules[0], files=modules[1])
        for module in modules:
            del sys.modules[module.__name__]


def write(windows, path, content, **kwargs):
    with windows.files.replacing(path, **kwargs) as file:
        file.write(content)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_modules_are_those_of_windows(windows):
    assert windows.locks.msvcrt
    assert not hasattr(windows.locks, "fcntl")


def test_a_file_is_replaced_and_the_old_one_kept(windows, tmp_path):
    path, previous = tmp_path / "a" / "x", tmp_path / "a" / "previous"
    for content in (b"1", b"2", b"3"):
        write(windows, path, content, previous=previous)
    assert (path.read_bytes(), previous.read_bytes()) == (b"3", b"2")
    assert names(tmp_path / "a") == ["previous", "x"]


def test_an_error_leaves_the_old_file_and_nothing_else(windows, tmp_path):
    write(windows, tmp_path / "x", b"old")
    with pytest.raises(TypeError), windows.files.replacing(tmp_path / "x") as file:
        file.write("no bytes")
    assert (tmp_path / "x").read_bytes() == b"old"
    assert names(tmp_path) == ["x"]


def test_a_file_that_somebody_reads_is_replaced_when_he_is_through(windows, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    reader = path.open("rb")
    timer = threading.Timer(0.1, reader.close)
    timer.start()
    write(windows, path, b"new")
    timer.join()
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["x"]


def test_a_file_that_somebody_never_lets_go_is_an_error_that_costs_nothing(windows, tmp_path, monkeypatch):
    monkeypatch.setattr(windows.files, "_SECONDS_BETWEEN_TRIES", 0)
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with path.open("rb"), pytest.raises(PermissionError):
        write(windows, path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x"]


def test_leftovers_go_when_they_are_old(windows, tmp_path):
    path = tmp_path / "x"
    old, young = (tmp_path / f"{windows.files._parts_of(path)}{digit * 16}.part" for digit in "01")
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 3600,) * 2)
    write(windows, path, b"new")
    assert names(tmp_path) == sorted([young.name, "x"])


def test_one_at_a_time_is_in_a_folder(windows, tmp_path):
    inside, most = 0, 0

    def write_often():
        nonlocal inside, most
        for _ in range(5):
            with windows.locks.locked(tmp_path):
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1

    threads = [threading.Thread(target=write_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_the_second_gives_up_after_the_seconds_it_was_told(windows, tmp_path):
    with (
        windows.locks.locked(tmp_path),
        pytest.raises(TimeoutError, match="being written by another process"),
        windows.locks.locked(tmp_path, seconds=0.05),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_lock_file_that_is_just_being_removed_is_waited_for(windows, tmp_path, monkeypatch):
    open_file, answers = os.open, [True, True]

    def refuse_twice(*args, **kwargs):
        if answers:
            answers.pop()
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(*args, **kwargs)

    monkeypatch.setattr(os, "open", refuse_twice)
    with windows.locks.locked(tmp_path, seconds=5):
        assert not answers
