from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.variational import IndependentMultitaskVariationalStrategy
from torch import Tensor

from ..context import Context, as_context
from ..inference_networks import FactorNet, IndexNet, InferenceNetwork, JointFactorNet, PointNet, ZeroImputation
from ..likelihoods import DecoderLikelihood, GaussianObservations, Prediction
from ..linalg.kernels import ScaledRBFKernel, add_private_groups, default_grouped_kernel
from ..mlls import TaskELBO
from ..mlp import MLP, LinearPlus, PrivateLinear, linear_part
from ..variational import AmortizedVariationalDistribution, Posterior, condition
from ..variational.joint_strategy import JointStrategy
from ..variational.posterior import amortized_strategy
from .starting import start_from

NETWORKS: dict[str, type[InferenceNetwork]] = {
    "factornet": FactorNet,
    "jointfactornet": JointFactorNet,
    "indexnet": IndexNet,
    "pointnet": PointNet,
    "zeroimputation": ZeroImputation,
}


class AmortizedModel(gpytorch.Module):
    r"""
    An approximate GP with an amortized strategy, together with its likelihood: how to train them and how to ask them.
    The ready-made models are made of it, and a model of your own becomes one by it:

    .. math::

        f \sim \mathcal{GP}, \qquad
        y_{np} \mid \mathbf f_n \sim p \left( y_{np} \mid h_p(\mathbf f_n) \right), \qquad
        \mathcal L^{(t)} = \sum_n \mathbb E_q \log p(\mathbf y_n^o \mid \mathbf f_n) - \mathrm{KL} [ q^{(t)} \Vert p ]

    :param model: The approximate GP, with inputs `*T x N x D`.
    :param likelihood: The likelihood of outputs `*T x N x P`.

    Example:
        >>> import gpytorch, torch
        >>> from gpytorch.variational import IndependentMultitaskVariationalStrategy
        >>> from gpytorch_sgpvae import (
        ...     AmortizedModel, AmortizedVariationalDistribution, AmortizedVariationalStrategy, DecoderLikelihood,
        ...     FactorNet, GaussianObservations,
        ... )
        >>> class LinearCoregionalization(gpytorch.models.ApproximateGP):
        ...     def __init__(self, inducing_points):
        ...         q_u = AmortizedVariationalDistribution(FactorNet(num_outputs=5, num_latents=2))
        ...         strategy = AmortizedVariationalStrategy(self, inducing_points, q_u)
        ...         super().__init__(IndependentMultitaskVariationalStrategy(strategy, num_tasks=2))
        ...         self.mean_module = gpytorch.means.ZeroMean()
        ...         self.covar_module = gpytorch.kernels.MaternKernel(nu=1.5, batch_shape=torch.Size([2]))
        ...     def forward(self, x):
        ...         return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
        >>> likelihood = DecoderLikelihood(torch.nn.Linear(2, 5), GaussianObservations(5))
        >>> model = AmortizedModel(LinearCoregionalization(torch.rand(8, 1)), likelihood)
        >>> context = (torch.rand(20, 1), torch.randn(7, 20, 5))
        >>> model.elbo(context).shape, model.eval().predict(torch.rand(4, 1), context).mean.shape
        (torch.Size([7]), torch.Size([7, 4, 5]))
    """

    def __init__(self, model: gpytorch.models.ApproximateGP, likelihood: DecoderLikelihood):
        super().__init__()
        self.model = model
        self.likelihood = likelihood

    @property
    def strategy(self) -> Any:
        """The variational strategy, for `strategy.set_inducing_points` and the like."""
        return amortized_strategy(self.model)

    def forward(self, x: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Call :attr:`model`: q(f) at x given `context=`, or the prior with `prior=True`."""
        return self.model(x, **kwargs)

    def elbo(
        self,
        context: Context | tuple[Tensor, Tensor],
        beta: float = 1.0,
        num_tasks: int = 1,
        hide: float = 0.0,
        subset_size: int | None = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        r"""
        The evidence lower bound of each task, in nats (`*T`).

        :param context: The tasks.
        :param beta: See :class:`~gpytorch_sgpvae.TaskELBO`.
        :param num_tasks: See :class:`~gpytorch_sgpvae.TaskELBO`; matters only for hyperpriors.
        :param hide: Hide each observed entry from the network with this probability, while the likelihood still sees
            it: trains the network for other patterns of missingness than the data's own.
        :param subset_size: Estimate the bound of each task by :math:`N / \tilde N` times that of :math:`\tilde N` of
            its points, chosen at random. The estimate is biased, as the KL divergence is not a sum over points.
        :param chunk_size: Compute for this many points at a time, and each chunk again in the backward pass: the same
            bound and gradients in less memory, for about twice the time.
        :param kwargs: Passed to the likelihood's `expected_log_prob`.
        """
        context = as_context(context)
        if subset_size is None:
            objective = TaskELBO(self.likelihood, self.model, beta, num_tasks)
            return self._elbo(context, hide, objective, chunk_size, **kwargs)
        subset = context.subset(subset_size)
        scale = context.num_informative / subset.num_informative.clamp_min(1)  # (*T,), N / Ñ
        scale = torch.where(scale > 0, scale, 1.0).to(context.dtype)
        # Log hyperpriors are not estimated: they are divided by what they are then multiplied by.
        objective = TaskELBO(self.likelihood, self.model, beta, num_tasks * scale)
        return scale * self._elbo(subset, hide, objective, chunk_size, **kwargs)

    def _elbo(
        self, context: Context, hide: float, objective: TaskELBO, chunk_size: int | None, **kwargs: Any
    ) -> Tensor:
        seen = context.hide(hide) if hide else context
        return objective.of_context(context, seen, chunk_size, **kwargs)

    @torch.no_grad()
    def initialize_from(self, context: Context | tuple[Tensor, Tensor], lengthscales: bool = True) -> None:
        """
        Start from data: for models whose latent functions are inferred together, with a decoder that is linear or
        starts out so. The loadings come from a factor analysis of the rows with their holes, noise and the private
        functions' scales from what it leaves, and lengthscales from autocorrelations.

        :param context: The tasks to train on, or some of them.
        :param lengthscales: Whether lengthscales start from the data too. Those of short tasks with long holes are
            better left as they are: autocorrelations are hard to tell there.
        """
        start_from(self.model, self.likelihood, as_context(context), lengthscales)

    def loss(self, context: Context | tuple[Tensor, Tensor], **kwargs: Any) -> Tensor:
        """Minus the mean :meth:`elbo` of the tasks: what an optimizer minimizes (a scalar)."""
        return -self.elbo(context, **kwargs).mean()

    def condition(self, context: Context | tuple[Tensor, Tensor], chunk_size: int | None = None) -> Posterior:
        """The posterior of the latent functions given a context (see :func:`~gpytorch_sgpvae.condition`)."""
        return condition(self.model, context, chunk_size)

    @torch.no_grad()
    def predict(
        self,
        x: Tensor,
        context: Context | tuple[Tensor, Tensor],
        num_samples: int = 100,
        chunk_size: int | None = None,
    ) -> Prediction:
        r"""
        Predict the outputs of a task, seen or unseen, without gradients.

        :param x: The inputs to predict at (`*T x N x D`).
        :param context: The observed data.
        :param num_samples: Number of samples of the latent functions.
        :param chunk_size: Compute for this many inputs at a time: the same answer in less memory.
        """
        posterior = condition(self.model, context, chunk_size, strict=False)
        return Prediction.from_posterior(self.likelihood, posterior, x, num_samples, chunk_size=chunk_size)


def parts_of(
    model: AmortizedModel | gpytorch.models.ApproximateGP, likelihood: Likelihood | None
) -> tuple[gpytorch.models.ApproximateGP, Likelihood]:
    """The approximate GP and the likelihood: of a ready-made model its own, otherwise those that are given."""
    if isinstance(model, AmortizedModel):
        return model.model, model.likelihood
    if likelihood is None:
        raise ValueError(f"{type(model).__name__} does not bring a likelihood: pass likelihood=.")
    return model, likelihood


class LatentGPs(gpytorch.models.ApproximateGP):
    """K Gaussian processes with mean zero, independent before any data."""

    def __init__(
        self,
        make_strategy: Callable[..., gpytorch.Module],
        network: torch.nn.Module,
        kernel: gpytorch.kernels.Kernel,
        num_latents: int,
    ):
        if kernel.batch_shape not in ((), (1,), (num_latents,)):
            raise ValueError(
                f"The kernel has batch shape {tuple(kernel.batch_shape)}, but the model has {num_latents} latent "
                f"functions, private ones of each output (num_private) included: give it "
                f"batch_shape=torch.Size([{num_latents}]), or none."
            )
        strategy = make_strategy(self, AmortizedVariationalDistribution(network))
        if not isinstance(strategy, JointStrategy):
            strategy = IndependentMultitaskVariationalStrategy(strategy, num_tasks=num_latents)
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = kernel

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def make_network(
    network: str | torch.nn.Module, num_outputs: int, num_latents: int, hidden_sizes: Sequence[int]
) -> torch.nn.Module:
    """A network by its name, or the module itself."""
    if isinstance(network, str):
        key = _key(network)
        if key not in NETWORKS:
            raise ValueError(f"There is no network {network!r}: choose one of {', '.join(NETWORKS)}, or give a module.")
        return NETWORKS[key](num_outputs, num_latents, hidden_sizes)
    if network.num_latents != num_latents:
        raise ValueError(f"The network has num_latents={network.num_latents}, but the model num_latents={num_latents}.")
    return network


def couples_latents(network: torch.nn.Module) -> bool:
    """Return whether a network's sites couple the latent functions, which are then inferred together."""
    return getattr(network, "couples_latents", False)


def make_likelihood(
    decoder: torch.nn.Module | None,
    observation_model: torch.nn.Module | None,
    num_outputs: int,
    num_latents: int,
    hidden_sizes: Sequence[int],
    network: Any = None,
    num_private: int = 0,
) -> DecoderLikelihood:
    """
    The parts that are given, and the usual ones for those that are not. A network that couples the latent functions is
    tied to them, and the decoder then starts out linear.

    :param num_latents: The number of latent functions that all outputs share.
    """
    if observation_model is None:
        observation_model = GaussianObservations(num_outputs)
    is_joint = couples_latents(network)
    if decoder is None:
        decoder_size = getattr(observation_model, "decoder_size", num_outputs)
        mlp = MLP(num_latents, decoder_size, hidden_sizes)
        linear = PrivateLinear(num_latents, decoder_size, num_private) if num_private else None
        decoder = LinearPlus(mlp, start=0.0, linear=linear) if is_joint else mlp
    likelihood = DecoderLikelihood(decoder, observation_model)
    if is_joint and linear_part(decoder) is not None:
        network.tie(likelihood)
    return likelihood


def make_kernel(
    network: torch.nn.Module, num_shared: int, num_private: int, num_values: int, input_dim: int | None
) -> gpytorch.kernels.Kernel:
    """
    A scaled RBF kernel for each latent function, or, where these are inferred together, rough and smooth ones with
    lengthscales from 0.3 to 3 and private ones for each of the decoder's values; with a lengthscale for each input
    dimension if their number is known.
    """
    if not couples_latents(network):
        return ScaledRBFKernel(ard_num_dims=input_dim, batch_shape=torch.Size([num_shared]))
    kernel = default_grouped_kernel(num_shared, input_dim, shortest=0.3, longest=3.0)
    return add_private_groups(kernel, num_values, num_private, input_dim) if num_private else kernel


def check_private(network: str | torch.nn.Module, num_private: int) -> None:
    if num_private < 0 or (num_private and not (isinstance(network, str) and _key(network) == "jointfactornet")):
        raise ValueError(
            f"num_private={num_private} must be at least 0, and needs network='jointfactornet': for networks and "
            "decoders of your own, count private functions among num_latents."
        )


def _key(network: str) -> str:
    """A network's name as :data:`NETWORKS` has it."""
    return network.lower().replace("_", "")
