from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .files import require

OUTPUTS = ["temperature", "humidity", "pressure", "wind", "no2", "ozone"]
HOURS_PER_DAY = 24
# Hours over which fronts, gusts and air masses change.
FRONTS, GUSTS, MASSES = 30.0, 8.0, 120.0
# How much of what is missing is missing in outages of one sensor, in outages of all, and one by one.
OF_ONE, OF_ALL, SINGLE = 0.6, 0.15, 0.25
# Hours of an outage, from the shortest to the longest.
SHORTEST, LONGEST = 3, 60


class SensorTable(NamedTuple):
    r"""
    A generated table of hourly sensors (see :func:`sensor_table`).

    :param table: A data frame; NaN is a missing entry.
    :param truth: The same without holes.
    """

    table: Any
    truth: Any


def sensor_table(num_days: int = 90, missing: float = 0.25, seed: int = 0) -> SensorTable:
    r"""
    Six sensors of one station, hour by hour, as a pandas data frame with a column `time`. Fronts :math:`a`, gusts
    :math:`b` and air masses :math:`c` are Ornstein-Uhlenbeck processes that last 30, 8 and 120 hours. With the sun
    :math:`s`, which fronts cover with clouds, the hours of traffic :math:`r`, and an Ornstein-Uhlenbeck process
    :math:`e` of each sensor's own,

    .. math::

        \text{temperature} &= 11 + 4 c + 5 s - a + 0.7 e_1 \\
        \text{humidity} &= 72 - 2 (\text{temperature} - 11) + 6 a + 3 e_2, \quad \text{within 5 and 100} \\
        \text{pressure} &= 1013 - 6 a + 3 c + 0.5 e_3 \\
        \log \text{wind} &= 0.9 + 0.35 b + 0.25 s + 0.15 a + 0.15 e_4 \\
        \log \text{no2} &= 3 - 0.45 b + 0.4 r - 0.3 s + 0.2 e_5 \\
        \log \text{ozone} &= 3.6 + 0.35 b + 0.5 s - 0.25 r + 0.2 e_6

    to which each sensor adds a little white noise. Most of what is missing are outages of one sensor, of 3 to 60 hours,
    and of the whole station; the rest is gone entry by entry. Needs the extra `datasets`.

    :param num_days: Number of days.
    :param missing: Fraction of the entries that is gone, about.
    :param seed: Seed of everything.

    Example:
        >>> from gpytorch_sgpvae.datasets import sensor_table
        >>> table, truth = sensor_table(num_days=10)
        >>> table.shape, list(table.columns)
        ((240, 7), ['time', 'temperature', 'humidity', 'pressure', 'wind', 'no2', 'ozone'])
        >>> bool(table["wind"].isna().any()), bool(truth["wind"].isna().any())
        (True, False)
    """
    if not 0 <= missing <= 0.6:
        raise ValueError(f"Expected a fraction of missing entries from 0 to 0.6, got {missing}.")
    pandas = require("pandas")
    random = np.random.default_rng(seed)
    number = HOURS_PER_DAY * num_days
    time = pandas.date_range("2025-03-01", periods=number, freq="h")
    truth = pandas.DataFrame({"time": time} | _measure(time.hour.to_numpy(), random))
    gone = _gone(number, missing, random)
    table = truth.copy()
    table[OUTPUTS] = truth[OUTPUTS].mask(gone)
    return SensorTable(table, truth)


def _measure(hour: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
    """The outputs (`N` each)."""
    number = len(hour)
    front, gust, mass = (_ornstein_uhlenbeck(number, hours, random) for hours in (FRONTS, GUSTS, MASSES))
    own = np.stack([_ornstein_uhlenbeck(number, hours, random) for hours in (6, 6, 12, 3, 4, 4)])
    noise = random.standard_normal((len(OUTPUTS), number))
    sun = np.clip(np.sin(2 * np.pi * (hour - 7) / HOURS_PER_DAY), -0.2, None) * (1 - 0.25 * np.tanh(front))
    traffic = np.exp(-0.5 * ((hour - 8) / 1.5) ** 2) + np.exp(-0.5 * ((hour - 18) / 2) ** 2)
    temperature = 11 + 4 * mass + 5 * sun - front + 0.7 * own[0] + 0.15 * noise[0]
    humidity = 72 - 2 * (temperature - 11) + 6 * front + 3 * own[1] + noise[1]
    pressure = 1013 - 6 * front + 3 * mass + 0.5 * own[2] + 0.1 * noise[2]
    wind = np.exp(0.9 + 0.35 * gust + 0.25 * sun + 0.15 * front + 0.15 * own[3] + 0.08 * noise[3])
    no2 = np.exp(3 - 0.45 * gust + 0.4 * traffic - 0.3 * sun + 0.2 * own[4] + 0.06 * noise[4])
    ozone = np.exp(3.6 + 0.35 * gust + 0.5 * sun - 0.25 * traffic + 0.2 * own[5] + 0.06 * noise[5])
    # as instruments are read
    columns = [temperature.round(1), humidity.clip(5, 100).round(), pressure.round(1), wind.round(1).clip(0.1)]
    return dict(zip(OUTPUTS, [*columns, no2.round(1), ozone.round(1)], strict=True))


def _ornstein_uhlenbeck(number: int, hours: float, random: np.random.Generator) -> np.ndarray:
    """A stationary process of variance 1, whose correlation falls by e in this many hours (`N`)."""
    decay = np.exp(-1 / hours)
    steps = random.standard_normal(number)
    steps[1:] *= np.sqrt(1 - decay**2)
    for n in range(1, number):
        steps[n] += decay * steps[n - 1]
    return steps


def _gone(number: int, missing: float, random: np.random.Generator) -> np.ndarray:
    """Draw the entries that are missing (`N x P`)."""
    gone = random.random((number, len(OUTPUTS))) < SINGLE * missing
    for column in range(len(OUTPUTS)):
        _add_outages(gone[:, column : column + 1], SINGLE + OF_ONE, missing, random)
    _add_outages(gone, SINGLE + OF_ONE + OF_ALL, missing, random)
    return gone


def _add_outages(gone: np.ndarray, share: float, missing: float, random: np.random.Generator) -> None:
    """Add outages until as much is gone."""
    longest = min(LONGEST, len(gone) // 4)
    while gone.mean() < share * missing:
        length = round(np.exp(random.uniform(np.log(SHORTEST), np.log(longest))))
        start = random.integers(len(gone) - length + 1)
        gone[start : start + length] = True
