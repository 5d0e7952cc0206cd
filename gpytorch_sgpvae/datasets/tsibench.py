from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .files import GITHUB, DataFile, data_folder, locate, reading, require
from .missingness import block_holes, point_holes, run_holes

ETTH1 = DataFile(
    "tsibench/ETTh1.csv",
    "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
    f"{GITHUB}/zhouhaoyi/ETDataset/1d16c8f4f943005d613b5bc962e9eeb06058cf07/ETT-small/ETTh1.csv",
)
ITALY_AIR = DataFile(
    "tsibench/AirQualityUCI.csv",
    "7dcd1713a628e7ecc14941d9a22e7d64c4f348747ed03376238524eca6ba9e21",
    f"{GITHUB}/GAMES-UChile/mogptk/ad47f2cc09661956d6d361ea93454e3fcd175a93/examples/data/AirQualityUCI.csv",
)
# All stations in one file, which a data folder may hold; for download there is one file for each.
BEIJING_AIR = DataFile(
    "tsibench/beijing_air.csv.gz",
    "61cba25144ef3dcaee9b0bcc330827d65f636d7752604cffc85692423b4c9453",
    instead="put it together from UCI's data set 501: a column `date`, and one for each station and output",
)
STATIONS = (
    "Aotizhongxin",
    "Changping",
    "Dingling",
    "Dongsi",
    "Guanyuan",
    "Gucheng",
    "Huairou",
    "Nongzhanguan",
    "Shunyi",
    "Tiantan",
    "Wanliu",
    "Wanshouxigong",
)
BEIJING_OUTPUTS = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM")
STATION_FILES = {
    station: DataFile(
        f"tsibench/PRSA_Data_{station}_20130301-20170228.csv",
        url=f"{GITHUB}/yajiez/ml-dataset/2113ba406f7aa61f8a84d388a23d0558cdfafcfa/bjair/data/"
        f"PRSA_Data_{station}_20130301-20170228.csv",
    )
    for station in STATIONS
}
# The checksum of all stations' values, in whole ten-thousandths: the published files have no other in common.
BEIJING_VALUES = "269f7a23d11fe5463d9b3461d44e99b68f3ed7329b0711d8cfa2a07c71d2f4cd"


class Windows(NamedTuple):
    """
    Windows of a time series, in standardized units (`T x N x P` each).

    :param truth: All that is known; NaN is missing in the data themselves.
    :param seen: The same with holes.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.datasets import Windows
        >>> truth = torch.randn(20, 12, 3)
        >>> windows = Windows(truth, seen=truth.masked_fill(torch.rand(20, 12, 3) < 0.1, torch.nan))
        >>> bool(windows.seen[windows.hidden].isnan().all())
        True
    """

    truth: Tensor
    seen: Tensor

    @property
    def hidden(self) -> Tensor:
        """True for the entries to be judged by (`T x N x P`)."""
        return self.seen.isnan() & ~self.truth.isnan()


class Series(NamedTuple):
    """
    A multivariate series, cut in three.

    :param parts: The rows to train on, to validate with and to test (`R x P` each).
    :param outputs: Names of the columns.
    """

    parts: list[np.ndarray]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Benchmark:
    """
    How TSI-Bench cuts a series, and what it hides of it.

    :param read: Reads the series.
    :param length: Number of steps N of a window.
    :param run: Steps of a hidden run.
    :param block: Steps, and outputs, of a hidden block.
    :param factor: What the number of blocks follows from.
    """

    read: Callable[[], Series]
    length: int
    run: int
    block: int
    factor: float


@dataclass(frozen=True, eq=False, repr=False)
class WindowData:
    r"""
    Windows of a multivariate series to train on, to validate with and to test, with holes (see :func:`load_tsibench`).
    Each output is standardized by the mean and the standard deviation of the training windows before anything is
    hidden, as TSI-Bench has it:

    .. math::

        \text{truth}_{tnp} = \frac{y_{tnp} - \bar y_p}{s_p}

    :param train: Windows to train on (`T x N x P`).
    :param validation: Windows to choose by.
    :param test: Windows to be judged by.
    :param outputs: Names of the outputs.
    :param mean: Means of the outputs, in their own units (`P`).
    :param stddev: Their standard deviations (`P`).

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.datasets import WindowData, Windows
        >>> truth = torch.randn(20, 12, 3)
        >>> windows = Windows(truth, truth.masked_fill(torch.rand(20, 12, 3) < 0.1, torch.nan))
        >>> data = WindowData(windows, windows, windows, ("a", "b", "c"), torch.zeros(3), torch.ones(3))
        >>> data
        WindowData(20 + 20 + 20 windows of 12 steps, 3 outputs)
        >>> data.test.hidden.shape
        torch.Size([20, 12, 3])
    """

    train: Windows
    validation: Windows
    test: Windows
    outputs: tuple[str, ...]
    mean: Tensor
    stddev: Tensor

    def __repr__(self) -> str:
        sizes = " + ".join(str(len(part.truth)) for part in (self.train, self.validation, self.test))
        return f"WindowData({sizes} windows of {self.train.truth.shape[1]} steps, {len(self.outputs)} outputs)"


