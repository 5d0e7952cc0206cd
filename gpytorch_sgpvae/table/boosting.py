"""Boosted trees that fill holes from what is around them: the regression that one would write in an afternoon."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.neighbors import NearestNeighbors

from .baselines import fill_by_interpolation, group_numbers, has_time, series_columns, time_column
from .numbers import is_date, read_anything, read_outputs

# An output with fewer known entries is interpolated.
MIN_ENTRIES = 20
# A feature that is known of fewer entries is left out: scikit-learn refuses one that is known of none, as may happen in
# the nine tenths that are left when it has set entries aside to stop by.
FEWEST_TOLD = 10
# The share of entries that trees learn from with all that surrounds them; others lack what some hole lacks.
WHOLE_SHARE = 0.5
# How many other places an entry is told of, and among how many of the closest these are looked for.
NUM_NEIGHBOURS, NUM_CANDIDATES = 3, 12
# Close rows of tables without a time are looked for if they have at most this many rows, or this many inputs.
MAX_SEARCHED, MAX_DIMENSIONS = 20_000, 3
MAX_ITERATIONS = 300
SECONDS, DAYS_OF_YEAR = 86400, 365.2425


def fill_by_boosting(
    frame: pd.DataFrame,
    inputs: Sequence[str],
    outputs: Sequence[str],
    task: str | None = None,
    *,
    seed: int = 0,
    max_rows: int = 20_000,
    wanted: np.ndarray | None = None,
) -> pd.DataFrame:
    """
    Boosted trees for each output (scikit-learn's `HistGradientBoostingRegressor`). An entry is described by the values
    before and after it in its series, how far away they are, and linear interpolation between them, whose error the
    trees learn; the values a day before and after, the hour, the weekday and the day of the year, where the time is a
    date; the other outputs of its row; the mean of the other places at the same time, and the values of the closest
    three; its inputs. In a table without a time, where no input is a date or named after one, the other places are the
    closest rows. Half of the entries to learn from lack what some hole lacks, so that the trees know long runs of holes
    too.

    Any table is filled: an output with fewer than 20 known entries is interpolated, text is taken for categories, and
    infinite numbers for missing ones. Filled outputs are columns of floating-point numbers, also where they are flags.

    :param frame: The table; NaN is a hole.
    :param inputs: Names of its inputs; see :func:`~gpytorch_sgpvae.table.baselines.time_column` for which is the time.
    :param outputs: The output columns with holes, numbers.
    :param task: Name of the column that tells tasks apart, if there is one.
    :param seed: Seed of what is drawn: entries to learn from, and what they lack.
    :param max_rows: The largest number of entries of an output to learn from.
    :param wanted: True for the entries that trees are to fill, all holes by default (`N x P`). Other holes are
        interpolated, which saves time. The trees are prepared for what the wanted holes lack.

    Example:
        >>> import numpy as np
        >>> import pandas as pd
        >>> from gpytorch_sgpvae.table.boosting import fill_by_boosting
        >>> hours = pd.date_range("2024-01-01", periods=240, freq="h")
        >>> frame = pd.DataFrame({"date": hours, "y": np.sin(2 * np.pi * hours.hour / 24)})
        >>> frame.loc[100:110, "y"] = np.nan  # where linear interpolation is wrong by up to 1.9
        >>> filled = fill_by_boosting(frame, ["date"], ["y"])
        >>> bool((filled["y"] - np.sin(2 * np.pi * hours.hour / 24)).abs().max() < 0.3)
        True
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        filled = fill_by_interpolation(frame, inputs, outputs, task)
        values = read_outputs(frame, outputs)  # (N, P)
        holes = np.isnan(values) if wanted is None else np.isnan(values) & np.asarray(wanted, bool)
        boosted = holes.any(0) & ((~np.isnan(values)).sum(0) >= MIN_ENTRIES)
        if boosted.any():
            table = _Surroundings.read(frame, inputs, values, task)
            for number in np.flatnonzero(boosted).tolist():
                random = np.random.default_rng([seed, number])
                column = filled[outputs[number]].to_numpy(float, copy=True)
                at = np.flatnonzero(holes[table.order, number])
                column[table.order[at]] = _regress(table, number, at, random, max_rows)
                filled[outputs[number]] = column
    return filled


def _regress(
    table: _Surroundings, output: int, holes: np.ndarray, random: np.random.Generator, max_rows: int
) -> np.ndarray:
    """Predict some of an output's holes (positions) from its known entries."""
    column = table.values[:, output]
    rows = random.permutation(np.flatnonzero(~np.isnan(column)))[:max_rows]
    like = np.where(random.random(len(rows)) < WHOLE_SHARE, -1, random.choice(holes, len(rows)))
    features = table.features(output, rows, table.lacking(output, like))
    told = (~np.isnan(features)).sum(0) >= FEWEST_TOLD
    errors = column[rows] - features[:, 0]  # of the guess
    centre, scale = errors.mean(), errors.std()
    unknown = table.features(output, holes, table.lacking(output, np.full(len(holes), -1)))
    if not (np.isfinite(scale) and scale > 0):
        return unknown[:, 0]
    options = {"max_iter": MAX_ITERATIONS, "early_stopping": True, "random_state": int(random.integers(2**31))}
    trees = HistGradientBoostingRegressor(**options)
    trees.fit(features[:, told], (errors - centre) / scale)
    return unknown[:, 0] + centre + scale * trees.predict(unknown[:, told])


@dataclass(frozen=True)
class _Lacking:
    """
    The surroundings that entries are taken to lack.

    :param before: The number of rows before each in its column (`N`).
    :param after: The number of rows after each (`N`).
    :param outputs: True for the outputs of its row (`N x P`).
    :param places: Whether all that other places say (`N`).
    """

    before: np.ndarray
    after: np.ndarray
    outputs: np.ndarray
    places: np.ndarray


@dataclass(frozen=True)
class _Surroundings:
    """
    A table in the order of its series and of time in them. Positions are those in this order, -1 for what is not there.

    :param order: The row of the table that is at each position (`N`).
    :param values: Outputs; NaN is a hole (`N x P`).
    :param times: Times, in days for dates (`N`).
    :param series: The number of each row's series (`N`).
    :param moments: A number that rows of the same task and time share (`N`).
    :param told: Inputs, and what the calendar says of dates (`N x D`).
    :param days: Positions in the same series a day before and after (`N x 2`), where the time is a date (else `N x 0`).
    :param neighbours: Positions of the closest other places at the same time, closest first (`N x C`); of the closest
        rows of the same task, if the table has no time.
    """

    order: np.ndarray
    values: np.ndarray
    times: np.ndarray
    series: np.ndarray
    moments: np.ndarray
    told: np.ndarray
    days: np.ndarray
    neighbours: np.ndarray

    @classmethod
    def read(cls, frame: pd.DataFrame, inputs: Sequence[str], values: np.ndarray, task: str | None) -> _Surroundings:
        time = time_column(frame, inputs)
        dated = is_date(frame[time])
        columns = {name: read_anything(frame[name]) for name in inputs}
        times, tasks = columns[time], [] if task is None else [task]
        series = group_numbers(frame, series_columns(frame, inputs, task))
        order = np.lexsort((times, series))
        times, series = times[order], series[order]
        moments = group_numbers(frame, [*tasks, time])[order]
        calendar = [24 * (times % 1), times // 1 % 7, times % DAYS_OF_YEAR] if dated else []
        if has_time(frame, inputs) or len(inputs) == 1:
            places = [columns[name][order] for name in inputs if name != time]
            neighbours = _neighbours(places, moments)
        else:
            places = [columns[name][order] for name in inputs]
            neighbours = _close_rows(places, group_numbers(frame, tasks)[order])
        return cls(
            order,
            values[order],
            times,
            series,
            moments,
            np.stack([*(columns[name][order] for name in inputs), *calendar], 1),
            _days_around(times, series) if dated else np.empty((len(frame), 0), int),
            neighbours,
        )

    def lacking(self, output: int, holes: np.ndarray) -> _Lacking:
        """
        Find out what holes of an output lack of their surroundings.

        :param holes: The positions of the holes; -1 for nothing at all (`N`).
        """
        column, is_hole = self.values[:, output], holes >= 0
        before, after = self._closest(column, holes, np.zeros(len(holes), int), np.zeros(len(holes), int))
        end = len(column)  # farther than any row
        elsewhere = np.isnan(self._mean_of_others(column, holes)) & np.isnan(_take(column, self.neighbours[holes])).all(
            1
        )
        return _Lacking(
            np.where(is_hole, np.where(before >= 0, holes - before - 1, end), 0),
            np.where(is_hole, np.where(after >= 0, after - holes - 1, end), 0),
            is_hole[:, None] & np.isnan(self.values[holes]),
            is_hole & elsewhere,
        )

    def features(self, output: int, rows: np.ndarray, lacking: _Lacking) -> np.ndarray:
        """
        Gather what trees are told of entries, and never the entries themselves. The first feature is a guess, which is
        always there: linear interpolation, or the mean of the other places, or that of the column (`N x F`).

        :param output: The number of the entries' column.
        :param rows: Positions of the entries (`N`).
        :param lacking: The surroundings that the entries are taken to lack.
        """
        column = self.values[:, output]
        positions = self._closest(column, rows, lacking.before, lacking.after)
        values = [_take(column, found) for found in positions]
        distances = [np.abs(_take(self.times, found) - self.times[rows]) for found in positions]
        gaps = np.stack([lacking.before, lacking.after], 1)
        days = self.days[rows]
        days = np.where(np.abs(days - rows[:, None]) > gaps[:, : days.shape[1]], days, -1)
        others = np.delete(np.where(lacking.outputs, np.nan, self.values[rows]), output, 1)
        elsewhere = np.where(lacking.places, np.nan, self._mean_of_others(column, rows))
        neighbours = _first_known(_take(column, self.neighbours[rows]), NUM_NEIGHBOURS)
        neighbours = np.where(lacking.places[:, None], np.nan, neighbours)
        guess = _first_known(np.stack([_interpolate(*values, *distances), elsewhere], 1), 1)[:, 0]
        guess = np.where(np.isnan(guess), np.nanmean(column), guess)
        return np.column_stack(
            [guess, *values, *distances, _take(column, days), others, elsewhere, neighbours, self.told[rows]]
        )

    def _closest(
        self, column: np.ndarray, rows: np.ndarray, skip_before: np.ndarray, skip_after: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the last known value before each row and of the first one after it, some rows skipped (`N`)."""
        known, positions, end = ~np.isnan(column), np.arange(len(column)), len(column)
        last = np.maximum.accumulate(np.where(known, positions, -1))
        following = np.minimum.accumulate(np.where(known, positions, end)[::-1])[::-1]
        start, stop = rows - skip_before - 1, rows + skip_after + 1
        before = np.where(start >= 0, last[start.clip(min=0)], -1)
        after = np.where(stop < end, following[stop.clip(max=end - 1)], end)
        mine = self.series[rows]
        before = np.where((before >= 0) & (self.series[before] == mine), before, -1)
        return before, np.where((after < end) & (self.series[after.clip(max=end - 1)] == mine), after, -1)

    def _mean_of_others(self, column: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The mean of an output over the other rows of the same task and time; NaN where there are none (`N`)."""
        known = ~np.isnan(column)
        values = np.where(known, column, 0.0)
        counts = np.bincount(self.moments, known)[self.moments[rows]] - known[rows]
        sums = np.bincount(self.moments, values)[self.moments[rows]] - values[rows]
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _interpolate(before: np.ndarray, after: np.ndarray, from_before: np.ndarray, to_after: np.ndarray) -> np.ndarray:
    """Linear interpolation between two values by their distances; the one that is there, if the other is not (`N`)."""
    total = from_before + to_after
    weight = np.where(total > 0, from_before / np.where(total > 0, total, 1.0), 0.5)  # of the value after
    both = before + weight * (after - before)
    return np.where(np.isnan(before), after, np.where(np.isnan(after), before, both))


def _take(column: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.where(positions >= 0, column[positions], np.nan)


def _first_known(values: np.ndarray, number: int) -> np.ndarray:
    """The first few values of each row that are no NaN (`N x number`, or fewer columns)."""
    order = np.argsort(np.isnan(values), axis=1, kind="stable")[:, :number]
    return np.take_along_axis(values, order, 1)


def _days_around(times: np.ndarray, series: np.ndarray) -> np.ndarray:
    """Positions of the rows of the same series that are a day before and after each (`N x 2`), to the second."""
    seconds = np.round(SECONDS * (times - np.nanmin(times)))
    span = np.nanmax(seconds) + 2 * SECONDS  # from series to series, so that a day more or less is in none
    moments = np.where(np.isnan(times), -10 * SECONDS, span * series + seconds)  # a day from no other, if unknown
    return np.stack([_locate(moments, moments - SECONDS), _locate(moments, moments + SECONDS)], 1)


def _neighbours(places: list[np.ndarray], moments: np.ndarray) -> np.ndarray:
    """
    Positions of the rows of the closest other places at the same time, closest first (`N x C`).

    :param places: All inputs but the time (`N` each).
    :param moments: A number that rows of the same task and time share (`N`).
    """
    if not places:
        return np.empty((len(moments), 0), int)
    unique, numbers = np.unique(_standardized(places), axis=0, return_inverse=True)
    number = min(NUM_CANDIDATES, len(unique) - 1)
    if number == 0 or not _is_searched(unique):
        return np.empty((len(moments), 0), int)
    closest = NearestNeighbors(n_neighbors=number).fit(unique).kneighbors(return_distance=False)  # (U, C)
    numbers = numbers.reshape(-1)
    return _locate(len(unique) * moments + numbers, len(unique) * moments[:, None] + closest[numbers])


def _close_rows(places: list[np.ndarray], tasks: np.ndarray) -> np.ndarray:
    """Positions of the closest other rows of the same task, closest first (`N x C`)."""
    x = _standardized(places)
    found = np.full((len(x), NUM_CANDIDATES), -1)
    if not _is_searched(x):
        return found
    order = np.argsort(tasks, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(tasks[order])) + 1):
        number = min(NUM_CANDIDATES, len(rows) - 1)
        if number:
            closest = NearestNeighbors(n_neighbors=number).fit(x[rows]).kneighbors(return_distance=False)
            found[rows, :number] = rows[closest]
    return found


def _is_searched(x: np.ndarray) -> bool:
    """Return whether neighbours among rows are found in seconds (`N x D`)."""
    return len(x) <= MAX_SEARCHED or x.shape[1] <= MAX_DIMENSIONS


def _standardized(columns: list[np.ndarray]) -> np.ndarray:
    """Columns with mean 0 and standard deviation 1, and 0 where there is no number (`N x D`)."""
    x = np.stack(columns, 1)
    x = (x - np.nanmean(x, 0)) / np.nanstd(x, 0)
    return np.where(np.isfinite(x), x, 0.0)


def _locate(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Positions of keys, -1 for those that are not there (the shape of `wanted`)."""
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)
    return np.where(keys[order[at]] == wanted, order[at], -1)
