from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from training_runs import LENGTHS, make_module, make_tasks

from gpytorch_sgpvae import Context
from gpytorch_sgpvae.training import TaskDataset, TaskLoader, collate_tasks


def read_first_task():
    return make_tasks()[0]


def draw_a_task():
    return torch.rand(5, 2), torch.randn(5, 3)


def assert_same_task(task, expected):
    assert torch.equal(task.x, expected[0])
    assert torch.equal(task.y.nan_to_num(), expected[1].nan_to_num())


def test_tasks_in_memory_come_back_as_they_are():
    tasks = make_tasks()
    dataset = TaskDataset(tasks)
    assert len(dataset) == len(tasks)
    assert dataset.lengths == list(LENGTHS)
    for i, task in enumerate(tasks):
        assert_same_task(dataset[i], task)
        assert dataset[i].id == i
        assert dataset[i].weight == 1


def test_contexts_are_tasks_too():
    tasks = make_tasks()
    assert_same_task(TaskDataset([Context(*tasks[0])])[0], tasks[0])


def test_functions_are_called_when_a_task_is_needed():
    calls = []

    def read():
        calls.append(1)
        return make_tasks()[0]

    dataset = TaskDataset([read, read], lengths=[7, 7])
    assert dataset.lengths == [7, 7]
    assert not calls
    assert_same_task(dataset[1], make_tasks()[0])
    assert len(calls) == 1


def test_lengths_of_functions_are_looked_up_once():
    calls = []

    def read():
        calls.append(1)
        return make_tasks()[0]

    dataset = TaskDataset([read])
    assert dataset.lengths == dataset.lengths == [7]
    assert len(calls) == 1


def test_memory_mapped_arrays_are_read_and_not_kept_open_for_writing(tmp_path):
    x, y = make_tasks()[0]
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())
    maps = tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    dataset = TaskDataset([maps], dtype=torch.float32)
    assert dataset.lengths == [7]
    assert dataset[0].x.dtype == dataset[0].y.dtype == torch.float32
    torch.testing.assert_close(dataset[0].x, x.float())
    dataset[0].x.zero_()
    torch.testing.assert_close(dataset[0].x, x.float())


def test_random_numbers_of_a_function_come_from_the_tasks_seed():
    from gpytorch_sgpvae.training import TaskIndex

    dataset = TaskDataset([draw_a_task])
    before = torch.get_rng_state()
    first, again, other = (dataset[TaskIndex(0, 1.0, seed)].x for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader_pads_each_batch_to_its_longest_task(num_workers):
    dataset = TaskDataset([read_first_task, *make_tasks()[1:]])
    loader = DataLoader(dataset, batch_size=3, collate_fn=collate_tasks, num_workers=num_workers)
    batches = list(loader)
    assert [batch.y.shape for batch in batches] == [(3, 9, 3), (3, 12, 3), (1, 8, 3)]
    assert [length for batch in batches for length in batch.lengths] == list(LENGTHS)
    assert [i for batch in batches for i in batch.ids] == list(range(7))
    for batch in batches:
        for x, y, length in zip(batch.x, batch.y, batch.lengths, strict=True):
            assert y[length:].isnan().all()
            assert x.isfinite().all()


def test_what_a_loader_hands_to_new_processes_can_be_pickled():
    """Windows and macOS start them anew, where Linux forks."""
    dataset = TaskDataset([read_first_task, *make_tasks()[1:]])
    for tasks in (dataset, dataset.windows(4, 3)):
        copy, collate = pickle.loads(pickle.dumps((tasks, collate_tasks)))
        loader = TaskLoader(tasks, batch_size=3, shuffle=False)
        for batch, indices in zip(loader, TaskLoader(tasks, batch_size=3, shuffle=False).sampler, strict=True):
            again = collate([copy[i] for i in indices])
            assert torch.equal(again.x, batch.x)
            assert torch.equal(again.y.nan_to_num(), batch.y.nan_to_num())


def test_pinned_memory_and_devices_reach_the_tensors(monkeypatch):
    batch = collate_tasks([TaskDataset(make_tasks())[i] for i in range(2)])
    from torch.utils.data._utils.pin_memory import pin_memory

    # without a GPU there is nothing to pin: the walk through the batch is what can go wrong
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor.clone())
    pinned = pin_memory(batch)
    assert type(pinned) is type(batch)
    assert pinned.x is not batch.x
    assert (pinned.lengths, pinned.ids, pinned.seeds) == (batch.lengths, batch.ids, batch.seeds)


def test_padding_and_company_change_no_tasks_bound():
    dataset = TaskDataset(make_tasks())
    module = make_module(hide=0.3)
    tasks = [dataset[i] for i in range(7)]
    together = module.elbo(collate_tasks(tasks), hide=0.3, num_samples=3)
    alone = torch.cat([module.elbo(collate_tasks([task]), hide=0.3, num_samples=3) for task in tasks])
    reversed_ = module.elbo(collate_tasks(tasks[::-1]), hide=0.3, num_samples=3).flip(0)
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=0)
    torch.testing.assert_close(together, reversed_, rtol=1e-10, atol=0)


def test_inputs_that_all_tasks_share_stay_shared():
    x = torch.rand(6, 2)
    dataset = TaskDataset([(x, torch.randn(6, 3)) for _ in range(4)])
    batch = collate_tasks([dataset[i] for i in range(4)])
    assert batch.x.shape == (6, 2)
    assert batch.context.batch_shape == (4,)
    assert batch.task(2).context.batch_shape == (1,)
    assert torch.equal(batch.task(2).y, batch.y[2:3])


@pytest.mark.parametrize(
    ("tasks", "kwargs", "error", "message"),
    [
        ([], {}, ValueError, "at least one task"),
        (make_tasks(), {"ids": ["a"]}, ValueError, "7 tasks but 1 ids"),
        (make_tasks(), {"lengths": [1, 2]}, ValueError, "7 tasks but 2 lengths"),
    ],
)
def test_a_wrong_number_of_anything_is_an_error(tasks, kwargs, error, message):
    with pytest.raises(error, match=message):
        TaskDataset(tasks, **kwargs)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ((torch.rand(5, 2), torch.randn(4, 3)), r"Task spring has x of shape \(5, 2\) and y of shape \(4, 3\)"),
        ((torch.rand(5, 2), torch.zeros(5, 3, dtype=torch.int64)), "y is torch.int64"),
        (lambda: 1 / 0, "division by zero"),
    ],
)
def test_a_task_that_cannot_be_read_is_named(task, message):
    with pytest.raises((ValueError, ZeroDivisionError), match=message) as caught:
        TaskDataset([task], ids=["spring"])[0]
    assert "reading task 'spring'" in caught.value.__notes__[0]


def test_tasks_that_do_not_go_together_are_named():
    dataset = TaskDataset([*make_tasks()[:1], *make_tasks(num_outputs=2)[:1]], ids=["spring", "summer"])
    with pytest.raises(ValueError, match=r"Task summer has .* but task spring has"):
        collate_tasks([dataset[0], dataset[1]])
