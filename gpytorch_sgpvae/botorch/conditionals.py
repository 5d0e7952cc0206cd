"""p(y | f) of any likelihood, with its outputs in the last dimension, and draws of it that a sampler steers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, NegativeBinomial, Normal, Poisson, StudentT

from .._compat import GaussianLikelihoodBase
from ..likelihoods import DecoderLikelihood, GaussianObservations, HeteroscedasticGaussianObservations
from ..likelihoods.observation_models import distributions
from ..mlp import linear_part

# torch's own classes, and Pyro's, that know no quantiles, as those that do.
WITH_QUANTILES: dict[type[Distribution], Callable[[Any], Distribution]] = {
    Bernoulli: lambda given: distributions.Bernoulli(logits=given.logits, validate_args=False),
    NegativeBinomial: lambda given: distributions.NegativeBinomial(
        given.total_count, logits=given.logits, validate_args=False
    ),
    Poisson: lambda given: distributions.Poisson(given.rate.log()),
    StudentT: lambda given: distributions.StudentT(given.df, given.loc, given.scale),
}


def has_linear_mean(likelihood: Likelihood) -> bool:
    """Return whether E[y | f] is linear in f, so that it has a Gaussian distribution where f has."""
    if isinstance(likelihood, DecoderLikelihood):
        is_gaussian = type(likelihood.observation_model) is GaussianObservations
        return is_gaussian and linear_part(likelihood.decoder) is likelihood.decoder
    return isinstance(likelihood, GaussianLikelihoodBase)


def is_gaussian(likelihood: Likelihood) -> bool:
    """Return whether the outputs are Gaussian given the latent functions, whatever the decoder."""
    if isinstance(likelihood, DecoderLikelihood):
        models = GaussianObservations, HeteroscedasticGaussianObservations
        return isinstance(likelihood.observation_model, models)
    return isinstance(likelihood, GaussianLikelihoodBase)


class Conditional:
    r"""
    :math:`p(y_{np} \mid \mathbf f_n)` at values of the latent functions, of any likelihood.

    :param likelihood: The likelihood.
    :param functions: (`... x N x K`).
    :param q_f: The posterior that the values are of: GPyTorch's likelihoods of a single function take it without a
        dimension K.
    """

    def __init__(self, likelihood: Likelihood, functions: Tensor, q_f: MultivariateNormal):
        own = isinstance(likelihood, DecoderLikelihood)
        self._has_outputs = own or isinstance(q_f, MultitaskMultivariateNormal)
        distribution: Any = likelihood(functions if self._has_outputs else functions.squeeze(-1))
        if isinstance(distribution, torch.distributions.Independent):
            distribution = distribution.base_dist
        self.distribution: Distribution = distribution
        if distribution.event_shape:
            raise TypeError(
                f"{type(likelihood).__name__} returned {type(distribution).__name__} with event shape "
                f"{tuple(distribution.event_shape)}: BoTorch's posteriors need each output to be a number by itself."
            )

    @property
    def mean(self) -> Tensor:
        """(`... x N x P`)"""
        mean = self._columns(self.distribution.mean)
        if not bool(torch.isfinite(mean.detach()).all()):
            raise TypeError(
                f"{type(self.distribution).__name__} has no finite mean here, and BoTorch's posteriors are about "
                "means: use another likelihood."
            )
        return mean

    @property
    def variance(self) -> Tensor:
        """(`... x N x P`)"""
        return self._columns(self.distribution.variance)

    def draw(self, noise: Tensor) -> Tensor:
        r"""
        A value of each output, by its quantile function, with the gradient of its mean (of Gaussians, its own):

        .. math::

            y = F^{-1}(\Phi(\epsilon)), \qquad \frac{\partial y}{\partial \mathbf f} := \frac{\partial \,
            \mathbb E[y \mid \mathbf f]}{\partial \mathbf f}

        A count or a flag has no gradient itself. The expectation of anything that is linear in y has this one.

        :param noise: Standard normal (`... x N x P`).
        """
        distribution = self.distribution
        if isinstance(distribution, Normal):
            return self.mean + self._columns(distribution.stddev) * noise
        if type(distribution).icdf is Distribution.icdf:
            for known, with_quantiles in WITH_QUANTILES.items():
                if isinstance(distribution, known):
                    distribution = with_quantiles(distribution)
        eps = torch.finfo(noise.dtype).eps
        levels = torch.special.ndtr(noise).clamp(eps, 1 - eps)
        with torch.no_grad():
            try:
                values = self._columns(distribution.icdf(levels if self._has_outputs else levels.squeeze(-1)))
            except NotImplementedError:
                raise NotImplementedError(
                    f"{type(distribution).__name__} has no quantile function (icdf), which outputs are drawn by: write "
                    "an ObservationModel whose distribution has one."
                ) from None
        mean = self.mean
        return values + (mean - mean.detach())

    def _columns(self, values: Tensor) -> Tensor:
        return values if self._has_outputs else values.unsqueeze(-1)
