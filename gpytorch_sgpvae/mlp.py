"""Multilayer perceptrons: one, and a stack of many that are evaluated together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

# From so many rows on, what is done for each of them outweighs what is done once for a layer of a CPU's network.
MANY_ROWS = 256
# So many units make linear pieces worth their while.
MANY_UNITS = 64

_GROUP = 16


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


class LinearPlus(torch.nn.Module):
    r"""
    A linear decoder, and a perceptron for what is not linear, which starts out small:

    .. math::

        \text{output} = W \mathbf f + \mathbf b + \mathrm{MLP}(\mathbf f)

    Where the outputs are close to linear in the latent functions, as temperatures at one place are, it learns in fewer
    steps than a perceptron alone.

    :param mlp: The perceptron.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import MLP, LinearPlus
        >>> LinearPlus(MLP(3, 5))(torch.randn(7, 10, 3)).shape
        torch.Size([7, 10, 5])
    """

    def __init__(self, mlp: MLP):
        super().__init__()
        self.linear = torch.nn.Linear(mlp.in_size, mlp.out_size)
        self.mlp = mlp
        with torch.no_grad():
            mlp.get_submodule(str(len(mlp) - 1)).get_parameter("weight").mul_(0.1)
            mlp.output_bias.zero_()

    def forward(self, f: Tensor) -> Tensor:
        return self.linear(f) + self.mlp(f)


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
        # on a product that nothing else reads, and that is no view, as that of torch.nn.Linear can be
        own = partial(torch.nn.ReLU, inplace=True) if activation is torch.nn.ReLU else activation
        self.activations = torch.nn.ModuleList(own() for _ in hidden_sizes)
        self.width = max(size for layer in sizes for size in layer)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            # as torch.nn.Linear does
            bound = 1 / math.sqrt(weight.shape[-2])
            torch.nn.init.uniform_(weight, -bound, bound)
            torch.nn.init.uniform_(bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type == "cpu" and input.shape[1] >= MANY_ROWS:
            return _evaluate_columns(list(self.weights), list(self.biases), list(self.activations), input)
        hidden = input  # (P, B, in)
        for weight, bias, activation in zip(self.weights, self.biases, self.activations, strict=False):
            hidden = activation(torch.baddbmm(bias, hidden, weight))  # (P, B, hidden)
        return torch.baddbmm(self.biases[-1], hidden, self.weights[-1])  # (P, B, out)

    def split(self, size: int) -> list[Callable[[Tensor], Tensor]]:
        """
        The networks in groups of `size`, the last of which may be smaller: each a function as this is, for a CPU, which
        is faster with groups that fit into its cache.
        """
        # the gradient of a split is one concatenation, that of a slice is a tensor of zeros as large as the whole
        weights = zip(*(weight.split(size) for weight in self.weights), strict=True)
        biases = zip(*(bias.split(size) for bias in self.biases), strict=True)
        return [partial(self._evaluate_group, *group) for group in zip(weights, biases, strict=True)]

    def _evaluate_group(self, weights: Sequence[Tensor], biases: Sequence[Tensor], input: Tensor) -> Tensor:
        activations = list(self.activations)
        in_size, units = weights[0].shape[1:]
        large = units >= MANY_UNITS and input.shape[1] >= MANY_ROWS
        if not (large and in_size == 1 and activations and type(activations[0]) is torch.nn.ReLU):
            return _evaluate_columns(weights, biases, activations, input)
        product = _two_layers_of_one_number(input, *weights[:2], *biases[:2])  # (P, B, hidden)
        if len(weights) == 2:
            return product
        return _evaluate_columns(weights[2:], biases[2:], activations[2:], activations[1](product))  # (P, B, out)

    @property
    def output_bias(self) -> Tensor:
        """The biases of the last layers (`P x 1 x out_size`)."""
        return self.biases[-1]


def _layer_sizes(in_size: int, hidden_sizes: Sequence[int], out_size: int) -> list[tuple[int, int]]:
    sizes = [in_size, *hidden_sizes, out_size]
    if min(sizes) < 1:
        raise ValueError(f"Layer sizes must be at least 1, got {sizes} from the input to the output.")
    return list(pairwise(sizes))


def _evaluate_columns(
    weights: Sequence[Tensor], biases: Sequence[Tensor], activations: Sequence[torch.nn.Module], input: Tensor
) -> Tensor:
    """A stack with units before rows: products whose last dimension is the long one are faster, up to twice."""
    hidden = input.mT.contiguous()  # (P, in, B)
    for weight, bias, activation in zip(weights, biases, activations, strict=False):
        hidden = torch.baddbmm(bias.mT, weight.mT, hidden)  # (P, hidden, B)
        # any other may tell one dimension from another, and gets them in their order
        hidden = activation(hidden) if type(activation) is torch.nn.ReLU else activation(hidden.mT).mT
    return torch.baddbmm(biases[-1].mT, weights[-1].mT, hidden).mT  # (P, B, out)


def _two_layers_of_one_number(input: Tensor, w: Tensor, V: Tensor, b: Tensor, c: Tensor) -> Tensor:
    r"""
    :math:`z(y) = V^\top \mathrm{relu}(w y + b) + c` for single numbers y (`P x B x 1`), without a product with V for
    each of them: between the kinks :math:`-b_h / w_h` it is linear in y.

    .. math::

        z(y) = \alpha_i \, y + \beta_i, \qquad
        (\alpha_{i + 1}, \beta_{i + 1}) = (\alpha_i, \beta_i) \pm (w_h, b_h) V_h

    where the unit h of the i-th kink from the left is switched on there if it rises, or off if it falls. Its rounding
    errors are those of a sum over all units, on or off.
    """
    P, H, M = V.shape
    lines = torch.cat([w, b], dim=1)  # (P, 2, H)
    falls = w < 0  # (P, 1, H)
    changes = torch.where(falls, -lines, lines)  # (P, 2, H)
    with torch.no_grad():
        # In double precision they have the sides that relu sees in single. A unit that is constant has none, and is on
        # or off everywhere; abs, as its slope may be -0.
        kinks = -changes[:, 1].double() / changes[:, 0].abs()  # (P, H)
        kinks = kinks.nan_to_num(math.inf, math.inf, -math.inf)
        # a unit is off at its kink, one that falls too
        kinks = torch.where(falls.squeeze(1), kinks.nextafter(torch.full_like(kinks, -math.inf)), kinks)
        kinks, order = kinks.sort(dim=-1)
        piece = torch.searchsorted(kinks, input.squeeze(-1).double().contiguous())  # (P, B)
    # left of all kinks the units that fall are on
    leftmost = torch.baddbmm(pad(c, (0, 0, 1, 0)), torch.where(falls, lines, 0.0), V)  # (P, 2, M)
    changes = _rows(changes.mT, order).unsqueeze(-1) * _rows(V, order).unsqueeze(-2)  # (P, H, 2, M)
    none = changes.new_zeros(P, -(H + 1) % _GROUP, 2 * M)
    table = _cumulative_sum(torch.cat([leftmost.view(P, 1, -1), changes.flatten(2), none], dim=1))  # (P, > H, 2 M)
    slope, intercept = _rows(table, piece).chunk(2, dim=-1)  # (P, B, M)
    return torch.addcmul(intercept, slope, input)


def _rows(matrices: Tensor, index: Tensor) -> Tensor:
    """Some rows of each matrix (`P x S x M`), by their index (`P x B`): `P x B x M`."""
    P, S, M = matrices.shape
    first = torch.arange(0, P * S, S, device=index.device).unsqueeze(-1)  # (P, 1)
    return matrices.reshape(P * S, M).index_select(0, (index + first).flatten()).view(P, -1, M)


def _cumulative_sum(matrices: Tensor) -> Tensor:
    """
    Over the rows of each matrix (`P x S x M`, with S a multiple of the group's size), within groups by products with a
    triangle of ones: several times as fast as torch.cumsum, forwards and backwards.
    """
    P, S, M = matrices.shape
    groups = matrices.view(P, -1, _GROUP, M)
    before = pad(groups[:, :-1].sum(2).cumsum(1), (0, 0, 1, 0))  # (P, S / group, M)
    triangle = torch.ones(_GROUP, _GROUP, dtype=matrices.dtype, device=matrices.device).tril()
    sums = torch.baddbmm(before.view(-1, 1, M), triangle.expand(P * S // _GROUP, -1, -1), groups.flatten(0, 1))
    return sums.view(P, S, M)
