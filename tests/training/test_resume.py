"""A run that was stopped and resumed is the run that was not."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from lightning.pytorch import Callback
from training_runs import Recorder, assert_same_parameters, make_loader, make_module, make_quiet_trainer, make_tasks

from gpytorch_sgpvae.training import TaskDataset, TaskLoader, TrainingCurves


class Killed(BaseException):
    pass


class KillBefore(Callback):
    """Ends a run before a batch, without a warning: nothing can be saved any more."""

    def __init__(self, batch):
        self.batch = batch

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.fit_loop.total_batch_idx == self.batch:
            raise Killed


def run(folder, callback=None, num_workers=0, validate=True, dataset=None, **kwargs):
    module = make_module(schedule="cosine", kl_warmup_steps=5, hide=0.2)
    torch.seed()  # what torch's own generator is at has no influence
    recorder = Recorder()
    callbacks = [recorder] if callback is None else [recorder, callback]
    trainer = make_quiet_trainer(folder, callbacks=callbacks, **kwargs)
    # drawing takes longer than all the rest
    trainer.callbacks = [callback for callback in trainer.callbacks if not isinstance(callback, TrainingCurves)]
    dataset = TaskDataset(make_tasks()) if dataset is None else dataset
    loader = TaskLoader(dataset, batch_size=2, group_by_length=True, num_workers=num_workers)
    val_loader = make_loader(make_tasks(seed=3), batch_size=4, shuffle=False) if validate else None
    with suppress(Killed):
        trainer.fit(module, loader, val_loader, ckpt_path="last")
    return module, trainer, recorder


# 4 batches an epoch; what Lightning does at the ends of epochs differs between all of these
SETTINGS = {
    "epochs": {"max_epochs": 3},
    "no validation": {"max_epochs": 3, "validate": False},
    "validation in the middle": {"max_epochs": 3, "val_check_interval": 2},
    "validation now and then": {"max_epochs": 3, "check_val_every_n_epoch": 2},
    "accumulated gradients": {"max_epochs": 3, "accumulate_grad_batches": 3},
    "steps": {"max_epochs": -1, "max_steps": 10},
    "steps without validation": {"max_epochs": -1, "max_steps": 10, "validate": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("checkpoint_every", [1, 3])
def test_a_kill_before_any_batch_costs_nothing_but_time(tmp_path, setting, checkpoint_every):
    kwargs = {"checkpoint_every": checkpoint_every, **SETTINGS[setting]}
    reference, trainer, _ = run(tmp_path / "reference", **kwargs)
    num_batches = trainer.fit_loop.total_batch_idx + 1
    for batch in range(1, num_batches, 1 if checkpoint_every == 1 else 4):
        folder = tmp_path / str(batch)
        run(folder, KillBefore(batch), **kwargs)
        module, resumed, _ = run(folder, **kwargs)
        assert resumed.global_step == trainer.global_step
        assert_same_parameters(module, reference)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_epoch_has_the_batches_that_were_left(tmp_path, num_workers):
    _, _, whole = run(tmp_path / "reference", max_epochs=2, num_workers=num_workers)
    _, _, first = run(tmp_path / "killed", KillBefore(6), max_epochs=2, checkpoint_every=1, num_workers=num_workers)
    _, _, second = run(tmp_path / "killed", max_epochs=2, checkpoint_every=1, num_workers=num_workers)
    assert first.batches[:6] + second.batches == whole.batches


def test_a_run_can_be_killed_again_and_again(tmp_path):
    reference, _, _ = run(tmp_path / "reference", max_epochs=3)
    for batch in (2, 3, 5, 8, 11):
        run(tmp_path / "killed", KillBefore(batch), max_epochs=3, checkpoint_every=1)
    module, _, _ = run(tmp_path / "killed", max_epochs=3, checkpoint_every=1)
    assert_same_parameters(module, reference)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_on_windows_is_resumed_exactly(tmp_path, num_workers):
    """Where windows start belongs to an epoch: 17 of them are 9 batches, and the third kill is between two epochs."""
    kwargs = {"dataset": TaskDataset(make_tasks()).windows(4, 3), "max_epochs": 2, "num_workers": num_workers}
    reference, _, whole = run(tmp_path / "reference", **kwargs)
    batches = []
    for batch in (4, 6, 9, 14):
        _, _, recorder = run(tmp_path / "killed", KillBefore(batch), checkpoint_every=1, **kwargs)
        batches += recorder.batches[:-1]
    module, _, recorder = run(tmp_path / "killed", checkpoint_every=1, **kwargs)
    assert batches + recorder.batches == whole.batches
    assert_same_parameters(module, reference)


def test_a_finished_run_stays_as_it_is_and_can_be_made_longer(tmp_path):
    kwargs = {"validate": False, "checkpoint_every": 2}
    finished, _, _ = run(tmp_path / "run", max_steps=6, max_epochs=-1, **kwargs)
    again, trainer, recorder = run(tmp_path / "run", max_steps=6, max_epochs=-1, **kwargs)
    assert not recorder.batches
    assert trainer.global_step == 6
    assert_same_parameters(again, finished)
    _, trainer, recorder = run(tmp_path / "run", max_steps=9, max_epochs=-1, **kwargs)
    assert trainer.global_step == 9
    assert [batch[:2] for batch in recorder.batches] == [(1, 2), (1, 3), (2, 0)]


def test_scores_of_a_resumed_run_are_those_of_the_other(tmp_path):
    """Early stopping and the best model depend on them."""
    kwargs = {"max_epochs": 6, "monitor": "val_mae", "patience": 1}
    reference, trainer, _ = run(tmp_path / "reference", **kwargs)
    run(tmp_path / "killed", KillBefore(6), checkpoint_every=1, **kwargs)
    module, resumed, _ = run(tmp_path / "killed", checkpoint_every=1, **kwargs)
    assert_same_parameters(module, reference)
    assert resumed.current_epoch == trainer.current_epoch
    for name in ("val_elbo", "val_mae", "val_nll"):
        assert resumed.callback_metrics[name] == trainer.callback_metrics[name]
    best = [
        torch.load(tmp_path / which / "best.ckpt", weights_only=True)["state_dict"] for which in ("reference", "killed")
    ]
    assert all(torch.equal(*pair) for pair in zip(best[0].values(), best[1].values(), strict=True))


def test_an_interrupted_epoch_cannot_be_taken_up_with_other_batches(tmp_path):
    run(tmp_path, KillBefore(2), max_epochs=2, checkpoint_every=1)
    trainer = make_quiet_trainer(tmp_path, max_epochs=2)
    with pytest.raises(
        ValueError, match=r"begun with {'tasks_per_step': 2} cannot be taken up with {'tasks_per_step': 3}"
    ):
        trainer.fit(make_module(), make_loader(batch_size=3), ckpt_path="last")
