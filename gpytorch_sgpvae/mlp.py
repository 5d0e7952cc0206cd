"""Multilayer perceptrons: one, and a stack of many that are evaluated together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor


class MLP(torch.nn.Sequential):
    r"""
    A multilayer perceptron, the decoder that most people want:

    .. math::

        \mathbf h_0 = \mathbf f, \quad
        \mathbf h_{l + 1} = \phi(W_l \mathbf h_l + \mathbf b_l), \quad
        \text{output} = W_L \mathbf h_L + \mathbf b_L

    :param in_size: Size of the last dimension of the input: K for a decoder.
    :param out_size: Size of the last dimension of the output: P for a decoder.
    :param hidden_sizes: Units in each hidden layer; `()` gives a linear map.
    :param activation: A class of activations such as :class:`torch.nn.ReLU`, made anew for each hidden layer.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import MLP
        >>> MLP(3, 5)(torch.randn(7, 10, 3)).shape
        torch.Size([7, 10, 5])
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        hidden_sizes: Sequence[int] = (20, 20),
        activation: Callable[[], torch.nn.Module] = torch.nn.ReLU,
    ):
        linear = [torch.nn.Linear(*sizes) for sizes in _layer_sizes(in_size, hidden_sizes, out_size)]
        hidden = [module for layer in linear[:-1] for module in (layer, activation())]
        super().__init__(*hidden, linear[-1])
        self.in_size = in_size
        self.out_size = out_size

    def forward(self, input: Tensor) -> Tensor:
        if input.shape[-1] != self.in_size:
            raise ValueError(
                f"This MLP takes {self.in_size} features in the last dimension, got an input of shape "
                f"{tuple(input.shape)}: build it with MLP({input.shape[-1]}, {self.out_size}, ...). "
                "A decoder's in_size is the number of latent functions."
            )
        return super().forward(input)

    @property
    def output_bias(self) -> Tensor:
        """The bias of the last layer (`out_size`)."""
        return self.get_submodule(str(len(self) - 1)).get_parameter("bias")


class StackedMLP(torch.nn.Module):
    r"""
    P perceptrons of one shape with weights of their own, evaluated as batched matrix products:
    `P x B x in_size` to `P x B x out_size`. The parameters are as in :class:`MLP`, with a leading dimension of size P.
    """

    def __init__(
        self,
        num_networks: int,
        in_size: int,
        out_size: int,
        hidden_sizes: Sequence[int] = (20, 20),
        activation: Callable[[], torch.nn.Module] = torch.nn.ReLU,
    ):
        super().__init__()
        sizes = _layer_sizes(in_size, hidden_sizes, out_size)
        self.weights = torch.nn.ParameterList(torch.empty(num_networks, i, o) for i, o in sizes)
        self.biases = torch.nn.ParameterList(torch.empty(num_networks, 1, o) for _, o in sizes)
        self.activations = torch.nn.ModuleList(activation() for _ in hidden_sizes)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            # as torch.nn.Linear does
            bound = 1 / math.sqrt(weight.shape[-2])
            torch.nn.init.uniform_(weight, -bound, bound)
            torch.nn.init.uniform_(bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        hidden = input  # (P, B, in)
        for weight, bias, activation in zip(self.weights, self.biases, self.activations, strict=False):
            hidden = activation(torch.baddbmm(bias, hidden, weight))  # (P, B, hidden)
        return torch.baddbmm(self.biases[-1], hidden, self.weights[-1])  # (P, B, out)

    @property
    def output_bias(self) -> Tensor:
        """The biases of the last layers (`P x 1 x out_size`)."""
        return self.biases[-1]


def _layer_sizes(in_size: int, hidden_sizes: Sequence[int], out_size: int) -> list[tuple[int, int]]:
    sizes = [in_size, *hidden_sizes, out_size]
    if min(sizes) < 1:
        raise ValueError(f"Layer sizes must be at least 1, got {sizes} from the input to the output.")
    return list(pairwise(sizes))
