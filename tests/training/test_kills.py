"""Real signals, to this process and to others."""

from __future__ import annotations

import signal
import sys

import pytest
import soak
import torch
from lightning.pytorch import Callback
from training_runs import assert_same_parameters, make_loader, make_module, make_quiet_trainer, make_tasks

pytestmark = pytest.mark.slow


class Signal(Callback):
    """Sends this process a signal in the middle of a batch."""

    def __init__(self, number, batch, times=1):
        self.number, self.batch, self.times = number, batch, times

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        if trainer.fit_loop.total_batch_idx == self.batch:
            for _ in range(self.times):
                signal.raise_signal(self.number)


def fit(folder, *callbacks, **kwargs):
    module = make_module(hide=0.2)
    trainer = make_quiet_trainer(
        folder, **{"max_epochs": 3, "checkpoint_every": 10_000, "callbacks": callbacks, **kwargs}
    )
    trainer.fit(module, make_loader(), make_loader(make_tasks(seed=3), shuffle=False), ckpt_path="last")
    return module, trainer


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("reference"))[0]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """A run of a real process, 160 steps, that nobody has touched."""
    folder = tmp_path_factory.mktemp("untouched")
    soak.finish(folder, epochs=20, checkpoint_every=10)
    return folder


def test_three_kills_of_real_processes_cost_nothing_but_time(tmp_path, untouched):
    kills = soak.kill_and_resume(tmp_path / "killed", 3, epochs=20, checkpoint_every=2, seconds=0.2, seed=0)
    assert len(kills) == 3
    assert {name for name, _ in kills} == {number.name for number in soak.SIGNALS}
    assert not soak.differing(untouched, tmp_path / "killed")


@pytest.mark.skipif(sys.platform == "win32", reason="a disk is filled up by a file system or a limit that POSIX has")
def test_a_run_whose_disk_was_full_goes_on_as_if_it_had_not_been(tmp_path, untouched):
    _, step = soak.fill_disk_and_resume(tmp_path / "disk" / "run", epochs=20, checkpoint_every=1)
    assert 0 < step < 160
    assert not soak.differing(untouched, tmp_path / "disk" / "run")


@pytest.mark.parametrize("batch", [1, 3, 4, 6])
def test_sigterm_saves_before_it_ends_the_run(tmp_path, reference, batch):
    with pytest.raises(SystemExit):
        fit(tmp_path, Signal(signal.SIGTERM, batch))
    if batch != 3:  # there a validation is due, after which alone the run could be taken up exactly
        assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == batch + 1
    module, _ = fit(tmp_path)
    assert_same_parameters(module, reference)


@pytest.mark.parametrize("batch", [1, 3, 4, 6])
def test_ctrl_c_ends_the_training_with_a_model_that_can_be_used(tmp_path, reference, batch):
    module, trainer = fit(tmp_path, Signal(signal.SIGINT, batch))
    assert trainer.global_step == batch + 1
    x, y = make_tasks()[0]
    assert module.model.eval().predict(x, (x, y)).mean.isfinite().all()
    assert (tmp_path / "curves.png").exists()
    resumed, _ = fit(tmp_path)
    assert_same_parameters(resumed, reference)


def test_the_second_ctrl_c_ends_it_at_once(tmp_path):
    with pytest.raises(SystemExit):
        fit(tmp_path, Signal(signal.SIGINT, 1, times=2))


def test_afterwards_ctrl_c_is_what_it_was(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    fit(tmp_path / "a")
    assert signal.getsignal(signal.SIGINT) is before
    fit(tmp_path / "b", Signal(signal.SIGINT, 1))
    assert signal.getsignal(signal.SIGINT) is before
