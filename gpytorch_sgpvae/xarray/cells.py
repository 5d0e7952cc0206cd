"""The cells of a field that are read, filled and predicted, as rows of tables."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..table import TableError
from ..table.errors import listed
from .grids import Grid, Roles, check_places, get_variable, has

# What is added for an output, with the name of the output; and those of the kinds that are in its units.
MEANINGS = {
    "std": "standard deviation of {}",
    "lower": "lower end of the 95 % interval of {}",
    "upper": "upper end of the 95 % interval of {}",
    "probability": "probability of {}",
    "filled": "whether {} was filled",
}
IN_UNITS = ("std", "lower", "upper")
# The name of what says which cells are to be filled.
WHERE = "_where"


def needed(data: xr.Dataset, roles: Roles, where: xr.DataArray | None) -> xr.Dataset:
    """
    The part of a Dataset that filling it takes.

    :param data: The Dataset.
    :param roles: The names of what is read of it.
    :param where: False for cells that are not to be filled.
    """
    names = [*roles.columns_of(data), *roles.covariates, *roles.outputs]
    sources = [name if name in data.variables else name.partition(".")[0] for name in names]
    part = data[[name for name in dict.fromkeys(sources) if name in data.variables]]
    if where is None:
        return part
    if not isinstance(where, xr.DataArray) or where.dtype != bool or not set(where.dims) <= set(data.dims):
        kind = f"{where.dtype} with the dimensions {where.dims}" if isinstance(where, xr.DataArray) else type(where)
        raise TableError(
            f"where must be a DataArray of True and False along some of the dimensions {tuple(data.dims)}, got {kind}."
        )
    part, where = xr.align(part, where, join="exact", copy=False)
    return part.assign({WHERE: where.variable})


def known_table(data: xr.Dataset, roles: Roles) -> pd.DataFrame:
    """
    A row for each cell of a field, to learn from or to be conditioned on. Cells of which nothing is known, and whose
    place is not known either, have none.

    :param data: The Dataset.
    :param roles: The names of what is read of it.
    """
    grid, table = _read(data, roles)
    absent = _absent(table, roles)
    rows = ~absent | table[list(roles.outputs)].notna().any(axis=1).to_numpy()
    _check_present(grid, table, roles, absent & rows)
    return table[rows].reset_index(drop=True)


class CellsToFill:
    """
    The cells of a field that have holes, and those around them.

    :param data: The result of :func:`needed`.
    :param roles: The names of what is read of it.
    """

    def __init__(self, data: xr.Dataset, roles: Roles):
        self.data = data
        self.grid, table = _read(data, roles)
        missing = table[list(roles.outputs)].isna()
        self.wanted = self.grid.column(WHERE) if WHERE in data else np.ones(len(table), dtype=bool)
        self.rows = np.flatnonzero(self.wanted | ~missing.all(axis=1).to_numpy())
        absent = _absent(table, roles)
        _check_present(self.grid, table, roles, absent & self.wanted & missing.any(axis=1).to_numpy())
        self.rows = self.rows[~absent[self.rows]]
        self.table = table.iloc[self.rows].reset_index(drop=True)

    def holes(self, name: str) -> np.ndarray:
        """Whether a cell is to be filled (`N`)."""
        return pd.isna(self.grid.column(name)) & self.wanted

    def put(self, name: str, filled: pd.Series) -> xr.Variable:
        """
        An output with its holes filled.

        :param name: Name of the output.
        :param filled: The filled column of :attr:`table`.
        """
        values, holes = self.grid.column(name).copy(), self.holes(name)
        values[holes] = filled.to_numpy()[holes[self.rows]]
        return self.grid.variable(values, self.data[name].dims)

    def added(self, name: str, end: str, column: pd.Series) -> xr.Variable:
        """
        What is said of an output where it was filled.

        :param name: Name of the output.
        :param end: The kind, a key of :data:`MEANINGS`.
        :param column: The column of that name of the filled :attr:`table`.
        """
        holes = self.holes(name)
        if end == "filled":
            return self.grid.variable(holes, self.data[name].dims)
        values = np.full(len(holes), np.nan, dtype=object if column.dtype.kind not in "fiub" else float)
        values[holes] = column.to_numpy()[holes[self.rows]]
        return self.grid.variable(as_type(values, self.data[name].dtype), self.data[name].dims)


def places_of(at: Mapping[Hashable, Any] | xr.DataArray | xr.Dataset, known: xr.Dataset, roles: Roles) -> xr.Dataset:
    """
    A Dataset of coordinates at which outputs are asked for.

    :param at: Coordinates by their names, or a DataArray or Dataset with coordinates.
    :param known: The Dataset that has the coordinates that these lack.
    :param roles: The names of what is read of it.
    """
    places: xr.Dataset
    if isinstance(at, xr.Dataset):
        places = at
    elif isinstance(at, xr.DataArray):
        places = at.coords.to_dataset()
    elif isinstance(at, Mapping):
        places = xr.Dataset(coords=at)
    else:
        raise TableError(
            "Expected coordinates by their names, such as {'lat': [40.5, 41.0]}, or a DataArray or Dataset with "
            f"coordinates, got a {type(at).__name__}."
        )
    own = {*places.dims, *places.variables}
    needed_names = [*roles.columns_of(known), *roles.covariates]
    if places is not at and not isinstance(at, xr.DataArray):
        _check_read(at, places, needed_names)
    for name in needed_names:
        if has(places, name):
            continue
        variable = get_variable(known, name)
        other = [dim for dim in variable.dims if dim in own]
        if other:
            raise TableError(
                f"{name!r} varies along {other[0]!r}, which has other values where outputs are asked for: pass a "
                f"Dataset that has {name!r} there."
            )
        places = places.assign_coords({name: variable})
    return places


def describe(variable: xr.Variable, column: str, name: str, data: xr.Dataset) -> xr.Variable:
    """
    A variable with attributes that say what it is, in those of the output that it belongs to.

    :param variable: The variable.
    :param column: Its name.
    :param name: Name of the output.
    :param data: The Dataset that has the output.
    """
    attributes = data[name].attrs
    end = column.removeprefix(f"{name}_")
    if column == name or end not in MEANINGS:
        return variable._replace(attrs=dict(attributes))
    found = {"long_name": MEANINGS[end].format(attributes.get("long_name", name))}
    if end in IN_UNITS and "units" in attributes:
        found["units"] = attributes["units"]
    return variable._replace(attrs=found)


def as_type(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floating-point numbers in the type of the output that they belong to."""
    return values.astype(dtype, copy=False) if values.dtype.kind == dtype.kind == "f" else values


