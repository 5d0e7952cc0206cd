from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..context import Context
from ..mlp import MLP
from .base import InferenceNetwork
from .stacked_mlp import LEAKY_RELU, entries_per_block


class PointNet(InferenceNetwork):
    r"""
    A deep set of the pairs (index of the output, value), with one perceptron :math:`h` for all outputs
    (`Ma et al. (2019)`_, `Ashman et al. (2020)`_):

    .. math::

        (\mathbf g_n, \mathbf v_n) = \rho \left( \sum_{p \in \mathcal O_n} h(i_p, y_{np}) \right)

    The index counts as a number, :math:`i_p = 2 p / (P - 1) - 1` for p from 0 to P - 1 (-1 for P = 1): neighbouring
    outputs are taken to be alike, as pixels are. Its size does not grow with P.

    :param representation_size: Size R of the sum between :math:`h` and :math:`\rho`.

    See :class:`~gpytorch_sgpvae.InferenceNetwork` for the other parameters and the shapes.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Context, PointNet
        >>> context = Context(torch.rand(10, 2), torch.randn(7, 10, 5))
        >>> PointNet(num_outputs=5, num_latents=3)(context).precision.shape
        torch.Size([7, 3, 10])

    .. _Ma et al. (2019):
        https://arxiv.org/abs/1809.11142
    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """

    row_wise = True
    index: Tensor

    def __init__(
        self,
        num_outputs: int,
        num_latents: int | None,
        hidden_sizes: Sequence[int] = (20, 20),
        activation: Callable[[], torch.nn.Module] = LEAKY_RELU,
        representation_size: int = 20,
        **kwargs: Any,
    ):
        super().__init__(num_outputs, num_latents, hidden_sizes, activation, **kwargs)
        self.representation_size = representation_size
        self.register_buffer("index", torch.linspace(-1, 1, num_outputs))
        self.embedding = MLP(2, representation_size, hidden_sizes, activation)
        self.head = MLP(representation_size, 2 * self.latent_size, hidden_sizes, activation)
        self.initialize_stddev(self.head.output_bias)

    def encode(self, context: Context) -> tuple[Tensor, Tensor]:
        y, observed = context.filled, context.observed  # (*T, N, P)
        width = max([*self.hidden_sizes, self.representation_size])
        block = entries_per_block(observed, width * y.element_size())
        # Σ_{p observed} h(i_p, y_np)
        if block is None:
            pairs = torch.stack([self.index.expand_as(y), y], dim=-1)  # (*T, N, P, 2)
            representation = (self.embedding(pairs) * observed.unsqueeze(-1)).sum(-2)  # (*T, N, R)
        else:
            row, output = observed.reshape(-1, self.num_outputs).nonzero(as_tuple=True)  # (E) observed entries
            pairs = torch.stack([self.index[output], y.masked_select(observed)], dim=-1)  # (E, 2)
            terms = torch.cat([self.embedding(part) for part in pairs.split(block)])  # (E, R)
            total = terms.new_zeros(y.shape[:-1].numel(), self.representation_size)
            representation = total.index_add_(0, row, terms).view(*y.shape[:-1], -1)  # (*T, N, R)
        return self.site_parameters(self.head(representation))  # (*T, N, K)
