from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from gpytorch_sgpvae.linalg.allocator import keep_freed_memory
torch.set_num_threads(1)
if {keep}:
    keep_freed_memory()
def step():
    tensors = [torch.ones(250_000, dtype=torch.float64) for _ in range(10)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have their own ways")
def test_memory_that_a_step_frees_is_there_for_the_next_one(monkeypatch):
    """Ten steps with ten tensors of 2 MB each; pages have 4 KB or more."""
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "LD_PRELOAD", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)

    def faults(keep):
        return int(subprocess.check_output([sys.executable, "-c", PROGRAM.format(keep=keep)], text=True))

    assert faults(keep=True) < 0.1 * faults(keep=False)
