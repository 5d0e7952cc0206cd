"""The approximate likelihoods, by their natural parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, eq=False)
class GaussianSites:
    r"""
    Gaussian approximate likelihoods: J pseudo-observations of each point, up to normalization,

    .. math::

        l_n(\mathbf f_n) \propto \prod_{j=1}^J \exp \left( \lambda_{nj} g_{nj} \, \mathbf a_j^\top \mathbf f_n
        - \tfrac 1 2 \lambda_{nj} (\mathbf a_j^\top \mathbf f_n)^2 \right)
        \propto \prod_{j=1}^J \mathcal N \left( g_{nj} \mid \mathbf a_j^\top \mathbf f_n, \lambda_{nj}^{-1} \right)

    Without loadings each latent function has a pseudo-observation of its own, :math:`\mathbf a_k = \mathbf e_k` and
    J = K. With them a pseudo-observation is one of a sum of latent functions, as an output is, and couples them.

    Natural parameters add where densities multiply, and :math:`\lambda_{nj} = 0` says nothing: a missing, a padded and
    an empty row are one mechanism.

    :param precision_mean: :math:`\lambda_{nj} g_{nj}`, precision times pseudo-observation (`*T x J x N`).
    :param precision: :math:`\lambda_{nj} \geq 0` (`*T x J x N`).
    :param loadings: :math:`\mathbf a_j`, the rows of a matrix (`J x K`, or anything that broadcasts to
        `*T x N x J x K`); None is the identity.
    :param owners: For each latent function the number j of the only pseudo-observation that it may have a loading in,
        or -1 if it is shared. All other loadings of a function with an owner are zero and stay so. None: all functions
        are shared. Strategies recognize private functions by their owners, and may marginalize them.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import GaussianSites
        >>> a = GaussianSites(precision_mean=torch.tensor([[2.0, 0.0]]), precision=torch.tensor([[1.0, 0.0]]))
        >>> (a + a).precision
        tensor([[2., 0.]])

    Two pseudo-observations of two latent functions, one of their sum and one of their difference:

        >>> loadings = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> GaussianSites(torch.zeros(2, 10), torch.ones(2, 10), loadings).point_precision().shape
        torch.Size([10, 2, 2])
    """

    precision_mean: Tensor
    precision: Tensor
    loadings: Tensor | None = None
    owners: tuple[int, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.precision_mean.shape != self.precision.shape:
            raise ValueError(
                f"precision_mean has shape {tuple(self.precision_mean.shape)} and precision "
                f"{tuple(self.precision.shape)}: both must be (*T, J, N)."
            )
        if self.loadings is not None and self.loadings.shape[-2:-1] != self.precision.shape[-2:-1]:
            raise ValueError(
                f"loadings of shape {tuple(self.loadings.shape)} do not fit precisions of shape "
                f"{tuple(self.precision.shape)}, (*T, J, N): expected (J, K), or (*T, N, J, K)."
            )
        if self.owners is not None and (self.loadings is None or len(self.owners) != self.loadings.shape[-1]):
            raise ValueError(
                f"Got owners of {len(self.owners)} latent functions, but loadings "
                f"{'that are None' if self.loadings is None else f'of shape {tuple(self.loadings.shape)}'}: expected "
                "(J, K) and an owner, or -1, for each of the K."
            )

    @property
    def shape(self) -> torch.Size:
        return self.precision.shape

    def detach(self) -> GaussianSites:
        return self._mapped(Tensor.detach)

    def double(self) -> GaussianSites:
        """The same in float64."""
        return self.to(torch.float64)

    def to(self, dtype: torch.dtype) -> GaussianSites:
        """The same in another dtype."""
        return self._mapped(lambda tensor: tensor.to(dtype))

    def point_precision(self) -> Tensor:
        r"""
        The precision matrix of each point, :math:`\Lambda_n = \sum_j \lambda_{nj} \mathbf a_j \mathbf a_j^\top`
        (`*T x N x K x K`).
        """
        precision = self.precision.mT  # (*T, N, J)
        if self.loadings is None:
            return torch.diag_embed(precision)
        return (self.loadings * precision.unsqueeze(-1)).mT @ self.loadings

    def seen_by(self, mean: Tensor) -> Tensor:
        r"""
        :math:`\lambda_{nj} (g_{nj} - \mathbf a_j^\top \boldsymbol \mu_n)`, what is left to explain beside a prior mean
        (`*T x J x N`).

        :param mean: :math:`\boldsymbol \mu` (`*T x K x N`).
        """
        if self.loadings is not None:
            mean = (self.loadings @ mean.mT.unsqueeze(-1)).squeeze(-1).mT  # (*T, J, N)
        return self.precision_mean - self.precision * mean

    def to_latents(self, values: Tensor) -> Tensor:
        r""":math:`\sum_j \mathbf a_j v_{nj}`, from `*T x J x N` to `*T x K x N`."""
        if self.loadings is None:
            return values
        return (values.mT.unsqueeze(-2) @ self.loadings).squeeze(-2).mT

    def __add__(self, other: GaussianSites) -> GaussianSites:
        """The product of the Gaussians, for sites of the same points. Pseudo-observations of the same sums add."""
        if not isinstance(other, GaussianSites):
            return NotImplemented
        if self.shape[-1] != other.shape[-1] or self.shape[:-2] != other.shape[:-2]:
            self._raise_other_points(other)
        if _are_equal(self.loadings, other.loadings):
            if self.shape != other.shape:
                self._raise_other_points(other)
            precision_mean, precision = self.precision_mean + other.precision_mean, self.precision + other.precision
            return GaussianSites(precision_mean, precision, self.loadings, self.owners or other.owners)
        ours, theirs = self.explicit_loadings(), other.explicit_loadings()
        if ours.shape[-1] != theirs.shape[-1]:
            raise ValueError(
                f"Only sites of the same latent functions can be added, got those of {ours.shape[-1]} latent functions "
                f"and of {theirs.shape[-1]}."
            )
        batch = torch.broadcast_shapes(ours.shape[:-2], theirs.shape[:-2])
        loadings = torch.cat([part.expand(*batch, *part.shape[-2:]) for part in (ours, theirs)], dim=-2)
        return GaussianSites(
            torch.cat([self.precision_mean, other.precision_mean], dim=-2),
            torch.cat([self.precision, other.precision], dim=-2),
            loadings,
        )

    def are_of(self, loadings: Tensor) -> bool:
        """Return whether these sites say that they are sites of the sums of latent functions by these loadings."""
        return self.loadings is not None and _are_equal(self.loadings, loadings)

    def expand(self, shape: torch.Size | tuple[int, ...]) -> GaussianSites:
        """The same for each of many tasks, as sites of a larger shape."""
        if self.shape == torch.Size(shape):
            return self
        precision_mean, precision = self.precision_mean.expand(shape), self.precision.expand(shape)
        return replace(self, precision_mean=precision_mean, precision=precision)

    def explicit_loadings(self) -> Tensor:
        """The loadings, also where they are the identity (`J x K`, or more)."""
        if self.loadings is not None:
            return self.loadings
        return torch.eye(self.shape[-2], dtype=self.precision.dtype, device=self.precision.device)

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> GaussianSites:
        loadings = None if self.loadings is None else function(self.loadings)
        return GaussianSites(function(self.precision_mean), function(self.precision), loadings, self.owners)

    def _raise_other_points(self, other: GaussianSites) -> None:
        raise ValueError(
            f"Only sites of the same points can be added, got the shapes {tuple(self.shape)} and "
            f"{tuple(other.shape)}: sites of different points belong in one Context."
        )


def side_by_side(parts: Sequence[GaussianSites]) -> GaussianSites:
    """
    The sites of different points of the same tasks (`*T x J x N` each), one after the other. Points with fewer
    pseudo-observations than others get further ones that say nothing.
    """
    first, *others = (part.loadings for part in parts)
    owners = next((part.owners for part in parts if part.owners is not None), None)
    if all(loadings is None or loadings.dim() == 2 for loadings in (first, *others)) and all(
        _are_equal(first, other) for other in others
    ):
        loadings = first
    else:
        J, owners = max(part.shape[-2] for part in parts), None
        parts = [_with_as_many(part, J) for part in parts]
        loadings = torch.cat([part.explicit_loadings() for part in parts], dim=-3)
    precision_mean = torch.cat([part.precision_mean for part in parts], dim=-1)
    return GaussianSites(precision_mean, torch.cat([part.precision for part in parts], dim=-1), loadings, owners)


def owners_of(loadings: Tensor) -> tuple[int, ...] | None:
    """
    The owners of latent functions that at most one pseudo-observation has a loading of, by the loadings' values: for
    loadings that will not change (`J x K`). None where there are other loadings for each point.
    """
    if loadings.dim() > 2:
        return None
    is_private = (loadings != 0).sum(-2) <= 1  # (K,)
    return tuple(torch.where(is_private, loadings.abs().argmax(-2), -1).tolist())


def _with_as_many(sites: GaussianSites, J: int) -> GaussianSites:
    """The same sites with J pseudo-observations of each point, and loadings for each point (`*T x N x J x K`)."""
    more = J - sites.shape[-2]
    loadings = sites.explicit_loadings()
    loadings = loadings.expand(*sites.shape[:-2], sites.shape[-1], *loadings.shape[-2:])
    return GaussianSites(
        pad(sites.precision_mean, (0, 0, 0, more)),
        pad(sites.precision, (0, 0, 0, more)),
        pad(loadings, (0, 0, 0, more)),
    )


def _are_equal(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None or left is right:
        return left is right
    return left.shape == right.shape and torch.equal(left, right)
