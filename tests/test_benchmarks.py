"""The benchmarks run, in a small version; what they measure is for `make bench` to show."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks import __main__ as command_line
from benchmarks.authors import AVAILABLE, HOW_TO_GET_IT, authors
from benchmarks.contestants import make_model, ours, svgp
from benchmarks.dropin.attempts import ATTEMPTS
from benchmarks.dropin.notebooks import NOTEBOOKS
from benchmarks.dropin.swaps import FOLDER, ORIGINAL, SWAPPED, Changes, changes, source
from benchmarks.imputers import AVAILABLE as IMPUTERS_HERE
from benchmarks.measure import Spread, interleave, peak_memory
from benchmarks.process_tree import run_and_watch
from benchmarks.readings import OUTPUTS, Readings
from benchmarks.series import CONTESTANTS, available, make_context, make_kernel, make_series, recursion
from benchmarks.shapes import SHAPES, make_data
from benchmarks.studies import STUDIES, dropin, joint, markov, tables
from benchmarks.studies.coefficients import fit
from benchmarks.studies.growth import slope
from benchmarks.study import Goal
from benchmarks.turns import take_turns
from experiments.runs import ResultFile
from experiments.runs import Run as ExperimentRun
from gpytorch_sgpvae.training import SGPVAEModule, TaskDataset, TaskLoader, make_trainer
from gpytorch_sgpvae.training.quiet import quiet_lightning


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder that a quick run of everything has written."""
    folder = tmp_path_factory.mktemp("results")
    command_line.main(["--quick", "--output", str(folder)])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_a_study_writes_a_table_a_plot_and_all_figures(study, results):
    text = (results / f"{study}.md").read_text()
    content = json.loads((results / f"{study}.json").read_text())
    assert (results / f"{study}.png").read_bytes().startswith(b"\x89PNG")
    assert f"({study}.png)" in text
    assert "nan" not in text
    assert content["quick"] is True
    assert "no results" in text.splitlines()[0]
    assert content["threads"] == 1
    assert {"python", "torch", "gpytorch", "linear_operator"} <= content["versions"].keys()
    assert content["processor"]
    assert content["date"]
    for goal in content["goals"]:
        assert (goal["reached"] is None) == (goal["target"] is None)
        assert goal["quartiles"][0] <= goal["median"] <= goal["quartiles"][1]


@pytest.mark.slow
def test_nothing_but_results_is_left_behind(results):
    files = {f"{study}.{end}" for study in STUDIES for end in ("json", "md", "png")}
    assert {path.name for path in results.iterdir()} == files | {"dropin.jsonl", "tables.jsonl"}


@pytest.mark.slow
def test_runs_of_imputers_are_not_run_again(results, monkeypatch, tmp_path):
    shutil.copy(results / "tables.jsonl", tmp_path)
    monkeypatch.setattr(tables, "outcome", None)  # nothing can be run
    command_line.main(["tables", "--quick", "--output", str(tmp_path)])
    assert (tmp_path / "tables.jsonl").read_text() == (results / "tables.jsonl").read_text()
    assert len((tmp_path / "tables.jsonl").read_text().splitlines()) == len(IMPUTERS_HERE)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux only")
def test_a_command_is_watched_with_the_processes_that_it_starts():
    wait = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    child = f"x = bytearray(150_000_000); {wait}"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print('done')"
    usage = run_and_watch([sys.executable, "-c", parent])
    assert usage.output == "done\n"
    assert len(usage.processor) == 2
    assert 0.1 < usage.processor[1] < 1
    assert 150_000_000 < usage.peak < 400_000_000
    with pytest.raises(RuntimeError, match="ended with 3"):
        run_and_watch([sys.executable, "-c", "raise SystemExit(3)"])


def test_readings_have_holes_where_the_truth_has_none_and_are_written_once(tmp_path):
    readings = Readings(files=2, sensors=3, rows=400)
    readings.write(tmp_path)
    assert sum(len(pd.read_parquet(path)) for path in tmp_path.iterdir()) == readings.num_rows == 2400
    table, truth = readings.table(4), readings.truth(4)
    missing = table[OUTPUTS].isna()
    assert 0.1 < missing.to_numpy().mean() < 0.5
    assert truth.notna().all(axis=None)
    assert table.where(table.notna(), truth).equals(truth)
    assert pd.read_parquet(tmp_path / "sensors-0001.parquet")[400:800].reset_index(drop=True).equals(table)
    before = [path.stat().st_mtime_ns for path in tmp_path.iterdir()]
    readings.write(tmp_path)
    assert [path.stat().st_mtime_ns for path in tmp_path.iterdir()] == before