def load_tsibench(name: str, pattern: str = "point", rate: float = 0.1, seed: int = 2024) -> WindowData:
    r"""
    A data set of TSI-Bench (`Du et al. (2024)`_), a public benchmark of imputers of time series: hourly measurements,
    cut into windows that do not overlap, with entries hidden in all three sets by the same `pattern`:

    - `"point"`: each entry by itself, with the probability `rate`;
    - `"subseq"`: runs of a single output, as many as make up `rate` of all entries if none overlapped;
    - `"block"`: runs of neighboring outputs together, about half of all entries (`rate` is not used).

    =============  ==================================  ========  =======  ===========================================
    name           what                                outputs   steps    training, validation and test set
    =============  ==================================  ========  =======  ===========================================
    `ETTh1`        an electricity transformer          7         48       14 months, 5 months, the rest
    `ItalyAir`     street sensors (-200 is a value,    13        12       three fifths, a fifth, a fifth
                   as in TSI-Bench)
    `BeijingAir`   twelve stations of air quality      132       24       28 months, 10 months, 10 months
    =============  ==================================  ========  =======  ===========================================

    The masks are not TSI-Bench's own, whose draws depend on the version of its packages, but follow its protocol.

    :param name: `"ETTh1"`, `"ItalyAir"` or `"BeijingAir"`.
    :param pattern: `"point"`, `"subseq"` or `"block"`.
    :param rate: The share of the entries that is hidden, between 0 and 1.
    :param seed: Seed of what is hidden.

    Example:
        >>> from gpytorch_sgpvae.datasets import load_tsibench
        >>> data = load_tsibench("ETTh1", "point", 0.5)  # doctest: +SKIP
        >>> data  # doctest: +SKIP
        WindowData(213 + 76 + 72 windows of 48 steps, 7 outputs)

    .. _Du et al. (2024):
        https://arxiv.org/abs/2406.12747
    """
    if name not in BENCHMARKS:
        raise ValueError(f"There is no data set {name!r}: expected {', '.join(BENCHMARKS)}.")
    if pattern not in PATTERNS:
        raise ValueError(f"There is no pattern {pattern!r}: expected {', '.join(PATTERNS)}.")
    benchmark = BENCHMARKS[name]
    return make_windows(benchmark.read(), benchmark, pattern, rate, seed)


def make_windows(series: Series, benchmark: Benchmark, pattern: str, rate: float, seed: int) -> WindowData:
    """
    Standardize a series, cut it into windows, and hide entries of them.

    :param series: The series, in three parts.
    :param benchmark: How long windows and holes are.
    :param pattern: One of PATTERNS.
    :param rate: The share of the entries that is hidden.
    :param seed: Seed of what is hidden.
    """
    mean, stddev = np.nanmean(series.parts[0], 0), np.nanstd(series.parts[0], 0)
    random = np.random.default_rng(seed)
    sets = []
    for part in series.parts:
        whole = len(part) // benchmark.length * benchmark.length  # what is left over at the end makes no window
        truth = ((part - mean) / stddev)[:whole].reshape(-1, benchmark.length, len(mean))  # (T, N, P)
        hidden = PATTERNS[pattern](truth.shape, rate, benchmark, random)
        sets.append(Windows(torch.tensor(truth), torch.tensor(np.where(hidden, np.nan, truth))))
    train, validation, test = sets
    return WindowData(train, validation, test, series.outputs, torch.tensor(mean), torch.tensor(stddev))


