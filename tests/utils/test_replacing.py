"""Files that are whole or not there, whoever writes them and however that ends."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpytorch_sgpvae.utils import files
from gpytorch_sgpvae.utils.files import DiskFullError, is_url, replacing

needs_posix = pytest.mark.skipif(os.name != "posix", reason="permissions, links and pipes as POSIX has them")


def write(path, content=b"new", **kwargs):
    with replacing(path, **kwargs) as file:
        file.write(content)


def write_half(path, error, **kwargs):
    with replacing(path, **kwargs) as file:
        file.write(b"half")
        raise error


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class TestContent:
    def test_a_new_file_comes_with_the_folders_it_needs(self, tmp_path):
        write(tmp_path / "a" / "b" / "x")
        assert (tmp_path / "a" / "b" / "x").read_bytes() == b"new"

    def test_nothing_of_it_is_there_before_it_is_whole(self, tmp_path):
        path = tmp_path / "x"
        path.write_bytes(b"old")
        with replacing(path) as file:
            file.write(b"new")
            file.flush()
            assert path.read_bytes() == b"old"
        assert path.read_bytes() == b"new"
        assert names(tmp_path) == ["x"]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
    def test_an_error_leaves_the_old_file_and_nothing_else(self, tmp_path, error):
        path = tmp_path / "x"
        path.write_bytes(b"old")
        with pytest.raises(error):
            write_half(path, error)
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["x"]

    @pytest.mark.parametrize("where", ["fsync", "replace"])
    def test_an_interrupt_at_any_step_leaves_the_old_file_and_nothing_else(self, tmp_path, monkeypatch, where):
        path = tmp_path / "x"
        path.write_bytes(b"old")

        def interrupted(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(path)
        monkeypatch.undo()
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["x"]

    def test_a_name_of_the_greatest_length_is_fine(self, tmp_path):
        write(tmp_path / ("x" * 255))
        assert (tmp_path / ("x" * 255)).read_bytes() == b"new"

    def test_the_old_file_can_be_kept(self, tmp_path):
        path, previous = tmp_path / "x", tmp_path / "previous"
        for content in (b"1", b"2", b"3"):
            write(path, content, previous=previous)
        assert (path.read_bytes(), previous.read_bytes()) == (b"3", b"2")
        assert names(tmp_path) == ["previous", "x"]

    @pytest.mark.parametrize("links", [True, False])
    def test_a_write_that_fails_costs_neither_the_old_file_nor_the_one_before(self, tmp_path, monkeypatch, links):
        path, previous = tmp_path / "x", tmp_path / "previous"

        def no_links(*args):
            raise OSError(errno.EPERM, "no links here")

        if not links:
            monkeypatch.setattr(os, "link", no_links)
        for content in (b"1", b"2"):
            write(path, content, previous=previous)
        with pytest.raises(KeyboardInterrupt):
            write_half(path, KeyboardInterrupt, previous=previous)
        assert (path.read_bytes(), previous.read_bytes()) == (b"2", b"1")
        write(path, b"3", previous=previous)
        assert (path.read_bytes(), previous.read_bytes()) == (b"3", b"2")
        assert names(tmp_path) == ["previous", "x"]

    def test_a_kill_between_the_two_moves_loses_nothing(self, tmp_path, monkeypatch):
        path, previous = tmp_path / "x", tmp_path / "previous"
        for content in (b"1", b"2"):
            write(path, content, previous=previous)
        move = os.replace

        def killed(source, target):
            if Path(target) == path:
                raise KeyboardInterrupt
            move(source, target)

        monkeypatch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write(path, b"3", previous=previous)
        monkeypatch.undo()
        assert (path.read_bytes(), previous.read_bytes()) == (b"2", b"2")
        write(path, b"4", previous=previous)
        assert (path.read_bytes(), previous.read_bytes()) == (b"4", b"2")
        assert names(tmp_path) == ["previous", "x"]


class TestWhatIsInTheWay:
    def test_a_file_of_the_users_with_the_old_temporary_name_survives(self, tmp_path):
        (tmp_path / "x.part").write_bytes(b"mine")
        (tmp_path / ".sgpvae-notes.part").write_bytes(b"mine too")
        write(tmp_path / "x")
        assert (tmp_path / "x.part").read_bytes() == b"mine"
        assert (tmp_path / ".sgpvae-notes.part").read_bytes() == b"mine too"

    @needs_posix
    def test_a_link_that_somebody_planted_at_a_temporary_name_is_not_followed(self, tmp_path, monkeypatch):
        victim = tmp_path / "victim"
        victim.write_bytes(b"precious")
        tokens = iter(["0" * 16, "1" * 16])
        monkeypatch.setattr(files.secrets, "token_hex", lambda n: next(tokens))
        planted = tmp_path / f"{files._parts_of(tmp_path / 'x')}{'0' * 16}.part"
        planted.symlink_to(victim)
        (tmp_path / "x.part").symlink_to(victim)
        with pytest.raises(FileExistsError):
            write(tmp_path / "x")
        assert victim.read_bytes() == b"precious"
        planted.unlink()
        write(tmp_path / "x")
        assert victim.read_bytes() == b"precious"

    @needs_posix
    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o444])
    def test_permissions_of_the_old_file_are_kept(self, tmp_path, mode):
        path = tmp_path / "x"
        path.write_bytes(b"old")
        path.chmod(mode)
        with replacing(path) as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
            file.write(b"new")
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert path.read_bytes() == b"new"

    @needs_posix
    @pytest.mark.parametrize("mask", [0o022, 0o077])
    def test_a_new_file_has_the_permissions_that_new_files_have(self, tmp_path, mask):
        before = os.umask(mask)
        try:
            write(tmp_path / "x")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o666 & ~mask

    @needs_posix
    @pytest.mark.parametrize("exists", [True, False])
    def test_a_link_stays_a_link_to_the_file_that_is_replaced(self, tmp_path, exists):
        (tmp_path / "elsewhere").mkdir()
        target = tmp_path / "elsewhere" / "y"
        if exists:
            target.write_bytes(b"old")
        (tmp_path / "x").symlink_to("elsewhere/y")
        write(tmp_path / "x")
        assert os.readlink(tmp_path / "x") == "elsewhere/y"
        assert target.read_bytes() == b"new"
        assert names(tmp_path / "elsewhere") == ["y"]

    @needs_posix
    def test_a_link_to_itself_is_refused(self, tmp_path):
        (tmp_path / "x").symlink_to("x")
        with pytest.raises(OSError, match="leads nowhere but to itself: remove it"):
            write(tmp_path / "x")

    def test_a_folder_is_refused(self, tmp_path):
        (tmp_path / "x").mkdir()
        with pytest.raises(IsADirectoryError, match=r"x is a folder: choose the name of a file"):
            write(tmp_path / "x")

    @needs_posix
    @pytest.mark.parametrize("link", [True, False])
    def test_a_pipe_is_refused_and_stays(self, tmp_path, link):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to("pipe")
        with pytest.raises(FileExistsError, match=r"a device, a pipe or a socket, .*choose the name of a file"):
            write(tmp_path / ("link" if link else "pipe"))
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)

    @pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc")
    def test_the_pipe_that_a_command_writes_to_is_refused_too(self):
        """Such a pipe is /dev/stdout, a link to nothing that has a name."""
        read, write_end = os.pipe()
        try:
            with pytest.raises(FileExistsError, match="is a device, a pipe or a socket"):
                write(Path(f"/proc/self/fd/{write_end}"))
        finally:
            os.close(read)
            os.close(write_end)

    @pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="there is no /dev/null")
    def test_a_device_is_refused_and_stays(self):
        with pytest.raises(FileExistsError, match="/dev/null is a device"):
            write(Path("/dev/null"))
        assert Path("/dev/null").is_char_device()


class TestLeftovers:
    @needs_posix
    def test_what_a_killed_process_left_is_removed_by_the_next(self, tmp_path):
        path = tmp_path / "x"
        script = (
            "import os, sys; from pathlib import Path; from gpytorch_sgpvae.utils.files import replacing\n"
            "with replacing(Path(sys.argv[1])) as file:\n    file.write(b'half'); file.flush(); os._exit(9)\n"
        )
        # the modules alone: the package would load torch, which takes seconds
        script = script.replace("from gpytorch_sgpvae.utils.files", "from utils.files")
        package = str(Path(files.__file__).parent.parent)
        subprocess.run([sys.executable, "-c", script, path], env={**os.environ, "PYTHONPATH": package})
        assert len(names(tmp_path)) == 1
        write(path)
        assert names(tmp_path) == ["x"]

    @needs_posix
    def test_what_another_is_writing_is_left_alone(self, tmp_path):
        path = tmp_path / "x"
        with replacing(path) as outer:
            outer.write(b"outer")
            write(path, b"inner")
            assert path.read_bytes() == b"inner"
        assert path.read_bytes() == b"outer"
        assert names(tmp_path) == ["x"]

    @needs_posix
    def test_a_folder_whose_temporary_files_vanish_is_an_error_and_no_endless_loop(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files, "is_at", lambda descriptor, path: False)
        with pytest.raises(OSError, match="others remove its temporary files"):
            write(tmp_path / "x")


class TestFullDisks:
    @pytest.mark.parametrize("where", ["open", "fdopen", "fsync", "replace"])
    def test_a_sentence_and_the_old_file(self, tmp_path, monkeypatch, where):
        path = tmp_path / "x"
        path.write_bytes(b"old")

        def full(*args, **kwargs):
            raise OSError(errno.ENOSPC, "No space left on device")

        class FullFile(io.BytesIO):
            """A file that nothing goes into, neither at once nor when it is closed."""

            write = flush = full

        def open_full_file(descriptor, mode):
            os.close(descriptor)
            return FullFile()

        monkeypatch.setattr(os, where, open_full_file if where == "fdopen" else full)
        with pytest.raises(DiskFullError) as caught:
            write(path)
        monkeypatch.undo()
        assert str(caught.value) == (
            f"{path} could not be written: there is no room for it (No space left on device). What was there before is "
            "still there: make room and try again."
        )
        assert caught.value.errno == errno.ENOSPC
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["x"]
        write(path)
        assert path.read_bytes() == b"new"

    @needs_posix
    def test_a_limit_of_the_process_is_one_too(self, tmp_path):
        import resource

        path = tmp_path / "x"
        path.write_bytes(b"old")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with pytest.raises(DiskFullError, match="no room"):
                write(path, b"n" * 2000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["x"]

    def test_another_error_stays_what_it_is(self, tmp_path):
        with pytest.raises(PermissionError), replacing(tmp_path / "x"):
            raise PermissionError(errno.EACCES, "no")


def test_threads_that_write_one_file_leave_one_of_their_contents(tmp_path):
    path = tmp_path / "x"
    contents = [bytes([i]) * 10_000 for i in range(4)]
    seen = []

    def write_often(content):
        for _ in range(10):
            write(path, content)
            seen.append(path.read_bytes())

    threads = [threading.Thread(target=write_often, args=[content]) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 40
    assert set(seen) <= set(contents)
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("name", ["https://a.example/x.csv", "s3://bucket/x", "file:///etc/x"])
def test_a_url_is_told_from_a_file(name):
    assert is_url(name)


@pytest.mark.parametrize("name", ["x.csv", "/a/b.csv", "C:\\x.csv", "a:b", Path("a/b")])
def test_a_file_is_no_url(name):
    assert not is_url(name)
