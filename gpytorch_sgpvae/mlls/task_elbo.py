from __future__ import annotations

from functools import partial
from typing import Any

import torch
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.mlls import MarginalLogLikelihood
from gpytorch.models import ApproximateGP
from torch import Tensor

from ..context import Context
from ..linalg.recompute import recomputed
from ..variational.posterior import amortized_strategy


class TaskELBO(MarginalLogLikelihood):
    r"""
    The evidence lower bound of each task, in nats and divided by nothing (`Ashman et al. (2020)`_):

    .. math::

        \mathcal L^{(t)} = \sum_{n=1}^{N_t} \mathbb E_{q(\mathbf f_n)} \log p(\mathbf y_n^o \mid \mathbf f_n)
        - \beta \; \mathrm{KL} \left[ q^{(t)}(\mathbf u) \Vert p(\mathbf u) \right]
        + \frac 1 T \log p(\theta)

    :class:`gpytorch.mlls.VariationalELBO` divides by the number of points, padded ones included, and its `num_data`
    belongs to a single data set; here padding changes nothing, and tasks of all sizes count in full.

    :param likelihood: The likelihood.
    :param model: The approximate GP.
    :param beta: Factor of the KL divergence.
    :param num_tasks: Number of tasks T in the whole training set: log hyperpriors and added losses enter each task's
        entry as a T-th part, so that the sum over all tasks holds them once.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE, Context, TaskELBO
        >>> sgpvae = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.rand(8, 2))
        >>> context = Context(torch.rand(20, 2), torch.randn(7, 20, 5))
        >>> elbo = TaskELBO(sgpvae.likelihood, sgpvae.model, num_tasks=7)
        >>> elbo(sgpvae.model(context.x, context=context), context.y).shape
        torch.Size([7])

    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """

    def __init__(self, likelihood: Likelihood, model: ApproximateGP, beta: float = 1.0, num_tasks: int | Tensor = 1):
        super().__init__(likelihood, model)
        if not isinstance(num_tasks, Tensor) and num_tasks < 1:
            raise ValueError(f"num_tasks must be at least 1, got {num_tasks}.")
        self.beta = beta
        self.num_tasks = num_tasks

    def forward(self, variational_dist_f: MultivariateNormal, target: Tensor, **kwargs: Any) -> Tensor:
        r"""
        :param variational_dist_f: q(f), the output of the model.
        :param target: The outputs (`*T x N x P`); NaN is missing.
        :param kwargs: Passed to the likelihood's `expected_log_prob`.
        :return: (`*T`)
        """
        return self._add_global_terms(self._expected_log_prob(variational_dist_f, target, **kwargs))

    def of_context(
        self, context: Context, seen: Context | None = None, chunk_size: int | None = None, **kwargs: Any
    ) -> Tensor:
        r"""
        The bound of the model's own q(f) at a context's inputs.

        :param context: The tasks.
        :param seen: The context that the model is conditioned on, if not the context itself.
        :param chunk_size: Compute for this many points at a time, and each chunk again in the backward pass: the same
            bound and gradients in the memory of one chunk, for about twice the time.
        :param kwargs: Passed to the likelihood's `expected_log_prob`, `base_samples` (`S x *T x N x K`) among them.
        :return: (`*T`)
        """
        seen = context if seen is None else seen
        if chunk_size is not None:
            return self._of_chunks(context, seen, chunk_size, **kwargs)
        return self(self.model(context.x, context=seen), context.y, **kwargs)

    def _of_chunks(
        self, context: Context, seen: Context, chunk_size: int, base_samples: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        encoding = amortized_strategy(self.model).encode(seen, chunk_size=chunk_size)
        num_samples = settings.num_likelihood_samples.value()
        nan_policy = settings.observation_nan_policy.value()

        def expected_log_prob(chunk: Context, keywords: dict[str, Any]) -> tuple[Tensor]:
            # as now, also where the backward pass runs outside of the caller's settings
            with settings.num_likelihood_samples(num_samples), settings.observation_nan_policy(nan_policy):
                return (self._expected_log_prob(self.model(chunk.x, context=encoding), chunk.y, **keywords),)

        parts: list[Tensor] = []
        for i, chunk in enumerate(context.split(chunk_size)):
            keywords = dict(kwargs)
            if base_samples is not None:
                keywords["base_samples"] = base_samples.narrow(-2, i * chunk_size, chunk.num_points)
            parts += recomputed(partial(expected_log_prob, chunk, keywords))
        return self._add_global_terms(torch.stack(parts).sum(0))

    def _expected_log_prob(self, variational_dist_f: MultivariateNormal, target: Tensor, **kwargs: Any) -> Tensor:
        """Sum the expectations of all points (`*T`)."""
        mean, num_points = variational_dist_f.mean, variational_dist_f.event_shape[0]
        if len(variational_dist_f.event_shape) == 1 and target.dim() == mean.dim() + 1 and target.shape[-1] == 1:
            # One output as a column: GPyTorch's likelihoods would broadcast it against q(f) to N x N.
            target = target.squeeze(-1)
        log_probs = self.likelihood.expected_log_prob(target, variational_dist_f, **kwargs)  # (*T, N)
        if log_probs.dim() != len(variational_dist_f.batch_shape) + 1 or log_probs.shape[-1] != num_points:
            raise ValueError(
                f"{type(self.likelihood).__name__} made log probabilities of shape {tuple(log_probs.shape)} of a "
                f"target of shape {tuple(target.shape)} and q(f) of shape {tuple(mean.shape)}: expected "
                f"{(*variational_dist_f.batch_shape, num_points)}, one per point. A likelihood for one output needs a "
                "model with num_latents=None."
            )
        return log_probs.sum(-1)

    def _add_global_terms(self, expected_log_prob: Tensor) -> Tensor:
        """Add the terms that are no sums over points (`*T`)."""
        elbo = expected_log_prob - self.beta * self.model.variational_strategy.kl_divergence()
        for added_loss_term in self.model.added_loss_terms():
            elbo = elbo - added_loss_term.loss() / self.num_tasks
        for _, module, prior, closure, _ in self.named_priors():
            elbo = elbo + prior.log_prob(closure(module)).sum() / self.num_tasks
        return elbo
