"""A data set of files, as partitions that fit into memory one at a time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.csv
import pyarrow.dataset

from ..errors import TableError, listed

# Files with more rows are cut between their row groups.
MOST_ROWS = 1_000_000
# Kinds of files, by the ends of their names.
_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".gz": "csv"}


@dataclass(frozen=True)
class Partition:
    """
    Rows that are read and filled together: a file, or some row groups of a large one.

    :param name: The name of its output, below the folder of all outputs.
    :param fragment: What pyarrow reads it by.
    :param num_rows: The number of its rows.
    :param stamp: What changes when its file does.
    """

    name: str
    fragment: Any
    num_rows: int
    stamp: str


@dataclass(frozen=True)
class Source:
    """
    Partitions of one table. It can be sent to other processes, which have to see the same files.

    :param partitions: All of them.
    :param schema: The columns that they have together.
    """

    partitions: list[Partition]
    schema: pyarrow.Schema

    @property
    def num_rows(self) -> int:
        return sum(partition.num_rows for partition in self.partitions)

    def read(self, partition: Partition, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """
        The rows of a partition.

        :param columns: Only these, by default all.
        """
        try:
            return partition.fragment.to_table(schema=self.schema, columns=columns and list(columns))
        except (pyarrow.ArrowException, OSError) as error:
            raise TableError(f"{partition.name} cannot be read: {first_line(error)}") from error

    def frame(self, partition: Partition, columns: Sequence[str]) -> pd.DataFrame:
        """Some columns of a partition as pandas has them."""
        return self.read(partition, columns).to_pandas(ignore_metadata=True)

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise unless the table has all these columns."""
        missing = [name for name in names if name not in self.schema.names]
        if missing:
            raise TableError(
                f"There is no column {missing[0]!r} in the data set, which has {listed(self.schema.names)}."
            )


def is_dataset(source: Any) -> bool:
    """Whether this is a data set of files, and not a table in memory."""
    return isinstance(source, (str, Path, pyarrow.dataset.Dataset)) or (
        isinstance(source, (list, tuple)) and len(source) > 0 and all(isinstance(s, (str, Path)) for s in source)
    )


def open_source(source: Any, most_rows: int = MOST_ROWS) -> Source:
    """
    :param source: A folder (folders in it such as `year=2024` are a column `year`), a file, a list of files, or a
        `pyarrow.dataset.Dataset` of files; Parquet, or CSV with types that pyarrow finds out.
    :param most_rows: Parquet files with more rows are cut between their row groups.
    """
    if not is_dataset(source):
        raise TableError(
            "Expected a folder, a file, a list of files or a pyarrow.dataset.Dataset, got a "
            f"{type(source).__name__}. Tables in memory have fit and transform."
        )
    dataset = source if isinstance(source, pyarrow.dataset.Dataset) else _open(source)
    fragments = list(_fragments(dataset))
    if not fragments:
        raise TableError(f"There are no tables in {_name(source)}: give a folder with Parquet or CSV files.")
    if any(getattr(fragment, "path", None) is None for fragment in fragments):
        raise TableError("The data set is one in memory: give files, or fit and transform a table.")
    folder = os.path.commonpath([os.path.dirname(fragment.path) for fragment in fragments])
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        folder = os.path.abspath(source)
    try:
        schema = dataset.schema
        if not isinstance(source, pyarrow.dataset.Dataset) and len(fragments) > 1:  # a column may be empty in the first
            schemas = [fragment.physical_schema.remove_metadata() for fragment in fragments]
            schema = pyarrow.unify_schemas(_alike([*schemas, schema.remove_metadata()]), promote_options="permissive")
        partitions = [p for fragment in fragments for p in _partitions(fragment, folder, most_rows)]
    except (pyarrow.ArrowException, OSError) as error:
        raise TableError(f"{_name(source)} cannot be read as one table: {first_line(error)}") from error
    names = [partition.name for partition in partitions]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise TableError(f"Two files of the data set would have the same output, {twice[0]}: rename one.")
    return Source(partitions, schema)


def partition_columns(partition: Partition) -> list[str]:
    """The columns that the names of a partition's folders say."""
    return list(pyarrow.dataset.get_partition_keys(partition.fragment.partition_expression))


