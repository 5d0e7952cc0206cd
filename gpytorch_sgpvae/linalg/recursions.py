"""
The recursions of :mod:`~gpytorch_sgpvae.linalg.markov`, where the equations are: passes over the steps of chunks, which
run side by side, and short loops over the chunks. Arrays are those of :mod:`~gpytorch_sgpvae.linalg.columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .columns import (
    Layout,
    add_vectors,
    along,
    apply,
    as_vectors,
    inner_products,
    mix,
    move,
    move_both,
    multiply,
    outer_sum,
    plus_transpose,
    see,
    see_back,
    see_twice,
    symmetric,
    times_vectors,
)


class Chunk(NamedTuple):
    """
    The effect of a chunk on the state that it is entered with, and its evidence about it (`chunks x batch x D x D`, or
    `x D`).

    :param A: The state's way through the chunk.
    :param b: The mean of the state it leaves, if it is entered with mean 0.
    :param R: The evidence of the chunk about the state it leaves, as a reduction.
    :param eta: The evidence about the state it is entered with, as precision times mean.
    :param J: Likewise, as a precision.
    """

    A: Tensor
    b: Tensor
    R: Tensor
    eta: Tensor
    J: Tensor


class Entered(NamedTuple):
    """
    A chunk, once it is known what it is entered with (`chunks x batch x D x D`, or `x D`).

    :param mean: m of the state before its first transition.
    :param reduction: R likewise.
    :param M: The derivative of the mean of the state it leaves by that mean.
    :param score: The evidence of the chunk alone about the state it is entered with, :math:`(I + J P)^{-1} (\\eta - J
        m)`.
    :param information: Likewise, :math:`(I + J P)^{-1} J`.
    """

    mean: Tensor
    reduction: Tensor
    M: Tensor
    score: Tensor
    information: Tensor


@dataclass(eq=False)
class Process:
    """
    A Markov process and its sites, as steps of chunks.

    :param layout: The chunks.
    :param transitions: Blocks of Φ (`steps x K_g x d_g x d_g x columns` for each group).
    :param P_inf: (`D x D x columns`).
    :param C: Loadings (`J x D`, or `steps x J x D x columns`).
    :param precision: (`steps x J x columns`).
    :param h: (`steps x J x columns`).
    """

    layout: Layout
    transitions: list[Tensor]
    P_inf: Tensor
    C: Tensor
    precision: Tensor
    h: Tensor

    @classmethod
    def of_points(
        cls, num_chunks: int, transitions: Sequence[Tensor], P_inf: Tensor, C: Tensor, precision: Tensor, h: Tensor
    ) -> Process:
        """
        Arrange tensors with points in order, all of the same batch shape except those that all of it shares.

        :param transitions: (`... x N x K_g x d_g x d_g` for each group).
        :param P_inf: (`... x D x D`, or `D x D`).
        :param C: (`J x D`, or `... x N x J x D`).
        :param precision: (`... x N x J`).
        :param h: (`... x N x J`).
        """
        layout = Layout(precision.shape[:-2], precision.shape[-2], num_chunks)
        by_batch = P_inf.expand(*layout.batch, *P_inf.shape[-2:]).reshape(layout.size, *P_inf.shape[-2:])
        return cls(
            layout,
            [layout.steps(part, 3) for part in transitions],
            layout.columns(by_batch.expand(layout.num_chunks, *by_batch.shape)),
            C if C.dim() == 2 else layout.steps(C, 2),
            layout.steps(precision, 1),
            layout.steps(h, 1),
        )

    @property
    def num_steps(self) -> int:
        return self.layout.num_steps

    def blocks(self, step: int) -> list[Tensor]:
        return [part[step] for part in self.transitions]

    def loadings(self, step: int) -> Tensor:
        return self.C if self.C.dim() == 2 else self.C[step]


@dataclass(eq=False)
class Filtered:
    """
    The filter's results at each point, which the smoother and the gradient need.

    :param m: :math:`m^-` (`steps x D x columns`).
    :param R: :math:`R^-` (`steps x D x D x columns`).
    :param X: Transposed (`steps x J x D x columns`).
    :param D: (`steps x J x J x columns`).
    :param beta: (`steps x J x columns`).
    :param log_det: (`columns`).
    """

    m: Tensor
    R: Tensor
    X: Tensor
    D: Tensor
    beta: Tensor
    log_det: Tensor


@dataclass(eq=False)
class Smoothed:
    """
    The smoother's results at each point.

    :param r: (`steps x D x columns`).
    :param N: (`steps x D x D x columns`).
    :param r_plus: :math:`r^+` (`steps x D x columns`).
    :param Y: :math:`N^+ X`, transposed (`steps x J x D x columns`).
    :param mean: The posterior mean of C s (`steps x J x columns`).
    :param variance: The posterior variances (`steps x J x columns`).
    """

    r: Tensor
    N: Tensor
    r_plus: Tensor
    Y: Tensor
    mean: Tensor
    variance: Tensor


def pass_through(process: Process) -> Chunk:
    """Compute the effect of each chunk on any state that it is entered with: the filter, from states that are known."""
    columns, size = process.h.shape[-1], process.P_inf.shape[0]
    R = process.P_inf.expand(size, size, columns).contiguous()
    A = torch.eye(size, dtype=R.dtype, device=R.device).unsqueeze(-1).expand_as(R).contiguous()
    J, b = torch.zeros_like(A), torch.zeros_like(A[0])
    eta = torch.zeros_like(b)
    for step in range(process.num_steps):
        blocks, C = process.blocks(step), process.loadings(step)
        b, R, A = move(blocks, b), move_both(blocks, R), move(blocks, A)
        X, CA = see(C, process.P_inf - R), see(C, A)
        D, beta, _ = gain(see_twice(C, X), process.precision[step], see(C, b), process.h[step])
        DCA = mix(D, CA)
        # η + Aᵀ Cᵀ β, J + Aᵀ Cᵀ D C A, (I − X D C) A, b + X β, R + X D Xᵀ
        eta, J = add_vectors(eta, CA, beta), J + outer_sum(CA, DCA)
        A, b, R = A - outer_sum(X, DCA), add_vectors(b, X, beta), R + outer_sum(X, mix(D, X))
    return Chunk(*(process.layout.chunks(part) for part in (A, b, R, eta, J)))


def enter(process: Process, start: tuple[Tensor, Tensor]) -> Entered:
    """
    Compute the state that each chunk is entered with.

    :param start: m and R before the first chunk (`batch x D`, `batch x D x D`).
    """
    if process.layout.num_chunks == 1:
        # a single chunk hands nothing on: the rest is not looked at
        m, R = (part.unsqueeze(0) for part in start)
        return Entered(m, R, R, m, R)
    chunks, P_inf = pass_through(process), process.layout.chunks(process.P_inf)[0]
    eye = torch.eye(P_inf.shape[-1], dtype=P_inf.dtype, device=P_inf.device)
    m, R = start[0].unsqueeze(-1), start[1]
    means, reductions = [m], [R]
    columns = chunks._replace(b=chunks.b.unsqueeze(-1), eta=chunks.eta.unsqueeze(-1))
    for A, b, R_out, eta, J in zip(*(part[:-1] for part in columns), strict=True):
        P = P_inf - R
        # M = A (I + P J)⁻¹, m = M (m + P η) + b, P = M P Aᵀ + (P∞ − R_out)
        M = A @ torch.linalg.inv(eye + P @ J)
        m, R = M @ (m + P @ eta) + b, R_out - symmetric(M @ P @ A.mT)
        means.append(m)
        reductions.append(R)
    mean, reduction = torch.stack(means), torch.stack(reductions)  # (chunks, batch, D, 1), (chunks, batch, D, D)
    inverse = torch.linalg.inv(eye + (P_inf - reduction) @ columns.J)
    score = inverse.mT @ (columns.eta - columns.J @ mean)
    information = symmetric(inverse.mT @ columns.J)
    return Entered(mean.squeeze(-1), reduction, columns.A @ inverse, score.squeeze(-1), information)


def filter_forward(process: Process, m: Tensor, R: Tensor) -> Filtered:
    """Filter each chunk, from the state that it is entered with (`D x columns`, `D x D x columns`)."""
    J, columns = process.h.shape[1:]
    steps, size = process.num_steps, len(m)
    empty = process.h.new_empty
    ms, Rs = empty(steps, size, columns), empty(steps, size, size, columns)
    Xs, Ds, betas = empty(steps, J, size, columns), empty(steps, J, J, columns), empty(steps, J, columns)
    total = process.h.new_zeros(columns)
    for step in range(steps):
        blocks, C = process.blocks(step), process.loadings(step)
        m, R = move(blocks, m), move_both(blocks, R)
        X = see(C, process.P_inf - R)
        D, beta, log_det = gain(see_twice(C, X), process.precision[step], see(C, m), process.h[step])
        ms[step], Rs[step], Xs[step], Ds[step], betas[step] = m, R, X, D, beta
        total += log_det
        m, R = add_vectors(m, X, beta), R + outer_sum(X, mix(D, X))
    return Filtered(ms, Rs, Xs, Ds, betas, total)


def smooth_backward(process: Process, filtered: Filtered, r: Tensor, N: Tensor) -> Smoothed:
    """Smooth each chunk, given what is behind it, :math:`r^+` and :math:`N^+` (`D x columns`, `D x D x columns`)."""
    rs, Ns = torch.empty_like(filtered.m), torch.empty_like(filtered.R)
    r_plus, Ys = torch.empty_like(filtered.m), torch.empty_like(filtered.X)
    means, variances = torch.empty_like(filtered.beta), torch.empty_like(filtered.beta)
    for step in reversed(range(process.num_steps)):
        C, X, D = process.loadings(step), filtered.X[step], filtered.D[step]
        r_plus[step] = r
        Y = times_vectors(N, X)
        Ys[step] = Y
        # r⁺ + Cᵀ (β − D Xᵀ r⁺)
        r = r + see_back(C, filtered.beta[step] - apply(D, along(X, r)))
        # N⁺ − Cᵀ V − Vᵀ C with V = D Yᵀ − ½ (D + D Xᵀ Y D) C is Cᵀ D C + Lᵀ N⁺ L
        V = mix(D, Y) - 0.5 * mix(D + multiply(multiply(D, inner_products(X, Y)), D), as_vectors(C))
        N = N - plus_transpose(see_back(C, V))
        rs[step], Ns[step] = r, N
        # C m⁻ + Xᵀ r, diag(C X − Xᵀ N X)
        means[step] = see(C, filtered.m[step]) + along(X, r)
        variances[step] = ((as_vectors(C) - times_vectors(N, X)) * X).sum(1)
        if step:
            blocks = process.blocks(step)
            r, N = move(blocks, r, transpose=True), move_both(blocks, N, transpose=True)
    return Smoothed(rs, Ns, r_plus, Ys, means, variances)


def behind(entered: Entered) -> tuple[Tensor, Tensor]:
    """Compute what is known behind each chunk, r⁺ and N⁺ (`chunks x batch x D`, `chunks x batch x D x D`)."""
    r, N = torch.zeros_like(entered.mean), torch.zeros_like(entered.reduction)
    for c in reversed(range(len(r) - 1)):
        M = entered.M[c + 1]
        # r + Mᵀ r⁺, N + Mᵀ N⁺ M
        r[c] = entered.score[c + 1] + (M.mT @ r[c + 1].unsqueeze(-1)).squeeze(-1)
        N[c] = entered.information[c + 1] + M.mT @ N[c + 1] @ M
    return r, N


def answers(process: Process, filtered: Filtered, M: Tensor, h: Tensor) -> Tensor:
    r"""
    The posterior means of C s for many h at once (`steps x J x S x columns`), without gradients. They are linear in h,
    and the covariances, which do not depend on it, are known: with :math:`E = I - D G` the recursions are

    .. math::

        m = m^- + X E (h - \Lambda C m^-), \qquad r = r^+ + C^\top (E (h - \Lambda C m^-) - D X^\top r^+)

    :param process: The process, whose own h is not looked at.
    :param filtered: The filter's results.
    :param M: The way of a state's mean through each chunk (`chunks x batch x D x D`).
    :param h: (`steps x J x S x columns`).
    """
    layout, (steps, _, S, columns) = process.layout, h.shape
    size = filtered.m.shape[1]
    beta = torch.empty_like(h)

    def forward(m: Tensor, means: Tensor | None) -> Tensor:
        for step in range(steps):
            C, X = process.loadings(step), filtered.X[step]
            m = move(process.blocks(step), m)
            seen = see(C, m)  # (J, S, columns)
            residual = h[step] - process.precision[step].unsqueeze(1) * seen
            beta[step] = residual - mix(filtered.D[step], mix(see_twice(C, X), residual))
            if means is not None:
                means[step] = seen
            m = m + outer_sum(X, beta[step])
        return m

    def backward(r: Tensor, means: Tensor | None) -> Tensor:
        for step in reversed(range(steps)):
            X = filtered.X[step]
            r = r + see_back(process.loadings(step), beta[step] - mix(filtered.D[step], along(X, r)))
            if means is not None:
                means[step] += along(X, r)
            r = move(process.blocks(step), r, transpose=True)
        return r

    zeros, means = h.new_zeros(size, S, columns), torch.empty_like(h)
    m = zeros
    if layout.num_chunks > 1:
        left, entered = layout.chunks(forward(zeros, None)), layout.chunks(zeros).clone()  # (chunks, batch, D, S)
        for c in range(layout.num_chunks - 1):
            entered[c + 1] = left[c] + M[c] @ entered[c]
        m = layout.columns(entered)
    forward(m, means)
    r = zeros
    if layout.num_chunks > 1:
        said, after = layout.chunks(backward(zeros, None)), layout.chunks(zeros).clone()
        for c in reversed(range(1, layout.num_chunks)):
            after[c - 1] = said[c] + M[c].mT @ after[c]
        r = layout.columns(after)
    backward(r, means)
    return means


def driven_states(transitions: Sequence[Tensor], driving: Tensor, num_chunks: int) -> Tensor:
    r"""
    The states :math:`s_n = \Phi_n s_{n-1} + \varepsilon_n` from zero (`... x N x D`), without gradients.

    :param transitions: Blocks of Φ (`... x N x K_g x d_g x d_g` for each group).
    :param driving: :math:`\varepsilon` (`... x N x D`).
    """
    layout = Layout(driving.shape[:-2], driving.shape[-2], num_chunks)
    noise, phis = layout.steps(driving, 1), [layout.steps(part, 3) for part in transitions]
    steps, size, columns = noise.shape

    def run(s: Tensor, states: Tensor | None) -> Tensor:
        for step in range(steps):
            s = move([phi[step] for phi in phis], s)
            # beside the state, its derivative by the one that the chunk is entered with
            s = s + noise[step] if s.dim() == 2 else torch.cat([s[:, :1] + noise[step].unsqueeze(1), s[:, 1:]], dim=1)
            if states is not None:
                states[step] = s
        return s

    entered = noise.new_zeros(layout.num_chunks, layout.size, size)
    if layout.num_chunks > 1:
        eye = torch.eye(size, dtype=noise.dtype, device=noise.device).unsqueeze(-1).expand(size, size, columns)
        left = layout.chunks(run(torch.cat([torch.zeros_like(eye[:, :1]), eye], dim=1), None))
        for c in range(layout.num_chunks - 1):
            moved = (left[c, ..., 1:] @ entered[c].unsqueeze(-1)).squeeze(-1)
            entered[c + 1] = left[c, ..., 0] + moved
    states = torch.empty_like(noise)
    run(layout.columns(entered), states)
    return layout.points(states)


def gain(G: Tensor, precision: Tensor, residual: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """
    D = (I + Λ G)⁻¹ Λ, β = (I + Λ G)⁻¹ (h − Λ C m) and log |I + Λ G|.

    :param G: (`J x J x columns`).
    :param precision: λ (`J x columns`).
    :param residual: C m (`J x columns`).
    :param h: (`J x columns`).
    """
    if len(precision) == 1:
        S = torch.addcmul(torch.ones_like(precision), precision, G[0])
        beta = torch.addcmul(h, precision, residual, value=-1) / S
        return (precision / S).unsqueeze(0), beta, S.log()[0]
    # with W = Λ^½: D = W (I + W G W)⁻¹ W, in which λ may be zero
    W = precision.sqrt()
    S = (W.unsqueeze(1) * G * W).movedim(-1, 0)  # (columns, J, J)
    S = 0.5 * (S + S.mT)
    S.diagonal(dim1=-2, dim2=-1).add_(1.0)
    cholesky = torch.linalg.cholesky_ex(S).L
    log_det = 2 * cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    WS = W.unsqueeze(1) * torch.cholesky_inverse(cholesky).movedim(0, -1)  # W (I + W G W)⁻¹
    positive = precision > 0
    z = torch.where(positive, h / torch.where(positive, W, 1.0), 0.0) - W * residual
    D, rest = WS * W, torch.where(positive, 0.0, h)
    # W (I + W G W)⁻¹ W⁻¹ (h − Λ C m) where λ > 0, and (I − D G) h of what stands beside a λ of zero
    return D, (WS * z).sum(1) + rest - apply(D, apply(G, rest)), log_det
