"""Labeled arrays as tables, a row for each cell of their grid, and columns as labeled arrays again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..table import TableError
from ..table.errors import listed
from ..table.tasks import DERIVED

# The name of a DataArray without one.
NAMELESS = "value"


@dataclass(frozen=True)
class Roles:
    """
    The names of what is read of a Dataset.

    :param outputs: Variables with holes.
    :param inputs: Coordinates, dimensions or variables that say where a cell is.
    :param task: What tells tasks apart, if anything does.
    :param covariates: Variables without holes that tell of the outputs.
    """

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    task: str | None
    covariates: tuple[str, ...]

    @classmethod
    def of(
        cls,
        data: xr.Dataset,
        outputs: Sequence[str] | None,
        inputs: Sequence[str] | None,
        task: str | None,
        covariates: Sequence[str],
    ) -> Roles:
        """
        Find what was not named: as outputs the floating-point variables with the most dimensions, as inputs all
        dimensions of these that are longer than one, except the task.
        """
        for what, names in (("outputs", outputs), ("inputs", inputs), ("covariates", covariates)):
            if isinstance(names, str):
                raise TableError(f"{what} must be a list of names, got {names!r}.")
        _check_names(data)
        outputs = _usual_outputs(data, covariates) if outputs is None else outputs
        for name in outputs:
            _check_output(data, name)
        if inputs is None:
            inputs = _usual_inputs(data, outputs, task)
        return cls(tuple(outputs), tuple(inputs), task, tuple(covariates))

    @property
    def places(self) -> list[str]:
        """Names of all that a row needs beside outputs and covariates; the source of a task made of dates is one."""
        return [*dict.fromkeys([*self.inputs, *([] if self.task is None else [self.task])])]

    def columns_of(self, data: xr.Dataset) -> list[str]:
        """The names of a table's columns before the outputs."""
        names = []
        for name in self.places:
            derived = None if has(data, name) else DERIVED.fullmatch(name)
            names.append(name if derived is None or name in self.inputs else derived[2])
        return [*dict.fromkeys(names)]


@dataclass(frozen=True)
class Grid:
    """
    The cells of a Dataset, as rows of a table. Along the rows the last dimension runs fastest.

    :param data: The Dataset.
    :param sizes: The length of each dimension, in the order of the first output's.
    """

    data: xr.Dataset
    sizes: Mapping[Hashable, int]

    @classmethod
    def of(cls, data: xr.Dataset, names: Iterable[str], first: Sequence[Hashable] = ()) -> Grid:
        """
        :param data: The Dataset.
        :param names: Names of coordinates, dimensions or variables; the grid has all dimensions that these have.
        :param first: Dimensions that come first, where there are these.
        """
        dims = [dim for name in names for dim in get_variable(data, name).dims]
        order = [*(dim for dim in first if dim in dims), *dims]
        return cls(data, {dim: data.sizes[dim] for dim in dict.fromkeys(order)})

    def column(self, name: str) -> np.ndarray:
        """The value of a coordinate, a dimension or a variable in each cell (`N`)."""
        variable = get_variable(self.data, name)
        if not set(variable.dims) <= set(self.sizes):
            raise TableError(
                f"{name!r} has the dimensions {_dims(variable)}, and the grid to be filled has ({listed(self.sizes)}): "
                "select along the others, or name all that varies along them."
            )
        return variable.set_dims(dict(self.sizes)).transpose(*self.sizes).values.reshape(-1)

    def table(self, names: Iterable[str]) -> pd.DataFrame:
        """The columns of some names, a row for each cell."""
        return pd.DataFrame({name: self.column(name) for name in names})

    def variable(self, values: np.ndarray, dims: Sequence[Hashable] | None = None) -> xr.Variable:
        """
        A column as a variable.

        :param values: A value for each cell (`N`).
        :param dims: The order of its dimensions, by default the grid's.
        """
        variable = xr.Variable(tuple(self.sizes), values.reshape(tuple(self.sizes.values())))
        return variable if dims is None else variable.transpose(*dims)

    def name_cell(self, row: int) -> str:
        """A cell as the owner of the Dataset finds it: `time = 2024-05-01, lat = 40.5`."""
        numbers = np.unravel_index(row, tuple(self.sizes.values()))
        labels = []
        for dim, number in zip(self.sizes, numbers, strict=True):
            label = self.data[dim].values[number]
            date = np.datetime_as_string(label, "auto") if isinstance(label, np.datetime64) else label
            labels.append(f"{dim} = {date}")
        return ", ".join(labels)


def as_dataset(data: Any, name: str | None = None) -> xr.Dataset:
    """
    A DataArray as a Dataset of one variable; a Dataset as it is.

    :param data: The DataArray or Dataset.
    :param name: The name of the variable, by default the DataArray's own.
    """
    if isinstance(data, xr.Dataset):
        return data
    if isinstance(data, xr.DataArray):
        if name is None:
            name = NAMELESS if data.name is None else str(data.name)
        return data.to_dataset(name=name)
    raise TableError(
        f"Expected an xarray DataArray or Dataset, got a {type(data).__name__}. SGPVAEImputer takes tables."
    )


