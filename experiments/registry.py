"""The experiments, by the name that the command line knows them by."""

from __future__ import annotations

from .balls import BALL, BALLS
from .eeg_large import EEG_LARGE
from .experiment import Experiment
from .patients import PATIENTS
from .series import SERIES
from .small import EEG, JURA
from .tsibench import TSIBENCH, TSIBENCH_TIME
from .weather import AMEDAS, JAPAN

EXPERIMENTS: dict[str, Experiment] = {
    "jura": JURA,
    "eeg": EEG,
    "eeg-large": EEG_LARGE,
    "amedas": AMEDAS,
    "japan": JAPAN,
    "ball": BALL,
    "balls": BALLS,
    "series": SERIES,
    "patients": PATIENTS,
    "tsibench": TSIBENCH,
    "tsibench-time": TSIBENCH_TIME,
}
