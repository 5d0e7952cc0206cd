"""Time for memory: what a backward pass can compute again need not be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from .._compat import tree_leaves, tree_map
from .autograd import HandwrittenFunction


def recomputed(function: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """
    The results of a function, of which nothing else is kept for the backward pass: it is called again there, with the
    same random numbers. The tensors and parameters that it uses from outside get their gradients.

    :func:`torch.utils.checkpoint.checkpoint` does the same but keeps the nodes of the graph. There may be hundreds of
    them for each of hundreds of chunks, and lying between freed blocks of memory they keep it from being used again:
    peak memory then grows with the number of chunks after all.

    :param function: Takes nothing. What it uses from outside goes through torch's functions, not directly into a
        :class:`torch.autograd.Function`.
    """
    if not torch.is_grad_enabled():
        return function()
    random_states = _random_states()
    with torch.no_grad(), _Outside() as outside:
        results = function()
    return _Recomputed.evaluate(function, random_states, results, *outside.tensors.values())


class _Recomputed(HandwrittenFunction):
    @staticmethod
    def forward(
        ctx: Any, function: Callable[[], Any], random_states: Any, results: tuple[Tensor, ...], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.function, ctx.random_states = function, random_states
        ctx.tensors = tensors
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor | None, ...]:
        # Stand-ins, so that the gradients stop here: what is behind the tensors has a backward pass of its own.
        stand_ins = [tensor.detach().requires_grad_() for tensor in ctx.tensors]
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices=gpus), torch.enable_grad():
            _set_random_states(ctx.random_states)
            with _Outside(dict(zip(map(id, ctx.tensors), stand_ins, strict=True))):
                results = ctx.function()
        differentiable = [(result, bar) for result, bar in zip(results, bars, strict=True) if result.requires_grad]
        outputs, output_bars = zip(*differentiable, strict=True)
        gradients = torch.autograd.grad(outputs, stand_ins, output_bars, allow_unused=True)
        return None, None, None, *gradients


class _Outside(TorchFunctionMode):
    """
    Takes note of the tensors from outside: while gradients are off, those that require one. Given stand-ins, puts
    these in their places.
    """

    def __init__(self, stand_ins: dict[int, Tensor] | None = None):
        super().__init__()
        self.tensors: dict[int, Tensor] = {}
        self.stand_ins = stand_ins

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, stand_ins = kwargs or {}, self.stand_ins
        if stand_ins is None:
            found = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad]
            self.tensors.update((id(tensor), tensor) for tensor in found)
        else:
            args, kwargs = tree_map(lambda leaf: stand_ins.get(id(leaf), leaf), (args, kwargs))
        return func(*args, **kwargs)


def _random_states() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _set_random_states(states: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(states[0])
    if states[1]:
        torch.cuda.set_rng_state_all(states[1])
