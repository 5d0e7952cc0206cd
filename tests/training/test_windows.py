"""Windows of long series: which rows they have, when, and what they cost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from gpytorch.priors import GammaPrior
from torch.utils.data import DataLoader
from training_runs import make_module, make_quiet_trainer

from gpytorch_sgpvae import GPVAE, SGPVAE, Context
from gpytorch_sgpvae.training import (
    SGPVAEModule,
    TaskDataset,
    TaskIndex,
    TaskLoader,
    TaskSampler,
    WindowId,
    collate_tasks,
)
from gpytorch_sgpvae.training.windows import first_row, num_windows

RAGGED = (23, 4, 10, 1, 17)
# lengths of a series, a window and a stride
SIZES = [(n, length, stride) for n in range(1, 18) for length in range(1, 8) for stride in range(1, length + 1)]


def make_series(lengths=RAGGED, num_outputs=3):
    """Series whose x has the number of the row, as the time, and the number of the series."""
    generator = torch.Generator().manual_seed(0)
    series = []
    for i, length in enumerate(lengths):
        rows = torch.arange(length, dtype=torch.float64)
        y = torch.randn(length, num_outputs, dtype=torch.float64, generator=generator)
        y[torch.rand(y.shape, generator=generator) < 0.2] = torch.nan
        series.append((torch.stack([rows, torch.full_like(rows, i)], dim=-1), y))
    return series


def rows_of(window):
    return window.x[:, 0].int().tolist()


def starts_of(dataset):
    return [rows_of(window)[0] for window in dataset]


def starts_in_epochs(dataset, num_epochs=1, **kwargs):
    """The first row of each window, by its id, for each epoch of a loader."""
    loader = TaskLoader(dataset, batch_size=2, **kwargs)
    epochs = []
    for _ in range(num_epochs):
        batches = list(loader)
        firsts = [int(row) for batch in batches for row in batch.x[:, 0, 0]]
        epochs.append(dict(sorted(zip((id_ for batch in batches for id_ in batch.ids), firsts, strict=True))))
    return epochs


def random_starts(num_rows, length, stride):
    """The starts of a series' windows, for each offset."""
    numbers = range(num_windows(num_rows, length, stride))
    return [[first_row(w, num_rows, length, stride, offset) for w in numbers] for offset in range(stride)]


def rows_in(starts, num_rows, length):
    return {row for start in starts for row in range(start, min(start + length, num_rows))}


class TestFixedStarts:
    @pytest.mark.parametrize(
        ("num_rows", "length", "stride", "starts"),
        [
            (8, 4, None, [0, 4]),
            (10, 4, None, [0, 4, 6]),
            (10, 4, 3, [0, 3, 6]),
            (11, 4, 3, [0, 3, 6, 7]),
            (6, 4, 1, [0, 1, 2]),
            (3, 1, None, [0, 1, 2]),
            (4, 4, None, [0]),
            (3, 4, 2, [0]),
        ],
    )
    def test_they_are_a_stride_apart_and_the_last_window_ends_with_the_series(self, num_rows, length, stride, starts):
        windows = TaskDataset(make_series([num_rows])).windows(length, stride)
        expected = [list(range(start, min(start + length, num_rows))) for start in starts]
        assert [rows_of(windows[i]) for i in range(len(windows))] == expected
        assert windows.lengths == [len(rows) for rows in expected]

    def test_every_row_is_in_a_window_and_no_window_comes_twice(self):
        for num_rows, length, stride in SIZES:
            starts = [first_row(w, num_rows, length, stride) for w in range(num_windows(num_rows, length, stride))]
            assert rows_in(starts, num_rows, length) == set(range(num_rows))
            assert len(set(starts)) == len(starts)

    def test_a_loader_that_does_not_shuffle_has_them_in_every_epoch(self):
        windows = TaskDataset(make_series()).windows(5)
        first, second = starts_in_epochs(windows, 2, shuffle=False)
        assert first == second == {window.id: rows_of(window)[0] for window in windows}

    def test_a_plain_data_loader_has_them_too(self):
        windows = TaskDataset(make_series()).windows(5)
        batches = DataLoader(windows, batch_size=3, collate_fn=collate_tasks)
        assert [int(row) for batch in batches for row in batch.x[:, 0, 0]] == starts_of(windows)


