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
from torch import Tensor
from torch.distributions import Chi2, Distribution, Normal, constraints


class LogNormal(torch.distributions.LogNormal):
    def cdf(self, value: Tensor) -> Tensor:
        positive = value > 0
        return super().cdf(torch.where(positive, value, 1.0)) * positive


class Bernoulli(torch.distributions.Bernoulli):
    def cdf(self, value: Tensor) -> Tensor:
        return torch.where(value < 1, torch.sigmoid(-self.logits), 1.0) * (value >= 0)

    @torch.no_grad()
    def icdf(self, value: Tensor) -> Tensor:
        return (value > torch.sigmoid(-self.logits)).to(self.logits.dtype)


class Categorical(torch.distributions.Categorical):
    """Its values are class indices as floating-point numbers, and its moments those of the index."""

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
    """By the logarithm of the rate, from which its density stays finite where the rate itself underflows."""

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
        cdf = regularized_beta(self.total_count, value.floor().clamp(min=0) + 1, torch.sigmoid(-self.logits))
        return cdf * (value >= 0)

    def icdf(self, value: Tensor) -> Tensor:
        return _quantile_of_counts(self, value)


class StudentT(torch.distributions.StudentT):
    """With more than two degrees of freedom: torch looks at them for the moments, which makes a GPU wait."""

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
        lower, upper = bisect(standard.cdf, value, *_quantile_bounds(standard, value))
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
        return (self._moment(2 * self.power) - self.mean.square()).clamp_min(0.0)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.normal.sample(torch.Size(sample_shape)).clamp_min(0.0) ** self.power

    def log_prob(self, value: Tensor) -> Tensor:
        positive = value > 0
        # one where the density is not asked for: neither it nor its gradient is infinite there
        y = torch.where(positive, value, 1.0)
        density = self.normal.log_prob(y ** (1 / self.power)) + (1 / self.power - 1) * y.log() - math.log(self.power)
        return torch.where(positive, density, torch.special.log_ndtr(-self.normal.loc / self.normal.scale))

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


def log_softplus(x: Tensor) -> Tensor:
    r"""
    :math:`\log \log(1 + e^x)`, which is x to all digits long before :math:`e^x` underflows; there it is taken as that,
    so that neither the value nor the gradient is lost.
    """
    # the error is e^x / 2, and e^-40 is below float64's resolution
    small = x < -40
    return torch.where(small, x, torch.nn.functional.softplus(torch.where(small, 0.0, x)).log())


@torch.no_grad()
def regularized_beta(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    r"""
    The regularized incomplete beta function :math:`I_x(a, b)`, which torch lacks, in float64 inside and without
    gradients: its continued fraction by Lentz's method (`Press et al. (2007)`_, section 6.4). The number of its terms
    grows with the root of the larger of a and b.

    .. _Press et al. (2007):
        https://numerical.recipes
    """
    dtype, (a, b, x) = x.dtype, torch.broadcast_tensors(a.double(), b.double(), x.double())
    # I_x(a, b) = 1 - I_{1 - x}(b, a); the fraction converges fast on the side where x is small
    swapped = x > (a + 1) / (a + b + 2)
    a, b, x = torch.where(swapped, b, a), torch.where(swapped, a, b), torch.where(swapped, 1 - x, x)
    log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    factor = torch.exp(a * x.log() + b * torch.log1p(-x) - log_beta) / a

    numerator = torch.ones_like(x)
    denominator = _nonzero(1 - (a + b) * x / (a + 1)).reciprocal()
    fraction = denominator
    for m in range(1, 10_001):  # enough for a and b around ten millions
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            denominator = _nonzero(1 + coefficient * denominator).reciprocal()
            numerator = _nonzero(1 + coefficient / numerator)
            fraction = fraction * denominator * numerator
        if bool(((denominator * numerator - 1).abs() < 1e-13).all()):
            break
    result = factor * fraction
    return torch.where(swapped, 1 - result, result).to(dtype)


def bisect(
    cdf: Callable[[Tensor], Tensor], p: Tensor, lower: Tensor, upper: Tensor, whole: bool = False
) -> tuple[Tensor, Tensor]:
    """
    Narrow bounds of the smallest value whose cdf is at least p, to the last bit.

    :param whole: Whether it is a whole number: then the bounds need only tell it from the next.
    """
    # each step gains one bit: as many as the mantissa holds
    for _ in range(_mantissa_bits(lower.dtype)):
        if whole and not bool((upper - lower >= 1).any()):
            break
        middle = 0.5 * (lower + upper)
        below = cdf(middle) < p
        lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
    return lower, upper


def _nonzero(x: Tensor) -> Tensor:
    # Lentz's method divides by what is zero only by accident
    return torch.where(x.abs() < 1e-300, 1e-300, x)


@torch.no_grad()
def _quantile_of_counts(distribution: Distribution, p: Tensor) -> Tensor:
    """The smallest whole number whose cdf is at least p, by bisection."""
    lower, upper = _quantile_bounds(distribution, p)
    lower, upper = lower.floor().clamp(min=0) - 1, upper.ceil().clamp(min=0) + 1
    # each step gains one bit of numbers that the mantissa holds
    for _ in range(_mantissa_bits(lower.dtype)):
        if not bool((upper - lower > 1).any()):
            break
        middle = ((lower + upper) / 2).floor()
        below = distribution.cdf(middle) < p
        lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
    return upper


def _quantile_bounds(distribution: Distribution, p: Tensor) -> tuple[Tensor, Tensor]:
    # Cantelli's inequality: P(Y <= μ - t) and P(Y >= μ + t) are at most σ² / (σ² + t²)
    odds = p / (1 - p)
    return distribution.mean - distribution.stddev * odds.rsqrt(), distribution.mean + distribution.stddev * odds.sqrt()


def _mantissa_bits(dtype: torch.dtype) -> int:
    return 53 if dtype == torch.float64 else 24
