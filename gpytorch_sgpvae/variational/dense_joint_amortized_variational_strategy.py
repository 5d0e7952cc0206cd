from __future__ import annotations

import warnings
from math import prod
from typing import Any

from linear_operator import to_linear_operator
from torch import Tensor

from .._compat import is_compiling
from ..linalg.entries import informative_entries
from ..linalg.entry_posterior import EntryPosterior
from ..linalg.private_functions import PrivatePosterior
from ..sites import GaussianSites, owners_of
from .dense_amortized_variational_strategy import (
    OVER_TIME,
    DenseAmortizedVariationalStrategy,
    PriorAt,
    prior_of_second_group,
)
from .dense_joint_encoding import DenseJointEncoding
from .encoding import Encoding
from .joint_strategy import JointStrategy
from .saved_posterior import ROWS, check_saved


class DenseJointAmortizedVariationalStrategy(JointStrategy, DenseAmortizedVariationalStrategy):
    r"""
    The dense strategy for sites that couple the latent functions, without inducing points. Over the E
    pseudo-observations that say anything, of the sums :math:`\mathbf a_j^\top \mathbf f_n`, with
    :math:`W = \Lambda^{1/2}`:

    .. math::

        G_{(j n)(i m)} = \sum_k a_{jk} a_{ik} \, k_k(\mathbf x_n, \mathbf x_m), \qquad
        B = I + W G W, \qquad
        \boldsymbol \alpha = W B^{-1} W^{-1} \lambda (g - \mathbf a^\top \boldsymbol \mu)

    .. math::

        q(f_k(\mathbf x_*)): \quad \mu_{k*} + \sum_{jn} a_{jk} k_k(\mathbf x_*, \mathbf x_n) \, \alpha_{jn}, \qquad
        \mathrm{cov}_{kl} = \delta_{kl} k_{**} - \mathbf c_k^\top W B^{-1} W \mathbf c_l, \qquad
        c_{k, jn} = a_{jk} k_k(\mathbf x_n, \mathbf x_*)

    With a linear decoder and Gaussian noise, and a :class:`~gpytorch_sgpvae.JointFactorNet` that is tied to them, it is
    the exact linear model of coregionalization for any pattern of missing entries. It returns q(f) as a
    :class:`~gpytorch.distributions.MultitaskMultivariateNormal` (`N x K`) and needs no wrapper.

    Where sites say which latent functions are private to one sum (`owners` of :class:`~gpytorch_sgpvae.GaussianSites`,
    as with a :class:`~gpytorch_sgpvae.PrivateLinear` decoder) and L are shared, the J sums are independent given the
    shared functions, and B is never made: with :math:`G_j` the covariance of what is private to sum j, K that of
    the shared functions and w their loadings,

    .. math::

        C_j &= W_j (I + W_j G_j W_j)^{-1} W_j, \qquad
        H_{kl} = \sum_j w_{jk} w_{jl} C_j, \\
        \log |B| &= \sum_j \log |I + W_j G_j W_j| + \log |I + H K|

    Both forms are exact, and the strategy takes the one that costs less.

    =====================================  ======================  ================================================
    per task                               all latent functions    private ones marginalized
    =====================================  ======================  ================================================
    the bound, and marginals of sums       :math:`O(E^3)`          :math:`O(J N^3 + (L N)^3 + J L^2 N^2)`
    at the context's inputs
    marginals of sums at N* other inputs   :math:`O(N_* K E^2)`    :math:`O(N_* (L^2 N^2 + J L^2 N + J N^2))`
    K x K covariances of N* inputs         :math:`O(N_* K E^2)`    :math:`O(N_* K J^2 N^2)`
    the largest array                      :math:`(J N)^2`         :math:`(L N)^2, J N^2` or :math:`K N^2`
    =====================================  ======================  ================================================

    Only perceptrons and samples need the K x K covariances. Beyond :attr:`max_entries` rows of the largest matrix a
    warning points to the other joint strategies.

    The parameters are those of :class:`~gpytorch_sgpvae.DenseAmortizedVariationalStrategy`.

    Example:
        >>> import gpytorch, torch
        >>> from gpytorch_sgpvae import (
        ...     AmortizedVariationalDistribution, DenseJointAmortizedVariationalStrategy, JointFactorNet,
        ... )
        >>> class Model(gpytorch.models.ApproximateGP):
        ...     def __init__(self):
        ...         q_f = AmortizedVariationalDistribution(JointFactorNet(num_outputs=5, num_latents=3))
        ...         super().__init__(DenseJointAmortizedVariationalStrategy(self, q_f))
        ...         self.mean_module = gpytorch.means.ZeroMean()
        ...         self.covar_module = gpytorch.kernels.MaternKernel(nu=1.5, batch_shape=torch.Size([3]))
        ...     def forward(self, x):
        ...         return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
        >>> Model()(torch.rand(4, 2), context=(torch.rand(20, 2), torch.randn(20, 5))).event_shape
        torch.Size([4, 3])
    """

    max_entries = 5000

    def encoding_from_state_dict(self, state_dict: dict[str, Tensor]) -> Encoding:
        if self.num_latents is None:
            return super().encoding_from_state_dict(state_dict)
        check_saved(state_dict, ROWS, {"K": self.num_latents})
        loadings = state_dict["loadings"]
        sites = GaussianSites(state_dict["precision_mean"], state_dict["precision"], loadings, owners_of(loadings))
        return self.encode_sites(state_dict["x"], sites, state_dict["x"])[0]

    def at_context(self, encoding: DenseJointEncoding) -> PriorAt:
        """The prior at the context's own inputs, which the encoding knows."""
        mean, Kff = encoding.prior
        return PriorAt(mean, Kff.diagonal(dim1=-2, dim2=-1), Kff, lambda: to_linear_operator(Kff), is_context=True)

    def encode_sites(self, context_x: Tensor, sites: GaussianSites, x: Tensor, **kwargs: Any) -> tuple[Any, PriorAt]:
        if self.num_latents is None:
            return super().encode_sites(context_x, sites, x, **kwargs)
        self._check_input_dim(x, context_x)
        new_inputs = [] if x is context_x else [self._for_latents(x)]
        prior = self._prior(self._insert_latents(context_x), *new_inputs, **kwargs)
        covar, mean = prior.covariance(0, 0), prior.mean(0)
        Kff = (covar.add_jitter(self.jitter_val) if self.jitter_val else covar).to_dense()  # (*T, K, N, N)
        encoding = DenseJointEncoding(self, context_x, sites, (mean, Kff), self._posterior(Kff, sites, mean))
        if not new_inputs:
            return encoding, self.at_context(encoding)
        return encoding, prior_of_second_group(prior)

    def _posterior(self, Kff: Tensor, sites: GaussianSites, mean: Tensor) -> EntryPosterior | PrivatePosterior:
        loadings, h = sites.explicit_loadings(), sites.seen_by(mean)
        entries = informative_entries(sites.precision.detach().flatten(-2))
        num_entries = prod(sites.shape[-2:]) if entries is None else entries.shape[-1]
        if sites.owners is not None and loadings.dim() == 2 and _is_cheaper(sites, num_entries):
            self._warn_of(sites.owners.count(-1) * sites.shape[-1])
            return PrivatePosterior(Kff, loadings, sites.owners, sites.precision, h)
        self._warn_of(num_entries)
        return EntryPosterior(Kff, loadings, sites.precision, h, entries)

    def _warn_of(self, size: int) -> None:
        if not is_compiling() and size > self.max_entries:
            warnings.warn(
                f"{type(self).__name__} factorizes a matrix of {size} x {size} for each task; beyond "
                f"{self.max_entries} observed entries consider the sparse JointAmortizedVariationalStrategy "
                f"(SGPVAE){OVER_TIME}",
                stacklevel=2,
            )


def _is_cheaper(sites: GaussianSites, num_entries: int) -> bool:
    """Whether a matrix for each output, and one of what the outputs share, cost less than one of all entries."""
    J, N = sites.shape[-2:]
    assert sites.owners is not None
    return J * N**3 + (sites.owners.count(-1) * N) ** 3 < num_entries**3
