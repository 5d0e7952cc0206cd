from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..context import Context
from ..mlp import MLP
from ..sites import GaussianSites
from .base import InferenceNetwork
from .stacked_mlp import LEAKY_RELU


class PairNet(InferenceNetwork):
    r"""
    A network on pairs of an inducing point and a point, which gives factors on the inducing values directly (the
    alternative of appendix B.2 of `Ashman et al. (2020)`_, for comparison):

    .. math::

        l_n(u_{mk}) = \mathcal N \left( g_k(\mathbf z_m, \mathbf x_n, \mathbf y_n^o) \mid u_{mk}, \;
        v_k(\mathbf z_m, \mathbf x_n, \mathbf y_n^o) \right), \qquad
        \lambda_{mk} = \sum_{n : \mathcal O_n \neq \emptyset} v_k(\mathbf z_m, \mathbf x_n, \mathbf y_n^o)^{-1}

    How much a point says about an inducing value is learnt here, where the others take it from the kernel. It is
    evaluated N M times. For an :class:`~gpytorch_sgpvae.InducingSitesVariationalStrategy`.

    :param input_dim: Number of input dimensions D.

    See :class:`~gpytorch_sgpvae.InferenceNetwork` for the other parameters.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Context, PairNet
        >>> context = Context(torch.rand(10, 2), torch.randn(7, 10, 5)).seen_from(torch.rand(4, 2))
        >>> PairNet(num_outputs=5, num_latents=3, input_dim=2)(context).shape
        torch.Size([7, 3, 4])

    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """

    # What a row says about each inducing value depends on that row alone, and adds up.
    row_wise = True

    def __init__(
        self,
        num_outputs: int,
        num_latents: int | None,
        hidden_sizes: Sequence[int] = (20, 20),
        activation: Callable[[], torch.nn.Module] = LEAKY_RELU,
        *,
        input_dim: int,
        **kwargs: Any,
    ):
        super().__init__(num_outputs, num_latents, hidden_sizes, activation, **kwargs)
        self.input_dim = input_dim
        self.encoder = MLP(2 * input_dim + 2 * num_outputs, 2 * self.latent_size, hidden_sizes, activation)
        self.initialize_stddev(self.encoder.output_bias)

    def forward(self, context: Context) -> GaussianSites:
        r"""
        :param context: The tasks, :meth:`~gpytorch_sgpvae.Context.seen_from` the inducing points (`M x D`).
        :return: The sites of the inducing values (`*T x K x M`, or `*T x M` with `num_latents=None`).
        """
        self.check_outputs(context)
        inducing_points, x = context.locations, context.x
        if inducing_points is x:
            raise ValueError(
                f"{type(self).__name__} gives sites of inducing values, and this context is seen from none: use an "
                "InducingSitesVariationalStrategy, or context.seen_from(inducing_points)."
            )
        rows = torch.cat([context.filled, context.observed.to(x.dtype)], dim=-1)  # (*T, N, 2 P)
        rows = torch.cat([rows, x.expand(*context.batch_shape, *x.shape[-2:])], dim=-1)  # (*T, N, 2 P + D)
        N, M = rows.shape[-2], inducing_points.shape[-2]
        rows = rows.unsqueeze(-3).expand(*context.batch_shape, M, N, rows.shape[-1])
        points = inducing_points.unsqueeze(-2).expand(*context.batch_shape, M, N, inducing_points.shape[-1])
        precision_mean, precision = self.site_parameters(self.encoder(torch.cat([rows, points], dim=-1)))
        anything = context.observed.any(-1).unsqueeze(-2).unsqueeze(-1)  # (*T, 1, N, 1)
        return self.as_sites((precision_mean * anything).sum(-2), (precision * anything).sum(-2))  # (*T, K, M)
