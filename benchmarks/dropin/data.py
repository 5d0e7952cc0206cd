"""Generated data of the shapes that GPyTorch's notebooks have, which load files: all of it comes from formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Data:
    """
    A data set, and what is held out of it.

    :param x: Inputs (`N x D`, or `N`).
    :param y: Outputs (`N x P`, or `N`).
    :param x_test: Inputs of the points that are held out.
    :param y_test: Their outputs.
    :param x_stddev: Standard deviations of inputs that are known roughly (`N`).
    :param output: Which output a row has measured (`N`), where each has one only.
    :param output_test: The same of the points that are held out.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    x_stddev: Tensor | None = None
    output: Tensor | None = None
    output_test: Tensor | None = None

    def first(self, number: int) -> Data:
        """The first points of what is trained on, and of what is held out."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return Data(**{name: None if part is None else part[:number].clone() for name, part in parts.items()})


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def surface(num_points: int, num_dims: int, stddev: float = 0.1) -> Data:
    """Many inputs that follow from four causes, and an output that is a function of these; a fifth is held out."""
    source = generator()
    causes = torch.randn(num_points, 4, generator=source)
    x = torch.tanh(causes @ torch.randn(4, num_dims, generator=source) / 4)
    y = torch.sin(1.5 * causes[:, 0]) + 0.5 * causes[:, 1] * torch.tanh(causes[:, 2]) + 0.5 * torch.cos(causes[:, 3])
    y = y + stddev * torch.randn(num_points, generator=source)
    split = num_points * 4 // 5
    return Data(x[:split], y[:split], x[split:], y[split:])


def sine(num_points: int, stddev: float = 0.2, outliers: float = 0.0, seed: int = 0) -> Data:
    """One period of a sine; some of what is trained on, and nothing that is held out, may be off by three."""
    source = generator(seed)
    x, x_test = torch.linspace(0, 1, num_points), torch.rand(200, generator=source)
    y, y_test = (
        torch.sin(2 * math.pi * each) + stddev * torch.randn(len(each), generator=source) for each in (x, x_test)
    )
    wrong = torch.rand(num_points, generator=source) < outliers
    return Data(x, torch.where(wrong, y + 3.0, y), x_test, y_test)


def uncertain_sine(num_points: int) -> Data:
    """A sine at inputs that are known the less the smaller they are."""
    data = sine(num_points)
    return Data(data.x, data.y, data.x_test, data.y_test, x_stddev=torch.linspace(0.03, 0.01, num_points))


def signals(num_points: int) -> Data:
    """Four outputs that mix a sine and a cosine."""
    source = generator()
    x, x_test = torch.linspace(0, 1, num_points), torch.rand(200, generator=source)

    def measure(x: Tensor) -> Tensor:
        sine, cosine = torch.sin(2 * math.pi * x), torch.cos(2 * math.pi * x)
        y = torch.stack([sine, cosine, sine + 2 * cosine, -cosine], -1)  # (N, 4)
        return y + 0.2 * torch.randn(y.shape, generator=source)

    return Data(x, measure(x), x_test, measure(x_test))


def one_output_each(num_points: int) -> Data:
    """The same, but each point has measured one of the outputs only."""
    data, source = signals(num_points), generator(1)
    output, output_test = (torch.randint(4, (len(y),), generator=source) for y in (data.y, data.y_test))
    y, y_test = (
        y.gather(-1, which.unsqueeze(-1)).squeeze(-1) for y, which in ((data.y, output), (data.y_test, output_test))
    )
    return Data(data.x, y, data.x_test, y_test, output=output, output_test=output_test)


def stripes(num_points: int) -> Data:
    """Labels that change four times, without noise."""
    x, x_test = torch.linspace(0, 1, num_points), torch.rand(200, generator=generator())
    y, y_test = (torch.cos(4 * math.pi * each).sign().add(1).div(2) for each in (x, x_test))
    return Data(x, y, x_test, y_test)


def noisy_labels(num_points: int) -> Data:
    """Labels whose probability is a sine."""
    source = generator()
    x, x_test = torch.linspace(-1, 1, num_points), 2 * torch.rand(200, generator=source) - 1
    y, y_test = (torch.bernoulli(0.5 + 0.5 * torch.sin(math.pi * each), generator=source) for each in (x, x_test))
    return Data(x, y, x_test, y_test)


def waiting_times(num_points: int) -> Data:
    """Times that are exponential, at a rate that varies."""
    source = generator()
    x, x_test = torch.linspace(0, 1, num_points), torch.rand(200, generator=source)
    y, y_test = (
        -torch.log1p(-torch.rand(len(each), generator=source)) * torch.exp(torch.cos(2 * math.pi * each))
        for each in (x, x_test)
    )
    return Data(x, y, x_test, y_test)


def clusters(num_points: int, num_outputs: int) -> Data:
    """Outputs each of which is one of two functions, and noise."""
    source = generator()
    x, x_test = torch.linspace(0, 1, num_points), torch.rand(100, generator=source)

    def measure(x: Tensor) -> Tensor:
        functions = torch.stack([torch.sin(2 * math.pi * x), torch.cos(2 * math.pi * x)], -1)  # (N, 2)
        y = functions[:, torch.arange(num_outputs) % 2]
        return y + 0.2 * torch.randn(y.shape, generator=source)

    return Data(x, measure(x), x_test, measure(x_test))


def arrivals(duration: float) -> Data:
    """Times of events (x and y) whose rate is a cosine, and at other times (x_test) that rate (y_test)."""
    source = generator()
    most = 50.0
    times = duration * torch.rand(int(most * duration), generator=source)
    kept = torch.rand(len(times), generator=source) < 0.5 * (1 + torch.cos(2 * math.pi * times))
    x, x_test = times[kept].sort().values, torch.linspace(0, duration, 200)
    return Data(x, x, x_test, most * 0.5 * (1 + torch.cos(2 * math.pi * x_test)))


def flow(num_points: int) -> Data:
    """Twelve outputs of three kinds of flow, each along a curve in a plane: y_test has the kinds, as numbers."""
    source = generator()
    kind = torch.arange(num_points) % 3
    along = torch.rand(num_points, generator=source)
    angle = 2 * math.pi / 3 * (kind + 0.6 * along)
    plane = (1 + 0.3 * along).unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], -1)  # (N, 2)
    y = torch.sin(2 * plane @ torch.randn(2, 12, generator=source) + torch.rand(12, generator=source))
    y = y + 0.1 * torch.randn(y.shape, generator=source)
    return Data(y, y, y, kind.to(y.dtype))