class TestRandomStarts:
    def test_windows_are_a_stride_apart_but_for_the_first_and_the_last(self):
        for num_rows, length, stride in SIZES:
            for starts in random_starts(num_rows, length, stride):
                gaps = [after - before for before, after in pairwise(starts)]
                assert all(gap == stride for gap in gaps[1:-1])
                assert all(1 <= gap <= stride for gap in gaps)
                assert starts[0] >= 0
                assert starts[-1] <= max(num_rows - length, 0)

    def test_a_window_may_start_at_any_row(self):
        for num_rows, length, stride in SIZES:
            starts = {start for starts in random_starts(num_rows, length, stride) for start in starts}
            assert starts == set(range(max(num_rows - length, 0) + 1))

    def test_an_epoch_leaves_out_half_a_stride_at_one_end_at_the_most(self):
        for num_rows, length, stride in SIZES:
            for starts in random_starts(num_rows, length, stride):
                left_out = sorted(set(range(num_rows)) - rows_in(starts, num_rows, length))
                assert len(left_out) <= stride / 2
                at_start, at_end = list(range(len(left_out))), list(range(num_rows - len(left_out), num_rows))
                assert left_out in (at_start, at_end)

    def test_each_row_is_in_a_window_for_half_of_the_offsets_or_more(self):
        for num_rows, length, stride in SIZES:
            epochs = [rows_in(starts, num_rows, length) for starts in random_starts(num_rows, length, stride)]
            assert all(sum(row in rows for rows in epochs) >= stride / 2 for row in range(num_rows))

    def test_they_are_drawn_anew_in_each_epoch_and_their_number_is_not(self):
        windows = TaskDataset(make_series()).windows(5)
        epochs = starts_in_epochs(windows, 6)
        assert all(list(starts) == sorted(windows.ids) for starts in epochs)
        middle = [starts[WindowId(0, 2)] for starts in epochs]
        assert len(set(middle)) > 2

    def test_they_are_a_function_of_the_seed_and_of_nothing_else(self):
        windows = TaskDataset(make_series()).windows(5)
        first = starts_in_epochs(windows, 3, seed=4)
        torch.seed()
        assert starts_in_epochs(windows, 3, seed=4, group_by_length=True, num_workers=2) == first
        assert starts_in_epochs(windows, 3, seed=5) != first

    def test_windows_of_a_series_are_moved_together_and_each_series_by_itself(self):
        windows = TaskDataset(make_series([40, 40])).windows(8)
        epochs = starts_in_epochs(windows, 6)
        for starts in epochs:
            for task in range(2):
                assert starts[WindowId(task, 2)] - starts[WindowId(task, 1)] == 8
        assert any(starts[WindowId(0, 2)] != starts[WindowId(1, 2)] for starts in epochs)

    def test_over_some_epochs_every_row_comes(self):
        windows, seen = TaskDataset(make_series([20])).windows(10), set()
        for starts in starts_in_epochs(windows, 12):
            seen |= rows_in(starts.values(), 20, 10)
        assert seen == set(range(20))


