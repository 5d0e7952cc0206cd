from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, DiagLinearOperator
from torch import Tensor

from ..linalg.chain import MarkovStates
from ..linalg.markov import seen, seen_mean
from .posterior_covariance import LazyJointCovariance, LazyMatrix, check_rows

# Numbers in the states' covariances that are computed at a time.
MOST_NUMBERS = 2**20


class Process(NamedTuple):
    """
    Latent functions as one Markov process, or each as one of its own, and the states at N inputs. Leading dimensions
    are `*T x K_g` in the second case, with K = 1, and `*T` in the first.

    :param stationary_covariance: (`... x D x D`).
    :param observation: H (`... x K x D`).
    :param states: The states at all inputs, this many of them at a time (`... x N x D`).
    :param moments: The mean and the variance of latent functions that have a process each, where these are known
        already (`... x N x 1` each).
    """

    stationary_covariance: Tensor
    observation: Tensor
    states: Callable[[int], Iterable[MarkovStates]]
    moments: tuple[Tensor, Tensor] | None = None


class MarkovView:
    r"""
    The latent functions at some inputs, seen as observations :math:`\mathbf f = H \mathbf s` of states:

    .. math::

        \mathbb E \mathbf f_n = \boldsymbol \mu_n + H (\mathbf m_n^- + P_n \mathbf r_n), \qquad
        \mathrm{cov}(\mathbf f_n) = H (P_n - P_n N_n P_n) H^\top

    :param prior_mean: :math:`\boldsymbol \mu` (`*T x K x N`, or `*T x N` without a latent dimension).
    :param tasks: The batch shape `*T` of the result.
    :param processes: One for all latent functions, or one for each group of them.
    :param is_coupled: Whether it is one for all.
    :param has_latents: Whether there is a latent dimension.
    :param arranged: Puts values in the order of the states (`... x N x event`, and the number of the event's
        dimensions) into that of the inputs.
    :param joint_covariances: The covariance of all inputs together for each process (`... x (N K) x (N K)`).
    """

    def __init__(
        self,
        prior_mean: Tensor,
        tasks: torch.Size,
        processes: list[Process],
        is_coupled: bool,
        has_latents: bool,
        arranged: Callable[[Tensor, int], Tensor],
        joint_covariances: Callable[[], list[Tensor]],
    ):
        self.prior_mean, self.tasks, self.processes = prior_mean, tasks, processes
        self.is_coupled, self.has_latents = is_coupled, has_latents
        self.arranged, self.joint_covariances = arranged, joint_covariances

    def distribution(self, diag: bool) -> MultivariateNormal:
        """
        q(f) at the inputs (`*T` x N x K, or `*T` x N).

        :param diag: Whether the covariance of each input by itself will do.
        """
        return self._coupled(diag) if self.is_coupled else self._separate(diag)

    def _coupled(self, diag: bool) -> MultivariateNormal:
        (process,) = self.processes
        dtype = self.prior_mean.dtype

        def means(states: MarkovStates) -> Tensor:
            return seen_mean(states, process.stationary_covariance, process.observation)

        def covariances(states: MarkovStates) -> Tensor:
            return seen(states, process.stationary_covariance, process.observation, diag=False)[1]

        mean = (self.prior_mean.mT + self._in_blocks(process, means, 1)).to(dtype)  # (*T, N, K)
        shape = torch.Size([*mean.shape, mean.shape[-1]])
        blocks = LazyMatrix(mean, shape, lambda: self._in_blocks(process, covariances, 2).to(dtype))
        if diag:
            return MultitaskMultivariateNormal(mean, BlockDiagLinearOperator(blocks))
        size = mean.shape[-2] * mean.shape[-1]
        whole = LazyMatrix(mean, torch.Size([*mean.shape[:-2], size, size]), partial(self._joint_covariance, dtype))
        return MultitaskMultivariateNormal(mean, LazyJointCovariance(blocks, whole))

    def _separate(self, diag: bool) -> MultivariateNormal:
        dtype, parts = self.prior_mean.dtype, [self._moments(process) for process in self.processes]
        moments = torch.cat(parts, dim=-3) if self.has_latents else parts[0]  # (*T, K, N, 2)
        mean = (self.prior_mean + moments[..., 0]).to(dtype)
        # known better than in the model's dtype, in which GPyTorch takes anything below this for a failure
        variance = moments[..., 1].to(dtype).clamp_min(settings.min_variance.value(dtype))
        if diag:
            covar = DiagLinearOperator(variance)
        else:
            shape = torch.Size([*variance.shape, variance.shape[-1]])
            covar = LazyMatrix(mean, shape, partial(self._joint_covariance, dtype), diagonal=variance)
        q_f = MultivariateNormal(mean, covar)
        return MultitaskMultivariateNormal.from_batch_mvn(q_f) if self.has_latents else q_f

    def _moments(self, process: Process) -> Tensor:
        """Mean and variance of each latent function (`... x N x 2`)."""

        def function(states: MarkovStates) -> Tensor:
            H = process.observation.unsqueeze(-3)
            return torch.cat(seen(states, process.stationary_covariance, H, diag=True), dim=-1)

        if process.moments is not None:
            return self.arranged(torch.cat(process.moments, dim=-1), 1)
        return self._in_blocks(process, function, 1)

    def _joint_covariance(self, dtype: torch.dtype) -> Tensor:
        check_rows(self.prior_mean.shape[-1] * (self.prior_mean.shape[-2] if self.is_coupled else 1))
        parts = self.joint_covariances()
        return (torch.cat(parts, dim=-3) if not self.is_coupled and self.has_latents else parts[0]).to(dtype)

    def _in_blocks(self, process: Process, function: Callable[[MarkovStates], Tensor], event: int) -> Tensor:
        """A function of states (`... x N x event`) at all inputs, of some of them at a time, in the inputs' order."""
        width = process.stationary_covariance.numel() * self.tasks.numel()
        at_a_time = max(1, MOST_NUMBERS // max(1, width))
        values = torch.cat([function(states) for states in process.states(at_a_time)], dim=-1 - event)
        return self.arranged(values, event)
