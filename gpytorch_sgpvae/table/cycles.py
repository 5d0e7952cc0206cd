"""Cycles of time, such as the day and the year, found by the data's own spectrum."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from sklearn.preprocessing import SplineTransformer

# Periods of dates, in days, that a peak of the spectrum close to them is taken for.
CALENDAR = (1.0, 7.0, 365.25)
DAY, YEAR = CALENDAR[0], CALENDAR[2]
# Periods that are looked for: how many at most, and the least number of repetitions, and of steps, of each.
MOST_PERIODS, FEWEST_REPETITIONS, FEWEST_STEPS = 3, 5, 3
# A year is looked for from one and a half of them on.
FEWEST_YEARS = 1.5
# A peak stands out by this factor from the spectrum around it, and is at least this share of the variance.
PROMINENCE, LEAST_SHARE = 15.0, 0.005
# Sines and cosines of a cycle, at most; cells of the regular grid that a spectrum is taken of.
MOST_HARMONICS, MOST_CELLS = 4, 2**17
# Holes of this many cells are bridged: regular ones mirror slow changes as quick cycles that are not there.
LONGEST_BRIDGE = 6
# Slow changes are cubic splines: the distance of knots in longest periods, and how many knots there are at most: trends
# neither hide a cycle nor pass for one.
SLOWNESS, MOST_KNOTS = 1.5, 16
# What keeps coefficients small, in rows; the share of what slow changes leave that a cycle has to explain where it is
# not fitted.
RIDGE, LEAST_GAIN = 30.0, 0.01
# Slow changes are hardly kept small: only what the rows do not tell is.
RIDGE_OF_SLOW = 1e-2
# Stretches of which every other one is fitted, to see whether the cycle explains the rest.
NUM_STRETCHES = 40


@dataclass(frozen=True)
class Cycles:
    r"""
    Cycles that are the same at all places,

    .. math::

        c_p(t) = \sum_i \sum_{h = 1}^{H_i} a_{pih} \cos(2 \pi h t / T_i) + b_{pih} \sin(2 \pi h t / T_i)

    and where there are a day and a year also the products of both, as days differ from season to season. Periods are
    peaks of the spectrum. An output whose variance is not explained where the cycle was not fitted has none.

    :param periods: :math:`T_i`, in the units of the times, days for dates.
    :param harmonics: :math:`H_i`.
    :param coefficients: Coefficients of all functions of time, for each output (`F x P`).
    """

    periods: list[float]
    harmonics: list[int]
    coefficients: np.ndarray = field(repr=False)

    @classmethod
    def none(cls, num_outputs: int) -> Cycles:
        """No cycles."""
        return cls([], [], np.zeros((0, num_outputs)))

    @classmethod
    def fit(cls, times: np.ndarray, y: np.ndarray, wanted: np.ndarray, is_date: bool) -> Cycles:
        """
        :param times: Numbers, or days (`N`).
        :param y: Targets; NaN is missing (`N x P`).
        :param wanted: True for the targets that may have cycles (`P`).
        :param is_date: Whether times are days, and cycles may be those of the calendar.
        """
        nothing = cls.none(y.shape[1])
        different = np.unique(times)
        if len(different) < 2 * FEWEST_REPETITIONS or not wanted.any():
            return nothing
        step = float(np.median(np.diff(different)))
        periods = find_periods(times, y[:, wanted], step, is_date)
        slow = _slow_changes(times, SLOWNESS * max(periods, default=1.0))
        kept = nothing
        none = least = np.minimum(*(_left_over(nothing, times, y, changes) for changes in (slow, slow[:, :0])))
        for period in sorted(periods, key=lambda period: period == YEAR):  # a year may matter to days alone
            # as many as the steps of a period tell apart: seven days of a week need three
            number = int(np.clip((round(period / step) - 1) // 2, 1, MOST_HARMONICS))
            trial = cls([*kept.periods, period], [*kept.harmonics, number], nothing.coefficients)
            left = _left_over(trial, times, y, slow)
            if (left < (1 - LEAST_GAIN) * least)[wanted].any():
                kept, least = trial, np.minimum(left, least)
        features = np.concatenate([kept._features(times), slow], 1)  # (N, F + knots)
        coefficients = np.zeros((kept.num_functions, y.shape[1]))
        helped = _left_over(kept, times, y, slow) < (1 - LEAST_GAIN) * none
        for p in np.flatnonzero(wanted & helped):
            known = ~np.isnan(y[:, p])
            coefficients[:, p] = _ridge(features[known], y[known, p], len(coefficients))[1][: len(coefficients)]
        return replace(kept, coefficients=coefficients) if coefficients.any() else nothing

    @property
    def num_functions(self) -> int:
        """Functions of time, for each of which there is a coefficient: F."""
        return self._features(np.zeros(1)).shape[1]

    def at(self, times: np.ndarray) -> np.ndarray:
        """The cycles at some times (`N x P`)."""
        return self._features(times) @ self.coefficients

    def _features(self, times: np.ndarray) -> np.ndarray:
        if not self.periods:
            return np.zeros((len(times), 0))
        waves = [_waves(times, period, number) for period, number in zip(self.periods, self.harmonics, strict=True)]
        if DAY in self.periods and YEAR in self.periods:
            day, year = waves[self.periods.index(DAY)], waves[self.periods.index(YEAR)][:, :2]
            waves.append((day[:, :, None] * year[:, None, :]).reshape(len(times), -1))
        return np.concatenate(waves, 1)


def find_periods(times: np.ndarray, y: np.ndarray, step: float, is_date: bool) -> list[float]:
    """
    The periods of peaks in the spectrum that all outputs have together, the most pronounced first.

    :param times: Numbers, or days (`N`).
    :param y: Targets; NaN is missing (`N x P`).
    :param step: The usual distance of times.
    :param is_date: Whether peaks close to a day, a week or a year are these.
    """
    span = float(np.ptp(times))
    num_cells = int(span / step) + 1
    if num_cells > MOST_CELLS:
        step, num_cells = span / (MOST_CELLS - 1), MOST_CELLS
    if num_cells < FEWEST_REPETITIONS * FEWEST_STEPS:
        return []
    cells = np.round((times - times.min()) / step).astype(int).clip(0, num_cells - 1)
    power = np.zeros(num_cells // 2 + 1)
    for column in y.T:
        known = ~np.isnan(column)
        counts = np.bincount(cells[known], minlength=num_cells)
        sums = np.bincount(cells[known], _without_slow_changes(times[known], column[known], span), num_cells)
        spectrum = np.abs(np.fft.rfft(_bridged(sums / np.maximum(counts, 1), counts > 0))) ** 2
        power += spectrum / max(spectrum[1:].sum(), 1e-300)
    power = power / y.shape[1]
    first, last = FEWEST_REPETITIONS, num_cells // FEWEST_STEPS
    found: list[float] = []
    length = num_cells * step
    if is_date and span >= FEWEST_YEARS * YEAR and step <= YEAR / 8:
        found.append(YEAR)  # too few repetitions for a peak; whether it explains anything is seen later
    order = first + np.argsort(-power[first : last + 1], kind="stable")[:50]
    for k in order:
        around = power[max(first, int(k / 1.5)) : int(1.5 * k) + 2]
        low, high = max(k - 2, 1), min(k + 3, len(power))
        is_peak = power[k] == power[low:high].max() and power[k] > PROMINENCE * np.median(around)
        if not is_peak or power[low:high].sum() < LEAST_SHARE or len(found) >= MOST_PERIODS:
            continue
        period = length / k
        if is_date:
            near = [known for known in CALENDAR if abs(length / known - k) <= 1.5]
            period = near[0] if near else period
        else:
            # between cells of the spectrum: the center of the peak
            period = length / float(np.average(np.arange(low, high), weights=power[low:high]))
        if not any(_is_harmonic(period, other) for other in found if other != YEAR or period > 30):
            found.append(period)
    return found


def _bridged(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Values with short holes filled by straight lines, and zeros in all others."""
    if not known.any():
        return np.zeros_like(values)
    cells = np.arange(len(values))
    last = np.maximum.accumulate(np.where(known, cells, -len(cells)))
    following = np.minimum.accumulate(np.where(known, cells, 2 * len(cells))[::-1])[::-1]
    lines = np.interp(cells, cells[known], values[known])
    return np.where(following - last <= LONGEST_BRIDGE + 1, lines, 0.0)


