"""Windows of long series: where they start, and how they are cut without copying the series."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..context import as_pair
from ..utils.seeds import derive_seed

if TYPE_CHECKING:
    from .task_dataset import TaskDataset


class WindowId(NamedTuple):
    """
    The name of a window.

    :param task: The id of the series that it is cut from.
    :param number: The window's number among those of its series: 0, 1, ... along time.
    """

    task: Any
    number: int


class Windows(Sequence[Callable[[], tuple[Any, Any]]]):
    """
    The windows of all series of a dataset, one series after the other, as functions that cut them out. It keeps
    the number of windows of each series, and the order of its rows where they are not sorted by time.

    :param series: The dataset of whole series.
    :param length: Rows of a window.
    :param stride: Rows from the start of a window to the start of the next.
    :param time_column: The column of x that is the time.
    """

    def __init__(self, series: TaskDataset, length: int, stride: int, time_column: int):
        self.series = series
        self.length = _whole_number("length", length, at_least=1)
        self.stride = _whole_number("stride", stride, at_least=1)
        self.time_column = _whole_number("time_column", time_column)
        if self.stride > self.length:
            raise ValueError(
                f"Windows of {length} rows that start {stride} rows apart leave out the rows between them: expected a "
                "stride of at most length."
            )
        # The number of the first window that is no longer of this series.
        self.ends = list(accumulate(num_windows(n, self.length, self.stride) for n in series.lengths))
        if not len(self):
            raise ValueError(f"There is nothing to cut windows from: none of the {len(series)} tasks has any rows.")
        # The orders of kept series, where they need one; what a function returns is looked at when it is called.
        self.orders: dict[int, Tensor] = {}
        for i in range(len(series)):
            order = None if callable(series.tasks[i]) else self._order(i, *series._fetch(i, seed=0))
            if order is not None:
                self.orders[i] = order

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        return partial(self.cut, range(len(self))[index])

    @property
    def ids(self) -> Sequence[WindowId]:
        """The names of the windows."""
        return _WindowIds(self)

    @property
    def lengths(self) -> list[int]:
        """The number of rows of each window."""
        return [
            min(num_rows, self.length)
            for num_rows in self.series.lengths
            for _ in range(num_windows(num_rows, self.length, self.stride))
        ]

    def locate(self, number: int) -> tuple[int, int]:
        """Find the series that a window is of, and the window's number among those of that series."""
        number = range(len(self))[number]
        series = bisect_right(self.ends, number)
        return series, number - (self.ends[series - 1] if series else 0)

    def cut(self, number: int, epoch_seed: int | None = None) -> tuple[Any, Any]:
        """
        The x and y of a window: views, unless the rows have to be sorted.

        :param number: The window's number among those of all series.
        :param epoch_seed: The seed of the starts of an epoch's windows; None for the fixed starts.
        """
        i, window = self.locate(number)
        # One seed for all windows of the series: they have one offset, and are cut from the same draw of a function.
        seed = derive_seed(epoch_seed, "series", i)
        x, y = self.series._fetch(i, seed)
        order = self._order(i, x, y) if callable(self.series.tasks[i]) else self.orders.get(i)
        offset = None if epoch_seed is None else derive_seed(seed, "offset") % self.stride
        start = first_row(window, self.series.lengths[i], self.length, self.stride, offset)
        rows: slice | Tensor = slice(start, start + self.length)
        if order is not None:
            rows = order[rows]
        return _take(x, rows), _take(y, rows)

    def _order(self, i: int, x: Any, y: Any) -> Tensor | None:
        """The order that sorts a series by time, or None where it is sorted (`N`)."""
        self._check(i, x, y)
        times = x if len(x.shape) == 1 else x[:, self.time_column]
        if not isinstance(times, Tensor):
            times = torch.tensor(times, device="cpu")  # with all its digits, whatever the dataset's dtype
        if bool((times[1:] >= times[:-1]).all()):
            return None
        return times.argsort(stable=True)

    def _check(self, i: int, x: Any, y: Any) -> None:
        """Raise unless x and y are a series of the length that is known of it. Looks at nothing but their shapes."""
        id_, expected = self.series.ids[i], self.series.lengths[i]
        inputs, _ = as_pair((torch.empty(x.shape, device="meta"), torch.empty(y.shape, device="meta")), id_)
        num_rows, num_columns = inputs.shape
        if num_rows != expected:
            raise ValueError(
                f"Task {id_} has {num_rows} rows, but its length was given or found to be {expected}: windows need "
                "series whose length does not change, and TaskDataset(lengths=...) the right ones."
            )
        if not -num_columns <= self.time_column < num_columns:
            raise ValueError(
                f"Task {id_} has x of shape {tuple(x.shape)}, which has no column {self.time_column} for the time: "
                f"expected a time_column from 0 to {num_columns - 1}."
            )


class _WindowIds(Sequence[WindowId]):
    """The ids of windows, made when they are asked for: there may be millions."""

    def __init__(self, windows: Windows):
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        series, number = self.windows.locate(index)
        return WindowId(self.windows.series.ids[series], number)


def num_windows(num_rows: int, length: int, stride: int) -> int:
    """Count the windows of a series: one if it is shorter than a window, none if it has no rows."""
    if num_rows == 0:
        return 0
    return 1 - (-max(num_rows - length, 0) // stride)


def first_row(window: int, num_rows: int, length: int, stride: int, offset: int | None = None) -> int:
    r"""
    The row at which a window starts, of W windows of L rows that are cut s rows apart from a series of N rows. Without
    an offset o window w starts at :math:`\min(w s, N - L)`, and with one at

    .. math::

        \min(\max(w s + o - a, 0), N - L), \qquad
        a = \left\lfloor \tfrac 1 2 (s - 1 + e) \right\rfloor, \qquad e = (W - 1) s - (N - L),

    where a centers the offsets, so that the two ends of the series are left out about equally often. Over all offsets
    windows start at each of :math:`0, \dots, N - L`; of one offset the starts are distinct.

    :param offset: The number of rows by which all windows are moved, from 0 to s - 1; None for the fixed starts.
    """
    last = max(num_rows - length, 0)
    if offset is None:
        return min(window * stride, last)
    excess = (num_windows(num_rows, length, stride) - 1) * stride - last
    center = (stride - 1 + excess) // 2
    return min(max(window * stride + offset - center, 0), last)


def _whole_number(name: str, value: Any, at_least: int | None = None) -> int:
    """An argument as an integer; raises where it is none, or too small."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}.") from None
    if at_least is not None and number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {number}.")
    return number


def _take(values: Any, rows: slice | Tensor) -> Any:
    """Some rows of a tensor or an array."""
    if isinstance(rows, slice):
        return values[rows]
    return values[rows.to(values.device)] if isinstance(values, Tensor) else values[rows.cpu().numpy()]
