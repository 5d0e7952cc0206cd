"""
How GPyTorch comes to take the weights of a network for variational parameters.

:class:`gpytorch.Module` looks for these in modules that are variational distributions, and takes all other parameters
for hyperparameters. An amortized distribution has its parameters in a network, a module of any kind: without what
stands here, `model.variational_parameters()` would be empty, and of two optimizers, one for each kind, both would be
wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from gpytorch.optim import NGD
from gpytorch.variational import _VariationalDistribution
from torch.nn import Module


def as_variational(module: Module) -> Module:
    """
    The same module as something that counts as a variational distribution: it has the module's class and shares all of
    its attributes, so that whatever is done to one is done to the other.
    """
    cls: Any = type(module)
    return _with_attributes_of(module, _variational_class(cls))


@cache
def _variational_class(cls: Any) -> Any:
    def named_parameters(self: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        for name, parameter in cls.named_parameters(self, *args, **kwargs):
            parameter.is_network_weight = True
            yield name, parameter

    def reduce(self: Any) -> Any:
        return _itself, (_with_attributes_of(self, cls),)

    methods = {"named_parameters": named_parameters, "__reduce__": reduce, "__module__": cls.__module__}
    variational = type(cls)(cls.__name__, (cls,), methods)
    _VariationalDistribution.register(variational)
    return variational


def _with_attributes_of(module: Module, cls: type[Module]) -> Module:
    view = object.__new__(cls)
    object.__setattr__(view, "__dict__", module.__dict__)
    return view


def _itself(module: Module) -> Module:
    return module


def _refuse_network_weights(self: NGD, param_group: dict[str, Any]) -> None:
    """GPyTorch's natural gradient steps are for the natural parameters of a free-form q(u)."""
    params = param_group["params"]
    param_group["params"] = params = [params] if isinstance(params, torch.Tensor) else list(params)
    if any(getattr(parameter, "is_network_weight", False) for parameter in params):
        raise TypeError(
            "NGD takes steps in the natural parameters of a free-form q(u), but these variational parameters are the "
            "weights of an inference network: train them with torch.optim.Adam(model.variational_parameters()). For "
            "natural gradient steps of a task's own q(u) use gpytorch_sgpvae.refine(model, context)."
        )
    super(NGD, self).add_param_group(param_group)


NGD.add_param_group = _refuse_network_weights
