from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.figure import Figure

from ..plotting import TRAINING_PANELS, plot_training_curves, training_panels
from ..utils.files import replacing

# Beyond this many points of a curve every second one is dropped: a night's run does not make a checkpoint grow.
MOST_POINTS = 4000


class TrainingCurves(Callback):
    """
    Draws how a run went, when it ends and when it is interrupted. The curves are part of the run's checkpoints: those
    of a resumed run are whole.

    :param path: File of the picture.

    :ivar dict history: The steps and the values of each name.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.history: dict[str, tuple[list[int], list[float]]] = {}

    @property
    def state_key(self) -> str:
        return self._generate_state_key(picture=self.path.name)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self._take(trainer, validation=False)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._take(trainer, validation=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._write(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = state_dict["history"]

    def draw(self) -> Figure:
        """The curves as a picture."""
        num_panels = len(training_panels(self.history))
        figure = Figure(figsize=(4.5 * num_panels, 3.5), layout="constrained")
        plot_training_curves(self.history, figure.subplots(1, num_panels))
        return figure

    def _take(self, trainer: Trainer, validation: bool) -> None:
        for name in (name for names in TRAINING_PANELS.values() for name in names):
            value = trainer.callback_metrics.get(name)
            if value is None or name.startswith("val_") != validation:
                continue
            steps, values = self.history.setdefault(name, ([], []))
            if steps and steps[-1] >= trainer.global_step:
                continue
            steps.append(trainer.global_step)
            values.append(float(value))
            if len(steps) > MOST_POINTS:
                self.history[name] = (steps[::2], values[::2])

    def _write(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero or not self.history:
            return
        try:
            with replacing(self.path) as file:
                self.draw().savefig(file, format="png", dpi=120)
        except OSError as error:  # a picture must not cost the run its last checkpoint, nor hide why it ended
            warnings.warn(f"The training curves were not drawn: {error}", stacklevel=2)
