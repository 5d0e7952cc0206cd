"""Where the functions with gradients by hand meet torch's autograd, and where they step aside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class HandwrittenFunction(Function):
    """
    A function with a backward pass of its own, called by :meth:`evaluate`. Where no gradient is recorded it steps
    aside: its forward pass is then a few of torch's own operations, which can be traced, saved, exported, mapped and
    differentiated forward, as a :class:`torch.autograd.Function` cannot.
    """

    @classmethod
    def evaluate(cls, *args: Any) -> Any:
        """The function of its arguments, with the gradient by hand where one is recorded."""
        if torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            return cls.apply(*args)
        return cls.forward(_NothingKept(), *args)


class _NothingKept:
    """Stands in for the context of a forward pass that has no backward pass."""

    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass
