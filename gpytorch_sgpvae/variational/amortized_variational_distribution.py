from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.variational import _VariationalDistribution

from ..context import Context
from ..sites import GaussianSites
from .network_weights import as_variational


class AmortizedVariationalDistribution(_VariationalDistribution):
    r"""
    The variational distribution of an :class:`~gpytorch_sgpvae.AmortizedVariationalStrategy`: it has no free
    parameters per inducing point, but a network that reads the data,

    .. math::

        q(\mathbf u) \propto p(\mathbf u) \prod_{n=1}^N
        \mathcal N \left( g_\phi(\mathbf y_n^o) \mid \mathbf k_{f_n \mathbf u} K_{\mathbf{uu}}^{-1} \mathbf u, \;
        v_\phi(\mathbf y_n^o) \right)

    This object maps a context to the sites (:math:`\lambda = 1 / v`, :math:`\lambda g`); the strategy, which
    knows the kernel and the inducing points, makes q(u) of them.

    :param network: An :class:`~gpytorch_sgpvae.InferenceNetwork`, or any module that maps a
        :class:`~gpytorch_sgpvae.Context` to :class:`~gpytorch_sgpvae.GaussianSites` and has an attribute `num_latents`
        (None without one), and `row_wise = True` if the sites of a row depend on that row alone.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import AmortizedVariationalDistribution, Context, FactorNet
        >>> q_u = AmortizedVariationalDistribution(FactorNet(num_outputs=5, num_latents=3))
        >>> q_u(Context(torch.randn(10, 2), torch.randn(7, 10, 5))).shape
        torch.Size([7, 3, 10])
    """

    def __init__(self, network: torch.nn.Module):
        num_latents = getattr(network, "num_latents", None)
        batch_shape = torch.Size([]) if num_latents is None else torch.Size([num_latents])
        # The strategy that takes this distribution knows the number of inducing points, and may change it later.
        super().__init__(num_inducing_points=0, batch_shape=batch_shape)
        self.network = network

    @property
    def row_wise(self) -> bool:
        """Whether the sites of a row depend on that row alone, so that a context can be taken apart."""
        return getattr(self.network, "row_wise", False)

    def forward(self, context: Context) -> GaussianSites:
        sites = self.network(context)
        if not isinstance(sites, GaussianSites):
            raise TypeError(f"{type(self.network).__name__} must return GaussianSites, got {type(sites).__name__}.")
        loadings, num_points = sites.loadings, context.locations.shape[-2]
        if loadings is not None and loadings.shape[-1:] != self.batch_shape:
            raise ValueError(
                f"{type(self.network).__name__} returned loadings of shape {tuple(loadings.shape)}: expected "
                + (f"(J, {self.batch_shape[0]})." if self.batch_shape else "none, as it has num_latents=None.")
            )
        middle = self.batch_shape if loadings is None else loadings.shape[-2:-1]
        expected = (*context.batch_shape, *middle, num_points)
        if tuple(sites.shape) != expected:
            raise ValueError(
                f"{type(self.network).__name__} returned sites of shape {tuple(sites.shape)} for y of shape "
                f"{tuple(context.filled.shape)}: expected {expected}, that is "
                f"{'(*T, K, N)' if self.batch_shape else '(*T, N)'}."
            )
        return sites

    def __call__(self, context: Context | None = None) -> GaussianSites:
        if context is None:  # as GPyTorch's strategies ask
            raise TypeError(
                f"{type(self).__name__} has no q(u) without data, and was called without a context, as GPyTorch's own "
                "strategies do: take AmortizedVariationalStrategy, or another one of gpytorch_sgpvae, in place of the "
                "strategy that it was given to."
            )
        return self.forward(context)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Module]]:
        """Name the modules, so that GPyTorch takes the network's weights for variational parameters."""
        for name, module in super().named_modules(*args, **kwargs):
            has_weights = module is not self and any(True for _ in module.parameters(recurse=False))
            yield name, as_variational(module) if has_weights else module

    def initialize_variational_distribution(self, prior_dist: MultivariateNormal) -> None:
        """Nothing to do: a context in which nothing is observed gives the prior, whatever the network's weights."""
