from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import gpytorch
import torch

from ..linalg.kernels import matern_over_time
from ..variational import MarkovAmortizedVariationalStrategy
from .base import AmortizedModel, LatentGPs, check_private, make_likelihood, make_network


class MarkovGPVAE(AmortizedModel):
    r"""
    The Gaussian process variational autoencoder for time series of any length, ready made: the model of
    :class:`~gpytorch_sgpvae.GPVAE` over time,

    .. math::

        f_k \sim \mathcal{GP}(0, k_k(t - t')), \qquad
        y_{np} \mid \mathbf f(t_n) \sim p \left( y_{np} \mid h_p(\mathbf f(t_n)) \right)

    with kernels that have a state-space form, so that the same posterior costs time proportional to the number of
    points (:class:`~gpytorch_sgpvae.MarkovAmortizedVariationalStrategy`). Train it on windows of a long series
    (:meth:`TaskDataset.windows <gpytorch_sgpvae.training.TaskDataset.windows>`), condition it on the whole, ask for
    forecasts, and :meth:`update <gpytorch_sgpvae.Posterior.update>` the posterior with rows as they come.

    Scale times so that the functions vary over about one (or give a kernel), and the outputs to mean 0 and standard
    deviation 1; :meth:`initialize_from` finds lengthscales by itself.

    :param num_outputs: Number of outputs P.
    :param num_latents: Number of latent functions K.
    :param network: `"jointfactornet"`, with which all latent functions of a task are inferred together, in
        :math:`O(N D^2)` with :math:`D = \sum_k d_k`, at best below 64; or `"factornet"`, `"indexnet"`, `"pointnet"`,
        `"zeroimputation"`, or a module of your own.
    :param kernel: A kernel over time with batch shape K, or without one, which
        :func:`~gpytorch_sgpvae.to_state_space` knows; by default a Matérn kernel with :math:`\nu = 3/2` for each
        latent function, with lengthscales from 0.3 to 3. A :class:`~gpytorch_sgpvae.GroupedKernel` takes different
        ones. With several input dimensions its `active_dims` say which one is time.
    :param decoder: A module that maps `... x K` to `... x P`; by default a :class:`~gpytorch_sgpvae.LinearPlus` that
        starts out linear, to which `"jointfactornet"` is tied, or for other networks an :class:`~gpytorch_sgpvae.MLP`.
    :param observation_model: The family of the outputs; by default :class:`~gpytorch_sgpvae.GaussianObservations`.
    :param hidden_sizes: Units in each hidden layer of the network and the decoder, where they are not given.
    :param num_private: Number of further latent functions that each output has for itself, with `"jointfactornet"`:
        what the shared ones leave of an output is then a process of its own, and not white noise.
    :param num_harmonics: The harmonics by which a :class:`~gpytorch.kernels.PeriodicKernel` is represented: a state of
        twice as many dimensions and one more (see :func:`~gpytorch_sgpvae.to_state_space`).

    :ivar model: The :class:`gpytorch.models.ApproximateGP`.
    :ivar likelihood: The :class:`~gpytorch_sgpvae.DecoderLikelihood`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import MarkovGPVAE
        >>> model = MarkovGPVAE(num_outputs=5, num_latents=3)
        >>> times, y = torch.arange(1000.0).unsqueeze(-1) / 10, torch.randn(1000, 5)
        >>> model.loss((times[:100], y[:100])).backward()
        >>> posterior = model.eval().condition((times[:900], y[:900]))
        >>> forecast = posterior(times[900:])
        >>> _ = posterior.update((times[900:], y[900:]))
        >>> forecast.mean.shape, posterior.sample(times, 2).shape
        (torch.Size([100, 3]), torch.Size([2, 1000, 3]))
    """

    def __init__(
        self,
        num_outputs: int,
        num_latents: int,
        network: str | torch.nn.Module = "jointfactornet",
        kernel: gpytorch.kernels.Kernel | None = None,
        decoder: torch.nn.Module | None = None,
        observation_model: torch.nn.Module | None = None,
        hidden_sizes: Sequence[int] = (20, 20),
        num_private: int = 0,
        num_harmonics: int = 6,
    ):
        check_private(network, num_private)
        num_values = getattr(observation_model, "decoder_size", num_outputs)
        num_shared, num_latents = num_latents, num_latents + num_private * num_values
        network = make_network(network, num_outputs, num_latents, hidden_sizes)
        if kernel is None:
            kernel = matern_over_time(num_shared, num_values, num_private)
        strategy = partial(MarkovAmortizedVariationalStrategy, num_harmonics=num_harmonics)
        super().__init__(
            LatentGPs(strategy, network, kernel, num_latents),
            make_likelihood(decoder, observation_model, num_outputs, num_shared, hidden_sizes, network, num_private),
        )
