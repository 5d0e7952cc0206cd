from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.variational import IndependentMultitaskVariationalStrategy
from torch import Tensor

from ..context import Context, as_context
from ..inference_networks import FactorNet, IndexNet, InferenceNetwork, PointNet, ZeroImputation
from ..likelihoods import DecoderLikelihood, GaussianObservations, Prediction
from ..likelihoods.decoder_likelihood import function_marginals
from ..mlls import TaskELBO
from ..mlp import MLP
from ..variational import (
    AmortizedVariationalDistribution,
    AmortizedVariationalStrategy,
    Posterior,
    condition,
)

NETWORKS: dict[str, type[InferenceNetwork]] = {
    "factornet": FactorNet,
    "indexnet": IndexNet,
    "pointnet": PointNet,
    "zeroimputation": ZeroImputation,
}


class SGPVAE(gpytorch.Module):
    r"""
    The sparse Gaussian process variational autoencoder, ready made (`Ashman et al. (2020)`_): K latent Gaussian
    processes, a decoder, and an inference network that conditions on tasks full of holes,

    .. math::

        f_k \sim \mathcal{GP}(0, k_k), \qquad
        y_{np} \mid \mathbf f(\mathbf x_n) \sim p \left( y_{np} \mid h_p(\mathbf f(\mathbf x_n)) \right)

    Scale the inputs so that the functions vary over distances of about one (or give a kernel), and the outputs to
    mean 0 and standard deviation 1.

    :param num_outputs: Number of outputs P.
    :param num_latents: Number of latent functions K.
    :param inducing_points: Locations of the inducing points, `M x D` or `K x M x D`. The model takes on their dtype
        and device.
    :param network: `"factornet"`, `"indexnet"`, `"pointnet"`, `"zeroimputation"`, or a module of your own.
    :param kernel: A kernel with batch shape K, or without one (then all latent functions share its parameters); by
        default a scaled RBF kernel with a lengthscale for each input dimension and latent function.
    :param decoder: A module that maps `... x K` to `... x P`; by default an :class:`~gpytorch_sgpvae.MLP`.
    :param observation_model: By default :class:`~gpytorch_sgpvae.GaussianObservations`.
    :param hidden_sizes: Units in each hidden layer of the network and the decoder, where they are not given.
    :param learn_inducing_locations: Whether the inducing points are parameters of the model.

    :ivar model: The :class:`gpytorch.models.ApproximateGP`.
    :ivar likelihood: The :class:`~gpytorch_sgpvae.DecoderLikelihood`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE, Context
        >>> sgpvae = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.rand(8, 2))
        >>> context = Context(torch.rand(20, 2), torch.randn(7, 20, 5))
        >>> optimizer = torch.optim.Adam(sgpvae.parameters(), lr=1e-3)
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     sgpvae.loss(context).backward()
        ...     _ = optimizer.step()
        >>> sgpvae.eval().predict(torch.rand(4, 2), context=(torch.rand(9, 2), torch.randn(9, 5))).mean.shape
        torch.Size([4, 5])

    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """

    def __init__(
        self,
        num_outputs: int,
        num_latents: int,
        inducing_points: Tensor,
        network: str | torch.nn.Module = "factornet",
        kernel: gpytorch.kernels.Kernel | None = None,
        decoder: torch.nn.Module | None = None,
        observation_model: torch.nn.Module | None = None,
        hidden_sizes: Sequence[int] = (20, 20),
        learn_inducing_locations: bool = True,
    ):
        super().__init__()
        if isinstance(network, str):
            network = _network_class(network)(num_outputs, num_latents, hidden_sizes)
        if network.num_latents != num_latents:
            raise ValueError(
                f"The network has num_latents={network.num_latents}, but the model num_latents={num_latents}."
            )
        if kernel is None:
            kernel = _default_kernel(num_latents, inducing_points)
        self.model = _LatentGPs(num_latents, inducing_points, network, kernel, learn_inducing_locations)
        self.likelihood = DecoderLikelihood(
            MLP(num_latents, num_outputs, hidden_sizes) if decoder is None else decoder,
            GaussianObservations(num_outputs) if observation_model is None else observation_model,
        )
        self.to(dtype=inducing_points.dtype, device=inducing_points.device)

    @property
    def strategy(self) -> AmortizedVariationalStrategy:
        """The variational strategy, for `strategy.set_inducing_points` and the like."""
        return self.model.variational_strategy.base_variational_strategy

    def forward(self, x: Tensor, **kwargs: Any) -> MultivariateNormal:
        """What :attr:`model` returns: q(f) at x given `context=`, or the prior with `prior=True`."""
        return self.model(x, **kwargs)

    def elbo(
        self, context: Context | tuple[Tensor, Tensor], beta: float = 1.0, num_tasks: int = 1, **kwargs: Any
    ) -> Tensor:
        """
        The evidence lower bound of each task, in nats (`*T`).

        :param context: The tasks.
        :param beta: See :class:`~gpytorch_sgpvae.TaskELBO`.
        :param num_tasks: See :class:`~gpytorch_sgpvae.TaskELBO`; matters only for hyperpriors.
        :param kwargs: Passed to the likelihood's `expected_log_prob`.
        """
        context = as_context(context)
        q_f = self.model(context.x, context=context)
        return TaskELBO(self.likelihood, self.model, beta, num_tasks)(q_f, context.y, **kwargs)

    def loss(self, context: Context | tuple[Tensor, Tensor], **kwargs: Any) -> Tensor:
        """Minus the mean :meth:`elbo` of the tasks: what an optimizer minimizes (a scalar)."""
        return -self.elbo(context, **kwargs).mean()

    def condition(self, context: Context | tuple[Tensor, Tensor]) -> Posterior:
        """The posterior of the latent functions given a context (see :func:`~gpytorch_sgpvae.condition`)."""
        return condition(self.model, context)

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

        :param x: Where to predict (`*T x N x D`).
        :param context: What was observed.
        :param num_samples: Number of samples of the latent functions.
        :param chunk_size: Compute q(f) for so many inputs at a time: the same answer in less memory.
        """
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}.")
        x = x.unsqueeze(-1) if x.dim() == 1 else x
        posterior = self.condition(context)
        chunks = x.split(chunk_size or max(x.shape[-2], 1), dim=-2)
        marginals = [function_marginals(posterior(chunk)) for chunk in chunks]
        mean, stddev = (torch.cat(parts, dim=-2) for parts in zip(*marginals, strict=True))
        return Prediction(self.likelihood, mean, stddev, num_samples)


class _LatentGPs(gpytorch.models.ApproximateGP):
    """K independent Gaussian processes with mean zero."""

    def __init__(
        self,
        num_latents: int,
        inducing_points: Tensor,
        network: torch.nn.Module,
        kernel: gpytorch.kernels.Kernel,
        learn_inducing_locations: bool,
    ):
        strategy = AmortizedVariationalStrategy(
            self, inducing_points, AmortizedVariationalDistribution(network), learn_inducing_locations
        )
        super().__init__(IndependentMultitaskVariationalStrategy(strategy, num_tasks=num_latents))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = kernel

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def _network_class(name: str) -> type[InferenceNetwork]:
    key = name.lower().replace("_", "")
    if key not in NETWORKS:
        raise ValueError(f"There is no network {name!r}: choose one of {', '.join(NETWORKS)}, or give a module.")
    return NETWORKS[key]


def _default_kernel(num_latents: int, inducing_points: Tensor) -> gpytorch.kernels.Kernel:
    latents = torch.Size([num_latents])
    input_dim = 1 if inducing_points.dim() == 1 else inducing_points.shape[-1]
    base_kernel = gpytorch.kernels.RBFKernel(ard_num_dims=input_dim, batch_shape=latents)
    return gpytorch.kernels.ScaleKernel(base_kernel, batch_shape=latents)
