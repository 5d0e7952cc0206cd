from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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
from ..magnitudes import check_magnitude
from ..sites import GaussianSites
from ..utils.shapes import expands_to
from .amortized_multivariate_normal import AmortizedMultivariateNormal, AmortizedPrior, standard_normal
from .amortized_strategy import AmortizedStrategy
from .amortized_variational_distribution import AmortizedVariationalDistribution
from .encoding import Encoding
from .joint_prior import JointPrior
from .posterior_covariance import PosteriorCovariance
from .saved_posterior import ANY, check_saved


class PriorAt(NamedTuple):
    """The prior at some inputs, as seen from the inducing points."""

    mean: Tensor  # μ_f                                   (*T, K, N)
    variance: Tensor  # diag K_ff                         (*T, K, N)
    A: Tensor  # L⁻¹ K_uf                                 (*T, K, M, N)
    covar: Callable[[], LinearOperator]  # K_ff, lazy     (*T, K, N, N)


@dataclass(frozen=True, eq=False)
class SparseEncoding(Encoding):
    """
    What the sparse strategy remembers of a context: nothing of size N.

    :param Z: The inducing points (`M x D` or `K x M x D`).
    :param Luu_inv: Inverse Cholesky factor of K_uu (`K x M x M`).
    :param evidence: What the context says about the whitened inducing values (`*T x K x M x M`).
    :param posterior: The posterior of the whitened inducing values (`*T x K x M x M`).
    """

    strategy: AmortizedVariationalStrategy
    Z: Tensor
    Luu_inv: Tensor
    evidence: Evidence
    posterior: WhitenedPosterior

    @property
    def tasks(self) -> torch.Size:
        batch = self.posterior.weights.shape[:-1]
        return batch if self.strategy.num_latents is None else batch[:-1]

    @property
    def inducing_points(self) -> Tensor:
        return self.Z

    def predict(self, x: Tensor, at_x: PriorAt | None, diag: bool, **kwargs: Any) -> MultivariateNormal:
        at_x = self.strategy.prior_at(x, self, **kwargs) if at_x is None else at_x
        shift, shrinkage = shift_and_shrinkage(at_x.A, self.posterior)
        mean, variance = at_x.mean + shift, at_x.variance - shrinkage  # (*T, K, N)
        if diag:
            return MultivariateNormal(mean, DiagLinearOperator(variance))
        reduction = self.posterior.reduction.to(variance.dtype)
        return MultivariateNormal(mean, PosteriorCovariance(at_x.covar(), at_x.A, reduction, variance))

    def q_u(self) -> AmortizedMultivariateNormal:
        """q(v), whitened."""
        mean, _, R, kl_divergence = (tensor.to(self.Z.dtype) for tensor in self.posterior)
        return AmortizedMultivariateNormal(mean, RootLinearOperator(R.mT), prior_kl=kl_divergence)

    def p_u(self) -> AmortizedPrior:
        """p(v), whitened."""
        return standard_normal(torch.zeros_like(self.posterior.weights, dtype=self.Z.dtype))

    def absorb(self, context: Context) -> SparseEncoding:
        r"""Absorb N new points in :math:`O(T K (N M^2 + M^3))`: evidence adds."""
        further = self.strategy.evidence_of(context, self)
        new, before = further.precision_mean.shape[:-1], self.evidence.precision_mean.shape[:-1]
        if not expands_to(new, before):
            raise ValueError(
                f"The further context is of the tasks and latent functions {tuple(new)}, but what was seen before of "
                f"{tuple(before)}: an update is for the same tasks."
            )
        evidence = self.evidence + further
        return replace(self, evidence=evidence, posterior=whitened_posterior(evidence))

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "inducing_points": self.Z.detach(),
            "Luu_inv": self.Luu_inv.detach(),
            "precision_mean": self.evidence.precision_mean.detach(),
            "precision": self.evidence.precision.detach(),
        }

    def detach(self) -> SparseEncoding:
        return type(self)(
            self.strategy,
            self.Z.detach(),
            self.Luu_inv.detach(),
            Evidence(self.evidence.precision_mean.detach(), self.evidence.precision.detach()),
            WhitenedPosterior(*(tensor.detach() for tensor in self.posterior)),
        )


