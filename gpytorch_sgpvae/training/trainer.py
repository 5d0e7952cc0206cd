from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from ..utils.files import naming_full_disks
from .checkpoints import AtomicCheckpointIO, BestCheckpoint, RunCheckpoint
from .curves import TrainingCurves


def make_trainer(
    folder: str | Path | None,
    log: str | None = None,
    checkpoint_every: int = 100,
    monitor: str | None = None,
    patience: int | None = None,
    **kwargs: Any,
) -> Trainer:
    """
    A :class:`lightning.pytorch.Trainer` for a run that can be left alone. In its folder it keeps `last.ckpt`, to go on
    from with `trainer.fit(..., ckpt_path="last")`, and the checkpoint before it, `previous.ckpt`, in case of damage;
    `best.ckpt`, if a score is monitored; `curves.png`; and logs. Ctrl-C ends the training after the present step, and
    leaves the model as it is then.

    :param folder: The folder of the run; None for a run that leaves nothing behind.
    :param log: `"csv"` or `"tensorboard"`.
    :param checkpoint_every: Steps between two checkpoints: what a kill can cost at the most.
    :param monitor: The score whose best model is kept: `"val_elbo"`, `"val_mae"`, `"val_nll"`.
    :param patience: The number of validations without a better score after which training stops.
    :param kwargs: Passed to the Trainer: `max_epochs`, `accelerator`, `devices`, `gradient_clip_val`, `precision`, ....

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.training import make_trainer
        >>> trainer = make_trainer(None, max_epochs=2, gradient_clip_val=100.0)
        >>> trainer.max_epochs
        2
    """
    if patience is not None and monitor is None:
        raise ValueError("patience= needs to know with which score: pass monitor= too.")
    callbacks = [*_as_list(kwargs.pop("callbacks", None)), FinishStepOnInterrupt()]
    mode = "max" if monitor == "val_elbo" else "min"
    if patience is not None:
        callbacks.append(EarlyStopping(monitor, patience=patience, mode=mode))
    if folder is not None:
        if monitor is not None:
            callbacks.append(BestCheckpoint(folder, monitor, mode))
        callbacks += [TrainingCurves(Path(folder) / "curves.png"), RunCheckpoint(folder, checkpoint_every)]
    return Trainer(
        **{
            "default_root_dir": folder,
            "logger": _make_logger(folder, log),
            "enable_checkpointing": folder is not None,
            "enable_model_summary": False,
            **kwargs,
            "callbacks": callbacks,
            "plugins": [*_as_list(kwargs.pop("plugins", None)), AtomicCheckpointIO()],
        }
    )


class FinishStepOnInterrupt(Callback):
    """
    Ctrl-C (SIGINT) stops the training after the present step, as if it had come to its end: `fit` returns, the script
    goes on, and the model is whole. A second one interrupts at once. With several processes it is left to Lightning.

    :ivar interrupted: Whether that has happened.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._before: Any = None
        self._trainer: Trainer | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size == 1 and threading.current_thread() is threading.main_thread():
            self._trainer = trainer
            self._before = signal.signal(signal.SIGINT, self._stop)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restore()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        assert self._trainer is not None
        if self._trainer.should_stop:
            raise KeyboardInterrupt
        rank_zero_info("Stopping after this step. Interrupt again to stop at once.")
        self._trainer.should_stop = self.interrupted = True

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = self._trainer = None


class RunLog(CSVLogger):
    """Lightning's log as a file of comma-separated values, which says so in a sentence when its disk is full."""

    def save(self) -> None:
        with naming_full_disks(self.log_dir):
            super().save()


def _make_logger(folder: str | Path | None, log: str | None) -> Logger | bool:
    if log is None:
        return False
    if folder is None:
        raise ValueError(f"log={log!r} needs a folder to write to.")
    if log == "csv":
        return RunLog(folder, name="csv")
    if log == "tensorboard":
        return TensorBoardLogger(folder, name="tensorboard")
    raise ValueError(f'There is no logger {log!r}: choose "csv" or "tensorboard", or pass a Trainer argument logger=.')


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
