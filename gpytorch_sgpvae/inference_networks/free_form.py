from __future__ import annotations

import torch
from torch import Tensor

from ..context import Context
from ..sites import GaussianSites


class FreeFormSites(torch.nn.Module):
    r"""
    Sites that are parameters themselves, one :math:`(g_{nk}, \lambda_{nk})` for each point and latent function of fixed
    tasks, in place of a network:

    .. math::

        l_n(f_{nk}) \propto \mathcal N \left( g_{nk} \mid f_{nk}, \lambda_{nk}^{-1} \right), \qquad
        \lambda_{nk} = e^{\rho_{nk}}

    They contain the optimal Gaussian q(u) (appendix A.1 of `Ashman et al. (2020)`_), which no network can beat: see
    :func:`~gpytorch_sgpvae.refine`. Points without information stay so: they have precision 0, and no parameters that
    matter.

    :param mean: Pseudo-observations g (`*T x K x N`, or `*T x N` without a latent dimension).
    :param precision: Precisions (of the same shape); what is 0 here stays 0.
    :param num_latents: K, or None for a model without a latent batch dimension.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Context, FactorNet, FreeFormSites
        >>> context = Context(torch.rand(10, 2), torch.randn(7, 10, 5))
        >>> sites = FactorNet(num_outputs=5, num_latents=3)(context)
        >>> free = FreeFormSites.from_sites(sites)
        >>> torch.allclose(free(context).precision, sites.precision)
        True

    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """

    # A row's site belongs to its place in its task: no part of a task has sites without the rest.
    row_wise = False
    informative: Tensor

    def __init__(self, mean: Tensor, precision: Tensor, num_latents: int | None = None):
        super().__init__()
        if mean.shape != precision.shape:
            raise ValueError(
                f"mean has shape {tuple(mean.shape)} and precision {tuple(precision.shape)}: both must be (*T, K, N)."
            )
        self.num_latents = num_latents
        informative = precision > 0
        self.register_buffer("informative", informative)
        self.mean = torch.nn.Parameter(mean.detach().clone(memory_format=torch.contiguous_format))
        log_precision = torch.where(informative, precision.detach(), 1.0).log()
        self.log_precision = torch.nn.Parameter(log_precision.contiguous())

    @classmethod
    def from_sites(cls, sites: GaussianSites, num_latents: int | None = -1) -> FreeFormSites:
        """
        Start from given sites, a network's for example.

        :param sites: (`*T x K x N`).
        :param num_latents: K, by default the last dimension but one of the sites; None for sites of `*T x N`, which
            must be said of those with tasks.
        """
        if sites.loadings is not None:
            raise ValueError(
                "Free-form sites are of single latent functions, got sites with loadings, which are of sums of them: "
                "refine(model, context) optimizes those."
            )
        if num_latents == -1:
            num_latents = sites.shape[-2] if sites.precision.dim() > 1 else None
        informative = sites.precision > 0
        mean = torch.where(informative, sites.precision_mean, 0.0) / torch.where(informative, sites.precision, 1.0)
        return cls(mean, sites.precision, num_latents)

    def sites(self) -> GaussianSites:
        precision = self.log_precision.exp() * self.informative
        return GaussianSites(precision * self.mean, precision)

    def forward(self, context: Context) -> GaussianSites:
        """The sites of their tasks, whatever the outputs; none for rows in which nothing is observed."""
        anything = context.observed.any(-1)  # (*T, N)
        if anything.shape[-1] != self.mean.shape[-1]:
            raise ValueError(
                f"These sites are of {self.mean.shape[-1]} given points, and y of shape {tuple(context.y.shape)} has "
                f"{anything.shape[-1]}: free-form sites know no other data, subsets or chunks."
            )
        anything = anything if self.num_latents is None else anything.unsqueeze(-2)
        sites = self.sites()
        return GaussianSites(sites.precision_mean * anything, sites.precision * anything)
