"""Multilayer perceptrons, the decoders that most people want."""

from __future__ import annotations

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
        linear = [torch.nn.Linear(*sizes) for sizes in layer_sizes(in_size, hidden_sizes, out_size)]
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


class LinearPlus(torch.nn.Module):
    r"""
    A linear decoder, and a perceptron for what is not linear, which starts out small:

    .. math::

        \text{output} = W \mathbf f + \mathbf b + \mathrm{MLP}(\mathbf f)

    Where the outputs are close to linear in the latent functions, as temperatures at one place are, it learns in fewer
    steps than a perceptron alone.

    :param mlp: The perceptron. If it takes fewer values than the linear map, it reads the first of them.
    :param start: The factor of the last layer's weights at the start; with 0 the decoder starts out linear.
    :param linear: The linear map, by default a :class:`torch.nn.Linear` of the perceptron's size.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import MLP, LinearPlus
        >>> LinearPlus(MLP(3, 5))(torch.randn(7, 10, 3)).shape
        torch.Size([7, 10, 5])
    """

    def __init__(self, mlp: MLP, start: float = 0.1, linear: torch.nn.Linear | PrivateLinear | None = None):
        super().__init__()
        self.linear = torch.nn.Linear(mlp.in_size, mlp.out_size) if linear is None else linear
        self.mlp = mlp
        with torch.no_grad():
            mlp.get_submodule(str(len(mlp) - 1)).get_parameter("weight").mul_(start)
            mlp.output_bias.zero_()

    def forward(self, f: Tensor) -> Tensor:
        return self.linear(f) + self.perceptron(f)

    def perceptron(self, f: Tensor) -> Tensor:
        """Evaluate the part that is not linear."""
        return self.mlp(f[..., : self.mlp.in_size])


class PrivateLinear(torch.nn.Module):
    r"""
    A linear decoder of latent functions that all outputs share, followed by some that each output has for itself:

    .. math::

        \text{output}_p = \sum_{k=1}^{K} w_{pk} f_k + \sum_{i=1}^{I} v_{pi} f_{K + (i - 1) P + p} + b_p

    What the shared functions leave of an output, a sensor's own drift for example, need not be white noise then.

    :param num_shared: Number of shared latent functions K.
    :param num_outputs: Number of outputs P.
    :param num_private: Number of private latent functions I of each output.

    :ivar torch.Tensor weight: All weights as one matrix (`P x (K + I P)`).
    :ivar tuple owners: The output that each latent function is private to, or -1 for a shared one.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import PrivateLinear
        >>> decoder = PrivateLinear(num_shared=3, num_outputs=5, num_private=2)
        >>> decoder.in_features, decoder(torch.randn(7, 10, 13)).shape
        (13, torch.Size([7, 10, 5]))
    """

    def __init__(self, num_shared: int, num_outputs: int, num_private: int):
        super().__init__()
        linear = torch.nn.Linear(num_shared, num_outputs)
        self.shared, self.bias = linear.weight, linear.bias
        self.private = torch.nn.Parameter(torch.full((num_outputs, num_private), 0.3))
        self.num_shared, self.out_features = num_shared, num_outputs
        self.in_features = num_shared + num_private * num_outputs
        self.owners = (*[-1] * num_shared, *list(range(num_outputs)) * num_private)

    @property
    def weight(self) -> Tensor:
        blocks = [torch.diag_embed(column) for column in self.private.unbind(-1)]
        return torch.cat([self.shared, *blocks], dim=-1)

    def forward(self, f: Tensor) -> Tensor:
        return torch.nn.functional.linear(f, self.weight, self.bias)


def linear_part(decoder: torch.nn.Module) -> torch.nn.Linear | PrivateLinear | None:
    """The linear map in a decoder that is one, alone or beside a perceptron, or None."""
    if isinstance(decoder, LinearPlus):
        return decoder.linear
    return decoder if isinstance(decoder, (torch.nn.Linear, PrivateLinear)) else None


def layer_sizes(in_size: int, hidden_sizes: Sequence[int], out_size: int) -> list[tuple[int, int]]:
    """The sizes of each layer's input and output."""
    sizes = [in_size, *hidden_sizes, out_size]
    if min(sizes) < 1:
        raise ValueError(f"Layer sizes must be at least 1, got {sizes} from the input to the output.")
    return list(pairwise(sizes))
