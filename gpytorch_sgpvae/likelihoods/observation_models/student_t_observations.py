from __future__ import annotations

from gpytorch.constraints import GreaterThan, Interval
from gpytorch.priors import Prior
from torch import Tensor

from .base import LearntParameter, ObservationModel
from .distributions import StudentT
from .initial_sites import mask_sites


class StudentTObservations(ObservationModel):
    r"""
    Outputs with outliers: noise with the heavy tails of Student's t around the decoder's values,

    .. math::

        \frac {y_{np} - h_p(\mathbf f_n)} {\sigma_p} \sim t_{\nu_p}, \qquad
        \mathrm{Var}[y_{np}] = \sigma_p^2 \frac {\nu_p} {\nu_p - 2}

    The names are those of GPyTorch's :class:`~gpytorch.likelihoods.StudentTLikelihood`.

    :param num_outputs: Number of outputs P.
    :param deg_free_prior: Prior for the degrees of freedom :math:`\nu`.
    :param deg_free_constraint: Constraint for the degrees of freedom; by default greater than 2, where the variance
        exists.
    :param noise_prior: Prior for the squared scale :math:`\sigma^2`.
    :param noise_constraint: Constraint for the squared scale; by default greater than 1e-4.

    :ivar torch.Tensor deg_free: :math:`\nu` (`P`).
    :ivar torch.Tensor noise: :math:`\sigma^2` (`P`).

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import StudentTObservations
        >>> observations = StudentTObservations(num_outputs=1).initialize(deg_free=4.0, noise=0.5)
        >>> print(f"{observations(torch.zeros(1, 1)).variance.item():.3f}")
        1.000
    """

    is_elementwise = True

    deg_free = LearntParameter()
    noise = LearntParameter()

    def __init__(
        self,
        num_outputs: int,
        deg_free_prior: Prior | None = None,
        deg_free_constraint: Interval | None = None,
        noise_prior: Prior | None = None,
        noise_constraint: Interval | None = None,
    ):
        super().__init__(num_outputs)
        type(self).deg_free.register(self, num_outputs, deg_free_constraint or GreaterThan(2.0), deg_free_prior)
        type(self).noise.register(self, num_outputs, noise_constraint or GreaterThan(1e-4), noise_prior)

    def distribution(self, decoded: Tensor) -> StudentT:
        return StudentT(self.deg_free, decoded, self.noise.sqrt())

    def initial_sites(self, y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""
        The value itself, with the Fisher information of h as its precision:

        .. math::

            g_{np} = y_{np}, \qquad \lambda_{np} = \frac {\nu_p + 1} {(\nu_p + 3) \, \sigma_p^2}

        Outliers have the precision of all other values: only one who knows h can tell them apart.
        """
        y, observed = self._fill(y, observed)
        precision = (self.deg_free + 1) / ((self.deg_free + 3) * self.noise)
        return mask_sites(y, precision, observed)