class TestSeveralSeries:
    def test_no_window_is_empty_and_none_has_rows_of_two_series(self):
        windows = TaskDataset(make_series(), ids=list("abcde")).windows(5, 3)
        for loader in (TaskLoader(windows, 3), TaskLoader(windows, 3, shuffle=False)):
            for batch in loader:
                for x, length, id_ in zip(batch.x, batch.lengths, batch.ids, strict=True):
                    rows, numbers = x[:length].T.int().tolist()
                    assert rows == list(range(rows[0], rows[0] + min(5, RAGGED["abcde".index(id_.task)])))
                    assert numbers == ["abcde".index(id_.task)] * length

    def test_a_series_shorter_than_a_window_is_one(self):
        series = make_series()
        windows = TaskDataset(series).windows(12)
        assert list(windows.ids) == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0), (4, 0), (4, 1)]
        assert windows.ids[2:4] == [(1, 0), (2, 0)]
        assert windows.lengths == [12, 12, 4, 10, 1, 12, 12]
        assert torch.equal(windows[2].x, series[1][0])

    def test_a_series_without_rows_has_no_windows(self):
        windows = TaskDataset(make_series([0, 6, 0, 3, 0])).windows(4)
        assert list(windows.ids) == [(1, 0), (1, 1), (3, 0)]
        assert starts_of(windows) == [0, 2, 0]

    def test_batches_are_padded_and_grouped_by_the_lengths_of_windows(self):
        windows = TaskDataset(make_series([40, 3, 2, 38, 3])).windows(10, 6)
        loader = TaskLoader(windows, batch_size=4, group_by_length=True)
        batches = list(loader)
        assert sorted(length for batch in batches for length in batch.lengths) == sorted(windows.lengths)
        assert all(batch.y.shape == (len(batch.ids), max(batch.lengths), 3) for batch in batches)
        rows = sum(batch.y.shape[0] * batch.y.shape[1] for batch in batches)
        assert 1 - sum(windows.lengths) / rows == pytest.approx(loader.sampler.padding(epoch=0))
        mixed = TaskSampler(windows, 4).padding()
        assert loader.sampler.padding() < mixed

    def test_their_ids_come_through_pinned_memory(self, monkeypatch):
        from torch.utils.data._utils.pin_memory import pin_memory

        batch = collate_tasks(list(TaskDataset(make_series(), ids=list("abcde")).windows(5)))
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor.clone())
        assert repr(pin_memory(batch).ids) == repr(batch.ids)


class TestOrder:
    def shuffled(self, series):
        order = torch.randperm(len(series[0]))
        return series[0][order], series[1][order]

    @pytest.mark.parametrize("kind", ["tensors", "arrays", "context", "function"])
    def test_rows_are_sorted_by_time_first(self, kind):
        series = make_series([23])[0]
        x, y = self.shuffled(series)
        task = {
            "tensors": (x, y),
            "arrays": (x.numpy(), y.numpy()),
            "context": Context(x, y),
            "function": lambda: (x, y),
        }[kind]
        windows, expected = TaskDataset([task]).windows(6, 4), TaskDataset([series]).windows(6, 4)
        for index in (TaskIndex(2, 1.0, 0), TaskIndex(2, 1.0, 0, epoch_seed=3)):
            torch.testing.assert_close(windows[index].x, expected[index].x, rtol=0, atol=0)
            torch.testing.assert_close(windows[index].y, expected[index].y, rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize("time_column", [1, -1])
    def test_time_may_be_another_column(self, time_column):
        x, y = self.shuffled(make_series([9])[0])
        windows = TaskDataset([(x.flip(-1), y)]).windows(5, time_column=time_column)
        assert [window.x[:, 1].int().tolist() for window in windows] == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]

    def test_one_column_needs_no_dimension(self):
        x, y = make_series([9], num_outputs=1)[0]
        windows = TaskDataset([(x[:, 0].flip(0), y[:, 0].flip(0))]).windows(5)
        assert [rows_of(window) for window in windows] == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
        assert windows[1].y.shape == (5,)

    def test_rows_of_equal_time_keep_their_order_and_rows_without_one_come_last(self):
        times = torch.tensor([2.0, torch.nan, 1.0, 2.0, 1.0, 2.0])
        x = torch.stack([times, torch.arange(6.0)], dim=-1)
        windows = TaskDataset([(x, torch.zeros(6, 1))]).windows(3)
        assert [window.x[:, 1].int().tolist() for window in windows] == [[2, 4, 0], [3, 5, 1]]

    def test_times_are_compared_before_they_are_rounded(self):
        """Seconds since 1970 are all the same in float32."""
        seconds = 1.7e9 + np.arange(8.0)[::-1]
        y = np.arange(8.0)[::-1].copy()
        windows = TaskDataset([(seconds.copy(), y)], dtype=torch.float32).windows(4)
        assert windows[0].x.dtype == torch.float32
        assert [window.y.int().tolist() for window in windows] == [[0, 1, 2, 3], [4, 5, 6, 7]]

    def test_times_are_not_shifted(self):
        x, y = make_series([30])[0]
        assert torch.equal(TaskDataset([(x + 1000, y)]).windows(7)[2].x, x[14:21] + 1000)


