"""Tables of several libraries: each is read as pandas', and what is made of it goes back as the kind that came."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import check_array

from .errors import TableError, TableWarning

# The kinds of tables that can be asked for, whatever came.
CONTAINERS = ("default", "pandas", "polars")
# The numbers of the rows whose cells have changed, by the name of a column.
Cells = Mapping[str, np.ndarray]


class GivenFrame:
    """
    A table as it came, beside the same as pandas has it. This class is for pandas' own tables.

    :param table: The table as it came.
    :param frame: The table as pandas has it, whose columns are named by text.
    :param features: The names of its columns, or None if they came without, as those of an array do.
    """

    def __init__(self, table: Any, frame: pd.DataFrame, features: Sequence[str] | None):
        self.table, self.frame, self.features = table, frame, features

    def filled(self, result: pd.DataFrame, cells: Cells) -> Any:
        """
        The table with some cells changed, and with columns added at its end; all else is as it was.

        :param result: The frame after that, as pandas has it.
        :param cells: The cells that have changed.
        """
        if self.features is not None:
            return result
        labels, added = self.table.columns, result.columns[self.table.shape[1] :]
        return result.set_axis(pd.Index([*labels, *added], tupleize_cols=False) if len(added) else labels, axis=1)

    def emptied(self, result: pd.DataFrame, cells: Cells) -> Any:
        """
        The table with some cells emptied.

        :param result: The frame after that, as pandas has it.
        :param cells: The cells.
        """
        return self.filled(result, cells)

    def made(self, result: pd.DataFrame, typed: bool = True) -> Any:
        """
        Another table of this kind.

        :param result: The other table, as pandas has it.
        :param typed: Whether columns that both tables have keep their type, if it can hold what they have now.
        """
        return result

    def listed(self, result: pd.DataFrame) -> Any:
        """
        A table with a name for each of its rows, such as scores of outputs: a column of names where rows have none.

        :param result: The table, as pandas has it.
        """
        return result

    def contained(self, filled: Any, result: pd.DataFrame, container: str) -> Any:
        """
        A filled table as one of the kind that was asked for.

        :param filled: The table, of the kind that came.
        :param result: The same, as pandas has it.
        :param container: One of :data:`CONTAINERS`.
        """
        if container == "default":
            return filled
        if container == "pandas":
            return self._to_pandas(filled, result)
        return self._to_polars(filled, result)

    def _to_pandas(self, filled: Any, result: pd.DataFrame) -> pd.DataFrame:
        return result

    def _to_polars(self, filled: Any, result: pd.DataFrame) -> Any:
        import polars

        return polars.from_pandas(result)


class GivenEncodedFrame(GivenFrame):
    """A table of pandas with columns in Arrow's dictionary encoding. While one works with it they are categories."""

    def __init__(self, table: pd.DataFrame, frame: pd.DataFrame, features: Sequence[str] | None):
        frame = frame.copy(deep=False)
        for place in np.flatnonzero([_is_dictionary(kind) for kind in frame.dtypes]):
            labels = frame.iloc[:, place].to_numpy(dtype=object, na_value=None)  # pandas cannot encode holes directly
            frame.isetitem(int(place), pd.Categorical(labels))
        super().__init__(table, frame, features)

    def filled(self, result: pd.DataFrame, cells: Cells) -> pd.DataFrame:
        return super().filled(self.made(result), cells)

    def made(self, result: pd.DataFrame, typed: bool = True) -> pd.DataFrame:
        kinds = dict(zip(self.frame.columns, self.table.dtypes, strict=True))
        like = {name: kinds[name] for name in result.columns if _is_dictionary(kinds.get(name))}
        return result.astype(like) if typed else result


