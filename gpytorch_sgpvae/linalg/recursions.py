"""
The recursions of :mod:`~gpytorch_sgpvae.linalg.markov` and their gradient by hand; the equations are there.

Arrays have the columns (chunks x batch) as their last dimension: a vector is `D x columns`, a matrix
`D x D x columns`, the J vectors of a point `J x D x columns`, and with the steps of a chunk in front `steps x ...`.
Loadings are `J x D` if all points share them, otherwise `steps x J x D x columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Chunk(NamedTuple):
    """
    What a chunk does to what it is entered with, and says about it (`chunks x batch x D x D`, or `x D`).

    :param A: The state's way through the chunk.
    :param b: Where it is driven to.
    :param R: What the chunk says about the state it leaves, as a reduction.
    :param eta: What it says about the state it is entered with, as precision times mean.
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
    :param score: What it alone says about the state it is entered with, :math:`(I + J P)^{-1} (\\eta - J m)`.
    :param information: Likewise, :math:`(I + J P)^{-1} J`.
    """

    mean: Tensor
    reduction: Tensor
    M: Tensor
    score: Tensor
    information: Tensor


class Layout:
    """
    From tensors with points in order to steps of chunks, and back.

    :param batch: The batch shape.
    :param num_points: N.
    :param num_chunks: Chunks of equal length; the last ones are filled up with points at which nothing happens.
    """

    def __init__(self, batch: torch.Size, num_points: int, num_chunks: int):
        self.batch, self.num_points = batch, num_points
        self.num_steps = max(1, -(-num_points // num_chunks))
        self.num_chunks = max(1, -(-num_points // self.num_steps))
        self.size = batch.numel()

    def steps(self, points: Tensor, event: int) -> Tensor:
        """From `... x N x event` to `steps x event x columns`."""
        points = points.expand(*self.batch, *points.shape[points.dim() - event - 1 :])
        shape = points.shape[points.dim() - event :]
        points = points.reshape(self.size, self.num_points, *shape)
        filling = self.num_chunks * self.num_steps - self.num_points
        if filling:
            points = torch.cat([points, points.new_zeros(self.size, filling, *shape)], dim=1)
        points = points.unflatten(1, (self.num_chunks, self.num_steps))  # (batch, chunks, steps, *event)
        order = (2, *range(3, 3 + event), 1, 0)
        return points.permute(order).contiguous().flatten(-2)

    def points(self, steps: Tensor) -> Tensor:
        """From `steps x event x columns` to `... x N x event`."""
        event = steps.dim() - 2
        steps = steps.unflatten(-1, (self.num_chunks, self.size))  # (steps, *event, chunks, batch)
        points = steps.permute(event + 2, event + 1, 0, *range(1, event + 1)).flatten(1, 2)
        return points[:, : self.num_points].reshape(*self.batch, self.num_points, *points.shape[2:])

    def columns(self, chunks: Tensor) -> Tensor:
        """From `chunks x batch x event` to `event x columns`."""
        return chunks.flatten(0, 1).movedim(0, -1).contiguous()

    def chunks(self, columns: Tensor) -> Tensor:
        """From `event x columns` to `chunks x batch x event`."""
        return columns.movedim(-1, 0).unflatten(0, (self.num_chunks, self.size))


@dataclass(eq=False)
class Process:
    """
    A Markov process and its sites, as steps of chunks.

    :param transitions: Blocks of Φ (`steps x K_g x d_g x d_g x columns` for each group).
    :param P_inf: (`D x D x columns`, or 1 for columns).
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

    @property
    def num_steps(self) -> int:
        return self.layout.num_steps

    def blocks(self, step: int) -> list[Tensor]:
        return [part[step] for part in self.transitions]

    def loadings(self, step: int) -> Tensor:
        return self.C if self.C.dim() == 2 else self.C[step]


# --- products of small matrices, of all columns at once


