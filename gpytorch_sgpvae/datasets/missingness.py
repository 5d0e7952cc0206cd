"""Simulations of held-out entries: the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def hold_out(y: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """
    Split a task into what is left to see, and what there is to predict.

    :param y: Outputs (`N x P`); NaN is a missing entry.
    :param hidden: True for the entries to hold out (`N x P`, boolean).
    :return: y with NaN where it is hidden, and the truth with NaN where it is not (`N x P` both).
    """
    return y.masked_fill(hidden, torch.nan), y.masked_fill(~hidden, torch.nan)


def blackouts(
    y: Tensor, length: int, probability: float, random: np.random.RandomState, simultaneous: bool = False
) -> Tensor:
    r"""
    Sensors that fail for a while. The points, in order, are cut into windows of equal length, and each window is gone
    with the same probability :math:`\pi`:

    .. math::

        \text{hidden}_{np} = b_{\lfloor n / \text{length} \rfloor, p}, \qquad b_{wp} \sim \text{Bernoulli}(\pi)

    :param y: Outputs (`N x P`), of which only the shape counts.
    :param length: Points in a window.
    :param probability: The probability of each window to be gone.
    :param random: Source of the randomness.
    :param simultaneous: Whether all outputs fail together; by default each fails on its own.
    :return: True for the entries to hide (`N x P`, boolean).

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from gpytorch_sgpvae.datasets.missingness import blackouts
        >>> blackouts(torch.zeros(6, 4), length=2, probability=0.5, random=np.random.RandomState(0)).int()
        tensor([[0, 0, 0, 0],
                [0, 0, 0, 0],
                [1, 0, 1, 0],
                [1, 0, 1, 0],
                [0, 1, 0, 0],
                [0, 1, 0, 0]], dtype=torch.int32)
    """
    _check_fraction("probability", probability)
    if length < 1:
        raise ValueError(f"Expected windows of at least 1 point, got {length}.")
    num_points, num_outputs = y.shape
    num_windows = -(-num_points // length)
    gone = random.random_sample((num_windows, 1 if simultaneous else num_outputs)) < probability  # (W, P or 1)
    hidden = np.repeat(gone, length, axis=0)[:num_points]  # (N, P or 1)
    return torch.tensor(hidden, device=y.device).expand(num_points, num_outputs)


def random_points(num_points: int, fraction: float, random: np.random.RandomState) -> Tensor:
    r"""
    A fraction of the points, drawn without replacement: :math:`\lfloor \text{fraction} \cdot N \rfloor` of them.

    :param num_points: N.
    :param fraction: The fraction of the points to draw.
    :param random: Source of the randomness.
    :return: True for the points that were drawn (`N`, boolean).
    """
    _check_fraction("fraction", fraction)
    drawn = np.zeros(num_points, dtype=bool)
    drawn[random.choice(num_points, int(fraction * num_points), replace=False)] = True
    return torch.tensor(drawn)


def point_holes(shape: tuple[int, ...], rate: float, random: np.random.Generator) -> np.ndarray:
    """
    Single entries, each of which is gone with the same probability.

    :param shape: Numbers of windows, of steps and of outputs (T, N, P).
    :param rate: The probability.
    :param random: Source of the randomness.
    :return: True for the entries to hide (`T x N x P`).
    """
    _check_fraction("rate", rate)
    return random.random(shape) < rate


def run_holes(shape: tuple[int, ...], rate: float, length: int, random: np.random.Generator) -> np.ndarray:
    r"""
    Runs of single outputs, at most one in each window and output. With L steps each there are

    .. math::

        \left\lceil \frac{T P \cdot \text{rate} \cdot N}{L} \right\rceil

    :param shape: Numbers of windows, of steps and of outputs (T, N, P).
    :param rate: The share of all entries that is gone.
    :param length: Number of steps L of a run.
    :param random: Source of the randomness.
    :return: True for the entries to hide (`T x N x P`).
    """
    num_windows, num_steps, num_outputs = shape
    _check_fraction("rate", rate)
    _check_length(length, num_steps)
    number = int(np.ceil(num_windows * num_outputs * rate * num_steps / length))
    if number > num_windows * num_outputs:
        raise ValueError(
            f"Runs of {length} of {num_steps} steps cannot hide {rate:.0%} of the entries, with one in each window and "
            f"output: expected a rate of at most {length / num_steps:.0%}, or longer runs."
        )
    hidden = np.zeros(shape, dtype=bool)
    for series in random.choice(num_windows * num_outputs, number, replace=False):
        window, output = divmod(series, num_outputs)
        start = random.integers(num_steps - length + 1)
        hidden[window, start : start + length, output] = True
    return hidden


def block_holes(shape: tuple[int, ...], factor: float, length: int, random: np.random.Generator) -> np.ndarray:
    r"""
    Blocks of L steps and L neighboring outputs, which may overlap. There are

    .. math::

        \left\lceil \frac{T (P - L + 1) \cdot \text{factor} \cdot N P}{L^2} \right\rceil

    :param shape: Numbers of windows, of steps and of outputs (T, N, P).
    :param factor: The number above that decides how many there are.
    :param length: Number L of steps, and of outputs, of a block.
    :param random: Source of the randomness.
    :return: True for the entries to hide (`T x N x P`).
    """
    num_windows, num_steps, num_outputs = shape
    _check_length(length, min(num_steps, num_outputs))
    num_first = num_outputs - length + 1  # outputs that a block can begin with
    number = int(np.ceil(num_windows * num_first * factor * num_steps * num_outputs / length**2))
    places = num_windows * num_first
    hidden = np.zeros(shape, dtype=bool)
    for place in random.choice(places, number, replace=number > places):
        window, first = divmod(place, num_first)
        start = random.integers(num_steps - length + 1)
        hidden[window, start : start + length, first : first + length] = True
    return hidden


def columns_of(names: Sequence[str], chosen: Sequence[str]) -> Tensor:
    """
    :param names: The names of the outputs.
    :param chosen: Some of them.
    :return: True for the outputs of these names (`P`, boolean).
    """
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} cannot be held out: the outputs are {', '.join(names)}.")
    return torch.tensor([name in chosen for name in names])


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"Expected a {name} between 0 and 1, got {value}.")


def _check_length(length: int, most: int) -> None:
    if not 1 <= length <= most:
        raise ValueError(f"Expected holes of 1 to {most} steps, got {length}.")
