"""
The choice of entries that a fit does not see, to find out how well holes are filled: single ones, and runs like real
outages.
"""

from __future__ import annotations

import numpy as np

from ..utils.seeds import derive_seed
from .plan import Plan, number_places
from .reading import TaskTable

# The share of the known entries that is held out, half of it in runs.
SHARE = 0.1
# Rows of the stretches that they are in, and how many of these there are, at least: blocks of a dense model take time.
MOST_ROWS = {"markov": 15_000, "dense": 3_000, "sparse": 15_000}
NUM_STRETCHES = {"markov": 40, "dense": 10, "sparse": 40}
# Runs: rows, at most, and the share of a series that they may take.
MOST_RUN, MOST_SHARE_OF_SERIES = 48, 0.3
# How often a run is as long as one of the table's own, if it has this many of them.
OWN_RUNS, FEWEST_OWN_RUNS = 0.5, 10
# How often all outputs are silent together.
ALL_TOGETHER = 0.5


def hold_out(table: TaskTable, plan: Plan, num_filled: int, seed: int) -> np.ndarray:
    """
    Entries that training does not see (`N x P`): a tenth of what is known in some stretches of the table. Half of them
    are single entries, and the others runs along time, of one output or of all, as long as the table's own or of 2 to
    48 rows.

    :param table: The table.
    :param plan: The shape of the model, which says which input is the time, and which inputs make a place.
    :param num_filled: The number of outputs that are no covariates. Covariates are always seen.
    :param seed: Seed of their choice.
    """
    random = np.random.default_rng(derive_seed("hold out", seed))  # other entries than `hide` and `scores` choose
    known = ~np.isnan(table.y[:, :num_filled])
    series = _series(table, plan)
    is_open = _stretches(table, plan, random)  # (N,)
    hidden = np.zeros_like(known)
    share = SHARE if plan.time is None else 0.5 * SHARE
    hidden[is_open] = known[is_open] & (random.random((int(is_open.sum()), known.shape[1])) < share)
    if plan.time is not None:
        _hide_runs(hidden, known, series, is_open, random)
    for p in np.flatnonzero(~hidden.any(0) & known.any(0)):  # at least one entry of each output
        hidden[random.choice(np.flatnonzero(known[:, p])), p] = True
    for p in np.flatnonzero(known.any(0)):  # and one stays
        if hidden[known[:, p], p].all():
            hidden[np.flatnonzero(known[:, p])[0], p] = False
    return np.pad(hidden, [(0, 0), (0, table.y.shape[1] - num_filled)])


def _series(table: TaskTable, plan: Plan) -> list[np.ndarray]:
    """The rows of each place in each task, in the order of time."""
    tasks = np.empty(len(table.x), dtype=int)
    for number, rows in enumerate(table.rows):
        tasks[rows] = number
    if plan.time is None:
        return [np.arange(len(tasks))]
    keys = number_places(np.column_stack([tasks, np.delete(table.x, plan.time, axis=1)]))
    order = np.lexsort((table.x[:, plan.time], keys))
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)


def _stretches(table: TaskTable, plan: Plan, random: np.random.Generator) -> np.ndarray:
    """Choose rows of some tasks, or of some stretches of time, this many rows together (`N`, boolean)."""
    number, most, num_stretches = len(table.x), MOST_ROWS[plan.kind], NUM_STRETCHES[plan.kind]
    if number <= most:
        return np.ones(number, dtype=bool)
    codes = np.empty(number, dtype=int)
    for task, rows in enumerate(table.rows):
        codes[rows] = task
    if len(table.rows) < num_stretches:
        times = table.x[:, plan.time] if plan.time is not None else table.x[:, 0]
        ranks = np.searchsorted(np.sort(times), times)
        pieces = max(num_stretches, -(-number * num_stretches // most))
        codes = codes * pieces + ranks * pieces // number
    chosen, total = [], 0
    sizes = np.bincount(codes)
    for code in random.permutation(np.flatnonzero(sizes)):
        chosen.append(code)
        total += sizes[code]
        if total >= most:
            break
    return np.isin(codes, chosen)


def _hide_runs(
    hidden: np.ndarray, known: np.ndarray, series: list[np.ndarray], is_open: np.ndarray, random: np.random.Generator
) -> None:
    """Hide runs until there are enough of them."""
    own = _own_runs(known, series)
    candidates = [rows for rows in series if is_open[rows].any() and len(rows) > 2]
    if not candidates:
        return
    wanted, found = 0.5 * SHARE * known[is_open].sum(), 0
    sizes = np.array([is_open[rows].sum() for rows in candidates], dtype=float)
    for _ in range(10_000):
        if found >= wanted:
            break
        rows = candidates[random.choice(len(candidates), p=sizes / sizes.sum())]
        most = max(2, min(MOST_RUN, int(MOST_SHARE_OF_SERIES * len(rows))))
        length = round(float(np.exp(random.uniform(np.log(2), np.log(most)))))
        if len(own) >= FEWEST_OWN_RUNS and random.random() < OWN_RUNS:
            length = min(int(random.choice(own)), max(2, int(MOST_SHARE_OF_SERIES * len(rows))))
        inside = np.flatnonzero(is_open[rows])
        start = int(random.choice(inside))
        run = rows[start : start + length]
        run = run[is_open[run]]
        columns = slice(None) if random.random() < ALL_TOGETHER else random.integers(known.shape[1])
        before = int(hidden[run].sum())
        hidden[run, columns] = known[run, columns]
        found += int(hidden[run].sum()) - before


def _own_runs(known: np.ndarray, series: list[np.ndarray]) -> np.ndarray:
    """The lengths of the table's own runs of holes, from two rows on."""
    lengths = []
    for rows in series:
        for column in known[rows].T:
            edges = np.flatnonzero(np.diff(np.concatenate([[True], column, [True]])))
            lengths.append(edges[1::2] - edges[::2])
    every = np.concatenate(lengths) if lengths else np.zeros(0, dtype=int)
    return every[every >= 2]
