"""Rows that are looked at together."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table import SGPVAEImputer, blocks
from gpytorch_sgpvae.table.blocks import blocks_in_space, blocks_in_time, ends_of_gaps, side_by_side, window

random = np.random.default_rng(0)


def make_rows(number, values=2):
    x = random.normal(size=(number, 2)) * [1.0, 5.0]
    return x, random.integers(0, values + 1, number), random.random(number) < 0.3


@pytest.mark.parametrize("number", [1, 50, 5000])
@pytest.mark.parametrize("lengthscales", [[1.0, 1.0], [1.0, np.inf], [np.inf, np.inf]])
def test_every_row_that_is_asked_for_is_in_exactly_one_block(number, lengthscales):
    x, counts, asked = make_rows(number)
    asked[0] = True
    found = list(blocks_in_space(x, counts, 2, asked, np.array(lengthscales)))
    np.testing.assert_array_equal(np.sort(np.concatenate([block.asked for block in found])), np.flatnonzero(asked))
    for block in found:
        assert np.isin(block.asked, block.seen).all()
        assert (np.diff(block.seen) > 0).all()


@pytest.mark.parametrize("lengthscales", [[1.0, 1.0], [np.inf, np.inf]])
def test_no_block_has_more_entries_than_a_matrix_may(lengthscales):
    x, counts, asked = make_rows(5000)
    found = list(blocks_in_space(x, counts, 2, asked, np.array(lengthscales)))
    assert len(found) > 1
    for block in found:
        assert counts[block.seen].sum() <= blocks.MOST_ENTRIES
        assert 2 * len(block.seen) <= blocks.MOST_VALUES + 2
        assert counts[block.seen].sum() > 0.5 * counts.sum() * blocks.MOST_ENTRIES / (2 * 5000)


@pytest.mark.parametrize("number", [900, 2700, 5000, 12_900])
def test_there_are_no_more_blocks_than_it_takes(number):
    x, asked = random.normal(size=(number, 2)), np.ones(number, dtype=bool)
    found = list(blocks_in_space(x, np.full(number, 2), 2, asked, np.ones(2)))
    most = blocks.CORE_SHARE * blocks.MOST_ENTRIES
    assert len(found) == np.ceil(2 * number / most)
    assert max(len(block.asked) for block in found) < 1.05 * number / len(found) + 5


def test_a_block_sees_what_is_around_it():
    x = np.stack([np.arange(5000.0), np.zeros(5000)], 1)
    counts, asked = np.ones(5000, dtype=int), np.ones(5000, dtype=bool)
    for block in blocks_in_space(x, counts, 1, asked, np.ones(2)):
        assert (np.diff(block.asked) == 1).all()
        assert (np.diff(block.seen) == 1).all()
        if block.seen[0] > 0 and block.seen[-1] < 4999:
            before, after = block.asked[0] - block.seen[0], block.seen[-1] - block.asked[-1]
            assert abs(before - after) <= 1
            assert before > 300


def test_a_block_sees_both_ends_of_a_gap_however_long():
    """Six stations, one of which is silent for longer than a block lasts, and all of them for as long."""
    station, hour = (index.ravel() for index in np.meshgrid(range(6), range(2000), indexing="ij"))
    known = np.ones((12_000, 2), dtype=bool)
    known[(station == 0) & (hour >= 400) & (hour < 900)] = False
    known[(hour >= 1200) & (hour < 1700)] = False
    x, asked = np.stack([station, hour], 1).astype(float), ~known.all(1)
    ends = ends_of_gaps(station, hour.astype(float), known)
    found = list(blocks_in_space(x, known.sum(1), 2, asked, np.array([100.0, 1.0]), ends))
    assert len(found) > 2
    for block in found:
        assert known[block.seen].sum() <= blocks.MOST_ENTRIES
        for first, end, stations in ((400, 900, [0]), (1200, 1700, range(6))):
            if (hour[block.asked] >= first).any() and (hour[block.asked] < end).all():
                seen = {*zip(station[block.seen], hour[block.seen], strict=True)}
                for number in {*stations} & {*station[block.asked]}:
                    assert {(number, first - 1), (number, end)} <= seen


def test_ends_of_gaps_are_those_of_an_output_in_its_series():
    series, times = np.array([1, 0, 1, 0, 1, 1]), np.array([4.0, 0.0, 1.0, 1.0, 3.0, 2.0])
    known = np.array([[1, 0], [1, 1], [1, 1], [0, 0], [0, 1], [0, 0]], dtype=bool)
    expected = [[-1, 4, -1, -1], [-1] * 4, [-1] * 4, [1, 1, -1, -1], [2, -1, 0, -1], [2, 2, 0, 4]]
    np.testing.assert_array_equal(ends_of_gaps(series, times, known), expected)
    assert ends_of_gaps(series[:0], times[:0], known[:0]).shape == (0, 4)


def test_a_small_table_is_one_block_of_what_is_known_or_asked_for():
    x, counts, asked = make_rows(100)
    (block,) = blocks_in_space(x, counts, 2, asked, np.ones(2))
    np.testing.assert_array_equal(block.seen, np.flatnonzero((counts > 0) | asked))


@pytest.mark.parametrize("number", [1, 10_000, 10_001, 35_000])
def test_stretches_of_time_hold_every_row_once_with_what_is_around_them(number):
    times = random.permutation(number).astype(float)
    asked = random.random(number) < 0.5
    asked[0] = True
    found = list(blocks_in_time(times, asked))
    np.testing.assert_array_equal(np.sort(np.concatenate([block.asked for block in found])), np.flatnonzero(asked))
    assert len(found) <= -(-number // blocks.MOST_ROWS)
    for block in found:
        assert len(block.seen) <= blocks.MOST_ROWS + 2 * blocks.MARGIN_ROWS
        seen = times[block.seen]
        assert seen[0] == 0 or times[block.asked].min() - seen[0] >= blocks.MARGIN_ROWS
        assert seen[-1] == number - 1 or seen[-1] - times[block.asked].max() >= blocks.MARGIN_ROWS


class TestWindow:
    def test_it_has_rows_next_to_each_other_with_so_many_entries(self):
        x, counts = np.stack([np.arange(500.0), np.zeros(500)], 1), np.arange(500) % 3
        for seed in range(5):
            rows = window(x, counts, np.ones(2), 60, np.random.default_rng(seed))
            assert counts[rows].sum() <= 60
            assert counts[rows].sum() > 55
            assert (counts[rows] > 0).all()
            assert np.diff(rows).max() <= 2

    def test_a_small_task_is_one(self):
        x, counts, _ = make_rows(30)
        rows = window(x, counts, np.ones(2), counts.sum(), np.random.default_rng(0))
        np.testing.assert_array_equal(rows, np.flatnonzero(counts))

    def test_a_row_with_more_entries_than_that_is_taken_alone(self):
        assert len(window(np.arange(5.0)[:, None], np.full(5, 9), np.ones(1), 3, np.random.default_rng(0))) == 1


@pytest.mark.parametrize("kind", ["markov", "dense", "sparse"])
def test_every_question_is_in_one_group_and_groups_are_of_similar_length(kind):
    random = np.random.default_rng(0)
    lengths = [*random.integers(1, 40, 700), 900, 30_000]
    questions = [(np.zeros((n, 1)), np.zeros((n, 3)), np.arange(n), np.full(n, i)) for i, n in enumerate(lengths)]
    groups = list(side_by_side(iter(questions), kind))
    assert sorted(int(asked[0]) for group in groups for *_, asked in group) == list(range(len(questions)))
    assert all(len(group) == 1 for group in groups) == (kind == "sparse")
    for group in groups:
        found = [len(x) for x, *_ in group]
        assert min(found) >= 0.7 * max(found)
        assert len(group) == 1 or len(group) * max(found) <= 8_000


@pytest.mark.parametrize("inputs", [["time"], ["time", "height"]])
def test_tasks_that_share_a_call_of_the_model_are_filled_as_each_alone(inputs):
    random = np.random.default_rng(0)
    sizes = [3, 9, 10, 11, 12, 12]
    table = pd.DataFrame({"unit": np.repeat(list("abcdef"), sizes), "height": random.normal(size=sum(sizes))})
    table["time"] = random.normal(size=len(table))
    for name in "yz":
        table[name] = np.sin(table["time"]) + 0.1 * random.normal(size=len(table))
        table.loc[random.random(len(table)) < 0.3, name] = np.nan
    imputer = SGPVAEImputer(inputs, ["y", "z"], task="unit", max_epochs=1, compare=False, progress=False).fit(table)
    together = imputer.transform(table, intervals=True)
    for _, rows in table.groupby("unit"):
        alone = imputer.transform(rows, intervals=True)
        pd.testing.assert_frame_equal(alone, together.loc[rows.index], rtol=1e-9, atol=1e-9)
