from __future__ import annotations

import torch


def check_chunk_size(chunk_size: int | None) -> None:
    """Of so many points at a time; None is all of them."""
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}.")


def expands_to(shape: torch.Size, target: torch.Size) -> bool:
    """Whether a tensor of one shape broadcasts to another without that one growing."""
    if shape == target:
        return True
    try:
        return torch.broadcast_shapes(shape, target) == target
    except RuntimeError:
        return False
