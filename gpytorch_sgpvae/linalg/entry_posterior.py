from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from .conditionals import entry_posterior, shift_and_shrinkage
from .entries import entry_covariance, informative_entries, put_back, take, take_block, take_rows
from .products import matvec


class EntryPosterior:
    r"""
    The posterior of sums :math:`h_{jn} = \mathbf a_j^\top \mathbf f_n` given a pseudo-observation of each, by one
    matrix over those E that say anything. It costs :math:`O(E^3)`.

    :param K: The prior covariances of the latent functions (`*T x K x N x N`).
    :param loadings: (`J x K`, or what broadcasts to `*T x N x J x K`).
    :param precision: :math:`\lambda` (`*T x J x N`).
    :param h: :math:`\lambda (g - \mathbf a^\top \boldsymbol \mu)` (`*T x J x N`).
    :param entries: The numbers of those that say anything (`*T x E`), or None for all.

    :ivar weights: The weights of the pseudo-observations in posterior means (`*T x J x N`).
    :ivar reduction: :math:`P = W B^{-1} W` of the entries (`*T x E x E`).
    :ivar kl_divergence: The divergence of the latent functions' posterior from the prior (`*T`).
    """

    def __init__(self, K: Tensor, loadings: Tensor, precision: Tensor, h: Tensor, entries: Tensor | None):
        self.G = entry_covariance(K, loadings)  # (*T, J N, J N)
        self.entries = entries
        self._grid = h.shape[-2:]
        chosen = (take(values.flatten(-2), entries) for values in (precision, h))
        self._posterior = entry_posterior(take_block(self.G, entries), *chosen)

    @property
    def tasks(self) -> torch.Size:
        return self._posterior.weights.shape[:-1]

    @property
    def weights(self) -> Tensor:
        return self._on_grid(self._posterior.weights)

    @property
    def reduction(self) -> Tensor:
        return self._posterior.reduction

    @property
    def kl_divergence(self) -> Tensor:
        return self._posterior.kl_divergence

    def reduce(self, values: Tensor) -> Tensor:
        """:attr:`reduction` times values (`... x *T x J x N`)."""
        chosen = values.flatten(-2)
        if self.entries is not None:
            chosen = chosen.gather(-1, self.entries.expand(*chosen.shape[:-1], self.entries.shape[-1]))
        return self._on_grid(matvec(self.reduction, chosen))

    def at_context(self, asked: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """
        Shift and variance of the sums at the observed points (`*T x J x N` each). If only some are asked for
        (`*T x N x J`), the others may be those of the prior mean, with variance 0, and cost nothing; nor do informative
        ones, which are all that training asks for.
        """
        if self.entries is None:
            shift, variance = self._posterior.shift, self._posterior.variance  # (*T, J N)
        elif asked is not None and asked.mT.shape[-2:] == self._grid and self._covers(asked):
            return self._on_grid(self._posterior.shift), self._on_grid(self._posterior.variance)
        else:
            wanted = None if asked is None else informative_entries(asked.mT.flatten(-2))
            cross = take_rows(take_rows(self.G, self.entries).mT, wanted).mT  # (*T, E, J N), or those asked for
            shift, shrinkage = shift_and_shrinkage(cross, self._posterior)
            variance = take(self.G.diagonal(dim1=-2, dim2=-1), wanted) - shrinkage
            shift, variance = (put_back(part, wanted, prod(self._grid)) for part in (shift, variance))
        return shift.unflatten(-1, self._grid), variance.unflatten(-1, self._grid)

    def variance_at(self, Kfs: Tensor, variance: Tensor) -> Tensor | None:
        """None: at other points the sums are not known better than by the covariances of the latent functions."""
        return None

    def detach(self) -> EntryPosterior:
        detached = object.__new__(EntryPosterior)
        detached.G, detached.entries, detached._grid = self.G.detach(), self.entries, self._grid
        detached._posterior = self._posterior.detach()
        return detached

    def _covers(self, asked: Tensor) -> bool:
        """Return whether the posterior is about all entries that are asked for (`*T x N x J`)."""
        assert self.entries is not None
        covered = put_back(torch.ones_like(self.entries), self.entries, prod(self._grid)).bool()
        return not bool((asked.mT.flatten(-2) & ~covered).any())

    def _on_grid(self, values: Tensor) -> Tensor:
        return put_back(values, self.entries, prod(self._grid)).unflatten(-1, self._grid)
