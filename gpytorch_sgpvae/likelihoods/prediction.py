from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.distributions import AffineTransform, Distribution, Normal, TransformedDistribution, constraints

from ..utils.shapes import check_chunk_size
from .observation_models.distributions import ColumnwiseDistribution, bisect
from .targets import as_rows, check_support, fill_missing

# Random numbers are drawn for so many inputs at a time, whatever the chunk size, so that it does not change them.
BLOCK_SIZE = 32
# Draws for each value where a family of distributions knows no distribution function.
NUM_DRAWS = 4000


class Prediction:
    r"""
    The predictive distribution of the outputs at each input: an equal mixture over S samples of the latent functions,

    .. math::

        p(y_{np}) = \frac 1 S \sum_{s=1}^S p \left( y_{np} \mid \mathbf f_n^{(s)} \right), \qquad
        \mathbf f_n^{(s)} \sim q(\mathbf f_n)

    With a chunk size, and without gradients, the components never exist all at once, and a million inputs fit in
    memory: each quantity samples and decodes so many inputs at a time, with the likelihood's parameters as they are
    then. The samples depend on torch's seed alone, so that the chunk size changes no result.

    :param likelihood: Maps latent function values (`... x N x K`) to p(y | f), of batch shape `... x N x P`.
    :param function_mean: Mean of q(f) (`*T x N x K`).
    :param function_stddev: Standard deviation of q(f) (`*T x N x K`).
    :param num_samples: Number of samples S.
    :param base_samples: Standard normal samples to use instead of new ones (`S x *T x N x K`).
    :param chunk_size: Decode so many inputs at a time; by default all at once.
    :param function_dist: q(f) over all inputs together, or a function that returns it: for joint samples only.

    :ivar type family: Class of the components.
    :ivar torch.Tensor shift, scale: The units: values are shift + scale times the likelihood's.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE
        >>> model = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.rand(8, 2))
        >>> prediction = model.predict(torch.rand(4, 2), context=(torch.rand(20, 2), torch.randn(20, 5)))
        >>> prediction.mean.shape, prediction.quantile([0.05, 0.95]).shape
        (torch.Size([4, 5]), torch.Size([2, 4, 5]))
    """

    def __init__(
        self,
        likelihood: Callable[[Tensor], Distribution],
        function_mean: Tensor,
        function_stddev: Tensor,
        num_samples: int,
        base_samples: Tensor | None = None,
        chunk_size: int | None = None,
        function_dist: MultivariateNormal | Callable[[], MultivariateNormal] | None = None,
    ):
        if base_samples is None and num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}.")
        if base_samples is not None and base_samples.dim() != function_mean.dim() + 1:
            shape = ("S", *function_mean.shape)
            raise ValueError(f"Expected base_samples of shape {shape}, got {tuple(base_samples.shape)}.")
        check_chunk_size(chunk_size)
        self.likelihood = likelihood
        self.function_mean = function_mean
        self.function_stddev = function_stddev
        self.num_samples = num_samples if base_samples is None else base_samples.shape[0]
        self.chunk_size = chunk_size
        self.function_dist = function_dist
        self.shift, self.scale = function_mean.new_zeros(()), function_mean.new_ones(())
        self._base_samples = None if base_samples is None else base_samples.expand(-1, *function_mean.shape)
        self._seed = int(torch.randint(2**62, (), device="cpu")) if base_samples is None else 0
        # A prediction made without gradients has none, also where it is decoded later.
        self._grad_enabled = torch.is_grad_enabled()
        # Without chunks it is decoded here, once; with them one input is, for P and so that errors come early.
        first = self._decode(slice(None) if chunk_size is None else slice(1))
        self._decoded = first if chunk_size is None else None
        self.family = type(first)
        self._shape = torch.Size([self.num_samples, *function_mean.shape[:-1], first.batch_shape[-1]])

    @classmethod
    def gaussian(cls, mean: Tensor, stddev: Tensor) -> Prediction:
        """
        A mixture of a single Gaussian: what other models predict, to be scored as a prediction.

        :param mean: (`*T x N x P`).
        :param stddev: (`*T x N x P`).
        """
        parameters = torch.cat([mean, stddev], dim=-1)  # (*T, N, 2 P), as if they were functions without uncertainty
        return cls(_gaussian, parameters, torch.zeros_like(parameters), num_samples=1)

    @property
    def components(self) -> Distribution:
        """The mixture's components, all at once, of batch shape `S x *T x N x P`."""
        components = self._decode(slice(None)) if self._decoded is None else self._decoded
        if not self.shift.dim():  # never rescaled
            return components
        if isinstance(components, Normal):
            mean, stddev = self.shift + self.scale * components.mean, self.scale * components.stddev
            return Normal(mean, stddev, validate_args=False)
        return TransformedDistribution(components, AffineTransform(self.shift, self.scale))

    @property
    def mean(self) -> Tensor:
        """(`*T x N x P`)"""
        return self.shift + self.scale * self._reduce(lambda components: components.mean.mean(0))

    @property
    def variance(self) -> Tensor:
        """The components' mean variance plus the variance of their means (`*T x N x P`)."""
        return self.scale.square() * self._reduce(lambda components: _moments(components)[1])

    @property
    def stddev(self) -> Tensor:
        """(`*T x N x P`)"""
        return self.variance.sqrt()

    def rescale(self, mean: Tensor | float, stddev: Tensor | float) -> Prediction:
        r"""
        The same prediction in other units, :math:`\mu_p + \sigma_p y_{np}`: back from normalized observations to the
        original ones. Leave counts, flags and classes as they are, with mean 0 and standard deviation 1: their
        probabilities have no units.

        :param mean: What was subtracted from the observations (`P`, or a number).
        :param stddev: What they were then divided by (`P`, or a number).
        """
        shift, scale, num_outputs = self._as_tensor(mean), self._as_tensor(stddev), self._shape[-1]
        for name, value in (("mean", shift), ("stddev", scale)):
            if value.shape not in ((), (num_outputs,)):
                raise ValueError(f"{name} has shape {tuple(value.shape)}: expected a number or ({num_outputs},).")
        if not bool((scale > 0).all()):
            raise ValueError(f"Expected positive standard deviations, got {scale}: give constant outputs a 1.")
        rescaled = copy.copy(self)
        rescaled.shift = (shift + scale * self.shift).expand(num_outputs)
        rescaled.scale = (scale * self.scale).expand(num_outputs)
        return rescaled

    @torch.no_grad()
    def quantile(self, p: float | Sequence[float] | Tensor) -> Tensor:
        r"""
        Quantiles of the mixture, :math:`\inf \{ y : F(y) \geq p \}`, by bisection of its distribution function F.
        Where the observation model's distribution has no `cdf`, they are those of some 4000 new draws from the
        components.

        :param p: A probability, or Q of them.
        :return: (`*T x N x P`, or `Q x *T x N x P`)
        """
        p = self._as_tensor(p)
        if p.dim() > 1 or not bool(((p > 0) & (p < 1)).all()):
            raise ValueError(f"Expected a probability, or a vector of them, strictly between 0 and 1, got {p}.")
        try:
            quantiles = self._reduce(lambda parts: torch.stack([_quantile(parts, level) for level in p.reshape(-1)]))
        except NotImplementedError:
            quantiles = self._reduce(lambda parts: _drawn_quantiles(parts, p.reshape(-1)), chunk_size=BLOCK_SIZE)
        return self.shift + self.scale * quantiles.reshape(*p.shape, *self._shape[1:])

    @torch.no_grad()
    def sample(self, n: int, joint: bool = False) -> Tensor:
        """
        Draw n values at each input (`n x *T x N x P`).

        :param n: Number of draws, each with latent functions of its own.
        :param joint: Whether a draw is one function through all inputs of a task, which takes an N x N matrix;
            otherwise its values are independent from input to input.
        """
        if joint:
            if self.function_dist is None:
                raise ValueError("Joint samples need q(f) over all inputs: give Prediction the argument function_dist.")
            q_f = self.function_dist if isinstance(self.function_dist, MultivariateNormal) else self.function_dist()
            # one latent function may come as an event of N
            functions = q_f.sample(torch.Size([n])).reshape(n, *self.function_mean.shape)
        draws = []
        for part in self._parts(BLOCK_SIZE):
            mean, stddev = self.function_mean[..., part, :], self.function_stddev[..., part, :]
            values = functions[..., part, :] if joint else mean + stddev * mean.new_empty((n, *mean.shape)).normal_()
            draws.append(self.likelihood(values).sample())
        return self.shift + self.scale * torch.cat(draws, dim=-2)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of the mixture, for each output on its own (`*T x N x P`); NaN where y is NaN."""
        return self.score(_log_prob, y) - self.scale.log()

    def gaussian_log_prob(self, y: Tensor) -> Tensor:
        """Log density of the Gaussian with the mixture's mean and variance (`*T x N x P`); NaN where y is NaN."""
        return self.score(_gaussian_log_prob, y) - self.scale.log()

    def score(self, function: Callable[..., Tensor], y: Tensor, chunk_size: int | None = None) -> Tensor:
        r"""
        Any function of the mixture and a value, chunk by chunk (`*T x N x P`); NaN where y is NaN.

        :param function: Maps components (`S x *T x n x P`) and values (`*T x n x P`), both in the units of the
            likelihood (see :meth:`rescale`), to scores (`*T x n x P`).
        :param y: The values (`*T x N x P`, or `*T x N` for one output).
        :param chunk_size: Inputs at a time, if not the prediction's own number.
        """
        filled, observed = fill_missing((as_rows(y, self._shape) - self.shift) / self.scale)
        return torch.where(observed, self._reduce(function, filled, chunk_size=chunk_size), torch.nan)

    def _reduce(self, function: Callable[..., Tensor], *rows: Tensor, chunk_size: int | None = None) -> Tensor:
        """Apply a function of the components (and of rows, `*T x N x P`) chunk by chunk, and join the results."""
        if chunk_size is None and self._decoded is not None:
            return function(self._decoded, *rows)
        parts = self._parts(chunk_size or self.chunk_size)
        return torch.cat([function(self._decode(part), *(row[..., part, :] for row in rows)) for part in parts], dim=-2)

    def _parts(self, size: int | None) -> list[slice]:
        num_points = max(self.function_mean.shape[-2], 1)  # no inputs at all are one empty part
        size = size or num_points
        return [slice(start, start + size) for start in range(0, num_points, size)]

    def _decode(self, part: slice) -> Distribution:
        """The components at some of the inputs, in the units of the likelihood."""
        with torch.set_grad_enabled(self._grad_enabled and torch.is_grad_enabled()):
            mean, stddev = self.function_mean[..., part, :], self.function_stddev[..., part, :]
            return self.likelihood(mean + stddev * self._noise(part))

    def _noise(self, part: slice) -> Tensor:
        """Standard normal samples for some of the inputs (`S x *T x n x K`)."""
        if self._base_samples is not None:
            return self._base_samples[..., part, :]
        start, stop, _ = part.indices(self.function_mean.shape[-2])
        first, blocks = start - start % BLOCK_SIZE, []
        for begin in range(first, max(stop, 1), BLOCK_SIZE):
            block = self.function_mean[..., begin : begin + BLOCK_SIZE, :]
            generator = torch.Generator(block.device).manual_seed(self._seed + begin)
            blocks.append(block.new_empty((self.num_samples, *block.shape)).normal_(generator=generator))
        return torch.cat(blocks, dim=-2)[..., start - first : stop - first, :]

    def _as_tensor(self, values: float | Sequence[float] | Tensor) -> Tensor:
        return torch.as_tensor(values, dtype=self.function_mean.dtype, device=self.function_mean.device)


