"""The groups of parameters that an optimizer treats differently: hyperparameters, inducing points, networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gpytorch
import torch

GROUPS = ("hyperparameters", "inducing_points", "networks")


def parameter_groups(module: torch.nn.Module, learning_rate: float | Mapping[str, float]) -> list[dict[str, Any]]:
    """
    Groups for a torch optimizer, by name. A parameter of a GPyTorch module (a kernel, a mean, a likelihood) is a
    hyperparameter, one of a plain torch module (a layer of the inference network or of the decoder) a network's.

    :param module: The module to train.
    :param learning_rate: One learning rate for all groups, or one for each: `"hyperparameters"`, `"inducing_points"`,
        `"networks"`.
    """
    rates = learning_rate if isinstance(learning_rate, Mapping) else dict.fromkeys(GROUPS, learning_rate)
    if set(rates) != set(GROUPS):
        raise ValueError(f"Expected a learning rate, or one for each of {', '.join(GROUPS)}, got {dict(rates)}.")
    groups: dict[str, list[torch.nn.Parameter]] = {name: [] for name in GROUPS}
    seen: set[torch.nn.Parameter] = set()
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter.requires_grad and parameter not in seen:
                seen.add(parameter)
                groups[_group(owner, name)].append(parameter)
    return [{"params": params, "lr": rates[name], "name": name} for name, params in groups.items() if params]


def _group(owner: torch.nn.Module, name: str) -> str:
    if name == "inducing_points":
        return "inducing_points"
    return "hyperparameters" if isinstance(owner, gpytorch.Module) else "networks"
