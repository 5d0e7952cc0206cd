from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..context import Context
from ..mlp import MLP
from .base import InferenceNetwork
from .stacked_mlp import LEAKY_RELU, StackedMLP


class IndexNet(InferenceNetwork):
    r"""
    A deep set in which each output has a perceptron of its own, :math:`h_p`, and one perceptron
    :math:`\rho` reads their sum (`Ashman et al. (2020)`_):

    .. math::

        (\mathbf g_n, \mathbf v_n) = \rho \left( \sum_{p \in \mathcal O_n} h_p(y_{np}) \right)

    More flexible than :class:`~gpytorch_sgpvae.FactorNet` on the missingness it was trained on, less trustworthy on
    any other.

    :param representation_size: Size R of the sum between :math:`h_p` and :math:`\rho`.

    See :class:`~gpytorch_sgpvae.InferenceNetwork` for the other parameters and the shapes.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Context, IndexNet
        >>> context = Context(torch.rand(10, 2), torch.randn(7, 10, 5))
        >>> IndexNet(num_outputs=5, num_latents=3, representation_size=8)(context).precision.shape
        torch.Size([7, 3, 10])

    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """

    row_wise = True

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
        self.embeddings = StackedMLP(num_outputs, 1, representation_size, hidden_sizes, activation)
        self.head = MLP(representation_size, 2 * self.latent_size, hidden_sizes, activation)
        self.initialize_stddev(self.head.output_bias)

    def encode(self, context: Context) -> tuple[Tensor, Tensor]:
        # Σ_{p observed} h_p(y_np)
        (representation,) = self.sum_over_observed(self.embeddings, context, lambda h: (h,))  # (*T, N, R)
        return self.site_parameters(self.head(representation))  # (*T, N, K)
