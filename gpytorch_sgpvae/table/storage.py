"""
A fitted table as a folder: `imputer.json`, which says everything but the parameters, and a file of tensors that it
names. The JSON is replaced last, and at once: whenever a process is killed, the folder holds the old model or the new.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .. import __version__
from ..utils.files import replacing
from ..utils.json_files import read_json, write_json
from ..utils.locks import LOCK_NAME, locked
from ..utils.tensor_files import DamagedFileError, check_finite, read_tensors, to_bytes
from .calibration import Calibration
from .choice import name_of
from .cycles import Cycles
from .description import TENSORS, DescriptionError, check_description, named_file
from .errors import TableError
from .fitted import Evidence, FittedTable
from .form import TableForm
from .long_format import LongFormat
from .model import as_dtype, check_device, make_model
from .places import PlaceEffects
from .plan import Plan
from .reading import TableReader
from .trend import Trend

DESCRIPTION = "imputer.json"
KIND = "gpytorch_sgpvae.table"
# To be raised when older versions of this package could no longer read what is written.
FORMAT = 8
# The oldest format that is read.
OLDEST_FORMAT = 6
# What tensors are called: those of the model, and the arrays of trend and calibration.
MODEL = "model."
PLACES = ("places", "effects", "deviations", "spread", "weights", "lengthscales")
ARRAYS = (*PLACES, "cycles", "anchors", "factors", "marginal")
# What is said of the machine that computes, and not of the model.
NOT_SAVED = ("device", "devices", "num_nodes", "dtype", "progress")
# What a save that was killed leaves: temporary files, and files of tensors that no description names.
LEFTOVER = re.compile(r"\.sgpvae-[0-9a-f]{12}-[0-9a-f]{16}\.part")
# Between a description and its tensors another process may save a new model: how often to begin anew.
TRIES = 5


def check_folder(folder: Path) -> None:
    """
    Raise unless a model can be saved there.

    :param folder: A new or empty folder, or one with a model that is replaced.
    """
    if folder.exists() and not folder.is_dir():
        raise TableError(f"{folder} is a file: a model is saved as a folder. Choose another name.")
    if folder.is_dir() and not (folder / DESCRIPTION).exists():
        others = sorted(path.name for path in folder.iterdir() if not _is_ours(path.name))
        if others:
            raise TableError(
                f"{folder} holds other files, such as {others[0]}, and no saved model: choose another folder, or an "
                "empty one."
            )


def save_table(folder: Path, fitted: FittedTable, parameters: dict[str, Any]) -> None:
    """
    Write a fitted table to a folder, whole or not at all.

    :param folder: A new or empty folder, or one with a model that is replaced.
    :param fitted: The fitted table.
    :param parameters: The constructor's arguments that the imputer was fitted with.
    """
    reader, model = fitted.reader, fitted.model
    check_folder(folder)
    data = _to_bytes(fitted)
    tensors = f"tensors-{hashlib.sha256(data).hexdigest()[:16]}.pt"
    description = {
        "kind": KIND,
        "format": FORMAT,
        "version": __version__,
        "parameters": {**_plain(parameters), "dtype": str(next(model.parameters()).dtype).removeprefix("torch.")},
        "form": asdict(fitted.form),
        **reader.to_dict(),
        "plan": fitted.plan.to_dict(),
        "trend": {
            "place_inputs": fitted.trend.places.inputs,
            "periods": fitted.trend.cycles.periods,
            "harmonics": fitted.trend.cycles.harmonics,
            "time": fitted.trend.time,
        },
        "not_calibrated": list(fitted.calibration.failed),
        "evidence": None if fitted.evidence is None else asdict(fitted.evidence),
        "history": fitted.history.to_dict("list"),
        "comparison": fitted.comparison.to_dict("split"),
        "tensors": tensors,
    }
    try:
        check_description(json.loads(json.dumps(description)))
    except DescriptionError as error:
        raise TableError(f"The model cannot be saved, because nobody could load it: {error}.") from error
    with locked(folder):
        with replacing(folder / tensors) as file:
            file.write(data)
        write_json(folder / DESCRIPTION, description)
        for old in folder.iterdir():
            if _is_ours(old.name) and old.name not in (tensors, LOCK_NAME):
                old.unlink(missing_ok=True)


def digest_of(fitted: FittedTable) -> str:
    """Compute a digest that tells a fitted table from another that predicts something else."""
    facts = json.dumps([fitted.reader.to_dict(), fitted.plan.to_dict(), str(next(fitted.model.parameters()).dtype)])
    return hashlib.sha256(facts.encode() + _to_bytes(fitted)).hexdigest()


def load_table(
    folder: Path, device: str | torch.device | None, dtype: str | torch.dtype | None
) -> tuple[FittedTable, dict[str, Any]]:
    """
    The fitted table in a folder, and the parameters that it was fitted with.

    :param folder: The folder that :func:`save_table` wrote to.
    :param device: The device to compute on, by default the CPU.
    :param dtype: The dtype to compute with, by default that of the fit.
    """
    check_device(device)
    description, path, state = _read(folder)
    parameters = description["parameters"]
    reader = TableReader.from_dict(description)
    plan, trend = Plan(**description["plan"]), description["trend"]
    arrays = _take_arrays(state, path, description)
    size = plan.num_inducing or 0, len(reader.inputs)  # where they are is among the tensors
    dtype, device = as_dtype(dtype or parameters["dtype"]), device or "cpu"
    model = make_model(reader.outputs, plan, torch.zeros(size)).to(device=device, dtype=dtype)
    _fill(model, {name.removeprefix(MODEL): value for name, value in state.items()}, path)
    places = PlaceEffects(trend["place_inputs"], *(arrays[name] for name in PLACES))
    cycles = Cycles(trend["periods"], trend["harmonics"], arrays["cycles"])
    calibration = Calibration(
        arrays["anchors"], arrays["factors"], arrays["marginal"], tuple(description["not_calibrated"])
    )
    evidence = None if description["evidence"] is None else Evidence(**description["evidence"])
    fitted = FittedTable(
        _form(description["form"]),
        reader,
        plan,
        Trend(places, cycles, trend["time"]),
        model.eval(),
        calibration,
        pd.DataFrame(description["history"]),
        _comparison(description["comparison"]),
        evidence,
    )
    return fitted, parameters


def _to_bytes(fitted: FittedTable) -> bytes:
    """All tensors, as a file."""
    tensors_of_model = {f"{MODEL}{name}": value.cpu() for name, value in fitted.model.state_dict().items()}
    return to_bytes({**tensors_of_model, **_arrays(fitted)})


def _arrays(fitted: FittedTable) -> dict[str, torch.Tensor]:
    """All that is numbers, and no parameter."""
    trend, calibration = fitted.trend, fitted.calibration
    values = (
        *(getattr(trend.places, name) for name in PLACES),
        trend.cycles.coefficients,
        calibration.anchors,
        calibration.factors,
        calibration.marginal,
    )
    return {name: torch.tensor(value) for name, value in zip(ARRAYS, values, strict=True)}


def _form(description: Mapping[str, Any]) -> TableForm:
    features, long = description["features"], description["long"]
    if long is not None:
        long = LongFormat(long["sensor"], long["value"], tuple(long["places"]), tuple(long["sensors"]))
    return TableForm(None if features is None else tuple(features), description["number"], long)


def _renewed(description: dict[str, Any]) -> dict[str, Any]:
    """
    A description of an older format as one of today's: before format 8 no place had an embedding, and before format 7
    all tables were wide, and had names.
    """
    if description["format"] == FORMAT:
        return description
    parameters, columns, plan = (description.get(name) for name in ("parameters", "columns", "plan"))
    if isinstance(plan, dict):
        description = {**description, "plan": {**plan, "num_embedded": 0}}
    if description["format"] < 7 and isinstance(parameters, dict) and isinstance(columns, list):
        form = {"features": columns, "number": len(columns), "long": None}
        return {**description, "parameters": {**parameters, "long": None}, "form": form}
    return description


def _comparison(description: dict[str, Any]) -> pd.DataFrame:
    frame = pd.DataFrame(description["data"], index=pd.Index(description["index"], name="output"))
    if len(frame):
        frame.columns = pd.MultiIndex.from_tuples(map(tuple, description["columns"]), names=["score", "method"])
    return frame


def _take_arrays(state: dict[str, Any], path: Path, description: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Take what is no parameter from the tensors, of the shapes that the description demands."""
    trend, outputs = description["trend"], len(description["outputs"])
    number = len(state["places"]) if getattr(state.get("places"), "ndim", 0) == 2 else 0
    waves = Cycles(trend["periods"], trend["harmonics"], np.zeros((0, outputs))).num_functions
    shapes = {
        "places": (number, len(trend["place_inputs"])),
        "effects": (number, outputs),
        "deviations": (number, outputs),
        "spread": (outputs,),
        "weights": (number, outputs),
        "lengthscales": (outputs, len(trend["place_inputs"])),
        "cycles": (waves, outputs),
        "anchors": (2, outputs),
        "factors": (2, outputs),
        "marginal": (outputs,),
    }
    arrays = {}
    for name, shape in shapes.items():
        value = state.pop(name, None)
        if not isinstance(value, Tensor) or value.shape != shape or value.dtype != torch.float64:
            found = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else "missing"
            raise TableError(f"{path} is damaged: {name} is {found}, expected {shape}. Save the model again.")
        # nothing bounds the deviation of an output whose marginal one is not known
        wrong = value.isnan() if name == "marginal" else ~value.isfinite()
        if wrong.any():
            raise TableError(f"{path} is damaged: {name} has numbers that are not finite. Save the model again.")
        arrays[name] = value.numpy()
    return arrays


