from __future__ import annotations

import torch


def expands_to(shape: torch.Size, target: torch.Size) -> bool:
    """Whether a tensor of one shape broadcasts to another without that one growing."""
    if shape == target:
        return True
    try:
        return torch.broadcast_shapes(shape, target) == target
    except RuntimeError:
        return False
