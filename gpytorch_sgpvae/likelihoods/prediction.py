from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from .targets import as_rows, fill_missing


class Prediction:
    r"""
    The predictive distribution of the outputs at each input: an equal mixture over S samples of the latent functions,

    .. math::

        p(y_{np}) = \frac 1 S \sum_{s=1}^S p \left( y_{np} \mid \mathbf f_n^{(s)} \right), \qquad
        \mathbf f_n^{(s)} \sim q(\mathbf f_n)

    :param likelihood: Maps latent function values (`... x N x K`) to p(y | f), of batch shape `... x N x P`.
    :param function_mean: Mean of q(f) (`*T x N x K`).
    :param function_stddev: Standard deviation of q(f) (`*T x N x K`).
    :param num_samples: Number of samples S.
    :param base_samples: Standard normal samples to use instead of new ones (`S x *T x N x K`).

    :ivar ~torch.distributions.Distribution components: The mixture's components, of batch shape `S x *T x N x P`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE
        >>> model = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.rand(8, 2))
        >>> prediction = model.predict(torch.rand(4, 2), context=(torch.rand(20, 2), torch.randn(20, 5)))
        >>> prediction.mean.shape, prediction.quantile(torch.tensor([0.05, 0.95])).shape
        (torch.Size([4, 5]), torch.Size([2, 4, 5]))
    """

    def __init__(
        self,
        likelihood: Callable[[Tensor], Distribution],
        function_mean: Tensor,
        function_stddev: Tensor,
        num_samples: int,
        base_samples: Tensor | None = None,
    ):
        if base_samples is None:
            if num_samples < 1:
                raise ValueError(f"num_samples must be at least 1, got {num_samples}.")
            shape = (num_samples, *function_mean.shape)
            base_samples = torch.randn(shape, dtype=function_mean.dtype, device=function_mean.device)
        self.likelihood = likelihood
        self.function_mean = function_mean
        self.function_stddev = function_stddev
        self.components = likelihood(function_mean + function_stddev * base_samples)

    @property
    def mean(self) -> Tensor:
        """(`*T x N x P`)"""
        return self.components.mean.mean(0)

    @property
    def variance(self) -> Tensor:
        """The components' mean variance plus the variance of their means (`*T x N x P`)."""
        return self.components.variance.mean(0) + self.components.mean.var(0, correction=0)

    @property
    def stddev(self) -> Tensor:
        """(`*T x N x P`)"""
        return self.variance.sqrt()

    def quantile(self, p: float | Tensor) -> Tensor:
        r"""
        Quantiles of the mixture, by bisection of its distribution function.

        :param p: A probability, or a vector of Q of them.
        :return: (`*T x N x P`, or `Q x *T x N x P`)
        """
        p = torch.as_tensor(p, dtype=self.function_mean.dtype, device=self.function_mean.device)
        if p.dim() > 1 or not bool(((p > 0) & (p < 1)).all()):
            raise ValueError(f"Expected a probability, or a vector of them, strictly between 0 and 1, got {p}.")
        return torch.stack([self._quantile(level) for level in p]) if p.dim() else self._quantile(p)

    def sample(self, n: int) -> Tensor:
        """Draw n values at each input, independent from input to input (`n x *T x N x P`)."""
        with torch.no_grad():
            shape = (n, *self.function_mean.shape)
            noise = torch.randn(shape, dtype=self.function_mean.dtype, device=self.function_mean.device)
            return self.likelihood(self.function_mean + self.function_stddev * noise).sample()

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of the mixture, for each output on its own (`*T x N x P`); NaN where y is NaN."""
        filled, observed = fill_missing(as_rows(y, self.components.batch_shape))
        log_probs = self.components.log_prob(filled)  # (S, *T, N, P)
        return torch.where(observed, log_probs.logsumexp(0) - math.log(log_probs.shape[0]), torch.nan)

    def gaussian_log_prob(self, y: Tensor) -> Tensor:
        """Log density of the Gaussian with the mixture's mean and variance (`*T x N x P`); NaN where y is NaN."""
        filled, observed = fill_missing(as_rows(y, self.components.batch_shape))
        return torch.where(observed, Normal(self.mean, self.stddev).log_prob(filled), torch.nan)

    def _quantile(self, p: Tensor) -> Tensor:
        # The mixture's quantile lies between those of its components.
        bounds = self.components.icdf(p)  # (S, *T, N, P)
        lower, upper = bounds.amin(0), bounds.amax(0)
        # each step gains one bit: as many as the mantissa holds
        for _ in range(53 if p.dtype == torch.float64 else 24):
            middle = 0.5 * (lower + upper)
            below = self.components.cdf(middle).mean(0) < p
            lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
        return 0.5 * (lower + upper)