class TestMemory:
    def test_windows_of_a_million_rows_share_their_storage(self):
        x, y = torch.arange(1e6), torch.zeros(1_000_000, 2)
        windows = TaskDataset([(x, y)]).windows(100, 1)
        assert len(windows) == 999_901
        for index in (TaskIndex(123_456, 1.0, 0), TaskIndex(999_900, 1.0, 0, epoch_seed=5)):
            window = windows[index]
            assert window.x[0, 0] == index.number
            assert window.id == (0, index.number)
            for part, whole in ((window.x, x), (window.y, y)):
                assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()

    @pytest.mark.parametrize("is_sorted", [True, False])
    def test_only_the_rows_of_a_window_are_converted(self, is_sorted):
        x, y = make_series([1000])[0]
        if not is_sorted:
            x, y = x.flip(0), y.flip(0)
        window = TaskDataset([(x, y)], dtype=torch.float32).windows(10)[50]
        assert rows_of(window) == list(range(500, 510))
        assert window.x.untyped_storage().nbytes() == 10 * 2 * 4
        assert window.y.untyped_storage().nbytes() == 10 * 3 * 4

    @pytest.mark.parametrize("is_sorted", [True, False])
    def test_only_the_rows_of_a_window_are_read_from_an_array(self, is_sorted):
        class Array:
            """An array that knows how many of its numbers were asked for."""

            def __init__(self, values):
                self.values, self.shape, self.reads = values, values.shape, []

            def __getitem__(self, key):
                self.reads.append(self.values[key].size)
                return self.values[key]

        x, y = (Array((part if is_sorted else part.flip(0)).numpy()) for part in make_series([1000])[0])
        windows = TaskDataset([(x, y)]).windows(10)
        assert (x.reads, y.reads) == ([1000], [])  # the times
        assert rows_of(windows[50]) == list(range(500, 510))
        assert (x.reads[1:], y.reads) == ([10 * 2], [10 * 3])

    def test_memory_mapped_files_are_cut(self, tmp_path):
        x, y = make_series([50])[0]
        for name, values in (("x", x), ("y", y)):
            np.save(tmp_path / f"{name}.npy", values.numpy())
        maps = tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
        window = TaskDataset([maps]).windows(20)[1]
        assert rows_of(window) == list(range(20, 40))
        torch.testing.assert_close(window.y, y[20:40], equal_nan=True)


