"""The experiments, by the name that the command line knows them by."""

from __future__ import annotations

from .balls import BALL, BALLS
from .experiment import Experiment
from .small import EEG, JURA
from .weather import AMEDAS, JAPAN

EXPERIMENTS: dict[str, Experiment] = {
    "jura": JURA,
    "eeg": EEG,
    "amedas": AMEDAS,
    "japan": JAPAN,
    "ball": BALL,
    "balls": BALLS,
}
