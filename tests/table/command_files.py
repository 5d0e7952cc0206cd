"""Tiny models and tables for tests of the command."""

from __future__ import annotations

import functools
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from gpytorch_sgpvae.table import SGPVAEImputer, TableWarning
from gpytorch_sgpvae.table.cli import main


def run(*arguments):
    """The command's exit code."""
    return main([str(argument) for argument in arguments])


def make_series(num_sites=2, num_days=10, seed=0):
    """Sites with a wave each: the temperature, of which a fifth is missing."""
    random = np.random.default_rng(seed)
    parts = []
    for site in range(num_sites):
        day = np.arange(num_days)
        temp = 20 + 5 * np.sin(day / 3 + site) + random.normal(size=num_days)
        parts.append(pd.DataFrame({"site": f"s{site}", "day": day, "temp": temp.round(2)}))
    table = pd.concat(parts, ignore_index=True)
    table["temp"] = table["temp"].mask(random.random(len(table)) < 0.2)
    return table


def make_labelled(seed=0):
    """The same with counts, flags and labels, one of which is the word None."""
    table = make_series(seed=seed)
    random = np.random.default_rng(seed + 1)
    table["cars"] = random.poisson(3, len(table)).astype(float)
    table["wet"] = pd.Series(random.random(len(table)) < 0.5, dtype=object)
    table["garage"] = random.choice(["None", "brick", "wood"], len(table))
    names = ["cars", "wet", "garage"]
    table[names] = table[names].mask(random.random((len(table), 3)) < 0.2)
    return table


def _fit(table, inputs, outputs, task, **options):
    options = {"max_epochs": 1, "compare": False, "progress": False, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # of intervals that nobody could calibrate
        return SGPVAEImputer(inputs, outputs, task, **options).fit(table)


@functools.cache
def tiny_imputer():
    return _fit(make_series(), ["day"], ["temp"], "site")


@functools.cache
def labelled_imputer():
    return _fit(make_labelled(), ["day"], ["temp", "cars", "wet", "garage"], "site")


@functools.cache
def dated_imputer(covariates=(), periodic=()):
    table = make_series().rename(columns={"day": "date"})
    table["date"] = pd.Timestamp("2024-03-01") + pd.to_timedelta(table["date"], "D")
    table["hour"], table["sun"] = np.arange(len(table)) % 7, np.arange(float(len(table)))
    inputs = ["date", *(name for name, _ in periodic)]
    return _fit(table, inputs, ["temp"], "site", covariates=covariates, periodic=dict(periodic) or None)


@functools.cache
def folder_of(make):
    """The folder of a saved model, made once."""
    folder = Path(tempfile.mkdtemp()) / "model"
    make().save(folder)
    return folder
