"""
A fitted table as a folder: `imputer.json`, which says everything but the parameters, and a file of tensors that it
names. The JSON is replaced last, and at once: whenever a process is killed, the folder holds the old model or the new.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from .. import __version__
from ..utils.files import replacing
from .errors import TableError
from .fitted import FittedTable
from .model import as_dtype, check_device, make_model
from .places import PlaceEffects
from .reading import TableReader

DESCRIPTION = "imputer.json"
KIND = "gpytorch_sgpvae.table"
# To be raised when older versions of this package could no longer read what is written.
FORMAT = 3
# What tensors are called: those of the model, and the arrays of the places' effects.
MODEL = "model."
PLACES = ("places", "effects", "spread")


def save_table(folder: Path, fitted: FittedTable, parameters: dict[str, Any]) -> None:
    """
    Write a fitted table to a folder, whole or not at all.

    :param folder: A new or empty folder, or one with a model that is replaced.
    :param fitted: The fitted table.
    :param parameters: What it was fitted with, the constructor's arguments.
    """
    reader, model = fitted.reader, fitted.model
    if folder.is_file():
        raise TableError(f"{folder} is a file: a model is saved as a folder. Choose another name.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / DESCRIPTION).exists():
        raise TableError(f"{folder} holds other files and no saved model: choose another folder, or an empty one.")
    buffer = io.BytesIO()
    tensors_of_model = {f"{MODEL}{name}": value.cpu() for name, value in model.state_dict().items()}
    arrays = {name: torch.tensor(getattr(fitted.effects, name)) for name in PLACES}
    torch.save({**tensors_of_model, **arrays}, buffer)
    tensors = f"tensors-{hashlib.sha256(buffer.getvalue()).hexdigest()[:16]}.pt"
    description = {
        "kind": KIND,
        "format": FORMAT,
        "version": __version__,
        "parameters": {**_plain(parameters), "dtype": str(next(model.parameters()).dtype).removeprefix("torch.")},
        **reader.to_dict(),
        "place_inputs": fitted.effects.inputs,
        "num_latents": model.model.variational_strategy.num_tasks,
        "num_inducing": model.strategy.inducing_points.shape[-2],
        "history": fitted.history.to_dict("list"),
        "tensors": tensors,
    }
    text = json.dumps(description, indent=2, allow_nan=True)
    with replacing(folder / tensors) as file:
        file.write(buffer.getvalue())
    with replacing(folder / DESCRIPTION) as file:
        file.write(text.encode())
    for old in [*folder.glob("tensors-*.pt"), *folder.glob("*.part")]:
        if old.name != tensors:
            old.unlink()


def load_table(
    folder: Path, device: str | torch.device | None, dtype: str | torch.dtype | None
) -> tuple[FittedTable, dict[str, Any]]:
    """
    The fitted table in a folder, and the parameters that it was fitted with.

    :param folder: What :func:`save_table` wrote to.
    :param device: To compute on, by default the CPU.
    :param dtype: To compute with, by default that of the fit.
    """
    check_device(device)
    description = _read_description(folder)
    parameters = description["parameters"]
    reader = TableReader.from_dict(description)
    # of the right size; where they are is among the tensors
    size = description["num_inducing"], len(reader.inputs)
    points = torch.zeros(size, dtype=as_dtype(dtype or parameters["dtype"]), device=device or "cpu")
    periodic = [column.period is not None for column in reader.inputs]
    model = make_model(reader.outputs, periodic, parameters["network"], description["num_latents"], points)
    path = folder / description["tensors"]
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        effects = PlaceEffects(description["place_inputs"], *(state.pop(name).numpy() for name in PLACES))
        model.load_state_dict({name.removeprefix(MODEL): value for name, value in state.items()})
    except Exception as error:
        raise TableError(f"{path} is damaged or missing: save the model again. ({type(error).__name__})") from error
    return FittedTable(reader, effects, model.eval(), pd.DataFrame(description["history"])), parameters


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    if not path.is_file():
        raise TableError(f"There is no saved model in {folder}: it should hold a file {DESCRIPTION}.")
    try:
        description = json.loads(path.read_text())
        if description["kind"] != KIND:
            raise ValueError(description["kind"])
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(f"{path} is not the description of a saved model: save the model again.") from error
    if description["format"] > FORMAT:
        raise TableError(
            f"{folder} was saved by gpytorch_sgpvae {description['version']}, in format {description['format']}; this "
            f"is {__version__}, which reads formats up to {FORMAT}. Update the package."
        )
    if description["format"] < 3:  # tasks were columns, and all outputs were to be filled
        task = description["parameters"]["task"]
        description["task"] = None if task is None else {"name": task}
        description["num_filled"] = len(description["outputs"])
    return description


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """Those that belong to the fit, as JSON can hold them: sequences as lists, mappings as dictionaries."""
    plain = {name: value for name, value in parameters.items() if name not in ("device", "dtype", "progress")}
    for name in ("inputs", "outputs"):
        plain[name] = list(plain[name])
    for name in ("periodic", "families"):
        plain[name] = None if plain[name] is None else dict(plain[name])
    return plain
