from __future__ import annotations

import csv
import errno
from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from training_runs import make_loader, make_module, make_quiet_trainer, make_tasks

from gpytorch_sgpvae.training import TrainingCurves
from gpytorch_sgpvae.training.curves import MOST_POINTS
from gpytorch_sgpvae.utils.files import DiskFullError


def fit(trainer, **kwargs):
    trainer.fit(make_module(), make_loader(), make_loader(make_tasks(seed=3), shuffle=False), **kwargs)
    return trainer


def curves_of(trainer):
    return next(callback for callback in trainer.callbacks if isinstance(callback, TrainingCurves))


class TestLogging:
    def test_csv(self, tmp_path):
        fit(make_quiet_trainer(tmp_path, log="csv", max_epochs=2))
        with (tmp_path / "csv" / "version_0" / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len([row for row in rows if row["train_elbo"]]) == 8
        assert len([row for row in rows if row["val_nll"]]) == 2

    def test_a_resumed_run_keeps_the_log_of_the_first(self, tmp_path):
        fit(make_quiet_trainer(tmp_path, log="csv", max_epochs=1))
        fit(make_quiet_trainer(tmp_path, log="csv", max_epochs=2), ckpt_path="last")
        assert {path.name for path in (tmp_path / "csv").iterdir()} == {"version_0", "version_1"}

    def test_tensorboard(self, tmp_path):
        fit(make_quiet_trainer(tmp_path, log="tensorboard", max_epochs=1))
        assert list((tmp_path / "tensorboard" / "version_0").glob("events.out.tfevents.*"))

    def test_a_full_disk_is_told_in_a_sentence(self, tmp_path, monkeypatch):
        def full(logger):
            raise OSError(errno.ENOSPC, "No space left on device")

        trainer = make_quiet_trainer(tmp_path, log="csv", max_epochs=1)
        monkeypatch.setattr(CSVLogger, "save", full)
        with pytest.raises(DiskFullError, match=r"csv.* could not be written: there is no room for it .*: make room"):
            trainer.logger.save()

    def test_an_unknown_one_is_an_error(self, tmp_path):
        with pytest.raises(ValueError, match='no logger \'wandb\': choose "csv" or "tensorboard"'):
            make_quiet_trainer(tmp_path, log="wandb")

    def test_a_log_needs_a_folder(self):
        with pytest.raises(ValueError, match="log='csv' needs a folder"):
            make_quiet_trainer(None, log="csv")


class TestCurves:
    def test_they_are_a_picture_at_the_end(self, tmp_path):
        trainer = fit(make_quiet_trainer(tmp_path, max_epochs=2))
        assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
        history = curves_of(trainer).history
        assert history["train_elbo"][0] == list(range(1, 9))
        assert history["val_mae"][0] == [4, 8]
        titles = [axes.get_title() for axes in curves_of(trainer).draw().axes]
        assert titles == [
            "ELBO per observed value (nats)",
            "held-out error",
            "coverage of the 95 % interval",
            "hyperparameters",
        ]

    def test_those_of_a_resumed_run_are_whole(self, tmp_path):
        fit(make_quiet_trainer(tmp_path, max_epochs=1))
        trainer = fit(make_quiet_trainer(tmp_path, max_epochs=2), ckpt_path="last")
        assert curves_of(trainer).history["train_elbo"][0] == list(range(1, 9))
        assert curves_of(trainer).history["val_mae"][0] == [4, 8]

    def test_they_are_thinned_out_before_they_grow_too_long(self):
        curves = TrainingCurves("curves.png")

        for step in range(1, 3 * MOST_POINTS):
            trainer = SimpleNamespace(callback_metrics={"train_elbo": 1.0}, global_step=step)
            curves._take(trainer, validation=False)
        steps, values = curves.history["train_elbo"]
        assert len(steps) == len(values) <= MOST_POINTS
        assert steps[0] == 1
        assert steps[-1] == 3 * MOST_POINTS - 1
        assert steps == sorted(steps)

    def test_single_batches_are_shown_with_their_mean(self):
        curves = TrainingCurves("curves.png")
        steps = list(range(1, 101))
        curves.history = {"train_elbo": (steps, [float(step % 2) for step in steps])}
        (axes,) = curves.draw().axes
        raw, mean = axes.get_lines()
        assert len(raw.get_xdata()) == 100
        assert mean.get_xdata().tolist() == list(range(20, 101))
        assert mean.get_ydata() == pytest.approx(0.5)


class TestMakeTrainer:
    def test_patience_stops_by_the_monitored_score(self, tmp_path):
        trainer = make_quiet_trainer(tmp_path, max_epochs=3, monitor="val_elbo", patience=2)
        (stopping,) = [callback for callback in trainer.callbacks if isinstance(callback, EarlyStopping)]
        assert (stopping.monitor, stopping.mode, stopping.patience) == ("val_elbo", "max", 2)

    def test_patience_needs_a_score(self):
        with pytest.raises(ValueError, match="pass monitor= too"):
            make_quiet_trainer(None, patience=2)

    def test_without_a_folder_nothing_is_left_behind(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        fit(make_quiet_trainer(None, max_epochs=1))
        assert not list(tmp_path.iterdir())

    def test_arguments_of_the_trainer_get_through(self, tmp_path):
        trainer = make_quiet_trainer(
            tmp_path, max_epochs=7, gradient_clip_val=3.0, callbacks=TrainingCurves("other.png")
        )
        assert trainer.max_epochs == 7
        assert trainer.gradient_clip_val == 3.0
        assert len([callback for callback in trainer.callbacks if isinstance(callback, TrainingCurves)]) == 2
