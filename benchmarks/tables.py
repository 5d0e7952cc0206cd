"""Tables with hidden entries, for imputers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from gpytorch_sgpvae.datasets import load_amedas, load_eeg_recordings, weather_table
from gpytorch_sgpvae.datasets.missingness import blackouts

from . import beijing

BLOCK = 3  # days


@dataclass(frozen=True)
class Problem:
    """
    :param train: What an imputer learns from; NaN is a hole.
    :param test: What it fills; the same table, or another one with the same columns.
    :param truth: What was hidden of the test (`N x P`); NaN where nothing was.
    :param inputs: Names of the inputs.
    :param outputs: Names of the outputs.
    :param task: Name of the column of tasks; None where there is none.
    :param places: Names of the columns that tell series apart.
    :param time: Name of a column that goes on from task to task in a series, or of the time in a task.
    :param steps: Rows in a window of a series, for imputers that take windows.
    """

    train: pd.DataFrame
    test: pd.DataFrame
    truth: np.ndarray
    inputs: list[str]
    outputs: list[str]
    task: str | None
    places: list[str]
    time: str
    steps: int

    @property
    def scale(self) -> np.ndarray:
        """Standard deviation of the outputs that are to be learnt from (`P`)."""
        return self.train[self.outputs].std(ddof=0).to_numpy()


def amedas(hide: str, seed: int) -> Problem:
    """
    The AMeDAS weeks: 155 stations, 140 days, four outputs.

    :param hide: See :func:`hidden_entries`.
    """
    data = load_amedas()
    weeks = []
    for week, ((x, y), truth) in enumerate(zip(data.test, data.test_truth, strict=True)):
        values = torch.cat([x, torch.where(y.isnan(), truth, y)], dim=-1)
        weeks.append(pd.DataFrame(values.numpy(), columns=[*data.inputs, *data.outputs]).assign(week=week))
    return _weather(pd.concat(weeks), list(data.outputs), hide, seed, steps=28)


def small_weather(hide: str, seed: int) -> Problem:
    """A generated table, for a quick run."""
    table = weather_table(num_stations=6, num_weeks=4, missing=0.05, seed=seed).table
    return _weather(table, ["temperature", "wind"], hide, seed, steps=7)


def eeg(hide: str, seed: int) -> Problem:
    """The EEG recordings: learn from 30 with failing electrodes, fill 25 others; what fails is the data set's own."""
    data = load_eeg_recordings(seed=seed)
    outputs = list(data.outputs)

    def table(tasks: list) -> pd.DataFrame:
        recordings = [
            pd.DataFrame(y.numpy(), columns=outputs).assign(time=x.squeeze(-1).numpy(), trial=trial)
            for trial, (x, y) in enumerate(tasks)
        ]
        return pd.concat(recordings, ignore_index=True)

    truth = torch.cat(data.test_truth).numpy()
    steps = len(data.test[0][0])
    return Problem(table(data.train), table(data.test), truth, ["time"], outputs, "trial", ["trial"], "time", steps)


def beijing_station(hide: str, seed: int) -> Problem:
    """
    One station of Beijing: 35,064 hours, ten outputs, and no input but the date.

    :param hide: `runs` of a day in which all pollutants are hidden, or a percentage of the entries at random.
    """
    table = beijing.one_station()
    hidden = beijing.runs_of_pollutants(len(table), seed) if hide == "runs" else _at_random(table, hide, seed)
    return _beijing(table, [], hidden)


def twelve_stations(hide: str, seed: int) -> Problem:
    """
    Twelve stations of Beijing in two months of winter: 17,856 rows of a station and an hour, ten outputs.

    :param hide: `outages` of a station for a day, or a percentage of the entries at random.
    """
    table = beijing.twelve_stations()
    hidden = beijing.outages(len(table), seed) if hide == "outages" else _at_random(table, hide, seed)
    return _beijing(table, ["lat", "lon"], hidden)


def _at_random(table: pd.DataFrame, hide: str, seed: int) -> np.ndarray:
    return hidden_entries(len(table), len(beijing.OUTPUTS), hide, seed)


def _beijing(table: pd.DataFrame, places: list[str], hidden: np.ndarray) -> Problem:
    outputs = beijing.OUTPUTS
    seen = table.copy()
    seen[outputs] = table[outputs].mask(hidden)
    truth = table[outputs].where(hidden).to_numpy(float)
    return Problem(seen, seen, truth, [*places, "date"], outputs, None, places, "date", beijing.DAY)


def _weather(table: pd.DataFrame, outputs: list[str], hide: str, seed: int, steps: int) -> Problem:
    places = ["lat", "lon", "elev"]
    table = table.assign(date=7 * table["week"] + table["day"])
    table = table.sort_values([*places, "date"], ignore_index=True)
    hidden = hidden_entries(len(table), len(outputs), hide, seed)
    seen = table.copy()
    seen[outputs] = table[outputs].mask(hidden)
    truth = table[outputs].where(hidden).to_numpy(float)
    return Problem(seen, seen, truth, [*places, "day"], outputs, "week", places, "date", steps)


def hidden_entries(num_rows: int, num_outputs: int, hide: str, seed: int) -> np.ndarray:
    """
    :param hide: A percentage of the entries at random, such as `30 %`; or `blocks`: 30 % of the time, three days of a
        station with all that it measures. Rows are in the order of stations and days.
    """
    random = np.random.RandomState(seed)
    rows = torch.empty(num_rows, num_outputs)
    if hide == "blocks":
        return blackouts(rows, BLOCK, 0.3, random, simultaneous=True).numpy()
    return blackouts(rows, 1, float(hide.removesuffix(" %")) / 100, random).numpy()


TABLES: dict[str, Callable[[str, int], Problem]] = {
    "AMeDAS": amedas,
    "EEG": eeg,
    "Beijing station": beijing_station,
    "twelve stations": twelve_stations,
    "generated": small_weather,
}
