from __future__ import annotations

import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.priors import Prior
from torch import Tensor

from .base import LearntParameter, ObservationModel
from .distributions import NegativeBinomial
from .initial_sites import mask_sites, mean_of_count, poisson_site
from .special_functions import log_softplus


class NegativeBinomialObservations(ObservationModel):
    r"""
    Counts that vary more than Poisson's, with a mean :math:`\mu` that the decoder gives and a learnt dispersion r:

    .. math::

        \mu_{np} = c_p \, \mathrm{softplus}(h_p(\mathbf f_n)), \qquad
        \mathbb E[y_{np}] = \mu_{np}, \qquad
        \mathrm{Var}[y_{np}] = \mu_{np} + \mu_{np}^2 / r_p

    For the softplus see :class:`~gpytorch_sgpvae.PoissonObservations`, which this becomes as r grows. The scale c is 1
    unless it is given: counts of thousands or millions are learnt as well as small ones if c makes
    :math:`\mu / c` a number around 10. It is not learnt, and no part of the state.

    :param num_outputs: Number of outputs P.
    :param dispersion_prior: Prior for the dispersion r.
    :param dispersion_constraint: Constraint for the dispersion; by default greater than 1e-4.
    :param rate_scale: The scale c of the means, a positive number or one for each output (`P`).

    :ivar torch.Tensor dispersion: r (`P`).

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import NegativeBinomialObservations
        >>> observations = NegativeBinomialObservations(num_outputs=1)
        >>> observations.dispersion = 4.0
        >>> distribution = observations(torch.tensor([[100.0]]))
        >>> print(f"{distribution.mean.item():.0f}, {distribution.variance.item():.0f}")
        100, 2600
    """

    is_elementwise = True

    dispersion = LearntParameter()
    rate_scale: Tensor

    def __init__(
        self,
        num_outputs: int,
        dispersion_prior: Prior | None = None,
        dispersion_constraint: Interval | None = None,
        rate_scale: Tensor | float = 1.0,
    ):
        super().__init__(num_outputs)
        scales = rate_scale.tolist() if isinstance(rate_scale, Tensor) else rate_scale
        listed = scales if isinstance(scales, list) else [scales] * num_outputs
        if len(listed) != num_outputs or not all(scale > 0 for scale in listed):
            raise ValueError(
                f"rate_scale must be a positive number or {num_outputs} of them, one for each output, got {scales}."
            )
        self.register_buffer("rate_scale", torch.tensor(listed, dtype=torch.get_default_dtype()), persistent=False)
        constraint = dispersion_constraint or GreaterThan(1e-4)
        type(self).dispersion.register(self, num_outputs, constraint, dispersion_prior)

    def distribution(self, decoded: Tensor) -> NegativeBinomial:
        # torch counts successes before the r-th failure: μ = r exp(logits)
        logits = log_softplus(decoded) + (self.rate_scale.log() - self.dispersion.log())
        return NegativeBinomial(self.dispersion.expand_as(logits), logits=logits, validate_args=False)

    def initial_sites(self, y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""
        The sites of :class:`~gpytorch_sgpvae.PoissonObservations` with smaller precisions: overdispersion divides a
        count's Fisher information on h by :math:`1 + \mu / r`,

        .. math::

            g_{np} = g_{np}^\text{Poisson}, \qquad
            \lambda_{np} = \frac {\lambda_{np}^\text{Poisson}} {1 + \hat \mu_{np} / r_p}, \qquad
            \hat \mu_{np} = \begin{cases} y_{np} & y_{np} > 0 \\ \mathrm{softplus}(0) & y_{np} = 0 \end{cases}

        With a scale c, the Poisson site is that of y / c with c times its precision, and the mean is c times that of
        y / c. For y > 0 this is the likelihood's mode and its curvature there. A count far above r leaves the scale of
        h open, and its site says little under a prior that is narrow for such counts.
        """
        y, observed = self._fill(y, observed)
        scaled = y / self.rate_scale
        g, precision = poisson_site(scaled)
        overdispersion = 1 + self.rate_scale * mean_of_count(scaled) / self.dispersion
        return mask_sites(g, self.rate_scale * precision / overdispersion, observed)
