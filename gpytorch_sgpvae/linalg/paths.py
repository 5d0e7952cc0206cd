"""Whole paths of Markov processes: joint covariances and joint draws at many times, from the recursions alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .chain import Chain, MarkovSites
from .markov import draw_states, markov_posterior, mean_of_many, take_points

# Numbers in the states' covariances of all copies of a chain that run side by side.
MOST_NUMBERS = 2**24


def covariance_at(times: Tensor, chain: Chain, sites: MarkovSites, of_latents: bool) -> Tensor:
    r"""
    The posterior covariance of :math:`\mathbf f = H \mathbf s` at all times together, those of a time one after the
    other (`... x (N* K) x (N* K)`). Column i is how the posterior mean answers to a unit of :math:`\lambda g` at i:

    .. math::

        \mathrm{cov}(f_i, f_j) = \frac{\partial \, \mathbb E f_j}{\partial (\lambda g)_i}

    :param times: (`... x N*`).
    :param chain: The process.
    :param sites: The points that it was seen at.
    :param of_latents: Whether the pseudo-observations are of the latent functions themselves, C = H.
    """
    merged = _Merged(times, chain, sites, of_latents)
    K, N = chain.observation.shape[-2], merged.num_times
    number = torch.arange(N * K, device=times.device)

    def columns(part: Tensor) -> Tensor:
        # a unit at each of these places of the new times, one copy of the chain for each
        units = torch.nn.functional.one_hot(part, N * K).to(times.dtype).unflatten(-1, (N, K))  # (U, N*, K)
        units = units.view(-1, *[1] * len(merged.batch), N, K).expand(-1, *merged.batch, N, K)
        return merged.answers(units, torch.zeros_like(sites.h)).flatten(-2)  # (U, ..., N* K)

    covariance = torch.cat([columns(part) for part in number.split(merged.copies)]) if N else merged.nothing()
    return covariance.movedim(0, -1)


def draw_paths(times: Tensor, chain: Chain, sites: MarkovSites, of_latents: bool, num_draws: int) -> Tensor:
    r"""
    Draw :math:`\mathbf f - \boldsymbol \mu` from the posterior, each draw jointly over all times
    (`num_draws x ... x N* x K`), by Matheron's rule: a path from the prior, and what the sites would correct in it,

    .. math::

        \mathbf f_*
        + \mathbb E [ \mathbf f_* \mid \lambda g - \Lambda C \mathbf s - \Lambda^{1/2} \boldsymbol \epsilon ]

    :param times: (`... x N*`).
    :param chain: The process.
    :param sites: The points that it was seen at.
    :param of_latents: Whether the pseudo-observations are of the latent functions themselves, C = H.
    """
    merged = _Merged(times, chain, sites, of_latents)
    sizes = [min(merged.copies, num_draws - drawn) for drawn in range(0, num_draws, merged.copies)]
    return torch.cat([merged.draw(size) for size in sizes])


class _Merged:
    """
    Points and new times in one order. Where pseudo-observations are not of the latent functions themselves, there are K
    more beside the J of a point that are, and say nothing: they take what is asked about.
    """

    def __init__(self, times: Tensor, chain: Chain, sites: MarkovSites, of_latents: bool):
        self.chain, self.sites, H = chain, sites, chain.observation
        self.num_times, self.num_points, self.num_values = times.shape[-1], sites.times.shape[-1], H.shape[-2]
        self.batch = torch.broadcast_shapes(times.shape[:-1], sites.precision.shape[:-2], H.shape[:-2])
        together = torch.cat([part.expand(*self.batch, -1) for part in (sites.times, times)], dim=-1)
        self.order = together.argsort(dim=-1, stable=True)  # (..., N + N*)
        self.places = self.order.argsort(dim=-1)
        self.transitions = chain.between(together.gather(-1, self.order))
        # pseudo-observations before those of the latent functions
        self.offset = 0 if of_latents else sites.h.shape[-1]
        self.loadings = self._loadings(chain.own_loadings(together.shape))
        self.precision = self._merge(sites.precision, None)
        size = chain.stationary_covariance.shape[-1]
        self.means: Callable[[Tensor], Tensor] | None = None
        if torch.is_grad_enabled() and any(part.requires_grad for part in (self.precision, *self.transitions)):
            # each copy of the chain has covariances of its own
            self.copies = max(1, MOST_NUMBERS // max(1, together.numel() * size * size))
            return
        self.copies = max(1, MOST_NUMBERS // max(1, together.numel() * (size + self.loadings.shape[-2])))
        arguments = self.transitions, chain.stationary_covariance, self.loadings
        self.means = mean_of_many(*arguments, self.precision.expand(*self.batch, *self.precision.shape[-2:]))

    def _loadings(self, H: Tensor) -> Tensor:
        C = self.sites.loadings
        if not self.offset:
            return H
        if C.dim() == 2:
            return torch.cat([C, H], dim=-2)
        new = C.new_zeros(*self.batch, self.num_times, *C.shape[-2:])
        C = torch.cat([C.expand(*self.batch, self.num_points, *C.shape[-2:]), new], dim=-3)
        C = take_points(C, self.order, 2)  # (..., N + N*, J, D)
        return torch.cat([C, H.expand(*C.shape[:-2], *H.shape[-2:])], dim=-2)

    def _merge(self, at_points: Tensor, at_times: Tensor | None) -> Tensor:
        """Values of the pseudo-observations (`... x N x J`) and of new times (`... x N* x K`), in order."""
        leading = at_points.shape[:-2] if at_times is None else at_times.shape[:-2]
        shape = torch.broadcast_shapes(leading, self.batch)
        merged = at_points.new_zeros(*shape, self.order.shape[-1], self.offset + self.num_values)
        merged[..., : self.num_points, : at_points.shape[-1]] = at_points
        if at_times is not None:
            merged[..., self.num_points :, self.offset :] = at_times
        return take_points(merged, self.order.expand(*merged.shape[:-1]), 1)

    def answers(self, at_times: Tensor | None, at_points: Tensor) -> Tensor:
        """The posterior means at new times (`S x ... x N* x K`) where λ g is this there, and this at points."""
        h = self._merge(at_points, at_times)
        if self.means is not None:
            return self._at_times(self.means(h)[..., self.offset :])
        P_inf = self.chain.stationary_covariance
        posterior = markov_posterior(self.transitions, P_inf, self.loadings, self.precision.expand_as(h), h)
        return self._at_times(posterior.mean[..., self.offset :])

    def draw(self, num_draws: int) -> Tensor:
        chain, sites, J = self.chain, self.sites, self.sites.h.shape[-1]
        s = draw_states(chain, self.transitions, torch.Size([num_draws, *self.batch]))
        prior = self._at_times(_observed(chain.observation.unsqueeze(-3), s))
        own = _observed(self.loadings[..., :J, :], s)  # (S, ..., N + N*, J)
        own = take_points(own, self.places[..., : self.num_points].expand(*own.shape[:-2], -1), 1)
        noise = torch.randn_like(own)
        h = sites.h - sites.precision * own - sites.precision.sqrt() * noise
        return prior + self.answers(None, h)

    def nothing(self) -> Tensor:
        return self.precision.new_zeros(0, *self.batch, 0)

    def _at_times(self, values: Tensor) -> Tensor:
        """Values in order (`S x ... x (N + N*) x K`) as the new times came."""
        places = self.places[..., self.num_points :]
        return take_points(values, places.expand(*values.shape[:-2], -1), 1)


def _observed(loadings: Tensor, states: Tensor) -> Tensor:
    """(`... x N x J`)"""
    return (loadings @ states.unsqueeze(-1)).squeeze(-1)
