"""A run is not taken up with other tasks by mistake."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from training_runs import make_loader, make_module, make_quiet_trainer, make_tasks

from gpytorch_sgpvae.training import TaskDataset, TaskLoader
from gpytorch_sgpvae.training.fingerprint import MOST_ROWS, MOST_TASKS, check_fingerprint, fingerprint


def changed(tasks, number=0, row=0):
    tasks = [(x, y.clone()) for x, y in tasks]
    tasks[number][1][row, 0] = 7.0
    return tasks


def assert_differ(one, other, *names):
    first, second = fingerprint(one), fingerprint(other)
    assert {key for key in first if first[key] != second.get(key)} == set(names)


class TestFingerprint:
    def test_the_same_numbers_are_the_same_tasks_whatever_holds_them(self):
        tasks = make_tasks()
        arrays = [(x.numpy(), y.numpy()) for x, y in tasks]
        assert fingerprint(TaskDataset(tasks)) == fingerprint(TaskDataset(arrays))
        assert fingerprint(TaskDataset(tasks)) == fingerprint(TaskDataset(make_tasks()))

    def test_other_numbers_are_other_tasks(self):
        assert_differ(TaskDataset(make_tasks()), TaskDataset(changed(make_tasks(), 3, 5)), "numbers")

    def test_other_ids_are_other_tasks(self):
        ids = list("abcdefg")
        assert_differ(TaskDataset(make_tasks(), ids=ids), TaskDataset(make_tasks(), ids=ids[::-1]), "ids")

    def test_other_lengths_are_other_tasks(self):
        assert_differ(TaskDataset(make_tasks((7, 4))), TaskDataset(make_tasks((4, 7))), "lengths", "numbers")

    def test_fewer_tasks_are_other_tasks(self):
        assert_differ(TaskDataset(make_tasks()), TaskDataset(make_tasks()[1:]), "number", "ids", "lengths", "numbers")

    def test_other_windows_are_other_tasks(self):
        series = TaskDataset(make_tasks())
        assert fingerprint(series.windows(4)) == fingerprint(TaskDataset(make_tasks()).windows(4))
        assert_differ(series.windows(4), series.windows(4, 3), "windows")

    def test_an_id_is_not_known_by_its_address(self):
        class Station:
            pass

        datasets = [TaskDataset(make_tasks((7, 4)), ids=[Station(), Station()]) for _ in range(2)]
        assert fingerprint(datasets[0]) == fingerprint(datasets[1])

    def test_a_bounded_part_of_large_data_is_read(self, tmp_path):
        reads = []

        class Array(np.ndarray):
            def __getitem__(self, rows):
                reads.append(len(np.atleast_1d(rows)))
                return np.asarray(self)[rows]

        x = np.random.default_rng(0).normal(size=(5000, 2)).view(Array)
        fingerprint(TaskDataset([(x, x)] * 500))
        assert len(reads) <= 2 * MOST_TASKS
        assert sum(reads) <= 2 * MOST_TASKS * MOST_ROWS

    def test_few_functions_are_called(self):
        calls = []

        def read(i):
            calls.append(i)
            return make_tasks()[i % 7]

        dataset = TaskDataset([lambda i=i: read(i) for i in range(100)])
        assert fingerprint(dataset)["numbers"] is not None
        assert calls == [0, 0, 99, 99]
        assert "lengths" not in vars(dataset)

    def test_what_random_functions_return_is_not_noted(self):
        generator = np.random.default_rng(0)
        dataset = TaskDataset([lambda: (generator.normal(size=(4, 2)), generator.normal(size=(4, 3)))])
        assert fingerprint(dataset)["numbers"] is None
        check_fingerprint(fingerprint(dataset), fingerprint(dataset))


class TestRuns:
    def begin(self, folder, **kwargs):
        make_quiet_trainer(folder, max_epochs=1, **kwargs).fit(make_module(), make_loader())

    def go_on(self, folder, tasks, **kwargs):
        trainer = make_quiet_trainer(folder, max_epochs=2)
        trainer.fit(make_module(**kwargs), TaskLoader(TaskDataset(tasks), batch_size=2), ckpt_path="last")
        return trainer

    def test_the_same_tasks_are_taken(self, tmp_path):
        self.begin(tmp_path)
        assert self.go_on(tmp_path, make_tasks()).global_step == 8

    def test_others_are_refused_with_what_differs_and_what_to_do(self, tmp_path):
        self.begin(tmp_path)
        with pytest.raises(
            ValueError,
            match=r"begun with other tasks \(7 of them\) than those at hand \(7\): their numbers differ\. .*"
            r"SGPVAEModule\(check_tasks=False\) to go on with these all the same, or train in another folder",
        ):
            self.go_on(tmp_path, changed(make_tasks()))

    def test_they_are_taken_all_the_same_if_asked_to(self, tmp_path):
        self.begin(tmp_path)
        tasks = changed(make_tasks())
        assert self.go_on(tmp_path, tasks, check_tasks=False).global_step == 8
        checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
        assert checkpoint["gpytorch_sgpvae"]["tasks"] == fingerprint(TaskDataset(tasks))  # from now on it is theirs

    def test_another_number_of_tasks_is_refused_without_that_advice(self):
        with pytest.raises(ValueError, match=r"\(7 of them\) .* \(6\): how many .* begun with, or train in another"):
            check_fingerprint(fingerprint(TaskDataset(make_tasks())), fingerprint(TaskDataset(make_tasks()[1:])))

    def test_windows_where_there_were_none_are_refused(self):
        series = TaskDataset(make_tasks())
        with pytest.raises(ValueError, match="how windows are cut"):
            check_fingerprint(fingerprint(series), fingerprint(series.windows(4)))
