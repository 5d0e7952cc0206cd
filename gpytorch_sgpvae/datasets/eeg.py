from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .files import FOLDER_VARIABLE, GITHUB, DataFile, data_folder, locate, read_table
from .missingness import blackouts, columns_of, hold_out
from .task_data import TaskData

SAMPLING_RATE = 256  # Hz
# The recordings as they were published, one file each (UCI's EEG database, doi 10.24432/C5TS3D).
PLACE = f"{GITHUB}/zudoan/EGG/0a2f8367330081dfbfad71fa0c2e87df0fd6115b"
# The same, put together in a data folder.
_INSTEAD = f"delete it and unset {FOLDER_VARIABLE}, for the published recordings"
FIRST_TRIAL = DataFile(
    "eeg/eeg_co2c0000337_trial000.csv",
    "d3fe79ac8da90b0f5d6a8523853db70c11bf11fd33c4f0401b27ec434f25e54b",
    instead=_INSTEAD,
)
ALL_TRIALS = DataFile(
    "eeg/eeg_co2c0000337_60trials.npz",
    "f8250aca69d8bd1ee774a549877309a9b1a01b240d0a54e82f92c8579abb9d7e",
    instead=_INSTEAD,
)


class Source(NamedTuple):
    """A published recording."""

    partition: str
    trial: int
    file: DataFile


class Recording(NamedTuple):
    """
    :param channels: Names of the electrodes.
    :param y: Voltages, in µV (`N x P`).
    """

    channels: list[str]
    y: Tensor


def load_eeg(
    channels: Sequence[str] = ("F3", "F4", "F5", "F6", "FZ", "F1", "F2"),
    held_out: Sequence[str] = ("FZ", "F1", "F2"),
    num_held_out: int = 100,
) -> TaskData:
    r"""
    One second of an electroencephalogram at 256 Hz (`Begleiter (1995)`_, subject co2c0000337, trial 0): one task, in
    which some electrodes fail before the end and are to be predicted from the others (`Requeima et al. (2019)`_).
    Training and test have the same task.

    :param channels: Columns of y: of the 64 electrodes, in µV.
    :param held_out: The electrodes that fail, some of `channels`.
    :param num_held_out: The number of samples at the end that they miss.

    Example:
        >>> from gpytorch_sgpvae.datasets import load_eeg
        >>> data = load_eeg(channels=["F3", "F4", "FZ"], held_out=["FZ"])  # doctest: +SKIP
        >>> data  # doctest: +SKIP
        TaskData(1 + 1 tasks, time [s] -> F3 [µV], F4 [µV], FZ [µV])
        >>> data.train[0][1].shape, data.test_truth[0].isfinite().sum(0)  # doctest: +SKIP
        (torch.Size([256, 3]), tensor([  0,   0, 100]))

    .. _Begleiter (1995):
        https://doi.org/10.24432/C5TS3D
    .. _Requeima et al. (2019):
        https://arxiv.org/abs/1802.07182
    """
    y = _first_recording(channels)
    num_points = len(y)
    if not 0 <= num_held_out <= num_points:
        raise ValueError(f"Expected num_held_out between 0 and {num_points}, got {num_held_out}.")
    hidden = torch.zeros_like(y, dtype=torch.bool)
    hidden[num_points - num_held_out :] = columns_of(channels, held_out)
    y, truth = hold_out(y, hidden)
    x = _times(num_points)
    return TaskData(
        train=[(x, y)],
        train_truth=[truth],
        test=[(x, y)],
        test_truth=[truth],
        seen=[True],
        inputs={"time": "s"},
        outputs=dict.fromkeys(channels, "µV"),
    )