class GivenArray(GivenFrame):
    """An array of two dimensions. What is made of it are arrays too, whose columns have no names."""

    def filled(self, result: pd.DataFrame, cells: Cells) -> np.ndarray:
        if result.shape[1] == self.table.shape[1]:
            return result.to_numpy(dtype=self.table.dtype)
        return self.made(result)

    def made(self, result: pd.DataFrame, typed: bool = True) -> np.ndarray:
        if self.table.dtype == object or all(kind.kind == "b" for kind in result.dtypes):
            return result.to_numpy()
        return result.to_numpy(dtype=np.result_type(self.table.dtype, np.float32), na_value=np.nan)


class GivenArrowTable(GivenFrame):
    """A table of pyarrow."""

    def filled(self, result: pd.DataFrame, cells: Cells) -> Any:
        from .arrow_table import ArrowTable

        names = [name for name, rows in cells.items() if len(rows)]
        values = {name: (cells[name], result[name].iloc[cells[name]]) for name in names}
        added = {name: result[name] for name in result.columns if name not in self.frame.columns}
        return self._with(ArrowTable("the table", self._part(names)).changed(values, added).table)

    def emptied(self, result: pd.DataFrame, cells: Cells) -> Any:
        from .arrow_table import ArrowTable

        return self._with(ArrowTable("the table", self._part(list(cells))).emptied(cells).table)

    def made(self, result: pd.DataFrame, typed: bool = True) -> Any:
        from .arrow_table import from_frame

        made = from_frame(result.reset_index(drop=True), "the result")
        if typed:
            like = self._part([name for name in result.columns if name in self.frame.columns], rows=0)
            made = made.typed_as(like.schema)
        return self._own(made.table.replace_schema_metadata(None))

    def listed(self, result: pd.DataFrame) -> Any:
        return self.made(result.reset_index())

    def _to_pandas(self, filled: Any, result: pd.DataFrame) -> pd.DataFrame:
        return filled.to_pandas()

    def _to_polars(self, filled: Any, result: pd.DataFrame) -> Any:
        import polars

        return filled if isinstance(filled, polars.DataFrame) else polars.DataFrame(filled)

    def _part(self, names: Sequence[str], rows: int | None = None) -> Any:
        """A table of pyarrow with some columns, or with more."""
        return self.table

    def _with(self, part: Any) -> Any:
        """The table with the columns of a part."""
        return part

    def _own(self, table: Any) -> Any:
        """A table of pyarrow as one of this kind."""
        return table


class GivenPolarsFrame(GivenArrowTable):
    """A table of Polars. Columns in which nothing changes are the very same ones."""

    def _part(self, names: Sequence[str], rows: int | None = None) -> Any:
        part = self.table.select(names or self.table.columns[:1])  # without a column there would be no rows
        return (part if rows is None else part.head(rows)).to_arrow()

    def _with(self, part: Any) -> Any:
        return self.table.with_columns(self._own(part))

    def _own(self, table: Any) -> Any:
        import polars

        result, kinds = polars.DataFrame(table), self.table.schema
        labels = (polars.Categorical, polars.Enum)
        texts = [name for name in result.columns if kinds.get(name) in labels and result[name].dtype != polars.Boolean]
        return result.with_columns(result[name].cast(kinds[name]) for name in texts)


class GivenLazyFrame(GivenPolarsFrame):
    """A query of Polars. It is collected, and what is made of it are queries too, of tables in memory."""

    def filled(self, result: pd.DataFrame, cells: Cells) -> Any:
        return super().filled(result, cells).lazy()

    def emptied(self, result: pd.DataFrame, cells: Cells) -> Any:
        return super().emptied(result, cells).lazy()

    def made(self, result: pd.DataFrame, typed: bool = True) -> Any:
        return super().made(result, typed).lazy()

    def contained(self, filled: Any, result: pd.DataFrame, container: str) -> Any:
        return filled if container == "default" else super().contained(filled.collect(), result, container)


