"""
The posterior of a Markov process as a function of torch's, with its gradient by hand: recursions of the same kind as
those of :mod:`~gpytorch_sgpvae.linalg.recursions`, in the other direction of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .autograd import HandwrittenFunction
from .columns import (
    add_vectors,
    along,
    apply,
    as_vectors,
    diagonal_blocks,
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
from .recursions import (
    Entered,
    Filtered,
    Process,
    Smoothed,
    behind,
    enter,
    filter_forward,
    smooth_backward,
)


class Adjoint:
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
                out_R[c - 1] = in_R[c] + M[c].mT @ out_R[c] @ M[c] - symmetric(outer)
            m, R = layout.columns(out_m), layout.columns(out_R)
        m, R = (layout.chunks(part)[0] for part in self._filter(m, R, keep=True))
        return m, R

    def _smoother(self, r: Tensor, N: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """
        Take the gradients by :math:`r^+` and :math:`N^+` from in front of each chunk to behind it.

        :param keep: Whether to keep the gradients by everything else.
        """
        process, filtered, smoothed = self.process, self.filtered, self.smoothed
        for step in range(process.num_steps):
            blocks, C = process.blocks(step), process.loadings(step)
            X, D = filtered.X[step], filtered.D[step]
            moved = move(blocks, N)
            if keep:
                # r r̄⁺ᵀ + 2 N Φ N̄⁺
                self._add_to_transitions(step, 2 * smoothed.N[step], moved)
                self._add_to_transitions(step, smoothed.r[step].unsqueeze(1), r.unsqueeze(0))
            # of the mean X, of the variances −X Xᵀ
            r = add_vectors(_plus(self.r_bar, step, move(blocks, r)), X, self.mean_bar[step])
            N = _plus(self.N_bar, step, move(blocks, moved.transpose(0, 1).contiguous()))
            N = N - outer_sum(X, self.variance_bar[step].unsqueeze(1) * X)
            c, NC = see(C, r), see(C, N)  # C r̄, C N̄
            q, CNC = apply(D, c), see_twice(C, NC)
            DCNC = multiply(D, CNC)
            if keep:
                self._keep_smoother(step, r, N, c, q, NC, CNC, NC - mix(DCNC.transpose(0, 1), X))
            # L r̄, L N̄ Lᵀ = N̄ − X Z − Zᵀ Xᵀ with Z = D C N̄ − ½ D C N̄ Cᵀ D Xᵀ
            r = add_vectors(r, X, q, sign=-1.0)
            N = N - plus_transpose(outer_sum(X, mix(D, NC) - 0.5 * mix(multiply(DCNC, D), X)))
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
            N_plus = move_both(process.blocks(step + 1), smoothed.N[step + 1], transpose=True)
        else:
            N_plus = self.N_behind
        w = along(X, r_plus)
        self.beta_bar[step] = c
        # D̄ = C N̄ Cᵀ − 2 Yᵀ V − C r̄ (Xᵀ r⁺)ᵀ
        D_bar = CNC - 2 * inner_products(Y, V) - c.unsqueeze(1) * w
        self.D_bar[step] = 0.5 * plus_transpose(D_bar)
        # X̄ = −r⁺ (D C r̄)ᵀ − 2 N⁺ V D
        self.X_bar[step] = -q.unsqueeze(1) * r_plus - 2 * mix(D, times_vectors(N_plus, V))
        # of the mean r, of the variances C − 2 N X
        mean_bar, variance_bar = self.mean_bar[step].unsqueeze(1), self.variance_bar[step].unsqueeze(1)
        own = as_vectors(C) - 2 * times_vectors(smoothed.N[step], X)
        self.X_bar[step] += mean_bar * smoothed.r[step] + variance_bar * own
        if self.loadings is not None:
            # C̄ = (β − D Xᵀ r⁺) r̄ᵀ + 2 D (C − Yᵀ L) N̄
            u = filtered.beta[step] - apply(D, w)
            YL = Y - mix(multiply(inner_products(Y, X), D), as_vectors(C))
            # of the mean m⁻, of the variances X
            own = mean_bar * filtered.m[step] + variance_bar * X
            self._add_to_loadings(step, own + u.unsqueeze(1) * r + 2 * mix(D, times_vectors(N, as_vectors(C) - YL)))

    def _filter(self, m: Tensor, R: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """
        Take the gradients by m and R from behind each chunk to in front of it.

        :param keep: Whether to keep the gradients by everything else.
        """
        process, filtered = self.process, self.filtered
        for step in reversed(range(process.num_steps)):
            blocks, C = process.blocks(step), process.loadings(step)
            X, D, beta = filtered.X[step], filtered.D[step], filtered.beta[step]
            RX = times_vectors(R, X)
            beta_bar = self.beta_bar[step] + along(X, m)
            D_bar = self.D_bar[step] + inner_products(X, RX)
            c = apply(D, beta_bar)
            # Ḡ = log̅ D − D D̄ D − D β̄ βᵀ, symmetric
            G_bar = self.log_det_bar * D - multiply(multiply(D, D_bar), D)
            G_bar = G_bar - 0.5 * plus_transpose(c.unsqueeze(1) * beta)
            # X̄ + m̄ βᵀ + 2 R̄ X D + Cᵀ Ḡ
            X_bar = self.X_bar[step] + beta.unsqueeze(1) * m + 2 * mix(D, RX) + mix(G_bar, as_vectors(C))
            P_bar = 0.5 * plus_transpose(see_back(C, X_bar))
            if keep:
                self._keep_filter(step, c, beta_bar, D_bar, G_bar, X_bar)
                self.P_inf += P_bar
            m = _plus(self.m_bar, step, m + see_back(C, self.mean_bar[step] - c))
            R = _plus(self.R_bar, step, R - P_bar)
            if keep:
                # m̄⁻ mᵀ + 2 R̄⁻ Φ R, of the point before
                m_before, R_before = self._before(step)
                self._add_to_transitions(step, 2 * R, move(blocks, R_before))
                self._add_to_transitions(step, m.unsqueeze(1), m_before.unsqueeze(0))
            m, R = move(blocks, m, transpose=True), move_both(blocks, R, transpose=True)
        return m, R

    def _keep_filter(self, step: int, c: Tensor, beta_bar: Tensor, D_bar: Tensor, G_bar: Tensor, X_bar: Tensor) -> None:
        process, filtered = self.process, self.filtered
        C, X, D, beta, m = (
            process.loadings(step), filtered.X[step], filtered.D[step], filtered.beta[step], filtered.m[step]
        )  # fmt: skip
        G = see_twice(C, X)
        # E = (I + Λ G)⁻¹ = I − D G
        if len(G) == 1:
            E = (1 + process.precision[step] * G).reciprocal()
        else:
            E = torch.eye(len(G), dtype=G.dtype, device=G.device).unsqueeze(-1) - multiply(D, G)
        h_bar = apply(E.transpose(0, 1), beta_bar)
        self.h[step] = h_bar
        # λ̄ = −Eᵀβ̄ ∘ (C m⁻ + G β) + diag(Eᵀ D̄ E) + log̅ diag(G E)
        EDE = (E * multiply(D_bar, E)).sum(0)
        GE = (G.transpose(0, 1) * E).sum(0)
        self.precision[step] = EDE + self.log_det_bar * GE - h_bar * (see(C, m) + apply(G, beta))
        if self.loadings is not None:
            # C̄ = −D β̄ m⁻ᵀ + Ḡ Xᵀ + X̄ᵀ P
            PX = times_vectors(process.P_inf - filtered.R[step], X_bar)
            self._add_to_loadings(step, mix(G_bar, X) + PX - c.unsqueeze(1) * m)

    def _before(self, step: int) -> tuple[Tensor, Tensor]:
        """M and R of the state that a transition starts from."""
        if step == 0:
            layout = self.process.layout
            return layout.columns(self.entered.mean), layout.columns(self.entered.reduction)
        filtered, X = self.filtered, self.filtered.X[step - 1]
        m = add_vectors(filtered.m[step - 1], X, filtered.beta[step - 1])
        return m, filtered.R[step - 1] + outer_sum(X, mix(filtered.D[step - 1], X))

    def _add_to_transitions(self, step: int, left: Tensor, right: Tensor) -> None:
        gradients = diagonal_blocks(self.process.blocks(step), left, right)
        for total, part in zip(self.transitions, gradients, strict=True):
            total[step] += part

    def _add_to_loadings(self, step: int, gradient: Tensor) -> None:
        """(`J x D x columns`)"""
        assert self.loadings is not None
        if self.loadings.dim() == 2:
            self.loadings += gradient.sum(-1)
        else:
            self.loadings[step] += gradient


class MarkovPosteriorFunction(HandwrittenFunction):
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
        process = Process.of_points(num_chunks, transitions, P_inf, C, precision, h)
        layout, size = process.layout, P_inf.shape[-1]
        entered = enter(process, (start_mean.reshape(-1, size), start_reduction.reshape(-1, size, size)))
        r_behind, N_behind = behind(entered)
        filtered = filter_forward(process, layout.columns(entered.mean), layout.columns(entered.reduction))
        N_behind = layout.columns(N_behind)
        smoothed = smooth_backward(process, filtered, layout.columns(r_behind), N_behind)
        log_det = filtered.log_det.view(layout.num_chunks, layout.size).sum(0).view(layout.batch)
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
        adjoint = Adjoint(
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


def _plus(steps: Tensor | None, step: int, other: Tensor) -> Tensor:
    return other if steps is None else other + steps[step]
