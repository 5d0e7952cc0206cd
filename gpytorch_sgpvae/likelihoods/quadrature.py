"""Nodes at which expectations of Gaussian variables are evaluated."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Expectations of polynomials up to degree 39 are exact.
NUM_NODES = 20


def gauss_hermite(like: Tensor) -> tuple[Tensor, Tensor]:
    r"""
    Nodes and weights of an expectation under a standard normal distribution,

    .. math::

        \mathbb E g(z) \approx \sum_s w_s \, g(z_s), \qquad \sum_s w_s = 1

    :param like: The result has its dtype and device.
    :return: z and w (`S` each).

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.likelihoods.quadrature import gauss_hermite
        >>> nodes, weights = gauss_hermite(torch.zeros((), dtype=torch.float64))
        >>> f"{(weights * nodes**4).sum():.6f}"
        '3.000000'
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(NUM_NODES)
    weights = weights / weights.sum()
    return torch.as_tensor(nodes).to(like), torch.as_tensor(weights).to(like)
