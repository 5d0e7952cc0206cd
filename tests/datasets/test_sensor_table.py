from __future__ import annotations

import numpy as np
import pytest

from gpytorch_sgpvae.datasets import sensor_table
from gpytorch_sgpvae.datasets.sensor_table import LONGEST, OUTPUTS


def test_the_same_seed_makes_the_same_table_and_another_one_another():
    first, again, other = (sensor_table(8, seed=seed) for seed in (5, 5, 6))
    assert first.table.equals(again.table)
    assert first.truth.equals(again.truth)
    assert not first.truth[OUTPUTS].equals(other.truth[OUTPUTS])


def test_what_is_there_is_the_truth_and_the_time_has_no_holes():
    table, truth = sensor_table(20)
    known = table[OUTPUTS].notna()
    assert table[OUTPUTS].where(known, truth[OUTPUTS]).equals(truth[OUTPUTS])
    assert table["time"].equals(truth["time"])
    assert table["time"].is_unique
    assert not truth.isna().any(axis=None)


@pytest.mark.parametrize("missing", [0.0, 0.1, 0.25, 0.6])
def test_about_as_much_is_gone_as_was_asked_for(missing):
    gone = sensor_table(90, missing).table[OUTPUTS].isna().to_numpy()
    # the last outage of each sensor, and that of all, may be one too much
    assert missing <= gone.mean() <= missing + (2 * LONGEST / len(gone) if missing else 0)


def test_sensors_are_silent_for_hours_and_the_station_now_and_then():
    gone = sensor_table(90).table[OUTPUTS].isna().to_numpy()
    runs = np.lib.stride_tricks.sliding_window_view(gone, 12, axis=0).all(-1)
    assert runs.any(0).all()
    assert runs.all(1).any()


def test_concentrations_are_positive_and_humidity_is_a_share():
    truth = sensor_table(200).truth
    assert (truth[["wind", "no2", "ozone"]] > 0).all(axis=None)
    assert truth["humidity"].between(5, 100).all()
    assert truth["temperature"].corr(truth["humidity"]) < -0.5


def test_a_table_cannot_be_all_holes():
    with pytest.raises(ValueError, match=r"from 0 to 0\.6, got 1"):
        sensor_table(missing=1)
