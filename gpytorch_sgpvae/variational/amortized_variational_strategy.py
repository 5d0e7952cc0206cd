from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ApproximateGP
from linear_operator.operators import DiagLinearOperator, LinearOperator, RootLinearOperator
from torch import Tensor

from ..context import Context
from ..linalg.conditionals import (
    Evidence,
    WhitenedPosterior,
    evidence_of_sites,
    inverse_cholesky,
    shift_and_shrinkage,
    whitened_cross_covariance,
    whitened_posterior,
)
from ..linalg.recompute import recomputed
from ..sites import GaussianSites
from ..utils.shapes import expands_to
from ._amortized_strategy import Encoding, _AmortizedStrategy
from .amortized_multivariate_normal import AmortizedMultivariateNormal, AmortizedPrior
from .amortized_variational_distribution import AmortizedVariationalDistribution
from .posterior_covariance import PosteriorCovariance


@dataclass(frozen=True, eq=False)
class SparseEncoding(Encoding):
    """
    What the sparse strategy remembers of a context: nothing of size N.

    :param inducing_points: (`M x D` or `K x M x D`).
    :param Luu_inv: Inverse Cholesky factor of K_uu (`K x M x M`).
    :param evidence: What the context says about the whitened inducing values (`*T x K x M x M`).
    :param posterior: The posterior of the whitened inducing values (`*T x K x M x M`).
    """

    inducing_points: Tensor
    Luu_inv: Tensor
    evidence: Evidence
    posterior: WhitenedPosterior

    @property
    def tasks(self) -> torch.Size:
        return self.posterior.weights.shape[:-1]

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "inducing_points": self.inducing_points.detach(),
            "Luu_inv": self.Luu_inv.detach(),
            "precision_mean": self.evidence.precision_mean.detach(),
            "precision": self.evidence.precision.detach(),
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Tensor]) -> SparseEncoding:
        evidence = Evidence(state["precision_mean"], state["precision"])
        return cls(state["inducing_points"], state["Luu_inv"], evidence, whitened_posterior(evidence))

    def detach(self) -> SparseEncoding:
        return SparseEncoding(
            self.inducing_points.detach(),
            self.Luu_inv.detach(),
            Evidence(self.evidence.precision_mean.detach(), self.evidence.precision.detach()),
            WhitenedPosterior(*(tensor.detach() for tensor in self.posterior)),
        )


class _PriorAt(NamedTuple):
    """The prior at some inputs, as seen from the inducing points."""

    mean: Tensor  # μ_f                        (*T, K, N)
    A: Tensor  # L⁻¹ K_uf                      (*T, K, M, N)
    covar: LinearOperator  # K_ff, lazy        (*T, K, N, N)


