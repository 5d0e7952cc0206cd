from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.mlls import MarginalLogLikelihood
from gpytorch.models import ApproximateGP
from torch import Tensor

from ..likelihoods.decoder_likelihood import DecoderLikelihood
from ..sites import GaussianSites
from ..variational.point_marginals import point_covariances
from ..variational.posterior import amortized_strategy


class ImportanceWeightedELBO(MarginalLogLikelihood):
    r"""
    A multi-sample bound of each task's log evidence (`Burda et al. (2016)`_), tighter with every sample:

    .. math::

        \mathcal L_S^{(t)} = \mathbb E \log \frac 1 S \sum_{s=1}^S
        \frac{p(\mathbf y^o \mid \mathbf f_s) \, p(\mathbf f_s)}{q(\mathbf f_s)}, \qquad
        \mathbf f_s \sim q(\mathbf f) = p(\mathbf f) \, l(\mathbf f) / Z_q

    The prior cancels, :math:`p / q = Z_q / l`, so that no density of N dimensions is evaluated:
    :math:`\log Z_q = \mathbb E_q \log l(\mathbf f) - \mathrm{KL}[q \Vert p]`. For the dense strategy
    (:class:`~gpytorch_sgpvae.GPVAE`) and the :class:`~gpytorch_sgpvae.VAE`, where q(f) at the data is all there is;
    with inducing points the marginal draws would bound another model's evidence. Joint samples need a Cholesky of the
    covariance of q(f), which is nearly singular for smooth kernels: work in float64 and give the dense strategy a
    `jitter_val`, as below.

    :param likelihood: A :class:`~gpytorch_sgpvae.DecoderLikelihood`.
    :param model: The approximate GP. Call it at the context's own inputs, with q(f) joint over them: as the wrapper for
        independent outputs returns it, or from a model without a wrapper by `model(x, context=context, diag=False)`.
    :param num_samples: S, by default :class:`gpytorch.settings.num_likelihood_samples`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import GPVAE, Context, ImportanceWeightedELBO
        >>> gpvae = GPVAE(num_outputs=5, num_latents=3).double()
        >>> gpvae.strategy.jitter_val = 1e-6
        >>> context = Context(torch.rand(20, 2).double(), torch.randn(7, 20, 5).double())
        >>> bound = ImportanceWeightedELBO(gpvae.likelihood, gpvae.model, num_samples=8)
        >>> bound(gpvae.model(context.x, context=context), context.y).shape
        torch.Size([7])

    .. _Burda et al. (2016):
        https://arxiv.org/abs/1509.00519
    """

    def __init__(self, likelihood: Likelihood, model: ApproximateGP, num_samples: int | None = None):
        super().__init__(likelihood, model)
        if not isinstance(likelihood, DecoderLikelihood):
            raise TypeError(f"Expected a DecoderLikelihood, got {type(likelihood).__name__}.")
        self.num_samples = num_samples

    def forward(self, variational_dist_f: MultivariateNormal, target: Tensor, **kwargs: Any) -> Tensor:
        r"""
        :param variational_dist_f: q(f) at the context's own inputs, the output of the model.
        :param target: The outputs (`*T x N x P`); NaN is missing.
        :return: (`*T`)
        """
        sites = amortized_strategy(self.model).last_encoding.sites_of(variational_dist_f)
        num_samples = self.num_samples or settings.num_likelihood_samples.value()
        f = variational_dist_f.rsample(torch.Size([num_samples]))  # (S, *T, N, K)
        mean, covariances = variational_dist_f.mean, point_covariances(variational_dist_f)  # (*T, N, K), (*T, N, K, K)
        if len(variational_dist_f.event_shape) == 1:
            # one latent function without a dimension for it
            f, mean = f.unsqueeze(-1), mean.unsqueeze(-1)
            sites = GaussianSites(sites.precision_mean.unsqueeze(-2), sites.precision.unsqueeze(-2))
        h, Lambda = sites.to_latents(sites.precision_mean).mT, sites.point_precision()  # (*T, N, K), (*T, N, K, K)
        if f.shape[-2:] != h.shape[-2:]:
            raise ValueError(
                f"q(f) of shape {tuple(f.shape[1:])} is not at the points of the context, which has sites of shape "
                f"{tuple(sites.shape)}: call model(context.x, context=context)."
            )
        log_likelihood = self.likelihood.row_log_probs(target, self.likelihood(f, **kwargs)).sum(-1)  # (S, *T)
        log_sites = _log_sites(f, h, Lambda)  # (S, *T)
        # E fᵀ Λ f = mᵀ Λ m + tr Λ S
        expected_log_sites = _log_sites(mean, h, Lambda) - 0.5 * (Lambda * covariances).sum((-3, -2, -1))  # (*T,)
        log_Zq = expected_log_sites - self.model.variational_strategy.kl_divergence()
        log_weights = log_likelihood - log_sites + log_Zq  # (S, *T)
        return log_weights.logsumexp(0) - math.log(num_samples)


def _log_sites(f: Tensor, h: Tensor, Lambda: Tensor) -> Tensor:
    # Σ_n hᵀ f − ½ fᵀ Λ f
    return (h * f - 0.5 * f * (Lambda @ f.unsqueeze(-1)).squeeze(-1)).sum((-2, -1))
