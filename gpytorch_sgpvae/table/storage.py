"""
A fitted imputer as a folder: `imputer.json`, which says everything but the parameters, and a file of tensors that it
names. The JSON is replaced last, and at once: whenever a process is killed, the folder holds the old model or the new.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from .. import __version__
from ..utils.files import replacing
from .errors import TableError
from .families import OutputColumn
from .inputs import InputColumn
from .model import check_device, make_model
from .places import PlaceEffects
from .reading import TableReader

if TYPE_CHECKING:
    from .imputer import SGPVAEImputer

DESCRIPTION = "imputer.json"
KIND = "gpytorch_sgpvae.table"
# To be raised when older versions of this package could no longer read what is written.
FORMAT = 1
# What tensors are called: those of the model, and the arrays of the places' effects.
MODEL = "model."
PLACES = ("places", "effects", "spread")


def save_imputer(imputer: SGPVAEImputer, folder: Path) -> None:
    reader, model = imputer._fitted_reader, imputer.model_
    if folder.is_file():
        raise TableError(f"{folder} is a file: a model is saved as a folder. Choose another name.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / DESCRIPTION).exists():
        raise TableError(f"{folder} holds other files and no saved model: choose another folder, or an empty one.")
    buffer = io.BytesIO()
    tensors_of_model = {f"{MODEL}{name}": value.cpu() for name, value in model.state_dict().items()}
    places = imputer._places
    arrays = {name: torch.tensor(getattr(places, name)) for name in PLACES}
    torch.save({**tensors_of_model, **arrays}, buffer)
    tensors = f"tensors-{hashlib.sha256(buffer.getvalue()).hexdigest()[:16]}.pt"
    parameters = imputer.get_params(deep=False)
    del parameters["device"], parameters["progress"]
    description = {
        "kind": KIND,
        "format": FORMAT,
        "version": __version__,
        "parameters": {**_plain(parameters), "dtype": str(next(model.parameters()).dtype).removeprefix("torch.")},
        "inputs": [asdict(column) for column in reader.inputs],
        "outputs": [asdict(column) for column in reader.outputs.columns],
        "columns": reader.known,
        "place_inputs": places.inputs,
        "num_latents": model.model.variational_strategy.num_tasks,
        "num_inducing": model.strategy.inducing_points.shape[-2],
        "history": imputer.history_.to_dict("list"),
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


def load_imputer(
    cls: type[SGPVAEImputer], folder: Path, device: str | torch.device | None, dtype: str | torch.dtype | None
) -> SGPVAEImputer:
    check_device(device)
    description = _read_description(folder)
    parameters = description["parameters"]
    imputer = cls(**parameters, device=device)
    if dtype is not None:
        imputer.dtype = dtype
    inputs = [InputColumn(**column) for column in description["inputs"]]
    outputs = [OutputColumn(**{**column, "levels": tuple(column["levels"])}) for column in description["outputs"]]
    reader = TableReader(inputs, outputs, parameters["task"], description["columns"])
    # of the right size; where they are is among the tensors
    points = imputer._as_tensor(np.zeros((description["num_inducing"], len(inputs))))
    periodic = [column.period is not None for column in inputs]
    model = make_model(reader.outputs, periodic, parameters["network"], description["num_latents"], points)
    path = folder / description["tensors"]
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        places = PlaceEffects(description["place_inputs"], *(state.pop(name).numpy() for name in PLACES))
        model.load_state_dict({name.removeprefix(MODEL): value for name, value in state.items()})
    except Exception as error:
        raise TableError(f"{path} is damaged or missing: save the model again. ({type(error).__name__})") from error
    imputer._reader, imputer._places = reader, places
    imputer.model_ = model.eval()
    imputer.history_ = pd.DataFrame(description["history"])
    return imputer


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
    return description


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """As JSON can hold them: sequences as lists, mappings as dictionaries."""
    plain = dict(parameters)
    for name in ("inputs", "outputs"):
        plain[name] = list(plain[name])
    for name in ("periodic", "families"):
        plain[name] = None if plain[name] is None else dict(plain[name])
    del plain["dtype"]
    return plain