def _is_harmonic(period: float, other: float) -> bool:
    """Return whether a cycle with the other period has this one too."""
    ratio = other / period
    return abs(ratio - round(ratio)) < 0.02 * max(ratio, 1.0) and 1 <= round(ratio) <= MOST_HARMONICS


def _waves(times: np.ndarray, period: float, number: int) -> np.ndarray:
    """(`N x 2 H`)"""
    angles = 2 * np.pi * times[:, None] / period * np.arange(1, number + 1)
    return np.stack([np.cos(angles), np.sin(angles)], -1).reshape(len(times), -1)


def _slow_changes(times: np.ndarray, distance: float) -> np.ndarray:
    """
    Functions of time that change slowly (`N x knots`).

    :param times: Numbers, or days (`N`).
    :param distance: The smallest distance from one knot to the next.
    """
    knots = int(np.clip(np.ptp(times) / distance, 1, MOST_KNOTS - 1)) + 1
    return SplineTransformer(knots, include_bias=False).fit_transform(times[:, None])


def _without_slow_changes(times: np.ndarray, values: np.ndarray, span: float) -> np.ndarray:
    """Remove what changes slower than the slowest cycle that is looked for (`n`)."""
    if not len(values):
        return values
    slow = (
        _slow_changes(times, SLOWNESS * span / FEWEST_REPETITIONS) if np.ptp(times) > 0 else np.zeros((len(times), 0))
    )
    center, weights = _ridge(slow, values, 0)
    return values - center - slow @ weights


