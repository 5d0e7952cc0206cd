from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from .files import require
from .missingness import blackouts
from .weather import DAYS_PER_WEEK

OUTPUTS = ["temperature", "wind", "lightning", "fog"]
# Days in a row without anything from a station, and how much of all that is missing is missing for this reason.
OUTAGE = 3
SHARE_OF_OUTAGES = 0.4
# Degrees of latitude and longitude, and days, over which the weather changes.
DISTANCES = np.array([1.5, 2.0, 2.0])
NUM_WAVES = 200


class WeatherTable(NamedTuple):
    r"""
    A generated table of weather (see :func:`weather_table`).

    :param table: A data frame; NaN is a missing entry.
    :param truth: The same without holes.
    """

    table: Any
    truth: Any


def weather_table(num_stations: int = 40, num_weeks: int = 20, missing: float = 0.3, seed: int = 0) -> WeatherTable:
    r"""
    Daily weather at stations on a map, as a pandas data frame: a row for each station and day, with outputs of four
    kinds. Three smooth random functions of place and day, drawn anew each week (warmth :math:`f_1`, storminess
    :math:`f_2` and moisture :math:`f_3`), the elevation e in km, the latitude from the middle of the map
    :math:`\varphi` and the season of the week :math:`s` make

    .. math::

        \text{temperature} &\sim \mathcal N(12 + 5 s - 6.5 e - 0.8 \varphi + 4 f_1, \; 0.6^2) \\
        \log \text{wind} &\sim \mathcal N(1 + 0.5 f_2 + 0.4 e, \; 0.15^2) \\
        \text{lightning} &\sim \text{Poisson}(\exp(0.6 f_1 + 0.6 f_3)) \\
        \text{fog} &\sim \text{Bernoulli}(\text{logistic}(-1 - 2 f_2 + 2 f_3 - e))

    Part of what is missing are stations that fail for three days with all they measure; the rest is gone entry by
    entry. Needs the extra `datasets`.

    :param num_stations: Number of stations.
    :param num_weeks: Number of weeks, the tasks.
    :param missing: Fraction of the entries that is gone.
    :param seed: The seed of everything random.

    Example:
        >>> from gpytorch_sgpvae.datasets import weather_table
        >>> table, truth = weather_table(num_stations=10, num_weeks=2)
        >>> table.shape, list(table.columns)
        ((140, 10), ['station', 'lat', 'lon', 'elev', 'week', 'day', 'temperature', 'wind', 'lightning', 'fog'])
        >>> bool(table["fog"].isna().any()), set(truth["fog"])
        (True, {0.0, 1.0})
    """
    if not 0 <= missing < 1:
        raise ValueError(f"Expected a fraction of missing entries from 0 to below 1, got {missing}.")
    pandas = require("pandas")
    random = np.random.RandomState(seed)
    lat, lon = random.uniform(45, 49, num_stations), random.uniform(6, 13, num_stations)
    # mountains in the south
    elev = np.round(1500 * random.beta(1, 3, num_stations) + 300 * np.clip(47 - lat, 0, None))
    stations = {
        "station": [f"S{i:02}" for i in range(1, num_stations + 1)],
        "lat": lat.round(3),
        "lon": lon.round(3),
        "elev": elev,
    }
    weeks = []
    for week in range(num_weeks):
        rows = pandas.DataFrame(stations).merge(pandas.DataFrame({"day": range(DAYS_PER_WEEK)}), how="cross")
        rows.insert(4, "week", week)
        weeks.append(rows.assign(**_measure(rows, np.sin(np.pi * week / max(num_weeks - 1, 1)), random)))
    truth = pandas.concat(weeks, ignore_index=True)
    table = truth.copy()
    table[OUTPUTS] = truth[OUTPUTS].mask(_gone(len(truth), missing, random))
    return WeatherTable(table, truth)


def _measure(rows: Any, season: float, random: np.random.RandomState) -> dict[str, np.ndarray]:
    """The outputs of a week (`N` each)."""
    x = rows[["lat", "lon", "day"]].to_numpy(float)
    warmth, storm, moisture = (_smooth_function(x, random) for _ in range(3))
    height, north = rows["elev"].to_numpy(float) / 1000, x[:, 0] - 47
    temperature = 12 + 5 * season - 6.5 * height - 0.8 * north + 4 * warmth + 0.6 * random.standard_normal(len(x))
    wind = np.exp(1 + 0.5 * storm + 0.4 * height + 0.15 * random.standard_normal(len(x)))
    lightning = random.poisson(np.exp(0.6 * warmth + 0.6 * moisture)).astype(float)
    fog = (random.random_sample(len(x)) < 1 / (1 + np.exp(1 + 2 * storm - 2 * moisture + height))).astype(float)
    # as instruments are read, and no wind is exactly 0
    return {"temperature": temperature.round(1), "wind": wind.round(2).clip(0.01), "lightning": lightning, "fog": fog}


def _smooth_function(x: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Random Fourier features of an RBF kernel of variance 1 (`N`)."""
    waves = random.standard_normal((x.shape[-1], NUM_WAVES)) / DISTANCES[:, None]
    features = np.cos(x @ waves + random.uniform(0, 2 * np.pi, NUM_WAVES))
    return features @ random.standard_normal(NUM_WAVES) * np.sqrt(2 / NUM_WAVES)


def _gone(num_rows: int, missing: float, random: np.random.RandomState) -> np.ndarray:
    """Draw the entries that are missing (`N x P`); a station's days stand below each other."""
    # An outage is three of the seven rows that a station has in a week, and starts on any of five days.
    outage = SHARE_OF_OUTAGES * missing
    groups = num_rows // DAYS_PER_WEEK
    fails = random.random_sample(groups) < outage * DAYS_PER_WEEK / OUTAGE
    days, start = np.arange(DAYS_PER_WEEK), random.randint(0, DAYS_PER_WEEK - OUTAGE + 1, groups)[:, None]
    silent = (fails[:, None] & (start <= days) & (days < start + OUTAGE)).reshape(-1, 1)  # (N, 1)
    entries = blackouts(torch.empty(num_rows, len(OUTPUTS)), 1, (missing - outage) / (1 - outage), random)
    return silent | entries.numpy()
