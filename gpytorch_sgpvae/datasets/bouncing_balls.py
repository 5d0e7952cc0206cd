from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class BouncingBalls(NamedTuple):
    r"""
    Videos of two bouncing balls (see :func:`two_bouncing_balls`).

    :param x: Times, in steps (`N x 1`), shared by all tasks.
    :param y: Noisy images (`T x N x P`); NaN is a missing pixel.
    :param truth: The images without noise and without holes (`T x N x P`).
    :param positions: Heights of the two balls' centers, as fractions of the image's height (`T x N x 2`).
    """

    x: Tensor
    y: Tensor
    truth: Tensor
    positions: Tensor


def two_bouncing_balls(
    num_tasks: int,
    num_steps: int,
    num_pixels: int,
    periods: tuple[float, float] = (19.3, 31.1),
    brightness: tuple[float, float] = (1.0, 1.0),
    background: float = 0.0,
    radius: float = 0.05,
    noise_stddev: float = 0.05,
    missing: float = 0.25,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> BouncingBalls:
    r"""
    Videos of one-dimensional images in which one ball bounces at constant speed and another one, in front of it, under
    gravity (after `Ashman et al. (2020)`_). The bouncing frequencies are fixed and the starting phases
    :math:`s_{0i}` random. With :math:`s_{ni} = (s_{0i} + x_n / \text{period}_i) \bmod 1` and the pixels' heights
    :math:`h_p`, the centers and the outlines of the balls are

    .. math::

        c_{n1} = r + (1 - 2 r) \, |1 - 2 s_{n1}|, \quad
        c_{n2} = r + (1 - 2 r) \, 4 s_{n2} (1 - s_{n2}), \quad
        a_{nip} = \exp \left( - \frac{(h_p - c_{ni})^2}{2 r^2} \right)

    and the images

    .. math::

        y_{np} \sim \mathcal N \left(
        (1 - a_{n2p}) \left[ (1 - a_{n1p}) \, \text{background} + a_{n1p} \, \text{brightness}_1 \right]
        + a_{n2p} \, \text{brightness}_2, \; \sigma^2 \right)

    Both balls are white on black. To a network that looks at pixels one by one, such as
    :class:`~gpytorch_sgpvae.FactorNet`, they differ by nothing but their periods; with a white ball and a black one on
    gray, `brightness=(1.0, 0.0)` and `background=0.5`, a single pixel tells which of them it shows, which is much
    easier.

    :param num_tasks: Number of videos T.
    :param num_steps: Number of images N in each.
    :param num_pixels: Height P of the images.
    :param periods: Steps until the motion repeats, of the ball at constant speed and of the one under gravity.
    :param brightness: Of the two balls.
    :param background: Brightness of the rest.
    :param radius: Standard deviation r of the balls' Gaussian bumps, as a fraction of the image's height.
    :param noise_stddev: Standard deviation :math:`\sigma` of the observation noise.
    :param missing: Probability of each pixel to be gone.
    :param generator: Source of the randomness; the tensors are made on its device.
    :param dtype: By default PyTorch's default dtype.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.datasets import two_bouncing_balls
        >>> balls = two_bouncing_balls(3, num_steps=100, num_pixels=20, generator=torch.Generator().manual_seed(0))
        >>> balls.x.shape, balls.y.shape, balls.positions.shape
        (torch.Size([100, 1]), torch.Size([3, 100, 20]), torch.Size([3, 100, 2]))
        >>> balls.truth.isnan().any().item(), balls.y.isnan().any().item()
        (False, True)

    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """
    device = torch.get_default_device() if generator is None else generator.device
    options: dict[str, Any] = {"dtype": dtype or torch.get_default_dtype(), "device": device}
    time = torch.arange(num_steps, **options)  # (N,)
    start = torch.rand(num_tasks, 1, 2, generator=generator, **options)
    phase = (start + time.unsqueeze(-1) / torch.tensor(periods, **options)) % 1  # (T, N, 2)
    s1, s2 = phase.unbind(-1)  # (T, N)
    positions = radius + (1 - 2 * radius) * torch.stack([(1 - 2 * s1).abs(), 4 * s2 * (1 - s2)], dim=-1)  # (T, N, 2)

    heights = (torch.arange(num_pixels, **options) + 0.5) / num_pixels  # (P,)
    distances = (heights - positions.unsqueeze(-1)) / radius  # (T, N, 2, P)
    a1, a2 = torch.exp(-0.5 * distances.square()).unbind(-2)  # (T, N, P)
    truth = (1 - a2) * ((1 - a1) * background + a1 * brightness[0]) + a2 * brightness[1]  # (T, N, P)

    noise = noise_stddev * torch.randn(truth.shape, generator=generator, **options)
    gone = torch.rand(truth.shape, generator=generator, **options) < missing
    return BouncingBalls(time.unsqueeze(-1), (truth + noise).masked_fill(gone, torch.nan), truth, positions)
