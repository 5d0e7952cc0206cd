"""The experiments run, in a short version; what they reach is for `python -m experiments` to show."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import multiprocessing
import os
import time
from functools import partial
from pathlib import Path

import gpytorch
import pytest
import torch
from torch.distributions import MultivariateNormal

pytest.importorskip("lightning", reason="the experiments train with the extra train")
pytest.importorskip("pandas", reason="the experiments read files with the extra datasets")

from experiments import report
from experiments.__main__ import main, make_parser, make_runs
from experiments.baselines import IndependentGPs, interpolation, regression
from experiments.execution import end_with_the_parent, execute_one
from experiments.registry import EXPERIMENTS
from experiments.runs import ResultFile, Run, kept
from experiments.series import from_start, long_series, predict_in_windows, window_loss
from experiments.small import (
    Settings,
    hide_like_the_test,
    learn_free_form,
    make_model,
    rows_in_a_window,
    rows_in_cells,
    train,
)
from experiments.training import optimize, optimize_for, training_elbo
from experiments.weather import Regression
from experiments.window_networks import INSTALLED
from experiments.window_networks import NETWORKS as NETWORKS_OF_PYPOTS
from gpytorch_sgpvae import Context, FreeFormSites, Prediction, models, refine

GENERATED = ("ball", "balls", "series", "patients")
NETWORKS = list(models.NETWORKS)


def every_model():
    for name, experiment in EXPERIMENTS.items():
        for model in experiment.models:
            network = experiment.network if model in experiment.trained else ""
            preset = experiment.presets[-1] if model in experiment.trained else ""
            inducing = experiment.inducing[0] if model == "sgpvae" else 0
            yield Run(name, model, network, inducing, preset, experiment.variants[0])


def skip_without_what_it_needs(run):
    folder = os.environ.get("SGPVAE_DATA")
    if run.experiment not in GENERATED and folder is None:
        pytest.skip("SGPVAE_DATA names no folder with the data")
    if run.experiment == "japan" and not (Path(folder) / "ghcn").is_dir():
        pytest.skip("the data folder has no ghcn/")
    if run.experiment in ("amedas", "japan") and run.model == "sgpvae":
        pytest.importorskip("sklearn", reason="inducing points by k-means need scikit-learn")
    if run.experiment.startswith("tsibench") and not (Path(folder) / "tsibench").is_dir():
        pytest.skip("the data folder has no tsibench/")
    if run.model in NETWORKS_OF_PYPOTS and not INSTALLED:
        pytest.skip("PyPOTS is not installed")
    if run.model == "gpar" and importlib.util.find_spec("gpar") is None:
        pytest.skip("the package gpar is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("run", list(every_model()), ids=lambda run: f"{run.experiment}-{run.model}")
def test_every_model_of_every_experiment_runs(run):
    skip_without_what_it_needs(run)
    outcome = execute_one(run, smoke=True)
    for column in EXPERIMENTS[run.experiment].columns:
        assert math.isfinite(outcome["scores"][column])
    for ending in ("crps", "coverage"):
        values = [value for name, value in outcome["scores"].items() if name.endswith(ending)]
        assert values or run.experiment.startswith("tsibench")  # some methods there have no distribution
        assert all(map(math.isfinite, values))
    assert (outcome["elbo"] is None) == (run.model in EXPERIMENTS[run.experiment].baselines)
    json.dumps(outcome)


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_runs_with_the_papers_settings(network):
    outcome = execute_one(Run("ball", "gpvae", network, preset="paper"), smoke=True)
    assert math.isfinite(outcome["scores"]["mae"])


@pytest.fixture
def shortened(monkeypatch):
    """The command line without processes of its own, and what it was asked to run."""
    ran = []

    def execute(runs, smoke, workers):
        for run in runs:
            ran.append(run)
            scores = dict.fromkeys(("mae", "nll", *(f"mae_{i}" for i in range(1, 11))), 1.0)
            yield run, {"elbo": 0.0, "scores": scores, "seconds": 0.0}

    monkeypatch.setattr("experiments.__main__.execute", execute)
    return ran


def test_the_command_line_leaves_a_line_for_each_run_and_does_not_run_it_again(tmp_path, shortened, capsys):
    command = ["ball", "--results", str(tmp_path), "--preset", "tuned"]
    main([*command, "--seeds", "2"])
    lines = (tmp_path / "ball.jsonl").read_text().splitlines()
    assert [json.loads(line)["run"]["seed"] for line in lines] == [0, 1]
    main([*command, "--seeds", "3"])
    assert [run.seed for run in shortened] == [0, 1, 2]
    assert "2 of 3" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_in_a_process_of_its_own_is_the_run(tmp_path):
    main(["ball", "--model", "lds", "--smoke", "--workers", "1", "--results", str(tmp_path)])
    run = Run("ball", "lds")
    outcome = ResultFile("ball", tmp_path).read()[run]
    assert outcome["scores"] == pytest.approx(execute_one(run, smoke=True)["scores"], abs=1e-8)


def test_runs_that_are_dropped_are_forgotten_and_others_stay(tmp_path):
    results = ResultFile("ball", tmp_path)
    results.drop(lambda run: True)  # nothing is there
    for model in ("lds", "igp"):
        results.append(Run("ball", model), {"elbo": None})
    results.drop(lambda run: run.model == "lds")
    assert list(results.read()) == [Run("ball", "igp")]
    assert [path.name for path in tmp_path.iterdir()] == ["ball.jsonl"]


def test_a_line_that_was_cut_short_is_passed_over_and_run_again(tmp_path, shortened):
    command = ["ball", "--results", str(tmp_path), "--seeds", "2"]
    main(command)
    path = tmp_path / "ball.jsonl"
    path.write_text(path.read_text()[:-20])
    assert [run.seed for run in ResultFile("ball", tmp_path).read()] == [0]
    main(command)
    assert [run.seed for run in shortened] == [0, 1, 1]
    assert [run.seed for run in ResultFile("ball", tmp_path).read()] == [0, 1]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["ball", "--model", "gpar"], "ball has no model gpar: choose from gpvae, igp, lds, lds16"),
        (["eeg-large", "--variant", "3"], "eeg-large has no variant 3: choose from 1, 2"),
        (["ball", "--variant", "3"], "ball has no variant 3: leave it out"),
    ],
)
def test_what_an_experiment_does_not_have_is_refused(command, message, capsys):
    with pytest.raises(SystemExit):
        main(command)
    assert message in capsys.readouterr().err


def test_there_is_a_run_for_each_network_and_preset_but_one_of_a_baseline(tmp_path, shortened):
    command = ["ball", "--results", str(tmp_path), "--network", "factornet", "indexnet", "--preset", "paper", "tuned"]
    main([*command, "--model", "gpvae", "igp", "--seeds", "1"])
    assert len(shortened) == len(set(shortened)) == 5


def test_of_15_runs_the_10_with_the_highest_elbo_are_kept():
    order = torch.randperm(15).tolist()
    elbos = [outcome["elbo"] for outcome in kept({"elbo": float(elbo)} for elbo in order)]
    assert sorted(elbos) == list(range(5, 15))
    assert len(kept([{"elbo": None}] * 15)) == 15


def make_outcome(elbo=None, **scores):
    outcome = {"elbo": elbo, "scores": {"nll": 1.0, "nll_mixture": 0.9, "crps": 0.1, "coverage": 0.95, **scores}}
    return {**outcome, "seconds": 12.3, "date": "2020-01-31", "versions": {"torch": "2.0"}}


def test_the_report_has_means_and_deviations_of_what_is_kept_beside_the_papers(tmp_path):
    results = ResultFile("jura", tmp_path)
    for seed, mae in enumerate((0.3, 0.5, 9.0)):
        outcome = make_outcome(-float(seed), mae=mae, nll=1.0)
        results.append(Run("jura", "gpvae", "factornet", 0, "tuned", "", seed), outcome)
    results.append(Run("jura", "igp"), make_outcome(mae=0.6, nll=2.0))
    page = report.write(tmp_path, tmp_path / "RESULTS.md").read_text()
    assert "| GP-VAE FactorNet | tuned | 2 of 3 | 0.400 (0.141) | 1.000 (0.000) |" in page
    assert "| 0.900 (0.000) | 0.40 (0.01) | 1.00 (0.06) | 12 |" in page  # the mixture's NLL, and published ones
    assert "| independent GPs |  | 1 of 1 | 0.600 |" in page
    assert "- mae at most 0.39: 0.400 by GP-VAE FactorNet, **short**" in page


def test_the_report_says_how_far_the_papers_settings_are_behind_the_paper(tmp_path):
    results = ResultFile("jura", tmp_path)
    results.append(Run("jura", "gpvae", "factornet", 0, "paper"), make_outcome(0.0, mae=0.425, nll=1.05))
    results.append(Run("jura", "gpvae", "indexnet", 0, "paper"), make_outcome(0.0, mae=0.3, nll=1.0))
    results.append(Run("jura", "gpvae", "pointnet", 0, "tuned"), make_outcome(0.0, mae=9.0, nll=9.0))
    page = report.write(tmp_path, tmp_path / "RESULTS.md").read_text()
    expected = "3 of 4 figures within one published standard deviation or better"
    assert f"- preset paper: {expected}; behind by more: GP-VAE FactorNet in mae (2.5)\n" in page


def test_the_report_has_the_commands_that_do_its_runs():
    rows = [
        *(Run("eeg-large", "sgpvae", network, m, "tuned") for network in NETWORKS[:2] for m in (32, 64)),
        *(Run("eeg-large", "sgpvae", "pointnet", 64, preset) for preset in ("paper", "tuned")),
        *(Run("eeg-large", model) for model in ("igp", "mean")),
        Run("eeg-large", "gpvae", "factornet", 0, "tuned"),
    ]
    num_seeds = {"gpvae": 3, "sgpvae": 2}
    runs = {
        dataclasses.replace(row, variant=variant, seed=seed)
        for row in rows
        for variant in ("1", "2")
        for seed in range(num_seeds.get(row.model, 1))
    }
    lines = report.commands("eeg-large", runs)
    assert len(lines) == 4
    parsed = [make_parser().parse_args(line.removeprefix("python -m experiments ").split()) for line in lines]
    asked = [run for arguments in parsed for run in make_runs(arguments)]
    assert len(asked) == len(runs)
    assert set(asked) == runs


def fill_ball(folder, ours, theirs, rivals=("igp",)):
    results = ResultFile("ball", folder)
    for model, errors in (("gpvae", ours), *((rival, theirs) for rival in rivals)):
        scores = {f"mae_{tau}": error for tau, error in enumerate(errors, start=1)}
        trained = model == "gpvae"
        run = Run("ball", model, EXPERIMENTS["ball"].network if trained else "", preset="tuned" if trained else "")
        results.append(run, make_outcome(1.0 if trained else None, mae=sum(errors) / 10, **scores))


@pytest.mark.parametrize(
    ("last", "rivals", "verdict"),
    [
        (0.1, ("igp", "lds", "lds16"), "mae_10: reached"),
        (0.3, ("igp", "lds", "lds16"), "**short** in mae_10"),
        (0.1, ("igp",), "mae_10: so far; nobody has run lds, lds16"),
    ],
)
def test_the_report_says_whether_our_model_is_ahead_of_everybody_in_every_score(tmp_path, last, rivals, verdict):
    fill_ball(tmp_path, ours=[0.1] * 9 + [last], theirs=[0.2] * 10, rivals=rivals)
    page = report.write(tmp_path, tmp_path / "RESULTS.md").read_text()
    assert verdict in page


def test_models_with_inducing_points_race_beside_as_many_of_them(tmp_path):
    results = ResultFile("eeg-large", tmp_path)
    for network, inducing, smse in (("factornet", 64, 0.4), ("factornet", 128, 0.2), ("indexnet", 64, 0.3)):
        run = Run("eeg-large", "sgpvae", network, inducing, "tuned", "1")
        results.append(run, make_outcome(0.0, smse=smse, nll=smse if network == "factornet" else 1.0))
    page = report.write(tmp_path, tmp_path / "RESULTS.md").read_text()
    assert "- FactorNet (1) ahead of SGP-VAE IndexNet M = 64 (1), each beside as many" in page
    assert "**short** in smse\n" in page


def test_the_report_draws_the_figure_of_an_experiment_and_links_to_it(tmp_path):
    fill_ball(tmp_path, ours=[0.1] * 10, theirs=[0.2] * 10)
    results = ResultFile("eeg-large", tmp_path)
    for inducing, seed in ((32, 0), (32, 1), (64, 0)):
        run = Run("eeg-large", "sgpvae", "factornet", inducing, "tuned", "1", seed)
        results.append(run, make_outcome(0.0, smse=0.5, nll=1.0))
    results.append(Run("eeg-large", "igp", variant="1"), make_outcome(smse=0.9, nll=2.0))
    for model, mae in (("gpvae", 0.4), ("igp", 0.6), ("mean", 4.0)):
        run = Run("jura", model, *(("factornet", 0, "tuned") if model == "gpvae" else ()))
        ResultFile("jura", tmp_path).append(run, make_outcome(mae=mae))
    picture = execute_one(Run("balls", "sgpvae", "factornet", 10, "tuned"), smoke=True)
    ResultFile("balls", tmp_path).append(Run("balls", "sgpvae", "factornet", 10, "tuned"), picture)
    page = report.write(tmp_path, tmp_path / "RESULTS.md").read_text()
    for name in ("jura", "ball", "balls", "eeg-large"):
        assert f"](figures/{name}.png)" in page
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def make_gps(kernel=None):
    gps = IndependentGPs(3, 2, kernel=kernel)
    for parameter in gps.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return gps


@torch.no_grad()
@pytest.mark.parametrize("shared", [True, False], ids=["shared inputs", "inputs of each task"])
def test_independent_gps_are_exact_gps_on_the_rows_that_are_there(shared):
    gps = make_gps()
    x = torch.rand(*(() if shared else (4,)), 7, 2, dtype=torch.float64)
    y = torch.randn(4, 7, 3, dtype=torch.float64)
    y[torch.rand(y.shape) < 0.3] = torch.nan
    y[1, :, 2] = torch.nan  # one that is not there at all
    log_likelihood, prediction = gps.log_likelihood(x, y), gps.predict(x, y)
    scale, lengthscale = gps.kernel.outputscale, gps.kernel.base_kernel.lengthscale  # (P,), (P, 1, D)
    noise = gps.likelihood.noise
    for t in range(4):
        for p in range(3):
            points = (x if shared else x[t]) / lengthscale[p]
            covar = scale[p] * torch.exp(-0.5 * (points.unsqueeze(-2) - points).square().sum(-1))
            there = ~y[t, :, p].isnan()
            values = y[t, there, p]
            inner = covar[there][:, there] + noise[p] * torch.eye(len(values), dtype=torch.float64)
            gain = torch.linalg.solve(inner, covar[there]).mT
            expected = (covar - gain @ covar[there]).diagonal() + noise[p]
            torch.testing.assert_close(prediction.mean[t, :, p], gain @ values, rtol=0, atol=1e-8)
            torch.testing.assert_close(prediction.variance[t, :, p], expected, rtol=0, atol=1e-8)
            density = MultivariateNormal(torch.zeros_like(values), inner).log_prob(values) if len(values) else 0.0
            torch.testing.assert_close(log_likelihood[t, p], torch.as_tensor(density).double(), rtol=0, atol=1e-8)


def test_independent_gps_take_a_kernel_and_some_tasks_at_a_time():
    kernel = gpytorch.kernels.PeriodicKernel(batch_shape=torch.Size([3]))
    gps = IndependentGPs(3, 1, kernel=kernel)
    seen = []
    gps.log_likelihood = lambda x, y: seen.append(int(y[0, 0])) or gps.kernel.outputscale
    tasks = [(torch.rand(5, 1), torch.full((5, 3), float(i))) for i in range(3)]
    gps.fit(tasks, num_steps=4, tasks_per_step=2)
    assert gps.kernel.base_kernel is kernel
    assert seen == [0, 1, 2, 0, 1, 2, 0, 1]


def say_who_and_stay(connection):
    end_with_the_parent()
    connection.send(os.getpid())
    time.sleep(600)


def start_one_that_stays(connection):
    context = multiprocessing.get_context("spawn")
    context.Process(target=say_who_and_stay, args=(connection,)).start()
    time.sleep(600)


@pytest.mark.slow
def test_a_worker_ends_with_an_experiment_that_is_killed():
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    experiment = context.Process(target=start_one_that_stays, args=(theirs,))
    experiment.start()
    assert ours.poll(60)
    worker = ours.recv()
    theirs.close()
    experiment.terminate()
    experiment.join()
    # the other end of the pipe closes with its last process
    assert ours.poll(60), f"process {worker} is still there"
    with pytest.raises(EOFError):
        ours.recv()


def make_small_problem():
    settings = Settings(2, lengthscales=(0.5, 0.2), batch_size=None, hidden_sizes=(5,))
    x = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1)
    model = make_model(settings, Run("jura", "gpvae", "factornet"), num_outputs=3, input_dim=1)
    return model, Context(x, torch.randn(30, 3, dtype=torch.float64)), settings


def test_the_network_is_shown_holes_like_those_of_the_test_and_the_likelihood_everything():
    model, context, settings = make_small_problem()
    shown = []
    network = model.strategy._variational_distribution.network
    network.register_forward_pre_hook(lambda _, inputs: shown.append(inputs[0].observed))
    judged = torch.tensor([False, True, True])
    targets = []
    model.likelihood.expected_log_prob = lambda y, *args, **kwargs: (
        targets.append(y) or type(model.likelihood).expected_log_prob(model.likelihood, y, *args, **kwargs)
    )
    train(model, context, settings, partial(hide_like_the_test, lambda x: x.squeeze(-1) < 0.5, judged))
    for observed, y in zip(shown, targets, strict=True):
        assert y.isfinite().all()
        assert observed.sum(0).tolist() == [30, 15, 15]


def test_sites_that_are_learnt_along_with_a_model_raise_its_bound_above_refined_ones():
    torch.manual_seed(0)
    model, context, settings = make_small_problem()
    task = [(context.x, context.y)]
    refined = training_elbo(model, task) + refine(model, context).gap.item()
    learn_free_form(model, context, dataclasses.replace(settings, lr=1e-2, free_steps=60))
    assert training_elbo(model, task) > refined
    assert isinstance(model.strategy._variational_distribution.network, FreeFormSites)
    assert model.predict(context.x, context).mean.isfinite().all()


def test_a_window_hides_as_long_a_time_as_it_says_or_less_at_the_ends():
    x = torch.linspace(0, 1, 101).unsqueeze(-1)
    counts = []
    for _ in range(100):
        rows = rows_in_a_window(0.4, x).nonzero().squeeze(-1)
        assert len(rows) == 0 or len(rows) == rows.max() - rows.min() + 1
        counts.append(len(rows))
    assert max(counts) in (40, 41)
    assert min(counts) < 20


def test_cells_hide_close_points_together_and_their_share_of_all():
    pairs = torch.rand(500, 1, 2) * 10 + torch.tensor([[0.0, 0.0], [1e-6, 0.0]])
    hidden = torch.stack([rows_in_cells(0.1, 0.4, pairs.flatten(0, 1)).view(500, 2) for _ in range(20)]).float()
    assert hidden.mean().item() == pytest.approx(0.4, abs=0.05)
    assert (hidden[..., 0] == hidden[..., 1]).float().mean() > 0.99


def test_lengthscales_start_where_the_authors_kernel_has_them():
    model, _, settings = make_small_problem()
    x = torch.tensor([[0.0], [0.3]], dtype=torch.float64)
    covar = model.model.covar_module(x).to_dense()[:, 0, 1]
    expected = torch.tensor([math.exp(-((0.3 / scale) ** 2)) for scale in settings.lengthscales], dtype=torch.float64)
    torch.testing.assert_close(covar, expected, rtol=1e-6, atol=0)


def test_parameters_of_a_module_have_a_learning_rate_of_their_own():
    model, context, _ = make_small_problem()
    noise, decoder = model.likelihood.observation_model, model.likelihood.decoder
    before = [[p.detach().clone() for p in module.parameters()] for module in (noise, decoder)]
    optimize(model, lambda: model.loss(context), 1, 1e-3, factors={noise: 7.0})
    # Adam's first step is as long as the learning rate
    steps = [
        max((p - old).abs().max().item() for p, old in zip(module.parameters(), olds, strict=True))
        for module, olds in zip((noise, decoder), before, strict=True)
    ]
    assert steps == pytest.approx([7e-3, 1e-3], rel=1e-3)


def test_training_for_a_given_time_ends_with_it_and_its_steps_first_grow_and_then_shrink(monkeypatch):
    """Each step takes a second of a clock of its own."""
    seconds = iter(range(1000))
    monkeypatch.setattr("experiments.training.time.process_time", lambda: float(next(seconds)))
    model = torch.nn.Linear(1, 1, bias=False).double()
    places = []

    def loss():
        places.append(model.weight.item())
        return model.weight.sum()  # of gradient 1, with which each of Adam's steps is as long as the learning rate

    took = optimize_for(100.0, model, loss, lr=0.1)
    assert took == {"training_steps": 100, "training_seconds": 100.0}
    lengths = -torch.tensor([*places, model.weight.item()], dtype=torch.float64).diff()
    share = torch.arange(100, dtype=torch.float64) / 100
    expected = 0.1 * (20 * share).clamp_max(1.0) * 0.5 * (1 + torch.cos(math.pi * share))
    torch.testing.assert_close(lengths, expected, rtol=1e-6, atol=1e-8)
    assert not model.training


def test_training_takes_a_step_even_if_there_is_no_time_for_it():
    model = torch.nn.Linear(1, 1)
    assert optimize_for(1e-9, model, lambda: model.weight.sum(), lr=0.1)["training_steps"] == 1


def test_kernels_have_the_learning_rate_that_the_settings_say():
    model, context, settings = make_small_problem()
    kernel = model.model.covar_module
    before = [p.detach().clone() for p in kernel.parameters()]
    train(model, context, dataclasses.replace(settings, num_steps=1, kernel_factor=10.0))
    for parameter, old in zip(kernel.parameters(), before, strict=True):
        torch.testing.assert_close((parameter - old).abs(), torch.full_like(old, 10 * settings.lr), rtol=1e-3, atol=0)


def test_without_hidden_layers_the_decoder_is_linear():
    settings = Settings(2, lengthscales=(0.5, 0.2), hidden_sizes=())
    model = make_model(settings, Run("eeg", "gpvae", "factornet"), num_outputs=3, input_dim=1)
    f = torch.randn(20, 2, dtype=torch.float64)
    decoder = model.likelihood.decoder
    torch.testing.assert_close(decoder(f[:10] + f[10:]), decoder(f[:10]) + decoder(f[10:]) - decoder(0 * f[:10]))


@torch.no_grad()
def test_a_regression_predicts_the_outputs_with_holes_from_those_without():
    y = torch.randn(200, 4, dtype=torch.float64)
    noise = 0.5 * torch.randn(200, dtype=torch.float64)
    y[:, 1] = 0.3 + y[:, 0] - 2 * y[:, 3]
    y[:, 2] = y[:, 3] + noise
    seen = y.clone()
    seen[150:, 1:3] = torch.nan
    prediction = regression(seen)
    torch.testing.assert_close(prediction.mean[:, 1], y[:, 1], rtol=0, atol=1e-8)
    design = torch.stack([torch.ones(200, dtype=torch.float64), y[:, 0], y[:, 3]], dim=-1)
    weights = torch.linalg.solve(design[:150].mT @ design[:150], design[:150].mT @ y[:150, 2])
    torch.testing.assert_close(prediction.mean[:, 2], design @ weights, rtol=0, atol=1e-8)
    expected = (y[:150, 2] - design[:150] @ weights).std()
    torch.testing.assert_close(prediction.stddev[:, 2], expected.expand(200), rtol=0, atol=1e-8)


@torch.no_grad()
def test_an_interpolation_is_exact_on_straight_lines_and_knows_its_error_elsewhere():
    x = torch.rand(400, 1, dtype=torch.float64).cumsum(0)
    zigzag = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(200)
    y = torch.stack([3 - 2 * x[:, 0], zigzag], dim=-1)
    seen = y.clone()
    seen[10:30, 0] = torch.nan
    prediction = interpolation(x, seen)
    torch.testing.assert_close(prediction.mean, y, rtol=0, atol=1e-8)
    # each value of the zigzag lies 2 from the line between its neighbors
    expected = torch.tensor([0.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(prediction.stddev[0], expected, rtol=0, atol=1e-8)


def test_the_long_series_is_the_same_again_and_sixty_percent_of_it_are_held_out():
    first, again, other = (long_series(10_000, seed) for seed in (1, 1, 2))
    (x, y), truth = first.train[0], first.test_truth[0]
    assert torch.equal(x, again.train[0][0])
    assert torch.equal(truth.nan_to_num(), again.test_truth[0].nan_to_num())
    assert not torch.equal(x, other.train[0][0])
    assert (y.isnan() != truth.isnan()).all()
    # failures take 50 or 20 rows at a time, so that the standard deviation of the share is about 0.01
    assert y.isnan().double().mean().item() == pytest.approx(0.6, abs=0.04)
    gaps = x.squeeze(-1).diff()
    assert (gaps > 0).all()
    assert gaps.mean().item() == pytest.approx(gaps.std().item(), rel=0.1)  # as those of an exponential distribution


class Reader:
    """Predicts what it has seen, and says how far from the ends of its window it was asked."""

    def __init__(self):
        self.margins = []

    def predict(self, x, context, *args, **kwargs):
        times, y = context
        rows = torch.searchsorted(times.squeeze(-1), x.squeeze(-1))
        self.margins += [(int(row), len(times) - 1 - int(row)) for row in rows]
        return Prediction.gaussian(y[rows], torch.ones_like(y[rows]))


@pytest.mark.parametrize("num_points", [30, 40, 41, 100, 119, 120])
def test_windows_predict_every_row_once_and_far_from_their_ends(num_points):
    x = torch.rand(num_points, 1, dtype=torch.float64).cumsum(0)
    y, model = torch.arange(num_points, dtype=torch.float64).unsqueeze(-1), Reader()
    assert torch.equal(predict_in_windows(model, x, y, length=40).mean, y)
    for row, (before, after) in enumerate(model.margins):
        assert before >= min(10, row)
        assert after >= min(9, num_points - 1 - row)


def test_training_goes_through_windows_of_the_series_with_times_from_their_start_where_asked():
    x = 5 + torch.rand(100, 1, dtype=torch.float64).cumsum(0)
    y = torch.randn(100, 2, dtype=torch.float64)
    seen = []

    class Model:
        def loss(self, context):
            seen.append(context)
            return context.x.sum()

    for shift in (None, from_start):
        loss = window_loss(Model(), x, y, 20, 0, shift)
        for _ in range(12):
            loss()
    plain, shifted = seen[:12], seen[12:]
    for context, other in zip(plain, shifted, strict=True):
        start = int((x == context.x[0, 0]).nonzero()[0, 0])
        assert torch.equal(context.x[0], x[start : start + 20])
        assert torch.equal(context.y[0], y[start : start + 20])
        torch.testing.assert_close(other.x, context.x - context.x[:, :1])
    assert len({context.x[0, 0].item() for context in plain}) > 5  # another epoch starts elsewhere


@torch.no_grad()
def test_the_regression_is_least_squares_and_takes_what_is_missing_from_straight_lines():
    outputs = ["PRCP", "TMAX", "TMIN", "TAVG"]
    place, day = torch.rand(6, 1, 3).double(), torch.arange(7.0).double()
    x = torch.cat([place.expand(6, 7, 3), day.view(7, 1).expand(6, 7, 1)], dim=-1).flatten(0, 1)
    y = torch.randn(6, 7, 4, dtype=torch.float64)
    y[..., 1] = 0.5 * day + y[:, :1, 1]  # a straight line in time
    y[..., 3] = 0.2 + 0.7 * y[..., 1] + 0.4 * y[..., 2]
    y = y.flatten(0, 1)
    seen = y.clone()
    seen[:, 3] = torch.nan
    seen[3::7, 1] = torch.nan
    prediction = Regression([(x, y)], outputs).predict(Context(x.unsqueeze(0), seen.unsqueeze(0)))
    torch.testing.assert_close(prediction.mean[0, :, 3], y[:, 3], rtol=0, atol=1e-8)