def _move(blocks: Sequence[Tensor], matrix: Tensor, transpose: bool = False) -> Tensor:
    """Φ times vectors or matrices (`D x columns`, `D x E x columns`), or Φᵀ times them."""
    moved, first = torch.empty_like(matrix), 0
    for phi in blocks:
        K, d = phi.shape[:2]
        rows = slice(first, first + K * d)
        first = rows.stop
        part, out = matrix[rows].unflatten(0, (K, d)), moved[rows].unflatten(0, (K, d))
        if matrix.dim() == 3:
            phi = phi.unsqueeze(3)
        for j in range(d):
            column, row = phi[:, j, :] if transpose else phi[:, :, j], part[:, None, j]
            torch.mul(column, row, out=out) if j == 0 else out.addcmul_(column, row)
    return moved


def _move_both(blocks: Sequence[Tensor], matrix: Tensor, transpose: bool = False) -> Tensor:
    """Φ S Φᵀ, or Φᵀ S Φ, of a symmetric matrix (`D x D x columns`)."""
    return _move(blocks, _move(blocks, matrix, transpose).transpose(0, 1).contiguous(), transpose)


def _see(C: Tensor, matrix: Tensor) -> Tensor:
    """C S of a matrix (`D x D x columns`), or C v of a vector (`D x columns`)."""
    if C.dim() == 2:
        return torch.mm(C, matrix.flatten(1)).unflatten(1, matrix.shape[1:])
    if matrix.dim() == 2:
        return (C * matrix).sum(1)
    return torch.stack([(row.unsqueeze(1) * matrix).sum(0) for row in C])


def _seen_back(C: Tensor, values: Tensor) -> Tensor:
    """Cᵀ V of values (`J x columns`, or `J x E x columns`)."""
    if C.dim() == 2:
        return torch.mm(C.T, values.flatten(1)).unflatten(1, values.shape[1:])
    if values.dim() == 2:
        return (C * values.unsqueeze(1)).sum(0)
    return _sum([row.unsqueeze(1) * value for row, value in zip(C, values, strict=True)])


def _seen_twice(C: Tensor, X: Tensor) -> Tensor:
    """C X, of X transposed (`J x D x columns`), where that is symmetric (`J x J x columns`)."""
    return torch.matmul(C, X) if C.dim() == 2 else _inner(C, X)


def _vectors(C: Tensor) -> Tensor:
    """The loadings as `J x D x columns`, or 1 for columns."""
    return C.unsqueeze(-1) if C.dim() == 2 else C


def _inner(left: Tensor, right: Tensor) -> Tensor:
    """The inner products of vectors (`J x D x columns` each, `J x J x columns`)."""
    if len(left) == 1 and len(right) == 1:
        return (left * right).sum(1, keepdim=True)
    return (left.unsqueeze(1) * right.unsqueeze(0)).sum(2)


def _along(vectors: Tensor, vector: Tensor) -> Tensor:
    """The inner products of J vectors (`J x D x columns`) and one (`D x columns`)."""
    return (vectors * vector).sum(1)


def _mix(weights: Tensor, vectors: Tensor) -> Tensor:
    """Sums of vectors (`J x D x columns`) by weights (`J x J x columns`)."""
    if len(weights) == 1:
        return weights * vectors
    return _sum([weights[:, j, None] * vectors[None, j] for j in range(len(vectors))])


def _matmul(left: Tensor, right: Tensor) -> Tensor:
    """(`J x J x columns` each)"""
    return left * right if len(left) == 1 else _mix(left, right)


def _apply(weights: Tensor, values: Tensor) -> Tensor:
    """`J x J x columns` times `J x columns`."""
    return weights[0] * values if len(values) == 1 else (weights * values).sum(1)


