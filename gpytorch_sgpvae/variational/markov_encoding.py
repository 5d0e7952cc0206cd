from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, DiagLinearOperator
from torch import Tensor

from ..context import Context
from ..linalg.chain import Chain, Known, MarkovPosterior, MarkovSites, MarkovStates
from ..linalg.markov import markov_posterior, states_after, states_at, take_points, update
from ..linalg.paths import covariance_at, draw_paths
from ..sites import GaussianSites, side_by_side
from .amortized_multivariate_normal import AmortizedMultivariateNormal, AmortizedPrior
from .encoding import Encoding
from .markov_view import MarkovView, Process
from .posterior_covariance import LazyMatrix, check_rows
from .state_space_prior import StateSpacePrior

if TYPE_CHECKING:
    from .markov_amortized_variational_strategy import MarkovAmortizedVariationalStrategy


@dataclass(frozen=True, eq=False)
class Strand:
    """
    A context along a process, in the order of time. Leading dimensions are `*T x K_g` for latent functions that have a
    process each, and `*T` for all of them in one.

    :param sites: The pseudo-observations (`... x N x J`).
    :param posterior: What they make of the process.
    :param stationary_covariance: (`... x D x D`).
    :param observation: H (`... x K x D`).
    """

    sites: MarkovSites
    posterior: MarkovPosterior
    stationary_covariance: Tensor
    observation: Tensor

    @classmethod
    def along(cls, chain: Chain, sites: MarkovSites) -> Strand:
        P_inf, transitions = chain.stationary_covariance, chain.between(sites.times)
        posterior = markov_posterior(transitions, P_inf, sites.loadings, sites.precision, sites.h)
        return cls(sites, posterior, P_inf, chain.observation)

    @cached_property
    def states(self) -> MarkovStates:
        """The states at the points (`... x N x D`)."""
        with torch.enable_grad():  # they are kept for callers with gradients too, whoever asks first
            return self.posterior.states.points()

    def kl_divergence(self) -> Tensor:
        """(`...`)"""
        sites, mean = self.sites, self.posterior.mean
        # ½ [log|B| − Σ λ v + Σ λ (g − â) (â − aᵀμ)]
        fit = (sites.h - sites.precision * mean) * mean - sites.precision * self.posterior.variance  # (..., N, J)
        return 0.5 * (self.posterior.log_det + fit.sum((-2, -1)))

    def detach(self) -> Strand:
        """The same off the graph, with the states in the order of points alone, which predictions need."""
        _, *rest = self.posterior
        return Strand(
            MarkovSites(*(part.detach() for part in self.sites)),
            MarkovPosterior(self.states.detach(), *(part.detach() for part in rest)),
            self.stationary_covariance.detach(),
            self.observation.detach(),
        )


def known_with_last(states: MarkovStates, stationary_covariance: Tensor, sites: MarkovSites) -> Known:
    """What is known of the state at the last row."""
    before = Known(states.mean[..., -1, :], states.reduction[..., -1, :, :])
    loadings = sites.loadings if sites.loadings.dim() == 2 else sites.loadings[..., -1, :, :]
    return update(before, stationary_covariance, loadings, sites.precision[..., -1, :], sites.h[..., -1, :])


