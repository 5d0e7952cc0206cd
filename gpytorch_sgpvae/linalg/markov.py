r"""
The posterior of a Markov process given sites, in time linear in the number of points: pure functions of plain tensors.

The states :math:`s_n` of a process with stationary covariance :math:`P_\infty` move by :math:`\Phi_n` from one point to
the next, and the J pseudo-observations of a point are of :math:`C s_n`, with precisions :math:`\lambda` and
:math:`h = \lambda (g - \mathbf a^\top \mu)`. Covariances are kept as what the data have taken off the prior,
:math:`P = P_\infty - R`, so that no covariance of the transitions' noise is needed, and nothing seen is R = 0 exactly.

Filter, forward in time, from what is known before a point to what is known with it:

.. math::

    m^- = \Phi m, \quad R^- = \Phi R \Phi^\top, \quad P = P_\infty - R^-, \quad X = P C^\top, \quad G = C X

.. math::

    D = (I + \Lambda G)^{-1} \Lambda, \quad \beta = (I + \Lambda G)^{-1} (h - \Lambda C m^-), \quad
    m = m^- + X \beta, \quad R = R^- + X D X^\top

Smoother of Bryson and Frazier (1963), backward in time, which inverts no covariance. With :math:`L = I - X D C`, and
:math:`r^+ = \Phi^\top r`, :math:`N^+ = \Phi^\top N \Phi` of the next point:

.. math::

    r = C^\top \beta + L^\top r^+, \quad N = C^\top D C + L^\top N^+ L, \quad
    q(s_n) = \mathcal N \left( m^- + P r, \; P - P N P \right), \quad
    \log |B| = \sum_n \log |I + \Lambda_n G_n|

A loop over all points would be slow. They are cut into chunks, which run side by side. A first pass finds what a chunk
makes of any state that it is entered with (the elements of Särkkä and García-Fernández, 2021),

.. math::

    p(s_\text{out} \mid s_\text{in}, \text{chunk}) = \mathcal N (A s_\text{in} + b, P_\infty - R_0), \qquad
    p(\text{chunk} \mid s_\text{in}) \propto \exp (\eta^\top s_\text{in} - \tfrac 1 2 s_\text{in}^\top J s_\text{in})

and a short loop over chunks then finds what each of them is entered with. The gradient is written by hand: it is made
of recursions of the same kind, whose products over a chunk are known.

The recursions are in :mod:`~gpytorch_sgpvae.linalg.recursions`, their gradient in
:mod:`~gpytorch_sgpvae.linalg.markov_gradient`, and :mod:`~gpytorch_sgpvae.linalg.columns` has the arithmetic of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .chain import Chain, Known, MarkovPosterior, MarkovSites, MarkovStates, StateSteps
from .columns import Layout, symmetric
from .markov_gradient import MarkovPosteriorFunction
from .products import matvec
from .recursions import Process, answers, driven_states, enter, filter_forward

# Numbers in a matrix of all columns from which more chunks would cost more than they save.
WIDE_ENOUGH = 2**15
# Chunks in units of the square root of the number of points: a step of all chunks takes about three times as many
# operations as one of the loop over chunks.
CHUNKS = 1.7
# Fewer points than that are not worth chunks.
FEW_POINTS = 8
# Blocks of at most this size are multiplied by sums of products, larger ones by matrix products.
SMALL_BLOCK = 4


def markov_posterior(
    transitions: Sequence[Tensor],
    stationary_covariance: Tensor,
    loadings: Tensor,
    precision: Tensor,
    h: Tensor,
    start: Known | None = None,
    num_chunks: int | None = None,
) -> MarkovPosterior:
    r"""
    :param transitions: The blocks of :math:`\Phi_n`, from the point before, or from the start, to each point (see
        :class:`Chain`).
    :param stationary_covariance: :math:`P_\infty` (`... x D x D`).
    :param loadings: C (`J x D`, or `... x N x J x D`).
    :param precision: :math:`\lambda` (`... x N x J`).
    :param h: :math:`\lambda (g - \mathbf a^\top \mu)` (`... x N x J`).
    :param start: The state that the first transition starts from; by default nothing is known of it.
    :param num_chunks: The number of chunks that run side by side; by default one that makes it fast.
    """
    D = stationary_covariance.shape[-1]
    batch = torch.broadcast_shapes(precision.shape[:-2], h.shape[:-2], stationary_covariance.shape[:-2])
    precision, h = (part.expand(*batch, *part.shape[-2:]) for part in (precision, h))
    if start is None:
        start = Known(h.new_zeros(*batch, D), h.new_zeros(*batch, D, D))
    if num_chunks is None:
        num_chunks = _number_of_chunks(h.shape[-2], batch.numel() * D * D)
    transitions = [part.expand(*batch, *part.shape[-4:]) for part in transitions]
    start = Known(start.mean.expand(*batch, D), start.reduction.expand(*batch, D, D))
    *states, mean, variance, log_det = MarkovPosteriorFunction.evaluate(
        num_chunks, stationary_covariance, loadings, precision, h, *start, *transitions
    )
    return MarkovPosterior(StateSteps(Layout(batch, h.shape[-2], num_chunks), *states), mean, variance, log_det)


@torch.no_grad()
def mean_of_many(
    transitions: Sequence[Tensor], stationary_covariance: Tensor, loadings: Tensor, precision: Tensor
) -> Callable[[Tensor], Tensor]:
    r"""
    The posterior means of :math:`C \mathbf s_n` as a function of many h at once, without gradients: from
    `S x ... x N x J` to the same. The covariances are computed once.

    :param transitions: See :func:`markov_posterior`, as for all parameters.
    :param stationary_covariance: (`... x D x D`).
    :param loadings: (`J x D`, or `... x N x J x D`).
    :param precision: (`... x N x J`).
    """
    batch, (N, J), D = precision.shape[:-2], precision.shape[-2:], stationary_covariance.shape[-1]
    num_chunks = _number_of_chunks(N, batch.numel() * D * D)
    transitions = [part.expand(*batch, *part.shape[-4:]) for part in transitions]
    process = Process.of_points(
        num_chunks, transitions, stationary_covariance, loadings, precision, torch.zeros_like(precision)
    )
    layout = process.layout
    entered = enter(process, (precision.new_zeros(layout.size, D), precision.new_zeros(layout.size, D, D)))
    filtered = filter_forward(process, layout.columns(entered.mean), layout.columns(entered.reduction))

    @torch.no_grad()
    def means(h: Tensor) -> Tensor:
        steps = layout.steps(h.expand(-1, *batch, N, J).movedim(0, -1), 2)  # (steps, J, S, columns)
        return layout.points(answers(process, filtered, entered.M, steps)).movedim(-1, 0)

    return means


def update(known: Known, stationary_covariance: Tensor, loadings: Tensor, precision: Tensor, h: Tensor) -> Known:
    r"""
    Add a point to what is known before it, :math:`m = m^- + X \beta` and
    :math:`R = R^- + X D X^\top`.

    :param known: :math:`m^-` and :math:`R^-` (`... x D`, `... x D x D`).
    :param stationary_covariance: (`... x D x D`).
    :param loadings: C (`... x J x D`).
    :param precision: (`... x J`).
    :param h: (`... x J`).
    """
    P = stationary_covariance - known.reduction
    if loadings.shape[-2] == 1:
        # sums of products are quicker than products of so many small matrices
        c = loadings.squeeze(-2)  # (..., D)
        x = (P * c.unsqueeze(-2)).sum(-1)  # (..., D)
        e = (1 + precision * (c * x).sum(-1, keepdim=True)).reciprocal()  # (..., 1)
        beta = e * (h - precision * (c * known.mean).sum(-1, keepdim=True))
        reduction = known.reduction + (e * precision * x).unsqueeze(-1) * x.unsqueeze(-2)
        return Known(known.mean + beta * x, reduction)
    X = P @ loadings.mT  # (..., D, J)
    # E = (I + Λ G)⁻¹, D = E Λ
    eye = torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)
    E = torch.linalg.inv(eye + precision.unsqueeze(-1) * (loadings @ X))
    beta = matvec(E, h - precision * matvec(loadings, known.mean))
    reduction = known.reduction + X @ (E * precision.unsqueeze(-2)) @ X.mT
    # symmetric to the bit: a filter does not forget what rounding makes of the difference
    return Known(known.mean + matvec(X, beta), symmetric(reduction))


def seen(states: MarkovStates, stationary_covariance: Tensor, loadings: Tensor, diag: bool) -> tuple[Tensor, Tensor]:
    r"""
    The posterior mean of :math:`C \mathbf s_n` (`... x N x J`), and its covariance (`... x N x J x J`) or variances
    (`... x N x J`).

    :param states: The states of N points.
    :param stationary_covariance: (`... x D x D`).
    :param loadings: C (`... x J x D`, or `... x N x J x D`, as broadcasts with `... x N`).
    :param diag: Whether the variances alone will do.
    """
    P = stationary_covariance.unsqueeze(-3) - states.reduction  # (..., N, D, D)
    if loadings.shape[-2] == 1:
        c = loadings.squeeze(-2)  # (..., D)
        X = (P * c.unsqueeze(-2)).sum(-1)  # (..., N, D)
        NX = (states.information * X.unsqueeze(-2)).sum(-1)
        mean = (c * states.mean).sum(-1, keepdim=True) + (X * states.score).sum(-1, keepdim=True)
        variance = (c * X).sum(-1, keepdim=True) - (X * NX).sum(-1, keepdim=True)
        return mean, variance if diag else variance.unsqueeze(-1)
    X = P @ loadings.mT  # (..., N, D, J)
    mean = matvec(loadings, states.mean) + matvec(X.mT, states.score)
    NX = states.information @ X
    if diag:
        return mean, (loadings * X.mT).sum(-1) - (X * NX).sum(-2)
    return mean, loadings @ X - X.mT @ NX


def seen_mean(states: MarkovStates, stationary_covariance: Tensor, loadings: Tensor) -> Tensor:
    r"""The mean alone, :math:`C (\mathbf m^- + P \mathbf r)` (`... x N x J`); see :func:`seen` for the parameters."""
    # P∞ r − R⁻ r
    shift = matvec(stationary_covariance.unsqueeze(-3), states.score) - matvec(states.reduction, states.score)
    return matvec(loadings, states.mean + shift)


def states_at(times: Tensor, chain: Chain, sites: MarkovSites, states: MarkovStates) -> MarkovStates:
    r"""
    The states at any times, from those at the points around them: with the last point before a time and the first one
    after it,

    .. math::

        m^-_* = \Phi m, \quad R^-_* = \Phi R \Phi^\top, \qquad
        r_* = \Phi_+^\top r_+, \quad N_* = \Phi_+^\top N_+ \Phi_+

    :param times: Times in any order (`... x N*`).
    :param sites: The points (`... x N`).
    :param states: The states of the points.
    """
    own = sites.times
    N, batch = own.shape[-1], torch.broadcast_shapes(times.shape[:-1], states.mean.shape[:-2])
    times, own = times.expand(*batch, -1), own.expand(*batch, -1)
    if not N:
        shape = *times.shape, states.mean.shape[-1]
        zeros = states.mean.new_zeros(*shape, shape[-1])
        return MarkovStates(zeros[..., 0], zeros, zeros[..., 0], zeros)
    number = torch.searchsorted(own.detach().contiguous(), times.detach().contiguous(), right=True)  # points up to it
    before, after = (number - 1).clamp_min(0), number.clamp_max(N - 1)
    is_first, is_last = number == 0, number == N

    known = Known(take_points(states.mean, before, 1), take_points(states.reduction, before, 2))
    loadings = sites.loadings if sites.loadings.dim() == 2 else take_points(sites.loadings, before, 2)
    P_inf = chain.stationary_covariance.unsqueeze(-3)
    known = update(known, P_inf, loadings, take_points(sites.precision, before, 1), take_points(sites.h, before, 1))
    since = torch.where(is_first, 0.0, times - take_points(own, before, 0)).clamp_min(0.0)
    until = torch.where(is_last, 0.0, take_points(own, after, 0) - times).clamp_min(0.0)
    forward, backward = chain.transitions(since), [phi.mT for phi in chain.transitions(until)]
    mean, reduction = (torch.where(_like(is_first, part), 0.0, part) for part in _moved(forward, known))
    following = Known(take_points(states.score, after, 1), take_points(states.information, after, 2))
    score, information = (torch.where(_like(is_last, part), 0.0, part) for part in _moved(backward, following))
    return MarkovStates(mean, reduction, score, information)


def states_after(times: Tensor, chain: Chain, since: Tensor, known: Known) -> MarkovStates:
    """
    The states at times after all points.

    :param times: Times in any order (`... x N*`).
    :param since: The time of the last point (`...`).
    :param known: The state of the last point.
    """
    steps = (times - since.unsqueeze(-1)).clamp_min(0.0)
    mean, reduction = _moved(chain.transitions(steps), Known(known.mean.unsqueeze(-2), known.reduction.unsqueeze(-3)))
    return MarkovStates(mean, reduction, torch.zeros_like(mean), torch.zeros_like(reduction))


def draw_states(chain: Chain, transitions: Sequence[Tensor], shape: torch.Size) -> Tensor:
    r"""
    Draw states from the prior, :math:`\mathbf s_n = \Phi_n \mathbf s_{n-1} + \boldsymbol \varepsilon_n` with
    :math:`\mathrm{cov} \, \boldsymbol \varepsilon_n = P_\infty - \Phi_n P_\infty \Phi_n^\top`
    (`*shape x N x D`).

    :param transitions: The transitions to each point from the one before; the first is not looked at.
    :param shape: The batch shape of the draws, which those of the chain and of the transitions broadcast to.
    """
    N, first, parts = transitions[0].shape[-4], 0, []
    for phi in transitions:
        K, d = phi.shape[-3:-1]
        P = _diagonal_blocks(chain.stationary_covariance, first, K, d).unsqueeze(-4)  # (..., 1, K, d, d)
        first += K * d
        Q = P - phi @ P @ phi.mT  # (..., N, K, d, d)
        Q = torch.cat([P.expand(*Q.shape[:-4], 1, K, d, d), Q[..., 1:, :, :, :]], dim=-4)[..., :N, :, :, :]
        values, vectors = torch.linalg.eigh(0.5 * (Q + Q.mT))
        # a covariance but for rounding, and zero where times tie
        root = vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)
        noise = torch.randn(*shape, N, K, d, dtype=Q.dtype, device=Q.device)
        parts.append(matvec(root, noise).flatten(-2))
    transitions = [part.expand(*shape, *part.shape[-4:]) for part in transitions]
    driving = torch.cat(parts, dim=-1)
    return driven_states(transitions, driving, _number_of_chunks(N, shape.numel() * driving.shape[-1] ** 2))


def _diagonal_blocks(matrix: Tensor, first: int, K: int, d: int) -> Tensor:
    """K diagonal blocks of size d (`... x K x d x d`)."""
    rows = slice(first, first + K * d)
    blocks = matrix[..., rows, rows].unflatten(-2, (K, d)).unflatten(-1, (K, d))  # (..., K, d, K, d)
    return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _moved(blocks: Sequence[Tensor], known: Known) -> Known:
    """Φ m and Φ R Φᵀ (`... x D`, `... x D x D`)."""
    return Known(_move(blocks, known.mean.unsqueeze(-1)).squeeze(-1), _move(blocks, _move(blocks, known.reduction).mT))


def _move(blocks: Sequence[Tensor], matrix: Tensor) -> Tensor:
    """Φ times a matrix (`... x D x E`)."""
    parts, first = [], 0
    for phi in blocks:
        K, d = phi.shape[-3:-1]
        part = matrix[..., first : first + K * d, :].unflatten(-2, (K, d))  # (..., K, d, E)
        first += K * d
        moved = (phi.unsqueeze(-1) * part.unsqueeze(-3)).sum(-2) if d <= SMALL_BLOCK else phi @ part
        parts.append(moved.flatten(-3, -2))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)


def take_points(values: Tensor, numbers: Tensor, event: int) -> Tensor:
    """
    Values of points.

    :param values: (`... x N x event`).
    :param numbers: The points (`... x N*`).
    :param event: The number of dimensions of a value.
    """
    *batch, num_taken = numbers.shape
    shape = values.shape[values.dim() - event :]
    N = values.shape[values.dim() - event - 1]
    values = values.expand(*batch, N, *shape).reshape(-1, *shape)  # (... N, event)
    offsets = N * torch.arange(math.prod(batch), device=numbers.device).view(*batch, 1)
    return values.index_select(0, (numbers + offsets).flatten()).view(*batch, num_taken, *shape)


def _like(mask: Tensor, values: Tensor) -> Tensor:
    """A mask of points (`... x N`) for values with further dimensions."""
    return mask.view(*mask.shape, *[1] * (values.dim() - mask.dim()))


def _number_of_chunks(num_points: int, width: int) -> int:
    """
    :param num_points: N.
    :param width: Numbers in a matrix of the whole batch.
    """
    if num_points <= FEW_POINTS:
        return 1
    return max(1, min(WIDE_ENOUGH // max(width, 1), round(CHUNKS * math.sqrt(num_points))))
