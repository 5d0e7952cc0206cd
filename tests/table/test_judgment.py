"""What a fit finds out about itself, and about the tables that it is asked to fill."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table import SGPVAEImputer, TableWarning
from gpytorch_sgpvae.table.judgment import distant_points, evidence_of, unlike_the_fit


def make_month(seed, level=0.0):
    """Hours at a mast, with holes."""
    random = np.random.default_rng(seed)
    hour = np.arange(200.0)
    wave = np.sin(hour / 9 + seed) + 0.1 * random.normal(size=200)
    table = pd.DataFrame({"hour": hour, "warm": level + 5 * wave, "wind": 3 - wave + 0.2 * random.normal(size=200)})
    return table.mask(random.random(table.shape) < [0.0, 0.1, 0.1])


@pytest.fixture(scope="module")
def winter():
    return SGPVAEImputer(["hour"], ["warm", "wind"], max_epochs=8, compare=False, progress=False).fit(make_month(0))


def test_a_model_of_the_winter_warns_in_july(winter):
    with pytest.warns(TableWarning, match=r"explained much worse .* by \d+\.\d nats each: .* Fit a table that has"):
        filled = winter.transform(make_month(1, level=25.0))
    assert filled.notna().all(axis=None)


def test_a_model_of_the_winter_warns_of_wilder_weather(winter):
    july = make_month(1)
    with pytest.warns(TableWarning, match="explained much worse"):
        winter.transform(july.assign(warm=july["warm"] + 10 * np.random.default_rng(0).normal(size=200)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_another_table_of_the_same_kind_is_filled_without_a_word(winter, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        winter.transform(make_month(seed))


def test_a_table_with_nothing_known_is_not_judged(winter):
    table = winter.fitted_.reader.read(make_month(0).assign(warm=np.nan, wind=np.nan))
    assert evidence_of(winter.fitted_, table, 0) is None
    assert unlike_the_fit(winter.fitted_, table, 0) is None


def test_a_seed_judges_the_same_windows(winter):
    table = winter.fitted_.reader.read(make_month(1))
    assert evidence_of(winter.fitted_, table, 0) == evidence_of(winter.fitted_, table, 0)


class TestDistantPoints:
    def fit(self, num_inducing, speed):
        # smooth, and without a cycle that would be taken off first
        window = np.hanning(round(6 / speed) + 2)
        noise = np.random.default_rng(0).normal(size=(2, 149 + len(window)))
        y, z = (np.convolve(values, window / np.linalg.norm(window), "valid") for values in noise)
        table = pd.DataFrame({"time": np.arange(150.0), "y": y, "z": z + y})
        table.loc[::7, "y"] = np.nan
        imputer = SGPVAEImputer(
            ["time"], ["y", "z"], num_inducing=num_inducing, max_epochs=1, compare=False, progress=False
        )
        return imputer.fit(table)

    def test_points_that_cannot_follow_their_functions_are_warned_of(self):
        with pytest.warns(TableWarning, match=r"The 5 inducing points are \d+\.\d lengthscales apart.*num_inducing"):
            self.fit(5, speed=1.0)

    def test_points_that_are_close_enough_are_not(self):
        fitted = self.fit(40, speed=0.1).fitted_
        table = fitted.reader.read(pd.DataFrame({"time": [0.0, 1.0], "y": [0.0, 1.0], "z": [0.0, 1.0]}))
        assert distant_points(fitted, table) is None
        assert distant_points(fitted.with_(plan=replace(fitted.plan, kind="dense")), table) is None