def load_eeg_recordings(experiment: int = 1, seed: int = 0, channels: Sequence[str] | None = None) -> TaskData:
    r"""
    One-second recordings of the electroencephalogram of one person (`Begleiter (1995)`_, subject co2c0000337), with
    simulated failures of electrodes (`Ashman et al. (2020)`_): 30 tasks for training, and 25 others for the test. (The
    published test set has 30, five of which are in the training set too.)

    Windows of 16 samples are gone from single electrodes, each with the probability below; in the test also windows of
    4 samples from all electrodes at once, each with probability 0.25. See
    :func:`~gpytorch_sgpvae.datasets.missingness.blackouts`.

    ========== ======== ====
    experiment training test
    ========== ======== ====
    1          0.5      0.5
    2          0.1      0.5
    ========== ======== ====

    Together they take five eighths of the test set. With the same seed both experiments have the same test tasks.

    :param experiment: 1 or 2.
    :param seed: The seed of the failures.
    :param channels: Columns of y, in µV; by default all 64 electrodes.

    Example:
        >>> from gpytorch_sgpvae.datasets import load_eeg_recordings
        >>> data = load_eeg_recordings(experiment=2, channels=["FZ", "CZ", "PZ"])  # doctest: +SKIP
        >>> data  # doctest: +SKIP
        TaskData(30 + 25 tasks, time [s] -> FZ [µV], CZ [µV], PZ [µV])

    .. _Begleiter (1995):
        https://doi.org/10.24432/C5TS3D
    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """
    if experiment not in (1, 2):
        raise ValueError(f"There are experiments 1 and 2, got {experiment!r}.")
    train_probability = {1: 0.5, 2: 0.1}[experiment]
    recordings = _all_recordings()
    names = list(channels or next(iter(recordings.values())).channels)
    trained_on = {trial for partition, trial in recordings if partition == "train"}
    random = np.random.RandomState(seed)
    train, train_truth, test, test_truth = [], [], [], []
    for (partition, trial), recording in recordings.items():
        y = _select(recording, names)
        x = _times(len(y))
        if partition == "train":
            y, truth = hold_out(y, blackouts(y, 16, train_probability, random))
            train.append((x, y))
            train_truth.append(truth)
        elif trial not in trained_on:
            single = blackouts(y, 16, 0.5, random)
            y, truth = hold_out(y, single | blackouts(y, 4, 0.25, random, simultaneous=True))
            test.append((x, y))
            test_truth.append(truth)
    return TaskData(
        train=train,
        train_truth=train_truth,
        test=test,
        test_truth=test_truth,
        seen=[False] * len(test),
        inputs={"time": "s"},
        outputs=dict.fromkeys(names, "µV"),
    )


def sources() -> list[Source]:
    """The published recordings, those for training first, in the order of their trials."""
    table = resources.files(__package__).joinpath("eeg_sources.csv").read_text(encoding="utf-8")
    rows = [
        Source(
            row["partition"],
            int(row["trial"]),
            DataFile(f"eeg/{row['path']}", row["sha256"], f"{PLACE}/{row['path']}", size=int(row["bytes"])),
        )
        for row in csv.DictReader(table.splitlines())
    ]
    return sorted(rows, key=lambda source: (source.partition != "train", source.trial))


def read_recording(path: Path) -> Recording:
    """
    A recording as it was published: a row for each electrode and sample.

    :param path: The file.
    """
    position, sample, value = "sensor position", "sample num", "sensor value"
    rows = read_table(path, [position, sample, value])
    channels = list(rows[position].unique())
    table = rows.pivot(index=sample, columns=position, values=value)[channels]
    return Recording(channels, _microvolts(table.to_numpy()))


def _first_recording(channels: Sequence[str]) -> Tensor:
    folder = data_folder()
    if folder is not None and (folder / FIRST_TRIAL.path).exists():
        return _microvolts(read_table(locate(FIRST_TRIAL), channels).to_numpy(float))
    return _select(read_recording(locate(sources()[0].file)), channels)


def _all_recordings() -> dict[tuple[str, int], Recording]:
    """Read the recordings by partition and trial, those for training first, in the order of their trials."""
    folder = data_folder()
    if folder is None or not (folder / ALL_TRIALS.path).exists():
        return {(source.partition, source.trial): read_recording(locate(source.file)) for source in sources()}
    with np.load(locate(ALL_TRIALS)) as packed:
        channels = packed["channels"].tolist()
        keys = zip(packed["partition"].tolist(), packed["trial"].tolist(), strict=True)
        voltages = packed["y"] * packed["scale"]  # (T, N, P)
    return {key: Recording(channels, _microvolts(y)) for key, y in zip(keys, voltages, strict=True)}


def _select(recording: Recording, channels: Sequence[str]) -> Tensor:
    unknown = [name for name in channels if name not in recording.channels]
    if unknown:
        raise ValueError(f"There are no channels {', '.join(unknown)}, only {', '.join(recording.channels)}.")
    return recording.y[:, [recording.channels.index(name) for name in channels]]


def _microvolts(voltages: np.ndarray) -> Tensor:
    # Published with three decimals: rounded, they are the same numbers whatever they were stored as.
    return torch.tensor(np.round(voltages, 3))


def _times(num_points: int) -> Tensor:
    return torch.arange(num_points, dtype=torch.float64).unsqueeze(-1) / SAMPLING_RATE  # (N, 1)
