from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import xarray as xr

from ..table import SGPVAEImputer, TableError
from ..table.errors import listed
from ..table.filling import ADDED
from .cells import MEANINGS, CellsToFill, as_type, describe, known_table, needed, places_of
from .grids import Grid, Roles, as_dataset, check_places

# The dimension of draws.
SAMPLE = "sample"
# Dask's threads fill their chunks one after the other: torch has threads of its own, and global settings.
ONE_AT_A_TIME = threading.Lock()


class GridImputer:
    r"""
    Fills the holes of a gridded field, with error bars: a :class:`xarray.DataArray` or :class:`xarray.Dataset` in, the
    same out, with its dimensions, coordinates, attributes, encodings and types. It is a
    :class:`~gpytorch_sgpvae.table.SGPVAEImputer` of the table that has a row for each cell. With outputs
    :math:`y_p`, such as temperature and chlorophyll, at cells :math:`\mathbf x`, such as time, latitude and longitude,

    .. math::

        h_j(\mathbf x) = \sum_k w_{jk} f_k(\mathbf x) + \sum_i v_{ji} \, g_{ji}(\mathbf x) + b_j, \qquad
        p(y_p(\mathbf x) \mid \text{all known cells of all outputs})

    so that a hole is filled from what is around it in space and time, and from the other variables there.

    The grid need not be regular: inputs may be coordinates of any dimensions, such as `lat(y, x)` of a swath or
    `lat(station)`. Variables that do not vary along all dimensions, such as the elevation, can be inputs or covariates.
    Whatever is not named is left as it is.

    :param outputs: Variables with holes, all of the same dimensions; by default the floating-point variables that have
        the most dimensions. A DataArray is one output.
    :param inputs: Coordinates, dimensions or variables that say where a cell is, also such as `"time.dayofyear"`. By
        default all dimensions of the outputs that are longer than one, without the task. A dimension without a
        coordinate is counted from 0.
    :param task: A dimension, or another coordinate, along which cells say nothing of each other, such as the members of
        an ensemble; or what makes tasks of dates, such as `"week(time)"`. By default the field is one task.
    :param covariates: Variables without holes that tell of the outputs and are never filled: a reanalysis, say.
    :param options: Options of :class:`~gpytorch_sgpvae.table.SGPVAEImputer`: `periodic={"lon": 360}` for a field around
        the globe, `families`, `max_minutes`, `max_epochs`, `num_inducing`, `compare`, `seed`, `progress` and so on.

    :ivar imputer\_: The fitted :class:`~gpytorch_sgpvae.table.SGPVAEImputer`, with its `comparison_`, `families_` and
        scores; :meth:`to_table` has the tables that it takes.

    Example:
        >>> import numpy as np, pandas as pd, xarray as xr
        >>> from gpytorch_sgpvae.xarray import GridImputer
        >>> time, lat = pd.date_range("2024-05-01", periods=20), np.linspace(40, 42, 6)
        >>> values = 15 + np.sin(np.arange(20) / 3)[:, None] + 0.5 * np.cos(3 * lat)
        >>> sst = xr.DataArray(values, {"time": time, "lat": lat}, name="sst", attrs={"units": "°C"})
        >>> cloudy = sst.where(np.random.default_rng(0).random(sst.shape) < 0.6)
        >>> imputer = GridImputer(max_epochs=1, compare=False, progress=False).fit(cloudy)
        >>> filled = imputer.transform(cloudy)
        >>> int(cloudy.isnull().sum()), int(filled.isnull().sum()), filled.dims, filled.attrs
        (58, 0, ('time', 'lat'), {'units': '°C'})
        >>> list(imputer.transform(cloudy, intervals=True))
        ['sst', 'sst_std', 'sst_lower', 'sst_upper', 'sst_filled']
        >>> finer = imputer.predict({"lat": np.linspace(40, 42, 11)}, context=cloudy)
        >>> dict(finer.sst.sizes)
        {'time': 20, 'lat': 11}
    """

    def __init__(
        self,
        outputs: Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        task: str | None = None,
        *,
        covariates: Sequence[str] = (),
        **options: Any,
    ):
        SGPVAEImputer([], [], **options)  # which knows the options
        self.outputs = outputs
        self.inputs = inputs
        self.task = task
        self.covariates = covariates
        self.options = options

    def fit(self, data: xr.DataArray | xr.Dataset) -> GridImputer:
        """
        Learn from a field with holes. Data of Dask are loaded: fit a part of those that are larger than memory.

        :param data: The field.
        """
        dataset = as_dataset(data)
        roles = Roles.of(dataset, self.outputs, self.inputs, self.task, self.covariates)
        inputs, outputs, covariates = list(roles.inputs), list(roles.outputs), list(roles.covariates)
        imputer = SGPVAEImputer(inputs, outputs, roles.task, covariates=covariates, **self.options)
        self._take(imputer.fit(known_table(dataset, roles)))
        return self

    def transform(
        self, data: xr.DataArray | xr.Dataset, intervals: bool = False, where: xr.DataArray | None = None
    ) -> xr.DataArray | xr.Dataset:
        """
        The field with its holes filled; everything else is as it was.

        If the task is a dimension and the data are Dask's, so is what is returned: it is filled when it is computed, a
        chunk of tasks at a time. Other data of Dask are loaded.

        :param data: A field with the variables and dimensions of the one that was fitted; coordinates, lengths and
            tasks may be others.
        :param intervals: Whether to add, for each output NAME, `NAME_std`, `NAME_lower` and `NAME_upper` (a 95 %
            interval), empty where a value was known, and `NAME_filled`, whether it was not. A DataArray then becomes a
            Dataset.
        :param where: False for cells that are not to be filled, such as land, along any of the dimensions.
        """
        dataset, roles = self._read(data)
        if intervals:
            taken = [f"{name}_{end}" for name in roles.outputs for end in ADDED if f"{name}_{end}" in dataset.variables]
            if taken:
                raise TableError(f"The Dataset already has {listed(taken)}, which are to be added: rename them.")
        part = needed(dataset, roles, where)
        is_lazy = roles.task in dataset.dims and any(dataset[name].chunks is not None for name in roles.outputs)
        filled = self._fill_lazily(part, intervals) if is_lazy else self._fill(part, intervals)
        changed = {}
        for name in roles.outputs:
            changed[name] = dataset[name].variable.copy(data=filled[name].data)
            for column in [f"{name}_{end}" for end in ADDED] if intervals else []:
                changed[column] = describe(filled[column].variable, column, name, dataset)
        if isinstance(data, xr.DataArray) and not intervals:
            return data.copy(data=changed[roles.outputs[0]].data)
        return dataset.assign(changed)

    def fit_transform(
        self, data: xr.DataArray | xr.Dataset, intervals: bool = False, where: xr.DataArray | None = None
    ) -> xr.DataArray | xr.Dataset:
        """Learn from a field and fill it, as :meth:`fit` and :meth:`transform` do."""
        return self.fit(data).transform(data, intervals, where)

    def predict(
        self, at: Mapping[Hashable, Any] | xr.DataArray | xr.Dataset, context: xr.DataArray | xr.Dataset
    ) -> xr.Dataset:
        """
        Predict the outputs at other coordinates: a finer grid, days to come, single points. For each output NAME there
        are `NAME` (the mean; of a count rounded; of flags and categories the most probable label), `NAME_std`,
        `NAME_lower` and `NAME_upper` (a 95 % interval).

        :param at: Coordinates by their names, as for :obj:`xarray.Dataset.interp`: arrays along a dimension of that
            name each, single values, or DataArrays that share a dimension, for points. Or a DataArray or Dataset, of
            which the coordinates, and covariates if there are any, are taken. What it lacks is taken from the context.
        :param context: What is known, as for :meth:`transform`.
        """
        known, roles = self._read(context)
        places = places_of(at, known, roles)
        check_places(places, roles.columns_of(places))
        names = [*roles.columns_of(places), *roles.covariates]
        grid = Grid.of(places, names, known[roles.outputs[0]].dims)
        predicted = self.imputer_.predict(grid.table(names), known_table(known, roles))
        variables = {}
        for name in roles.outputs:
            for column in [name, *(f"{name}_{end}" for end in MEANINGS if f"{name}_{end}" in predicted)]:
                values = as_type(predicted[column].to_numpy(), known[name].dtype)
                variables[column] = describe(grid.variable(values), column, name, known)
        coordinates = {name: array for name, array in places.coords.items() if set(array.dims) <= set(grid.sizes)}
        return xr.Dataset(variables, coordinates)

    def sample(
        self, data: xr.DataArray | xr.Dataset, n: int, where: xr.DataArray | None = None
    ) -> xr.DataArray | xr.Dataset:
        """
        Draw n filled fields, along a first dimension `sample` of the outputs: each is one of the ways the missing
        values may have been. The spread of a mean over a region is that of the samples' means there. Draws are joint
        over a whole series over time, and over blocks of neighboring cells in other fields.

        :param data: As for :meth:`transform`.
        :param n: How many.
        :param where: False for cells that are not to be filled, along any of the dimensions.
        """
        dataset, roles = self._read(data)
        if SAMPLE in dataset.variables or SAMPLE in dataset.dims:
            raise TableError(f"The Dataset already has {SAMPLE!r}, which is to be added: rename it.")
        cells = CellsToFill(needed(dataset, roles, where), roles)
        draws = self.imputer_.sample(cells.table, n)
        changed = {}
        for name in roles.outputs:
            stacked = xr.Variable.concat([cells.put(name, draw[name]) for draw in draws], SAMPLE)
            variable = dataset[name].variable
            changed[name] = xr.Variable(stacked.dims, stacked.data, variable.attrs, variable.encoding)
        result = dataset.assign(changed)
        return result[roles.outputs[0]].rename(data.name) if isinstance(data, xr.DataArray) else result

    def to_table(self, data: xr.DataArray | xr.Dataset) -> pd.DataFrame:
        """
        The table that is fitted and filled, a row for each cell, for methods of `imputer_` and for reports.

        :param data: As for :meth:`transform`.
        """
        dataset, roles = self._read(data)
        return known_table(dataset, roles)

    def save(self, path: str | Path) -> None:
        """
        Write the fitted model to a folder, as :meth:`SGPVAEImputer.save() <gpytorch_sgpvae.table.SGPVAEImputer.save>`
        does.

        :param path: Path of the folder; a model that is there is replaced.
        """
        self._fitted().save(path)

    @classmethod
    def load(
        cls, path: str | Path, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
    ) -> GridImputer:
        """
        A model that was saved, here or on another machine.

        :param path: Path of the folder.
        :param device: To compute on, by default the CPU.
        :param dtype: To compute with, by default that of the fit.
        """
        imputer = SGPVAEImputer.load(path, device, dtype)
        options = imputer.get_params(deep=False)
        names = {name: options.pop(name) for name in ("outputs", "inputs", "task", "covariates")}
        loaded = cls(**names, **options)
        loaded._take(imputer)
        return loaded

    def __repr__(self) -> str:
        names = {"outputs": self.outputs, "inputs": self.inputs, "task": self.task, "covariates": self.covariates}
        given = {name: value for name, value in {**names, **self.options}.items() if value not in (None, ())}
        return f"GridImputer({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def _take(self, imputer: SGPVAEImputer) -> None:
        self.imputer_ = imputer

    def _fitted(self) -> SGPVAEImputer:
        if not hasattr(self, "imputer_"):
            raise TableError("This GridImputer has not been fitted yet: call fit(data) first.")
        return self.imputer_

    def _read(self, data: Any) -> tuple[xr.Dataset, Roles]:
        """A field as a Dataset with the names that were fitted, and these names."""
        fitted = self._fitted()
        names = (fitted.outputs, fitted.inputs, fitted.covariates)
        outputs, inputs, covariates = (tuple(map(str, some or ())) for some in names)  # a grid has names for all
        roles = Roles(outputs, inputs, None if fitted.task is None else str(fitted.task), covariates)
        if isinstance(data, xr.DataArray) and len(roles.outputs) > 1:
            raise TableError(
                f"The model has the outputs {listed(roles.outputs)}, and a DataArray is one: pass a Dataset of all."
            )
        dataset = as_dataset(data, roles.outputs[0])
        return dataset, Roles.of(dataset, roles.outputs, roles.inputs, roles.task, roles.covariates)

    def _fill(self, part: xr.Dataset, intervals: bool) -> xr.Dataset:
        """The outputs of the needed part of a Dataset, filled, and what is added with intervals."""
        _, roles = self._read(part)
        cells = CellsToFill(part, roles)
        with ONE_AT_A_TIME:
            filled = self._fitted().transform(cells.table, intervals)
        result = {}
        for name in roles.outputs:
            result[name] = cells.put(name, filled[name])
            for end in ADDED if intervals else ():
                result[f"{name}_{end}"] = cells.added(name, end, filled[f"{name}_{end}"])
        return xr.Dataset(result)

    def _fill_lazily(self, part: xr.Dataset, intervals: bool) -> xr.Dataset:
        """The same, a chunk of tasks at a time, when it is computed."""
        _, roles = self._read(part)
        whole = part.chunk({dim: -1 for dim in part.dims if dim != roles.task})
        template = {}
        for name in roles.outputs:
            template[name] = whole[name].variable
            for end in ADDED if intervals else ():
                dtype = bool if end == "filled" else template[name].dtype
                template[f"{name}_{end}"] = xr.zeros_like(template[name], dtype=dtype)
        return whole.map_blocks(self._fill, kwargs={"intervals": intervals}, template=xr.Dataset(template))
