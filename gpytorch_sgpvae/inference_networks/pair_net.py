from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..mlp import MLP
from ..sites import GaussianSites
from .base import InferenceNetwork


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
        >>> from gpytorch_sgpvae import PairNet
        >>> y = torch.randn(7, 10, 5)
        >>> PairNet(num_outputs=5, num_latents=3, input_dim=2)(y, y > 0, torch.rand(10, 2), torch.rand(4, 2)).shape
        torch.Size([7, 3, 4])

    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """

    def __init__(
        self,
        num_outputs: int,
        num_latents: int | None,
        hidden_sizes: Sequence[int] = (20, 20),
        activation: Callable[[], torch.nn.Module] = torch.nn.ReLU,
        *,
        input_dim: int,
        **kwargs: Any,
    ):
        super().__init__(num_outputs, num_latents, hidden_sizes, activation, **kwargs)
        self.input_dim = input_dim
        self.encoder = MLP(2 * input_dim + 2 * num_outputs, 2 * self.latent_size, hidden_sizes, activation)
        self.initialize_stddev(self.encoder.output_bias)

    def forward(  # type: ignore[override]
        self, y: Tensor, observed: Tensor, x: Tensor, inducing_points: Tensor
    ) -> GaussianSites:
        r"""
        :param y: Outputs (`*T x N x P`); what stands where nothing was observed does not matter.
        :param observed: Where there is something (`*T x N x P`, boolean).
        :param x: Inputs (`*T x N x D`).
        :param inducing_points: (`M x D`).
        :return: The sites of the inducing values (`*T x K x M`, or `*T x M` with `num_latents=None`).
        """
        self.check_outputs(y, observed)
        rows = torch.cat([torch.where(observed, y, 0.0), observed.to(y.dtype)], dim=-1)  # (*T, N, 2 P)
        batch = torch.broadcast_shapes(rows.shape[:-2], x.shape[:-2])
        rows = torch.cat([rows.expand(*batch, *rows.shape[-2:]), x.expand(*batch, *x.shape[-2:])], dim=-1)
        N, M = rows.shape[-2], inducing_points.shape[-2]
        rows = rows.unsqueeze(-3).expand(*batch, M, N, rows.shape[-1])
        points = inducing_points.unsqueeze(-2).expand(*batch, M, N, inducing_points.shape[-1])
        precision_mean, precision = self.site_parameters(self.encoder(torch.cat([rows, points], dim=-1)))
        anything = observed.any(-1).unsqueeze(-2).unsqueeze(-1)  # (*T, 1, N, 1)
        return self.as_sites((precision_mean * anything).sum(-2), (precision * anything).sum(-2))  # (*T, K, M)
