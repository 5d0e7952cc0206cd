from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from ..context import Context, as_context
from ..utils.shapes import check_chunk_size
from .amortized_strategy import AmortizedStrategy
from .conditioning import Conditioning
from .encoding import Encoding
from .point_marginals import PointMarginals


class Posterior:
    r"""
    A model that has seen a context: :math:`q(f(\mathbf x) \mid \text{context})` for any :math:`\mathbf x`.

    The context is encoded once; with inducing points every call then costs :math:`O(K N M^2)`, without the context's
    data, and over time O(N). A posterior is a snapshot: make a new one after the model's parameters have changed.

    :param model: The model, whose wrappers (independent outputs, LMC) apply to every call.
    :param encoding: What its strategy remembers of the context.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE, Posterior, condition
        >>> model = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.rand(8, 2)).model.eval()
        >>> posterior = condition(model, (torch.rand(20, 2), torch.randn(20, 5)))
        >>> posterior(torch.rand(4, 2)).mean.shape
        torch.Size([4, 3])

    The sparse strategy's posterior takes in further data, and can be kept:

        >>> _ = posterior.update((torch.rand(6, 2), torch.randn(6, 5)))
        >>> same = Posterior.from_state_dict(model, posterior.state_dict())
        >>> bool((same(torch.zeros(1, 2)).mean == posterior(torch.zeros(1, 2)).mean).all())
        True
    """

    def __init__(self, model: torch.nn.Module, encoding: Encoding):
        self.model = model
        self.encoding = encoding

    def __call__(self, x: Tensor, **kwargs: Any) -> MultivariateNormal:
        r"""
        :param x: New inputs (`*T x N x D`).
        :return: q(f) at x, as the model itself returns it.
        """
        return self.model(x, context=self.encoding, **kwargs)

    def marginals(self, x: Tensor, chunk_size: int | None = None) -> tuple[Tensor, Tensor]:
        r"""
        Mean and variance of q(f) at each input (`*T x N x K`, or `*T x N` without a latent dimension).

        :param x: New inputs (`*T x N x D`).
        :param chunk_size: The number of inputs to compute at a time: the same answer in less memory.
        """
        parts = [(q_f.mean, q_f.variance, len(q_f.event_shape)) for q_f in self.in_chunks(x, chunk_size)]
        means, variances, dims = zip(*parts, strict=True)
        return torch.cat(means, dim=-dims[0]), torch.cat(variances, dim=-dims[0])

    def point_marginals(self, x: Tensor, chunk_size: int | None = None) -> PointMarginals:
        r"""
        The marginals of q(f) at each input, from which all latent functions there are drawn together; see
        :meth:`marginals` for the parameters.
        """
        return PointMarginals.concatenate([PointMarginals.of(q_f) for q_f in self.in_chunks(x, chunk_size)])

    def in_chunks(self, x: Tensor, chunk_size: int | None) -> Iterator[MultivariateNormal]:
        """Compute q(f) at this many inputs at a time; see :meth:`marginals` for the parameters."""
        check_chunk_size(chunk_size)
        x = x.unsqueeze(-1) if x.dim() == 1 else x
        for chunk in [x] if chunk_size is None or chunk_size >= x.shape[-2] else self.encoding.split(x, chunk_size):
            yield self(chunk)

    @torch.no_grad()
    def sample(self, x: Tensor, n: int) -> Tensor:
        r"""
        Draw the latent functions, each draw jointly over all inputs (`n x *T x N x K`, or `n x *T x N` without a latent
        dimension).

        :param x: New inputs (`*T x N x D`).
        :param n: The number of draws.
        """
        return self.encoding.sample(x.unsqueeze(-1) if x.dim() == 1 else x, n)

    def update(self, context: Context | tuple[Tensor, Tensor]) -> Posterior:
        r"""
        Take in further points of the same tasks. With inducing points, those seen before are not needed, and N new ones
        cost :math:`O(K (N M^2 + M^3))`: their evidence is added to what is there,

        .. math::

            A \Lambda A^\top + A_\text{new} \Lambda_\text{new} A_\text{new}^\top, \qquad
            A \lambda g + A_\text{new} \lambda_\text{new} g_\text{new}

        Over time (:class:`~gpytorch_sgpvae.MarkovAmortizedVariationalStrategy`) rows that are not earlier than the last
        one cost O(N) for N new ones; earlier ones, and the dense strategies, take all rows together again.

        :param context: The new points.
        :return: This posterior, updated.
        """
        encoding = self.encoding.absorb(as_context(context))
        self.encoding = encoding if self.model.training else encoding.for_prediction()
        return self

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that :meth:`from_state_dict` makes this posterior of again, for `torch.save`."""
        return self.encoding.state_dict()

    @classmethod
    def from_state_dict(cls, model: torch.nn.Module, state_dict: dict[str, Tensor]) -> Posterior:
        """
        A posterior from its tensors, wherever they have been in between: they are looked at first, and what is no
        posterior of this model is an error that says why.

        :param model: The model that the posterior belongs to, with the parameters it had then.
        :param state_dict: What :meth:`state_dict` returned.
        """
        strategy = amortized_strategy(model)
        try:
            return cls(model, strategy.encoding_from_state_dict(state_dict))
        except NotImplementedError:  # of a strategy whose posteriors cannot be saved
            raise
        except RuntimeError as error:  # as linear algebra with such numbers
            raise ValueError(
                f"This is no posterior of the model: nothing can be computed from it ({error}). Condition on the "
                "data again."
            ) from error


def condition(
    model: torch.nn.Module,
    context: Context | tuple[Tensor, Tensor],
    chunk_size: int | None = None,
    strict: bool = True,
) -> Posterior:
    r"""
    Condition a trained model on a task, seen or unseen, in one forward pass of its network.

    :param model: A model with one :class:`~gpytorch_sgpvae.AmortizedVariationalStrategy` in it. In eval mode the
        posterior is detached from the parameters' graph, as GPyTorch's caches for predictions are
        (:class:`gpytorch.settings.detach_test_caches`).
    :param context: What was observed.
    :param chunk_size: The number of points to take in at a time: the same answer in less memory, for the sparse
        strategy and a network that reads each row by itself.
    :param strict: Whether it is an error if the context cannot be taken in piece by piece; otherwise it is taken in as
        a whole.
    """
    encoding = amortized_strategy(model).encode(context, chunk_size=chunk_size, strict=strict)
    return Posterior(model, encoding if model.training else encoding.for_prediction())


@contextmanager
def conditioned_on(model: torch.nn.Module, context: Context | tuple[Tensor, Tensor]) -> Iterator[torch.nn.Module]:
    r"""
    Within this context manager the model needs no `context=`: for callers that cannot pass one, such as Pyro, whose
    guide reads `variational_distribution` before any call, or loops over chunks of inputs.

    In eval mode the context is encoded once; in training mode at each call, as the parameters move.

    :param model: A model with one :class:`~gpytorch_sgpvae.AmortizedVariationalStrategy` in it.
    :param context: What was observed.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE, conditioned_on
        >>> model = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.rand(8, 2)).model.eval()
        >>> with conditioned_on(model, (torch.rand(20, 2), torch.randn(20, 5))):
        ...     chunks = [model(x).mean for x in torch.rand(100, 2).split(30)]
        >>> [len(chunk) for chunk in chunks]
        [30, 30, 30, 10]
    """
    strategy = amortized_strategy(model)
    outer = strategy.set_conditioning(Conditioning(as_context(context), persistent=False))
    try:
        yield model
    finally:
        strategy.set_conditioning(outer)


def persist_context(model: torch.nn.Module, context: Context | tuple[Tensor, Tensor] | None) -> None:
    r"""
    Give a model a context to keep: calls without `context=` are conditioned on it, until it is cleared by
    `persist_context(model, None)`. Copies of the model keep it too, and `get_fantasy_model` makes one that has seen
    more.

    In eval mode the context is encoded once; in training mode at each call, as the parameters move.

    :param model: A model with one :class:`~gpytorch_sgpvae.AmortizedVariationalStrategy` in it.
    :param context: What was observed, or None.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE, persist_context
        >>> model = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.rand(8, 2)).model.eval()
        >>> persist_context(model, (torch.rand(20, 2), torch.randn(20, 5)))
        >>> model(torch.rand(4, 2)).mean.shape
        torch.Size([4, 3])
    """
    conditioning = None if context is None else Conditioning(as_context(context), persistent=True)
    strategy = amortized_strategy(model)
    strategy.set_conditioning(conditioning)
    # GPyTorch's wrappers (independent outputs, LMC) do not ask the strategy within them.
    for wrapper in model.modules():
        if wrapper is not strategy and getattr(wrapper, "base_variational_strategy", None) is strategy:
            wrapper.get_fantasy_model = strategy.get_fantasy_model


def amortized_strategy(model: torch.nn.Module) -> AmortizedStrategy:
    strategies = [module for module in model.modules() if isinstance(module, AmortizedStrategy)]
    if not strategies:
        raise ValueError(
            f"{type(model).__name__} has no AmortizedVariationalStrategy: GPyTorch's other variational models cannot "
            "be conditioned on new data."
        )
    if len(strategies) > 1:
        raise ValueError(
            f"{type(model).__name__} has {len(strategies)} amortized strategies, and a context belongs to one: "
            "pass context= to the layer it is meant for."
        )
    return strategies[0]
