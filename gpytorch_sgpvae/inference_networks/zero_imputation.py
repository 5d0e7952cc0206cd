from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..context import Context
from ..mlp import MLP
from .base import InferenceNetwork
from .stacked_mlp import LEAKY_RELU


class ZeroImputation(InferenceNetwork):
    r"""
    One perceptron that reads the whole row, with zeros where nothing was observed:

    .. math::

        (\mathbf g_n, \mathbf v_n) = \rho \left( \mathbf o_n \odot \mathbf y_n \right)

    The usual encoder of a VAE, and the baseline: it cannot tell a missing value from a true zero.

    See :class:`~gpytorch_sgpvae.InferenceNetwork` for the parameters and shapes.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Context, ZeroImputation
        >>> context = Context(torch.rand(10, 2), torch.randn(7, 10, 5))
        >>> ZeroImputation(num_outputs=5, num_latents=3)(context).precision.shape
        torch.Size([7, 3, 10])
    """

    row_wise = True

    def __init__(
        self,
        num_outputs: int,
        num_latents: int | None,
        hidden_sizes: Sequence[int] = (20, 20),
        activation: Callable[[], torch.nn.Module] = LEAKY_RELU,
        **kwargs: Any,
    ):
        super().__init__(num_outputs, num_latents, hidden_sizes, activation, **kwargs)
        self.encoder = MLP(num_outputs, 2 * self.latent_size, hidden_sizes, activation)
        self.initialize_stddev(self.encoder.output_bias)

    def encode(self, context: Context) -> tuple[Tensor, Tensor]:
        return self.site_parameters(self.encoder(context.filled))  # (*T, N, K)
