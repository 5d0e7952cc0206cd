"""
The distributions of torch that the observation models return, with what torch leaves out: distribution functions and
quantiles, moments of classes, densities that stay finite, and columns of different kinds side by side.

`cdf(y)` is P(Y <= y) for any real y, also outside the support, and `icdf(p)` the smallest value where that is at least
p, for p strictly between 0 and 1, without gradients. Nothing here is validated; targets are, in
:func:`~gpytorch_sgpvae.likelihoods.targets.check_support`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from gpytorch import settings
from torch import Tensor
from torch.distributions import Chi2, Distribution, Normal, constraints

from ..._compat import is_compiling, is_in_transform
from ...magnitudes import ExtremeNumberError
from .special_functions import log_ndtr, regularized_beta

# Standard deviations at which a distribution function is as good as 0 or 1.
FAR = 8.0
# Standard deviations at which a Gaussian's density underflows, in float64 too.
CERTAIN = 40.0


class LogNormal(torch.distributions.LogNormal):
    """Moments and quantiles that overflow are errors that say so: the logarithms are known, the values are not."""

    @property
    def mean(self) -> Tensor:
        return self._checked(super().mean, "mean")

    @property
    def variance(self) -> Tensor:
        # exp(2 μ + σ²) (exp(σ²) - 1), which in this order overflows only if it must, and cancels nothing
        square = self.scale.square()
        return self._checked((2 * self.loc + square).exp() * torch.expm1(square), "variance")

    def cdf(self, value: Tensor) -> Tensor:
        positive = value > 0
        return super().cdf(torch.where(positive, value, 1.0)) * positive

    def icdf(self, value: Tensor) -> Tensor:
        return self._checked(super().icdf(value), "quantile")

    def _checked(self, values: Tensor, what: str) -> Tensor:
        if settings.debug.on() and not (is_compiling() or is_in_transform()) and bool(values.isinf().any()):
            raise ExtremeNumberError(
                f"The {what} of log-normal outputs is beyond the largest number of {values.dtype} in "
                f"{int(values.isinf().sum())} of {values.numel()} values, as the means of their logarithms reach "
                f"{self.loc.max():.3g}: predict further from extremes, train for longer, or model the logarithms "
                "themselves by GaussianObservations."
            )
        return values


class Bernoulli(torch.distributions.Bernoulli):
    def cdf(self, value: Tensor) -> Tensor:
        return torch.where(value < 1, torch.sigmoid(-self.logits), 1.0) * (value >= 0)

    @torch.no_grad()
    def icdf(self, value: Tensor) -> Tensor:
        return (value > torch.sigmoid(-self.logits)).to(self.logits.dtype)


class Categorical(torch.distributions.Categorical):
    """
    Categorical distribution whose values are class indices as floating-point numbers, and whose moments are those of
    the index.
    """

    @property
    def mean(self) -> Tensor:
        return (self.probs * self._classes).sum(-1)

    @property
    def variance(self) -> Tensor:
        return (self.probs * (self._classes - self.mean.unsqueeze(-1)).square()).sum(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return super().sample(torch.Size(sample_shape)).to(self.logits.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        return (self.probs * (self._classes <= value.unsqueeze(-1))).sum(-1)

    @torch.no_grad()
    def icdf(self, value: Tensor) -> Tensor:
        below = self.probs.cumsum(-1)[..., :-1] < value.unsqueeze(-1)  # (..., N, P, C - 1)
        return below.sum(-1).to(self.logits.dtype)

    @property
    def _classes(self) -> Tensor:
        return torch.arange(self.logits.shape[-1], dtype=self.logits.dtype, device=self.logits.device)


class Poisson(torch.distributions.Poisson):
    """Poisson distribution by the logarithm of its rate: the density stays finite where the rate itself underflows."""

    def __init__(self, log_rate: Tensor):
        self.log_rate = log_rate
        super().__init__(log_rate.exp(), validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: Poisson | None = None) -> Poisson:
        return Poisson(self.log_rate.expand(batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return value * self.log_rate - self.rate - torch.lgamma(value + 1)

    def cdf(self, value: Tensor) -> Tensor:
        return torch.special.gammaincc(value.floor().clamp(min=0) + 1, self.rate) * (value >= 0)

    def icdf(self, value: Tensor) -> Tensor:
        return _quantile_of_counts(self, value)


class NegativeBinomial(torch.distributions.NegativeBinomial):
    def cdf(self, value: Tensor) -> Tensor:
        # both probabilities by themselves: where one of them is close to 1, the other is not lost
        logits = self.logits.double()
        failure, success = torch.sigmoid(-logits), torch.sigmoid(logits)
        cdf = regularized_beta(self.total_count, value.floor().clamp(min=0) + 1, failure, success)
        return cdf.to(self.logits.dtype) * (value >= 0)

    def icdf(self, value: Tensor) -> Tensor:
        return _quantile_of_counts(self, value)


class StudentT(torch.distributions.StudentT):
    """
    Student's t distribution with more than two degrees of freedom. torch's own one looks at them to compute moments,
    which makes a GPU wait.
    """

    def __init__(self, df: Tensor, loc: Tensor, scale: Tensor):
        self._shared_df = df
        self.df, self.loc, self.scale = torch.broadcast_tensors(df, loc, scale)
        self._chi2 = Chi2(self.df, validate_args=False)
        Distribution.__init__(self, self.df.shape, validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: StudentT | None = None) -> StudentT:
        return StudentT(self._shared_df, self.loc.expand(batch_shape), self.scale)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * self.df / (self.df - 2)

    def cdf(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale
        # P(|Y| > |z|) = I_{ν / (ν + z²)}(ν / 2, 1 / 2)
        tail = 0.5 * regularized_beta(self.df / 2, 0.5 * torch.ones_like(self.df), self.df / (self.df + z.square()))
        return torch.where(z > 0, 1 - tail, tail)

    @torch.no_grad()
    def icdf(self, value: Tensor) -> Tensor:
        # standard quantiles depend on the degrees of freedom alone, which all samples and rows share
        df = self._shared_df
        standard = StudentT(df, torch.zeros_like(df), torch.ones_like(df))
        lower, upper = bisect(standard.cdf, value, *_quantile_bounds(standard.mean, standard.stddev, value))
        return self.loc + self.scale * 0.5 * (lower + upper)


class CensoredNormal(Distribution):
    r"""
    A power of what a Gaussian has above zero, :math:`\max(z, 0)^q` with :math:`z \sim \mathcal N(\mu, \sigma^2)`.

    :param loc: :math:`\mu`.
    :param scale: :math:`\sigma`.
    :param power: A whole number q.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (torch's own idiom)
    support = constraints.nonnegative

    def __init__(self, loc: Tensor, scale: Tensor, power: int = 1):
        self.normal = Normal(loc, scale, validate_args=False)
        self.power = power
        super().__init__(self.normal.batch_shape, validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: CensoredNormal | None = None) -> CensoredNormal:
        return CensoredNormal(self.normal.loc.expand(batch_shape), self.normal.scale.expand(batch_shape), self.power)

    @property
    def mean(self) -> Tensor:
        return self._moment(self.power)

    @property
    def variance(self) -> Tensor:
        r"""
        The variance. With :math:`z = \mu + \sigma \varepsilon` and :math:`T_k = \mathbb E[\varepsilon^k; z > 0]` it is

        .. math::

            \sum_{j, k = 0}^q \binom q j \binom q k \mu^{2 q - j - k} \sigma^{j + k} (T_{j + k} - T_j T_k)

        in which nothing cancels far above zero, where :math:`T_0 - T_0^2 = \Phi(\mu / \sigma) \Phi(-\mu / \sigma)`.
        """
        q, scale = self.power, self.normal.scale
        z = (self.normal.loc / scale).clamp(-CERTAIN, CERTAIN)
        density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
        T = [torch.special.ndtr(z), density]
        for k in range(2, 2 * q + 1):
            # by parts, from -z on
            T.append((k - 1) * T[k - 2] + (-z) ** (k - 1) * density)
        below = torch.special.ndtr(-z)
        # in units of σ^q; terms with a factor T₀ - T₀² or T_k (1 - T₀) are zero where z is cut off
        total = z ** (2 * q) * T[0] * below
        ratio = self.normal.loc / scale
        for k in range(1, q + 1):
            total = total + 2 * math.comb(q, k) * z ** (2 * q - k) * T[k] * below
            for j in range(1, q + 1):
                weight = math.comb(q, j) * math.comb(q, k)
                total = total + weight * ratio ** (2 * q - j - k) * (T[j + k] - T[j] * T[k])
        return (total * scale ** (2 * q)).clamp_min(0.0)  # far below zero its parts cancel

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.normal.sample(torch.Size(sample_shape)).clamp_min(0.0) ** self.power

    def log_prob(self, value: Tensor) -> Tensor:
        positive = value > 0
        # one where the density is not asked for: neither it nor its gradient is infinite there
        y = torch.where(positive, value, 1.0)
        density = self.normal.log_prob(y ** (1 / self.power)) + (1 / self.power - 1) * y.log() - math.log(self.power)
        return torch.where(positive, density, log_ndtr(-self.normal.loc / self.normal.scale))

    def cdf(self, value: Tensor) -> Tensor:
        return self.normal.cdf(value.clamp_min(0.0) ** (1 / self.power)) * (value >= 0)

    def icdf(self, value: Tensor) -> Tensor:
        return self.normal.icdf(value).clamp_min(0.0) ** self.power

    def _moment(self, order: int) -> Tensor:
        # m_k = E[z^k; z > 0] = μ m_{k-1} + (k - 1) σ² m_{k-2}, by parts
        loc, scale = self.normal.loc, self.normal.scale
        z = loc / scale
        density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
        before = torch.special.ndtr(z)
        moment = loc * before + scale * density
        for k in range(2, order + 1):
            before, moment = moment, loc * moment + (k - 1) * scale.square() * before
        return moment.clamp_min(0.0)  # far below zero its two parts cancel


class ColumnwiseDistribution(Distribution):
    r"""
    Distributions of independent columns side by side, of batch shape `... x N x P`.

    :param parts: Distributions of batch shapes `... x N x P_g` and empty event shapes, where the :math:`P_g` sum to P.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (torch's own idiom)

    def __init__(self, parts: Sequence[Distribution]):
        self.parts = list(parts)
        self.sizes = [part.batch_shape[-1] for part in self.parts]
        leading = torch.broadcast_shapes(*(part.batch_shape[:-1] for part in self.parts))
        super().__init__(torch.Size([*leading, sum(self.sizes)]), validate_args=False)

    def expand(
        self, batch_shape: Sequence[int], _instance: ColumnwiseDistribution | None = None
    ) -> ColumnwiseDistribution:
        leading = batch_shape[:-1]
        sizes = zip(self.parts, self.sizes, strict=True)
        return ColumnwiseDistribution([part.expand(torch.Size([*leading, size])) for part, size in sizes])

    @property
    def support(self) -> constraints.Constraint:
        return constraints.cat([part.support for part in self.parts], dim=-1, lengths=self.sizes)

    @property
    def mean(self) -> Tensor:
        return torch.cat([part.mean for part in self.parts], -1)

    @property
    def variance(self) -> Tensor:
        return torch.cat([part.variance for part in self.parts], -1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return torch.cat([part.sample(torch.Size(sample_shape)) for part in self.parts], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.cat([part.log_prob(columns) for part, columns in self.split(value)], -1)

    def cdf(self, value: Tensor) -> Tensor:
        return torch.cat([part.cdf(columns) for part, columns in self.split(value)], -1)

    def icdf(self, value: Tensor) -> Tensor:
        return torch.cat([part.icdf(columns) for part, columns in self.split(value)], -1)

    def split(self, value: Tensor) -> list[tuple[Distribution, Tensor]]:
        """Each part with its columns of a value (`... x P`, or what broadcasts to that)."""
        value = value.expand(torch.broadcast_shapes(value.shape, self.batch_shape[-1:]))
        return list(zip(self.parts, value.split(self.sizes, dim=-1), strict=True))


def bisect(cdf: Callable[[Tensor], Tensor], p: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Narrow bounds of the smallest value whose cdf is at least p, to the last bit."""
    # each step gains one bit: as many as the mantissa holds
    for _ in range(_mantissa_bits(lower.dtype)):
        middle = 0.5 * (lower + upper)
        below = cdf(middle) < p
        lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
    return lower, upper


@torch.no_grad()
def whole_quantile(cdf: Callable[[Tensor], Tensor], p: Tensor, mean: Tensor, stddev: Tensor) -> Tensor:
    """
    The smallest whole number whose cdf is at least p. Two of three steps ask on either side of where a
    Gaussian between the bounds has its quantile, and the third one halves the distance of the bounds: a dozen steps are
    enough for counts around a billion.

    :param cdf: A distribution function of whole numbers.
    :param p: A probability.
    :param mean: The distribution's mean, which has the shape of the result.
    :param stddev: The standard deviation of the distribution.
    """
    lower, upper = _quantile_bounds(mean, stddev, p)
    lower, upper = lower.floor() - 1, upper.ceil() + 1  # room for rounding
    p = torch.as_tensor(p, dtype=lower.dtype, device=lower.device)
    target, lower_z, upper_z = torch.special.ndtri(p), torch.full_like(lower, -FAR), torch.full_like(upper, FAR)
    width = upper - lower
    resolution = torch.finfo(lower.dtype).eps
    for step in range(3 * _mantissa_bits(lower.dtype)):
        # neighbors, or as close as the type can tell large numbers apart
        gap = upper - lower
        unclear = gap > (resolution * upper).clamp(min=1)
        if not bool(unclear.any()):
            break
        if step % 3 == 2:
            asked = lower + 0.5 * gap
        else:
            # a Gaussian is wrong by about the square of the gap: ask that far before and behind it
            guess = lower + gap * ((target - lower_z) / (upper_z - lower_z)).clamp(0, 1)
            asked = guess + (1 if step % 3 else -1) * gap.square() / width
        asked = asked.floor().clamp(min=lower + 1, max=torch.maximum(upper - 1, lower + 1))
        found = cdf(asked)
        z = torch.special.ndtri(found).clamp(-FAR, FAR)
        below, above = unclear & (found < p), unclear & (found >= p)
        lower, lower_z = torch.where(below, asked, lower), torch.where(below, z, lower_z)
        upper, upper_z = torch.where(above, asked, upper), torch.where(above, z, upper_z)
    return upper


def _quantile_of_counts(distribution: Distribution, p: Tensor) -> Tensor:
    return whole_quantile(distribution.cdf, p, distribution.mean, distribution.stddev)


def _quantile_bounds(mean: Tensor, stddev: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    # Cantelli's inequality: P(Y <= μ - t) and P(Y >= μ + t) are at most σ² / (σ² + t²)
    odds = p / (1 - p)
    return mean - stddev * odds.rsqrt(), mean + stddev * odds.sqrt()


def _mantissa_bits(dtype: torch.dtype) -> int:
    return 53 if dtype == torch.float64 else 24
