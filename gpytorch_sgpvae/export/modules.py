from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import gpytorch
import linear_operator
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood, MultitaskGaussianLikelihood
from gpytorch.models import ApproximateGP
from gpytorch.variational import IndependentMultitaskVariationalStrategy, LMCVariationalStrategy
from linear_operator.operators import BlockDiagLinearOperator, DiagLinearOperator, LinearOperator
from torch import Tensor
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode
from torch.quasirandom import SobolEngine

from .._compat import unvalidated_distributions
from ..context import Context
from ..likelihoods import DecoderLikelihood
from ..models.base import AmortizedModel, parts_of
from ..sites import GaussianSites
from ..variational import MarkovAmortizedVariationalStrategy
from ..variational.joint_normal import JointNormal
from ..variational.point_marginals import is_coupled, point_covariances
from ..variational.posterior import amortized_strategy


class EncoderModule(torch.nn.Module):
    r"""
    The inference network of a model, the first part of a :class:`PredictionModule`: from data to sites.

    :param model: A model with one amortized strategy in it.
    """

    def __init__(self, model: ApproximateGP):
        super().__init__()
        self.model = model

    def forward(self, x_context: Tensor, y_context: Tensor) -> tuple[Tensor, ...]:
        r"""
        :param x_context: The observed inputs (`*T x N x D`).
        :param y_context: The observed outputs (`*T x N x P`); NaN is missing.
        :return: :math:`\lambda g` and :math:`\lambda` (`*T x J x N` each), and the loadings (`J x K`, or `*T x N x J x
            K`) if the network has any. See :class:`~gpytorch_sgpvae.GaussianSites`.
        """
        with _without_values():
            sites = amortized_strategy(self.model).sites(Context(x_context, y_context))
            parts = sites.precision_mean, sites.precision
            return parts if sites.loadings is None else (*parts, sites.loadings)