def _add_vectors(total: Tensor, vectors: Tensor, values: Tensor, sign: float = 1.0) -> Tensor:
    """Add Σ_j v_j x_j, of vectors (`J x D x columns`) and values (`J x columns`), to a vector."""
    for vector, value in zip(vectors, values, strict=True):
        total = torch.addcmul(total, vector, value, value=sign)
    return total


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Σ_j l_j r_jᵀ of vectors (`J x D x columns` each)."""
    total = left[0].unsqueeze(1) * right[0]
    for one, other in zip(left[1:], right[1:], strict=True):
        total.addcmul_(one.unsqueeze(1), other)
    return total


def _plus_transpose(matrix: Tensor) -> Tensor:
    return matrix + matrix.transpose(0, 1)


def _times(matrix: Tensor, vectors: Tensor) -> Tensor:
    """A matrix (`D x D x columns`) times each of J vectors (`J x D x columns`)."""
    return torch.stack([(matrix * vector).sum(1) for vector in vectors])


def _plus(steps: Tensor | None, step: int, other: Tensor) -> Tensor:
    return other if steps is None else other + steps[step]


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _block_gradient(blocks: Sequence[Tensor], left: Tensor, right: Tensor) -> list[Tensor]:
    """The diagonal blocks (`K_g x d_g x d_g x columns`) of left times right (`D x E x columns`, `E x D x columns`)."""
    gradients, first = [], 0
    for phi in blocks:
        K, d = phi.shape[:2]
        rows = slice(first, first + K * d)
        first = rows.stop
        a = left[rows].unflatten(0, (K, d))  # (K, d, E, columns)
        b = right[:, rows].unflatten(1, (K, d)).movedim(0, 2)  # (K, d, E, columns)
        gradients.append((a.unsqueeze(2) * b.unsqueeze(1)).sum(3))
    return gradients


# --- a point


def _gain(G: Tensor, precision: Tensor, residual: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
    return D, (WS * z).sum(1) + rest - _apply(D, _apply(G, rest)), log_det


@dataclass(eq=False)
class Filtered:
    """
    What the filter leaves of each point, for the smoother and the gradient.

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
    What the smoother adds to it.

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


# --- passes over the steps of all chunks


def _through(process: Process) -> Chunk:
    """What each chunk makes of any state that it is entered with: the filter, from states that are known."""
    columns, size = process.h.shape[-1], process.P_inf.shape[0]
    R = process.P_inf.expand(size, size, columns).contiguous()
    A = torch.eye(size, dtype=R.dtype, device=R.device).unsqueeze(-1).expand_as(R).contiguous()
    J, b = torch.zeros_like(A), torch.zeros_like(A[0])
    eta = torch.zeros_like(b)
    for step in range(process.num_steps):
        blocks, C = process.blocks(step), process.loadings(step)
        b, R, A = _move(blocks, b), _move_both(blocks, R), _move(blocks, A)
        X, CA = _see(C, process.P_inf - R), _see(C, A)
        D, beta, _ = _gain(_seen_twice(C, X), process.precision[step], _see(C, b), process.h[step])
        DCA = _mix(D, CA)
        # η + Aᵀ Cᵀ β, J + Aᵀ Cᵀ D C A, (I − X D C) A, b + X β, R + X D Xᵀ
        eta, J = _add_vectors(eta, CA, beta), J + _outer(CA, DCA)
        A, b, R = A - _outer(X, DCA), _add_vectors(b, X, beta), R + _outer(X, _mix(D, X))
    return Chunk(*(process.layout.chunks(part) for part in (A, b, R, eta, J)))


def _enter(chunks: Chunk, P_inf: Tensor, start: tuple[Tensor, Tensor]) -> Entered:
    """
    What each chunk is entered with.

    :param P_inf: (`batch x D x D`, or 1 for batch).
    :param start: m and R before the first chunk (`batch x D`, `batch x D x D`).
    """
    eye = torch.eye(P_inf.shape[-1], dtype=P_inf.dtype, device=P_inf.device)
    m, R = start[0].unsqueeze(-1), start[1]
    means, reductions = [m], [R]
    columns = chunks._replace(b=chunks.b.unsqueeze(-1), eta=chunks.eta.unsqueeze(-1))
    for A, b, R_out, eta, J in zip(*(part[:-1] for part in columns), strict=True):
        P = P_inf - R
        # M = A (I + P J)⁻¹, m = M (m + P η) + b, P = M P Aᵀ + (P∞ − R_out)
        M = A @ torch.linalg.inv(eye + P @ J)
        m, R = M @ (m + P @ eta) + b, R_out - _symmetric(M @ P @ A.mT)
        means.append(m)
        reductions.append(R)
    mean, reduction = torch.stack(means), torch.stack(reductions)  # (chunks, batch, D, 1), (chunks, batch, D, D)
    inverse = torch.linalg.inv(eye + (P_inf - reduction) @ columns.J)
    score = inverse.mT @ (columns.eta - columns.J @ mean)
    information = _symmetric(inverse.mT @ columns.J)
    return Entered(mean.squeeze(-1), reduction, columns.A @ inverse, score.squeeze(-1), information)


