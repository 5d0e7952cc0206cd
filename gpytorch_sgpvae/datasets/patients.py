from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .files import require

VITAL_SIGNS = ["heart_rate", "pressure", "respiration", "saturation", "temperature", "extrasystoles", "confusion"]
LABORATORY = ["glucose", "lactate", "potassium", "creatinine", "crp", "white_cells"]
OUTPUTS = [*VITAL_SIGNS, *LABORATORY]
# Rows of a patient, and hours of a stay: the least and the most, and the median.
FEWEST_ROWS, MOST_ROWS = 6, 200
SHORTEST, LONGEST, MEDIAN = 6.0, 168.0, 36.0
# Hours of a step of the simulation, which then takes 1680 of them.
STEP = 0.1
# Hours between rounds, of patients who are well and of those who are ill.
CALM_ROUNDS, BUSY_ROUNDS = 2.5, 0.8
# The probability that a round measures each vital sign.
OF_ROUND = [0.74, 0.52, 0.37, 0.47, 0.22, 0.24, 0.09]
# Blood draws: what they tell, and hours between them for patients who are well and who are ill.
PANELS = {
    "morning": (["potassium", "creatinine", "glucose", "white_cells"], 24.0, 24.0),
    "inflammation": (["crp", "white_cells"], 36.0, 24.0),
    "gas": (["lactate", "glucose", "potassium"], 60.0, 6.0),
    "finger": (["glucose"], 12.0, 5.0),
}
# The share of patients in whom an output is never measured, whatever their state.
NEVER = {"extrasystoles": 0.4, "confusion": 0.3, "crp": 0.2, "lactate": 0.3, "respiration": 0.1}
MEALS = (8.0, 13.0, 19.0)
# What follows inflammation a day later, a drug against fever, fluctuations of the nervous system: the others say it.
STATES = ("inflammation", "late", "volume", "kidney", "sugar", "shock", "lungs", "drug", "heart")


class PatientTable(NamedTuple):
    r"""
    A generated table of patients (see :func:`patients`).

    :param table: A data frame; NaN is an entry that nobody measured.
    :param truth: The same without holes: what each instrument would have shown.
    """

    table: Any
    truth: Any


class _Course(NamedTuple):
    """
    The hidden course of patients.

    :param states: The values of each name in STATES, in steps of the simulation (`S x T`).
    :param admitted: The time of day at which each came, in hours (`T`).
    :param own: What is particular about each, for each output: standard normal numbers (`T`).
    """

    states: dict[str, np.ndarray]
    admitted: np.ndarray
    own: dict[str, np.ndarray]


def patients(num_patients: int = 100, seed: int = 0) -> PatientTable:
    r"""
    Vital signs and laboratory values of patients in a hospital, as a pandas data frame with the columns `patient` and
    `time` and 13 outputs, of which about 80 % are missing. It is no draw from a Gaussian process: an infection
    :math:`i`, which relapses now and then, drives an inflammation :math:`a`, and that drives the rest through
    relaxations of different lengths, in hours,

    .. math::

        \dot a &= \frac{i - a} 8, \qquad \dot{\text{late}} = \frac{a - \text{late}}{24}, \\
        \dot{\text{volume}} &= - \frac{\text{volume}}{20} - 0.05 \, a - \text{bleeding} + \text{fluids}, \\
        \dot{\text{kidney}} &= \frac{[0.5 \, a - \text{volume} - 0.3]_+ - \text{kidney}}{30}

    and so on for lactate, oxygen and sugar. Treatments answer to the state, and jump: fluids when the pressure is low,
    a drug when the fever is high, insulin when the sugar is; meals come at 8, 13 and 19 o'clock, and temperature,
    pulse and pressure follow the time of day. Outputs are nonlinear functions of all this, with an offset of each
    patient's own, noise, rounding, and readings that are plainly wrong (one in a hundred, or in fifty). Among them are
    positive ones with long tails (glucose, lactate, creatinine, C-reactive protein, white cells), a percentage that
    ends at 100 (saturation), a count (extrasystoles a minute) and a flag (confusion).

    Times are irregular: rounds come every two or three hours, more often to patients who are more ill, and measure some
    vital signs; blood is drawn at other times, for one panel of values or another. Stays last from 6 hours to a week,
    6 to 200 rows, and some outputs are never measured in some patients. Needs the extra `datasets`.

    :param num_patients: Number of patients T.
    :param seed: Seed of everything.

    Example:
        >>> from gpytorch_sgpvae.datasets import patients
        >>> table, truth = patients(20)
        >>> table.columns.tolist()[:5]
        ['patient', 'time', 'heart_rate', 'pressure', 'respiration']
        >>> bool(table.drop(columns=["patient", "time"]).isna().mean(axis=None) > 0.7)
        True
        >>> bool(truth.isna().any(axis=None))
        False
    """
    if num_patients < 1:
        raise ValueError(f"Expected at least 1 patient, got num_patients={num_patients}.")
    pandas = require("pandas")
    random = np.random.default_rng(seed)
    admission = np.sort(random.uniform(0, 365, num_patients)).round(4)  # days, about to the minute
    course = _simulate(24 * (admission % 1), random)
    tables: list[Any] = []
    truths: list[Any] = []
    for number in range(num_patients):
        hours, measured = _timetable(course, number, random)
        readings = _read(course, number, hours, random)  # (N, P)
        places = {
            "patient": np.full(len(hours), number + 1),
            "time": pandas.Timestamp("2024-01-01")
            + pandas.to_timedelta(np.round(60 * (24 * admission[number] + hours)), unit="min"),
        }
        for frames, values in ((tables, np.where(measured, readings, np.nan)), (truths, readings)):
            frames.append(pandas.DataFrame(places | dict(zip(OUTPUTS, values.T, strict=True))))
    return PatientTable(*(pandas.concat(parts, ignore_index=True) for parts in (tables, truths)))


