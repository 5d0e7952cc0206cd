"""TSI-Bench: what methods are given, how they are scored, and what the report says of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="boosted trees need the extra table")
pytest.importorskip("pandas", reason="the experiments read files with the extra datasets")

from experiments import tsibench_report
from experiments.experiment import Outcome
from experiments.registry import EXPERIMENTS
from experiments.runs import Run
from experiments.tsibench import METHODS, VARIANTS, load, shortened
from experiments.tsibench_report import PUBLISHED, tables, verdicts
from experiments.window_networks import INSTALLED, NETWORKS, network_method
from experiments.windows import Gaussians, Imputed, interpolation, scores_of, variance_factors
from gpytorch_sgpvae.datasets import WindowData, Windows


def holes_in(truth, rate, generator):
    return truth.masked_fill(torch.rand(truth.shape, generator=generator, dtype=truth.dtype) < rate, torch.nan)


@pytest.fixture(scope="module")
def walks():
    """Random walks of three outputs that go together."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(60, 12, 2, generator=generator, dtype=torch.float64)
    truth = 0.4 * steps.cumsum(1) @ torch.randn(2, 3, generator=generator, dtype=torch.float64)
    sets = [Windows(part, holes_in(part, 0.3, generator)) for part in truth.split([30, 15, 15])]
    return WindowData(*sets, ("a", "b", "c"), torch.zeros(3), torch.ones(3))


def test_every_setting_has_published_figures_and_names_a_data_set():
    assert set(VARIANTS) == set(PUBLISHED)
    assert len(VARIANTS) == 15


@pytest.mark.parametrize("method", METHODS)
def test_every_method_fills_all_holes_and_is_scored(method, walks):
    imputed = METHODS[method](walks, 0, True)
    scores = scores_of(imputed, walks)
    assert not imputed.test.mean[walks.test.hidden].isnan().any()
    assert all(map(math.isfinite, scores.values()))
    assert ("coverage" in scores) == method.startswith("windows")


@pytest.mark.skipif(not INSTALLED, reason="PyPOTS is not installed")
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_of_pypots_fills_all_holes(network, walks):
    imputed = network_method(network, "")(walks, 0, True)
    assert math.isfinite(scores_of(imputed, walks)["mae"])


def test_interpolation_keeps_what_is_known(walks):
    filled = interpolation(walks, 0, False).test.mean
    known = ~walks.test.seen.isnan()
    assert torch.equal(filled[known], walks.test.seen[known])


def test_one_variance_factor_for_each_output_makes_intervals_as_wide_as_errors():
    torch.manual_seed(0)
    truth = torch.tensor([1.0, 10.0]) * torch.randn(200, 20, 2)
    windows = Windows(truth, torch.full_like(truth, torch.nan))
    said = Gaussians(torch.zeros_like(truth), torch.full_like(truth, 0.1))
    data = WindowData(windows, windows, windows, ("a", "b"), torch.zeros(2), torch.ones(2))
    scores = scores_of(Imputed(said, said), data)
    assert scores["coverage_before"] < 0.2
    assert scores["coverage"] == pytest.approx(0.95, abs=0.01)
    # the mean CRPS of normal numbers that are said to be what they are
    assert scores["crps"] == pytest.approx(5.5 / math.sqrt(math.pi), rel=0.05)
    assert torch.equal(variance_factors(said, Windows(truth, truth)), torch.ones(2))  # nothing is hidden


def test_only_hidden_entries_of_test_windows_count(walks):
    right = walks.test.truth.masked_fill(~walks.test.hidden, 1e9)
    scores = scores_of(Imputed(None, Gaussians(right, torch.full_like(right, torch.nan))), walks)
    assert scores == {"mae": 0.0, "mse": 0.0}


def outcomes(mae, mse, coverage=0.95, seconds=30.0, model="windows"):
    scores = {"mae": mae, "mse": mse, "coverage": coverage, "coverage_before": 0.9, "crps": 0.1}
    scores |= {"processor_seconds": seconds, "parameters": 10}
    return {Run("tsibench", model, variant=setting): {"elbo": None, "scores": scores} for setting in VARIANTS}


def test_verdicts_follow_from_the_figures():
    first, second, third, *times = verdicts(outcomes(0.001, 0.001))
    assert first.startswith("MAE and MSE below every published network")
    assert "in 15 of 15 settings (reached" in first
    assert second.endswith("in 11 of 11 settings: reached")
    assert third.endswith("in 15 of 15 settings: reached")
    assert all(line.endswith("reached") for line in times)
    first, second, third, *times = verdicts(outcomes(0.2, 0.001, coverage=0.8, seconds=1e4))
    assert "**short**" in first
    assert "ItalyAir, 10 %" in first.partition("not in")[2]
    assert "ETTh1, 90 %" not in first
    assert all("**short**" in line for line in (second, third, *times))


def test_who_is_behind_interpolation_on_the_same_masks_is_not_ahead():
    both = outcomes(0.05, 0.02) | outcomes(0.04, 0.03, model="interpolation")
    assert "in 0 of 15 settings (**short**" in verdicts(both)[0]
    assert "in 15 of 15" in verdicts(outcomes(0.05, 0.02) | outcomes(0.06, 0.03, model="interpolation"))[0]


def test_the_least_error_of_a_setting_is_bold():
    text = tables(outcomes(0.05, 0.02) | outcomes(0.04, 0.03, model="saits"))
    mae, mse, details, _ = text.split("\n\n")
    assert mae.splitlines()[2].startswith("| ETTh1, 10 % | 0.050 | **0.040** | 0.144 | 0.197 |")
    assert mse.splitlines()[2].startswith("| ETTh1, 10 % | **0.020** | 0.030 |")
    assert len(details.splitlines()) == 2 + 2 * 15


def test_figures_are_drawn_of_what_there_is():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = tsibench_report.draw(outcomes(0.05, 0.02) | outcomes(0.04, 0.03, model="saits"))
    assert [axes.get_title() for axes in figure.axes] == ["ETTh1", "ItalyAir", "BeijingAir"]
    over_time = {
        Run("tsibench-time", model, variant=epochs): {"scores": {"mae": 0.3, "mse": 0.2, "processor_seconds": 1.0}}
        for model in ("windows", "saits")
        for epochs in ("1", "10")
    }
    [axes] = tsibench_report.draw_time(over_time).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()][:2] == ["GP-VAE, joint and exact", "SAITS"]
    assert tsibench_report.time_table(over_time).count("\n") == 5
    pyplot.close("all")


def test_a_smoke_run_is_small_and_as_long_as_a_window(walks):
    small = shortened(walks)
    assert small.train.truth.shape == (8, 12, 3)
    assert small.outputs == ("a", "b", "c")


def test_seeds_have_masks_of_their_own(real_tsibench):
    first, second = (load("ETTh1-point50", seed, smoke=True).train.hidden for seed in (0, 1))
    assert not torch.equal(first, second)


def test_a_run_over_time_leaves_its_seconds(real_tsibench):
    outcome = EXPERIMENTS["tsibench-time"].run(Run("tsibench-time", "windows", variant="1"), True)
    assert isinstance(outcome, Outcome)
    assert outcome.scores["processor_seconds"] > 0
    assert np.isfinite(outcome.scores["mae"])


@pytest.fixture
def real_tsibench(pytestconfig):
    from gpytorch_sgpvae.datasets.files import data_folder

    folder = data_folder()
    if folder is None or not (folder / "tsibench").is_dir():
        pytest.skip("SGPVAE_DATA names no folder with a tsibench/")
