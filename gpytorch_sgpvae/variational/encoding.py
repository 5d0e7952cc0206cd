from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor

from ..context import Context
from ..sites import GaussianSites
from .amortized_multivariate_normal import AmortizedMultivariateNormal, AmortizedPrior

if TYPE_CHECKING:
    from .amortized_strategy import AmortizedStrategy


class Encoding(ABC):
    """
    What a strategy remembers of a context: enough for q(f) anywhere, and for whatever else it can do. Methods that an
    encoding lacks raise an error that says so: nobody needs to ask what kind of encoding it is. A strategy takes one
    wherever a context goes.

    :ivar strategy: The strategy that made it.
    """

    strategy: AmortizedStrategy

    @property
    @abstractmethod
    def tasks(self) -> torch.Size:
        """The batch shape of the context, `*T`."""

    @abstractmethod
    def predict(self, x: Tensor, at_x: Any, diag: bool, **kwargs: Any) -> MultivariateNormal:
        r"""
        :param x: Where (`*T x N x D`).
        :param at_x: What the strategy knows about the prior there already, if it does.
        :param diag: Whether the variances alone will do.
        :return: q(f) at x (`*T x K` x N, or `*T` x N without a latent dimension).
        """

    @abstractmethod
    def q_u(self) -> AmortizedMultivariateNormal:
        """q(u), or what stands for it."""

    @abstractmethod
    def p_u(self) -> AmortizedPrior:
        """p(u), or what stands for it, of the shape of q(u)."""

    @abstractmethod
    def detach(self) -> Encoding:
        """The same off the graph."""

    def for_prediction(self) -> Encoding:
        """Off the graph, as GPyTorch's own test-time caches are (:class:`gpytorch.settings.detach_test_caches`)."""
        return self.detach() if settings.detach_test_caches.on() else self

    @property
    def inducing_points(self) -> Tensor | None:
        """(`M x D` or `K x M x D`), or None without any."""
        return None

    def absorb(self, context: Context) -> Encoding:
        """The encoding of all that this one has seen, and of further points of the same tasks."""
        raise NotImplementedError(
            f"{type(self.strategy).__name__} keeps no summary of its data that further data could be added to: "
            "condition on all of it again, or use the sparse AmortizedVariationalStrategy (SGPVAE)."
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that the strategy makes this encoding of again."""
        raise NotImplementedError(
            f"A posterior of {type(self.strategy).__name__} cannot be saved, only one of the sparse "
            "AmortizedVariationalStrategy (SGPVAE): keep the context instead, and condition on it again."
        )

    def sample(self, x: Tensor, n: int) -> Tensor:
        r"""
        Draw the latent functions, each draw jointly over all inputs (`n x *T x N x K`, or `n x *T x N` without a latent
        dimension), which takes a Cholesky factor of N x N.

        :param x: Where (`*T x N x D`).
        """
        q_f = self.strategy(x, context=self, diag=False)
        draws = q_f.rsample(torch.Size([n]))
        is_batch = self.strategy.num_latents is not None and not isinstance(q_f, MultitaskMultivariateNormal)
        return draws.mT if is_batch else draws

    def split(self, x: Tensor, chunk_size: int) -> Sequence[Tensor]:
        """Inputs (`*T x N x D`) in chunks that :meth:`predict` treats as it does the whole."""
        return x.split(chunk_size, dim=-2)

    def sites_of(self, q_f: MultivariateNormal) -> GaussianSites:
        """The sites l for which this q(f), joint over the context's points, is p(f) l(f) / Z (`*T x K x N`)."""
        raise ValueError(
            f"{type(self.strategy).__name__} has a q(f) at the data that is no product of the prior and sites there: "
            "use GPVAE or VAE. With inducing points the bound would be of another model's evidence."
        )
