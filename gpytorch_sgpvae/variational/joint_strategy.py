from __future__ import annotations

from typing import Any

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor

from .._compat import DIAG_BY_DEFAULT
from ..context import Context
from ..sites import GaussianSites
from ..utils.shapes import expands_to
from .amortized_strategy import AmortizedStrategy


class JointStrategy(AmortizedStrategy):
    """
    What the strategies share that infer all latent functions of a task together: they return one distribution of all of
    them by themselves, `N x K`, and are not to be wrapped.
    """

    takes_loadings = True

    def __call__(  # type: ignore[override]
        self, x: Tensor, prior: bool = False, diag: bool = DIAG_BY_DEFAULT, **kwargs: Any
    ) -> MultivariateNormal:
        if not isinstance(getattr(self.model, "variational_strategy", self), JointStrategy):
            raise TypeError(
                f"{type(self).__name__} returns all latent functions together and needs no wrapper, but stands in a "
                f"{type(self.model.variational_strategy).__name__}: pass the strategy itself to the model."
            )
        q_f = super().__call__(x, prior, diag, **kwargs)
        if prior and self.num_latents is not None:
            return MultitaskMultivariateNormal.from_batch_mvn(q_f)
        return q_f

    def sites_of_further(self, context: Context, tasks: torch.Size) -> GaussianSites:
        """The sites of points that are added to what was seen of some tasks before."""
        if not self._variational_distribution.row_wise:
            raise NotImplementedError(self._rows_depend_on_each_other())
        sites = self.sites(self._checked(context))
        if not expands_to(context.batch_shape, tasks):
            raise ValueError(
                f"The further context is of the tasks {tuple(context.batch_shape)}, but what was seen before of "
                f"{tuple(tasks)}: an update is for the same tasks."
            )
        return sites