@dataclass(frozen=True, eq=False)
class MarkovEncoding(Encoding):
    """
    What the Markov strategy remembers of a context.

    :param x: The context's inputs (`*T x N x D`).
    :param sites: The sites there (`*T x J x N`).
    :param mean: The prior mean there (`*T x K x N`).
    :param order: Which row comes first in time, which second, and so on (`*T x N`).
    :param strands: One for each group of latent functions, or one for all of them where sites couple them.
    """

    strategy: MarkovAmortizedVariationalStrategy
    x: Tensor
    sites: GaussianSites
    mean: Tensor
    order: Tensor
    strands: list[Strand]

    @property
    def tasks(self) -> torch.Size:
        return self.sites.shape[:-1] if self.strategy.num_latents is None else self.sites.shape[:-2]

    @property
    def is_coupled(self) -> bool:
        """Whether all latent functions are one process."""
        return self.sites.loadings is not None

    # --- q(f)

    def predict(self, x: Tensor, at_x: StateSpacePrior | None, diag: bool, **kwargs: Any) -> MultivariateNormal:
        at_x = self.strategy.prior_at(x, **kwargs) if at_x is None else at_x
        if at_x.is_context:
            return self._marginals if diag else self._at_own_inputs(diag)

        def process(times: Tensor, chain: Chain, strand: Strand) -> Process:
            def states(at_a_time: int) -> Iterator[MarkovStates]:
                for some in times.split(at_a_time, dim=-1):
                    yield states_at(some, chain, strand.sites, strand.states)

            return Process(chain.stationary_covariance, chain.observation, states)

        view = MarkovView(
            at_x.mean,
            torch.broadcast_shapes(self.tasks, at_x.times.shape[:-1]),
            [process(*parts) for parts in self._along(at_x)],
            self.is_coupled,
            self.strategy.num_latents is not None,
            lambda values, event: values,
            lambda: self.joint_covariances(at_x),
        )
        return view.distribution(diag)

    @cached_property
    def _marginals(self) -> MultivariateNormal:
        """q(f) at the context's inputs, of each by itself, for whoever trains and for q(u)."""
        # of a copy, which does not keep them: in a cycle, hundreds of megabytes would wait for Python to look for such
        with torch.enable_grad():
            return copy(self)._at_own_inputs(diag=True)

    def _at_own_inputs(self, diag: bool) -> MultivariateNormal:
        def process(strand: Strand) -> Process:
            def states(at_a_time: int) -> Iterator[MarkovStates]:
                # split once: the gradient of a slice is as large as what it was taken of
                dims = (-2, -3, -2, -3)
                parts = (part.split(at_a_time, dim) for part, dim in zip(strand.states, dims, strict=True))
                return map(MarkovStates, *parts)

            # the sites of a latent function that has its own process are of that function
            moments = None if self.is_coupled else (strand.posterior.mean, strand.posterior.variance)
            return Process(strand.stationary_covariance, strand.observation, states, moments)

        q_f = MarkovView(
            self.mean,
            self.tasks,
            [process(strand) for strand in self.strands],
            self.is_coupled,
            self.strategy.num_latents is not None,
            self._as_they_came,
            lambda: self.joint_covariances(self.strategy.prior_at_rows(self.x)),
        ).distribution(diag)
        if self.is_coupled:
            q_f.projected = self._projected
        return q_f

    def joint_covariances(self, at_x: StateSpacePrior) -> list[Tensor]:
        """The covariance of all inputs together, for each strand (`... x (N K) x (N K)`)."""
        own = not self.is_coupled
        return [covariance_at(times, chain, strand.sites, own) for times, chain, strand in self._along(at_x)]

    def _along(self, at_x: StateSpacePrior) -> list[tuple[Tensor, Chain, Strand]]:
        """List, for each strand, times with its leading dimensions, its process, and the strand itself."""
        chains, times = self.strategy.chains(at_x, self.is_coupled)
        return [(times, chain, strand) for chain, strand in zip(chains, self.strands, strict=True)]

    def _projected(self, loadings: Tensor, asked: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        """
        Mean and variance of the sums that the context's sites are of, at all its points (`*T x N x J` each), without
        the K x K covariances; None for the sums by other loadings.
        """
        if not self.sites.are_of(loadings):
            return None
        outputs = self.strands[0].posterior.mean, self.strands[0].posterior.variance
        shift, variance = (self._as_they_came(part, 1).to(loadings.dtype) for part in outputs)
        return self.mean.mT @ loadings.mT + shift, variance

    @cached_property
    def _places(self) -> Tensor:
        """The place of each of the context's rows in the order of time (`*T x N`)."""
        return self.order.argsort(dim=-1)

    def _as_they_came(self, values: Tensor, event: int) -> Tensor:
        """Values in the order of time (`... x N x event`), in the order of the context's rows."""
        places = self.strategy.for_chains(self._places, self.is_coupled)
        return take_points(values, places.expand(values.shape[: values.dim() - event]), event)

    # --- q(u), which is q(f) at the context's inputs

    def q_u(self) -> AmortizedMultivariateNormal:
        q_f = self._marginals
        has_latents = isinstance(q_f, MultitaskMultivariateNormal)
        mean = q_f.mean.flatten(-2) if has_latents else q_f.mean  # (*T, N K)

        def covariance() -> Tensor:
            check_rows(mean.shape[-1])
            return self._at_own_inputs(diag=False).lazy_covariance_matrix.to_dense()

        covar = LazyMatrix(mean, torch.Size([*mean.shape, mean.shape[-1]]), covariance)
        return AmortizedMultivariateNormal(mean, covar, prior_kl=self._kl_divergence().to(mean.dtype))

    def _kl_divergence(self) -> Tensor:
        divergences = [strand.kl_divergence() for strand in self.strands]
        if self.is_coupled or self.strategy.num_latents is None:
            return divergences[0]
        return torch.cat(divergences, dim=-1).sum(-1)

    def p_u(self) -> AmortizedPrior:
        mean = self.mean if self.strategy.num_latents is None else self.mean.mT.flatten(-2)
        mean = mean.expand(*self.tasks, -1)  # (*T, N K)
        shape = torch.Size([*mean.shape, mean.shape[-1]])

        def covariance() -> Tensor:
            check_rows(mean.shape[-1])
            return self.strategy.prior_of_rows(self.x).lazy_covariance_matrix.to_dense().expand(shape)

        return AmortizedPrior(mean, LazyMatrix(mean, shape, covariance))

    # --- what else it can do

    def sites_of(self, q_f: MultivariateNormal) -> GaussianSites:
        covar = q_f.lazy_covariance_matrix
        by_function = getattr(covar, "base_linear_op", covar)
        if isinstance(covar, BlockDiagLinearOperator) or isinstance(by_function, DiagLinearOperator):
            raise ValueError(
                "This q(f) knows the marginals of each point alone: call the model with diag=False for joint samples."
            )
        return self.sites

    def sample(self, x: Tensor, n: int) -> Tensor:
        """Draw paths of the latent functions, in time proportional to the number of points."""
        at_x = self.strategy.prior_at(x)
        own = not self.is_coupled
        draws = [draw_paths(times, chain, strand.sites, own, n) for times, chain, strand in self._along(at_x)]
        if self.is_coupled:
            return (draws[0] + at_x.mean.mT).to(at_x.mean.dtype)  # (n, *T, N, K)
        paths = [part.squeeze(-1) for part in draws]  # (n, *T, K_g, N)
        if self.strategy.num_latents is None:
            return (paths[0] + at_x.mean).to(at_x.mean.dtype)
        return (torch.cat(paths, dim=-2) + at_x.mean).to(at_x.mean.dtype).mT

    def absorb(self, context: Context) -> Encoding:
        return MarkovStream.after(self).absorb(context)

    def state_dict(self) -> dict[str, Tensor]:
        return state_dict_of(self.x, self.sites)

    def detach(self) -> MarkovEncoding:
        strands = [strand.detach() for strand in self.strands]
        return MarkovEncoding(
            self.strategy, self.x.detach(), self.sites.detach(), self.mean.detach(), self.order, strands
        )


@dataclass(frozen=True, eq=False)
class MarkovStream(Encoding):
    """
    What the Markov strategy remembers of a context to which later rows were added: the state at the last of them, from
    which everything later follows. What the new rows say about earlier times is computed when somebody asks, from all
    rows together.

    :param pieces: The inputs (`*T x N x D`) and sites (`*T x J x N`) in the order in which they came.
    :param time: When the last row was (`*T`); None if there was none.
    :param known: What is known of the state then, for each process.
    """

    strategy: MarkovAmortizedVariationalStrategy
    pieces: tuple[tuple[Tensor, GaussianSites], ...]
    time: Tensor | None
    known: tuple[Known, ...]

    @classmethod
    def after(cls, encoding: MarkovEncoding) -> MarkovStream:
        """The stream that starts with a context."""
        strands, piece = encoding.strands, (encoding.x, encoding.sites)
        if not encoding.x.shape[-2]:
            return cls(encoding.strategy, (piece,), None, ())
        time = strands[0].sites.times[..., -1]
        if not encoding.is_coupled and encoding.strategy.num_latents is not None:
            time = time.squeeze(-1)  # one process for each latent function
        known = (known_with_last(strand.states, strand.stationary_covariance, strand.sites) for strand in strands)
        return cls(encoding.strategy, (piece,), time.expand(encoding.tasks), tuple(known))

    @property
    def tasks(self) -> torch.Size:
        sites = self.pieces[0][1]
        return sites.shape[:-1] if self.strategy.num_latents is None else sites.shape[:-2]

    @property
    def is_coupled(self) -> bool:
        return self.pieces[0][1].loadings is not None

    def rows(self) -> tuple[Tensor, GaussianSites]:
        """The inputs and sites of all rows, as they came."""
        xs, sites = zip(*self.pieces, strict=True)
        return _cat(xs, self.tasks), side_by_side(sites)

    @cached_property
    def whole(self) -> MarkovEncoding:
        """The encoding of all rows."""
        x, sites = self.rows()
        has_graph = any(known.mean.requires_grad for known in self.known)
        with torch.set_grad_enabled(torch.is_grad_enabled() or has_graph):
            return self.strategy.encode_sites(x, sites, x)[0]

    def predict(self, x: Tensor, at_x: StateSpacePrior | None, diag: bool, **kwargs: Any) -> MultivariateNormal:
        at_x = self.strategy.prior_at(x, **kwargs) if at_x is None else at_x
        if self.time is None or not (at_x.times >= self.time.unsqueeze(-1)).all():
            return self.whole.predict(x, at_x, diag, **kwargs)
        chains, times = self.strategy.chains(at_x, self.is_coupled)
        since = self.strategy.for_chains(self.time.unsqueeze(-1), self.is_coupled).squeeze(-1)

        def process(chain: Chain, known: Known) -> Process:
            def states(at_a_time: int) -> Iterator[MarkovStates]:
                for some in times.split(at_a_time, dim=-1):
                    yield states_after(some, chain, since, known)

            return Process(chain.stationary_covariance, chain.observation, states)

        return MarkovView(
            at_x.mean,
            torch.broadcast_shapes(self.tasks, at_x.times.shape[:-1]),
            [process(*parts) for parts in zip(chains, self.known, strict=True)],
            self.is_coupled,
            self.strategy.num_latents is not None,
            lambda values, event: values,
            lambda: self.whole.joint_covariances(at_x),
        ).distribution(diag)

    def absorb(self, context: Context) -> Encoding:
        """
        Take in rows that are not earlier than the last one, in time proportional to their number. Earlier ones take as
        long as all rows together.
        """
        strategy = self.strategy
        further = strategy.sites_of_further(context, self.tasks)
        if not context.num_points:
            return self
        pieces = self._with(context.x, further)
        at_x = strategy.prior_at_rows(context.x)
        informative = further.precision > 0
        informative = informative if strategy.num_latents is None else informative.any(-2)  # (*T, N)
        if self.time is None or (informative & (at_x.times < self.time.unsqueeze(-1))).any():
            return MarkovStream(strategy, pieces, None, ()).whole
        # a row that says nothing may stand anywhere
        at_x = at_x._replace(times=torch.maximum(at_x.times, self.time.unsqueeze(-1)))
        order, chains, sites = strategy.along_chains(at_x, further)
        since = strategy.for_chains(self.time.unsqueeze(-1), self.is_coupled).squeeze(-1)
        known = []
        for chain, part, start in zip(chains, sites, self.known, strict=True):
            P_inf, transitions = chain.stationary_covariance, chain.between(part.times, since)
            posterior = markov_posterior(transitions, P_inf, part.loadings, part.precision, part.h, start)
            known.append(known_with_last(posterior.states.points(), P_inf, part))
        time = at_x.times.gather(-1, order[..., -1:]).squeeze(-1)
        return MarkovStream(strategy, pieces, time.expand(self.tasks), tuple(known))

    def _with(self, x: Tensor, sites: GaussianSites) -> tuple[tuple[Tensor, GaussianSites], ...]:
        """
        Add a further piece to all. A piece that is no longer than the next one is joined with it, so that there are
        never more than a few.
        """
        rows = sites.shape[-1:] if self.strategy.num_latents is None else sites.shape[-2:]
        pieces = [*self.pieces, (x.expand(*self.tasks, *x.shape[-2:]), sites.expand((*self.tasks, *rows)))]
        while len(pieces) > 1 and pieces[-2][0].shape[-2] <= pieces[-1][0].shape[-2]:
            (left, left_sites), (right, right_sites) = pieces[-2:]
            pieces[-2:] = [(_cat((left, right), self.tasks), side_by_side((left_sites, right_sites)))]
        return tuple(pieces)

    def q_u(self) -> AmortizedMultivariateNormal:
        return self.whole.q_u()

    def p_u(self) -> AmortizedPrior:
        return self.whole.p_u()

    def sites_of(self, q_f: MultivariateNormal) -> GaussianSites:
        return self.whole.sites_of(q_f)

    def sample(self, x: Tensor, n: int) -> Tensor:
        return self.whole.sample(x, n)

    def state_dict(self) -> dict[str, Tensor]:
        return state_dict_of(*self.rows())

    def detach(self) -> MarkovStream:
        # most have been detached before
        pieces = tuple(
            (x.detach(), sites.detach()) if x.requires_grad or sites.precision.requires_grad else (x, sites)
            for x, sites in self.pieces
        )
        time = None if self.time is None else self.time.detach()
        known = tuple(Known(*(part.detach() for part in known)) for known in self.known)
        return MarkovStream(self.strategy, pieces, time, known)


def state_dict_of(x: Tensor, sites: GaussianSites) -> dict[str, Tensor]:
    """Rows as tensors to save."""
    sites = sites.detach()
    state_dict = {"x": x.detach(), "precision_mean": sites.precision_mean, "precision": sites.precision}
    return state_dict if sites.loadings is None else {**state_dict, "loadings": sites.loadings}


def _cat(xs: Sequence[Tensor], tasks: torch.Size) -> Tensor:
    """Inputs of the same tasks, one after the other (`*T x N x D`)."""
    return torch.cat([x.expand(*tasks, *x.shape[-2:]) for x in xs], dim=-2)