Shape = tuple[int, ...]
# What is hidden, by name: functions of a shape (T, N, P), a share, a benchmark and a source of randomness.
PATTERNS: dict[str, Callable[[Shape, float, Benchmark, np.random.Generator], np.ndarray]] = {
    "point": lambda shape, rate, benchmark, random: point_holes(shape, rate, random),
    "subseq": lambda shape, rate, benchmark, random: run_holes(shape, rate, benchmark.run, random),
    "block": lambda shape, rate, benchmark, random: block_holes(shape, benchmark.factor, benchmark.block, random),
}


def read_etth1() -> Series:
    """14 months, five, and the rest."""
    path = locate(ETTH1)
    with reading(path, "a column date and outputs, separated by commas"):
        frame = require("pandas").read_csv(path, parse_dates=["date"])
    return _by_months(frame, 14, 19)


def read_italy_air() -> Series:
    """The last fifth tests, the one before validates; -200, which stands for a hole, is kept as a value, as there."""
    path = locate(ITALY_AIR)
    with reading(path, "columns Date, Time and outputs, separated by semicolons, with decimal commas"):
        frame = require("pandas").read_csv(path, sep=";", decimal=",").dropna(subset=["Date"])
        frame = frame.drop(columns=[name for name in frame if name in ("Date", "Time") or "Unnamed" in name])
        values = frame.to_numpy(float)
    fifth = round(0.2 * len(values))
    return Series([values[: -2 * fifth], values[-2 * fifth : -fifth], values[-fifth:]], tuple(frame))


def read_beijing_air() -> Series:
    """28 months, ten, and ten."""
    return _by_months(beijing_air(), 28, 38)


def beijing_air() -> Any:
    """
    Air quality and weather of twelve stations in Beijing, hour by hour from March 2013 to February 2017, as a pandas
    data frame with a column `date` and one for each station and output, such as `Dongsi_PM2.5`.
    """
    if data_folder() is not None:
        path = locate(BEIJING_AIR)
        with reading(path, "a column date, and one for each station and output, separated by commas"):
            return require("pandas").read_csv(path, parse_dates=["date"])
    stations = [read_station(locate(STATION_FILES[station]), station) for station in STATIONS]
    frame = require("pandas").concat(stations, axis=1, join="inner").copy()
    found = values_sha256(frame.to_numpy(float))
    if found != BEIJING_VALUES:
        folder = Path(locate(STATION_FILES[STATIONS[0]])).parent
        raise ValueError(
            f"The values of the {len(STATIONS)} stations in {folder} are damaged, or of another version: their sha256 "
            f"is {found}, expected {BEIJING_VALUES}. Delete these files, and they are downloaded again."
        )
    return frame.rename_axis("date").reset_index()


def read_station(path: Path, station: str) -> Any:
    """
    The outputs of one station by the hour, as UCI publishes them.

    :param path: The file.
    :param station: The name of the station, which becomes part of the names of the columns.
    """
    pandas = require("pandas")
    hours = ["year", "month", "day", "hour"]
    with reading(path, f"columns {', '.join([*hours, *BEIJING_OUTPUTS])}, separated by commas"):
        frame = pandas.read_csv(path, usecols=[*hours, *BEIJING_OUTPUTS])
        frame.index = pandas.to_datetime(frame[hours])
    return frame[list(BEIJING_OUTPUTS)].add_prefix(f"{station}_")


def values_sha256(values: np.ndarray) -> str:
    """
    The checksum of numbers, whatever the text that they were read from looked like.

    :param values: The numbers, NaN where one is missing; they are rounded to four decimals.
    """
    whole = np.where(np.isnan(values), np.iinfo(np.int64).min, np.round(1e4 * np.nan_to_num(values)))
    return hashlib.sha256(whole.astype("<i8").tobytes()).hexdigest()


def _by_months(frame: Any, first: int, second: int) -> Series:
    """The calendar months before the first cut, those from there to the second, and the rest."""
    month, frame = frame["date"].dt.to_period("M"), frame.drop(columns="date")
    months, values = month.unique(), frame.to_numpy(float)
    chosen = (months[:first], months[first:second], months[second:])
    return Series([values[month.isin(some).to_numpy()] for some in chosen], tuple(frame))


BENCHMARKS = {
    "ETTh1": Benchmark(read_etth1, length=48, run=36, block=6, factor=0.36),
    "ItalyAir": Benchmark(read_italy_air, length=12, run=8, block=4, factor=0.07),
    "BeijingAir": Benchmark(read_beijing_air, length=24, run=18, block=6, factor=0.0055),
}