def _fill(model: torch.nn.Module, state: dict[str, Any], path: Path) -> None:
    """Give a model its parameters."""
    own = model.state_dict()
    for name in [*own, *state]:
        found = state.get(name)
        shape = tuple(found.shape) if isinstance(found, Tensor) else None
        if name not in own or shape != tuple(own[name].shape):
            expected = f"a tensor of shape {tuple(own[name].shape)}" if name in own else "no such tensor"
            raise TableError(
                f"{path} is damaged: {name[:80]} is {'missing' if shape is None else f'of shape {shape}'}, expected "
                f"{expected}. Save the model again."
            )
    try:
        check_finite(state, own, str(path))
    except DamagedFileError as error:
        raise TableError(str(error)) from error
    model.load_state_dict(state)


def _read(folder: Path) -> tuple[dict[str, Any], Path, dict[str, Any]]:
    """The description, and the tensors that belong to it with the name of their file."""
    for tries in range(TRIES):
        description = _read_description(folder)
        path = named_file(folder, description["tensors"])
        try:
            state = read_tensors(path)
        except FileNotFoundError:
            if tries + 1 < TRIES:
                continue
            raise TableError(f"{path} is missing: save the model again, or take another copy of it.") from None
        except DamagedFileError as error:
            raise TableError(str(error)) from error
        if isinstance(state, dict) and all(isinstance(name, str) for name in state):
            return description, path, state
        raise TableError(f"{path} holds something else than tensors with names: save the model again.")
    raise AssertionError("the last try returns or raises")


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    if not path.is_file():
        raise TableError(f"There is no saved model in {folder}: it should hold a file {DESCRIPTION}.")
    try:
        description = read_json(path)
    except DamagedFileError as error:
        raise TableError(f"{error} If an older version of this package saved it, fit the table again.") from error
    if description.get("kind") != KIND:
        raise TableError(f"{path} is not the description of a saved model: save the model again.")
    found, version = description.get("format"), str(description.get("version"))[:40]
    if isinstance(found, int) and found > FORMAT:
        raise TableError(
            f"{folder} was saved by gpytorch_sgpvae {version}, in format {found}; this is {__version__}, which reads "
            f"formats up to {FORMAT}. Update the package."
        )
    if not isinstance(found, int) or found < OLDEST_FORMAT:
        raise TableError(
            f"{folder} was saved in format {str(found)[:40]}, of another kind of model; this version reads formats "
            f"from {OLDEST_FORMAT} to {FORMAT}. Fit the table again."
        )
    description = _renewed(description)
    try:
        check_description(description)
    except DescriptionError as error:
        raise TableError(f"{path} is not the description of a saved model: {error}. Save the model again.") from error
    return description


def _is_ours(name: str) -> bool:
    return name == LOCK_NAME or TENSORS.fullmatch(name) is not None or LEFTOVER.fullmatch(name) is not None


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """Convert the fit's parameters to what JSON can hold: sequences to lists, mappings to dictionaries."""
    plain = {name: value for name, value in parameters.items() if name not in NOT_SAVED}
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in plain.items()}
    plain["task"] = name_of(plain["task"])
    for name in ("inputs", "outputs", "covariates", "long"):
        plain[name] = None if plain[name] is None else [name_of(column) for column in plain[name]]
    for name in ("periodic", "families"):
        plain[name] = None if plain[name] is None else {name_of(key): value for key, value in plain[name].items()}
    return plain