def _simulate(admitted: np.ndarray, random: np.random.Generator) -> _Course:
    """
    Euler's steps of all patients at once.

    :param admitted: The time of day at which each came (`T`).
    """
    T, S = len(admitted), round(LONGEST / STEP) + 1
    own = {name: random.standard_normal(T) for name in OUTPUTS}
    infection = random.exponential(1.2, T)
    healing = 30 * np.exp(0.4 * random.standard_normal(T))  # hours
    weak_lungs, weak_kidneys = np.exp(0.4 * random.standard_normal((2, T)))
    sensitivity = np.exp(0.4 * random.standard_normal(T))  # to insulin
    bleeding = np.where(random.random(T) < 0.15, random.exponential(0.04, T), 0.0)
    stops = random.uniform(4, 48, T)
    state = {name: np.zeros(T) for name in STATES}
    # they have been ill for a while when they come
    state["inflammation"] = infection * random.uniform(0.3, 1.2, T)
    state["late"] = state["inflammation"] * random.uniform(0.1, 1.0, T)
    state["volume"] = -0.4 * random.exponential(1, T)
    last_fluids, last_drug, last_insulin = np.full((3, T), -np.inf)
    path = {name: np.empty((S, T)) for name in STATES}
    for step in range(S):
        hour = STEP * step
        of_day = (admitted + hour) % 24  # (T,)
        for name in STATES:
            path[name][step] = state[name]
        now = dict(state)
        a, volume = now["inflammation"], now["volume"]
        relapse = random.random(T) < STEP / 90
        infection = infection * np.exp(-STEP / healing) + relapse * random.exponential(1.2, T)
        pressure_falls = 14 * volume - 9 * a < -16
        fluids = pressure_falls & (hour - last_fluids > 3)
        fever = 1.7 * np.tanh(a) - 0.8 * now["drug"] > 0.9
        drug = fever & (hour - last_drug > 6) & (random.random(T) < 0.3)
        insulin = (now["sugar"] > 3.5) & (hour - last_insulin > 4)
        last_fluids, last_drug, last_insulin = (
            np.where(given, hour, last)
            for given, last in ((fluids, last_fluids), (drug, last_drug), (insulin, last_insulin))
        )
        meal = sum(((of_day >= at) & (of_day < at + 1)).astype(float) for at in MEALS) / (1 + a)
        rates = {
            "inflammation": (infection - a) / 8,
            "late": (a - now["late"]) / 24,
            "volume": -volume / 20 - 0.05 * a - bleeding * (hour < stops),
            "kidney": (weak_kidneys * np.clip(0.5 * a - volume - 0.3, 0, None) - now["kidney"]) / 30,
            "sugar": 2.6 * meal + 0.5 * a - now["sugar"] * sensitivity / 3,
            "shock": (np.clip(0.6 * a - volume - 0.3, 0, None) - now["shock"]) / 5,
            "lungs": (weak_lungs * 0.8 * a - now["lungs"]) / 10,
            "drug": -now["drug"] / 3,
            "heart": -now["heart"] / 1.5,
        }
        for name, rate in rates.items():
            state[name] = now[name] + STEP * rate
        state["volume"] = state["volume"] + 0.7 * fluids
        state["drug"] = state["drug"] + drug
        state["sugar"] = state["sugar"] - 2.5 * insulin
        state["heart"] = state["heart"] + np.sqrt(2 * STEP / 1.5) * random.standard_normal(T)
    return _Course(path, admitted, own)


