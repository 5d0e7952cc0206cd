"""A generated data set of sensors, of any size: Parquet files that nobody has to hold in memory together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.signal import lfilter

OUTPUTS = ["temperature", "humidity", "wind", "ozone"]
INPUT, TASK = "time", "sensor"
ROWS_PER_DAY = 96
# Rows over which fronts, gusts, air masses and each sensor's own processes change.
FRONTS, GUSTS, MASSES, OWN = 120.0, 32.0, 480.0, 24.0
# The share of single entries that are missing, that of outages of one column, and the rows of an outage.
SINGLE, OUTAGES, SHORTEST, LONGEST = 0.1, 0.15, 12, 240


@dataclass(frozen=True)
class Readings:
    """
    Readings of sensors, every quarter of an hour, in files that each hold all rows of some sensors.

    :param files: Number of files.
    :param sensors: Sensors in a file.
    :param rows: Rows of a sensor.
    """

    files: int
    sensors: int
    rows: int

    @property
    def num_rows(self) -> int:
        """The number of rows of all files."""
        return self.files * self.sensors * self.rows

    def write(self, folder: Path) -> None:
        """Write the files, one after the other; those that are there stay."""
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(self.files):
            path = folder / f"sensors-{number:04d}.parquet"
            if not path.exists():
                first = number * self.sensors
                parts = [self.table(sensor) for sensor in range(first, first + self.sensors)]
                unfinished = path.with_suffix(".unfinished")
                pd.concat(parts, ignore_index=True).to_parquet(unfinished, index=False)
                unfinished.replace(path)

    def table(self, sensor: int) -> pd.DataFrame:
        """
        The readings of one sensor, of which some are missing: single ones, and outages of each column.

        :param sensor: Its number, which is the seed of everything.
        """
        truth = self.truth(sensor)
        gone = self._gone(np.random.default_rng([sensor, 1]))
        truth[OUTPUTS] = truth[OUTPUTS].mask(gone)
        return truth

    def truth(self, sensor: int) -> pd.DataFrame:
        """
        The same with all readings. Fronts, gusts and air masses are Ornstein-Uhlenbeck processes, which the columns
        share; each column has a process of its own, noise, and its part of the sun's day.

        :param sensor: Its number.
        """
        random = np.random.default_rng([sensor, 0])
        front, gust, mass = (_ornstein_uhlenbeck(self.rows, length, random) for length in (FRONTS, GUSTS, MASSES))
        own = [_ornstein_uhlenbeck(self.rows, OWN, random) for _ in OUTPUTS]
        noise = random.standard_normal((len(OUTPUTS), self.rows))
        start = pd.Timestamp("2024-01-01") + pd.Timedelta(days=int(random.integers(0, 365)))
        hour = np.arange(self.rows) * 24 / ROWS_PER_DAY
        sun = np.clip(np.sin(2 * np.pi * (hour - 7) / 24), -0.2, None) * (1 - 0.25 * np.tanh(front))
        place = random.standard_normal(2)
        temperature = 11 + 3 * place[0] + 4 * mass + 5 * sun - front + 0.7 * own[0] + 0.15 * noise[0]
        humidity = 72 - 2 * (temperature - 11) + 6 * front + 3 * own[1] + noise[1]
        wind = np.exp(0.9 + 0.2 * place[1] + 0.35 * gust + 0.25 * sun + 0.15 * front + 0.15 * own[2] + 0.08 * noise[2])
        ozone = np.exp(3.6 + 0.35 * gust + 0.5 * sun + 0.2 * own[3] + 0.06 * noise[3])
        # as instruments are read
        values = np.stack([temperature, humidity.clip(5, 100), wind, ozone], axis=1).round(1)
        frame = pd.DataFrame({TASK: f"sensor {sensor}", INPUT: pd.date_range(start, periods=self.rows, freq="15min")})
        return pd.concat([frame, pd.DataFrame(values, columns=OUTPUTS)], axis=1)

    def _gone(self, random: np.random.Generator) -> np.ndarray:
        """Draw the entries that are missing (`N x P`)."""
        gone = random.random((self.rows, len(OUTPUTS))) < SINGLE
        for column in range(len(OUTPUTS)):
            left = OUTAGES * self.rows
            while left > 0:
                length = round(np.exp(random.uniform(np.log(SHORTEST), np.log(LONGEST))))
                first = random.integers(self.rows)
                gone[first : first + length, column] = True
                left -= length
        return gone


def _ornstein_uhlenbeck(number: int, rows: float, random: np.random.Generator) -> np.ndarray:
    """A stationary process of variance 1, whose correlation falls by e in this many rows (`N`)."""
    decay = np.exp(-1 / rows)
    steps = random.standard_normal(number)
    steps[1:] *= np.sqrt(1 - decay**2)
    return lfilter([1.0], [1.0, -decay], steps)