def _gaussian(parameters: Tensor) -> Normal:
    mean, stddev = parameters.chunk(2, dim=-1)
    return Normal(mean, stddev, validate_args=False)


# Of components of batch shape S x *T x N x P; values, and what they return, are *T x N x P.


def _moments(components: Distribution) -> tuple[Tensor, Tensor]:
    means = components.mean
    return means.mean(0), components.variance.mean(0) + means.var(0, correction=0)


def _log_prob(components: Distribution, y: Tensor) -> Tensor:
    # what was missing is filled with a value of the support
    check_support(components, y, torch.ones_like(y, dtype=torch.bool))
    log_probs = components.log_prob(y)  # (S, *T, N, P)
    return log_probs.logsumexp(0) - math.log(log_probs.shape[0])


def _gaussian_log_prob(components: Distribution, y: Tensor) -> Tensor:
    mean, variance = _moments(components)
    return Normal(mean, variance.sqrt(), validate_args=False).log_prob(y)


def cdf(components: Distribution, y: Tensor) -> Tensor:
    """The mixture's distribution function."""
    support = components.support
    if support is None or support is constraints.real:
        return components.cdf(y).mean(0)
    # A family is asked about its support only: below it the answer is 0, above it 1.
    center = components.mean.nan_to_num(0.0)  # (S, *T, N, P); torch's classes have no mean
    if support.is_discrete:
        center, y = center.floor(), y.floor()
    inside = support.check(y)
    return torch.where(inside, components.cdf(torch.where(inside, y, center)), (y > center).to(y.dtype)).mean(0)


