"""Decoders that know something of the data."""

from __future__ import annotations

import torch
from torch import Tensor

from gpytorch_sgpvae import MLP


class Layers(torch.nn.Module):
    r"""
    A decoder in which each latent function draws a layer of its own, and layers cover each other, as balls do:

    .. math::

        y_p = 1 - \prod_k \left( 1 - a_p^{(k)}(f_k) \right), \qquad a_p^{(k)} = \mathrm{sigmoid}(\mathrm{MLP}_k(f_k))_p

    The parameters are those of :class:`~gpytorch_sgpvae.MLP`.
    """

    def __init__(
        self,
        num_latents: int,
        num_pixels: int,
        hidden_sizes: tuple[int, ...],
        activation: type[torch.nn.Module],
    ):
        super().__init__()
        self.layers = torch.nn.ModuleList(MLP(1, num_pixels, hidden_sizes, activation) for _ in range(num_latents))
        for layer in self.layers:
            torch.nn.init.constant_(layer.output_bias, -2.0)  # most of an image shows no ball

    def forward(self, f: Tensor) -> Tensor:
        transparency = [-layer(part) for layer, part in zip(self.layers, f.split(1, dim=-1), strict=True)]
        return 1 - torch.nn.functional.logsigmoid(torch.stack(transparency)).sum(0).exp()
