"""What a script hands back: how training went, and how well it does on what was held out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """
    :param losses: The loss of each step, as the script has it: for GPyTorch's objectives minus the bound per point.
    :param scores: By name, of points that were held out; the first is the one that is compared.
    """

    losses: Sequence[float]
    scores: dict[str, float]

    @property
    def loss(self) -> float:
        """The mean loss of the last tenth of the steps."""
        last = self.losses[-max(len(self.losses) // 10, 1) :]
        return sum(last) / len(last)


def score_numbers(losses: Sequence[float], predicted: MultivariateNormal, y: Tensor) -> Outcome:
    """
    Score Gaussian predictions.

    :param predicted: The distribution of y (`N`, or `N x P`); a further leading dimension is a mixture of equal parts.
    """
    mean, stddev = predicted.mean, predicted.stddev
    log_prob = torch.distributions.Normal(mean, stddev).log_prob(y)
    if mean.dim() > y.dim():
        log_prob, mean = log_prob.logsumexp(0) - math.log(len(mean)), mean.mean(0)
    return score_means(losses, mean, log_prob, y)


def score_means(losses: Sequence[float], mean: Tensor, log_prob: Tensor, y: Tensor) -> Outcome:
    """Score predictions by their means and by the logarithm of what they say of y."""
    rmse = (mean - y).square().mean().sqrt()
    return Outcome(losses, {"RMSE": rmse.item(), "NLL": -log_prob.mean().item()})


def score_labels(losses: Sequence[float], probability: Tensor, y: Tensor) -> Outcome:
    """Score probabilities of the label 1."""
    wrong = ((probability > 0.5) != (y > 0.5)).double().mean()
    log_prob = torch.distributions.Bernoulli(probs=probability.clamp(1e-6, 1 - 1e-6)).log_prob(y)
    return Outcome(losses, {"wrong labels": wrong.item(), "NLL": -log_prob.mean().item()})


def score_kinds(losses: Sequence[float], latents: Tensor, kinds: Tensor) -> Outcome:
    """Score positions (`N x Q`) by whether a point's nearest neighbor is of its kind."""
    nearest = torch.cdist(latents, latents).fill_diagonal_(torch.inf).argmin(-1)
    wrong = (kinds[nearest] != kinds).double().mean()
    return Outcome(losses, {"wrong neighbors": wrong.item()})