def _symmetric(matrix: Tensor) -> Tensor:
    """(`... x D x D`)"""
    return 0.5 * (matrix + matrix.mT)


def _filter(process: Process, m: Tensor, R: Tensor) -> Filtered:
    """From what each chunk is entered with (`D x columns`, `D x D x columns`)."""
    J, columns = process.h.shape[1:]
    steps, size = process.num_steps, len(m)
    empty = process.h.new_empty
    ms, Rs = empty(steps, size, columns), empty(steps, size, size, columns)
    Xs, Ds, betas = empty(steps, J, size, columns), empty(steps, J, J, columns), empty(steps, J, columns)
    total = process.h.new_zeros(columns)
    for step in range(steps):
        blocks, C = process.blocks(step), process.loadings(step)
        m, R = _move(blocks, m), _move_both(blocks, R)
        X = _see(C, process.P_inf - R)
        D, beta, log_det = _gain(_seen_twice(C, X), process.precision[step], _see(C, m), process.h[step])
        ms[step], Rs[step], Xs[step], Ds[step], betas[step] = m, R, X, D, beta
        total += log_det
        m, R = _add_vectors(m, X, beta), R + _outer(X, _mix(D, X))
    return Filtered(ms, Rs, Xs, Ds, betas, total)


def _smooth(process: Process, filtered: Filtered, r: Tensor, N: Tensor) -> Smoothed:
    """From what is known behind each chunk (`D x columns`, `D x D x columns`), :math:`r^+` and :math:`N^+`."""
    rs, Ns = torch.empty_like(filtered.m), torch.empty_like(filtered.R)
    r_plus, Ys = torch.empty_like(filtered.m), torch.empty_like(filtered.X)
    means, variances = torch.empty_like(filtered.beta), torch.empty_like(filtered.beta)
    for step in reversed(range(process.num_steps)):
        C, X, D = process.loadings(step), filtered.X[step], filtered.D[step]
        r_plus[step] = r
        Y = _times(N, X)
        Ys[step] = Y
        # r⁺ + Cᵀ (β − D Xᵀ r⁺)
        r = r + _seen_back(C, filtered.beta[step] - _apply(D, _along(X, r)))
        # N⁺ − Cᵀ V − Vᵀ C with V = D Yᵀ − ½ (D + D Xᵀ Y D) C is Cᵀ D C + Lᵀ N⁺ L
        V = _mix(D, Y) - 0.5 * _mix(D + _matmul(_matmul(D, _inner(X, Y)), D), _vectors(C))
        N = N - _plus_transpose(_seen_back(C, V))
        rs[step], Ns[step] = r, N
        # C m⁻ + Xᵀ r, diag(C X − Xᵀ N X)
        means[step] = _see(C, filtered.m[step]) + _along(X, r)
        variances[step] = ((_vectors(C) - _times(N, X)) * X).sum(1)
        if step:
            blocks = process.blocks(step)
            r, N = _move(blocks, r, transpose=True), _move_both(blocks, N, transpose=True)
    return Smoothed(rs, Ns, r_plus, Ys, means, variances)


def _behind(entered: Entered) -> tuple[Tensor, Tensor]:
    """What is known behind each chunk, r⁺ and N⁺ (`chunks x batch x D`, `chunks x batch x D x D`)."""
    r, N = torch.zeros_like(entered.mean), torch.zeros_like(entered.reduction)
    for c in reversed(range(len(r) - 1)):
        M = entered.M[c + 1]
        # r + Mᵀ r⁺, N + Mᵀ N⁺ M
        r[c] = entered.score[c + 1] + (M.mT @ r[c + 1].unsqueeze(-1)).squeeze(-1)
        N[c] = entered.information[c + 1] + M.mT @ N[c + 1] @ M
    return r, N


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
            s = _move([phi[step] for phi in phis], s)
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


# --- the gradient


