"""Air quality and weather of twelve stations in Beijing, hour by hour, as tables without a task."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from gpytorch_sgpvae.datasets.files import locate, read_table
from gpytorch_sgpvae.datasets.tsibench import BEIJING_AIR

POLLUTANTS = ["PM2.5", "PM10", "SO2", "NO2", "CO", "O3"]
# RAIN, which is 0 in 96 hours of 100, is left out.
OUTPUTS = [*POLLUTANTS, "TEMP", "PRES", "DEWP", "WSPM"]
# Latitudes and longitudes, as published.
STATIONS = {
    "Aotizhongxin": (39.982, 116.397),
    "Changping": (40.217, 116.230),
    "Dingling": (40.292, 116.220),
    "Dongsi": (39.929, 116.417),
    "Guanyuan": (39.929, 116.339),
    "Gucheng": (39.914, 116.184),
    "Huairou": (40.328, 116.628),
    "Nongzhanguan": (39.937, 116.461),
    "Shunyi": (40.127, 116.655),
    "Tiantan": (39.886, 116.407),
    "Wanliu": (39.987, 116.287),
    "Wanshouxigong": (39.878, 116.352),
}
WINTER = slice("2014-12-01", "2015-01-31")
DAY = 24  # hours
NUM_RUNS, NUM_OUTAGES = 60, 75


def one_station() -> pd.DataFrame:
    """Aotizhongxin in 35,064 hours: `date` and ten outputs."""
    return _station("Aotizhongxin").reset_index()


def twelve_stations() -> pd.DataFrame:
    """All stations in December 2014 and January 2015, one after the other: `lat`, `lon`, `date` and ten outputs."""
    tables = [
        _station(name).loc[WINTER].reset_index().assign(lat=lat, lon=lon) for name, (lat, lon) in STATIONS.items()
    ]
    return pd.concat(tables, ignore_index=True)


def runs_of_pollutants(num_hours: int, seed: int) -> np.ndarray:
    """60 runs of 24 hours in which all pollutants are hidden, and no other output (`N x P`, booleans)."""
    hidden = np.zeros((num_hours, len(OUTPUTS)), bool)
    for start in np.random.RandomState(seed).choice(num_hours - DAY, NUM_RUNS, replace=False):
        hidden[start : start + DAY, : len(POLLUTANTS)] = True
    return hidden


def outages(num_rows: int, seed: int) -> np.ndarray:
    """75 times, a station is silent for 24 hours, with all its outputs (`N x P`, booleans)."""
    random = np.random.RandomState(seed)
    hidden = np.zeros((len(STATIONS), num_rows // len(STATIONS), len(OUTPUTS)), bool)
    for _ in range(NUM_OUTAGES):
        start = random.randint(hidden.shape[1] - DAY)
        hidden[random.randint(len(STATIONS)), start : start + DAY] = True
    return hidden.reshape(num_rows, -1)


@cache
def _read() -> pd.DataFrame:
    columns = [f"{station}_{output}" for station in STATIONS for output in OUTPUTS]
    frame = read_table(locate(BEIJING_AIR), ["date", *columns])
    return frame.assign(date=pd.to_datetime(frame["date"])).set_index("date")


def _station(name: str) -> pd.DataFrame:
    columns = {f"{name}_{output}": output for output in OUTPUTS}
    return _read()[list(columns)].rename(columns=columns).astype(float)