class ConditioningModule(torch.nn.Module):
    r"""
    The Gaussian process of a model, the second part of a :class:`PredictionModule`: from sites to q(f).

    :param model: A model with one amortized strategy in it.
    """

    def __init__(self, model: ApproximateGP):
        super().__init__()
        self.model = model

    def forward(
        self, x: Tensor, x_context: Tensor, precision_mean: Tensor, precision: Tensor, loadings: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        r"""
        :param x: Where to predict (`*T x N* x D`).
        :param x_context: The observed inputs (`*T x N x D`).
        :param precision_mean: :math:`\lambda g` (`*T x J x N`).
        :param precision: :math:`\lambda` (`*T x J x N`).
        :param loadings: (`J x K`, or `*T x N x J x K`).
        :return: The mean of q(f) (`*T x N* x K`, or `*T x N*` without a latent dimension), and its variance, of the
            same shape. Where latent functions depend on each other, it is their covariance at each point
            (`*T x N* x K x K`).
        """
        with _without_values():
            strategy = amortized_strategy(self.model)
            if torch.jit.is_tracing() and isinstance(strategy, MarkovAmortizedVariationalStrategy):
                # A trace has the loops over this many points, and must not run on others: this is an error then.
                x_context = x_context.reshape([int(size) for size in x_context.shape])
            sites = GaussianSites(precision_mean, precision, loadings)
            # With sites the outputs of a context are not looked at, only how many tasks and rows there are.
            tasks = precision.shape[: -1 if strategy.num_latents is None else -2]
            context = Context(x_context, x_context.new_zeros(*tasks, x_context.shape[-2], 1))
            encoding = strategy.encode(context, sites)
            wrapper = self.model.variational_strategy
            if isinstance(wrapper, (IndependentMultitaskVariationalStrategy, LMCVariationalStrategy)):
                # their distributions would make constants of the numbers of points
                q_f = strategy(x, context=encoding, x_has_latents=False)
                mean, variance = q_f.mean.mT, _variance(q_f).mT  # (*T, N*, K)
                if isinstance(wrapper, LMCVariationalStrategy):
                    return _mixed(wrapper, mean, variance)
                return mean, variance
            q_f = self.model(x, context=encoding)
            if isinstance(q_f, MultitaskMultivariateNormal) and is_coupled(q_f):
                return q_f.mean, point_covariances(q_f)
            return q_f.mean, _variance(q_f)


class DecoderModule(torch.nn.Module):
    r"""
    The likelihood of a model, the last part of a :class:`PredictionModule`: from q(f) to outputs.

    :param likelihood: A :class:`~gpytorch_sgpvae.DecoderLikelihood`, or a likelihood of GPyTorch's whose marginals are
        known without samples, as a :class:`~gpytorch.likelihoods.GaussianLikelihood`.
    :param num_latents: The number of functions K that it reads, or None for a model without a latent dimension.
    :param num_samples: The number of samples S of the latent functions, where the outputs have no closed form. They are
        scrambled Sobol points, the same at each call and for each input.

    :ivar base_samples: The samples, as of standard normals (`S x K`).
    """

    base_samples: Tensor

    def __init__(self, likelihood: Likelihood, num_latents: int | None, num_samples: int = 128):
        super().__init__()
        self.likelihood = likelihood
        self.has_latents = num_latents is not None
        dtype = next((p.dtype for p in likelihood.parameters()), torch.get_default_dtype())
        samples = SobolEngine(num_latents or 1, scramble=True, seed=0).draw(num_samples, dtype=torch.float64)
        # Scrambled points may come as near to 0 and 1 as a float64 can: no nearer than those of a sample of this size.
        margin = 0.5 / num_samples
        normal = torch.special.ndtri(samples.clamp(margin, 1 - margin))
        self.register_buffer("base_samples", normal.to(dtype))

    def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        r"""
        :param mean: The mean of q(f) (`*T x N x K`, or `*T x N`).
        :param variance: The variance of q(f) (`*T x N x K`, `*T x N`, or `*T x N x K x K`).
        :return: Mean and variance of the outputs (`*T x N x P` each).
        """
        with _without_values():
            if isinstance(self.likelihood, MultitaskGaussianLikelihood):
                # linear_operator's matrix of its noise cannot be traced
                variance = variance.diagonal(dim1=-2, dim2=-1) if variance.dim() > mean.dim() else variance
                return mean, variance + _noise_of_outputs(self.likelihood)
            if not isinstance(self.likelihood, DecoderLikelihood):
                covar = _covariance(variance, variance.dim() - mean.dim() + self.has_latents)
                outputs = self.likelihood((_JointNormal if self.has_latents else _Normal)(mean, covar))
                return outputs.mean, _variance(outputs)
            if not self.has_latents:
                mean, variance = mean.unsqueeze(-1), variance.unsqueeze(-1)
            q_f = _PointwiseNormal(mean, variance)
            if self.likelihood.has_gaussian_outputs:
                outputs = self.likelihood.gaussian_marginals(q_f)
                return outputs.mean, outputs.variance
            S, K = self.base_samples.shape
            base_samples = self.base_samples.to(mean.dtype).view(S, *[1] * (mean.dim() - 1), K)
            prediction = self.likelihood.predict(q_f, base_samples=base_samples)
            return prediction.mean, prediction.variance


class PredictionModule(torch.nn.Module):
    r"""
    A trained model as a function of tensors: from the data of a task and new inputs to mean and variance of the outputs
    there, :math:`(\mathbf x_*, \mathbf x, \mathbf y) \mapsto (\mathbb E \, \mathbf y_*, \mathrm{var} \, \mathbf y_*)`.
    It is what `torch.jit.trace`, `torch.export.export` and :func:`to_onnx` take.

    It has a copy of the model, as it is now, in eval mode. It records no gradient, draws no random number, and looks at
    no value, so that a trace is right for all data: errors that the model raises of bad data are left out, and a
    covariance matrix that is not positive definite gives NaN.

    :param model: A ready-made model, or an approximate GP with one amortized strategy in it.
    :param likelihood: The likelihood, of an approximate GP.
    :param num_samples: See :class:`DecoderModule`.

    :ivar encoder: The inference network, an :class:`EncoderModule`.
    :ivar conditioning: The Gaussian process, a :class:`ConditioningModule`.
    :ivar decoder: The likelihood, a :class:`DecoderModule`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE
        >>> from gpytorch_sgpvae.export import PredictionModule
        >>> module = PredictionModule(SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.rand(8, 2)))
        >>> mean, variance = module(torch.rand(4, 2), torch.rand(20, 2), torch.randn(20, 5))
        >>> mean.shape, variance.shape
        (torch.Size([4, 5]), torch.Size([4, 5]))
    """

    def __init__(
        self, model: ApproximateGP | AmortizedModel, likelihood: Likelihood | None = None, num_samples: int = 128
    ):
        super().__init__()
        gp, likelihood = copy.deepcopy(parts_of(model, likelihood))
        strategy = amortized_strategy(gp)
        strategy.set_conditioning(None)
        strategy.missing_context_error = AttributeError
        self.encoder = EncoderModule(gp)
        self.conditioning = ConditioningModule(gp)
        wrapper = gp.variational_strategy
        num_functions = wrapper.num_tasks if isinstance(wrapper, LMCVariationalStrategy) else strategy.num_latents
        self.decoder = DecoderModule(likelihood, num_functions, num_samples)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor, x_context: Tensor, y_context: Tensor) -> tuple[Tensor, Tensor]:
        r"""
        :param x: Where to predict (`*T x N* x D`).
        :param x_context: The observed inputs (`*T x N x D`).
        :param y_context: The observed outputs (`*T x N x P`, or `*T x N` for one output); NaN is missing.
        :return: Mean and variance of the outputs (`*T x N* x P` each).
        """
        return self.decoder(*self.conditioning(x, x_context, *self.encoder(x_context, y_context)))


