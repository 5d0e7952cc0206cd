"""The data that a model is conditioned on: the door where NaN and raggedness end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from gpytorch import settings
from torch import Tensor

from .magnitudes import ExtremeNumberError, check_magnitude
from .utils.shapes import check_chunk_size


class NonFiniteDataError(ExtremeNumberError):
    """A task has infinite outputs, or observed rows whose inputs are not finite."""


class Context:
    r"""
    A batch of tasks :math:`\{(\mathbf x_n, \mathbf y_n)\}_{n=1}^N` whose outputs may be missing.

    Every :math:`\mathbf y_n = \mathbf y_n^o \cup \mathbf y_n^u` has an observed and an unobserved part; an
    unobserved entry is written as NaN. Here, once, NaN becomes a finite :attr:`filled` and a boolean
    :attr:`observed`; nothing behind this door ever looks at a NaN again:

    .. math::

        \text{observed}_{np} = [\, y_{np} \text{ is not NaN} \,], \qquad
        \text{filled}_{np} = \text{observed}_{np} \; y_{np}

    :param x: Input locations (`*T x N x D`, or `N` for one input dimension).
    :param y: Outputs (`*T x N x P`, or `*T x N` for one output); NaN is a missing entry. The batch shapes of x and
        y broadcast: x (`N x D`) with y (`T x N x P`) shares the inputs among all tasks. A y of the shape of x without
        its last dimension is read as one output; any other y whose last dimension but one is N as `*T x N x P`.

    :ivar torch.Tensor x: The inputs (`*T x N x D`), finite: always the same object. Rows in which nothing is observed
        may hold NaN on the way in, and hold zeros here.
    :ivar torch.Tensor y: The outputs as they came, NaN included: the target for a marginal log likelihood.
    :ivar torch.Tensor filled: The outputs (`*T x N x P`) with zeros where nothing was observed.
    :ivar torch.Tensor observed: True where something was observed (`*T x N x P`, boolean).

    The checks of values (infinite y, NaN in the x of an observed row, numbers whose squares would overflow) run under
    :class:`gpytorch.settings.debug`, which is on by default: switch it off where a GPU should not wait for them. An x
    that is not finite is then taken for zero, and an infinite y stays infinite.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Context
        >>> x = torch.linspace(0, 1, 3).unsqueeze(-1)
        >>> y = torch.tensor([[1.0, float("nan")], [2.0, 3.0], [float("nan"), float("nan")]])
        >>> context = Context(x, y)
        >>> context.observed.any(-1).tolist()
        [True, True, False]
        >>> Context.pad([(x, y), (x[:2], y[:2])])
        Context(batch_shape=(2,), num_points=3, input_dim=1, num_outputs=2)
    """

    def __init__(self, x: Tensor, y: Tensor):
        _check_tensor("x", x)
        _check_tensor("y", y)
        self._given_x, self._given_version = x, _version(x)
        x = x.unsqueeze(-1) if x.dim() == 1 else x
        num_points = x.shape[-2]
        if y.shape == x.shape[:-1]:
            rows = y.unsqueeze(-1)
        elif y.dim() >= 2 and y.shape[-2] == num_points:
            rows = y
        elif y.shape[-1] == num_points:
            rows = y.unsqueeze(-1)
        else:
            raise ValueError(
                f"x of shape {tuple(x.shape)} has N = {num_points} points, but y of shape {tuple(y.shape)} has no "
                "such dimension: give x as (*T, N, D) and y as (*T, N, P), or (*T, N) for one output."
            )
        try:
            self.batch_shape = torch.broadcast_shapes(x.shape[:-2], rows.shape[:-2])
        except RuntimeError:
            raise ValueError(
                f"The batch shapes {tuple(x.shape[:-2])} of x {tuple(x.shape)} and {tuple(rows.shape[:-2])} of "
                f"y {tuple(y.shape)} do not broadcast: give one x per task, or one x without a batch for all."
            ) from None
        if 0 in self.batch_shape:
            raise ValueError(
                f"There are no tasks in x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}: a batch needs at "
                "least one. A task without points has N = 0."
            )
        if x.dtype != y.dtype or x.device != y.device:
            raise ValueError(
                f"x is {x.dtype} on {x.device}, y is {y.dtype} on {y.device}: convert one with .to(...) first."
            )

        observed = ~torch.isnan(rows)
        if settings.debug.on():
            _check_values(x, rows, observed)
        self.y = y
        self._one_output_without_dimension = rows is not y
        self.filled = torch.where(observed, rows, 0.0).expand(*self.batch_shape, *rows.shape[-2:])
        self.observed = observed.expand(*self.batch_shape, *rows.shape[-2:])
        self.x = torch.where(torch.isfinite(x), x, 0.0)
        self._seen_from: Tensor | None = None

    @classmethod
    def pad(cls, tasks: Iterable[tuple[Tensor, Tensor] | Context]) -> Context:
        r"""
        Make one batch of tasks with unequal numbers of points: missing rows are appended to the shorter ones.

        A padded row observes nothing, so it has no influence on :math:`q(f)` or on the
        :class:`~gpytorch_sgpvae.TaskELBO`. It repeats its task's last input, so that no kernel meets an input far
        from the data.

        :param tasks: Pairs of x (`N_t x D`, or `N_t`) and y (`N_t x P`, or `N_t`), or contexts without a batch.
        :return: A context of batch shape `T` with N = max N_t.
        """
        return cls(*pad_tasks(tasks))

    @property
    def num_points(self) -> int:
        return self.x.shape[-2]

    @property
    def num_outputs(self) -> int:
        return self.filled.shape[-1]

    @property
    def num_informative(self) -> Tensor:
        """The number of points of each task in which anything is observed (`*T`)."""
        return self.observed.any(-1).sum(-1)

    @property
    def dtype(self) -> torch.dtype:
        return self.x.dtype

    @property
    def device(self) -> torch.device:
        return self.x.device

    @property
    def locations(self) -> Tensor:
        """The inputs of a network's sites: the context's own, or the points that the context is :meth:`seen_from`."""
        return self.x if self._seen_from is None else self._seen_from

    def is_at(self, x: Tensor) -> bool:
        """Return whether x is this context's own tensor of inputs, so that results at x can be used again."""
        given = self._given_x
        if x is self.x:
            return True
        if _version(given) is None or _version(given) != self._given_version:
            # changed in place since, or nobody can tell
            return False
        if given.dim() == 1 and x._base is given:
            # GPyTorch's models turn inputs of shape (N,) into views of shape (N, 1).
            return x.shape == (*given.shape, 1) and x.stride(0) == given.stride(0)
        return x is given

    def hide(
        self, probability: float, generator: torch.Generator | None = None, base_samples: Tensor | None = None
    ) -> Context:
        r"""
        This context with fewer observed entries: each is hidden with a probability. A model that is conditioned on it,
        and judged by this context's y, learns to do with less than it was given.

        :param probability: The probability of each observed entry to be hidden.
        :param generator: Source of the randomness.
        :param base_samples: Samples from [0, 1) to use instead of new ones (`*T x N x P`).
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"Expected a probability between 0 and 1, got {probability}.")
        if base_samples is None:
            base_samples = torch.rand(self.filled.shape, dtype=self.dtype, device=self.device, generator=generator)
        kept = self.observed & (base_samples >= probability)
        return Context(self.x, self._like_y(torch.where(kept, self.filled, torch.nan)))

    def subset(self, num_points: int, generator: torch.Generator | None = None) -> Context:
        r"""
        Random points of each task, among those in which anything is observed.

        :param num_points: The number of points to keep; a task with fewer keeps all of them, and is padded.
        :param generator: Source of the randomness.
        """
        if num_points < 1:
            raise ValueError(f"Expected a subset of at least 1 point, got {num_points}.")
        order = torch.rand(self.observed.shape[:-1], dtype=self.dtype, device=self.device, generator=generator)
        order = torch.where(self.observed.any(-1), order, 2.0)  # (*T, N), empty rows last
        rows = order.argsort(-1)[..., :num_points].unsqueeze(-1)  # (*T, Ñ, 1)
        x = self.x.expand(*self.batch_shape, *self.x.shape[-2:])
        y = torch.where(self.observed, self.filled, torch.nan)
        x, y = (tensor.gather(-2, rows.expand(*rows.shape[:-1], tensor.shape[-1])) for tensor in (x, y))
        return Context(x, self._like_y(y))

    def expand(self, batch_shape: torch.Size | tuple[int, ...]) -> Context:
        r"""
        This context as the same context of many tasks, in no more memory.

        :param batch_shape: The batch shape of these tasks, to which this context's own can be expanded.
        """
        expanded, event_dims = copy.copy(self), 1 if self._one_output_without_dimension else 2
        expanded.batch_shape = torch.Size(batch_shape)
        expanded.y = self.y.expand(*batch_shape, *self.y.shape[-event_dims:])
        expanded.filled, expanded.observed = (
            rows.expand(*batch_shape, *rows.shape[-2:]) for rows in (self.filled, self.observed)
        )
        return expanded

    def map_outputs(self, function: Callable[[Tensor], Tensor]) -> Context:
        r"""
        This context with each known output replaced by a function of it, as a network that reads other units needs it.

        :param function: Maps :attr:`filled` to values of the same shape; what it makes of missing entries is dropped.
        """
        values = function(self.filled)
        mapped = copy.copy(self)
        mapped.filled = torch.where(self.observed, values, 0.0)
        mapped.y = self._like_y(torch.where(self.observed, values, torch.nan))
        return mapped

    def seen_from(self, points: Tensor) -> Context:
        r"""
        This context for a network that speaks of function values at other places than the inputs.

        :param points: The places (`M x D`), which become :attr:`locations`.
        """
        seen = copy.copy(self)
        seen._seen_from = points
        return seen

    def split(self, chunk_size: int) -> Iterator[Context]:
        """
        This context in pieces, one after the other. They are views: they take no memory of their own.

        :param chunk_size: Number of points in each; the last may have fewer.
        """
        check_chunk_size(chunk_size)
        for start in range(0, max(self.num_points, 1), chunk_size):
            length = min(chunk_size, self.num_points - start)
            chunk = copy.copy(self)
            chunk.x, chunk.filled, chunk.observed = (
                tensor.narrow(-2, start, length) for tensor in (self.x, self.filled, self.observed)
            )
            chunk.y = self.y.narrow(-1 if self._one_output_without_dimension else -2, start, length)
            chunk._given_x, chunk._given_version = chunk.x, _version(chunk.x)
            yield chunk

    def _like_y(self, rows: Tensor) -> Tensor:
        """Outputs of `*T x N x P` as the given ones came, without the last dimension for one output."""
        return rows.squeeze(-1) if self._one_output_without_dimension else rows

    def to(self, *args: Any, **kwargs: Any) -> Context:
        """This context with another dtype or on another device; the arguments are those of `Tensor.to`."""
        return Context(self.x.to(*args, **kwargs), self.y.to(*args, **kwargs))

    def __repr__(self) -> str:
        return (
            f"Context(batch_shape={tuple(self.batch_shape)}, num_points={self.num_points}, "
            f"input_dim={self.x.shape[-1]}, num_outputs={self.num_outputs})"
        )


def as_context(context: Context | tuple[Tensor, Tensor]) -> Context:
    """A plain `(x, y)` is accepted wherever a :class:`Context` is."""
    if isinstance(context, Context):
        return context
    if isinstance(context, (tuple, list)) and len(context) == 2:
        return Context(*context)
    raise TypeError(f"Expected a Context or a pair (x, y), got {type(context).__name__}.")


def pad_tasks(
    tasks: Iterable[tuple[Tensor, Tensor] | Context], ids: Sequence[Any] | None = None
) -> tuple[Tensor, Tensor]:
    """
    The tensors of :meth:`Context.pad`, whose values nobody has looked at yet.

    :param ids: The tasks' names in error messages, by default 0, 1, ....
    """
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    for i, task in enumerate(tasks):
        name = i if ids is None else ids[i]
        x, y = as_pair(task, name)
        if xs and (x.shape[1:], y.shape[1:]) != (xs[0].shape[1:], ys[0].shape[1:]):
            raise ValueError(
                f"Task {name} has x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}, but task "
                f"{0 if ids is None else ids[0]} has {tuple(xs[0].shape)} and {tuple(ys[0].shape)}: only N may differ "
                "between tasks. An output that a task lacks is a column of NaN."
            )
        if xs and (x.dtype, x.device) != (xs[0].dtype, xs[0].device):
            raise ValueError(
                f"Task {name} is {x.dtype} on {x.device}, but task {0 if ids is None else ids[0]} is {xs[0].dtype} on "
                f"{xs[0].device}: convert one with .to(...) first."
            )
        xs.append(x)
        ys.append(y)
    if not xs:
        raise ValueError("Context.pad needs at least one task, got none.")
    num_points = max(x.shape[0] for x in xs)
    return (
        torch.stack([_pad_inputs(x, num_points) for x in xs]),
        torch.stack([_pad_outputs(y, num_points) for y in ys]),
    )


def as_pair(task: tuple[Tensor, Tensor] | Context, name: Any) -> tuple[Tensor, Tensor]:
    """One task as x (`N x D`) and y (`N x P`, or `N`)."""
    pair = (task.x, task.y) if isinstance(task, Context) else task
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"Task {name} is a {type(task).__name__}: expected a pair (x, y) or a Context.")
    x, y = pair
    _check_tensor("x", x)
    _check_tensor("y", y)
    x = x.unsqueeze(-1) if x.dim() == 1 else x
    if x.dim() != 2 or y.dim() not in (1, 2) or y.shape[0] != x.shape[0]:
        raise ValueError(
            f"Task {name} has x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}: "
            "expected x (N, D) and y (N, P), or (N,) for one output, with the same N."
        )
    return x, y


def _version(x: Tensor) -> int | None:
    """Count how often x was changed in place; an inference tensor does not say."""
    return None if x.is_inference() else x._version


def _check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: convert it with torch.as_tensor(...) first.")
    if not value.is_floating_point():
        raise ValueError(f"{name} is {value.dtype}: convert it to a floating point type, e.g. with {name}.float().")
    if value.dim() == 0:
        raise ValueError(f"{name} has no dimensions: expected x (*T, N, D) and y (*T, N, P).")


def _check_values(x: Tensor, rows: Tensor, observed: Tensor) -> None:
    if torch.isinf(rows).any():
        raise NonFiniteDataError(
            f"y of shape {tuple(rows.shape)} holds {int(torch.isinf(rows).sum())} infinite entries: "
            "write a missing entry as NaN, and clip or drop the others."
        )
    lost = ~torch.isfinite(x).all(-1) & observed.any(-1)
    if lost.any():
        raise NonFiniteDataError(
            f"x of shape {tuple(x.shape)} is not finite in {int(lost.sum())} rows in which something is observed in "
            f"y of shape {tuple(rows.shape)}: an input cannot be missing; drop these rows or set their y to NaN."
        )
    check_magnitude(
        torch.where(observed, rows, 0.0),
        "The context's y",
        "scale outputs to mean 0 and standard deviation 1, or correct these entries.",
    )
    # zero, as in Context.x, where nothing is observed
    check_magnitude(
        torch.where(torch.isfinite(x), x, 0.0),
        "The context's x",
        "scale inputs so that the functions vary over distances of about 1, or correct these entries.",
    )


def _pad_inputs(x: Tensor, num_points: int) -> Tensor:
    missing = num_points - x.shape[0]
    finite = x[torch.isfinite(x).all(-1)]
    last = finite[-1:] if len(finite) else x.new_zeros(1, x.shape[1])
    return torch.cat([x, last.expand(missing, -1)])


def _pad_outputs(y: Tensor, num_points: int) -> Tensor:
    missing = num_points - y.shape[0]
    return torch.cat([y, y.new_full((missing, *y.shape[1:]), torch.nan)])
