"""Checkpoints that can be trusted: whole or not there, without code in them, and of the model at hand."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from .. import __version__
from ..utils.files import is_url
from ..utils.tensor_files import DamagedFileError, check_finite, from_bytes, is_whole, read_tensors, write_tensors

STAMP = "gpytorch_sgpvae"
# To be raised when older versions of this package could no longer read what is written.
FORMAT = 1


LAST, PREVIOUS = "last.ckpt", "previous.ckpt"


class AtomicCheckpointIO(TorchCheckpointIO):
    """
    Writes a checkpoint whole: whenever a process is killed, the file is the old one or the new one, and where there is
    no room for the new one, it is the old one. A checkpoint has its sha256 at its end, which is checked when it is
    read. It is read with `weights_only=True`, so that a checkpoint from a stranger cannot run code. The `last.ckpt` of
    a run that is replaced is kept as `previous.ckpt`, and takes its place, with a warning, if the newer one is damaged.
    A plugin for Lightning's Trainer.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        if is_url(path):  # a store that is no file system
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        path = Path(path)
        previous = _previous(path)
        # A damaged one must not take the place of the last good one.
        write_tensors(path, checkpoint, previous if previous is not None and is_whole(path) else None)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = lambda storage, loc: storage, weights_only: bool | None = None
    ) -> dict[str, Any]:
        if is_url(path):
            return super().load_checkpoint(path, map_location, weights_only=True)
        path = Path(path)
        previous = _previous(path)
        try:
            return read_tensors(path, map_location)
        except (DamagedFileError, FileNotFoundError) as error:
            if previous is None or not is_whole(previous):
                raise
            warnings.warn(
                f"{_reason(path, error)} The checkpoint before it, {previous.name}, takes its place: the steps between "
                "the two are taken again.",
                stacklevel=2,
            )
            return read_tensors(previous, map_location)


def _previous(path: Path) -> Path | None:
    """Return the path where the replaced checkpoint is kept, if it is one that a run can go on from."""
    return path.with_name(PREVIOUS) if path.name == LAST else None


def _reason(path: Path, error: Exception) -> str:
    return f"{path} is missing." if isinstance(error, FileNotFoundError) else str(error)