def _timetable(course: _Course, number: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The hours since admission of a patient's rows (`N`), and what is measured at each (`N x P`, boolean)."""
    absent = np.array([random.random() < NEVER.get(name, 0.02) for name in OUTPUTS])
    absent[0] &= not absent.all()
    stay = np.clip(MEDIAN * np.exp(0.9 * random.standard_normal()), SHORTEST, LONGEST)
    states = course.states
    illness = np.clip(0.6 * states["inflammation"][:, number] + 0.6 * states["shock"][:, number], 0, 1)  # (S,)
    measured: dict[float, np.ndarray] = {}

    def visit(hour: float, chosen: np.ndarray) -> None:
        hour, chosen = round(60 * hour) / 60, chosen & ~absent  # to the minute
        if chosen.any():
            measured[hour] = measured.get(hour, np.zeros(len(OUTPUTS), dtype=bool)) | chosen

    hour, probabilities = random.uniform(0, 0.5), np.array(OF_ROUND + [0.0] * len(LABORATORY))
    while hour < LONGEST and (hour < stay or len(measured) < FEWEST_ROWS):
        visit(hour, random.random(len(OUTPUTS)) < probabilities)
        share = illness[int(hour / STEP)]
        hour += random.gamma(3, (CALM_ROUNDS + share * (BUSY_ROUNDS - CALM_ROUNDS)) / 3)
    for names, calm, busy in PANELS.values():
        hour, chosen = random.uniform(0, 0.5 * calm), np.isin(OUTPUTS, names)
        while hour < min(stay, LONGEST):
            visit(hour, chosen)
            share = illness[int(hour / STEP)]
            hour += (calm + share * (busy - calm)) * random.uniform(0.6, 1.4)
    hours = np.array(sorted(measured))[:MOST_ROWS]
    return hours, np.stack([measured[hour] for hour in hours])


def _read(course: _Course, number: int, hours: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """What all instruments show at some times (`N x P`)."""
    steps = STEP * np.arange(len(course.states["late"]))
    at = {name: np.interp(hours, steps, course.states[name][:, number]) for name in STATES}
    b = {name: course.own[name][number] for name in OUTPUTS}
    N = len(hours)
    clock = (course.admitted[number] + hours) % 24
    day = np.cos(2 * np.pi * (clock - 17) / 24)
    a, volume = at["inflammation"], at["volume"]
    fever = 1.7 * np.tanh(a) - 0.8 * at["drug"] * np.tanh(a)

    def noise(size: float) -> np.ndarray:
        return size * random.standard_normal(N)

    def wrong(share: float) -> np.ndarray:
        return random.random(N) < share

    temperature = 36.7 + 0.2 * b["temperature"] + 0.3 * day + fever
    heart_rate = 74 + 8 * b["heart_rate"] + 4 * day + 9 * fever + 14 * np.clip(-volume, 0, None) + 5 * at["heart"]
    pressure = 88 + 7 * b["pressure"] + 3 * day - 9 * a + 14 * volume + 3.5 * at["heart"]
    respiration = 15 + 1.5 * b["respiration"] + 2 * fever + 5 * np.tanh(at["lungs"]) + 2 * np.tanh(at["shock"])
    saturation = 100 - 2 * np.exp(0.3 * b["saturation"] + 0.9 * np.tanh(at["lungs"]) + noise(0.2))
    potassium = 4.1 + 0.25 * b["potassium"] + 0.6 * np.tanh(at["kidney"]) + noise(0.12)
    beats = np.exp(-0.2 + 0.6 * b["extrasystoles"] + 2 * np.abs(potassium - 4.2) + 0.8 * np.tanh(at["shock"]))
    at_night = (clock > 21) | (clock < 5)
    odds = -2.8 + b["confusion"] + 1.5 * fever + np.tanh(at["lungs"]) + 0.8 * at_night
    readings = {
        # of two beats one is missed
        "heart_rate": ((heart_rate + noise(2)) * np.where(wrong(0.01), 0.5, 1.0)).round(),
        "pressure": (pressure + noise(3) + 25 * wrong(0.02)).clip(30).round(),
        "respiration": (respiration + noise(1)).clip(6).round(),
        "saturation": (saturation - 12 * wrong(0.02)).clip(60, 100).round(),
        "temperature": (temperature + noise(0.1) - 0.8 * wrong(0.02)).round(1),
        "extrasystoles": random.poisson(beats.clip(0, 40)).astype(float),
        "confusion": (random.random(N) < 1 / (1 + np.exp(-odds))).astype(float),
        "glucose": ((5.4 + at["sugar"]).clip(2) * np.exp(0.1 * b["glucose"] + noise(0.05))).round(1),
        "lactate": (0.9 * (1 + 1.5 * at["shock"]) * np.exp(0.2 * b["lactate"] + noise(0.1))).clip(0.2).round(1),
        "potassium": (potassium + 1.2 * wrong(0.02)).round(1),
        "creatinine": (75 * (1 + 0.9 * at["kidney"]) * np.exp(0.25 * b["creatinine"] + noise(0.04))).round(),
        "crp": ((3 + 90 * at["late"]) * np.exp(0.3 * b["crp"] + noise(0.06))).clip(1).round(),
        "white_cells": (7 * np.exp(0.25 * b["white_cells"] + 0.6 * np.tanh(a) + noise(0.06))).round(1),
    }
    return np.stack([readings[name] for name in OUTPUTS], axis=-1)