class AmortizedVariationalStrategy(_AmortizedStrategy):
    r"""
    A variational strategy whose :math:`q(\mathbf u)` is computed from data: swap it for
    :class:`gpytorch.variational.VariationalStrategy`, pass `context=` to the model, and the model conditions on any
    task in one forward pass (`Ashman et al. (2020)`_).

    With the sites :math:`(\lambda, \lambda g)` that an inference network makes of the context,
    :math:`L L^\top = K_{\mathbf{uu}} + \epsilon I`, :math:`\mathbf u = L \mathbf v + \boldsymbol \mu_{\mathbf u}`
    and :math:`A = L^{-1} K_{\mathbf{uf}}`:

    .. math::

        q(\mathbf v) &= \mathcal N \left( S A (\lambda g - \lambda \boldsymbol \mu_{\mathbf f}), \; S \right), \qquad
        S = (I + A \Lambda A^\top)^{-1} \\
        q(\mathbf f_*) &= \mathcal N \left( \boldsymbol \mu_* + A_*^\top \mathbf m, \;
        K_{**} - A_*^\top A_* + A_*^\top S A_* \right)

    Cost per call: :math:`O(T K (N M^2 + M^3))`; no N x N matrix is ever formed for means and variances.

    :param model: The model this strategy is applied to, typically `self` in the model's `__init__`.
    :param inducing_points: Locations of the inducing points, `M x D` (shared by all latent functions) or `K x M x D`.
    :param variational_distribution: Holds the inference network.
    :param learn_inducing_locations: Whether the inducing points are parameters of the model.
    :param jitter_val: Added to the diagonal of K_uu; by default
        :class:`gpytorch.settings.variational_cholesky_jitter`.

    Example:
        >>> import gpytorch, torch
        >>> from gpytorch_sgpvae import AmortizedVariationalDistribution, AmortizedVariationalStrategy, FactorNet
        >>> class Model(gpytorch.models.ApproximateGP):
        ...     def __init__(self, inducing_points):
        ...         q_u = AmortizedVariationalDistribution(FactorNet(num_outputs=1, num_latents=None))
        ...         super().__init__(AmortizedVariationalStrategy(self, inducing_points, q_u))
        ...         self.mean_module = gpytorch.means.ConstantMean()
        ...         self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        ...     def forward(self, x):
        ...         return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
        >>> model = Model(torch.rand(8, 2))
        >>> model(torch.rand(4, 2), context=(torch.rand(20, 2), torch.randn(20))).event_shape
        torch.Size([4])

    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """

    encodes_in_chunks = True

    def __init__(
        self,
        model: ApproximateGP,
        inducing_points: Tensor,
        variational_distribution: AmortizedVariationalDistribution,
        learn_inducing_locations: bool = True,
        jitter_val: float | None = None,
    ):
        super().__init__(model, inducing_points, variational_distribution, learn_inducing_locations, jitter_val)
        self._check_inducing_points(self.inducing_points)
        variational_distribution.num_inducing_points = self.inducing_points.shape[-2]

    def set_inducing_points(self, inducing_points: Tensor) -> None:
        r"""
        Change the inducing points, and their number, at any time: the network does not know of them.

        An optimizer made earlier still holds the old ones; a :class:`~gpytorch_sgpvae.Posterior` made earlier goes on
        using them.

        :param inducing_points: (`M x D` or `K x M x D`).
        """
        current = self.inducing_points
        inducing_points = inducing_points.detach().to(dtype=current.dtype, device=current.device).clone()
        inducing_points = inducing_points.unsqueeze(-1) if inducing_points.dim() == 1 else inducing_points
        if inducing_points.shape[-1] != current.shape[-1]:
            raise ValueError(
                f"The new inducing points of shape {tuple(inducing_points.shape)} have another input dimension than "
                f"the present ones of shape {tuple(current.shape)}."
            )
        self._check_inducing_points(inducing_points)
        if isinstance(current, torch.nn.Parameter):
            inducing_points = torch.nn.Parameter(inducing_points, requires_grad=current.requires_grad)
        self.inducing_points = inducing_points
        self._variational_distribution.num_inducing_points = inducing_points.shape[-2]
        self._clear_cache()
        self._forget_conditioning()

    def absorb(self, encoding: SparseEncoding, context: Context | tuple[Tensor, Tensor]) -> SparseEncoding:
        r"""
        The encoding of all that an encoding has seen and a further context, in :math:`O(T K (N M^2 + M^3))` for the N
        new points: evidence adds.
        """
        further = self._evidence(self._checked(context), encoding.inducing_points, encoding.Luu_inv)
        if not expands_to(further.precision_mean.shape[:-1], encoding.tasks):
            raise ValueError(
                f"The further context is of the tasks and latent functions {tuple(further.precision_mean.shape[:-1])}, "
                f"but what was seen before of {tuple(encoding.tasks)}: an update is for the same tasks."
            )
        evidence = encoding.evidence + further
        return SparseEncoding(encoding.inducing_points, encoding.Luu_inv, evidence, whitened_posterior(evidence))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(prefix + "inducing_points")
        current = self.inducing_points.shape
        if saved is not None and saved.shape != current and saved.shape[-1:] == current[-1:]:
            # Their number was changed before saving; otherwise the parameter stays the one that an optimizer knows.
            self.set_inducing_points(saved)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _encode(self, context: Context, sites: GaussianSites, **kwargs: Any) -> tuple[SparseEncoding, _PriorAt | None]:
        Luu_inv = self._inverse_cholesky_factor(**kwargs)
        locations = self._site_locations(context, self.inducing_points)
        at_sites = self._prior_at(locations, self.inducing_points, Luu_inv, **kwargs)
        evidence = evidence_of_sites(at_sites.A, sites, at_sites.mean)
        encoding = SparseEncoding(self.inducing_points, Luu_inv, evidence, whitened_posterior(evidence))
        return encoding, at_sites if locations is context.x else None

    def _encode_chunks(self, chunks: Iterable[Context], **kwargs: Any) -> SparseEncoding:
        Luu_inv = self._inverse_cholesky_factor(**kwargs)

        def natural_parameters(chunk: Context) -> tuple[Tensor, Tensor]:
            evidence = self._evidence(chunk, self.inducing_points, Luu_inv, **kwargs)
            return evidence.precision_mean, evidence.precision

        evidence = reduce(add, (Evidence(*recomputed(partial(natural_parameters, chunk))) for chunk in chunks))
        return SparseEncoding(self.inducing_points, Luu_inv, evidence, whitened_posterior(evidence))

    def _evidence(self, context: Context, inducing_points: Tensor, Luu_inv: Tensor, **kwargs: Any) -> Evidence:
        locations = self._site_locations(context, inducing_points)
        at_sites = self._prior_at(locations, inducing_points, Luu_inv, **kwargs)
        return evidence_of_sites(at_sites.A, self._sites_seen_from(context, inducing_points), at_sites.mean)

    def _sites_seen_from(self, context: Context, inducing_points: Tensor) -> GaussianSites:
        """The sites of a context; these here do not know of the inducing points."""
        return self.sites(context)

    def _site_locations(self, context: Context, inducing_points: Tensor) -> Tensor:
        """Where the function values are that the sites speak of: the context's own inputs."""
        return context.x

    def _predict(  # type: ignore[override]
        self, x: Tensor, encoding: SparseEncoding, at_x: _PriorAt | None, diag: bool, **kwargs: Any
    ) -> MultivariateNormal:
        if at_x is None:
            at_x = self._prior_at(x, encoding.inducing_points, encoding.Luu_inv, **kwargs)
        shift, shrinkage = shift_and_shrinkage(at_x.A, encoding.posterior)
        mean, variance = at_x.mean + shift, at_x.covar.diagonal(dim1=-1, dim2=-2) - shrinkage  # (*T, K, N)
        if diag:
            return MultivariateNormal(mean, DiagLinearOperator(variance))
        reduction = encoding.posterior.reduction.to(variance.dtype)
        return MultivariateNormal(mean, PosteriorCovariance(at_x.covar, at_x.A, reduction, variance))

    def _q_u(self, encoding: SparseEncoding) -> AmortizedMultivariateNormal:  # type: ignore[override]
        """q(v), whitened."""
        mean, _, R, kl_divergence = (tensor.to(self.inducing_points.dtype) for tensor in encoding.posterior)
        return AmortizedMultivariateNormal(mean, RootLinearOperator(R.mT), prior_kl=kl_divergence)

    def _p_u(self, encoding: SparseEncoding | None) -> AmortizedPrior:  # type: ignore[override]
        """p(v), whitened."""
        shape = self._variational_distribution.shape() if encoding is None else encoding.posterior.weights.shape
        zeros = torch.zeros(shape, dtype=self.inducing_points.dtype, device=self.inducing_points.device)
        return AmortizedPrior(zeros, DiagLinearOperator(torch.ones_like(zeros)))

    def _inverse_cholesky_factor(self, **kwargs: Any) -> Tensor:
        """Once per latent function, whatever the number of tasks."""
        Kuu = self.model.forward(self._latent_inducing_points(self.inducing_points), **kwargs).lazy_covariance_matrix
        return inverse_cholesky(Kuu.add_jitter(self.jitter_val).to_dense())  # (K, M, M)

    def _prior_at(self, x: Tensor, inducing_points: Tensor, Luu_inv: Tensor, **kwargs: Any) -> _PriorAt:
        x = self._insert_latents(x)  # (*T, K, N, D)
        x, inducing_points = self._expand_inputs(x, self._latent_inducing_points(inducing_points))
        num_inducing = inducing_points.shape[-2]
        # A kernel's matrix is lazy: only the blocks that are taken out of it are ever computed.
        joint = self.model.forward(torch.cat([inducing_points, x], dim=-2), **kwargs)
        covar = joint.lazy_covariance_matrix
        Kuf = covar[..., :num_inducing, num_inducing:].to_dense()  # (*T, K, M, N)
        return _PriorAt(
            mean=joint.mean[..., num_inducing:],
            A=whitened_cross_covariance(Luu_inv, Kuf),
            covar=covar[..., num_inducing:, num_inducing:],
        )

    def _latent_inducing_points(self, inducing_points: Tensor) -> Tensor:
        """`K x M x D`, also for the inducing points that all latent functions share."""
        return self._insert_latents(inducing_points) if inducing_points.dim() == 2 else inducing_points

    def _check_inducing_points(self, inducing_points: Tensor) -> None:
        shape, num_latents = tuple(inducing_points.shape), self.num_latents
        if inducing_points.dim() < 2 or inducing_points.shape[-2] == 0:
            raise ValueError(f"Expected inducing points of shape (M, D) with M >= 1, got {shape}.")
        if num_latents is not None and shape[:-2] not in ((), (num_latents,)):
            raise ValueError(
                f"Inducing points of shape {shape} do not fit a network with num_latents={num_latents}: "
                f"expected (M, D), or ({num_latents}, M, D) for inducing points of each latent function's own."
            )

    def _check_inputs(self, x: Tensor, name: str) -> None:
        Z = self.inducing_points
        if x.shape[-1] != Z.shape[-1]:
            raise ValueError(
                f"{name} of shape {tuple(x.shape)} has {x.shape[-1]} input dimensions, but the inducing points of "
                f"shape {tuple(Z.shape)} have {Z.shape[-1]}: expected (*T, N, D)."
            )
        super()._check_inputs(x, name)
