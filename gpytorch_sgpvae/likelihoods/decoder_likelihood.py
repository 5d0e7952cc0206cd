from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from torch.distributions import Distribution, Normal

from .._compat import add_note
from ..mlp import LinearPlus, PrivateLinear, linear_part
from ..variational.point_marginals import PointMarginals, is_coupled, point_covariances
from .missing import fill_missing
from .observation_models.gaussian_observations import GaussianObservations
from .prediction import Prediction
from .quadrature import gauss_hermite
from .targets import as_rows, check_support


class DecoderLikelihood(Likelihood):
    r"""
    The likelihood of a GP-VAE: a decoder maps the K latent functions to the parameters of P outputs,

    .. math::

        p(\mathbf y_n \mid \mathbf f_n) = \prod_{p=1}^P p \left( y_{np} \mid h_p(\mathbf f_n) \right)

    Missing targets (NaN) have no part in any of its densities. Samples of the latent functions are drawn from the
    marginals :math:`q(\mathbf f_n)`, in training and in eval mode, unless joint ones are asked for; no N x N
    matrix is needed for them.

    :param decoder: A module that maps `... x N x K` to what the observation model takes, usually
        `... x N x P`: an :class:`~gpytorch_sgpvae.MLP`.
    :param observation_model: A :class:`gpytorch.Module` that maps the decoder's values to a
        :class:`torch.distributions.Distribution` with batch shape `... x N x P` and an empty event shape, such as
        :class:`~gpytorch_sgpvae.GaussianObservations`.

    Example:
        >>> import gpytorch, torch
        >>> from gpytorch_sgpvae import MLP, DecoderLikelihood, GaussianObservations
        >>> likelihood = DecoderLikelihood(MLP(3, 5), GaussianObservations(5))
        >>> latents = gpytorch.distributions.MultivariateNormal(torch.zeros(3, 10), torch.eye(10).expand(3, 10, 10))
        >>> q_f = gpytorch.distributions.MultitaskMultivariateNormal.from_batch_mvn(latents)
        >>> likelihood.expected_log_prob(torch.randn(10, 5), q_f).shape
        torch.Size([10])
    """

    def __init__(self, decoder: torch.nn.Module, observation_model: torch.nn.Module):
        super().__init__()
        self.decoder = decoder
        self.observation_model = observation_model

    def forward(self, function_samples: Tensor, *args: Any) -> Distribution:
        r"""
        :param function_samples: Values of the latent functions (`... x N x K`).
        :return: p(y | f), of batch shape `... x N x P`.
        """
        try:
            decoded = self.decoder(function_samples)
        except RuntimeError as error:
            add_note(
                error, f"The decoder was given latent functions of shape {tuple(function_samples.shape)}, (..., N, K)."
            )
            raise
        distribution = self.observation_model(decoded)
        if distribution.event_shape:
            raise ValueError(
                f"{type(self.observation_model).__name__} returned a distribution with event shape "
                f"{tuple(distribution.event_shape)}: expected an empty one, and the batch shape (..., N, P)."
            )
        return distribution

    def expected_log_prob(
        self, observations: Tensor, function_dist: MultivariateNormal, *args: Any, **kwargs: Any
    ) -> Tensor:
        r"""
        :math:`\mathbb E_{q(\mathbf f_n)} \log p(\mathbf y_n^o \mid \mathbf f_n)`, by Monte Carlo with
        :class:`gpytorch.settings.num_likelihood_samples` samples. A decoder that is linear (:class:`torch.nn.Linear`,
        :class:`~gpytorch_sgpvae.PrivateLinear`) needs none: with Gaussian noise the expectation is exact, and where
        each output depends on one value of the decoder alone
        (`is_elementwise` of an :class:`~gpytorch_sgpvae.ObservationModel`) it is Gauss-Hermite quadrature. For a
        :class:`~gpytorch_sgpvae.LinearPlus` with Gaussian noise samples estimate only what its perceptron changes,

        .. math::

            \mathbb E \log p(\mathbf y \mid W \mathbf f + \mathbf b) + \frac 1 S \sum_s \left[
            \log p(\mathbf y \mid W \mathbf f_s + \mathbf b + \mathrm{MLP}(\mathbf f_s))
            - \log p(\mathbf y \mid W \mathbf f_s + \mathbf b) \right]

        :param observations: Targets (`*T x N x P`, or `*T x N` for one output); NaN is missing.
        :param function_dist: q(f).
        :param base_samples: (keyword, optional) Standard normal samples to use (`S x *T x N x K`).
        :return: (`*T x N`)
        """
        linear = linear_part(self.decoder)
        is_gaussian = type(self.observation_model) is GaussianObservations
        if linear is self.decoder and not is_gaussian and getattr(self.observation_model, "is_elementwise", False):
            return self._expected_by_quadrature(observations, function_dist)
        if linear is None or not is_gaussian:
            distribution = self._draw_likelihood_samples(function_dist, *args, **kwargs)
            return self.row_log_probs(observations, distribution).mean(0)
        expected = self._expected_linear_log_prob(observations, function_dist, linear)
        if isinstance(self.decoder, LinearPlus):
            functions = self._draw_functions(function_dist, **kwargs)
            decoded = linear(functions)
            straight, bent = (
                self.row_log_probs(observations, self.observation_model(values))
                for values in (decoded, decoded + self.decoder.perceptron(functions))
            )
            expected = expected + (bent - straight).mean(0)
        return expected

    def _expected_linear_log_prob(
        self, observations: Tensor, function_dist: MultivariateNormal, linear: torch.nn.Linear | PrivateLinear
    ) -> Tensor:
        r""":math:`\mathbb E \log \mathcal N(\mathbf y_n^o \mid W \mathbf f_n + \mathbf b, \sigma^2)` (`*T x N`)."""
        mean, variance = _values(function_dist, linear, ~observations.isnan())  # (*T, N, P)
        distribution = self.observation_model(mean)
        log_probs = self.row_log_probs(observations, distribution.expand((1, *mean.shape))).squeeze(0)
        _, observed = fill_missing(as_rows(observations, torch.Size([1, *mean.shape])))
        return log_probs - 0.5 * torch.where(observed, variance / distribution.variance, 0.0).sum(-1)

    def _expected_by_quadrature(self, observations: Tensor, function_dist: MultivariateNormal) -> Tensor:
        r""":math:`\sum_p \int \mathcal N(h \mid m_{np}, v_{np}) \log p(y_{np} \mid h) \, dh` (`*T x N`)."""
        observation_model: Any = self.observation_model
        rows = as_rows(observations, torch.Size([1, *function_dist.mean.shape[:-1], observation_model.num_outputs]))
        mean, variance = _values(function_dist, linear_part(self.decoder), ~rows.isnan())  # (*T, N, P)
        # the root of a variance of 0 has no gradient
        stddev = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        nodes, weights = gauss_hermite(mean)  # (S,), (S,)
        values = mean + stddev * nodes.view(-1, *[1] * mean.dim())  # (S, *T, N, P)
        return torch.einsum("s,s...->...", weights, self.row_log_probs(rows, observation_model(values)))

    def log_marginal(
        self, observations: Tensor, function_dist: MultivariateNormal, *args: Any, **kwargs: Any
    ) -> Tensor:
        r"""
        :math:`\log \mathbb E_{q(\mathbf f_n)} \, p(\mathbf y_n^o \mid \mathbf f_n)`, all outputs of a row
        together, by Monte Carlo. See :meth:`expected_log_prob` for the parameters.
        """
        distribution = self._draw_likelihood_samples(function_dist, *args, **kwargs)
        log_probs = self.row_log_probs(observations, distribution)  # (S, *T, N)
        return log_probs.logsumexp(0) - math.log(log_probs.shape[0])

    def predict(
        self,
        function_dist: MultivariateNormal,
        num_samples: int = 100,
        base_samples: Tensor | None = None,
        chunk_size: int | None = None,
    ) -> Prediction:
        r"""
        The predictive distribution of the outputs. With a linear decoder and Gaussian noise it is the exact one of
        :meth:`gaussian_marginals`, unless there are base samples.

        :param function_dist: q(f) (event shape `N x K`, or `N` for one latent function).
        :param num_samples: Number of samples S of the latent functions.
        :param base_samples: Standard normal samples to use instead of new ones (`S x *T x N x K`).
        :param chunk_size: Decode this many inputs at a time: the same answer in less memory.
        """
        return Prediction.from_functions(self, function_dist, num_samples, base_samples, chunk_size)

    @property
    def has_gaussian_outputs(self) -> bool:
        """True where the outputs are Gaussian as the latent functions are: with a linear decoder and Gaussian noise."""
        return linear_part(self.decoder) is self.decoder and type(self.observation_model) is GaussianObservations

    def value_marginals(self, function_dist: MultivariateNormal, asked: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""
        Mean and variance of each of the decoder's values, without samples, for a decoder that is linear:

        .. math::

            \mathbb E h_{nj} = \mathbf w_j^\top \mathbb E \mathbf f_n + b_j, \qquad
            \mathrm{var} \, h_{nj} = \mathbf w_j^\top \mathrm{cov}(\mathbf f_n) \, \mathbf w_j

        :param function_dist: q(f) (event shape `N x K`, or `N` for one latent function).
        :param asked: The values that matter (`*T x N x J`, boolean), by default all. Anything finite may be returned
            for the others, which saves time where a strategy can do without them.
        :return: (`*T x N x J` each)
        """
        linear = linear_part(self.decoder)
        if linear is None or linear is not self.decoder:
            raise TypeError(
                "The decoder's values have known moments where it is torch.nn.Linear or PrivateLinear, got "
                f"{type(self.decoder).__name__}: use predict."
            )
        return _values(function_dist, linear, asked)

    def gaussian_marginals(self, function_dist: MultivariateNormal) -> Normal:
        r"""
        The predictive distribution of each output without samples, where it is Gaussian: for a decoder that is linear
        (:class:`torch.nn.Linear`, :class:`~gpytorch_sgpvae.PrivateLinear`) and Gaussian noise,

        .. math::

            p(y_{np}) = \mathcal N \left( y_{np} \mid \mathbf w_p^\top \mathbb E \mathbf f_n + b_p, \;
            \mathbf w_p^\top \mathrm{cov}(\mathbf f_n) \, \mathbf w_p + \sigma_p^2 \right)

        :param function_dist: q(f) (event shape `N x K`, or `N` for one latent function).
        :return: A distribution of batch shape `*T x N x P`.
        """
        if not self.has_gaussian_outputs:
            raise TypeError(
                "Outputs are Gaussian with a linear decoder and GaussianObservations, got "
                f"{type(self.decoder).__name__} with {type(self.observation_model).__name__}: use predict."
            )
        mean, variance = self.value_marginals(function_dist)  # (*T, N, P)
        noise: Any = self.observation_model(mean)
        return Normal(noise.mean, (variance + noise.variance).sqrt(), validate_args=False)

    def row_log_probs(self, observations: Tensor, distribution: Distribution) -> Tensor:
        r"""
        :math:`\log p(\mathbf y_n^o \mid \mathbf f_n)` of the observed entries of each row, together.

        :param observations: Targets (`*T x N x P`, or `*T x N` for one output); NaN is missing.
        :param distribution: p(y | f) at samples of f, which lead (`S x *T x N x P`).
        :return: (`S x *T x N`)
        """
        filled, observed = fill_missing(as_rows(observations, distribution.batch_shape))
        check_support(distribution, filled, observed)
        log_probs = distribution.log_prob(filled)  # (S, *T, N, P)
        return torch.where(observed, log_probs, 0.0).sum(-1)

    def _draw_likelihood_samples(self, function_dist: MultivariateNormal, *args: Any, **kwargs: Any) -> Distribution:
        """p(y | f) at samples of f, which lead (`S x *T x N x P`)."""
        draws = {name: kwargs.pop(name) for name in ("sample_shape", "base_samples", "joint") if name in kwargs}
        return self(self._draw_functions(function_dist, **draws), *args, **kwargs)

    def _draw_functions(
        self,
        function_dist: MultivariateNormal,
        sample_shape: torch.Size | None = None,
        base_samples: Tensor | None = None,
        joint: bool = False,
    ) -> Tensor:
        """Samples of f, which lead (`S x *T x N x K`)."""
        if sample_shape is None:
            sample_shape = torch.Size([settings.num_likelihood_samples.value()])
        if joint:
            samples = function_dist.rsample(sample_shape)
            return samples if isinstance(function_dist, MultitaskMultivariateNormal) else samples.unsqueeze(-1)
        marginals = PointMarginals.of(function_dist)
        if base_samples is None:
            mean = marginals.mean  # (*T, N, K)
            base_samples = torch.randn(*sample_shape, *mean.shape, dtype=mean.dtype, device=mean.device)
        return marginals.draw(base_samples)


def _values(function_dist: MultivariateNormal, linear: Any, asked: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and variance of a linear decoder's values (`*T x N x J` each); see :func:`_project`."""
    mean, variance = _project(function_dist, linear.weight, asked)
    return mean if linear.bias is None else mean + linear.bias, variance


def _project(function_dist: MultivariateNormal, weight: Tensor, asked: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""
    Mean and variance of :math:`W \mathbf f_n` (`*T x N x P` each).

    :param weight: W (`P x K`).
    :param asked: The entries that matter (`*T x N x P`); None for all. Anything finite may be returned for the others.
    """
    # some strategies know those of their own outputs, without the covariance of the latent functions
    projected = getattr(function_dist, "projected", lambda weight, asked: None)(weight, asked)
    if projected is not None:
        return projected
    if not isinstance(function_dist, MultitaskMultivariateNormal) or not is_coupled(function_dist):
        mean, variance = function_dist.mean, function_dist.variance
        if not isinstance(function_dist, MultitaskMultivariateNormal):
            mean, variance = mean.unsqueeze(-1), variance.unsqueeze(-1)
        return mean @ weight.mT, variance @ weight.square().mT
    covariances = point_covariances(function_dist)  # (*T, N, K, K)
    return function_dist.mean @ weight.mT, ((weight @ covariances) * weight).sum(-1)
