from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .files import DataFile, locate, read_table, require
from .ghcn import read_japan
from .missingness import hold_out, random_points
from .task_data import TaskData

AMEDAS = DataFile(
    "amedas/japan_observatories_daily_2023.csv",
    "6fdb81d4c2f377841a36498cc7c3db04b9b48c08bb8d7685f0285427dd24d636",
)
INPUTS = {"lat": "°", "lon": "°", "elev": "m", "day": "d"}
DAYS_PER_WEEK = 7
HIDDEN_DAYS = (1, 2, 3, 4, 5)


def load_amedas(hidden_fraction: float = 0.25, seed: int = 1) -> TaskData:
    r"""
    Daily weather at 155 Japanese observatories, from 14 July to 30 November 2023: 20 tasks of a week each, counted from
    the first date. Training has all that is known of the even weeks. The test has all weeks, with holes: the average
    temperature of the days 1 to 5, which is to be predicted, and a part of the highest and of the lowest temperatures,
    which would give it away. The even weeks are the seen ones.

    Inputs are latitude, longitude, elevation and the day of the week from 0, outputs the precipitation (PRCP) and the
    highest, the lowest and the average temperature (TMAX, TMIN, TAVG).

    Nobody offers the file for download: it goes into the folder that `SGPVAE_DATA` names, as
    `amedas/japan_observatories_daily_2023.csv`.

    :param hidden_fraction: The fraction of the highest, and of the lowest, temperatures of a test week to hide.
    :param seed: The seed of their choice.

    Example:
        >>> from gpytorch_sgpvae.datasets import load_amedas
        >>> data = load_amedas()  # doctest: +SKIP
        >>> data  # doctest: +SKIP
        TaskData(10 + 20 tasks, lat [°], lon [°], elev [m], day [d] -> PRCP [mm], TMAX [°C], TMIN [°C], TAVG [°C])
        >>> data.seen[:4], data.test[0][1].shape  # doctest: +SKIP
        ([True, False, True, False], torch.Size([1085, 4]))
    """
    outputs = {"PRCP": "mm", "TMAX": "°C", "TMIN": "°C", "TAVG": "°C"}
    table = read_table(locate(AMEDAS), ["station", "date", "lat", "lon", "elev", *outputs])
    table["date"] = require("pandas").to_datetime(table["date"])
    days = (table["date"] - table["date"].min()).dt.days
    table = table[days < (days.max() + 1) // DAYS_PER_WEEK * DAYS_PER_WEEK]  # whole weeks
    weeks = [week for _, week in _with_days(table).groupby("week")]
    return _task_data(weeks, [i % 2 == 0 for i in range(len(weeks))], outputs, hidden_fraction, seed)


def load_japan_weather(
    train_year: int = 1980, test_year: int = 1981, hidden_fraction: float = 0.25, seed: int = 1
) -> TaskData:
    r"""
    Daily weather at the Japanese stations of NOAA's `GHCN-Daily`_, as in `Ashman et al. (2020)`_: tasks of a week each,
    counted from the first date. Training has all that is known of one year. The test has both years, with the same
    holes as in :func:`load_amedas`; the weeks of the training year are the seen ones. A week in which a year ends is
    two shorter tasks.

    Inputs are latitude, longitude, elevation and the day of the week from 0, outputs the precipitation (PRCP), the
    highest, the lowest and the average temperature (TMAX, TMIN, TAVG) and the depth of snow (SNWD). A task has a row
    for every station and day, whatever is missing there. Values that failed NOAA's checks are missing, and stations
    without an elevation are left out.

    NOAA keeps correcting these files, so that there are no sums to check them by. In the folder that `SGPVAE_DATA`
    names they are `ghcn/JA*.csv`, a file for each station.

    :param train_year: The year to train on.
    :param test_year: The year to be judged on, beside the other.
    :param hidden_fraction: The fraction of the highest, and of the lowest, temperatures of a test week to hide.
    :param seed: The seed of their choice.

    Example:
        >>> from gpytorch_sgpvae.datasets import load_japan_weather
        >>> data = load_japan_weather()  # doctest: +SKIP
        >>> len(data.train), len(data.test)  # doctest: +SKIP
        (53, 106)

    .. _GHCN-Daily:
        https://doi.org/10.7289/V5D21VHZ
    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """
    outputs = {"PRCP": "mm", "TMAX": "°C", "TMIN": "°C", "TAVG": "°C", "SNWD": "mm"}
    table = _with_days(read_japan([train_year, test_year], list(outputs)))
    table["year"] = table["date"].dt.year
    groups = list(table.groupby(["year", "week"]))
    weeks, seen = [week for _, week in groups], [year == train_year for (year, _), _ in groups]
    return _task_data(weeks, seen, outputs, hidden_fraction, seed)


def _with_days(table: Any) -> Any:
    """The table in the order of stations and dates, with the week, counted from the first date, and the day in it."""
    table = table.sort_values(["station", "date"])
    days = (table["date"] - table["date"].min()).dt.days
    return table.assign(week=days // DAYS_PER_WEEK, day=days % DAYS_PER_WEEK)


def _task_data(
    weeks: list[Any], seen: list[bool], outputs: dict[str, str], hidden_fraction: float, seed: int
) -> TaskData:
    random = np.random.RandomState(seed)
    train, test, test_truth = [], [], []
    for week, is_seen in zip(weeks, seen, strict=True):
        x, y = (torch.tensor(week[list(columns)].to_numpy(float)) for columns in (INPUTS, outputs))
        hidden = torch.zeros_like(y, dtype=torch.bool)
        hidden[:, list(outputs).index("TAVG")] = torch.isin(x[:, list(INPUTS).index("day")], torch.tensor(HIDDEN_DAYS))
        for name in ("TMAX", "TMIN"):
            hidden[:, list(outputs).index(name)] = random_points(len(y), hidden_fraction, random)
        seen_y, truth = hold_out(y, hidden)
        if is_seen:
            train.append((x, y))
        test.append((x, seen_y))
        test_truth.append(truth)
    return TaskData(
        train=train,
        train_truth=[torch.full_like(y, torch.nan) for _, y in train],
        test=test,
        test_truth=test_truth,
        seen=seen,
        inputs=dict(INPUTS),
        outputs=outputs,
    )
