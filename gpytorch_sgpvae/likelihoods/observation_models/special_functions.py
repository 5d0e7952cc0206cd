"""Special functions that torch lacks, or whose gradients it gets wrong far out."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

# From here on the incomplete beta function is an integral instead of a continued fraction, which would take longer.
LARGE_BETA_PARAMETER = 300.0
# The integral is cut off where its integrand is exp(-DROP) of the largest, and takes this many nodes to 12 digits.
DROP = 36.0
NUM_NODES = 32
# Where the sixth term of the series of log Φ is 2e-14.
FAR_BELOW = -30.0


def log_softplus(x: Tensor) -> Tensor:
    r"""
    :math:`\log \log(1 + e^x)`, which is x to all digits long before :math:`e^x` underflows; there it is taken as that,
    so that neither the value nor the gradient is lost.
    """
    # the error is e^x / 2, and e^-40 is below float64's resolution
    small = x < -40
    return torch.where(small, x, torch.nn.functional.softplus(torch.where(small, 0.0, x)).log())


def log_ndtr(z: Tensor) -> Tensor:
    r"""
    :math:`\log \Phi(z)`. torch's value is right everywhere, but its gradient is wrong far below zero: in float32 by 4 %
    at -1000 and by a factor of 1e5 at -1e5, and infinite in float64 at -1e10. There it is the asymptotic series

    .. math::

        \log \Phi(z) = - \tfrac 1 2 z^2 - \log(-z) - \tfrac 1 2 \log(2 \pi)
        + \log \left( 1 - z^{-2} + 3 z^{-4} - 15 z^{-6} + 105 z^{-8} - 945 z^{-10} \right)
    """
    far = z < FAR_BELOW
    w = torch.where(far, z, FAR_BELOW)
    s = w.square().reciprocal()
    series = 1 - s * (1 - 3 * s * (1 - 5 * s * (1 - 7 * s * (1 - 9 * s))))
    below = -0.5 * w.square() - (-w).log() - 0.5 * math.log(2 * math.pi) + series.log()
    return torch.where(far, below, torch.special.log_ndtr(torch.where(far, 0.0, z)))


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