class TestFunctions:
    def test_one_whose_length_is_given_is_called_for_windows_alone(self):
        calls = []

        def read():
            calls.append(1)
            return make_series([23])[0]

        windows = TaskDataset([read], lengths=[23]).windows(6)
        assert (len(windows), windows.lengths) == (4, [6] * 4)
        assert not calls
        assert rows_of(windows[3]) == list(range(17, 23))
        assert len(calls) == 1

    def test_windows_of_an_epoch_are_cut_from_one_draw_of_a_random_series(self):
        def draw():
            return torch.arange(12.0), torch.rand(()).expand(12)

        windows = TaskDataset([draw, draw], lengths=[12, 12]).windows(4)
        loader = TaskLoader(windows, batch_size=6)
        epochs = []
        for batch in (*loader, *loader):
            levels = [{float(y[0]) for y, id_ in zip(batch.y, batch.ids, strict=True) if id_.task == i} for i in (0, 1)]
            assert [len(level) for level in levels] == [1, 1]
            assert levels[0] != levels[1]
            epochs.append(levels)
        assert epochs[0] != epochs[1]
        assert len({float(windows[i].y[0]) for i in range(3)}) == 1

    def test_one_whose_length_changes_is_an_error(self):
        windows = TaskDataset([lambda: make_series([20])[0]], ids=["spring"], lengths=[23]).windows(6)
        with pytest.raises(ValueError, match="Task spring has 20 rows, but its length was given or found to be 23"):
            windows[0]


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"length": 0}, ValueError, "length must be at least 1, got 0"),
            ({"length": -3}, ValueError, "length must be at least 1, got -3"),
            ({"length": 5, "stride": 0}, ValueError, "stride must be at least 1, got 0"),
            ({"length": 5.0}, TypeError, r"length must be an integer, got 5\.0"),
            ({"length": "5"}, TypeError, "length must be an integer, got '5'"),
            ({"length": True}, TypeError, "length must be an integer, got True"),
            ({"length": 5, "stride": 2.5}, TypeError, r"stride must be an integer, got 2\.5"),
            ({"length": 5, "stride": 6}, ValueError, "5 rows that start 6 rows apart leave out the rows between"),
            ({"length": 5, "time_column": 0.0}, TypeError, "time_column must be an integer"),
            ({"length": 5, "time_column": 2}, ValueError, r"Task 0 has x of shape \(23, 2\), which has no column 2"),
            ({"length": 5, "time_column": -3}, ValueError, "expected a time_column from 0 to 1"),
        ],
    )
    def test_impossible_arguments(self, arguments, error, message):
        with pytest.raises(error, match=message):
            TaskDataset(make_series()).windows(**arguments)

    def test_numbers_of_numpy_are_numbers(self):
        dataset = TaskDataset(make_series())
        assert starts_of(dataset.windows(np.int64(5), np.int32(2))) == starts_of(dataset.windows(5, 2))

    def test_windows_of_windows(self):
        windows = TaskDataset(make_series()).windows(5)
        with pytest.raises(ValueError, match="already made of windows of 5 rows: call windows"):
            windows.windows(2)

    def test_series_without_any_rows(self):
        with pytest.raises(ValueError, match="none of the 2 tasks has any rows"):
            TaskDataset(make_series([0, 0])).windows(5)

    @pytest.mark.parametrize(
        ("task", "error", "message"),
        [
            # of which a window could be cut, with outputs of other rows
            ((torch.rand(9, 2), torch.rand(8, 3)), ValueError, r"Task spring has x of shape \(9, 2\) and y of shape"),
            ((torch.rand(2, 9, 2), torch.rand(2, 9, 3)), ValueError, r"Task spring has x of shape \(2, 9, 2\)"),
            ((torch.rand(9, 2), torch.rand(9, 3), 1), TypeError, "Task spring is a tuple: expected a pair"),
        ],
    )
    def test_what_is_no_series_is_named(self, task, error, message):
        with pytest.raises(error, match=message):
            TaskDataset([task], ids=["spring"]).windows(4)

    def test_a_length_that_is_not_true(self):
        with pytest.raises(ValueError, match="Task 1 has 4 rows, but its length was given or found to be 5"):
            TaskDataset(make_series([9, 4]), lengths=[9, 5]).windows(4)

    def test_a_window_that_is_not_there(self):
        windows = TaskDataset(make_series()).windows(5)
        assert windows[-1].id == windows[len(windows) - 1].id == (4, 3)
        with pytest.raises(IndexError):
            windows[len(windows)]