def get_variable(data: xr.Dataset, name: str) -> xr.Variable:
    """The variable of a name; a dimension without a coordinate is counted from 0."""
    if not has(data, name):
        raise TableError(
            f"There is no {name!r} in the Dataset, which has the dimensions {listed(data.sizes) or '(none)'}, the "
            f"coordinates {listed(data.coords) or '(none)'} and the variables {listed(data.data_vars) or '(none)'}."
        )
    return data[name].variable


def check_places(data: xr.Dataset, names: Iterable[str]) -> None:
    """Raise unless coordinates along dimensions have a value everywhere, each once, and are such as can be read."""
    for name in names:
        variable = get_variable(data, name)
        if variable.ndim and variable.dtype == object and hasattr(variable.values.flat[0], "calendar"):
            raise TableError(
                f"The coordinate {name!r} has dates of another calendar ({variable.values.flat[0]!r}): convert it, "
                "such as by data.convert_calendar('standard', use_cftime=False)."
            )
        if variable.dims != (name,):
            continue
        labels = pd.Index(variable.values)
        missing = np.flatnonzero(labels.isna())
        if len(missing):
            raise TableError(
                f"The coordinate {name!r} is missing in {len(missing)} of its {len(labels)} positions, first in "
                f"{missing[0]}: fill it, or leave these out by data.dropna({name!r}) after data.reset_coords."
            )
        again = labels[labels.duplicated()]
        if len(again):
            raise TableError(
                f"The coordinate {name!r} has {again[0]} more than once: take one of each, by "
                f"data.drop_duplicates({name!r}), or their mean, by data.groupby({name!r}).mean()."
            )


def has(data: xr.Dataset, name: Hashable) -> bool:
    """Return whether a Dataset has a variable, a coordinate or a dimension of this name, or can make it."""
    try:
        data[name]
    except (KeyError, ValueError, TypeError):
        return False
    return True


def _dims(variable: Any) -> str:
    return f"({listed(variable.dims)})"


def _check_names(data: xr.Dataset) -> None:
    """Raise unless all names are texts, as those of a table's columns are."""
    for name in (*data.sizes, *data.variables):
        if not isinstance(name, str):
            raise TableError(
                f"{name!r} is the name of a dimension or variable, and a {type(name).__name__}: make it a text, by "
                f"data.rename({{{name!r}: 'x'}})."
            )


def _usual_outputs(data: xr.Dataset, covariates: Sequence[str]) -> list[str]:
    """The floating-point variables that have the most dimensions."""
    numbers = [
        str(name)
        for name, array in data.data_vars.items()
        if array.dtype.kind == "f" and name not in covariates and array.ndim
    ]
    if not numbers:
        raise TableError(
            "There is no variable of floating-point numbers with a dimension, of the variables "
            f"{listed(data.data_vars) or '(none)'}: name the outputs."
        )
    most = max(data[name].ndim for name in numbers)
    chosen = [name for name in numbers if data[name].ndim == most]
    other = [name for name in chosen if set(data[name].dims) != set(data[chosen[0]].dims)]
    if other:
        raise TableError(
            f"{chosen[0]!r} has the dimensions {_dims(data[chosen[0]])} and {other[0]!r} has {_dims(data[other[0]])}: "
            "name the outputs, which have the same dimensions."
        )
    return chosen


def _usual_inputs(data: xr.Dataset, outputs: Sequence[str], task: str | None) -> list[str]:
    """The dimensions of the outputs that are longer than one, without the task; of an index with levels, these."""
    names: list[str] = []
    for dim in dict.fromkeys(dim for name in outputs for dim in data[name].dims):
        if dim != task and data.sizes[dim] > 1:
            index = data.indexes.get(dim)
            names += [str(level) for level in index.names] if isinstance(index, pd.MultiIndex) else [str(dim)]
    names = [name for name in names if name != task]
    if not names:
        raise TableError(
            f"No dimension is longer than one{'' if task is None else f', beside that of the task {task!r}'}, so that "
            "nothing tells cells apart: name the inputs, or give it data with a dimension."
        )
    return names


def _check_output(data: xr.Dataset, name: str) -> None:
    """Raise if there is no such variable, it has no dimension, or holes are not yet NaN in it."""
    variable = get_variable(data, name)
    if not variable.ndim:
        raise TableError(f"{name!r} has no dimensions: there is one value, and nowhere to fill it from.")
    for key in ("_FillValue", "missing_value"):
        marker: Any = variable.attrs.get(key)
        if marker is not None and np.ndim(marker) == 0 and marker == marker and bool((variable == marker).any()):
            raise TableError(
                f"{name!r} has cells that are {marker}, which its attribute {key!r} says are missing: make them NaN, "
                "by xr.decode_cf(data)."
            )
