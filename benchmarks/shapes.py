"""The sizes that the paper trains at, and data of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """
    The sizes of a task and of a model for it.

    :param num_points: N.
    :param num_outputs: P.
    :param num_latents: K.
    :param num_inducing: M, or None for a dense model, u = f.
    :param hidden_sizes: Sizes of the inference network's perceptrons and of the decoder.
    :param input_dim: D.
    :param missing: Fraction of the outputs that are missing.
    """

    name: str
    num_points: int
    num_outputs: int
    num_latents: int
    num_inducing: int | None
    hidden_sizes: tuple[int, ...]
    input_dim: int
    missing: float = 0.25

    def replace(self, **changes: Any) -> Shape:
        return dataclasses.replace(self, **changes)

    def shrunk(self) -> Shape:
        """One of the same kind that takes milliseconds."""
        return self.replace(
            num_points=60,
            num_outputs=3,
            num_latents=2,
            num_inducing=self.num_inducing and 8,
            hidden_sizes=(8, 8),
        )


SHAPES = {
    "weather": Shape("weather", 1092, 5, 3, 100, (20,) * 4, 4),
    "eeg-large": Shape("large EEG", 256, 64, 10, 128, (50,) * 4, 1),
    "balls": Shape("two balls", 500, 100, 2, 10, (256,) * 2, 1),
    "eeg": Shape("small EEG, dense", 100, 7, 3, None, (20,) * 2, 1),
    "jura": Shape("Jura, dense", 100, 3, 2, None, (20,) * 2, 2),
}


def make_data(
    shape: Shape, tasks: int | None = None, dtype: torch.dtype = torch.float64, shared_inputs: bool = False
) -> tuple[Tensor, Tensor]:
    """
    Smooth random functions and noise, the same in every dtype: x (`*T x N x D`, or `N x D` where inputs are shared) and
    y (`*T x N x P`) with holes.

    :param tasks: T, or None for one task without a batch dimension.
    """
    generator = torch.Generator().manual_seed(0)
    like: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    batch = () if tasks is None else (tasks,)
    num_points, num_outputs, num_features = shape.num_points, shape.num_outputs, 20
    x = 3 * torch.rand(*(() if shared_inputs else batch), num_points, shape.input_dim, **like)
    # Random Fourier features of an RBF kernel with lengthscale 1.
    phases = 6.3 * torch.rand(num_features, **like)
    features = torch.cos(x @ torch.randn(shape.input_dim, num_features, **like) + phases)  # (*T, N, features)
    weights = torch.randn(*batch, num_features, num_outputs, **like) * (2 / num_features) ** 0.5
    y = features @ weights  # (*T, N, P)
    y += 0.1 * torch.randn(y.shape, **like)
    gone = torch.rand(y.shape, **like) < shape.missing
    # No row goes missing as a whole: the authors' networks make NaN of it, and torch's distributions raise.
    gone[..., 0] &= ~gone.all(-1)
    return x.to(dtype), y.masked_fill(gone, torch.nan).to(dtype)