class _Unchecked:
    """A distribution that says its variance without a look at whether it is positive."""

    @property
    def variance(self: Any) -> Tensor:
        return _variance(self)


class _Normal(_Unchecked, MultivariateNormal):
    """q(f) of one function."""


class _JointNormal(_Unchecked, JointNormal):
    """q(f) of several functions."""


class _PointwiseNormal(JointNormal):
    """
    q(f), of each point by itself.

    :param mean: (`*T x N x K`).
    :param variance: (`*T x N x K`, or `*T x N x K x K`).
    """

    def __init__(self, mean: Tensor, variance: Tensor):
        is_coupled = variance.dim() > mean.dim()
        super().__init__(mean, _covariance(variance, 1 + is_coupled))
        self._variance = variance.diagonal(dim1=-2, dim2=-1) if is_coupled else variance

    @property
    def variance(self) -> Tensor:
        return self._variance


def _mixed(wrapper: LMCVariationalStrategy, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    r"""
    The linear mixture :math:`f_p = \sum_k a_{kp} g_k` of latent functions, point by point.

    :param wrapper: The strategy that mixes them.
    :param mean: The means of the latent functions (`*T x N x K`).
    :param variance: Their variances (`*T x N x K`).
    :return: The mean (`*T x N x P`) and the covariance at each point (`*T x N x P x P`).
    """
    A = wrapper.lmc_coefficients  # (K, P)
    covar = A.mT @ (variance.unsqueeze(-1) * A)  # (*T, N, P, P)
    return mean @ A, covar + wrapper.jitter_val * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)


def _noise_of_outputs(likelihood: MultitaskGaussianLikelihood) -> Tensor:
    """The noise variance of each output (`P`)."""
    parts = []
    if likelihood.has_global_noise:
        parts.append(likelihood.noise)
    if likelihood.has_task_noise:
        parts.append(likelihood.task_noise_covar.diagonal() if likelihood.rank else likelihood.task_noises)
    return torch.stack(torch.broadcast_tensors(*parts)).sum(0)


def _covariance(variance: Tensor, num_dims: int) -> LinearOperator:
    """
    The covariance of all points, which are independent of each other.

    :param variance: The variances of the points (`*T x N`, `*T x N x K` or `*T x N x K x K`).
    :param num_dims: The number of dimensions of a point: 0, 1 or 2.
    """
    if num_dims == 2:
        return BlockDiagLinearOperator(variance)
    return DiagLinearOperator(variance.flatten(-2) if num_dims else variance)


def _variance(distribution: Distribution) -> Tensor:
    """The variance, of a :class:`MultivariateNormal` without a look at whether it is positive."""
    if not isinstance(distribution, MultivariateNormal):
        return distribution.variance
    variance = distribution.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
    variance = variance.clamp_min(gpytorch.settings.min_variance.value(variance.dtype)).expand(
        *distribution.batch_shape, -1
    )
    if not isinstance(distribution, MultitaskMultivariateNormal):
        return variance
    N, K = distribution.event_shape
    return variance.unflatten(-1, (N, K)) if distribution._interleaved else variance.unflatten(-1, (K, N)).mT


@contextmanager
def _without_values() -> Iterator[None]:
    """Record no gradient, and let nothing depend on the values of tensors but by torch's operations."""
    with ExitStack() as stack:
        for context in (
            torch.no_grad(),
            gpytorch.settings.debug(False),
            gpytorch.settings.trace_mode(True),
            linear_operator.settings.trace_mode(True),
            _NoComparisons(),
            unvalidated_distributions(),
        ):
            stack.enter_context(context)
        yield


class _NoComparisons(TorchFunctionMode):
    """
    GPyTorch's kernels compare their inputs, as a distance to itself is exactly zero: a trace of inputs that happen to
    be equal would take all later ones for equal. Here they never are; distances are computed by differences instead, so
    that they are zero all the same.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.equal:
            return args[0] is args[1]
        if func is torch.cdist:
            x1, x2 = args
            return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), dim=-1)
        return func(*args, **(kwargs or {}))
