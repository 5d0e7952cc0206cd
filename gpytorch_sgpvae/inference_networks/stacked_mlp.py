"""
A stack of perceptrons that are evaluated together, and how a CPU gets through large stacks: in blocks that fit into its
cache, without the entries that are missing, and along linear pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._compat import is_compiling, is_in_transform
from ..mlp import layer_sizes

# The inference networks' activation. Units of a ReLU that large steps have pushed to zero for every y get no gradient
# and stay there; at a learning rate of 0.1 all units of a layer can end so, and the network no longer sees the data.
# The slope of 0.1 keeps their gradients, and keeps networks of one number linear in pieces.
LEAKY_RELU = partial(torch.nn.LeakyReLU, 0.1)
# From this many rows on, what is done for each of them outweighs what is done once for a layer of a CPU's network.
MANY_ROWS = 256
# From this number of units on, linear pieces are worth their while.
MANY_UNITS = 64
# On a CPU, the hidden units of one layer that are computed at once: they stay in its cache until they are read, and the
# allocator recycles them, where it returns larger tensors to the system and gets them back page by page.
BLOCK_BYTES = 2**21
# The rows of one network may take this many blocks, before they are cut too: it then prepares itself more than once.
BLOCKS_PER_NETWORK = 4

_GROUP = 16

Terms = Callable[[Tensor], Sequence[Tensor]]


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
        activation: Callable[[], torch.nn.Module] = LEAKY_RELU,
    ):
        super().__init__()
        sizes = layer_sizes(in_size, hidden_sizes, out_size)
        self.weights = torch.nn.ParameterList(torch.empty(num_networks, i, o) for i, o in sizes)
        self.biases = torch.nn.ParameterList(torch.empty(num_networks, 1, o) for _, o in sizes)
        # on a product that nothing else reads, and that is no view, as that of torch.nn.Linear can be
        own = partial(activation, inplace=True) if activation in (torch.nn.ReLU, LEAKY_RELU) else activation
        self.activations = torch.nn.ModuleList(own() for _ in hidden_sizes)
        self.width = max(size for layer in sizes for size in layer)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            # as torch.nn.Linear does
            bound = 1 / math.sqrt(weight.shape[-2])
            torch.nn.init.uniform_(weight, -bound, bound)
            torch.nn.init.uniform_(bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type == "cpu" and not is_compiling() and input.shape[1] >= MANY_ROWS:
            return _evaluate_columns(list(self.weights), list(self.biases), list(self.activations), input)
        hidden = input  # (P, B, in)
        # no strict=False, which torch.compile took for True until at least torch 2.9
        for weight, bias, activation in zip(self.weights, self.biases, self.activations):  # noqa: B905
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
        if not (large and in_size == 1 and activations and _has_one_kink(activations[0])):
            return _evaluate_columns(weights, biases, activations, input)
        slope = getattr(activations[0], "negative_slope", 0.0)
        (w, V), (b, c) = weights[:2], biases[:2]
        product = _two_layers_of_one_number(input, w, V, b, c, slope)  # (P, B, hidden)
        if len(weights) == 2:
            return product
        return _evaluate_columns(weights[2:], biases[2:], activations[2:], activations[1](product))  # (P, B, out)

    @property
    def output_bias(self) -> Tensor:
        """The biases of the last layers (`P x 1 x out_size`)."""
        return self.biases[-1]


def entries_per_block(observed: Tensor, bytes_per_entry: int) -> int | None:
    """
    Choose how many entries to evaluate at once, so that none of their layers takes more than :data:`BLOCK_BYTES`; None
    means all of them, which takes the fewest operations.

    Evaluation in blocks leaves the missing entries out, and how many these are must be read from `observed`: a GPU
    would have to wait for that, a compiler and a transform of :mod:`torch.func` cannot know it.
    """
    if (
        is_compiling()
        or is_in_transform()
        or observed.numel() * bytes_per_entry <= BLOCK_BYTES
        or observed.device.type != "cpu"
        or type(observed) is not Tensor
    ):
        return None
    return max(1, BLOCK_BYTES // bytes_per_entry)


def sum_over_blocks(networks: StackedMLP, inputs: Tensor, present: Tensor, terms: Terms, block: int) -> list[Tensor]:
    """Sum over the networks (`P x B x 1` to `B x S'`), evaluating as many at once as fit into a block."""
    num_networks = max(1, block // inputs.shape[1])
    groups = networks.split(num_networks)
    totals = []
    num_rows = BLOCKS_PER_NETWORK * block
    for rows, present_rows in zip(inputs.split(num_rows, dim=1), present.split(num_rows, dim=1), strict=True):
        blocks = zip(groups, rows.split(num_networks), present_rows.split(num_networks), strict=True)
        sums = [_sum_over_observed_rows(*arguments, terms) for arguments in blocks]
        totals.append([reduce(torch.add, parts) for parts in zip(*sums, strict=True)])
    return [torch.cat(parts) for parts in zip(*totals, strict=True)]


def _sum_over_observed_rows(
    networks: Callable[[Tensor], Tensor], inputs: Tensor, present: Tensor, terms: Terms
) -> list[Tensor]:
    """Sum over the networks (`P x B x 1` to `B x S'`), each evaluated only in the rows where its output is observed."""
    # the observed rows of each network come first, and there are as many rows as the one with most of them has
    num_rows = int(present.sum(1).max())
    order = present.argsort(dim=1, descending=True, stable=True)[:, :num_rows]  # (P, R, 1)
    inputs_in_order, present_in_order = inputs.gather(1, order), present.gather(1, order)
    return [
        term.new_zeros(inputs.shape[1], term.shape[-1]).index_add_(
            0, order.flatten(), (term * present_in_order).flatten(0, 1)
        )
        for term in terms(networks(inputs_in_order))  # (P, R, S')
    ]


def _evaluate_columns(
    weights: Sequence[Tensor], biases: Sequence[Tensor], activations: Sequence[torch.nn.Module], input: Tensor
) -> Tensor:
    """A stack with units before rows: products whose last dimension is the long one are faster, up to twice."""
    hidden = input.mT.contiguous()  # (P, in, B)
    for weight, bias, activation in zip(weights, biases, activations):  # noqa: B905, as above
        hidden = torch.baddbmm(bias.mT, weight.mT, hidden)  # (P, hidden, B)
        # any other may tell one dimension from another, and gets them in their order
        hidden = activation(hidden) if _has_one_kink(activation) else activation(hidden.mT).mT
    return torch.baddbmm(biases[-1].mT, weights[-1].mT, hidden).mT  # (P, B, out)


def _has_one_kink(activation: torch.nn.Module) -> bool:
    """Return whether the activation acts on each number by itself, linearly below zero and linearly above."""
    return type(activation) in (torch.nn.ReLU, torch.nn.LeakyReLU)


def _two_layers_of_one_number(
    input: Tensor, w: Tensor, V: Tensor, b: Tensor, c: Tensor, negative_slope: float
) -> Tensor:
    r"""
    :math:`z(y) = V^\top \phi(w y + b) + c` for single numbers y (`P x B x 1`), without a product with V for each of
    them, where :math:`\phi` has slope s below zero (0 for a ReLU) and 1 above: between the kinks :math:`-b_h / w_h` z
    is linear in y.

    .. math::

        z(y) = \alpha_i \, y + \beta_i, \qquad
        (\alpha_{i + 1}, \beta_{i + 1}) = (\alpha_i, \beta_i) \pm (1 - s) (w_h, b_h) V_h

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
    leftmost = torch.baddbmm(pad(c, (0, 0, 1, 0)), torch.where(falls, lines, negative_slope * lines), V)  # (P, 2, M)
    changes = (1 - negative_slope) * changes
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
    Sum cumulatively over the rows of each matrix (`P x S x M`, with S a multiple of the group's size). Groups are
    summed by products with a triangle of ones, which is several times as fast as torch.cumsum, forwards and backwards.
    """
    P, S, M = matrices.shape
    groups = matrices.view(P, -1, _GROUP, M)
    before = pad(groups[:, :-1].sum(2).cumsum(1), (0, 0, 1, 0))  # (P, S / group, M)
    triangle = torch.ones(_GROUP, _GROUP, dtype=matrices.dtype, device=matrices.device).tril()
    sums = torch.baddbmm(before.view(-1, 1, M), triangle.expand(P * S // _GROUP, -1, -1), groups.flatten(0, 1))
    return sums.view(P, S, M)