@pytest.mark.slow
def test_the_table_says_how_to_get_the_authors_package_where_it_is_missing(results):
    assert (HOW_TO_GET_IT in (results / "shapes.md").read_text()) == (not AVAILABLE)


@pytest.mark.slow
def test_a_quick_run_does_not_touch_the_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "RESULTS", tmp_path / "results")
    # not in the module itself: Python 3.10 makes folders for new processes with it
    monkeypatch.setattr(command_line, "tempfile", SimpleNamespace(mkdtemp=lambda prefix: str(tmp_path / prefix)))
    command_line.main(["reach", "--quick"])
    assert not (tmp_path / "results").exists()
    assert (tmp_path / "benchmarks-" / "reach.json").exists()
    assert str(tmp_path / "benchmarks-") in capsys.readouterr().out


def test_an_unknown_study_is_refused(capsys):
    with pytest.raises(SystemExit):
        command_line.main(["speed"])
    assert "there is no study speed: choose from shapes, accuracy" in capsys.readouterr().err


def test_the_shapes_are_the_papers():
    sizes = {
        key: (s.num_points, s.num_outputs, s.num_latents, s.num_inducing, s.hidden_sizes) for key, s in SHAPES.items()
    }
    assert sizes == {
        "weather": (1092, 5, 3, 100, (20, 20, 20, 20)),
        "eeg-large": (256, 64, 10, 128, (50, 50, 50, 50)),
        "balls": (500, 100, 2, 10, (256, 256)),
        "eeg": (100, 7, 3, None, (20, 20)),
        "jura": (100, 3, 2, None, (20, 20)),
    }


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("shared_inputs", [True, False])
def test_data_have_holes_but_no_empty_rows(shape, shared_inputs):
    x, y = make_data(shape, 3, shared_inputs=shared_inputs)
    assert x.shape == (*(() if shared_inputs else (3,)), shape.num_points, shape.input_dim)
    assert y.shape == (3, shape.num_points, shape.num_outputs)
    assert not y.isnan().all(-1).any()
    # An empty row gets its first output back: in three columns one entry in 192.
    assert y.isnan().double().mean().item() == pytest.approx(shape.missing, abs=0.03)


def test_data_are_the_same_in_both_dtypes():
    (x, y), (x32, y32) = (make_data(SHAPES["jura"], dtype=dtype) for dtype in (torch.float64, torch.float32))
    assert torch.equal(x.float(), x32)
    assert torch.equal(y.float().nan_to_num(), y32.nan_to_num())


