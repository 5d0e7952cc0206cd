from __future__ import annotations

import numpy as np
import pytest

from gpytorch_sgpvae.datasets import weather_table
from gpytorch_sgpvae.datasets.weather_table import OUTPUTS


def test_the_same_seed_makes_the_same_table_and_another_one_another():
    first, again, other = (weather_table(8, 3, seed=seed) for seed in (5, 5, 6))
    assert first.table.equals(again.table)
    assert first.truth.equals(again.truth)
    assert not first.truth[OUTPUTS].equals(other.truth[OUTPUTS])


def test_what_is_there_is_the_truth_and_inputs_have_no_holes():
    table, truth = weather_table(12, 4)
    known = table[OUTPUTS].notna()
    assert table[OUTPUTS].where(known, truth[OUTPUTS]).equals(truth[OUTPUTS])
    assert table.drop(columns=OUTPUTS).equals(truth.drop(columns=OUTPUTS))
    assert not truth.isna().any(axis=None)
    assert not table.duplicated(["week", "station", "day"]).any()


def test_the_outputs_are_of_four_kinds():
    truth = weather_table().truth
    assert (truth["temperature"] < 0).any()
    assert (truth["wind"] > 0).all()
    assert set(truth["fog"]) == {0.0, 1.0}
    assert (truth["lightning"] >= 0).all()
    assert (truth["lightning"] % 1 == 0).all()
    assert truth["lightning"].nunique() > 3


@pytest.mark.parametrize("missing", [0.0, 0.1, 0.3, 0.6])
def test_as_much_is_gone_as_was_asked_for(missing):
    gone = weather_table(80, 40, missing).table[OUTPUTS].isna()
    # An outage takes 12 entries, of 80 x 40 x 28; the standard deviation of their number is below 40.
    assert gone.to_numpy().mean() == pytest.approx(missing, abs=4 * 40 * 12 / gone.size if missing else 0)
    assert (gone.mean() > missing / 2).all() or missing == 0


def test_stations_fail_for_three_days_with_all_they_measure():
    table = weather_table(missing=0.2).table
    silent = table[OUTPUTS].isna().all(axis=1).to_numpy().reshape(-1, 7)
    chance = (0.2**4) * 7  # of a day in a week without an outage
    failed = silent.sum(1) >= 3
    assert failed.mean() > 10 * chance
    runs = np.lib.stride_tricks.sliding_window_view(silent[failed], 3, axis=1).all(-1)
    assert runs.any(1).mean() > 0.99


def test_stations_close_to_each_other_have_similar_weather():
    truth = weather_table(60, 20).truth
    warmth = truth.assign(warmth=truth["temperature"] + 6.5e-3 * truth["elev"] + 0.8 * truth["lat"])
    week = warmth.pivot(index=["week", "day"], columns="station", values="warmth").to_numpy()
    stations = truth.drop_duplicates("station")[["lat", "lon"]].to_numpy()
    distance = np.linalg.norm(stations[:, None] - stations[None], axis=-1)
    correlation = np.corrcoef(week - week.mean(1, keepdims=True), rowvar=False)
    assert correlation[(distance > 0) & (distance < 0.5)].mean() > correlation[distance > 4].mean() + 0.5


def test_a_table_cannot_be_all_holes():
    with pytest.raises(ValueError, match="from 0 to below 1, got 1"):
        weather_table(missing=1)
