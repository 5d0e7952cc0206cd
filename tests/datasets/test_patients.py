from __future__ import annotations

import numpy as np
import pytest

from gpytorch_sgpvae.datasets import patients
from gpytorch_sgpvae.datasets.patients import FEWEST_ROWS, LONGEST, MOST_ROWS, OUTPUTS


@pytest.fixture(scope="module")
def ward():
    return patients(300, seed=1)


def test_the_same_seed_makes_the_same_patients_and_another_one_others():
    first, again, other = (patients(3, seed=seed) for seed in (5, 5, 6))
    assert first.table.equals(again.table)
    assert first.truth.equals(again.truth)
    assert not first.truth.equals(other.truth)


def test_what_is_there_is_the_truth_and_every_row_has_something(ward):
    table, truth = ward
    known = table[OUTPUTS].notna()
    assert table[OUTPUTS].where(known, truth[OUTPUTS]).equals(truth[OUTPUTS])
    assert table[["patient", "time"]].equals(truth[["patient", "time"]])
    assert known.any(axis=1).all()
    assert not truth.isna().any(axis=None)


def test_about_four_of_five_entries_are_missing_and_some_outputs_altogether(ward):
    known = ward.table[OUTPUTS].notna()
    assert 0.78 < 1 - known.mean(axis=None) < 0.84
    never = ~known.groupby(ward.table["patient"]).any()
    assert (never.mean() > 0).all()
    assert 0.3 < never["extrasystoles"].mean() < 0.5
    assert not never.all(axis=1).any()


def test_stays_are_irregular_and_of_unequal_length(ward):
    stays = ward.table.groupby("patient")
    assert stays.size().min() >= FEWEST_ROWS
    assert stays.size().max() <= MOST_ROWS
    assert stays.size().quantile(0.9) > 4 * stays.size().quantile(0.1)
    steps = stays["time"].diff().dropna().dt.total_seconds() / 3600
    assert (steps > 0).all()
    assert steps.quantile(0.9) > 5 * steps.quantile(0.1)
    length = stays["time"].agg(lambda times: times.max() - times.min()).dt.total_seconds() / 3600
    assert length.max() <= LONGEST
    assert ward.table["time"].dt.minute.nunique() == 60


def test_the_outputs_are_what_their_instruments_can_show(ward):
    truth = ward.truth
    assert (truth[["glucose", "lactate", "creatinine", "crp", "white_cells", "potassium"]] > 0).all(axis=None)
    assert set(truth["confusion"]) == {0.0, 1.0}
    assert (truth["extrasystoles"] == truth["extrasystoles"].round()).all()
    assert truth["extrasystoles"].min() == 0
    assert truth["saturation"].between(60, 100).all()
    # readings are rounded
    assert np.allclose(truth["temperature"], truth["temperature"].round(1))
    assert truth["crp"].skew() > 1.5


def test_outputs_tell_of_each_other_and_of_the_hour(ward):
    truth = ward.truth
    assert truth["temperature"].corr(truth["white_cells"]) > 0.25
    assert truth["lactate"].corr(truth["pressure"]) < -0.2
    by_hour = truth.groupby(truth["time"].dt.hour)[["temperature", "glucose"]].mean()
    assert by_hour["temperature"].idxmax() in range(13, 22)
    assert by_hour["glucose"].loc[[9, 14, 20]].min() > by_hour["glucose"].loc[[3, 4, 5]].max()


def test_some_readings_are_plainly_wrong(ward):
    pulse = ward.truth.groupby("patient")["heart_rate"]
    missed = ward.truth["heart_rate"] < 0.65 * pulse.transform("median")
    assert 0.003 < missed.mean() < 0.02


def test_there_is_a_patient():
    with pytest.raises(ValueError, match="at least 1 patient, got num_patients=0"):
        patients(0)
