from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader
from training_runs import make_loader, make_tasks

from gpytorch_sgpvae.training import TaskDataset, TaskSampler, collate_tasks


def make_dataset(num_tasks: int = 11) -> TaskDataset:
    return TaskDataset(make_tasks([3 + (7 * i) % 11 for i in range(num_tasks)]))


def numbers(sampler):
    return [[task.number for task in batch] for batch in sampler]


def of_all_ranks(num_replicas, batch_size, **kwargs):
    dataset = kwargs.pop("dataset", None) or make_dataset()
    return [
        TaskSampler(dataset, batch_size, num_replicas=num_replicas, rank=rank, **kwargs) for rank in range(num_replicas)
    ]


@pytest.mark.parametrize("group_by_length", [True, False])
def test_every_task_comes_once_in_each_epoch(group_by_length):
    sampler = TaskSampler(make_dataset(), 3, group_by_length=group_by_length)
    epochs = [numbers(sampler) for _ in range(3)]
    for batches in epochs:
        assert len(batches) == len(sampler) == 4
        assert sorted(number for batch in batches for number in batch) == list(range(11))
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_is_a_function_of_seed_and_epoch():
    dataset = make_dataset()
    one, other = TaskSampler(dataset, 3, seed=4), TaskSampler(dataset, 3, seed=4)
    other.set_epoch(2)
    epochs = [list(one) for _ in range(3)]
    assert list(other) == epochs[2]
    assert numbers(TaskSampler(dataset, 3, seed=5)) != numbers(TaskSampler(dataset, 3, seed=4))


def test_a_task_has_another_seed_in_another_epoch_and_no_other_task_has_it():
    sampler = TaskSampler(make_dataset(), 3)
    seeds = [task.seed for _ in range(5) for batch in sampler for task in batch]
    assert len(set(seeds)) == 5 * 11


def test_grouping_by_length_saves_padding():
    dataset = TaskDataset(make_tasks([10 + (37 * i) % 200 for i in range(400)]))
    mixed, grouped = (TaskSampler(dataset, 8, group_by_length=group).padding() for group in (False, True))
    assert mixed > 0.3
    assert grouped < 0.05
    # what it says is what batches have
    loader = DataLoader(dataset, batch_sampler=TaskSampler(dataset, 8), collate_fn=collate_tasks)
    batches = list(loader)
    rows = sum(batch.y.shape[0] * batch.y.shape[1] for batch in batches)
    assert 1 - sum(sum(batch.lengths) for batch in batches) / rows == pytest.approx(mixed)


@pytest.mark.parametrize("num_replicas", [2, 3, 4])
@pytest.mark.parametrize("num_tasks", [1, 5, 11, 12])
def test_all_processes_take_the_same_steps_and_no_task_counts_twice(num_replicas, num_tasks):
    samplers = of_all_ranks(num_replicas, 2, dataset=make_dataset(num_tasks))
    steps = list(zip(*samplers, strict=True))  # strict: as many on every process
    assert len(steps) == len(samplers[0])
    for shares in steps:
        assert len({len(share) for share in shares}) == 1
        assert all(shares)
    counted = [task.number for shares in steps for share in shares for task in share if task.weight]
    assert sorted(counted) == list(range(num_tasks))


def test_several_processes_take_the_steps_of_one_with_the_same_tasks_and_seeds():
    dataset = make_dataset(12)
    (alone,) = of_all_ranks(1, 6, dataset=dataset, group_by_length=True)
    together = of_all_ranks(3, 2, dataset=dataset, group_by_length=True)
    for whole, shares in zip(alone, zip(*together, strict=True), strict=True):
        assert sorted(task for share in shares for task in share) == sorted(whole)


def test_an_iteration_can_be_taken_up_again():
    dataset = make_dataset()
    reference = TaskSampler(dataset, 3)
    epochs = [list(reference) for _ in range(3)]
    sampler = TaskSampler(dataset, 3)
    list(sampler)
    batches = iter(sampler)
    assert [next(batches), next(batches)] == epochs[1][:2]
    resumed = TaskSampler(dataset, 3)
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == epochs[1][2:]
    assert list(resumed) == epochs[2]


def test_an_iteration_that_had_just_ended_goes_on_with_the_next_epoch():
    dataset = make_dataset()
    sampler = TaskSampler(dataset, 3)
    list(sampler)
    resumed = TaskSampler(dataset, 3)
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == list(sampler)


def test_another_number_of_processes_may_take_up_an_epoch():
    dataset = make_dataset(12)
    (alone,) = of_all_ranks(1, 4, dataset=dataset)
    batches = iter(alone)
    next(batches)
    pair = of_all_ranks(2, 2, dataset=dataset)
    for sampler in pair:
        sampler.load_state_dict(alone.state_dict())
    remaining = [sorted(task.number for share in shares for task in share) for shares in zip(*pair, strict=True)]
    assert remaining == [sorted(task.number for task in batch) for batch in batches]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"seed": 1}, r"{'seed': 0} cannot be taken up with {'seed': 1}"),
        ({"batch_size": 4}, r"{'tasks_per_step': 3} cannot be taken up with {'tasks_per_step': 4}"),
    ],
)
def test_an_epoch_of_other_batches_cannot_be_taken_up(kwargs, message):
    dataset = make_dataset()
    state = TaskSampler(dataset, 3).state_dict()
    with pytest.raises(ValueError, match=message):
        TaskSampler(dataset, **{"batch_size": 3, **kwargs}).load_state_dict(state)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"num_replicas": 2}, "go together"),
        ({"num_replicas": 2, "rank": 2}, "rank from 0 to 1, got 2"),
    ],
)
def test_impossible_arguments_are_errors(kwargs, message):
    with pytest.raises(ValueError, match=message):
        TaskSampler(make_dataset(), **kwargs)


class TestTaskLoader:
    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_what_workers_have_prepared_but_nobody_has_got_comes_again(self, num_workers):
        tasks = make_tasks(range(3, 23))
        reference = [batch.ids for _ in range(2) for batch in make_loader(tasks)]
        loader = make_loader(tasks, num_workers=num_workers)
        batches = iter(loader)
        got = [next(batches).ids for _ in range(3)]
        resumed = make_loader(tasks, num_workers=num_workers)
        resumed.load_state_dict(loader.state_dict())
        assert got + [batch.ids for batch in resumed] == reference[:10]

    def test_each_epoch_has_an_order_of_its_own_and_can_be_had_again(self):
        loader = make_loader()
        first, second = ([batch.ids for batch in loader] for _ in range(2))
        assert first != second
        loader.sampler.set_epoch(0)
        assert [batch.ids for batch in loader] == first

    def test_an_iteration_that_is_broken_off_starts_over(self):
        loader = make_loader()
        first = next(iter(loader)).ids
        assert next(iter(loader)).ids == first

    def test_a_loader_that_does_not_shuffle_is_the_same_every_time(self):
        loader = make_loader(shuffle=False)
        first, second = ([batch.ids for batch in loader] for _ in range(2))
        assert first == second == [[0, 1], [2, 3], [4, 5], [6]]

    def test_weights_have_the_dtype_of_the_data(self):
        assert next(iter(make_loader())).weights.dtype == torch.float64
