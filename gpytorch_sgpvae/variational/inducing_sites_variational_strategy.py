from __future__ import annotations

from torch import Tensor

from ..context import Context, as_context
from ..sites import GaussianSites
from .amortized_variational_strategy import AmortizedVariationalStrategy


class InducingSitesVariationalStrategy(AmortizedVariationalStrategy):
    r"""
    The alternative sparse approximation of appendix B.2 of `Ashman et al. (2020)`_: a network
    (:class:`~gpytorch_sgpvae.PairNet`) gives factors on the inducing values directly,

    .. math::

        q(\mathbf u) \propto p(\mathbf u) \prod_{n=1}^N \prod_{m=1}^M
        \mathcal N \left( g(\mathbf z_m, \mathbf x_n, \mathbf y_n^o) \mid u_m, \;
        v(\mathbf z_m, \mathbf x_n, \mathbf y_n^o) \right)

    It is :class:`~gpytorch_sgpvae.AmortizedVariationalStrategy` with sites at the inducing points instead of the data,
    and takes the same parameters; the inducing points are shared by all latent functions (`M x D`).

    Example:
        >>> import gpytorch, torch
        >>> from gpytorch_sgpvae import AmortizedVariationalDistribution, InducingSitesVariationalStrategy, PairNet
        >>> class Model(gpytorch.models.ApproximateGP):
        ...     def __init__(self, inducing_points):
        ...         q_u = AmortizedVariationalDistribution(PairNet(num_outputs=1, num_latents=None, input_dim=2))
        ...         super().__init__(InducingSitesVariationalStrategy(self, inducing_points, q_u))
        ...         self.mean_module = gpytorch.means.ConstantMean()
        ...         self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        ...     def forward(self, x):
        ...         return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
        >>> model = Model(torch.rand(8, 2))
        >>> model(torch.rand(4, 2), context=(torch.rand(20, 2), torch.randn(20))).event_shape
        torch.Size([4])

    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """

    def sites(self, context: Context | tuple[Tensor, Tensor]) -> GaussianSites:
        """What the network makes of a context: sites of the inducing values (`*T x K x M`)."""
        return super().sites(self._seen(as_context(context), self.inducing_points))

    def point_sites(self, context: Context | tuple[Tensor, Tensor]) -> GaussianSites:
        raise NotImplementedError(f"{type(self).__name__} has no sites of the points that could be refined.")

    def _seen(self, context: Context, inducing_points: Tensor) -> Context:
        return context.seen_from(inducing_points)

    def _check_inducing_points(self, inducing_points: Tensor) -> None:
        super()._check_inducing_points(inducing_points)
        if inducing_points.dim() != 2:
            raise ValueError(
                f"{type(self).__name__} takes inducing points that all latent functions share, (M, D), got "
                f"{tuple(inducing_points.shape)}."
            )
