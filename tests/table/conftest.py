from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table import SGPVAEImputer

OUTPUTS = ["temp", "rain", "cars", "wet", "sky"]
FAMILIES = {"temp": "real", "rain": "amount", "cars": "count", "wet": "flag", "sky": "category"}


def make_table(num_tasks=8, num_points=20, seed=0):
    """Sites with a wave each, and outputs of five kinds, a quarter of them gone."""
    random = np.random.default_rng(seed)
    parts = []
    for task in range(num_tasks):
        day = np.arange(num_points)
        wave = np.sin(day / 3 + random.uniform(0, 6)) + 0.1 * random.normal(size=num_points)
        parts.append(
            pd.DataFrame(
                {
                    "site": f"site {task}",
                    "day": day,
                    "temp": 20 + 5 * wave,
                    "rain": 10 * np.maximum(-wave, 0) ** 2,
                    "cars": random.poisson(np.exp(2 + wave)).astype(float),
                    "wet": pd.Series(wave < 0, dtype=object),
                    "sky": np.where(wave > 0.5, "clear", np.where(wave < -0.5, "dark", "gray")),
                    "note": "as measured",
                }
            )
        )
    table = pd.concat(parts, ignore_index=True)
    table[OUTPUTS] = table[OUTPUTS].mask(random.random((len(table), len(OUTPUTS))) < 0.25)
    return table


def make_imputer(**kwargs):
    return SGPVAEImputer(["day"], OUTPUTS, "site", **{"max_epochs": 10, "compare": False, "progress": False, **kwargs})


@pytest.fixture(scope="session")
def table():
    return make_table()


@pytest.fixture(scope="session")
def imputer(table):
    return make_imputer().fit(table)


@pytest.fixture
def numbers():
    """A small table of one number at twelve places, for what goes wrong before any training."""
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {"week": np.repeat([1, 2, 3], 4), "day": np.tile(np.arange(4.0), 3), "y": random.normal(size=12)}
    )
