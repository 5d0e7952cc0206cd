"""
Data with holes: generated videos, generated tables, and the files of the sparse GP-VAE's experiments and of TSI-Bench
(all but the videos need the extra `datasets`).

The files come from the folder that the environment variable `SGPVAE_DATA` names, where it is set; else they are
downloaded once, and checked.
"""

from ..utils.normalizer import Normalizer
from .task_data import TaskData
from .bouncing_balls import BouncingBalls, bouncing_ball, bouncing_balls, estimate_periods
from .jura import load_jura
from .eeg import load_eeg, load_eeg_recordings
from .weather import load_amedas, load_japan_weather
from .sensor_table import SensorTable, sensor_table
from .weather_table import WeatherTable, weather_table
from .patients import PatientTable, patients
from .tsibench import WindowData, Windows, load_tsibench

__all__ = [
    "BouncingBalls",
    "Normalizer",
    "PatientTable",
    "SensorTable",
    "TaskData",
    "WeatherTable",
    "WindowData",
    "Windows",
    "bouncing_ball",
    "bouncing_balls",
    "estimate_periods",
    "load_amedas",
    "load_eeg",
    "load_eeg_recordings",
    "load_japan_weather",
    "load_jura",
    "load_tsibench",
    "patients",
    "sensor_table",
    "weather_table",
]
