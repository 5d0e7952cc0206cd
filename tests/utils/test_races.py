"""Several processes at one file: `make soak` does the same for longer."""

from __future__ import annotations

import pytest
import soak_files

pytestmark = pytest.mark.slow


def test_a_reader_never_sees_a_torn_file_while_two_processes_write_it(tmp_path):
    reads, torn = soak_files.race(tmp_path, writers=2, times=200)
    assert reads > 50
    assert torn == 0


def test_a_kill_while_a_file_is_written_leaves_the_old_one_or_the_new(tmp_path):
    assert soak_files.kill_writers(tmp_path, kills=10) == 0


def test_no_turn_is_lost_among_processes_that_wait_for_a_lock(tmp_path):
    assert soak_files.count_together(tmp_path / "folder", processes=2, times=50) == 0
