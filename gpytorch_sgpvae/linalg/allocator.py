"""The memory of a CPU, between one training step and the next."""

from __future__ import annotations

import torch

# glibc's DEFAULT_MMAP_THRESHOLD_MAX: larger blocks it always gives back, whatever it has seen.
_LARGEST_THRESHOLD = 32 * 2**20


def keep_freed_memory() -> None:
    """
    Tell the C library's allocator that blocks of many megabytes come and go.

    At first glibc gives each block above 128 KiB, and whatever more than that is free at the end of the heap, back to
    the system, and the next training step gets it again page by page: up to a third of a step. It learns from the
    largest block that was ever freed, so one is allocated here and freed, without being written: this costs nothing,
    and means nothing to other allocators.
    """
    torch.empty(_LARGEST_THRESHOLD - 2**16, dtype=torch.uint8, device="cpu")
