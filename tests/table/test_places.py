"""Places that are special in every task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table import SGPVAEImputer, TableWarning
from gpytorch_sgpvae.table.places import PlaceEffects
from gpytorch_sgpvae.table.plan import make_plan
from gpytorch_sgpvae.table.reading import TableReader
from gpytorch_sgpvae.table.trend import Trend

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
    found = PlaceEffects.fit(x, y, task, [True], [0], seed=0)
    assert found.inputs == [0]
    effects, spread = found.at(x)
    position = x[np.argsort(place, kind="stable")[:: NUM_TASKS * NUM_DAYS], 0]
    truth = 3 * position[place] + own[place]
    assert np.std(effects[:, 0] - effects.mean() - truth + truth.mean()) < 0.1
    assert not spread.any()
    assert found.spread[0] == pytest.approx(0.5, rel=0.3)


def test_a_new_place_has_what_is_smooth_and_all_of_its_uncertainty(stations):
    x, y, task, *_ = stations
    found = PlaceEffects.fit(x, y, task, [True], [0], seed=0)
    effects, spread = found.at(np.array([[0.123, 1.0], [1.123, 1.0]]))
    assert np.diff(effects[:, 0]) == pytest.approx(3, abs=1)
    assert (spread == found.spread).all()


def test_tables_without_places_that_come_again_have_none(stations):
    x, y, task, place, _ = stations
    assert not len(PlaceEffects.fit(x[:, 1:], y, task, [True], [], seed=0).places)  # one input
    assert not len(PlaceEffects.fit(x, y, place, [True], [0], seed=0).places)  # every place in a task of its own
    assert not len(PlaceEffects.fit(x, y, task, [False], [0], seed=0).places)  # flags have no units
    random = np.random.default_rng(0)
    assert not len(PlaceEffects.fit(random.random(x.shape), y, task, [True], [0], seed=0).places)


def test_few_places_and_labels_have_constants_and_nothing_smooth(stations):
    x, y, task, place, _ = stations
    few = place < 4
    for rows, distances in ((few, True), (place >= 0, False)):
        found = PlaceEffects.fit(x[rows], y[rows], task[rows], [True], [0], seed=0, are_distances=distances)
        assert len(found.places) == len(np.unique(place[rows]))
        assert not found.weights.any()
        assert found.spread[0] == pytest.approx(found.effects.std())


def test_what_is_not_known_of_a_new_place_is_not_scaled_by_what_held_out_entries_at_known_places_say(stations):
    x, y, task, *_ = stations
    table = pd.DataFrame({"position": x[:, 0], "day": x[:, 1], "y": y[:, 0], "week": task})
    with pytest.warns(TableWarning, match="could not be calibrated"):  # after one round: it is far too unsure
        imputer = SGPVAEImputer(["position", "day"], ["y"], "week", max_epochs=1, compare=False, progress=False).fit(
            table
        )
    fitted = imputer.fitted_
    assert (fitted.calibration.factors < 0).all()
    spread = fitted.trend.places.spread[0] * imputer.outputs_.columns[0].scale
    assert spread > 0.2
    new = table.head(1).assign(position=0.1234)
    with_spread = imputer.predict(new, context=table)["y_std"].item()
    known = replace(fitted.trend.places, spread=np.zeros(1))
    imputer._table = fitted.with_(trend=replace(fitted.trend, places=known))
    without = imputer.predict(new, context=table)["y_std"].item()
    assert with_spread == pytest.approx(np.hypot(without, spread))


def test_the_constants_of_stations_are_found_in_weeks_of_a_few_days(stations):
    x, y, task, *_ = stations
    table = pd.DataFrame({"position": x[:, 0], "day": x[:, 1], "y": y[:, 0], "week": task})
    reader = TableReader.fit(table, ["position", "day"], ["y"], "week", {}, {}, ())
    rows = reader.read(table)
    trend = Trend.fit(reader.inputs, reader.outputs, make_plan(reader.inputs, rows, 1), rows, 0)
    assert trend.places.inputs == [0]
    assert len(trend.places.places) == NUM_PLACES


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


def test_a_constant_that_no_entry_tells_follows_from_the_other_outputs_of_its_place(stations):
    x, y, task, place, _ = stations
    random = np.random.default_rng(1)
    both = np.concatenate([y, 2 * y + random.normal(0, 0.1, y.shape)], 1)
    gone = place < 3
    both[gone, 1] = np.nan
    found = PlaceEffects.fit(x, both, task, [True, True], [0], seed=0)
    effects, deviation = found.at(x)
    assert not deviation[~gone].any()
    assert not deviation[:, 0].any()
    error = effects[gone, 1] - 2 * effects[gone, 0]
    assert (abs(error - error.mean()) < 3 * deviation[gone, 1]).all()
    assert (deviation[gone, 1] > 0).all()
    assert (deviation[gone, 1] < 0.5 * found.spread[1]).all()  # what is smooth alone is less sure


def test_a_constant_that_nothing_tells_has_all_of_its_uncertainty(stations):
    x, y, task, place, _ = stations
    y[place == 5] = np.nan
    found = PlaceEffects.fit(x, y, task, [True], [0], seed=0)
    effects, deviation = found.at(x)
    assert (deviation[place == 5] == found.spread).all()
    near = found.at(x[place == 5][:1] + 1e-3)[0]
    assert effects[place == 5][0] == pytest.approx(near[0], abs=0.1)


@pytest.mark.parametrize("kind", ["slow changes", "constants"])
def test_slow_changes_of_a_short_record_are_not_taken_for_constants(kind):
    random = np.random.default_rng(0)
    lat, lon, day = (axis.ravel() for axis in np.meshgrid(np.arange(6.0), np.arange(6.0), np.arange(10.0)))
    waves = [random.normal(size=3) @ [lat / 4, lon / 4, day / 5] + random.uniform(0, 6) for _ in range(60)]
    values = np.cos(waves).sum(0) / 5
    if kind == "constants":
        values = np.repeat(3 * random.normal(size=36), 10) + np.sin(day)  # days run fastest
    y = pd.Series(values + 0.05 * random.normal(size=360)).mask(random.random(360) < 0.4)
    table = pd.DataFrame({"lat": lat, "lon": lon, "day": day, "y": y})
    imputer = SGPVAEImputer(["lat", "lon", "day"], ["y"], max_epochs=1, compare=False, progress=False).fit(table)
    assert imputer.fitted_.plan.has_places
    assert len(imputer.fitted_.trend.places.places) == (36 if kind == "constants" else 0)
