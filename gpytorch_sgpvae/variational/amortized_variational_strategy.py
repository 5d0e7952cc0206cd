from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ApproximateGP
from gpytorch.utils.errors import CachingError
from gpytorch.utils.memoize import add_to_cache, get_from_cache
from gpytorch.variational._variational_strategy import _VariationalStrategy
from linear_operator.operators import (
    DiagLinearOperator,
    LinearOperator,
    MatmulLinearOperator,
    RootLinearOperator,
    SumLinearOperator,
)
from torch import Tensor

from ..conditionals import (
    Evidence,
    WhitenedPosterior,
    evidence_of_sites,
    inverse_cholesky,
    predictive_mean,
    predictive_root,
    predictive_variance,
    whitened_cross_covariance,
    whitened_posterior,
)
from ..context import Context, as_context
from .amortized_variational_distribution import AmortizedVariationalDistribution
from .whitened_distributions import AmortizedMultivariateNormal, WhitenedPrior


class Encoding(NamedTuple):
    """
    What a strategy remembers of a context: enough for q(f) anywhere, nothing of size N.

    :param inducing_points: (`M x D` or `K x M x D`).
    :param Luu_inv: Inverse Cholesky factor of K_uu (`K x M x M`).
    :param evidence: What the context says about the whitened inducing values (`*T x K x M x M`).
    :param posterior: The posterior of the whitened inducing values (`*T x K x M x M`).
    """

    inducing_points: Tensor
    Luu_inv: Tensor
    evidence: Evidence
    posterior: WhitenedPosterior

    def for_prediction(self) -> Encoding:
        """Off the graph, as GPyTorch's own test-time caches are (:class:`gpytorch.settings.detach_test_caches`)."""
        if settings.detach_test_caches.off():
            return self
        return Encoding(
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


class AmortizedVariationalStrategy(_VariationalStrategy):
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

    inducing_points: Tensor

    def __init__(
        self,
        model: ApproximateGP,
        inducing_points: Tensor,
        variational_distribution: AmortizedVariationalDistribution,
        learn_inducing_locations: bool = True,
        jitter_val: float | None = None,
    ):
        if not isinstance(variational_distribution, AmortizedVariationalDistribution):
            raise TypeError(
                "AmortizedVariationalStrategy needs an AmortizedVariationalDistribution(network), got "
                f"{type(variational_distribution).__name__}."
            )
        super().__init__(model, inducing_points, variational_distribution, learn_inducing_locations, jitter_val)
        self._check_inducing_points(self.inducing_points)
        variational_distribution.num_inducing_points = self.inducing_points.shape[-2]
        self._conditioning: Context | None = None
        self._conditioning_encoding: Encoding | None = None
        self._q_v_versions: tuple[int, ...] = ()

    @property
    def num_latents(self) -> int | None:
        """K, or None for a model without a latent batch dimension."""
        return self._variational_distribution.num_latents

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

    def set_conditioning(self, context: Context | None) -> Context | None:
        """What calls without `context=` are conditioned on (see `conditioned_on`). Returns what it was before."""
        before, self._conditioning = self._conditioning, context
        self._forget_conditioning()
        return before

    def encode(self, context: Context | tuple[Tensor, Tensor], **kwargs: Any) -> Encoding:
        """Condition on a context: everything about it that q(f) depends on. Keywords go to the model's `forward`."""
        return self._encode(as_context(context), **kwargs)[0]

    @property
    def variational_distribution(self) -> AmortizedMultivariateNormal:
        """q(v), whitened, of the last call; under `conditioned_on` that of its context."""
        if self._conditioning is not None and self._last_q_v_is_outdated():
            self._remember(self._encoding_of(self._conditioning))
        q_v = self._last_q_v()
        if q_v is None:
            self._raise_no_context()
        return q_v

    @property
    def prior_distribution(self) -> WhitenedPrior:
        """p(v), whitened, of the shape of the last q(v)."""
        q_v = self._last_q_v()
        if q_v is None and self._conditioning is not None:
            q_v = self.variational_distribution
        shape = self._variational_distribution.shape() if q_v is None else q_v.loc.shape
        zeros = torch.zeros(shape, dtype=self.inducing_points.dtype, device=self.inducing_points.device)
        return WhitenedPrior(zeros, DiagLinearOperator(torch.ones_like(zeros)))

    def get_fantasy_model(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__} needs no fantasy model to take in new data: "
            "use gpytorch_sgpvae.condition(model, (x, y)), or pass context=(x, y) to the model."
        )

    def __call__(
        self,
        x: Tensor,
        prior: bool = False,
        diag: bool = True,
        context: Context | tuple[Tensor, Tensor] | Encoding | None = None,
        **kwargs: Any,
    ) -> MultivariateNormal:
        r"""
        :param x: Where to evaluate (`*T x N x D`). It never carries the latent dimension.
        :param prior: Return the prior p(f) instead; no context is needed then.
        :param diag: In training mode, whether the variances alone will do.
        :param context: What to condition on: a :class:`~gpytorch_sgpvae.Context`, a pair `(x, y)`, or the
            :class:`Encoding` of one.
        :param kwargs: Passed to the model's `forward`.
        :return: q(f) at x (`*T x K` x N, or `*T` x N where the network has `num_latents=None`).
        """
        x = x.unsqueeze(-1) if x.dim() == 1 else x
        self._check_inputs(x, "x")
        if prior:
            return self.model.forward(self._insert_latents(x), **kwargs)

        self._clear_cache()
        if context is None:
            context = self._active_context()
        at_x = None
        if isinstance(context, Encoding):
            encoding = context
        else:
            context = as_context(context)
            encoding, at_context = self._encode(context, **kwargs)
            at_x = at_context if context.is_at(x) else None
        if at_x is None:
            at_x = self._prior_at(x, encoding.inducing_points, encoding.Luu_inv, **kwargs)

        self._check_batch_shapes(x, encoding)
        self._remember(encoding)
        self.variational_params_initialized.fill_(1)
        return self._predict(at_x, encoding.posterior, diag=diag and self.training)

    def train(self, mode: bool = True) -> AmortizedVariationalStrategy:
        self._forget_conditioning()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> AmortizedVariationalStrategy:
        self._forget_conditioning()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._forget_conditioning()
        saved = state_dict.get(prefix + "inducing_points")
        if saved is not None and saved.shape[-1:] == self.inducing_points.shape[-1:]:
            # Their number may have been changed before saving.
            self.set_inducing_points(saved)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        # q(v) of the last call hangs on a graph, which can be neither copied nor pickled.
        forgotten: dict[str, Any] = {"_memoize_cache": {}, "_conditioning": None, "_conditioning_encoding": None}
        return {**self.__dict__, **forgotten}

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

    def _encode(self, context: Context, **kwargs: Any) -> tuple[Encoding, _PriorAt]:
        self._check_inputs(context.x, "The context's x")
        Luu_inv = self._inverse_cholesky_factor(**kwargs)
        at_context = self._prior_at(context.x, self.inducing_points, Luu_inv, **kwargs)
        sites = self._variational_distribution(context)
        evidence = evidence_of_sites(at_context.A, sites, at_context.mean)
        encoding = Encoding(self.inducing_points, Luu_inv, evidence, whitened_posterior(evidence))
        return encoding, at_context

    def _predict(self, at_x: _PriorAt, posterior: WhitenedPosterior, diag: bool) -> MultivariateNormal:
        mean = predictive_mean(at_x.mean, at_x.A, posterior.mean)  # (*T, K, N)
        C = predictive_root(at_x.A, posterior.inv_cholesky)  # (*T, K, M, N)
        if diag:
            prior_variance = at_x.covar.diagonal(dim1=-1, dim2=-2)
            return MultivariateNormal(mean, DiagLinearOperator(predictive_variance(prior_variance, at_x.A, C)))
        A = at_x.A.expand(C.shape)
        prior_covar = at_x.covar.expand(*C.shape[:-2], *at_x.covar.shape[-2:])
        # K** − A*ᵀ A* + A*ᵀ S A*, whose diagonal is cheap
        covar = SumLinearOperator(prior_covar, MatmulLinearOperator(-A.mT, A), RootLinearOperator(C.mT))
        return MultivariateNormal(mean, covar)

    def _insert_latents(self, x: Tensor) -> Tensor:
        if self.num_latents is None:
            return x
        return x.unsqueeze(-3).expand(*x.shape[:-2], self.num_latents, *x.shape[-2:])  # (*T, K, N, D)

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
        if x.dtype != Z.dtype or x.device != Z.device:
            raise ValueError(
                f"{name} is {x.dtype} on {x.device}, the model {Z.dtype} on {Z.device}: convert the data with "
                ".to(...), or the model with model.double(), .float() or .to(...)."
            )

    def _check_batch_shapes(self, x: Tensor, encoding: Encoding) -> None:
        tasks = encoding.posterior.mean.shape[: -1 if self.num_latents is None else -2]
        try:
            torch.broadcast_shapes(x.shape[:-2], tasks)
        except RuntimeError:
            raise ValueError(
                f"x of shape {tuple(x.shape)} has the batch shape {tuple(x.shape[:-2])}, which does not broadcast with "
                f"the context's {tuple(tasks)}: give one x per task, or one x without a batch for all."
            ) from None

    def _raise_no_context(self) -> NoReturn:
        raise ValueError(
            f"{type(self).__name__} computes q(u) from data and was given none: call model(x, context=(x_seen, "
            "y_seen)), or wrap callers that cannot pass a context in `with conditioned_on(model, context):`. "
            "model(x, prior=True) needs none."
        )

    def _active_context(self) -> Context | Encoding:
        if self._conditioning is None:
            self._raise_no_context()
        return self._conditioning if self.training else self._encoding_of(self._conditioning)

    def _encoding_of(self, conditioning: Context) -> Encoding:
        """Under `conditioned_on`: fresh in training, where a graph serves once; else encoded once."""
        if self.training:
            return self.encode(conditioning)
        if self._conditioning_encoding is None:
            self._conditioning_encoding = self.encode(conditioning).for_prediction()
        return self._conditioning_encoding

    def _remember(self, encoding: Encoding) -> None:
        """Under GPyTorch's own name, where its wrappers and objectives look for q(u)."""
        mean, R, kl_divergence = (tensor.to(self.inducing_points.dtype) for tensor in encoding.posterior)
        q_v = AmortizedMultivariateNormal(mean, RootLinearOperator(R.mT), prior_kl=kl_divergence)
        add_to_cache(self, "variational_distribution_memo", q_v)
        self._q_v_versions = self._parameter_versions() if self._conditioning is not None else ()

    def _last_q_v_is_outdated(self) -> bool:
        q_v = self._last_q_v()
        if q_v is None or not self.training:
            return q_v is None
        has_graph = q_v.loc.requires_grad or not torch.is_grad_enabled()
        return not has_graph or self._q_v_versions != self._parameter_versions()

    def _parameter_versions(self) -> tuple[int, ...]:
        """They count the changes in place, an optimizer's among them."""
        return tuple(parameter._version for parameter in self.model.parameters())

    def _forget_conditioning(self) -> None:
        """Under `conditioned_on`: whatever was computed from its context, or was there before it."""
        self._conditioning_encoding = None
        if self._conditioning is not None:
            self._clear_cache()

    def _last_q_v(self) -> AmortizedMultivariateNormal | None:
        try:
            return get_from_cache(self, "variational_distribution_memo")
        except CachingError:
            return None