class _Adjoint:
    r"""
    The gradient of whatever the results are used for, by reverse recursions: first that of the smoother, forward in
    time, then that of the filter, backward in time. A bar is a gradient, :math:`\bar r` one by r.

    :param states: The gradients by m⁻, R⁻, r and N as steps; None for zero.
    :param mean: The gradient by the mean of C s (`steps x J x columns`).
    :param variance: The gradient by its variances (`steps x J x columns`).
    :param log_det: The gradient by log |B| (`columns`).
    """

    def __init__(
        self,
        process: Process,
        entered: Entered,
        filtered: Filtered,
        smoothed: Smoothed,
        N_behind: Tensor,
        states: Sequence[Tensor | None],
        mean: Tensor,
        variance: Tensor,
        log_det: Tensor,
        loadings_too: bool,
    ):
        self.process, self.entered, self.filtered, self.smoothed = process, entered, filtered, smoothed
        self.N_behind = N_behind
        self.m_bar, self.R_bar, self.r_bar, self.N_bar = states
        self.mean_bar, self.variance_bar, self.log_det_bar = mean, variance, log_det
        self.transitions = [torch.zeros_like(part) for part in process.transitions]
        self.loadings = torch.zeros_like(process.C) if loadings_too else None
        self.precision, self.h = torch.empty_like(process.precision), torch.empty_like(process.h)
        size, columns = filtered.m.shape[1:]
        self.P_inf = filtered.m.new_zeros(size, size, columns)
        # what the smoother hands on to the filter: gradients by β, D and X
        self.beta_bar = torch.empty_like(filtered.beta)
        self.D_bar, self.X_bar = torch.empty_like(filtered.D), torch.empty_like(filtered.X)

    def run(self) -> tuple[Tensor, Tensor]:
        """The gradient by m and R of the start (`batch x D`, `batch x D x D`); the others are attributes."""
        layout, M, score = self.process.layout, self.entered.M, self.entered.score
        zeros = torch.zeros_like(self.filtered.m[0]), torch.zeros_like(self.filtered.R[0])
        r, N = zeros
        if layout.num_chunks > 1:
            out_r, out_N = (layout.chunks(part) for part in self._smoother(*zeros, keep=False))
            in_r, in_N = torch.zeros_like(self.entered.mean), torch.zeros_like(self.entered.reduction)
            for c in range(layout.num_chunks - 1):
                in_r[c + 1] = out_r[c] + (M[c] @ in_r[c].unsqueeze(-1)).squeeze(-1)
                in_N[c + 1] = out_N[c] + M[c] @ in_N[c] @ M[c].mT
            r, N = layout.columns(in_r), layout.columns(in_N)
        self._smoother(r, N, keep=True)
        m, R = zeros
        if layout.num_chunks > 1:
            in_m, in_R = (layout.chunks(part) for part in self._filter(*zeros, keep=False))
            out_m, out_R = torch.zeros_like(self.entered.mean), torch.zeros_like(self.entered.reduction)
            for c in reversed(range(1, layout.num_chunks)):
                back = (M[c].mT @ out_m[c].unsqueeze(-1)).squeeze(-1)
                out_m[c - 1] = in_m[c] + back
                # Mᵀ R̄ M − Mᵀ m̄ rᵀ, symmetric
                outer = back.unsqueeze(-1) * score[c].unsqueeze(-2)
                out_R[c - 1] = in_R[c] + M[c].mT @ out_R[c] @ M[c] - _symmetric(outer)
            m, R = layout.columns(out_m), layout.columns(out_R)
        m, R = (layout.chunks(part)[0] for part in self._filter(m, R, keep=True))
        return m, R

    def _smoother(self, r: Tensor, N: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """
        From the gradients by :math:`r^+` and :math:`N^+` in front of each chunk to those behind it.

        :param keep: Whether to keep the gradients by everything else.
        """
        process, filtered, smoothed = self.process, self.filtered, self.smoothed
        for step in range(process.num_steps):
            blocks, C = process.blocks(step), process.loadings(step)
            X, D = filtered.X[step], filtered.D[step]
            moved = _move(blocks, N)
            if keep:
                # r r̄⁺ᵀ + 2 N Φ N̄⁺
                self._add_to_transitions(step, 2 * smoothed.N[step], moved)
                self._add_to_transitions(step, smoothed.r[step].unsqueeze(1), r.unsqueeze(0))
            # of the mean X, of the variances −X Xᵀ
            r = _add_vectors(_plus(self.r_bar, step, _move(blocks, r)), X, self.mean_bar[step])
            N = _plus(self.N_bar, step, _move(blocks, moved.transpose(0, 1).contiguous()))
            N = N - _outer(X, self.variance_bar[step].unsqueeze(1) * X)
            c, NC = _see(C, r), _see(C, N)  # C r̄, C N̄
            q, CNC = _apply(D, c), _seen_twice(C, NC)
            DCNC = _matmul(D, CNC)
            if keep:
                self._keep_smoother(step, r, N, c, q, NC, CNC, NC - _mix(DCNC.transpose(0, 1), X))
            # L r̄, L N̄ Lᵀ = N̄ − X Z − Zᵀ Xᵀ with Z = D C N̄ − ½ D C N̄ Cᵀ D Xᵀ
            r = _add_vectors(r, X, q, sign=-1.0)
            N = N - _plus_transpose(_outer(X, _mix(D, NC) - 0.5 * _mix(_matmul(DCNC, D), X)))
        return r, N

    def _keep_smoother(
        self, step: int, r: Tensor, N: Tensor, c: Tensor, q: Tensor, NC: Tensor, CNC: Tensor, V: Tensor
    ) -> None:
        """
        :param c: :math:`C \\bar r` (`J x columns`).
        :param q: :math:`D C \\bar r` (`J x columns`).
        :param NC: :math:`C \\bar N` (`J x D x columns`).
        :param CNC: :math:`C \\bar N C^\\top` (`J x J x columns`).
        :param V: :math:`L \\bar N C^\\top`, transposed (`J x D x columns`).
        """
        process, filtered, smoothed = self.process, self.filtered, self.smoothed
        C, X, D, Y = process.loadings(step), filtered.X[step], filtered.D[step], smoothed.Y[step]
        r_plus = smoothed.r_plus[step]
        if step + 1 < process.num_steps:
            N_plus = _move_both(process.blocks(step + 1), smoothed.N[step + 1], transpose=True)
        else:
            N_plus = self.N_behind
        w = _along(X, r_plus)
        self.beta_bar[step] = c
        # D̄ = C N̄ Cᵀ − 2 Yᵀ V − C r̄ (Xᵀ r⁺)ᵀ
        D_bar = CNC - 2 * _inner(Y, V) - c.unsqueeze(1) * w
        self.D_bar[step] = 0.5 * _plus_transpose(D_bar)
        # X̄ = −r⁺ (D C r̄)ᵀ − 2 N⁺ V D
        self.X_bar[step] = -q.unsqueeze(1) * r_plus - 2 * _mix(D, _times(N_plus, V))
        # of the mean r, of the variances C − 2 N X
        mean_bar, variance_bar = self.mean_bar[step].unsqueeze(1), self.variance_bar[step].unsqueeze(1)
        own = _vectors(C) - 2 * _times(smoothed.N[step], X)
        self.X_bar[step] += mean_bar * smoothed.r[step] + variance_bar * own
        if self.loadings is not None:
            # C̄ = (β − D Xᵀ r⁺) r̄ᵀ + 2 D (C − Yᵀ L) N̄
            u = filtered.beta[step] - _apply(D, w)
            YL = Y - _mix(_matmul(_inner(Y, X), D), _vectors(C))
            # of the mean m⁻, of the variances X
            own = mean_bar * filtered.m[step] + variance_bar * X
            self._add_to_loadings(step, own + u.unsqueeze(1) * r + 2 * _mix(D, _times(N, _vectors(C) - YL)))

    def _filter(self, m: Tensor, R: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """
        From the gradients by m and R behind each chunk to those in front of it.

        :param keep: Whether to keep the gradients by everything else.
        """
        process, filtered = self.process, self.filtered
        for step in reversed(range(process.num_steps)):
            blocks, C = process.blocks(step), process.loadings(step)
            X, D, beta = filtered.X[step], filtered.D[step], filtered.beta[step]
            RX = _times(R, X)
            beta_bar = self.beta_bar[step] + _along(X, m)
            D_bar = self.D_bar[step] + _inner(X, RX)
            c = _apply(D, beta_bar)
            # Ḡ = log̅ D − D D̄ D − D β̄ βᵀ, symmetric
            G_bar = self.log_det_bar * D - _matmul(_matmul(D, D_bar), D)
            G_bar = G_bar - 0.5 * _plus_transpose(c.unsqueeze(1) * beta)
            # X̄ + m̄ βᵀ + 2 R̄ X D + Cᵀ Ḡ
            X_bar = self.X_bar[step] + beta.unsqueeze(1) * m + 2 * _mix(D, RX) + _mix(G_bar, _vectors(C))
            P_bar = 0.5 * _plus_transpose(_seen_back(C, X_bar))
            if keep:
                self._keep_filter(step, c, beta_bar, D_bar, G_bar, X_bar)
                self.P_inf += P_bar
            m = _plus(self.m_bar, step, m + _seen_back(C, self.mean_bar[step] - c))
            R = _plus(self.R_bar, step, R - P_bar)
            if keep:
                # m̄⁻ mᵀ + 2 R̄⁻ Φ R, of the point before
                m_before, R_before = self._before(step)
                self._add_to_transitions(step, 2 * R, _move(blocks, R_before))
                self._add_to_transitions(step, m.unsqueeze(1), m_before.unsqueeze(0))
            m, R = _move(blocks, m, transpose=True), _move_both(blocks, R, transpose=True)
        return m, R

    def _keep_filter(self, step: int, c: Tensor, beta_bar: Tensor, D_bar: Tensor, G_bar: Tensor, X_bar: Tensor) -> None:
        process, filtered = self.process, self.filtered
        C, X, D, beta, m = (
            process.loadings(step), filtered.X[step], filtered.D[step], filtered.beta[step], filtered.m[step]
        )  # fmt: skip
        G = _seen_twice(C, X)
        # E = (I + Λ G)⁻¹ = I − D G
        if len(G) == 1:
            E = (1 + process.precision[step] * G).reciprocal()
        else:
            E = torch.eye(len(G), dtype=G.dtype, device=G.device).unsqueeze(-1) - _matmul(D, G)
        h_bar = _apply(E.transpose(0, 1), beta_bar)
        self.h[step] = h_bar
        # λ̄ = −Eᵀβ̄ ∘ (C m⁻ + G β) + diag(Eᵀ D̄ E) + log̅ diag(G E)
        EDE = (E * _matmul(D_bar, E)).sum(0)
        GE = (G.transpose(0, 1) * E).sum(0)
        self.precision[step] = EDE + self.log_det_bar * GE - h_bar * (_see(C, m) + _apply(G, beta))
        if self.loadings is not None:
            # C̄ = −D β̄ m⁻ᵀ + Ḡ Xᵀ + X̄ᵀ P
            PX = _times(process.P_inf - filtered.R[step], X_bar)
            self._add_to_loadings(step, _mix(G_bar, X) + PX - c.unsqueeze(1) * m)

    def _before(self, step: int) -> tuple[Tensor, Tensor]:
        """M and R of the state that a transition starts from."""
        if step == 0:
            layout = self.process.layout
            return layout.columns(self.entered.mean), layout.columns(self.entered.reduction)
        filtered, X = self.filtered, self.filtered.X[step - 1]
        m = _add_vectors(filtered.m[step - 1], X, filtered.beta[step - 1])
        return m, filtered.R[step - 1] + _outer(X, _mix(filtered.D[step - 1], X))

    def _add_to_transitions(self, step: int, left: Tensor, right: Tensor) -> None:
        gradients = _block_gradient(self.process.blocks(step), left, right)
        for total, part in zip(self.transitions, gradients, strict=True):
            total[step] += part

    def _add_to_loadings(self, step: int, gradient: Tensor) -> None:
        """(`J x D x columns`)"""
        assert self.loadings is not None
        if self.loadings.dim() == 2:
            self.loadings += gradient.sum(-1)
        else:
            self.loadings[step] += gradient


class MarkovPosteriorFunction(Function):
    """See :func:`~gpytorch_sgpvae.linalg.markov.markov_posterior`."""

    @staticmethod
    def forward(
        ctx: Any,
        num_chunks: int,
        P_inf: Tensor,
        C: Tensor,
        precision: Tensor,
        h: Tensor,
        start_mean: Tensor,
        start_reduction: Tensor,
        *transitions: Tensor,
    ) -> tuple[Tensor, ...]:
        batch, N = precision.shape[:-2], precision.shape[-2]
        layout = Layout(batch, N, num_chunks)
        size = P_inf.shape[-1]
        by_batch = P_inf.expand(*batch, size, size).reshape(layout.size, size, size)
        process = Process(
            layout,
            [layout.steps(part, 3) for part in transitions],
            layout.columns(by_batch.expand(layout.num_chunks, *by_batch.shape)),
            C if C.dim() == 2 else layout.steps(C, 2),
            layout.steps(precision, 1),
            layout.steps(h, 1),
        )
        start = start_mean.expand(*batch, size).reshape(-1, size), start_reduction.expand(*batch, size, size)
        start = start[0], start[1].reshape(-1, size, size)
        if layout.num_chunks > 1:
            entered = _enter(_through(process), by_batch, start)
            r_behind, N_behind = _behind(entered)
        else:
            nothing = [tensor.unsqueeze(0) for tensor in start]
            # a single chunk hands nothing on: the rest is not looked at
            entered = Entered(nothing[0], nothing[1], nothing[1], nothing[0], nothing[1])
            r_behind, N_behind = (torch.zeros_like(tensor) for tensor in nothing)
        filtered = _filter(process, layout.columns(entered.mean), layout.columns(entered.reduction))
        N_behind = layout.columns(N_behind)
        smoothed = _smooth(process, filtered, layout.columns(r_behind), N_behind)
        log_det = filtered.log_det.view(layout.num_chunks, layout.size).sum(0).view(batch)
        states = filtered.m, filtered.R, smoothed.r, smoothed.N
        outputs = layout.points(smoothed.mean), layout.points(smoothed.variance)
        if any(ctx.needs_input_grad):
            ctx.set_materialize_grads(False)
            # results are saved by torch: held by the context itself, they would hold each other forever
            ctx.save_for_backward(*states)
            gone = log_det.new_empty(0)
            filtered = replace(filtered, m=gone, R=gone)
            smoothed = replace(smoothed, r=gone, N=gone, mean=gone, variance=gone)
            ctx.parts = process, entered, filtered, smoothed, N_behind
            ctx.shapes = [P_inf.shape, C.shape, start_mean.shape, start_reduction.shape]
        return *states, *outputs, log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *bars: Tensor | None) -> tuple[Tensor | None, ...]:
        process, entered, filtered, smoothed, N_behind = ctx.parts
        m, R, r, N = ctx.saved_tensors
        filtered, smoothed = replace(filtered, m=m, R=R), replace(smoothed, r=r, N=N)
        layout = process.layout
        m_bar, R_bar, r_bar, N_bar, mean_bar, variance_bar, log_det_bar = bars
        states = m_bar, _symmetric_steps(R_bar), r_bar, _symmetric_steps(N_bar)
        columns = torch.zeros_like(process.h[0, 0])
        adjoint = _Adjoint(
            process,
            entered,
            filtered,
            smoothed,
            N_behind,
            states,
            torch.zeros_like(process.h) if mean_bar is None else layout.steps(mean_bar, 1),
            torch.zeros_like(process.h) if variance_bar is None else layout.steps(variance_bar, 1),
            columns if log_det_bar is None else log_det_bar.reshape(1, -1).expand(layout.num_chunks, -1).flatten(),
            ctx.needs_input_grad[2],
        )
        start_mean, start_reduction = adjoint.run()
        P_shape, C_shape, mean_shape, reduction_shape = ctx.shapes
        P_inf = layout.chunks(adjoint.P_inf).sum(0).view(*layout.batch, *P_shape[-2:])
        C = adjoint.loadings
        if C is not None and C.dim() == 4:
            C = layout.points(C)
        return (
            None,
            P_inf.sum_to_size(P_shape),
            None if C is None else C.sum_to_size(C_shape),
            layout.points(adjoint.precision),
            layout.points(adjoint.h),
            start_mean.view(*layout.batch, -1).sum_to_size(mean_shape),
            start_reduction.view(*layout.batch, *P_shape[-2:]).sum_to_size(reduction_shape),
            *(layout.points(part) for part in adjoint.transitions),
        )


def _symmetric_steps(steps: Tensor | None) -> Tensor | None:
    """(`steps x D x D x columns`)"""
    return None if steps is None else 0.5 * (steps + steps.transpose(1, 2))
