from __future__ import annotations

from typing import Any

from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor

from .._compat import DIAG_BY_DEFAULT
from .amortized_strategy import AmortizedStrategy


class JointStrategy(AmortizedStrategy):
    """
    Base class of the strategies that infer all latent functions of a task together. They return one distribution of
    all of them by themselves, `N x K`, and are not to be wrapped.
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
