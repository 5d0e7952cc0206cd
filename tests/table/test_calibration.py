"""Intervals as wide as held-out entries demand."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gpytorch_sgpvae import GaussianObservations
from gpytorch_sgpvae.likelihoods import Prediction
from gpytorch_sgpvae.table import SGPVAEImputer, TableWarning
from gpytorch_sgpvae.table.calibration import Calibration, gaussian_variance
from gpytorch_sgpvae.table.families import FAMILIES
from gpytorch_sgpvae.table.outputs import Outputs

NOISE = 0.04


def make_model(number):
    observation_model = GaussianObservations(number).double().initialize(noise=NOISE)
    return SimpleNamespace(likelihood=SimpleNamespace(observation_model=observation_model))


def calibrate(factor, num_entries=2000, num_known=20_000, marginal=np.inf, gap_factor=None):
    """Errors that are a factor larger than the model says, and another where it is less sure."""
    random = np.random.default_rng(0)
    outputs, model = Outputs([FAMILIES["real"]("y")]), make_model(1)
    stddev = np.where(np.arange(num_entries) % 2, 0.1, 0.8)[:, None]
    total = np.sqrt(stddev**2 + NOISE)
    factors = np.where(stddev < 0.5, factor, factor if gap_factor is None else gap_factor)
    error = factors * total * random.normal(size=total.shape)
    moments = torch.zeros(num_entries, 1, dtype=torch.float64), torch.tensor(stddev**2)
    spread = torch.zeros_like(moments[0])
    found = Calibration.fit(
        outputs, model, moments, spread, torch.tensor(error), np.array([marginal]), None, 1, np.array([num_known])
    )
    variance = gaussian_variance(outputs, model, moments[1].sqrt(), spread).detach()
    torch.testing.assert_close(variance, torch.tensor(total**2))
    return found, (found.ratios(variance).numpy() * total), total, error


@pytest.mark.parametrize("factor", [0.4, 0.7, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("gap_factor", [0.5, 1.0, 2.0])
def test_intervals_hold_95_percent_of_sure_entries_and_of_those_in_gaps(factor, gap_factor):
    _, stddev, total, error = calibrate(factor, gap_factor=gap_factor)
    for part in (total < total.mean(), total > total.mean()):
        assert (np.abs(error) < 1.96 * stddev)[part].mean() == pytest.approx(0.95, abs=0.01)


def test_no_deviation_grows_beyond_that_of_the_column():
    _, stddev, total, _ = calibrate(3.0, marginal=0.5)
    assert (stddev <= np.maximum(total, 0.5) + 1e-12).all()
    np.testing.assert_allclose(stddev[total > 0.5], total[total > 0.5])  # the model itself says so
    assert (stddev[total < 0.4] > total[total < 0.4]).all()


def test_a_few_entries_do_not_overrule_the_model():
    _, few, *_ = calibrate(3.0, num_entries=20)
    _, many, total, _ = calibrate(3.0)
    assert (few[:20] < 0.8 * many[:20]).all()
    assert (few[:20] > total[:20]).all()


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_outputs_with_factors_beyond_all_limits_are_named(factor):
    found = calibrate(factor)[0]
    assert found.failed == ("y",)
    assert "intervals of y could not be calibrated" in found.warning


def test_too_few_held_out_entries_are_named_if_there_were_enough_to_hold_out(caplog):
    caplog.set_level(logging.INFO, logger="gpytorch_sgpvae")
    found = calibrate(1.0, num_entries=10, num_known=5000)[0]
    assert found.failed == ("y",)
    assert not found.factors.any()
    assert not caplog.text


def test_a_small_table_is_told_in_the_log_alone(caplog):
    caplog.set_level(logging.INFO, logger="gpytorch_sgpvae")
    found = calibrate(1.0, num_entries=10, num_known=100)[0]
    assert found.warning is None
    assert "intervals of y are not calibrated" in caplog.text


def test_without_any_deviations_are_those_of_the_model():
    total = torch.rand(5, 2, dtype=torch.float64)
    assert (Calibration.none(2).ratios(total) == 1).all()


def test_ratios_keep_their_dtype(dtype):
    found, *_ = calibrate(2.0)
    ratios = found.ratios(torch.tensor([[0.0], [1e-12], [0.3], [1e6]], dtype=dtype))
    assert ratios.dtype == dtype
    assert ratios.isfinite().all()


def test_outputs_that_are_not_gaussian_have_the_factor_with_which_held_out_entries_are_most_probable():
    """A flag whose value is known far better than its model says."""
    random = np.random.default_rng(0)
    outputs = Outputs([FAMILIES["flag"]("wet", levels=(False, True))])
    observation_model = outputs.observation_model().double()
    model = SimpleNamespace(likelihood=SimpleNamespace(observation_model=observation_model))
    mean = torch.tensor(np.where(random.random((500, 1)) < 0.5, -2.0, 2.0))
    moments, targets = (mean, torch.full_like(mean, 9.0)), (mean > 0).double()
    nodes = torch.randn(200, *mean.shape, dtype=torch.float64)

    def predict(calibration):
        stddev = moments[1].sqrt() * calibration.ratios(moments[1])
        return Prediction(observation_model, mean, stddev, base_samples=nodes)

    spread, known = torch.zeros_like(mean), np.array([5000])
    found = Calibration.fit(outputs, model, moments, spread, targets, np.array([np.inf]), predict, 1, known)
    assert (found.factors < np.log(0.6)).all()


def test_the_owner_of_a_table_is_warned(numbers, monkeypatch):
    monkeypatch.setattr("gpytorch_sgpvae.table.calibration.FEWEST_KNOWN", 5)
    imputer = SGPVAEImputer(["day"], ["y"], "week", max_epochs=1, compare=False, progress=False)
    with pytest.warns(TableWarning, match="intervals of y could not be calibrated: too few entries"):
        imputer.fit(numbers)
