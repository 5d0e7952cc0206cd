from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ApproximateGP
from gpytorch.variational import IndependentMultitaskVariationalStrategy
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from ..variational import AmortizedVariationalDistribution
from ..variational.pointwise_strategy import PointwiseStrategy
from .base import AmortizedModel, couples_latents, make_likelihood, make_network


class VAE(AmortizedModel):
    r"""
    The variational autoencoder for partially observed data (`Ma et al. (2019)`_), as the member of the family that
    ignores the inputs: the same networks and decoders, with independent latent values,

    .. math::

        f_{nk} \sim \mathcal N(0, 1), \qquad
        y_{np} \mid \mathbf f_n \sim p \left( y_{np} \mid h_p(\mathbf f_n) \right)

    A linear decoder, `decoder=torch.nn.Linear(K, P)`, makes it factor analysis; with shared noise, probabilistic PCA.
    Predictions are for the points of the context (`predict(x, (x, y))`): elsewhere it knows nothing but the prior.

    :param num_outputs: Number of outputs P.
    :param num_latents: Number of latent values K of a point.
    :param network: `"factornet"`, `"indexnet"`, `"pointnet"`, `"zeroimputation"`, or a module of your own.
    :param decoder: A module that maps `... x K` to `... x P`; by default an :class:`~gpytorch_sgpvae.MLP`.
    :param observation_model: The family of the outputs; by default :class:`~gpytorch_sgpvae.GaussianObservations`.
    :param hidden_sizes: Units in each hidden layer of the network and the decoder, where they are not given.

    :ivar model: The model of the latent values.
    :ivar likelihood: The :class:`~gpytorch_sgpvae.DecoderLikelihood`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import VAE
        >>> vae = VAE(num_outputs=5, num_latents=3)
        >>> x, y = torch.rand(20, 2), torch.randn(7, 20, 5)
        >>> vae.loss((x, y)).backward()
        >>> vae.eval().predict(x, context=(x, y)).mean.shape
        torch.Size([7, 20, 5])

    .. _Ma et al. (2019):
        https://arxiv.org/abs/1809.11142
    """

    def __init__(
        self,
        num_outputs: int,
        num_latents: int,
        network: str | torch.nn.Module = "factornet",
        decoder: torch.nn.Module | None = None,
        observation_model: torch.nn.Module | None = None,
        hidden_sizes: Sequence[int] = (20, 20),
    ):
        network = make_network(network, num_outputs, num_latents, hidden_sizes)
        if couples_latents(network):
            raise ValueError(
                f"{type(network).__name__} couples the latent functions, and the VAE has none: use GPVAE or SGPVAE, or "
                "another network."
            )
        super().__init__(
            _IndependentLatents(network, num_latents),
            make_likelihood(decoder, observation_model, num_outputs, num_latents, hidden_sizes),
        )


class _IndependentLatents(ApproximateGP):
    """A delta kernel: the latent values of any two points are independent."""

    def __init__(self, network: torch.nn.Module, num_latents: int):
        strategy = PointwiseStrategy(self, AmortizedVariationalDistribution(network))
        super().__init__(IndependentMultitaskVariationalStrategy(strategy, num_tasks=num_latents))

    def forward(self, x: Tensor) -> MultivariateNormal:
        zeros = torch.zeros(x.shape[:-1], dtype=x.dtype, device=x.device)
        return MultivariateNormal(zeros, DiagLinearOperator(torch.ones_like(zeros)))