def _check_read(at: Mapping[Hashable, Any], places: xr.Dataset, names: list[str]) -> None:
    """Raise if a coordinate was given by a name that nothing is read of: it is misspelled, most likely."""
    read = {name.partition(".")[0] for name in names} | set(names)
    dims = {dim for name in read if name in places.variables for dim in places[name].dims}
    unread = [name for name in at if name not in read | dims]
    if unread:
        raise TableError(
            f"Outputs were asked for at {listed(unread)}, which the model does not know: its inputs are "
            f"{listed(names)}."
        )


def _read(data: xr.Dataset, roles: Roles) -> tuple[Grid, pd.DataFrame]:
    """The grid of the outputs, and a row for each of its cells."""
    names = roles.columns_of(data)
    check_places(data, names)
    grid = Grid.of(data, roles.outputs)
    for name in roles.outputs:
        if set(data[name].dims) != set(grid.sizes):
            raise TableError(
                f"The output {name!r} has the dimensions {data[name].dims}, and others have {tuple(grid.sizes)}: what "
                "varies along fewer dimensions and has no holes may be an input or a covariate."
            )
    return grid, grid.table([*names, *roles.covariates, *roles.outputs])


def _absent(table: pd.DataFrame, roles: Roles) -> np.ndarray:
    """Whether an input or a covariate of a cell is missing (`N`)."""
    return table.drop(columns=list(roles.outputs)).isna().any(axis=1).to_numpy()


def _check_present(grid: Grid, table: pd.DataFrame, roles: Roles, absent: np.ndarray) -> None:
    """Raise if a cell that is needed has no place, or no covariate."""
    rows = np.flatnonzero(absent)
    if not len(rows):
        return
    missing = table.drop(columns=list(roles.outputs)).iloc[rows[0]].isna()
    name = missing.index[missing][0]
    raise TableError(
        f"{name!r} is missing in {len(rows)} cells that are known or to be filled, first at "
        f"{grid.name_cell(int(rows[0]))}: fill it there, or leave these cells out, by transform(data, "
        f"where=data[{name!r}].notnull())."
    )
