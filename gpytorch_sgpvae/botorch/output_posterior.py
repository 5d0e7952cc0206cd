from __future__ import annotations

import torch
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import NormalMCSampler, SobolQMCNormalSampler
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from .conditionals import Conditional
from .responses import Moments, with_jitter


class OutputPosterior(Posterior):
    r"""
    The predictive distribution of outputs that are not Gaussian: counts, flags, amounts. Its samples are outputs as
    they might be measured, at several inputs together,

    .. math::

        \mathbf f \sim q(\mathbf f_1, \dots, \mathbf f_q), \qquad
        y_{np} = F^{-1}_{p \mid \mathbf f_n} (\Phi(\epsilon_{np})), \qquad \epsilon_{np} \sim \mathcal N(0, 1)

    so that fantasies of counts are whole numbers and those of flags 0 or 1. They are steps, and have no gradients of
    their own; they are given those of their means. Any of BoTorch's samplers of normal variables draws from it.

    :param likelihood: p(y | f).
    :param q_f: q(f) at the inputs (event `q x K`, or `q` for one latent function).
    :param moments: Mean and variances of each output (`b x q x P` each).
    :param outputs: The indices of the outputs; by default all.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import GPVAE, PoissonObservations
        >>> from gpytorch_sgpvae.botorch import AmortizedSurrogate
        >>> counts = GPVAE(1, 1, network="jointfactornet", observation_model=PoissonObservations(1)).double()
        >>> x, y = torch.rand(9, 2).double(), torch.poisson(torch.ones(9, 1).double())
        >>> surrogate = AmortizedSurrogate(counts, (x, y))
        >>> posterior = surrogate.posterior(torch.rand(4, 3, 2).double(), observation_noise=True)
        >>> sample = posterior.rsample(torch.Size([7]))
        >>> sample.shape, bool((sample == sample.round()).all())
        (torch.Size([7, 4, 3, 1]), True)
    """

    def __init__(
        self, likelihood: Likelihood, q_f: MultivariateNormal, moments: Moments, outputs: list[int] | None = None
    ):
        self.likelihood = likelihood
        self.q_f = q_f
        self._moments = moments
        self._num_outputs = moments.mean.shape[-1]
        self.outputs = list(range(self._num_outputs)) if outputs is None else outputs

    @property
    def mean(self) -> Tensor:
        """(`b x q x P`)"""
        return self._moments.mean[..., self.outputs]

    @property
    def variance(self) -> Tensor:
        """(`b x q x P`)"""
        return (self._moments.variance + self._moments.noise)[..., self.outputs]

    @property
    def device(self) -> torch.device:
        return self._moments.mean.device

    @property
    def dtype(self) -> torch.dtype:
        return self._moments.mean.dtype

    @property
    def batch_range(self) -> tuple[int, int]:
        return (0, -2)

    @property
    def base_sample_shape(self) -> torch.Size:
        """K numbers for the latent functions of a point, and one for each of its outputs."""
        return torch.Size([*self._moments.mean.shape[:-1], self._num_latents + self._num_outputs])

    @property
    def _num_latents(self) -> int:
        return self.q_f.event_shape[1] if isinstance(self.q_f, MultitaskMultivariateNormal) else 1

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008 (BoTorch's)
        return torch.Size([*sample_shape, *self._moments.mean.shape[:-1], len(self.outputs)])

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        """
        :param sample_shape: The shape of the samples (`S`).
        :param base_samples: Standard normal (`S x b x q x (K + P)`).
        :return: (`S x b x q x P`)
        """
        for_functions, for_outputs = base_samples.split([self._num_latents, self._num_outputs], dim=-1)
        if not isinstance(self.q_f, MultitaskMultivariateNormal):
            for_functions = for_functions.squeeze(-1)
        # GPyTorch takes views of them
        functions = GPyTorchPosterior(with_jitter(self.q_f)).rsample_from_base_samples(
            sample_shape, for_functions.contiguous()
        )
        return Conditional(self.likelihood, functions, self.q_f).draw(for_outputs)[..., self.outputs]

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        """
        :param sample_shape: The shape of the samples; by default one sample.
        :return: (`S x b x q x P`)
        """
        sample_shape = torch.Size([1]) if sample_shape is None else sample_shape
        shape = (*sample_shape, *self.base_sample_shape)
        return self.rsample_from_base_samples(sample_shape, torch.randn(shape, dtype=self.dtype, device=self.device))


@GetSampler.register(OutputPosterior)
def _sampler(posterior: OutputPosterior, sample_shape: torch.Size, *, seed: int | None = None) -> NormalMCSampler:
    return SobolQMCNormalSampler(sample_shape=sample_shape, seed=seed)
