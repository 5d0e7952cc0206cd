"""The experiment with patients: what is hidden of whom, and what the models are given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Normal

pytest.importorskip("lightning", reason="the experiments train with the extra train")
pytest.importorskip("sklearn", reason="boosted trees and the imputer need the extra table")

from experiments.patients import (
    COUNT,
    FILLINGS,
    FLAG,
    OUTPUTS,
    POSITIVE,
    Units,
    harmonics,
    make_ward,
    shifted,
    tasks_of,
    with_errors,
)
from gpytorch_sgpvae import Prediction
from gpytorch_sgpvae.datasets import patients
from gpytorch_sgpvae.likelihoods.observation_models.distributions import ColumnwiseDistribution, LogNormal

TRAIN, TEST = 20, 10


@pytest.fixture(scope="module")
def ward():
    return make_ward(TRAIN, TEST, seed=3)


def test_a_quarter_of_the_entries_of_test_patients_is_hidden_and_nothing_of_the_others(ward):
    whole = patients(TRAIN + TEST, seed=3).table.set_index(["patient", "time"])
    shown = ward.table.set_index(["patient", "time"]).loc[whole.index]
    assert ward.train["patient"].nunique() == TRAIN
    assert ward.test["patient"].nunique() == TEST
    assert not set(ward.train["patient"]) & set(ward.test["patient"])
    gone = (whole.notna() & shown.isna()).to_numpy()
    of_test = whole.index.get_level_values("patient").isin(ward.test["patient"])
    assert not gone[~of_test].any()
    assert 0.2 < gone[of_test].sum() / whole.notna().to_numpy()[of_test].sum() < 0.3
    assert (~np.isnan(ward.truth)).sum() == gone.sum()
    assert np.isnan(ward.table[OUTPUTS].to_numpy()[~np.isnan(ward.truth)]).all()


def test_spare_entries_are_of_training_patients_and_shown_to_those_who_do_not_need_them(ward):
    known = ~np.isnan(ward.spare)
    assert known.any()
    assert not known[ward.is_test].any()
    assert np.array_equal(ward.table[OUTPUTS].to_numpy()[known], ward.spare[known])


def test_each_patient_is_a_task_in_hours_since_midnight(ward):
    tasks = tasks_of(ward.test)
    assert [len(x) for x, _ in tasks] == [len(rows) for rows in ward.asked_by_patient]
    for (x, y), (_, rows) in zip(tasks, ward.test.groupby("patient", sort=False), strict=True):
        assert (x[1:] > x[:-1]).all()
        assert 0 <= x[0] < 24
        hours = rows["time"].dt.hour + rows["time"].dt.minute / 60
        assert (x.squeeze(-1) % 24).numpy() == pytest.approx(hours.to_numpy())
        assert np.array_equal(y.numpy(), rows[OUTPUTS].to_numpy(), equal_nan=True)
    assert np.array_equal(np.concatenate(ward.asked_by_patient), ward.is_asked[ward.is_test])


def test_units_take_the_hour_of_the_day_off_and_put_it_back(ward):
    units = Units.fit(ward.train)
    x, y = (torch.cat(parts) for parts in zip(*tasks_of(ward.train), strict=True))
    z = units.normalize(x, y)
    is_positive = torch.tensor([name in POSITIVE for name in OUTPUTS])
    for name in (COUNT, FLAG):
        p = OUTPUTS.index(name)
        torch.testing.assert_close(z[:, p], y[:, p], equal_nan=True, atol=1e-8, rtol=0.0)
    # what is left has no daily cycle, and least squares finds none
    glucose = OUTPUTS.index("glucose")
    known = ~z[:, glucose].isnan()
    design = torch.cat([torch.ones_like(x), harmonics(x)], -1)[known]
    left = torch.linalg.lstsq(design, z[known, glucose].log().unsqueeze(-1)).solution[1:]
    assert left.abs().max() < 1e-8

    def certain(values):
        return ColumnwiseDistribution(
            [
                (LogNormal if positive else Normal)(
                    column.log() if positive else column, torch.full_like(column, 1e-6), validate_args=False
                )
                for column, positive in zip(values.split(1, -1), is_positive, strict=True)
            ]
        )

    filled = torch.where(z.isnan(), 1.0, z)
    prediction = Prediction(certain, filled, torch.zeros_like(filled), num_samples=1)
    back = units.denormalize(x, prediction).mean
    torch.testing.assert_close(back[~z.isnan()], y[~z.isnan()], atol=1e-3, rtol=1e-4)


def test_only_numbers_are_moved_by_the_hour_of_the_day():
    columns = torch.zeros(4, 1)
    values = ColumnwiseDistribution(
        [Normal(columns, 1.0), torch.distributions.Poisson(columns + 2), LogNormal(columns, columns + 0.5)]
    )
    moved = shifted(values, torch.tensor([[1.0, 5.0, 2.0]]))
    assert moved.mean[0].tolist() == pytest.approx([1.0, 2.0, float(np.exp(2 + 0.125))])


def test_a_filling_has_the_errors_of_entries_that_it_was_not_shown(ward):
    shown = []

    def fill(table, wanted):
        shown.append(table[OUTPUTS].to_numpy()[~np.isnan(ward.spare)])
        return FILLINGS["mean"](table, wanted, 0)

    prediction = with_errors(ward, fill)
    assert np.isnan(shown[0]).all()
    assert prediction.mean.shape == (ward.is_asked.sum(), len(OUTPUTS))
    pulse = OUTPUTS.index("heart_rate")
    errors = prediction.mean[0, pulse].item() - ward.spare[:, pulse]
    assert prediction.stddev[0, pulse].item() == pytest.approx(np.sqrt(np.nanmean(errors**2)))
