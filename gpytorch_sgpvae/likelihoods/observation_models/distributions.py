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
from functools import cache

import torch
from torch import Tensor
from torch.distributions import Chi2, Distribution, Normal, constraints

# From here on the incomplete beta function is an integral instead of a continued fraction, which would take longer.
LARGE_BETA_PARAMETER = 300.0
# The integral is cut off where its integrand is exp(-DROP) of the largest, and takes so many nodes to 12 digits.
DROP = 36.0
NUM_NODES = 32
# Standard deviations at which a distribution function is as good as 0 or 1.
FAR = 8.0


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
        # both probabilities by themselves: where one of them is close to 1, the other is not lost
        logits = self.logits.double()
        failure, success = torch.sigmoid(-logits), torch.sigmoid(logits)
        cdf = regularized_beta(self.total_count, value.floor().clamp(min=0) + 1, failure, success)
        return cdf.to(self.logits.dtype) * (value >= 0)

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
def regularized_beta(a: Tensor, b: Tensor, x: Tensor, complement: Tensor | None = None) -> Tensor:
    r"""
    The regularized incomplete beta function :math:`I_x(a, b)`, which torch lacks, in float64 inside and without
    gradients. On the side where x is small it is :math:`x^a (1 - x)^b / B(a, b)` times a continued fraction (`Press et
    al. (2007)`_, section 6.4) if a is small, and otherwise times an integral over the logit of x, whose cost does not
    depend on a and b.

    :param complement: 1 - x, if it is known more exactly than by subtraction.

    .. _Press et al. (2007):
        https://numerical.recipes
    """
    dtype = x.dtype
    y = 1 - x.double() if complement is None else complement.double()
    a, b, x, y = torch.broadcast_tensors(a.double(), b.double(), x.double(), y)
    # I_x(a, b) = 1 - I_{1 - x}(b, a); both ways converge fast on the side where x is small
    swapped = x * (a + b + 2) > a + 1
    a, b = torch.where(swapped, b, a), torch.where(swapped, a, b)
    x, y = torch.where(swapped, y, x), torch.where(swapped, x, y)
    result = torch.empty_like(x)
    large = a > LARGE_BETA_PARAMETER
    for chosen, factor in ((~large, _beta_fraction), (large, _beta_integral)):
        if bool(chosen.any()):
            result[chosen] = factor(a[chosen], b[chosen], x[chosen], y[chosen])
    result = result * _beta_power(a, b, x, y)
    return torch.where(swapped, 1 - result, result).to(dtype)


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
    :param stddev: Its standard deviation.
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


def _nonzero(x: Tensor) -> Tensor:
    # Lentz's method divides by what is zero only by accident
    return torch.where(x.abs() < 1e-300, 1e-300, x)


def _beta_power(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """x^a y^b / B(a, b) for y = 1 - x, in which nothing large cancels."""
    # x = (1 + w / a) a / (a + b) and y = (1 - w / b) b / (a + b)
    w = x * b - y * a
    powers = a * _log_ratio(w / a, x * ((a + b) / a)) + b * _log_ratio(-w / b, y * ((a + b) / b))
    stirling = _stirling_remainder(a + b) - _stirling_remainder(a) - _stirling_remainder(b)
    return (a * (b / (a + b)) / (2 * math.pi)).sqrt() * torch.exp(powers + stirling)


def _log_ratio(difference: Tensor, ratio: Tensor) -> Tensor:
    """The logarithm of a ratio, of which its difference to 1 is known more exactly."""
    return torch.where(difference.abs() < 0.5, torch.log1p(difference.clamp(-0.5, 0.5)), ratio.log())


def _stirling_remainder(z: Tensor) -> Tensor:
    """Log Γ(z) - (z - 1/2) log z + z - log(2π) / 2"""
    small = z < 15  # from there on, five terms of the series are exact to float64's last digits
    low = torch.where(small, z, 1.0)
    direct = torch.lgamma(low) - (low - 0.5) * low.log() + low - 0.5 * math.log(2 * math.pi)
    inverse = torch.where(small, 1.0, z).reciprocal()
    square = inverse.square()
    series = torch.zeros_like(z)
    for coefficient in (1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12):
        series = coefficient + square * series
    return torch.where(small, direct, inverse * series)


def _beta_fraction(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """I_x(a, b) over x^a y^b / B(a, b), by Lentz's method. The number of terms grows with the root of a."""
    numerator = torch.ones_like(x)
    denominator = _nonzero(1 - (a + b) * x / (a + 1)).reciprocal()
    fraction = denominator
    for m in range(1, 1001):  # many times as many as LARGE_BETA_PARAMETER needs
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            denominator = _nonzero(1 + coefficient * denominator).reciprocal()
            numerator = _nonzero(1 + coefficient / numerator)
            fraction = fraction * denominator * numerator
        if bool(((denominator * numerator - 1).abs() < 1e-13).all()):
            break
    return fraction / a


def _beta_integral(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    r"""
    I_x(a, b) over x^a y^b / B(a, b), for large a: with logits t below that of x, by s = logit x - t,

    .. math::

        \int_0^\infty \exp(h(s)) \, ds, \qquad h(s) = -a s - (a + b) \log \left( 1 - x (1 - e^{-s}) \right)

    h is concave and falls from h(0) = 0. Gauss-Legendre quadrature goes to where it is DROP below that.
    """
    # h(s) = b s - (a + b) log(1 + y (e^s - 1)) too, in which less cancels where y is the smaller one
    sign = torch.where(x < y, -1.0, 1.0).to(x)
    slower, smaller = torch.where(x < y, -a, b), torch.minimum(x, y)

    def h(s: Tensor) -> Tensor:
        return slower * s - (a + b) * torch.log1p(smaller * torch.expm1(sign * s))

    # where the parabola that touches h at 0 has dropped, and then Newton's method; h' = -a + (a + b) / (1 + y e^s / x)
    slope, curvature = (a * y - b * x).clamp(min=0), (a + b) * x * y
    end = 2 * DROP / (slope + (slope.square() + 2 * DROP * curvature).sqrt())
    for _ in range(4):
        shrunk = x * torch.exp(-end)
        end = end - (h(end) + DROP) / ((a + b) * shrunk / (shrunk + y) - a)
    total = torch.zeros_like(end)
    for node, weight in _legendre_nodes(NUM_NODES):
        total += weight * torch.exp(h(node * end))
    return end * total


@cache
def _legendre_nodes(n: int) -> list[tuple[float, float]]:
    """Nodes and weights of Gauss-Legendre quadrature on [0, 1], from the eigenvectors of Golub and Welsch's matrix."""
    k = torch.arange(1, n, dtype=torch.float64, device="cpu")
    nodes, vectors = torch.linalg.eigh(torch.diag(k / (4 * k.square() - 1).sqrt(), -1))
    return list(zip((0.5 * (1 + nodes)).tolist(), vectors[0].square().tolist(), strict=True))


def _quantile_of_counts(distribution: Distribution, p: Tensor) -> Tensor:
    return whole_quantile(distribution.cdf, p, distribution.mean, distribution.stddev)


def _quantile_bounds(mean: Tensor, stddev: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    # Cantelli's inequality: P(Y <= μ - t) and P(Y >= μ + t) are at most σ² / (σ² + t²)
    odds = p / (1 - p)
    return mean - stddev * odds.rsqrt(), mean + stddev * odds.sqrt()


def _mantissa_bits(dtype: torch.dtype) -> int:
    return 53 if dtype == torch.float64 else 24
