"""Training on a table."""

from __future__ import annotations

import itertools
import logging
import math
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from conftest import make_table

from gpytorch_sgpvae import Context, MarkovGPVAE
from gpytorch_sgpvae.table import SGPVAEImputer, learning
from gpytorch_sgpvae.table.learning import PATIENCE, Budget, Monitor, for_windows, usual_minutes


class TestBudget:
    @pytest.fixture
    def clock(self, monkeypatch):
        clock = SimpleNamespace(seconds=1e6)
        monkeypatch.setattr(learning.time, "monotonic", lambda: clock.seconds)
        return clock

    def begin(self, clock, **options):
        budget = Budget(**{"num_steps": 100, "minutes": 2.0, **options})
        assert budget.progress == 0  # before it began, however long the machine has been up
        budget.began = clock.seconds
        return budget

    @pytest.mark.parametrize("share_of_time", [0.0, 0.5, 1.0])
    def test_with_time_to_spare_steps_alone_decide(self, clock, share_of_time):
        budget = self.begin(clock)
        for step in range(101):
            budget.step = step
            clock.seconds = 1e6 + 120 * share_of_time * (0.25 + 0.75 * step / 100) - 1e-3
            assert budget.progress == step / 100

    def test_a_machine_that_is_too_slow_ends_when_the_time_is_up(self, clock):
        budget = self.begin(clock)
        found = []
        for step in range(11):
            budget.step, clock.seconds = step, 1e6 + 12 * step
            found.append(budget.progress)
            assert budget.is_late == (step == 10)
        assert found == sorted(found)
        assert found[-1] == 1
        assert found[5] > 0.05

    def test_the_usual_time_is_a_minute_for_a_small_table_and_ten_for_the_largest(self):
        assert usual_minutes(100) == pytest.approx(1.0, abs=0.01)
        assert usual_minutes(40_000) == 3
        assert usual_minutes(10**8) == 10


class TestMonitor:
    def run(self, scores, interval=1, minutes=1e6):
        """Call it as a trainer does, with a model whose parameter is the number of the step."""
        module, remaining = torch.nn.Linear(1, 1, bias=False), iter(scores)
        torch.nn.init.zeros_(module.weight)
        budget = Budget(interval * (len(scores) - 1), minutes)
        monitor = Monitor(budget, lambda: {"val_score": next(remaining)}, interval, 1, progress=False)
        trainer = SimpleNamespace(world_size=1, global_step=0, callback_metrics={}, should_stop=False)
        monitor.on_train_start(trainer, module)
        while not trainer.should_stop and trainer.global_step < budget.num_steps:
            trainer.global_step += 1
            torch.nn.init.constant_(module.weight, trainer.global_step)
            monitor.on_train_batch_end(trainer, module, None, None, 0)
        monitor.finish(module)
        assert not module.training
        return monitor, module.weight.item(), trainer.global_step

    def test_the_parameters_that_were_best_are_kept(self):
        _, best, steps = self.run([5.0, 4.0, 2.0, 3.0, 3.0])
        assert (best, steps) == (2, 4)

    def test_a_start_that_training_makes_worse_is_kept(self):
        assert self.run([1.0, 2.0, 3.0])[1] == 0

    def test_it_stops_when_held_out_entries_are_predicted_no_better(self):
        monitor, best, steps = self.run([5.0, 4.0] + 20 * [4.5], interval=2)
        assert steps == 2 * (1 + PATIENCE)
        assert best == 2
        assert len(monitor.history) == 2 + PATIENCE

    def test_it_goes_on_as_long_as_they_are(self):
        assert self.run([1 / (n + 1) for n in range(20)])[2] == 19

    def test_a_score_that_is_not_finite_is_never_the_best(self):
        assert self.run([5.0, math.nan, 4.0, math.inf])[1] == 2
        assert self.run([math.nan, 4.0, 5.0])[1] == 1

    def test_it_stops_when_the_time_is_up_and_says_so(self, caplog):
        caplog.set_level(logging.INFO, logger="gpytorch_sgpvae")
        _, _, steps = self.run([5.0, 4.0, 3.0, 2.0], minutes=1e-12)
        assert steps == 1
        assert "after 1 of 3 steps" in caplog.text


class TestTrain:
    def make(self, **options):
        return SGPVAEImputer(["day"], ["temp"], "site", compare=False, progress=False, **options)

    def test_it_takes_as_many_steps_as_epochs_say(self):
        table = make_table(num_tasks=4)
        history = self.make(max_epochs=3).fit(table).history_
        assert history["epoch"].max() == 3
        assert (history["step"] == history["epoch"] * history["step"].max() / 3).all()

    def test_the_clock_ends_it(self, caplog):
        caplog.set_level(logging.INFO, logger="gpytorch_sgpvae")
        table = make_table(num_tasks=4)
        imputer = self.make(max_minutes=1e-9).fit(table)
        assert imputer.history_["step"].max() == 1
        assert "A larger max_minutes may fit better" in caplog.text
        assert imputer.transform(table)["temp"].notna().all()

    def test_the_model_is_the_one_that_predicted_held_out_entries_best(self, monkeypatch):
        scorers = []

        class Recorded(learning.Scorer):
            def __init__(self, *args):
                super().__init__(*args)
                scorers.append(self)

        monkeypatch.setattr(learning, "Scorer", Recorded)
        history = self.make(max_epochs=6).fit(make_table(num_tasks=4)).history_
        assert scorers[0]()["val_score"] == history["val_score"].min() < history["val_score"].iloc[0]

    def test_the_speed_of_the_machine_does_not_change_the_model(self, monkeypatch):
        """This holds as long as there is time to spare."""
        table, found = make_table(num_tasks=3), []
        for speed in (0.0, 0.2):
            clock = itertools.count()
            monkeypatch.setattr(learning.time, "monotonic", lambda clock=clock, speed=speed: 1e6 + speed * next(clock))
            found.append(self.make(max_epochs=3).fit(table).transform(table))
        pd.testing.assert_frame_equal(*found)


@pytest.fixture(scope="module")
def fitted():
    outputs = ["temp", "rain", "cars", "wet"]
    imputer = SGPVAEImputer(["day"], outputs, "site", max_epochs=1, compare=False, progress=False)
    return imputer.fit(make_table(num_tasks=3)).fitted_


class TestDenseTwin:
    """The dense model that training takes in the place of a Markov one."""

    def test_it_has_the_same_parameters(self, fitted):
        twin = for_windows(fitted.model, fitted.plan)
        assert isinstance(fitted.model, MarkovGPVAE)
        assert not isinstance(twin, MarkovGPVAE)
        assert {id(p) for p in twin.parameters()} == {id(p) for p in fitted.model.parameters()}

    def test_it_has_the_same_bound_and_the_same_posterior(self, fitted):
        table = fitted.reader.read(make_table(num_tasks=3))
        twin = for_windows(fitted.model, fitted.plan).eval()
        rows = table.rows[0]
        context = Context(fitted.as_tensor(table.x[rows]), fitted.as_tensor(table.y[rows]))
        with torch.no_grad():
            bounds = [model.elbo(context) for model in (fitted.model, twin)]
            moments = [
                fitted.model.likelihood.value_marginals(model(context.x, context=context, diag=True))
                for model in (fitted.model, twin)
            ]
        torch.testing.assert_close(*bounds)
        for first, second in zip(*moments, strict=True):
            torch.testing.assert_close(first, second)

    def test_other_models_are_their_own(self, fitted):
        plan = type(fitted.plan)(**{**fitted.plan.to_dict(), "kind": "dense"})
        assert for_windows(fitted.model, plan) is fitted.model
