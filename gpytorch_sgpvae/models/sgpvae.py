from __future__ import annotations

from collections.abc import Sequence

import gpytorch
import torch
from torch import Tensor

from ..variational import (
    AmortizedVariationalDistribution,
    AmortizedVariationalStrategy,
    JointAmortizedVariationalStrategy,
)
from .base import (
    AmortizedModel,
    LatentGPs,
    check_private,
    couples_latents,
    make_kernel,
    make_likelihood,
    make_network,
)


class SGPVAE(AmortizedModel):
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
    :param network: `"factornet"`, `"indexnet"`, `"pointnet"`, `"zeroimputation"`, or a module of your own; or
        `"jointfactornet"`, with which all latent functions of a task are inferred together.
    :param kernel: A kernel with batch shape K, or without one (then all latent functions share its parameters); by
        default a scaled RBF kernel with a lengthscale for each input dimension and latent function.
    :param decoder: A module that maps `... x K` to `... x P`; by default an :class:`~gpytorch_sgpvae.MLP`,
        or with `"jointfactornet"` a :class:`~gpytorch_sgpvae.LinearPlus` that starts out linear, to which it is tied.
    :param observation_model: The family of the outputs; by default :class:`~gpytorch_sgpvae.GaussianObservations`.
    :param hidden_sizes: Units in each hidden layer of the network and the decoder, where they are not given.
    :param learn_inducing_locations: Whether the inducing points are parameters of the model.
    :param num_private: Number of further latent functions that each output has for itself, with `"jointfactornet"`:
        what the shared ones leave of an output is then a process of its own, and not white noise.

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
        num_private: int = 0,
    ):
        def make_strategy(model: LatentGPs, q_u: AmortizedVariationalDistribution) -> AmortizedVariationalStrategy:
            joint = couples_latents(q_u.network)
            strategy = JointAmortizedVariationalStrategy if joint else AmortizedVariationalStrategy
            return strategy(model, inducing_points, q_u, learn_inducing_locations)

        inducing_points = inducing_points.unsqueeze(-1) if inducing_points.dim() == 1 else inducing_points
        check_private(network, num_private)
        num_values = getattr(observation_model, "decoder_size", num_outputs)
        num_shared, num_latents = num_latents, num_latents + num_private * num_values
        network = make_network(network, num_outputs, num_latents, hidden_sizes)
        if kernel is None:
            kernel = make_kernel(network, num_shared, num_private, num_values, inducing_points.shape[-1])
        super().__init__(
            LatentGPs(make_strategy, network, kernel, num_latents),
            make_likelihood(decoder, observation_model, num_outputs, num_shared, hidden_sizes, network, num_private),
        )
        self.to(dtype=inducing_points.dtype, device=inducing_points.device)
