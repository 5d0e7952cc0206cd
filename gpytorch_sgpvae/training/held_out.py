"""Scores of entries that a model was not shown."""

from __future__ import annotations

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.models import ApproximateGP
from torch import Tensor
from torch.distributions import Normal

from .. import metrics
from ..context import Context
from ..likelihoods import DecoderLikelihood, Prediction
from ..variational import condition

SCORES = ("mae", "nll", "coverage")


def predict_hidden(
    model: ApproximateGP,
    likelihood: Likelihood,
    x: Tensor,
    seen: Context,
    base_samples: Tensor,
    chunk_size: int | None = None,
) -> Prediction | None:
    """
    The predictive distribution of the outputs at x given what is seen of them, or None where the likelihood has none
    that could be scored.

    :param base_samples: Standard normal samples (`S x *T x N x K`).
    """
    posterior = condition(model, seen, chunk_size, strict=False)
    if isinstance(likelihood, DecoderLikelihood):
        given = None if likelihood.has_gaussian_outputs else base_samples
        return Prediction.from_posterior(likelihood, posterior, x, base_samples=given, chunk_size=chunk_size)
    with gpytorch.settings.observation_nan_policy("fill"):
        marginal = likelihood(posterior(x))
    if not isinstance(marginal, MultivariateNormal):
        return None
    mean, stddev = marginal.mean, marginal.stddev
    if not isinstance(marginal, MultitaskMultivariateNormal):
        mean, stddev = mean.unsqueeze(-1), stddev.unsqueeze(-1)  # (*T, N, 1)
    return Prediction.gaussian(mean, stddev)


def score_sums(prediction: Prediction, truth: Tensor) -> Tensor:
    """
    The sums of all :data:`SCORES` over the values that are there, and their number: what adds up over batches and
    processes.

    :param truth: NaN where nothing is scored (`*T x N x P`).
    """
    counts = (~truth.isnan()).sum(tuple(range(truth.dim() - 1)))  # (P,)
    # a Gaussian with the moments of a flag or a count says little of it
    nll = metrics.nll(prediction, truth, mixture=not issubclass(prediction.family, Normal))
    scores = torch.stack([metrics.mae(prediction, truth), nll, metrics.coverage(prediction, truth)])  # (scores, P)
    sums = torch.where(counts > 0, scores * counts, 0.0).sum(-1)
    return torch.cat([sums, counts.sum().to(sums.dtype).unsqueeze(0)])