def read_frame(table: Any) -> GivenFrame:
    """
    Read a table: of pandas, Polars or pyarrow, or what NumPy can make an array of two dimensions of. Columns without
    names are named x0, x1, ..., as scikit-learn names them.

    :param table: The table.

    Example:
        >>> import numpy as np
        >>> from gpytorch_sgpvae.table.frames import read_frame
        >>> given = read_frame(np.array([[0.0, 1.0], [2.0, np.nan]]))
        >>> given.frame.columns.tolist(), given.features
        (['x0', 'x1'], None)
    """
    library, kind = type(table).__module__.split(".")[0], type(table).__name__
    if isinstance(table, pd.DataFrame):
        given = GivenEncodedFrame if any(map(_is_dictionary, table.dtypes)) else GivenFrame
        if table.shape[1] and not any(isinstance(name, str) for name in table.columns):
            return given(table, table.set_axis(number_names(table.shape[1]), axis=1), None)
        return given(table, table, [str(name) for name in table.columns])
    if (library, kind) == ("pyarrow", "Table"):
        return GivenArrowTable(table, _as_pandas(table), table.column_names)
    if (library, kind) == ("polars", "DataFrame"):
        return GivenPolarsFrame(table, _as_pandas(table), table.columns)
    if (library, kind) == ("polars", "LazyFrame"):
        collected = table.collect()
        return GivenLazyFrame(collected, _as_pandas(collected), collected.columns)
    is_array = hasattr(table, "__array__") or hasattr(table, "toarray") or isinstance(table, (list, tuple))
    if library in ("polars", "pyarrow") or isinstance(table, pd.Series) or not is_array:
        raise TableError(
            f"Expected a pandas DataFrame, got a {kind}. Data frames of Polars, tables of pyarrow and arrays of two "
            "dimensions are taken too."
        )
    array = check_array(table, dtype=None, ensure_all_finite=False)
    array = array.astype(object) if array.dtype.kind in "USMm" else array
    frame = pd.DataFrame(array, columns=number_names(array.shape[1]))
    return GivenArray(array, frame.infer_objects() if array.dtype == object else frame, None)


def with_features(given: GivenFrame, features: Sequence[str] | None, number: int) -> GivenFrame:
    """
    A table whose columns are named as those of the table that was fitted, by their places where one of both has no
    names.

    :param given: The table.
    :param features: The names of the columns of the table that was fitted, or None if they had none.
    :param number: The number of them.
    """
    if given.features is not None and features is not None:
        return given
    if given.frame.shape[1] != number:
        raise TableError(
            f"X has {given.frame.shape[1]} features, but SGPVAEImputer is expecting {number} features as input: a "
            "table without names has all columns of the table that was fitted, in their order."
        )
    if features is not None:
        warnings.warn(
            "X does not have valid feature names, but SGPVAEImputer was fitted with feature names: its columns are "
            "taken to be in their order.",
            TableWarning,
            stacklevel=4,
        )
    elif given.features is not None:
        warnings.warn(
            "X has feature names, but SGPVAEImputer was fitted without feature names: columns are told apart by their "
            "places.",
            TableWarning,
            stacklevel=4,
        )
        if not isinstance(given.table, pd.DataFrame):
            raise TableError("A model that was fitted without feature names takes arrays and pandas' tables only.")
    names = number_names(number) if features is None else list(features)
    return type(given)(given.table, given.frame.set_axis(names, axis=1), None)


def number_names(count: int) -> list[str]:
    """
    The names of columns that have none.

    :param count: The number of columns.
    """
    return [f"x{number}" for number in range(count)]


def _is_dictionary(kind: Any) -> bool:
    """Whether a type of a column of pandas is Arrow's for labels that are written once."""
    return isinstance(kind, pd.ArrowDtype) and str(kind).startswith("dictionary")


def _as_pandas(table: Any) -> pd.DataFrame:
    try:
        return table.to_pandas()
    except (ValueError, TypeError) as error:  # those of pyarrow are of these classes
        raise TableError(f"The table has columns that pandas cannot hold: {error}") from error
