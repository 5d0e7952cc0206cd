"""Places that are special in every task."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table import SGPVAEImputer
from gpytorch_sgpvae.table.places import PlaceEffects

NUM_PLACES, NUM_TASKS, NUM_DAYS = 30, 8, 4


@pytest.fixture
def stations():
    """Stations in all tasks: a slope in space, a level of each task, and a constant of each station."""
    random = np.random.default_rng(0)
    place, task, day = (
        index.ravel() for index in np.meshgrid(*map(np.arange, (NUM_PLACES, NUM_TASKS, NUM_DAYS)), indexing="ij")
    )
    position, own = random.uniform(-2, 2, NUM_PLACES), random.normal(0, 0.5, NUM_PLACES)
    y = 3 * position[place] + random.normal(0, 2, NUM_TASKS)[task] + own[place] + random.normal(0, 0.1, len(place))
    y[random.random(len(y)) < 0.3] = np.nan
    return np.stack([position[place], day], 1).astype(float), y[:, None], task, place, own


def test_what_is_special_about_a_place_is_found_beside_slopes_and_tasks(stations):
    x, y, task, place, own = stations
    found = PlaceEffects.fit(x, y, task, [True], seed=0)
    assert found.inputs == [0]
    effects, spread = found.at(x)
    # what is smooth by chance is left to the model
    assert np.corrcoef(effects[:, 0], own[place])[0, 1] > 0.75
    assert not spread.any()
    assert found.spread[0] == pytest.approx(0.5, rel=0.3)


def test_a_new_place_has_no_effect_and_all_of_its_uncertainty(stations):
    x, y, task, *_ = stations
    found = PlaceEffects.fit(x, y, task, [True], seed=0)
    effects, spread = found.at(np.array([[0.123, 1.0]]))
    assert not effects.any()
    assert spread[0] == found.spread


def test_tables_without_places_that_come_again_have_none(stations):
    x, y, task, place, _ = stations
    assert not len(PlaceEffects.fit(x[:, 1:], y, task, [True], seed=0).places)  # one input
    assert not len(PlaceEffects.fit(x, y, place, [True], seed=0).places)  # every place in a task of its own
    assert not len(PlaceEffects.fit(x, y, task, [False], seed=0).places)  # flags have no units
    random = np.random.default_rng(0)
    assert not len(PlaceEffects.fit(random.random(x.shape), y, task, [True], seed=0).places)


@pytest.mark.filterwarnings("ignore:The intervals of y could not be calibrated")  # after two rounds
def test_an_imputer_knows_them_and_is_less_certain_of_new_places(stations, tmp_path):
    x, y, task, *_ = stations
    table = pd.DataFrame({"position": x[:, 0], "day": x[:, 1], "y": y[:, 0], "week": task})
    imputer = SGPVAEImputer(["position", "day"], ["y"], "week", max_epochs=2, compare=False, progress=False).fit(table)
    imputer.save(tmp_path / "model")
    known = table[["position", "day", "week"]].head(1)
    for model in (imputer, SGPVAEImputer.load(tmp_path / "model")):
        near = known.assign(position=known["position"] + 1e-3)
        new = model.predict(near, context=table)["y_std"].item()
        assert new > model.predict(known, context=table)["y_std"].item() + 0.05
    draws = np.stack([draw["y"] for draw in imputer.sample(table, 20)])
    assert np.isfinite(draws).all()