class TestProcesses:
    @pytest.mark.parametrize("num_replicas", [2, 3])
    def test_they_have_disjoint_windows_which_together_are_those_of_one(self, num_replicas):
        windows = TaskDataset(make_series()).windows(5)

        def read(num_replicas, rank, batch_size):
            sampler = TaskSampler(windows, batch_size, num_replicas=num_replicas, rank=rank, seed=7)
            sampler.set_epoch(3)
            tasks = [windows[index] for batch in sampler for index in batch]
            return [(*task.id, *rows_of(task)) for task in tasks if task.weight]

        shares = [read(num_replicas, rank, batch_size=1) for rank in range(num_replicas)]
        together = [window for share in shares for window in share]
        assert len(set(together)) == len(together) == len(windows)
        assert sorted(together) == sorted(read(1, 0, batch_size=num_replicas))

    def test_where_nothing_is_moved_back_no_row_comes_to_two_processes(self):
        """This is so between the first and the last window of a series, with the default stride."""
        windows = TaskDataset(make_series([100])).windows(7)
        rows = []
        for rank in range(2):
            for batch in TaskSampler(windows, 2, num_replicas=2, rank=rank):
                tasks = [windows[index] for index in batch]
                inner = [task for task in tasks if task.weight and 0 < task.id.number < len(windows) - 1]
                rows += [row for task in inner for row in rows_of(task)]
        assert len(set(rows)) == len(rows) == 7 * (len(windows) - 2)

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_an_epoch_is_taken_up_with_the_windows_that_were_left(self, num_workers):
        windows = TaskDataset(make_series()).windows(5)

        def make_loader():
            return TaskLoader(windows, batch_size=2, num_workers=num_workers)

        loader = make_loader()
        whole = [batch for _ in range(2) for batch in loader]
        loader = make_loader()
        list(loader)
        batches = iter(loader)
        got = [next(batches) for _ in range(2)]
        resumed = make_loader()
        resumed.load_state_dict(loader.state_dict())
        got += list(resumed)
        for batch, expected in zip(got, whole[len(loader) :], strict=True):
            assert (batch.ids, batch.seeds) == (expected.ids, expected.seeds)
            assert torch.equal(batch.x, expected.x)

    def test_an_epoch_of_other_windows_cannot_be_taken_up(self):
        dataset = TaskDataset(make_series())
        state = TaskLoader(dataset.windows(5)).state_dict()
        with pytest.raises(ValueError, match=r"{'num_tasks': 13} cannot be taken up with {'num_tasks': 17}"):
            TaskLoader(dataset.windows(5, 3)).load_state_dict(state)


class TestTraining:
    def test_hyperpriors_count_once_over_all_windows(self):
        windows = TaskDataset(make_series()).windows(5)
        module = make_module()
        make_quiet_trainer(max_epochs=1).fit(module, TaskLoader(windows, batch_size=4))
        batches = list(TaskLoader(windows, batch_size=4))
        kernel = module.model.model.covar_module.base_kernel

        def epoch():
            return sum(module.elbo(batch).sum() for batch in batches)

        without = epoch()
        prior = GammaPrior(2.0, 3.0).double()
        kernel.register_prior("lengthscale_prior", prior, "lengthscale")
        torch.testing.assert_close(epoch() - without, prior.log_prob(kernel.lengthscale).sum())

    def test_a_window_in_which_nothing_is_observed_has_a_bound_of_zero(self):
        x, y = make_series([20])[0]
        y[5:10] = torch.nan
        windows = TaskDataset([(x, y)]).windows(5)
        bounds = make_module().elbo(collate_tasks(list(windows)), num_samples=2)
        assert bounds[1].item() == pytest.approx(0.0, abs=1e-8)
        assert (bounds[[0, 2, 3]].abs() > 1).all()

    @pytest.mark.parametrize("kind", ["gpvae", "sgpvae"])
    def test_trained_on_windows_and_conditioned_on_the_whole_series(self, kind):
        """Two outputs of one oscillation with holes, in any order: what is missing is predicted from the rest."""
        torch.manual_seed(0)
        times = 30 * torch.rand(240, 1, dtype=torch.float64)
        truth = torch.cat([times.sin(), times.cos()], dim=-1)
        y = truth + 0.05 * torch.randn_like(truth)
        y[torch.rand(y.shape) < 0.3] = torch.nan
        model = {
            "gpvae": lambda: GPVAE(2, 2, hidden_sizes=(8,)),
            "sgpvae": lambda: SGPVAE(2, 2, torch.linspace(0, 30, 40).unsqueeze(-1), hidden_sizes=(8,)),
        }[kind]().double()
        windows = TaskDataset([(times, y)]).windows(40)
        trainer = make_quiet_trainer(max_epochs=40, check_val_every_n_epoch=20)
        module = SGPVAEModule(model, learning_rate=3e-2, num_samples=1)
        trainer.fit(module, TaskLoader(windows, batch_size=2), TaskLoader(windows, batch_size=6, shuffle=False))
        assert trainer.global_step == 40 * 3
        assert trainer.callback_metrics["val_mae"].isfinite()
        prediction = model.eval().predict(times, (times, y))
        missing = y.isnan()
        error = (prediction.mean - truth)[missing].abs().mean()
        assert error < 0.2 * truth[missing].abs().mean()  # untrained it is 1
