from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..context import Context
from .encoding import Encoding

if TYPE_CHECKING:
    from .amortized_strategy import AmortizedStrategy


class Conditioning:
    """
    The context of calls of a strategy that bring none, and how long what was computed of it holds.

    In eval mode the context is encoded once. In training mode every call encodes it anew, as the parameters move; q(u)
    of a call holds until its graph is used up by a backward pass, or its parameters are changed by an optimizer.

    :param seen: The context, or the encoding of one.
    :param persistent: Whether copies of the model are conditioned on it too.
    """

    def __init__(self, seen: Context | Encoding, persistent: bool):
        self.seen = seen
        self.persistent = persistent
        self._encoding: Encoding | None = None
        self._versions: tuple[int, ...] = ()
        self._hooks: list[RemovableHandle] = []

    def for_call(self, strategy: AmortizedStrategy) -> Context | Encoding:
        """What a call is conditioned on: in training mode it encodes the context itself, together with its inputs."""
        return self.seen if strategy.training else self.encoding(strategy)

    def encoding(self, strategy: AmortizedStrategy) -> Encoding:
        if isinstance(self.seen, Encoding):
            return self.seen
        if strategy.training:
            return strategy.encode(self.seen)
        if self._encoding is None:
            self._encoding = strategy.encode(self.seen).for_prediction()
        return self._encoding

    def note(self, strategy: AmortizedStrategy) -> None:
        """Take note that q(u) has just been computed, whatever of."""
        self._versions = _versions(strategy)
        if not self._hooks and strategy.training:
            learnt = [parameter for parameter in strategy.model.parameters() if parameter.requires_grad]
            self._hooks = [parameter.register_hook(self._use_up) for parameter in learnt]

    def holds(self, q_u: Any, strategy: AmortizedStrategy) -> bool:
        """Whether the q(u) of the last call can be used again."""
        if not strategy.training:
            return True
        has_graph = q_u.loc.requires_grad or not torch.is_grad_enabled()
        return has_graph and self._versions == _versions(strategy)

    def forget(self) -> None:
        self._encoding = None
        self._versions = ()

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _use_up(self, gradient: Tensor) -> None:
        """A backward pass has used up its graph."""
        self._versions = ()

    def __getstate__(self) -> dict[str, Any]:
        # the rest hangs on a graph or on parameters, and is computed again
        return {**self.__dict__, "_encoding": None, "_versions": (), "_hooks": []}


def _versions(strategy: AmortizedStrategy) -> tuple[int, ...]:
    """How often each parameter was changed in place, by an optimizer for example."""
    return tuple(parameter._version for parameter in strategy.model.parameters())
