from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class BouncingBalls(NamedTuple):
    r"""
    Videos of two bouncing balls.

    :param x: Times, in steps (`N x 1`), shared by all tasks.
    :param y: Noisy images (`T x N x P`); NaN is a missing pixel.
    :param truth: The images without noise and without holes, in [0, 1] (`T x N x P`).
    :param positions: Heights of the two balls' centers, as fractions of the image (`T x N x 2`).
    """

    x: Tensor
    y: Tensor
    truth: Tensor
    positions: Tensor


def two_bouncing_balls(
    num_tasks: int,
    num_steps: int,
    num_pixels: int,
    periods: tuple[float, float] = (28.6, 46.3),
    brightness: tuple[float, float] = (1.0, 0.0),
    background: float = 0.5,
    radius: float = 0.05,
    noise_stddev: float = 0.05,
    missing: float = 0.25,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> BouncingBalls:
    r"""
    Videos of one-dimensional images in which one ball bounces at constant speed and another one under gravity
    (section 4.1 of `Ashman et al. (2020)`_). With the phases :math:`s_{ni} = (x_n / \text{period}_i + s_{0i})
    \bmod 1`, whose start is random in each task, and the bounces at phase 0 (and 1/2, for the first ball):

    .. math::

        b_{n1} = |1 - 2 s_{n1}|, \qquad
        b_{n2} = 4 s_{n2} (1 - s_{n2})

    .. math::

        y_{np} \sim \mathcal N \left( \max_i \exp \left( -\frac{(h_p - r - (1 - 2 r) b_{ni})^2}{2 r^2} \right),
        \sigma^2 \right), \qquad
        h_p = \frac{p - \tfrac 1 2}{P}, \quad p = 1, \dots, P

    :param num_tasks: Number of videos T.
    :param num_steps: Number of images N in each.
    :param num_pixels: Height P of the images.
    :param periods: Steps from bounce to bounce off the floor, of the ball at constant speed and of the one under
        gravity. The videos are hard to tell apart into balls if their ratio is a simple fraction.
    :param radius: Standard deviation r of the balls' Gaussian bumps, as a fraction of the image's height.
    :param noise_stddev: Standard deviation :math:`\sigma` of the observation noise.
    :param missing: Fraction of the pixels that are gone, each with this probability on its own.
    :param generator: Source of the randomness; the tensors are made on its device.
    :param dtype: By default PyTorch's default dtype.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.datasets import two_bouncing_balls
        >>> balls = two_bouncing_balls(
        ...     num_tasks=3, num_steps=100, num_pixels=20, generator=torch.Generator().manual_seed(0)
        ... )
        >>> balls.x.shape, balls.y.shape, balls.positions.shape
        (torch.Size([100, 1]), torch.Size([3, 100, 20]), torch.Size([3, 100, 2]))
        >>> round(balls.y.isnan().float().mean().item(), 1)
        0.3

    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """
    dtype = dtype or torch.get_default_dtype()
    device = generator.device if generator is not None else torch.get_default_device()
    time = torch.arange(num_steps, dtype=dtype, device=device)  # (N,)
    start = torch.rand(num_tasks, 1, 2, generator=generator, dtype=dtype, device=device)
    phase = (time.unsqueeze(-1) / torch.tensor(periods, dtype=dtype, device=device) + start) % 1  # (T, N, 2)

    bounces = torch.stack([(1 - 2 * phase[..., 0]).abs(), 4 * phase[..., 1] * (1 - phase[..., 1])], dim=-1)
    positions = radius + (1 - 2 * radius) * bounces  # (T, N, 2)
    heights = (torch.arange(num_pixels, dtype=dtype, device=device) + 0.5) / num_pixels  # (P,)
    distances = (heights - positions.unsqueeze(-1)) / radius  # (T, N, 2, P)
    first, second = torch.exp(-0.5 * distances.square()).unbind(-2)  # (T, N, P)
    truth = torch.lerp(torch.full_like(first, background), torch.full_like(first, brightness[0]), first)
    truth = torch.lerp(truth, torch.full_like(first, brightness[1]), second)  # (T, N, P)

    noise = torch.randn(truth.shape, generator=generator, dtype=dtype, device=device)
    gone = torch.rand(truth.shape, generator=generator, dtype=dtype, device=device) < missing
    y = (truth + noise_stddev * noise).masked_fill(gone, torch.nan)
    return BouncingBalls(time.unsqueeze(-1), y, truth, positions)
