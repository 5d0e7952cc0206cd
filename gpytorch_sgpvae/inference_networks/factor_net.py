from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..context import Context
from .base import InferenceNetwork
from .stacked_mlp import LEAKY_RELU, StackedMLP


class FactorNet(InferenceNetwork):
    r"""
    One perceptron per output, each of which contributes a Gaussian factor; missing outputs contribute none
    (`Vedantam et al. (2018)`_, `Ashman et al. (2020)`_):

    .. math::

        l(f_{nk}) = \prod_{p \in \mathcal O_n} \mathcal N \left( g_{pk}(y_{np}) \mid f_{nk}, v_{pk}(y_{np}) \right),
        \qquad
        \lambda_{nk} = \sum_{p \in \mathcal O_n} v_{pk}(y_{np})^{-1}

    As each output speaks for itself, the network generalizes to patterns of missingness it was not trained on: the
    one to start with.

    See :class:`~gpytorch_sgpvae.InferenceNetwork` for the parameters and shapes.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Context, FactorNet
        >>> context = Context(torch.rand(10, 2), torch.randn(7, 10, 5))
        >>> FactorNet(num_outputs=5, num_latents=3)(context).precision.shape
        torch.Size([7, 3, 10])

    .. _Vedantam et al. (2018):
        https://arxiv.org/abs/1705.10762
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
        **kwargs: Any,
    ):
        super().__init__(num_outputs, num_latents, hidden_sizes, activation, **kwargs)
        self.factors = StackedMLP(num_outputs, 1, 2 * self.latent_size, hidden_sizes, activation)
        self.initialize_stddev(self.factors.output_bias)

    def encode(self, context: Context) -> tuple[Tensor, Tensor]:
        # Σ_{p observed} of the natural parameters
        precision_mean, precision = self.sum_over_observed(self.factors, context, self.site_parameters)
        return precision_mean, precision  # (*T, N, K)
