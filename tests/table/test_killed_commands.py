"""Commands that are killed while they write, and several at one place: `make soak` does the same for longer."""

from __future__ import annotations

import pytest
import soak_tables

pytestmark = pytest.mark.slow


def test_a_killed_command_leaves_the_old_or_the_new_and_blocks_nobody(tmp_path):
    kills = soak_tables.kill_commands(tmp_path, 12)
    assert not kills.failures
    assert kills.amid > 0


@pytest.mark.parametrize("kind", ["save", "write"])
def test_a_reader_finds_one_of_two_versions_while_two_processes_write_them(tmp_path, kind):
    reads, torn = soak_tables.race(tmp_path, kind, writers=2, times=20)
    assert reads > 1
    assert torn == 0
