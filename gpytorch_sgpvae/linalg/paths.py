"""Whole paths of Markov processes: joint covariances and joint draws at many times, from the recursions alone."""

from __future__ import annotations

import torch
from torch import Tensor

from .markov import Chain, MarkovSites, draw_states, markov_posterior, seen, take_points

# Numbers in the states' covariances of all copies of a chain that run side by side.
MOST_NUMBERS = 2**24


def covariance_at(times: Tensor, chain: Chain, sites: MarkovSites) -> Tensor:
    r"""
    The posterior covariance of :math:`\mathbf f = H \mathbf s` at all times together, those of a time one after the
    other (`... x (N* K) x (N* K)`). Column i is how the posterior mean answers to a unit of :math:`\lambda g` at i:

    .. math::

        \mathrm{cov}(f_i, f_j) = \frac{\partial \, \mathbb E f_j}{\partial (\lambda g)_i}

    :param times: (`... x N*`).
    :param chain: The process.
    :param sites: The points that it was seen at.
    """
    merged = _Merged(times, chain, sites)
    K, N = chain.observation.shape[-2], merged.num_times
    number = torch.arange(N * K, device=times.device)

    def columns(part: Tensor) -> Tensor:
        # a unit at each of these places of the new times, one copy of the chain for each
        units = torch.nn.functional.one_hot(part, N * K).to(times.dtype).unflatten(-1, (N, K))  # (U, N*, K)
        units = units.view(-1, *[1] * len(merged.batch), N, K).expand(-1, *merged.batch, N, K)
        return merged.answers(units).flatten(-2)  # (U, ..., N* K)

    covariance = torch.cat([columns(part) for part in number.split(merged.copies)]) if N else merged.nothing()
    return covariance.movedim(0, -1)


def draw_paths(times: Tensor, chain: Chain, sites: MarkovSites, num_draws: int) -> Tensor:
    r"""
    Draw :math:`\mathbf f - \boldsymbol \mu` from the posterior, each draw jointly over all times
    (`num_draws x ... x N* x K`), by Matheron's rule: a path from the prior, and what the sites would correct in it,

    .. math::

        \mathbf f_*
        + \mathbb E [ \mathbf f_* \mid \lambda g - \Lambda C \mathbf s - \Lambda^{1/2} \boldsymbol \epsilon ]

    :param times: (`... x N*`).
    :param chain: The process.
    :param sites: The points that it was seen at.
    """
    merged = _Merged(times, chain, sites)
    sizes = [min(merged.copies, num_draws - drawn) for drawn in range(0, num_draws, merged.copies)]
    return torch.cat([merged.draw(size) for size in sizes])


class _Merged:
    """
    Points and new times in one order. Beside the J pseudo-observations of a point there are K of the latent functions
    themselves, which say nothing: they take what is asked about.
    """

    def __init__(self, times: Tensor, chain: Chain, sites: MarkovSites):
        self.chain, self.sites, H = chain, sites, chain.observation
        self.num_times, self.num_points, self.num_values = times.shape[-1], sites.times.shape[-1], H.shape[-2]
        self.batch = torch.broadcast_shapes(times.shape[:-1], sites.precision.shape[:-2], H.shape[:-2])
        together = torch.cat([part.expand(*self.batch, -1) for part in (sites.times, times)], dim=-1)
        self.order = together.argsort(dim=-1, stable=True)  # (..., N + N*)
        self.places = self.order.argsort(dim=-1)
        self.transitions = chain.between(together.gather(-1, self.order))
        loadings = sites.loadings
        if loadings.dim() == 2 and H.dim() == 2:
            self.loadings = torch.cat([loadings, H], dim=-2)
        else:
            own = loadings.expand(*self.batch, self.num_points, *loadings.shape[-2:])
            new = loadings.new_zeros(*self.batch, self.num_times, *loadings.shape[-2:])
            own, H = (
                torch.cat([own, new], dim=-3),
                H.unsqueeze(-3).expand(*self.batch, own.shape[-3] + new.shape[-3], *H.shape[-2:]),
            )
            self.loadings = take_points(torch.cat([own, H], dim=-2), self.order, 2)
        self.precision = self._merge(sites.precision, None)
        size = chain.stationary_covariance.shape[-1]
        self.copies = max(1, MOST_NUMBERS // max(1, together.numel() * size * size))

    def _merge(self, at_points: Tensor, at_times: Tensor | None) -> Tensor:
        """Values of the pseudo-observations (`... x N x J`) and of new times (`... x N* x K`), in order."""
        leading = at_points.shape[:-2] if at_times is None else at_times.shape[:-2]
        J = at_points.shape[-1]
        merged = at_points.new_zeros(
            *torch.broadcast_shapes(leading, self.batch), self.order.shape[-1], J + self.num_values
        )
        merged[..., : self.num_points, :J] = at_points
        if at_times is not None:
            merged[..., self.num_points :, J:] = at_times
        return take_points(merged, self.order.expand(*merged.shape[:-1]), 1)

    def answers(self, at_times: Tensor, at_points: Tensor | None = None) -> Tensor:
        """The posterior means at new times (`S x ... x N* x K`), to λ g there and at points, and to nothing else."""
        h = self._merge(torch.zeros_like(self.sites.h) if at_points is None else at_points, at_times)
        P_inf = self.chain.stationary_covariance
        states, _ = markov_posterior(self.transitions, P_inf, self.loadings, self.precision.expand_as(h), h)
        mean, _ = seen(states, P_inf, self.chain.observation.unsqueeze(-3), diag=True)  # (S, ..., N + N*, K)
        return self._at_times(mean)

    def draw(self, num_draws: int) -> Tensor:
        chain, sites, J = self.chain, self.sites, self.sites.h.shape[-1]
        s = draw_states(chain, self.transitions, torch.Size([num_draws, *self.batch]))
        prior = self._at_times(_observed(chain.observation.unsqueeze(-3), s))
        own = _observed(self.loadings[..., :J, :], s)  # (S, ..., N + N*, J)
        own = take_points(own, self.places[..., : self.num_points].expand(*own.shape[:-2], -1), 1)
        noise = torch.randn_like(own)
        h = sites.h - sites.precision * own - sites.precision.sqrt() * noise
        return prior + self.answers(torch.zeros_like(prior), h)

    def nothing(self) -> Tensor:
        return self.precision.new_zeros(0, *self.batch, 0)

    def _at_times(self, values: Tensor) -> Tensor:
        """Values in order (`S x ... x (N + N*) x K`) as the new times came."""
        places = self.places[..., self.num_points :]
        return take_points(values, places.expand(*values.shape[:-2], -1), 1)


def _observed(loadings: Tensor, states: Tensor) -> Tensor:
    """(`... x N x J`)"""
    return (loadings @ states.unsqueeze(-1)).squeeze(-1)
