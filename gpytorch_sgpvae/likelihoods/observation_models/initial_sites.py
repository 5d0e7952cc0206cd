"""Building blocks of several families' initial sites: Gaussian functions of h, as (g, λ)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# E[h | y = 1] for h ~ N(0, 1) and p(y = 1 | h) = 1 / (1 + exp(-h)), by quadrature; a test computes it again.
LOGISTIC_SHIFT = 0.4132419282838141


def mask_sites(g: Tensor, precision: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the shape of `observed`, and zero where nothing is observed."""
    return torch.where(observed, g, 0.0), torch.where(observed, precision, 0.0)


def step_site(shift: Tensor) -> tuple[Tensor, Tensor]:
    r"""
    The site of a likelihood that rises with h from 0 to 1 and is symmetric, :math:`p(y \mid h) + p(y \mid -h) = 1`.
    Under a unit Gaussian prior :math:`\mathbb E[h^2 \mid y] = 1` by the symmetry. So the posterior has some mean m and
    the variance :math:`1 - m^2`, which are those of the unit Gaussian times the site

    .. math::

        g = \frac 1 m, \qquad \lambda = \frac {m^2} {1 - m^2}

    :param shift: The posterior's mean m.
    """
    return shift.reciprocal(), shift.square() / (1 - shift.square())


def poisson_site(y: Tensor) -> tuple[Tensor, Tensor]:
    r"""
    The site of a count y of the rate softplus(h): see :meth:`PoissonObservations.initial_sites`.

    :param y: Counts.
    """
    positive = y > 0
    count = torch.where(positive, y, 1.0)
    slope = -torch.expm1(-count)  # of softplus where it is the count: 1 - exp(-y)
    # softplus⁻¹(y) = y + log(1 - exp(-y))
    g, precision = count + slope.log(), slope.square() / count
    # p(0 | h) = exp(-softplus(h)) = 1 / (1 + exp(h))
    zero_g, zero_precision = step_site(torch.full_like(y, LOGISTIC_SHIFT))
    return torch.where(positive, g, -zero_g), torch.where(positive, precision, zero_precision)


def mean_of_count(y: Tensor) -> Tensor:
    """The mean at which :func:`poisson_site` approximates: the count, and softplus(0) = log 2 for a zero."""
    return torch.where(y > 0, y, math.log(2))