class RunCheckpoint(ModelCheckpoint):
    """
    Keeps `last.ckpt` of a run, for `trainer.fit(..., ckpt_path="last")` to go on from as if the run had never stopped,
    and the one before it as `previous.ckpt`, in case that it is damaged.

    It saves between a step and the next, where no validation is due, and at the ends of epochs: the places from which a
    run is taken up exactly. After SIGTERM (as a cluster sends it) and before an early end it saves at the next of them,
    if there is time for one.

    :param folder: The folder to write to.
    :param every_n_steps: Steps between two checkpoints: what a kill can cost at the most.
    """

    def __init__(self, folder: str | Path, every_n_steps: int = 100):
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, got {every_n_steps}.")
        super().__init__(dirpath=folder, save_last=True, save_top_k=0, enable_version_counter=False)
        self.every_n_steps = every_n_steps
        self._saved_step = 0
        self._last_step = 0
        self._at_end_of_epoch = False

    @property
    def path(self) -> Path:
        return Path(self.dirpath or ".") / f"{self.CHECKPOINT_NAME_LAST}{self.FILE_EXTENSION}"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_step = self._last_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        stepped = trainer.global_step > self._last_step  # else gradients are being accumulated
        self._last_step = trainer.global_step
        if (
            stepped
            and not trainer.is_last_batch
            and not _validation_follows(trainer, batch_idx)
            and self._is_due(trainer)
        ):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # An epoch that was left in its middle is no end of an epoch.
        if trainer.is_last_batch and self._is_due(trainer):
            self._save(trainer, at_end_of_epoch=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pass

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        pass

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_last_batch and trainer.global_step > self._saved_step:
            self._save(trainer, at_end_of_epoch=True)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._at_end_of_epoch:
            _move_to_next_epoch(checkpoint["loops"]["fit_loop"])

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        # A kill can leave the older one alone, where the file system knows no links.
        previous = self.path.with_name(PREVIOUS)
        return super()._find_last_checkpoints(trainer) or ({str(previous)} if previous.exists() else set())

    def _is_due(self, trainer: Trainer) -> bool:
        steps = trainer.global_step - self._saved_step
        # A signal may reach one process before another, and all of them must save together.
        alone = trainer.world_size == 1
        now = (alone and (trainer.received_sigterm or trainer.should_stop)) or trainer.global_step == trainer.max_steps
        return steps >= self.every_n_steps or (steps > 0 and now)

    def _save(self, trainer: Trainer, at_end_of_epoch: bool = False) -> None:
        self._at_end_of_epoch = at_end_of_epoch
        trainer.save_checkpoint(self.path, weights_only=False)  # not the weights only
        self._at_end_of_epoch = False
        self.last_model_path = str(self.path)
        self._saved_step = trainer.global_step


class BestCheckpoint(ModelCheckpoint):
    """
    Keeps `best.ckpt`, the model with the best score so far.

    :param folder: The folder to write to.
    :param monitor: Name of the score.
    :param mode: Whether the best is its `"min"` or its `"max"`.
    """

    def __init__(self, folder: str | Path, monitor: str, mode: str):
        super().__init__(folder, filename="best", monitor=monitor, mode=mode, enable_version_counter=False)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        with warnings.catch_warnings():
            # it is not empty whenever a run is resumed
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
            super().setup(trainer, pl_module, stage)


def _validation_follows(trainer: Trainer, batch_idx: int) -> bool:
    every = trainer.val_check_batch
    if not trainer.enable_validation or every is None:
        return False
    return (batch_idx + 1) % every == 0 or (trainer.fit_loop.total_batch_idx + 1) % every == 0


def _move_to_next_epoch(loop: dict[str, Any]) -> None:
    """
    The state of Lightning's loop as it is when the next epoch begins. A run that counts steps (`max_steps`) would
    otherwise take one batch too many out of the finished epoch.
    """
    for progress in (loop["epoch_progress"]["total"], loop["epoch_progress"]["current"]):
        progress["completed"] = progress["processed"]
    batches = loop["epoch_loop.batch_progress"]
    batches["is_last_batch"] = False
    batches["total"]["completed"] = batches["total"]["processed"]
    batches["current"] = dict.fromkeys(batches["current"], 0)


def stamp_checkpoint(checkpoint: dict[str, Any], state: dict[str, Any]) -> None:
    """Write down what a checkpoint is."""
    checkpoint[STAMP] = {"format": FORMAT, "version": __version__, **state}


def read_checkpoint(path: Path) -> io.BytesIO:
    """The bytes of a checkpoint that is whole, for whoever reads it on: nothing comes between the look and the use."""
    data = path.read_bytes()
    from_bytes(data, str(path))
    return io.BytesIO(data)


def check_checkpoint(checkpoint: dict[str, Any], state_dict: dict[str, Tensor]) -> dict[str, Any]:
    """
    Refuse a checkpoint that is not of the model at hand.

    :param state_dict: The state of that model.
    :return: The stamp that the checkpoint was saved with.
    """
    stamp = checkpoint.get(STAMP)
    if stamp is None:
        raise ValueError("This checkpoint was not written by an SGPVAEModule.")
    if stamp["format"] > FORMAT:
        raise ValueError(
            f"This checkpoint has format {stamp['format']}, of gpytorch_sgpvae {stamp['version']}; version "
            f"{__version__} reads up to {FORMAT}: upgrade gpytorch_sgpvae."
        )
    saved = checkpoint["state_dict"]
    differences = [f"{name} is only in the checkpoint" for name in saved.keys() - state_dict.keys()]
    differences += [f"{name} is only in the model" for name in state_dict.keys() - saved.keys()]
    for name in saved.keys() & state_dict.keys():
        there, here = tuple(saved[name].shape), tuple(state_dict[name].shape)
        # a strategy takes on any number of inducing points
        same = there[-1:] == here[-1:] if name.endswith(".inducing_points") else there == here
        if not same:
            differences.append(f"{name} is {there} in the checkpoint and {here} in the model")
    if differences:
        shown = "\n- ".join(sorted(differences)[:10])
        more = f"\n(and {len(differences) - 10} more)" if len(differences) > 10 else ""
        raise ValueError(
            "This checkpoint is of another architecture: build the model with the sizes and parts it was trained with, "
            f"or start in another folder.\n- {shown}{more}"
        )
    check_finite(saved, state_dict, "This checkpoint")
    return stamp
