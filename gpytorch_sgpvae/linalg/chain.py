"""The nouns of :mod:`~gpytorch_sgpvae.linalg.markov`: a process, its sites, and what is known of its states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .columns import Layout
from .state_space import StateSpace


@dataclass(frozen=True, eq=False)
class Chain:
    r"""
    Latent functions as observations of one Markov process, :math:`\mathbf f(t) = H \mathbf s(t)`.

    :param transitions: A function from steps of time (`... x N`) to the blocks of :math:`\Phi`, which is block
        diagonal: for each group of blocks of a size :math:`d_g` their `... x N x K_g x d_g x d_g`.
    :param stationary_covariance: :math:`P_\infty` (`... x D x D`).
    :param observation: H (`... x K x D`).
    """

    transitions: Callable[[Tensor], list[Tensor]]
    stationary_covariance: Tensor
    observation: Tensor

    @classmethod
    def separate(cls, space: StateSpace) -> Chain:
        """A chain for each latent function (the batch shape is that of the state space); steps are `... x 1 x N`."""
        return cls(
            lambda steps: [space.transition(steps).unsqueeze(-3)],
            space.stationary_covariance,
            space.observation.unsqueeze(-2),
        )

    @classmethod
    def together(cls, spaces: Sequence[StateSpace]) -> Chain:
        """One chain for all latent functions of all groups; each group's state space has the batch shape `K_g`."""

        def transitions(steps: Tensor) -> list[Tensor]:
            return [space.transition(steps.unsqueeze(-2)).movedim(-4, -3) for space in spaces]

        P, H = zip(*(pair for space in spaces for pair in _one_by_one(space)), strict=True)
        return cls(transitions, torch.block_diag(*P), torch.block_diag(*H))

    def own_loadings(self, shape: torch.Size) -> Tensor:
        """
        H as loadings (`K x D`), or for each point where the processes of a batch differ in it (`... x N x K x D`).

        :param shape: (`... x N`).
        """
        H = self.observation
        return H if H.dim() == 2 else H.unsqueeze(-3).expand(*shape, *H.shape[-2:])

    def between(self, times: Tensor, since: Tensor | None = None) -> list[Tensor]:
        """
        The transitions to points from those before them.

        :param times: The times of the points, in order (`... x N`).
        :param since: The time of the state that the chain starts from (`...`); by default that of the first point.
        """
        first = times[..., :1] if since is None else since.unsqueeze(-1).expand(*times.shape[:-1], 1)
        return self.transitions(torch.diff(times, prepend=first.to(times.dtype), dim=-1).clamp_min(0.0))


def _one_by_one(space: StateSpace) -> list[tuple[Tensor, Tensor]]:
    """The stationary covariance (`d x d`) and the observation (`1 x d`) of each latent function."""
    (K,), d = space.batch_shape, space.state_size
    return list(zip(space.stationary_covariance, space.observation.expand(K, d).unsqueeze(-2), strict=True))


class MarkovSites(NamedTuple):
    r"""
    Pseudo-observations along a chain, in the order of time.

    :param times: (`... x N`).
    :param loadings: C (`J x D`, or `... x N x J x D`).
    :param precision: :math:`\lambda` (`... x N x J`).
    :param h: :math:`\lambda (g - \mathbf a^\top \mu)` (`... x N x J`).
    """

    times: Tensor
    loadings: Tensor
    precision: Tensor
    h: Tensor


class MarkovStates(NamedTuple):
    r"""
    The posterior of states, :math:`\mathcal N(m^- + P r, P - P N P)` with :math:`P = P_\infty - R^-`.

    :param mean: :math:`m^-`, from the points before alone (`... x N x D`).
    :param reduction: :math:`R^-`, likewise (`... x N x D x D`).
    :param score: r, what a point and those after it say (`... x N x D`).
    :param information: N, likewise (`... x N x D x D`).
    """

    mean: Tensor
    reduction: Tensor
    score: Tensor
    information: Tensor

    def points(self) -> MarkovStates:
        """The states in the order of points, as they are."""
        return self

    def detach(self) -> MarkovStates:
        return MarkovStates(*(part.detach() for part in self))


@dataclass(frozen=True, eq=False)
class StateSteps:
    """
    The same as the recursions leave it, in steps of chunks (see :mod:`~gpytorch_sgpvae.linalg.columns`): copies in
    the order of points are made for those who need them.

    :param layout: The chunks.
    :param mean: (`steps x D x columns`).
    :param reduction: (`steps x D x D x columns`).
    :param score: (`steps x D x columns`).
    :param information: (`steps x D x D x columns`).
    """

    layout: Layout
    mean: Tensor
    reduction: Tensor
    score: Tensor
    information: Tensor

    def points(self) -> MarkovStates:
        """The states in the order of points."""
        parts = (self.mean, self.reduction, self.score, self.information)
        return MarkovStates(*(self.layout.points(part) for part in parts))


class MarkovPosterior(NamedTuple):
    r"""
    The posterior of a chain, given its sites.

    :param states: The states at all points.
    :param mean: The posterior mean of :math:`C \mathbf s_n` (`... x N x J`).
    :param variance: The posterior variances (`... x N x J`).
    :param log_det: :math:`\log |B|` (`...`).
    """

    states: StateSteps | MarkovStates
    mean: Tensor
    variance: Tensor
    log_det: Tensor


class Known(NamedTuple):
    """
    The knowledge of a state from the points up to it.

    :param mean: m (`... x D`).
    :param reduction: R (`... x D x D`).
    """

    mean: Tensor
    reduction: Tensor
