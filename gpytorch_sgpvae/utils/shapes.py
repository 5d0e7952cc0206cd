from __future__ import annotations

import torch


def check_chunk_size(chunk_size: int | None) -> None:
    """Raise unless chunk_size is None, for all points at once, or at least 1."""
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}.")


def broadcast(*shapes: torch.Size) -> torch.Size | None:
    """The shape that some shapes broadcast to, or None if they do not."""
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return None


def expands_to(shape: torch.Size, target: torch.Size) -> bool:
    """Return whether a tensor of the first shape broadcasts to the second one exactly."""
    return shape == target or broadcast(shape, target) == target