def first_line(error: Exception) -> str:
    """What an error says first, as a sentence."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".") + "."


def _open(source: Any) -> pyarrow.dataset.Dataset:
    paths = [os.path.abspath(path) for path in ([source] if isinstance(source, (str, Path)) else source)]
    for path in paths:
        if not os.path.exists(path):
            raise TableError(f"There is no file or folder {path}.")
    first = Path(paths[0])
    if first.is_dir():
        if len(paths) > 1:
            raise TableError("Give one folder, or a list of files.")
        inside = sorted(path for path in first.rglob("*") if path.is_file() and not path.name.startswith((".", "_")))
        others = [path for path in inside if path.suffix.lower() not in _FORMATS]
        if not inside or others:
            what = f"holds {others[0].relative_to(first)}, which is neither" if others else "holds neither"
            raise TableError(f"{first} {what} a Parquet nor a CSV file: give a folder with nothing but tables.")
        suffixes = {path.suffix.lower() for path in inside}
        arguments: Any = str(first)
    else:
        suffixes = {Path(path).suffix.lower() for path in paths}
        arguments = paths
    kinds = {_FORMATS.get(suffix) for suffix in suffixes}
    if len(kinds) > 1 or None in kinds:
        raise TableError(f"Expected files of one kind, Parquet or CSV, got {listed(sorted(suffixes))}.")
    kind: Any = kinds.pop()
    if kind == "csv":
        convert = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
        kind = pyarrow.dataset.CsvFileFormat(convert_options=convert)
    try:
        return pyarrow.dataset.dataset(arguments, format=kind, partitioning="hive")
    except (pyarrow.ArrowException, OSError) as error:
        raise TableError(f"{_name(source)} cannot be read as one table: {first_line(error)}") from error


def _alike(schemas: list[pyarrow.Schema]) -> list[pyarrow.Schema]:
    """The same schemas, with plain labels where a column is in dictionary encoding in some files and not in others."""
    kinds: dict[str, set[pyarrow.DataType]] = {}
    for field in itertools.chain.from_iterable(schemas):
        kinds.setdefault(field.name, set()).add(field.type)
    plain = {}
    for name, found in kinds.items():
        encoded = [kind for kind in found if pyarrow.types.is_dictionary(kind)]
        if encoded and len(found) > 1:
            plain[name] = encoded[0].value_type
    return [
        pyarrow.schema([field.with_type(plain.get(field.name, field.type)) for field in schema]) for schema in schemas
    ]


def _fragments(dataset: pyarrow.dataset.Dataset) -> Iterator[Any]:
    for child in getattr(dataset, "children", None) or []:
        yield from _fragments(child)
    if not getattr(dataset, "children", None):
        yield from sorted(dataset.get_fragments(), key=lambda fragment: getattr(fragment, "path", ""))


def _partitions(fragment: Any, folder: str, most_rows: int) -> Iterator[Partition]:
    path = PurePosixPath(fragment.path)
    inside = Path(os.path.relpath(path, folder)) if not folder.startswith("//") else Path(path.name)
    name = inside.parent / inside.name.split(".")[0]
    info = fragment.filesystem.get_file_info(fragment.path)
    stamp = f"{fragment.path} {info.size} {info.mtime_ns}"
    num_rows = fragment.count_rows()
    groups = getattr(fragment, "row_groups", None)
    if num_rows <= most_rows or not groups or len(groups) == 1:
        yield Partition(f"{name}.parquet", fragment, num_rows, stamp)
        return
    ends = itertools.accumulate(group.num_rows for group in groups)
    numbers = [(end - 1) // most_rows for end in ends]
    for number, (_, found) in enumerate(itertools.groupby(range(len(groups)), key=numbers.__getitem__)):
        ids = list(found)
        rows = sum(groups[i].num_rows for i in ids)
        part = fragment.subset(row_group_ids=[groups[i].id for i in ids])
        yield Partition(f"{name}-{number:05d}.parquet", part, rows, f"{stamp} {ids[0]}-{ids[-1]}")


def _name(source: Any) -> str:
    if isinstance(source, (str, Path)):
        return str(source)
    return "The list of files" if isinstance(source, (list, tuple)) else "The data set"
