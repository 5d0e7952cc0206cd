"""
A fitted table as a folder: `imputer.json`, which says everything but the parameters, and a file of tensors that it
names. The JSON is replaced last, and at once: whenever a process is killed, the folder holds the old model or the new.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from .. import __version__
from ..utils.files import replacing
from .calibration import Calibration
from .cycles import Cycles
from .errors import TableError
from .fitted import Evidence, FittedTable
from .model import as_dtype, check_device, make_model
from .places import PlaceEffects
from .plan import Plan
from .reading import TableReader
from .trend import Trend

DESCRIPTION = "imputer.json"
KIND = "gpytorch_sgpvae.table"
# To be raised when older versions of this package could no longer read what is written.
FORMAT = 4
# What tensors are called: those of the model, and the arrays of trend and calibration.
MODEL = "model."
PLACES = ("places", "effects", "spread", "weights", "lengthscales")
ARRAYS = (*PLACES, "cycles", "anchors", "factors", "marginal")


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
    torch.save({**tensors_of_model, **_arrays(fitted)}, buffer)
    tensors = f"tensors-{hashlib.sha256(buffer.getvalue()).hexdigest()[:16]}.pt"
    description = {
        "kind": KIND,
        "format": FORMAT,
        "version": __version__,
        "parameters": {**_plain(parameters), "dtype": str(next(model.parameters()).dtype).removeprefix("torch.")},
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
    plan, trend = Plan(**description["plan"]), description["trend"]
    size = plan.num_inducing or 0, len(reader.inputs)  # where they are is among the tensors
    dtype, device = as_dtype(dtype or parameters["dtype"]), device or "cpu"
    model = make_model(reader.outputs, plan, torch.zeros(size)).to(device=device, dtype=dtype)
    path = folder / description["tensors"]
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        arrays = {name: state.pop(name).numpy() for name in ARRAYS}
        model.load_state_dict({name.removeprefix(MODEL): value for name, value in state.items()})
    except Exception as error:
        raise TableError(f"{path} is damaged or missing: save the model again. ({type(error).__name__})") from error
    places = PlaceEffects(trend["place_inputs"], *(arrays[name] for name in PLACES))
    cycles = Cycles(trend["periods"], trend["harmonics"], arrays["cycles"])
    failed = tuple(description["not_calibrated"])
    calibration = Calibration(arrays["anchors"], arrays["factors"], arrays["marginal"], failed)
    evidence = None if description["evidence"] is None else Evidence(**description["evidence"])
    fitted = FittedTable(
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


def _comparison(description: dict[str, Any]) -> pd.DataFrame:
    frame = pd.DataFrame(description["data"], index=pd.Index(description["index"], name="output"))
    if len(frame):
        frame.columns = pd.MultiIndex.from_tuples(map(tuple, description["columns"]), names=["score", "method"])
    return frame


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
    if description["format"] < FORMAT:
        raise TableError(
            f"{folder} was saved in format {description['format']}, of another kind of model; this version reads "
            f"format {FORMAT}. Fit the table again."
        )
    return description


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """Those that belong to the fit, as JSON can hold them: sequences as lists, mappings as dictionaries."""
    plain = {name: value for name, value in parameters.items() if name not in ("device", "dtype", "progress")}
    for name in ("inputs", "outputs", "covariates"):
        plain[name] = list(plain[name])
    for name in ("periodic", "families"):
        plain[name] = None if plain[name] is None else dict(plain[name])
    return plain