def _quantile(components: Distribution, p: Tensor) -> Tensor:
    if isinstance(components, ColumnwiseDistribution):
        return torch.cat([_quantile(part, p) for part in components.parts], dim=-1)
    try:
        # The mixture's quantile lies between those of its components.
        bounds = components.icdf(p)  # (S, *T, N, P)
        lower, upper = bounds.amin(0), bounds.amax(0)
    except NotImplementedError:
        lower, upper = _bracket(components, p)
    whole = components.support is not None and components.support.is_discrete
    lower, upper = bisect(partial(cdf, components), p, lower, upper, whole)
    # A whole number between the two is the quantile of counts, exactly; to a real quantile it is as close as the rest.
    return torch.where(upper.floor() >= lower, upper.floor(), 0.5 * (lower + upper))


def _bracket(components: Distribution, p: Tensor) -> tuple[Tensor, Tensor]:
    """Values with F(lower) < p <= F(upper), by expansion around the mean."""
    mean, variance = _moments(components)
    # heavy tails have no moments: then it starts from 0 ± 1
    center = torch.where(mean.isfinite(), mean, 0.0)
    width = torch.where(variance.isfinite() & (variance > 0), variance.sqrt(), 1.0)
    for _ in range(1024):  # float64's largest number is 2^1024
        lower, upper = center - width, center + width
        outside = (cdf(components, lower) >= p) | (cdf(components, upper) < p)
        if not bool(outside.any()):
            break
        width = torch.where(outside, 2 * width, width)
    return lower, upper


def draw(components: Distribution) -> Tensor:
    """R > 1 draws from each of the S components, together at least NUM_DRAWS (`R x S x *T x N x P`)."""
    return components.sample(torch.Size([max(2, math.ceil(NUM_DRAWS / components.batch_shape[0]))]))


def _drawn_quantiles(components: Distribution, p: Tensor) -> Tensor:
    ordered = draw(components).flatten(0, 1).sort(dim=0).values  # (R S, *T, N, P)
    return ordered[(p * ordered.shape[0]).ceil().long() - 1]  # (Q, *T, N, P)
