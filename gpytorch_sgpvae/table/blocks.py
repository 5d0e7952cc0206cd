"""
Sets of rows that are looked at together: windows to learn from, and blocks to predict, of rows that are near each
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Known entries that a dense model conditions on at a time, and values in its rows, known or not.
MOST_ENTRIES, MOST_VALUES = 1600, 4000
# Rows that a Markov model conditions on at a time, beside this many before and after them.
MOST_ROWS, MARGIN_ROWS = 10_000, 1000
# Rows that a sparse model predicts at a time.
ROWS_AT_A_TIME = 2000
# The parts of what a block is conditioned on: rows that are predicted, and at most, the ends of their gaps.
CORE_SHARE, ENDS_SHARE = 0.5, 0.25
# Short series share a call of a Markov model with up to this many rows together, padding included. Small blocks share
# a call of a dense model with up to this many numbers in their matrices.
ROWS_TOGETHER, NUMBERS_TOGETHER = 8_000, 2**20
# Questions, and their rows, that wait for others of their length.
MOST_WAITING, ROWS_WAITING = 512, 51_200
# The shortest of those that share a call, as a share of the longest.
LEAST_SHARE_OF_LONGEST = 0.7

# Inputs and targets that a model is to see together (`n x D`, `n x P`), which of these rows are asked for (`m`), and
# what those are called in the table (`m`).
Question = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Block:
    """
    Rows that are predicted together.

    :param seen: The rows that they are conditioned on.
    :param asked: The rows that are predicted.
    """

    seen: np.ndarray
    asked: np.ndarray


def blocks_in_space(
    x: np.ndarray,
    counts: np.ndarray,
    values: int,
    is_asked: np.ndarray,
    lengthscales: np.ndarray,
    ends: np.ndarray | None = None,
) -> Iterator[Block]:
    """
    Blocks of rows that are near each other, with the rows around them, of a task of any size: no matrix gets larger
    than :data:`MOST_ENTRIES`. The ends of long gaps belong to a block wherever they are.

    :param x: Inputs (`N x D`).
    :param counts: Known entries of each row (`N`).
    :param values: The number of a row's values, known or not.
    :param is_asked: True for the rows to be predicted (`N`).
    :param lengthscales: The distance in each input over which rows are near; infinite for inputs without a distance
        (`D`).
    :param ends: See :func:`ends_of_gaps`; None if there are no series.
    """
    scaled = _scaled(x, lengthscales)
    cost = np.maximum(counts, values * MOST_ENTRIES / MOST_VALUES)
    if cost.sum() <= MOST_ENTRIES:
        rows = np.arange(len(x))
        yield Block(rows[(counts > 0) | is_asked], np.flatnonzero(is_asked))
        return
    pieces = int(np.ceil(cost.sum() / (CORE_SHARE * MOST_ENTRIES)))
    for core in _boxes(scaled, cost, np.arange(len(x)), pieces):
        asked = core[is_asked[core]]
        if len(asked):
            beside = np.zeros(0, dtype=int) if ends is None else _most_wanted(ends[asked], cost)
            yield Block(_around(scaled, cost, counts > 0, asked, beside), asked)


def ends_of_gaps(series: np.ndarray, times: np.ndarray, known: np.ndarray) -> np.ndarray:
    """
    The row before and the row after each missing entry in which its output is known, in the same series, however far
    away; -1 for known entries, and where there is none (`N x 2 P`).

    :param series: The number of each row's series (`N`).
    :param times: (`N`).
    :param known: True for known entries (`N x P`).
    """
    order = np.lexsort((times, series))
    own, is_known = series[order], known[order]
    position = np.arange(len(order))[:, None]
    before = np.maximum.accumulate(np.where(is_known, position, -1), 0)
    after = np.minimum.accumulate(np.where(is_known, position, len(order))[::-1], 0)[::-1]
    ends = np.full((len(order), 2 * known.shape[1]), -1, dtype=np.int32)
    for found, columns in ((before, slice(None, known.shape[1])), (after, slice(known.shape[1], None))):
        inside = found.clip(0, max(len(order) - 1, 0))
        is_end = ~is_known & (found == inside) & (own[inside] == own[:, None])
        ends[order, columns] = np.where(is_end, order[inside], -1)
    return ends


def blocks_in_time(times: np.ndarray, is_asked: np.ndarray) -> Iterator[Block]:
    """
    Stretches of time with what comes before and after them; one for series of up to :data:`MOST_ROWS` rows.

    :param times: (`N`).
    :param is_asked: True for the rows to be predicted (`N`).
    """
    order = np.argsort(times, kind="stable")
    pieces = max(1, -(-len(order) // MOST_ROWS))
    for core in np.array_split(np.arange(len(order)), pieces):
        asked = order[core][is_asked[order[core]]]
        if len(asked):
            first, last = max(0, core[0] - MARGIN_ROWS), core[-1] + MARGIN_ROWS + 1
            yield Block(order[first:last], asked)


def side_by_side(questions: Iterator[Question], kind: str) -> Iterator[list[Question]]:
    """
    The questions in groups that are answered by one call of the model: small ones of similar length together, since a
    call takes as long for many of them as for a few. Each question comes once, in no particular order.

    :param questions: The questions.
    :param kind: The kind of the model.
    """
    if kind == "sparse":
        yield from ([question] for question in questions)
        return
    waiting: list[Question] = []
    rows = 0
    for question in questions:
        waiting.append(question)
        rows += len(question[0])
        if rows >= ROWS_WAITING or len(waiting) >= MOST_WAITING:
            yield from _of_similar_length(waiting, kind)
            waiting, rows = [], 0
    yield from _of_similar_length(waiting, kind)


def _of_similar_length(questions: Sequence[Question], kind: str) -> Iterator[list[Question]]:
    group: list[Question] = []
    for question in sorted(questions, key=lambda question: -len(question[0])):
        longest = len(group[0][0]) if group else 0
        size = longest if kind == "markov" else (longest * question[1].shape[1]) ** 2
        most = ROWS_TOGETHER if kind == "markov" else NUMBERS_TOGETHER
        if group and (len(question[0]) < LEAST_SHARE_OF_LONGEST * longest or (len(group) + 1) * size > most):
            yield group
            group = []
        group.append(question)
    if group:
        yield group


def window(
    x: np.ndarray, counts: np.ndarray, lengthscales: np.ndarray, most_entries: float, random: np.random.Generator
) -> np.ndarray:
    """
    A random row and those nearest to it, as dense as they are in the whole task, with this many known entries together.

    :param x: Inputs (`N x D`).
    :param counts: Known entries of each row (`N`).
    :param lengthscales: The distance in each input over which rows are near (`D`).
    """
    if counts.sum() <= most_entries:
        return np.flatnonzero(counts)
    scaled = _scaled(x, lengthscales)
    center = scaled[random.integers(len(x))]
    order = np.argsort(np.square(scaled - center).sum(1), kind="stable")
    return np.sort(_first(order[counts[order] > 0], counts, most_entries))


def _scaled(x: np.ndarray, lengthscales: np.ndarray) -> np.ndarray:
    finite = np.isfinite(lengthscales)
    return x[:, finite] / lengthscales[finite] if finite.any() else np.zeros((len(x), 1))


def _first(order: np.ndarray, cost: np.ndarray, most: float) -> np.ndarray:
    """The first rows that cost no more than this together, and at least one."""
    return order[: max(1, int(np.searchsorted(cost[order].cumsum(), most, side="right")))]


def _boxes(scaled: np.ndarray, cost: np.ndarray, rows: np.ndarray, pieces: int) -> Iterator[np.ndarray]:
    """Boxes of rows of about equal cost, so many of them, by cutting the longest side again and again."""
    if len(rows) == 1 or pieces == 1:
        yield rows
        return
    extent = np.ptp(scaled[rows], axis=0)
    order = rows[np.argsort(scaled[rows, extent.argmax()], kind="stable")]
    total, first = cost[order].cumsum(), pieces // 2
    cut = int(np.clip(np.searchsorted(total, total[-1] * first / pieces) + 1, 1, len(rows) - 1))
    for part, number in ((order[:cut], first), (order[cut:], pieces - first)):
        yield from _boxes(scaled, cost, part, number)


def _most_wanted(ends: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """The ends of the longest gaps, as many as have room."""
    rows, times = np.unique(ends[ends >= 0], return_counts=True)
    rows = rows[np.argsort(-times, kind="stable")]
    return rows[: int(np.searchsorted(cost[rows].cumsum(), ENDS_SHARE * MOST_ENTRIES, side="right"))]


def _around(
    scaled: np.ndarray, cost: np.ndarray, is_known: np.ndarray, asked: np.ndarray, beside: np.ndarray
) -> np.ndarray:
    """The rows asked for, those that belong to them, and those nearest to the box that they are in."""
    low, high = scaled[asked].min(0), scaled[asked].max(0)
    outside = np.maximum(np.maximum(low - scaled, scaled - high), 0.0)
    distance = np.square(outside).sum(1)
    distance[~is_known] = np.inf
    distance[beside] = -1.0
    distance[asked] = -2.0
    order = np.argsort(distance, kind="stable")
    order = order[np.isfinite(distance[order])]
    return np.sort(order[: max(len(asked), len(_first(order, cost, MOST_ENTRIES)))])
