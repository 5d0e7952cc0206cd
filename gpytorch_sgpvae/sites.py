"""The approximate likelihoods, by their natural parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class GaussianSites:
    r"""
    Gaussian approximate likelihoods, one per point and latent function, up to normalization:

    .. math::

        l_n(f_n) \propto \exp \left( \lambda_n g_n \, f_n - \tfrac 1 2 \lambda_n f_n^2 \right)
        \propto \mathcal N \left( g_n \mid f_n, \lambda_n^{-1} \right)

    Natural parameters add where densities multiply, and :math:`\lambda_n = 0` says nothing about :math:`f_n`: a
    missing, a padded and an empty row are one mechanism.

    :param precision_mean: :math:`\lambda_n g_n`, precision times pseudo-observation (`*T x K x N`).
    :param precision: :math:`\lambda_n \geq 0` (`*T x K x N`).

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import GaussianSites
        >>> a = GaussianSites(precision_mean=torch.tensor([[2.0, 0.0]]), precision=torch.tensor([[1.0, 0.0]]))
        >>> (a + a).precision
        tensor([[2., 0.]])
    """

    precision_mean: Tensor
    precision: Tensor

    def __post_init__(self) -> None:
        if self.precision_mean.shape != self.precision.shape:
            raise ValueError(
                f"precision_mean has shape {tuple(self.precision_mean.shape)} and precision "
                f"{tuple(self.precision.shape)}: both must be (*T, K, N)."
            )

    @property
    def shape(self) -> torch.Size:
        return self.precision.shape

    def detach(self) -> GaussianSites:
        return GaussianSites(self.precision_mean.detach(), self.precision.detach())

    def __add__(self, other: GaussianSites) -> GaussianSites:
        """The product of the Gaussians, for sites of the same points."""
        if not isinstance(other, GaussianSites):
            return NotImplemented
        if self.shape != other.shape:
            raise ValueError(
                f"Only sites of the same points can be added, got the shapes {tuple(self.shape)} and "
                f"{tuple(other.shape)}: sites of different points belong in one Context."
            )
        return GaussianSites(self.precision_mean + other.precision_mean, self.precision + other.precision)
