"""Fingerprints of tasks, which a run keeps so that it is not taken up with other tasks by mistake."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .task_dataset import Task, TaskDataset, TaskIndex, WindowDataset

# Tasks that are looked at, and rows of each, spread evenly. Functions may take long, as they read files.
MOST_TASKS, MOST_FUNCTIONS, MOST_ROWS = 32, 2, 64


def fingerprint(dataset: TaskDataset) -> dict[str, Any]:
    """
    Tell the tasks of a dataset from others: by their number, and by hashes of their ids, lengths and numbers, of a
    bounded sample of tasks and rows. Where tasks are functions, a few of them are called, twice: nothing is noted of a
    function that returns something else each time.

    :param dataset: The tasks, or windows of series.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.training import TaskDataset
        >>> x, y = torch.rand(7, 2), torch.randn(7, 5)
        >>> fingerprint(TaskDataset([(x, y)])) == fingerprint(TaskDataset([(x.numpy(), y.numpy())]))
        True
        >>> fingerprint(TaskDataset([(x, y)])) == fingerprint(TaskDataset([(x, y + 1)]))
        False
    """
    if isinstance(dataset, WindowDataset):
        windows = dataset.tasks
        cut = [windows.length, windows.stride, windows.time_column]
        return {**fingerprint(windows.series), "windows": cut}
    return {
        "number": len(dataset),
        "ids": _hash(_name(id_) for id_ in dataset.ids),
        "lengths": _lengths(dataset),
        "numbers": _numbers(dataset),
    }


def check_fingerprint(saved: dict[str, Any], present: dict[str, Any]) -> None:
    """
    Raise if a run was begun with other tasks.

    :param saved: The fingerprint of the tasks that it was begun with.
    :param present: The fingerprint of the tasks at hand.
    """
    words = {
        "number": "how many they are",
        "ids": "their ids",
        "lengths": "their lengths",
        "numbers": "their numbers",
        "windows": "how windows are cut",
    }
    # what was not noted then, or cannot be noted now, says nothing
    keys = [key for key in words if None not in (saved.get(key), present.get(key))]
    keys += ["windows"] if ("windows" in saved) != ("windows" in present) else []
    other = [words[key] for key in keys if saved.get(key) != present.get(key)]
    if other:
        # an epoch of other tasks has other steps, and could not be taken up
        same_steps = saved["number"] == present["number"] and words["windows"] not in other
        anyway = "pass SGPVAEModule(check_tasks=False) to go on with these all the same, or " if same_steps else "or "
        raise ValueError(
            f"This run was begun with other tasks ({saved['number']} of them) than those at hand "
            f"({present['number']}): {' and '.join(other)} differ. Give it the tasks that it was begun with, {anyway}"
            "train in another folder, from the parameters of this run if you like (SGPVAEModule.load_from_checkpoint)."
        )


def _lengths(dataset: TaskDataset) -> str | None:
    """A hash of all lengths, or None where tasks would have to be read for them."""
    is_given = "lengths" in vars(dataset) and not any(callable(task) for task in _sample(dataset.tasks, MOST_TASKS))
    is_known = isinstance(dataset.tasks, (list, tuple)) and all(_has_length(task) for task in dataset.tasks)
    return _hash(str(length) for length in dataset.lengths) if is_given or is_known else None


def _has_length(task: Any) -> bool:
    return isinstance(task, (tuple, list)) and len(task) == 2 and hasattr(task[0], "shape")


def _numbers(dataset: TaskDataset) -> str | None:
    """A hash of some rows of some tasks."""
    numbers = _sample(range(len(dataset)), MOST_TASKS)
    functions = [i for i in numbers if callable(dataset.tasks[i])]
    kept = [i for i in numbers if i not in functions]
    parts = [part for i in kept for part in _rows(*dataset._fetch(i, seed=0))]
    for i in _sample(functions, MOST_FUNCTIONS):
        first, second = (_hash(_rows(*_called(dataset, i))) for _ in range(2))
        if first != second:
            return None
        parts.append(first.encode())
    return _hash(parts)


def _called(dataset: TaskDataset, i: int) -> tuple[Tensor, Tensor]:
    task: Task = dataset[TaskIndex(i, 1.0, seed=0)]
    return task.x, task.y


def _rows(*values: Any) -> list[bytes]:
    """Some rows of tensors or arrays, as bytes that are the same for the same numbers, and their shapes."""
    parts = []
    for value in values:
        rows = torch.tensor(_sample(range(value.shape[0]), MOST_ROWS), dtype=torch.long, device="cpu")
        some = value[rows.to(value.device)] if isinstance(value, Tensor) else torch.tensor(value[rows.numpy()])
        numbers = some.detach().to("cpu", torch.float64)
        numbers = numbers.masked_fill(numbers.isnan(), torch.nan) + 0.0  # one NaN, and one zero
        parts += [repr(tuple(value.shape)).encode(), numbers.contiguous().numpy().tobytes()]
    return parts


def _sample(values: Any, most: int) -> list[Any]:
    """Take at most the given number of elements of a sequence, spread evenly, with the first and the last."""
    n = len(values)
    if n <= most:
        return [values[i] for i in range(n)]
    return [values[i * (n - 1) // (most - 1)] for i in range(most)]


def _name(id_: Any) -> str:
    """Name an id as any process would name it: not by its address."""
    return repr(id_) if type(id_).__repr__ is not object.__repr__ else type(id_).__name__


def _hash(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]
