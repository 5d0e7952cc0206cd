from __future__ import annotations

from collections.abc import Sequence

import gpytorch
import torch

from ..variational import DenseAmortizedVariationalStrategy, DenseJointAmortizedVariationalStrategy
from .base import (
    AmortizedModel,
    LatentGPs,
    check_private,
    couples_latents,
    make_kernel,
    make_likelihood,
    make_network,
)


class GPVAE(AmortizedModel):
    r"""
    The Gaussian process variational autoencoder without inducing points, ready made (`Pearce (2020)`_; appendix B of
    `Ashman et al. (2020)`_): the model of :class:`~gpytorch_sgpvae.SGPVAE`,

    .. math::

        f_k \sim \mathcal{GP}(0, k_k), \qquad
        y_{np} \mid \mathbf f(\mathbf x_n) \sim p \left( y_{np} \mid h_p(\mathbf f(\mathbf x_n)) \right)

    with a posterior at the data's own inputs. It costs :math:`O(K N^3)` per task: for tasks of up to a thousand points
    or so. A linear decoder, `decoder=torch.nn.Linear(K, P)`, makes it GP factor analysis.

    :param num_outputs: Number of outputs P.
    :param num_latents: Number of latent functions K.
    :param network: `"factornet"`, `"indexnet"`, `"pointnet"`, `"zeroimputation"`, or a module of your own; or
        `"jointfactornet"`, with which all latent functions of a task are inferred together.
    :param kernel: A kernel with batch shape K, or without one (then all latent functions share its parameters); by
        default a scaled RBF kernel for each latent function.
    :param decoder: A module that maps `... x K` to `... x P`; by default an :class:`~gpytorch_sgpvae.MLP`,
        or with `"jointfactornet"` a :class:`~gpytorch_sgpvae.LinearPlus` that starts out linear, to which it is tied.
    :param observation_model: The family of the outputs; by default :class:`~gpytorch_sgpvae.GaussianObservations`.
    :param hidden_sizes: Units in each hidden layer of the network and the decoder, where they are not given.
    :param num_private: Number of further latent functions that each output has for itself, with `"jointfactornet"`:
        what the shared ones leave of an output is then a process of its own, and not white noise.

    :ivar model: The :class:`gpytorch.models.ApproximateGP`.
    :ivar likelihood: The :class:`~gpytorch_sgpvae.DecoderLikelihood`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import GPVAE
        >>> gpvae = GPVAE(num_outputs=5, num_latents=3)
        >>> gpvae.loss((torch.rand(20, 2), torch.randn(7, 20, 5))).backward()
        >>> gpvae.eval().predict(torch.rand(4, 2), context=(torch.rand(9, 2), torch.randn(9, 5))).mean.shape
        torch.Size([4, 5])

    .. _Pearce (2020):
        https://proceedings.mlr.press/v118/pearce20a.html
    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """

    def __init__(
        self,
        num_outputs: int,
        num_latents: int,
        network: str | torch.nn.Module = "factornet",
        kernel: gpytorch.kernels.Kernel | None = None,
        decoder: torch.nn.Module | None = None,
        observation_model: torch.nn.Module | None = None,
        hidden_sizes: Sequence[int] = (20, 20),
        num_private: int = 0,
    ):
        check_private(network, num_private)
        num_values = getattr(observation_model, "decoder_size", num_outputs)
        num_shared, num_latents = num_latents, num_latents + num_private * num_values
        network = make_network(network, num_outputs, num_latents, hidden_sizes)
        if kernel is None:
            kernel = make_kernel(network, num_shared, num_private, num_values, None)
        joint = couples_latents(network)
        strategy = DenseJointAmortizedVariationalStrategy if joint else DenseAmortizedVariationalStrategy
        super().__init__(
            LatentGPs(strategy, network, kernel, num_latents),
            make_likelihood(decoder, observation_model, num_outputs, num_shared, hidden_sizes, network, num_private),
        )