class AmortizedVariationalStrategy(AmortizedStrategy):
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
        Fixed tasks may have some of their own, `*T x K x M x D`.
    :param variational_distribution: Holds the inference network.
    :param learn_inducing_locations: Whether the inducing points are parameters of the model.
    :param jitter_val: Added to the diagonal of K_uu; by default
        :class:`gpytorch.settings.variational_cholesky_jitter`.
    :param x_has_latents: Whether new inputs come with a dimension for the latent functions, `*T x K x N x D`, as a
        :class:`gpytorch.models.deep_gps.DeepGPLayer` with `output_dims=K` gives them. A context never has it.

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

    def __init__(
        self,
        model: ApproximateGP,
        inducing_points: Tensor,
        variational_distribution: AmortizedVariationalDistribution,
        learn_inducing_locations: bool = True,
        jitter_val: float | None = None,
        x_has_latents: bool = False,
    ):
        super().__init__(
            model, inducing_points, variational_distribution, learn_inducing_locations, jitter_val, x_has_latents
        )
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

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(prefix + "inducing_points")
        current = self.inducing_points.shape
        if saved is not None and saved.shape != current and saved.shape[-1:] == current[-1:]:
            # Their number was changed before saving; otherwise the parameter stays the one that an optimizer knows.
            self.set_inducing_points(saved)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def encoding_from_state_dict(self, state_dict: dict[str, Tensor]) -> SparseEncoding:
        check_saved(state_dict, self._saved_shapes, {"K": self.num_latents, "D": self.inducing_points.shape[-1]})
        self._check_inducing_points(state_dict["inducing_points"])
        evidence = Evidence(state_dict["precision_mean"], state_dict["precision"])
        return self._encoding(state_dict["inducing_points"], state_dict["Luu_inv"], evidence)

    @property
    def _saved_shapes(self) -> dict[str, tuple[str, ...]]:
        """See :func:`check_saved`."""
        return {
            "inducing_points": (ANY, "M", "D"),
            "Luu_inv": ("K", "M", "M"),
            "precision_mean": ("K", "M"),
            "precision": ("K", "M", "M"),
        }

    def prior_at(self, x: Tensor, encoding: SparseEncoding, **kwargs: Any) -> PriorAt:
        """The prior at new inputs, as seen from the inducing points of an encoding."""
        prior = self._prior(self._latent_inducing_points(encoding.Z), self._for_latents(x), **kwargs)
        return _prior_at(prior, 1, encoding.Luu_inv)

    def evidence_of(self, context: Context | tuple[Tensor, Tensor], encoding: SparseEncoding) -> Evidence:
        """What further points say about the inducing values of an encoding."""
        if not self._variational_distribution.row_wise:
            raise NotImplementedError(self._rows_depend_on_each_other())
        return self._evidence(self._checked(context), encoding.Z, encoding.Luu_inv)

    def _encode(
        self, context: Context, sites: GaussianSites, x: Tensor, **kwargs: Any
    ) -> tuple[SparseEncoding, PriorAt]:
        Z, locations = self.inducing_points, self._seen(context, self.inducing_points).locations
        groups, numbers = [self._latent_inducing_points(Z)], {id(Z): 0}
        for points in (locations, x):
            if id(points) not in numbers:
                numbers[id(points)] = len(groups)
                groups.append(self._insert_latents(points) if points is context.x else self._for_latents(points))
        prior = self._prior(*groups, **kwargs)
        # Once per latent function, whatever the number of tasks.
        Luu_inv = inverse_cholesky(prior.covariance(0, 0).add_jitter(self.jitter_val).to_dense())  # (K, M, M)
        at_sites = _prior_at(prior, numbers[id(locations)], Luu_inv)
        encoding = self._encoding(Z, Luu_inv, self._evidence_at(at_sites, sites))
        return encoding, at_sites if x is locations else _prior_at(prior, numbers[id(x)], Luu_inv)

    def _encode_chunks(self, chunks: Iterable[Context], **kwargs: Any) -> SparseEncoding:
        Z = self.inducing_points
        Kuu = self._prior(self._latent_inducing_points(Z), **kwargs).covariance(0, 0)
        Luu_inv = inverse_cholesky(Kuu.add_jitter(self.jitter_val).to_dense())  # (K, M, M)

        def natural_parameters(chunk: Context) -> tuple[Tensor, Tensor]:
            evidence = self._evidence(chunk, Z, Luu_inv, **kwargs)
            return evidence.precision_mean, evidence.precision

        evidence = reduce(add, (Evidence(*recomputed(partial(natural_parameters, chunk))) for chunk in chunks))
        return self._encoding(Z, Luu_inv, evidence)

    def _why_not_in_chunks(self) -> str | None:
        return None if self._variational_distribution.row_wise else self._rows_depend_on_each_other()

    def _evidence(self, context: Context, Z: Tensor, Luu_inv: Tensor, **kwargs: Any) -> Evidence:
        context = self._seen(context, Z)
        prior = self._prior(self._latent_inducing_points(Z), self._insert_latents(context.locations), **kwargs)
        at_sites = _prior_at(prior, 1, Luu_inv)
        return self._evidence_at(at_sites, self._checked_sites(self._variational_distribution(context)))

    def _evidence_at(self, at_sites: PriorAt, sites: GaussianSites) -> Evidence:
        """What sites say about the inducing values."""
        return evidence_of_sites(at_sites.A, sites, at_sites.mean)

    def _encoding(self, Z: Tensor, Luu_inv: Tensor, evidence: Evidence) -> SparseEncoding:
        return SparseEncoding(self, Z, Luu_inv, evidence, whitened_posterior(evidence))

    def _seen(self, context: Context, inducing_points: Tensor) -> Context:
        """The context as the network sees it, with sites at its locations: here they are at its own inputs."""
        return context

    def _prior_without_context(self) -> AmortizedPrior:
        Z = self.inducing_points
        return standard_normal(torch.zeros(self._variational_distribution.shape(), dtype=Z.dtype, device=Z.device))

    def _latent_inducing_points(self, inducing_points: Tensor) -> Tensor:
        """`K x M x D`, also for the inducing points that all latent functions share."""
        return self._insert_latents(inducing_points) if inducing_points.dim() == 2 else inducing_points

    def _check_inducing_points(self, inducing_points: Tensor) -> None:
        shape, num_latents = tuple(inducing_points.shape), self.num_latents
        if inducing_points.dim() < 2 or inducing_points.shape[-2] == 0:
            raise ValueError(f"Expected inducing points of shape (M, D) with M >= 1, got {shape}.")
        if num_latents is not None and shape[-3:-2] not in ((), (num_latents,)):
            raise ValueError(
                f"Inducing points of shape {shape} do not fit a network with num_latents={num_latents}: "
                f"expected (M, D), or ({num_latents}, M, D) for inducing points of each latent function's own."
            )
        check_magnitude(inducing_points, "A tensor of inducing points", "place them among the inputs.")


def _prior_at(prior: JointPrior, group: int, Luu_inv: Tensor) -> PriorAt:
    Kuf = prior.covariance(0, group).to_dense()  # (*T, K, M, N)
    A = whitened_cross_covariance(Luu_inv, Kuf)  # (*T, K, M, N)
    return PriorAt(prior.mean(group), prior.variance(group), A, partial(prior.covariance, group, group))
