"""A night's run is not ended by one bad task."""

from __future__ import annotations

import logging
import math

import gpytorch
import pytest
import torch
from lightning.pytorch import Callback
from linear_operator.utils.errors import NanError, NotPSDError
from training_runs import assert_same_parameters, make_loader, make_module, make_quiet_trainer, make_sgpvae, make_tasks

from gpytorch_sgpvae.training import SGPVAEModule, TaskDataset, TaskLoader, TrainingStoppedError


def with_infinite_output(x, y):
    y[0, 0] = math.inf
    return x, y


def with_missing_input(x, y):
    x[0], y[0] = math.nan, 1.0
    return x, y


def with_overflow(x, y):
    return x, y * 1e200


def with_enormous_outputs(x, y):
    return x, torch.full_like(y, 1e308)


BAD = [with_infinite_output, with_missing_input, with_overflow, with_enormous_outputs]


def tasks_with_a_bad_one(make_bad, where=2):
    tasks = make_tasks()
    tasks[where] = make_bad(*tasks[where])
    return tasks


class Steps(Callback):
    """Which steps moved the parameters."""

    def __init__(self):
        self.moved = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = [parameter.detach().clone() for parameter in pl_module.parameters()]

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pairs = zip(self.before, pl_module.parameters(), strict=True)
        self.moved.append((batch.ids, any(not torch.equal(old, new) for old, new in pairs)))
        assert all(parameter.isfinite().all() for parameter in pl_module.parameters())


def fit(module, tasks, batch_size=2, **kwargs):
    steps = Steps()
    trainer = make_quiet_trainer(callbacks=[steps], **{"max_epochs": 2, **kwargs})
    names = [f"week {i}" for i in range(len(tasks))]
    trainer.fit(module, TaskLoader(TaskDataset(tasks, ids=names), batch_size))
    return trainer, steps


@pytest.mark.parametrize("make_bad", BAD)
def test_a_step_with_a_bad_task_is_skipped_counted_and_logged_with_its_name(make_bad, caplog):
    module = make_module()
    trainer, steps = fit(module, tasks_with_a_bad_one(make_bad))
    assert len(steps.moved) == trainer.global_step == 8
    assert [moved for _, moved in steps.moved] == ["week 2" not in ids for ids, _ in steps.moved]
    assert module.skipped_steps == 2
    assert trainer.callback_metrics["skipped_steps"] == 2
    messages = [record.message for record in caplog.records if record.name == "gpytorch_sgpvae.training"]
    assert len(messages) == 2
    assert all("is skipped: task 'week 2': " in message for message in messages)


