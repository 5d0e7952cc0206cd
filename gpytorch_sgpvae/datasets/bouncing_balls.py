from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class BouncingBalls(NamedTuple):
    r"""
    Videos of B bouncing balls (see :func:`bouncing_ball` and :func:`bouncing_balls`).

    :param x: Times, in steps (`N x 1`), shared by all tasks.
    :param y: Noisy images (`T x N x P`); NaN is a missing pixel.
    :param truth: The images without noise and without holes (`T x N x P`).
    :param positions: Heights of the balls' centers, as fractions of the image's height (`T x N x B`).
    """

    x: Tensor
    y: Tensor
    truth: Tensor
    positions: Tensor


def bouncing_ball(
    num_tasks: int = 80,
    num_steps: int = 50,
    num_pixels: int = 10,
    period: float = 15.7,
    brightness: float = 1.0,
    background: float = 0.0,
    radius: float = 0.075,
    noise_stddev: float = 0.05,
    missing: float = 0.0,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> BouncingBalls:
    r"""
    Videos of one-dimensional images in which a ball bounces at constant speed (after `Johnson et al. (2016)`_). The
    bouncing frequency is fixed and the starting phase :math:`s_0` random. With
    :math:`s_n = (s_0 + x_n / \text{period}) \bmod 1` and the pixels' heights :math:`h_p`, the center and the outline of
    the ball, and the images, are

    .. math::

        c_n &= r + (1 - 2 r) \, |1 - 2 s_n|, \qquad
        a_{np} = \exp \left( - \frac{(h_p - c_n)^2}{2 r^2} \right), \\
        y_{np} &\sim \mathcal N \left(
        (1 - a_{np}) \, \text{background} + a_{np} \, \text{brightness}, \; \sigma^2 \right)

    :param num_tasks: Number of videos T.
    :param num_steps: Number of images N in each.
    :param num_pixels: Height P of the images.
    :param period: Steps until the motion repeats.
    :param brightness: The brightness of the ball.
    :param background: Brightness of the rest.
    :param radius: Standard deviation r of the ball's Gaussian bump, as a fraction of the image's height.
    :param noise_stddev: Standard deviation :math:`\sigma` of the observation noise.
    :param missing: Probability of each pixel to be gone.
    :param generator: Source of the randomness; the tensors are made on its device.
    :param dtype: The dtype of the tensors; by default PyTorch's default dtype.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Context
        >>> from gpytorch_sgpvae.datasets import bouncing_ball
        >>> ball = bouncing_ball(generator=torch.Generator().manual_seed(0))
        >>> Context(ball.x, ball.y)
        Context(batch_shape=(80,), num_points=50, input_dim=1, num_outputs=10)

    .. _Johnson et al. (2016):
        https://arxiv.org/abs/1603.06277
    """
    return _film(
        num_tasks,
        num_steps,
        num_pixels,
        [_constant_speed],
        [period],
        [brightness],
        background,
        radius,
        noise_stddev,
        missing,
        generator,
        dtype,
    )


def bouncing_balls(
    num_tasks: int = 80,
    num_steps: int = 500,
    num_pixels: int = 100,
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
    :param brightness: The brightness of the two balls.
    :param background: Brightness of the rest.
    :param radius: Standard deviation r of the balls' Gaussian bumps, as a fraction of the image's height.
    :param noise_stddev: Standard deviation :math:`\sigma` of the observation noise.
    :param missing: Probability of each pixel to be gone.
    :param generator: Source of the randomness; the tensors are made on its device.
    :param dtype: The dtype of the tensors; by default PyTorch's default dtype.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.datasets import bouncing_balls
        >>> balls = bouncing_balls(3, num_steps=100, num_pixels=20, generator=torch.Generator().manual_seed(0))
        >>> balls.x.shape, balls.y.shape, balls.positions.shape
        (torch.Size([100, 1]), torch.Size([3, 100, 20]), torch.Size([3, 100, 2]))
        >>> balls.truth.isnan().any().item(), balls.y.isnan().any().item()
        (False, True)

    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """
    return _film(
        num_tasks,
        num_steps,
        num_pixels,
        [_constant_speed, _gravity],
        periods,
        brightness,
        background,
        radius,
        noise_stddev,
        missing,
        generator,
        dtype,
    )


def estimate_periods(y: Tensor, num_periods: int) -> Tensor:
    r"""
    The periods of the strongest oscillations of the images' center of brightness, the shorter ones first: peaks of the
    mean spectrum of all videos,

    .. math::

        \omega \mapsto \sum_t \Big| \sum_n w_n \, e^{-i \omega n} \sum_p h_p \, (y_{tnp} - \bar y_p) \Big|^2

    with the pixels' heights h and a Hann window w. A periodic kernel does not find a period far from where it starts.

    :param y: Images (`T x N x P`); NaN is a missing pixel.
    :param num_periods: The number of periods to find.
    :return: The periods in steps (`num_periods`).

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.datasets import bouncing_balls, estimate_periods
        >>> balls = bouncing_balls(10, num_pixels=20, periods=(20.0, 30.0), generator=torch.Generator().manual_seed(0))
        >>> estimate_periods(balls.y, num_periods=2).round()
        tensor([20., 30.])
    """
    num_steps, num_pixels = y.shape[-2:]
    options: dict[str, Any] = {"dtype": y.dtype, "device": y.device}
    heights = torch.linspace(-1, 1, num_pixels, **options)
    series = torch.nan_to_num(y - y.nanmean((0, 1))) @ heights  # (T, N)
    # Zero padding makes the spectrum 16 times finer than its resolution, for peaks between whole cycles.
    padding = 16
    window = torch.hann_window(num_steps, **options)
    spectrum = torch.fft.rfft(series * window, n=padding * num_steps).abs().square().mean(0)
    peaks = []
    for _ in range(num_periods):
        peak = int(spectrum.argmax())
        peaks.append(peak)
        # The main lobe of the Hann window is two cycles per video wide on either side.
        spectrum[max(peak - 2 * padding, 0) : peak + 2 * padding + 1] = 0
    return padding * num_steps / torch.tensor(sorted(peaks, reverse=True), **options)


def _constant_speed(s: Tensor) -> Tensor:
    return (1 - 2 * s).abs()


def _gravity(s: Tensor) -> Tensor:
    return 4 * s * (1 - s)


def _film(
    num_tasks: int,
    num_steps: int,
    num_pixels: int,
    motions: Sequence[Callable[[Tensor], Tensor]],
    periods: Sequence[float],
    brightness: Sequence[float],
    background: float,
    radius: float,
    noise_stddev: float,
    missing: float,
    generator: torch.Generator | None,
    dtype: torch.dtype | None,
) -> BouncingBalls:
    """Videos of balls, those in front last; a motion maps the phase in [0, 1) to a height in [0, 1]."""
    # a tensor knows the default device, also in torch < 2.3, which has no get_default_device
    device = (torch.empty(0) if generator is None else generator).device
    options: dict[str, Any] = {"dtype": dtype or torch.get_default_dtype(), "device": device}
    time = torch.arange(num_steps, **options)  # (N,)
    start = torch.rand(num_tasks, 1, len(motions), generator=generator, **options)
    phase = (start + time.unsqueeze(-1) / torch.tensor(periods, **options)) % 1  # (T, N, B)
    heights = torch.stack([motion(s) for motion, s in zip(motions, phase.unbind(-1), strict=True)], dim=-1)
    positions = radius + (1 - 2 * radius) * heights  # (T, N, B)

    pixels = (torch.arange(num_pixels, **options) + 0.5) / num_pixels  # (P,)
    outlines = torch.exp(-0.5 * ((pixels - positions.unsqueeze(-1)) / radius).square())  # (T, N, B, P)
    truth = torch.full((num_tasks, num_steps, num_pixels), background, **options)
    for a, light in zip(outlines.unbind(-2), brightness, strict=True):
        truth = (1 - a) * truth + a * light  # (T, N, P)

    noise = noise_stddev * torch.randn(truth.shape, generator=generator, **options)
    gone = torch.rand(truth.shape, generator=generator, **options) < missing
    return BouncingBalls(time.unsqueeze(-1), (truth + noise).masked_fill(gone, torch.nan), truth, positions)