class Clock:
    """Tells the time that contestants say they took."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def __call__(self):
        return self.now

    def contestant(self, name, seconds):
        seconds = iter(seconds)

        def step():
            self.calls.append(name)
            self.now += next(seconds)

        return step


def test_interleave_measures_medians_and_quartiles_without_the_warm_up():
    clock = Clock()
    contestants = {"a": clock.contestant("a", [99, 4, 1, 3, 2, 5]), "b": clock.contestant("b", [99, 8, 2, 6, 4, 10])}
    times = interleave(contestants, repeats=5, warmup=1, clock=clock)
    assert times["a"].values == (4, 1, 3, 2, 5)
    assert times["a"].median == 3
    assert times["a"].quartiles == (2, 4)
    assert (times["b"] / times["a"]).values == (2, 2, 2, 2, 2)
    assert (times["b"] / 2).median == 3


def test_in_every_round_all_run_once_and_nobody_always_after_the_same_other():
    clock = Clock()
    rounds, names = 20, "abcd"
    interleave({n: clock.contestant(n, [1.0] * rounds) for n in names}, repeats=rounds, warmup=0, clock=clock)
    assert all(sorted(clock.calls[i : i + 4]) == list(names) for i in range(0, 4 * rounds, 4))
    followers = set(pairwise(clock.calls))
    assert followers >= {(a, b) for a in names for b in names if a != b}


@pytest.mark.parametrize(
    ("value", "limit", "at_least", "verdict"),
    [(51.0, 50.0, True, "reached"), (49.0, 50.0, True, "**short**"), (1.7, 1.6, False, "**short**")],
)
def test_the_verdict_follows_from_the_figures(value, limit, at_least, verdict):
    assert Goal("speed", Spread((value,)), limit, at_least).row[-1] == verdict


def test_a_figure_without_a_target_has_no_verdict():
    assert Goal("speed", Spread((1.0, 2.0, 3.0)), unit="x").row == ("speed", "2x (1.5x to 2.5x)", "", "")


def allocate(num_bytes):
    return 8 * torch.ones(num_bytes // 8, dtype=torch.float64).sum().item()


def test_the_peak_of_memory_is_that_of_the_process():
    num_bytes = 200 * 2**20
    result, memory = peak_memory(allocate, (num_bytes,), (8,), threads=1)
    assert result == num_bytes
    assert memory.added == pytest.approx(num_bytes, rel=0.1)


def test_the_slope_is_the_exponent_of_a_power():
    sizes = [4000, 8000, 16000]
    assert slope(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)


def test_the_fit_finds_the_coefficients_that_made_the_times():
    work = torch.rand(9, 4, dtype=torch.float64).numpy() * [1e9, 1e6, 1e3, 1]
    coefficients = fit(work, work @ [2e-9, 0.0, 3e-3, 0.5])
    assert coefficients == pytest.approx([2e-9, 0.0, 3e-3, 0.5], rel=1e-6, abs=1e-15)


class Run:
    """A run over three batches per epoch, for turns."""

    def __init__(self, max_epochs=-1):
        shape = SHAPES["weather"].shrunk()
        self.loader = TaskLoader(TaskDataset(list(zip(*make_data(shape, 6), strict=True))), batch_size=2)
        self.module = SGPVAEModule(make_model(shape))
        self.max_epochs = max_epochs

    def fit(self, turns):
        self.trainer = make_trainer(None, max_epochs=self.max_epochs, enable_progress_bar=False, callbacks=[turns])
        self.trainer.fit(self.module, self.loader)

    @property
    def steps(self):
        return self.trainer.global_step

    def take_turns(self, drive):
        with quiet_lightning():
            return take_turns(self.fit, drive)


def test_a_turn_is_one_step_of_the_trainer_and_the_last_turn_the_last_step():
    run, seen = Run(), []
    noise = run.module.model.likelihood.observation_model.raw_noise

    def drive(turns):
        for _ in range(8):  # past two ends of epochs
            before = noise.detach().clone()
            turns.other(lambda: seen.append((run.steps, threading.current_thread())))()
            assert torch.equal(noise, before)
            turns.step()
            assert not torch.equal(noise, before)
        return run.steps

    threads = threading.active_count()
    assert run.take_turns(drive) == run.steps == 8
    assert seen == [(i, threading.main_thread()) for i in range(8)]
    assert threading.active_count() == threads
    assert not run.trainer.training


def test_a_trainer_that_ends_before_its_turns_says_so():
    with pytest.raises(RuntimeError, match="give it more epochs"):
        Run(max_epochs=1).take_turns(lambda turns: [turns.step() for _ in range(9)])


@pytest.mark.parametrize("turn", ["trainer", "other", "driver"])
def test_an_error_in_anybodys_turn_ends_all(turn):
    run = Run()

    def fail(*args):
        raise ZeroDivisionError(turn)

    def drive(turns):
        turns.step()
        if turn == "trainer":
            run.module.training_step = fail
            turns.step()
        elif turn == "other":
            turns.other(fail)()
        else:
            fail()

    threads = threading.active_count()
    with pytest.raises(ZeroDivisionError, match=turn):
        run.take_turns(drive)
    assert run.steps == 1
    assert threading.active_count() == threads


def test_gpytorch_and_we_have_the_same_evidence_of_the_same_coregionalization():
    torch.manual_seed(0)
    x, y = joint.make_windows(6)
    theirs, model = joint.ExactMultitaskGP(x, y).double().train(), joint.make_model()
    with torch.no_grad():
        for kernel in theirs.covar_module.kernels:
            kernel.task_covar_module.raw_var.fill_(-50)  # no private functions
        loadings = [kernel.task_covar_module.covar_factor for kernel in theirs.covar_module.kernels]
        model.likelihood.decoder.weight.copy_(torch.cat(loadings, -1))
        model.likelihood.decoder.bias.zero_()
        model.likelihood.observation_model.noise = theirs.likelihood.task_noises + theirs.likelihood.noise
    evidence = ExactMarginalLogLikelihood(theirs.likelihood, theirs)(theirs(x), y) * y.numel()
    assert model.elbo((x, y)).item() == pytest.approx(evidence.item(), rel=1e-6)


def test_series_have_irregular_times_in_order_and_holes():
    context = make_context(500, tasks=2)
    gaps = context.x.squeeze(-1).diff()
    assert context.x.shape == (2, 500, 1)
    assert context.x.dtype == context.y.dtype == torch.float32
    assert gaps.min() >= 0
    assert gaps.std().item() == pytest.approx(gaps.mean().item(), rel=0.1)
    assert (~context.observed).double().mean().item() == pytest.approx(0.3, abs=0.03)


def test_the_recursion_has_the_log_likelihood_of_dense_matrices_and_its_gradient():
    series = make_series(40, 3)
    kernel = make_kernel(3).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = series.lengthscale[:, None, None], series.variance
    covariance = kernel(series.times.unsqueeze(-1)).to_dense() + torch.diag_embed(1 / series.precision)
    values = series.values.clone().requires_grad_()
    expected = torch.distributions.MultivariateNormal(torch.zeros(40, dtype=torch.float64), covariance)
    log_likelihood = expected.log_prob(values).sum()
    [gradient] = torch.autograd.grad(log_likelihood, values)
    value, own_gradient = recursion(series)()
    assert value.item() == pytest.approx(log_likelihood.item(), rel=1e-10)
    assert own_gradient.numpy() == pytest.approx(gradient.numpy(), abs=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTESTANTS)
def test_other_packages_for_series_have_our_log_likelihood_and_gradient(name):
    if name not in available():
        pytest.skip(f"{name} is not installed: see benchmarks/peers.txt")
    series = make_series(40, 3)
    (value, gradient), (own_value, own_gradient) = CONTESTANTS[name](series)(), recursion(series)()
    # celerite2's kernel is an approximation
    assert float(value) == pytest.approx(own_value.item(), rel=markov.AGREEMENT)
    assert np.asarray(gradient) == pytest.approx(own_gradient.numpy(), abs=1e-3)


def test_fresh_processes_measure_until_there_are_enough_rounds_or_seconds(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(markov, "CLOCK", clock)
    monkeypatch.setattr(markov, "BUDGET", 10.0)
    assert markov.timed(clock.contestant("quick", [0.2, 0.1, 0.1, 0.1]), repeats=3) == pytest.approx([0.1] * 3)
    assert markov.timed(clock.contestant("slow", [6.0, 5.0, 5.0]), repeats=3) == [5.0]
    assert markov.timed(clock.contestant("very slow", [30.0, 20.0, 20.0]), repeats=3) == [20.0]


@pytest.mark.parametrize(
    ("ratios", "first"), [({16: 2.0, 32: 0.9, 64: 1.1, 128: 0.5, 256: 0.2}, 128), ({16: 3.0}, None), ({16: 0.5}, 16)]
)
def test_markov_is_faster_from_the_first_size_after_which_it_always_is(ratios, first):
    crossing = {N: {markov.MARKOV: Spread((ratio,)), markov.DENSE: Spread((1.0,))} for N, ratio in ratios.items()}
    assert markov.first_faster(crossing) == first


def test_a_stopped_study_of_series_goes_on_and_a_finished_one_starts_anew(tmp_path):
    kept, measured = markov.Kept(SimpleNamespace(folder=tmp_path)), []

    def measure():
        measured.append(1)
        return {"ours": Spread((0.1, 0.3))}

    for _ in range(2):
        assert kept.spreads(ExperimentRun("peers", "recursion"), measure)["ours"].values == (0.1, 0.3)
    assert len(measured) == 1
    kept.forget()
    kept.spreads(ExperimentRun("peers", "recursion"), measure)
    assert len(measured) == 2


BEFORE = '''"""A script."""

from gpytorch.variational import (
    CholeskyVariationalDistribution,
    VariationalStrategy,
)

strategy = VariationalStrategy(CholeskyVariationalDistribution(3))
model(x)
'''
AFTER = '''"""A script."""
from gpytorch_sgpvae import FactorNet, AmortizedVariationalDistribution, AmortizedVariationalStrategy
# whose lines are the same otherwise

strategy = AmortizedVariationalStrategy(AmortizedVariationalDistribution(FactorNet(1, None)))
persist_context(model, (x, y))
model(x)
'''


def test_the_committed_study_of_swaps_is_complete():
    runs = ResultFile(dropin.STUDY, FOLDER.parent / "results").read()
    assert set(dropin.planned(dropin.MOST_SEEDS, quick=False)) == set(runs)


def test_a_line_in_place_of_another_is_one_change_and_an_import_statement_is_one_line():
    assert changes(BEFORE, AFTER) == Changes(code=2, imports=1)
    assert changes(AFTER, BEFORE) == Changes(code=2, imports=1)
    assert changes(BEFORE, BEFORE) == Changes(code=0, imports=0)


def test_every_script_is_of_a_notebook_and_has_a_swapped_form():
    names = {notebook.name for notebook in NOTEBOOKS}
    for kind in (ORIGINAL, SWAPPED):
        assert {path.stem for path in (FOLDER / kind).glob("*.py")} == names | {"__init__"}
    assert names >= ATTEMPTS.keys()
    assert all("gpytorch_sgpvae" in source(SWAPPED, name) for name in names)
    assert not any("gpytorch_sgpvae" in source(ORIGINAL, name) for name in names)


@pytest.mark.parametrize("page", ["swapping", "gpytorch"])
def test_the_pages_say_how_many_lines_a_swap_takes(page):
    words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    totals = [changes(source(ORIGINAL, each.name), source(SWAPPED, each.name)).total for each in NOTEBOOKS]
    text = (FOLDER.parents[1] / "docs" / "concepts" / f"{page}.md").read_text(encoding="utf-8")
    assert f"{words[min(totals)]} to {words[max(totals)]} lines" in text


@pytest.mark.parametrize("name", ["multitask_lmc", "updating"])
def test_a_script_and_its_swapped_form_hand_back_the_same_scores(name):
    runs = [ExperimentRun(dropin.STUDY, kind, variant=name) for kind in (ORIGINAL, SWAPPED)]
    original, swapped = (dropin.outcome(run, quick=True) for run in runs)
    assert original["scores"].keys() == swapped["scores"].keys()
    assert all(np.isfinite([*each["scores"].values(), each["loss"]]).all() for each in (original, swapped))


def test_what_does_not_swap_says_what_to_do():
    run = ExperimentRun(dropin.STUDY, dropin.ATTEMPT, variant="natural_gradients")
    assert "refine(model, context)" in dropin.outcome(run, quick=True)["error"]


def test_whether_a_swap_works_follows_from_the_runs():
    ran, failed = [{"scores": {"NLL": 1.0}}], [{"error": "ValueError: no"}]
    name = "batch_decoupled"
    swapped, attempt = (ExperimentRun(dropin.STUDY, kind, variant=name) for kind in (SWAPPED, dropin.ATTEMPT))
    assert dropin.verdict({swapped: ran}, name) == dropin.YES
    assert dropin.verdict({swapped: ran, attempt: failed}, name) == dropin.CHANGED
    assert dropin.verdict({swapped: failed, attempt: failed}, name) == dropin.NO
    assert dropin.verdict({}, name) == dropin.NOT_RUN == dropin.score_text(failed)


@pytest.mark.parametrize("contestant", [ours, svgp])
def test_a_step_has_a_gradient_for_every_parameter(contestant, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "benchmarks.contestants.training_step", lambda parameters, loss: seen.extend(parameters) or loss
    )
    contestant(SHAPES["weather"].shrunk())().backward()
    assert all(parameter.grad is not None for parameter in seen)


@pytest.mark.skipif(not AVAILABLE, reason="sgpvae, the authors' package, is not installed: see benchmarks/peers.txt")
@pytest.mark.parametrize("key", ["weather", "jura"])
def test_the_authors_step_runs_and_leaves_the_default_dtype_alone(key):
    authors(SHAPES[key].shrunk())()
    assert torch.get_default_dtype() == torch.float32
