"""A linear dynamical system: many sequences, one set of parameters, maximum likelihood."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus


class Filtered(NamedTuple):
    """
    What the images so far say about the state.

    :param mean: (`T x N x S`).
    :param covar: The same for all sequences, as nothing is missing (`N x S x S`).
    :param log_likelihood: The log likelihood of each sequence (`T`).
    """

    mean: Tensor
    covar: Tensor
    log_likelihood: Tensor


class LinearDynamicalSystem(torch.nn.Module):
    r"""
    .. math::

        \mathbf z_1 \sim \mathcal N(\mathbf m, V), \quad
        \mathbf z_{n+1} \sim \mathcal N(A \mathbf z_n, Q), \quad
        \mathbf y_n \sim \mathcal N(C \mathbf z_n + \mathbf d, \mathrm{diag}(\mathbf r))

    A Kalman filter goes through all sequences at once: their covariances are one and the same.

    :param num_states: S.
    :param num_outputs: P.
    """

    def __init__(self, num_states: int, num_outputs: int):
        super().__init__()

        def parameter(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64))

        self.m, self.raw_V = parameter(num_states), parameter(num_states, num_states)
        self.A, self.raw_Q = parameter(num_states, num_states), parameter(num_states, num_states)
        self.C, self.d, self.raw_r = parameter(num_outputs, num_states), parameter(num_outputs), parameter(num_outputs)

    @property
    def V(self) -> Tensor:
        return _square(self.raw_V)

    @property
    def Q(self) -> Tensor:
        return _square(self.raw_Q)

    @property
    def r(self) -> Tensor:
        return softplus(self.raw_r)

    @torch.no_grad()
    def initialize(self, y: Tensor, window: int = 5) -> LinearDynamicalSystem:
        r"""
        Start from the principal components of windows of consecutive images, which show how they move: these are the
        states, and the rest are regressions.

        :param y: (`T x N x P`).
        :param window: Images in a window.
        """
        num_states, num_outputs = self.A.shape[0], y.shape[-1]
        d = y.mean((0, 1))
        windows = (y - d).unfold(1, window, 1).mT.flatten(2)  # (T, N - window + 1, window P), images in their order
        if num_states > windows.shape[-1]:
            raise ValueError(
                f"A window of {window} images of {num_outputs} pixels has {windows.shape[-1]} components, but there "
                f"are {num_states} states: take a longer window, or fewer states."
            )
        components = torch.linalg.svd(windows.flatten(0, 1), full_matrices=False)[2][:num_states]  # (S, window P)
        states = windows @ components.mT  # (T, N', S)
        scale = states.flatten(0, 1).std(0)
        states = states / scale
        before, after = states[:, :-1].flatten(0, 1), states[:, 1:].flatten(0, 1)
        A = torch.linalg.lstsq(before, after).solution.mT
        images = (y - d)[:, : states.shape[1]].flatten(0, 1)
        C = torch.linalg.lstsq(states.flatten(0, 1), images).solution.mT
        self.A.copy_(A)
        self.C.copy_(C)
        self.d.copy_(d)
        self.m.copy_(states[:, 0].mean(0))
        self.raw_V.copy_(_unsquare(_covariance(states[:, 0] - self.m)))
        self.raw_Q.copy_(_unsquare(_covariance(after - before @ A.mT)))
        self.raw_r.copy_(_inverse_softplus((images - states.flatten(0, 1) @ C.mT).square().mean(0) + 1e-4))
        return self

    def filter(self, y: Tensor) -> Filtered:
        """
        The state after each image, given it and those before it.

        :param y: (`T x N x P`), nothing missing.
        """
        if y.isnan().any():
            raise ValueError(f"y has {int(y.isnan().sum())} missing values: fill them in first, the filter takes none.")
        A, C, Q, noise = self.A, self.C, self.Q, self.r.diag_embed()
        identity = torch.eye(len(A), dtype=A.dtype)
        mean, covar = self.m.expand(len(y), -1), self.V
        means, covars, log_likelihood = [], [], y.new_zeros(len(y))
        for image in y.unbind(1):  # (T, P)
            error = image - mean @ C.mT - self.d
            chol = torch.linalg.cholesky(C @ covar @ C.mT + noise)
            white = torch.linalg.solve_triangular(chol, error.mT, upper=False)  # (P, T)
            log_det = 2 * chol.diagonal().log().sum()
            log_likelihood = log_likelihood - 0.5 * (white.square().sum(0) + log_det + len(C) * math.log(2 * math.pi))
            gain = torch.cholesky_solve(C @ covar, chol).mT  # (S, P)
            rest = identity - gain @ C
            mean = mean + error @ gain.mT
            # Joseph's form: it stays symmetric, and positive
            covar = rest @ covar @ rest.mT + gain @ noise @ gain.mT
            means.append(mean)
            covars.append(covar)
            mean, covar = mean @ A.mT, A @ covar @ A.mT + Q
        return Filtered(torch.stack(means, 1), torch.stack(covars), log_likelihood)

    def fit(self, y: Tensor, num_steps: int = 300) -> LinearDynamicalSystem:
        """
        Maximum likelihood, by L-BFGS.

        :param y: (`T x N x P`), nothing missing.
        :param num_steps: The number of steps, at most.
        """
        optimizer = torch.optim.LBFGS(self.parameters(), max_iter=num_steps, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = -self.filter(y).log_likelihood.sum() / y.numel()
            loss.backward()
            return loss

        optimizer.step(closure)
        return self

    @torch.no_grad()
    def predict(self, y: Tensor, num_ahead: int) -> tuple[Tensor, Tensor]:
        """
        The images 1 to `num_ahead` steps after each image, given it and those before it.

        :param y: (`T x N x P`), nothing missing.
        :return: Their means (`T x N x num_ahead x P`) and their variances, noise included (`N x num_ahead x P`).
        """
        mean, covar, _ = self.filter(y)
        means, variances = [], []
        for _ in range(num_ahead):
            mean, covar = mean @ self.A.mT, self.A @ covar @ self.A.mT + self.Q
            means.append(mean @ self.C.mT + self.d)
            variances.append((self.C @ covar @ self.C.mT).diagonal(dim1=-2, dim2=-1) + self.r)
        return torch.stack(means, 2), torch.stack(variances, 1)


def _covariance(rows: Tensor) -> Tensor:
    return rows.mT @ rows / len(rows) + 1e-4 * torch.eye(rows.shape[-1], dtype=rows.dtype)


def _square(raw: Tensor) -> Tensor:
    """A covariance from any matrix: a Cholesky factor whose diagonal is positive, times its transpose."""
    chol = raw.tril(-1) + softplus(raw.diagonal()).diag_embed()
    return chol @ chol.mT


def _unsquare(covar: Tensor) -> Tensor:
    chol = torch.linalg.cholesky(covar)
    return chol.tril(-1) + _inverse_softplus(chol.diagonal()).diag_embed()


def _inverse_softplus(values: Tensor) -> Tensor:
    return values + torch.log(-torch.expm1(-values))
