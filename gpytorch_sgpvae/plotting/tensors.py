"""Conversion of tensors of any dtype, on any device, to what can be drawn."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu()


def of_task(tensor: Tensor, task: int | None, name: str) -> Tensor:
    """The rows of one task (`N x ...`), ready for numpy. What has no batch dimension is shared by all tasks."""
    tensor = plain(tensor)
    if task is not None and tensor.dim() > 2:
        tensor = tensor[task]
    if tensor.dim() > 2:
        raise ValueError(f"{name} of shape {tuple(tensor.shape)} has several tasks: choose one with task=.")
    return tensor


def horizontal(x: Tensor, task: int | None) -> Tensor:
    """One coordinate of the inputs of a task (`N`)."""
    x = of_task(x.unsqueeze(-1) if x.dim() == 1 else x, task, "x")
    if x.shape[-1] != 1:
        raise ValueError(
            f"The inputs of shape {tuple(x.shape)} have {x.shape[-1]} coordinates, and a plot one axis for them: "
            "choose one, as in x[:, 0], also of the context and of inducing points. A posterior's q(f) is posterior(x)."
        )
    return x.squeeze(-1)


def output_names(names: Sequence[str] | None, num_outputs: int) -> list[str]:
    if names is None:
        return [f"output {p + 1}" for p in range(num_outputs)]
    if len(names) != num_outputs:
        raise ValueError(f"{len(names)} names for {num_outputs} outputs: {', '.join(names)}.")
    return list(names)