def _left_over(cycles: Cycles, times: np.ndarray, y: np.ndarray, slow: np.ndarray) -> np.ndarray:
    """
    The sum of squares that cycles and slow changes leave of stretches that they were not fitted to (`P`), infinite for
    outputs with too few entries.

    :param cycles: The periods of the cycles.
    :param times: Numbers, or days (`N`).
    :param y: Targets; NaN is missing (`N x P`).
    :param slow: Slow changes (`N x knots`).
    """
    features = np.concatenate([cycles._features(times), slow], 1)
    odd = np.floor((times - times.min()) / (np.ptp(times) / NUM_STRETCHES)).astype(int) % 2 == 1
    result = np.zeros(y.shape[1])
    for p in range(y.shape[1]):
        known = ~np.isnan(y[:, p])
        for fitted, other in ((known & odd, known & ~odd), (known & ~odd, known & odd)):
            if fitted.sum() < max(1, 2 * features.shape[1]):
                result[p] = np.inf
                break
            center, weights = _ridge(features[fitted], y[fitted, p], cycles.num_functions)
            result[p] += np.square(y[other, p] - center - features[other] @ weights).sum()
    return result


def _ridge(features: np.ndarray, values: np.ndarray, num_functions: int) -> tuple[float, np.ndarray]:
    """A constant, and coefficients of the features (`F`), of which the first, those of cycles, are kept small."""
    center, offset = float(values.mean()), features.mean(0)
    rest = features - offset
    penalty = np.where(np.arange(features.shape[1]) < num_functions, RIDGE, RIDGE_OF_SLOW)
    weights = np.linalg.solve(rest.T @ rest + np.diag(penalty), rest.T @ (values - center))
    return center - float(offset @ weights), weights