def test_the_optimizer_is_as_if_the_step_had_not_been():
    """A bad task in a batch of its own: the run is that of the other tasks, but for the schedule of the seeds."""
    tasks = make_tasks()
    module, reference = make_module(), make_module()

    class DropBad(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            if self.bad:
                optimizer.zero_grad()

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self.bad = batch.ids == [2]

    make_quiet_trainer(max_epochs=2, callbacks=[DropBad()]).fit(reference, make_loader(tasks, batch_size=1))
    bad = tasks_with_a_bad_one(with_infinite_output)
    make_quiet_trainer(max_epochs=2).fit(module, make_loader(bad, batch_size=1))
    assert module.skipped_steps == 2
    assert_same_parameters(module, reference)


@pytest.mark.parametrize(
    "error", [NotPSDError("not positive definite"), NanError("NaN"), torch.linalg.LinAlgError("x")]
)
def test_a_failed_cholesky_is_a_bad_step(error, monkeypatch, caplog):
    module = make_module()
    original = module.elbo

    def elbo(batch, *args, **kwargs):
        if 3 in batch.ids:
            raise error
        return original(batch, *args, **kwargs)

    monkeypatch.setattr(module, "elbo", elbo)
    make_quiet_trainer(max_epochs=1).fit(module, make_loader())
    assert module.skipped_steps == 1
    assert f"task 3: {type(error).__name__}" in caplog.text


def test_a_gradient_that_is_not_finite_is_a_bad_step():
    module = make_module()
    calls = []

    def spoil(gradient):
        calls.append(1)
        return gradient * math.nan if len(calls) == 3 else gradient

    next(module.parameters()).register_hook(spoil)
    _, steps = fit(module, make_tasks(), max_epochs=1)
    assert [moved for _, moved in steps.moved] == [True, True, False, True]
    assert module.skipped_steps == 1


def test_large_gradients_in_float32_are_not_bad():
    """Their squares are not finite, they are."""
    module = SGPVAEModule(make_sgpvae().float())
    next(module.parameters()).register_hook(lambda gradient: gradient.sign() * 1e30)
    tasks = [(x.float(), y.float()) for x, y in make_tasks()]
    _, steps = fit(module, tasks, max_epochs=1)
    assert module.skipped_steps == 0
    assert all(moved for _, moved in steps.moved)


def test_accumulated_gradients_with_a_bad_one_among_them_are_skipped_together():
    module = make_module()
    fit(module, tasks_with_a_bad_one(with_overflow), batch_size=1, accumulate_grad_batches=2, max_epochs=1)
    assert module.skipped_steps == 1


def test_too_many_in_a_row_end_the_training_with_advice(tmp_path):
    tasks = [with_overflow(*task) for task in make_tasks()]
    module = make_module(max_skipped_steps=3, learning_rate=0.0123)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    # the doors for data would stop them
    with gpytorch.settings.debug(False), pytest.raises(TrainingStoppedError) as caught:
        fit(module, tasks)
    message = str(caught.value)
    assert message.startswith("3 training steps in a row had to be skipped")
    for advice in (
        "step 3",
        "learning rate (now 0.012",
        "jitter",
        "gradient_clip_val",
        "look at their data",
        "the bound is not finite",
    ):
        assert advice in message
    assert "float64" not in message  # it is float64 already
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))


def test_in_float32_the_advice_is_float64():
    module = SGPVAEModule(make_sgpvae().float(), max_skipped_steps=1)
    tasks = [(x.float(), y.float() * 1e30) for x, y in make_tasks()]
    with pytest.raises(TrainingStoppedError, match="float64"):
        fit(module, tasks)


def test_the_error_behind_the_last_bad_step_is_not_lost():
    tasks = make_tasks(num_outputs=2)  # the network has three
    with pytest.raises(TrainingStoppedError, match="ValueError") as caught:
        fit(make_module(max_skipped_steps=2), tasks)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_good_step_starts_the_count_anew():
    tasks = make_tasks()
    bad = [with_overflow(*task) if i % 2 else task for i, task in enumerate(tasks)]
    module = make_module(max_skipped_steps=2)
    make_quiet_trainer(max_epochs=2).fit(module, make_loader(bad, batch_size=1, shuffle=False))
    assert module.skipped_steps == 6


def test_a_mistake_in_a_program_ends_it_at_once(monkeypatch):
    module = make_module()
    monkeypatch.setattr(module, "elbo", lambda *args, **kwargs: {}["elbo"])
    with pytest.raises(KeyError):
        fit(module, make_tasks())


@pytest.mark.parametrize("make_bad", BAD)
def test_a_bad_task_is_left_out_of_the_validation(make_bad, caplog):
    """Early stopping would otherwise stop."""
    with caplog.at_level(logging.WARNING):
        bad = make_loader(tasks_with_a_bad_one(make_bad), shuffle=False)
        scores = make_quiet_trainer().validate(make_module(), bad, verbose=False)[0]
    assert set(scores) == {"val_elbo", "val_mae", "val_nll", "val_coverage"}
    assert all(math.isfinite(score) for score in scores.values())
    assert "A batch is left out of the validation: task 2: " in caplog.text


def test_a_limit_below_one_is_an_error():
    with pytest.raises(ValueError, match="max_skipped_steps must be at least 1"):
        make_module(max_skipped_steps=0)
