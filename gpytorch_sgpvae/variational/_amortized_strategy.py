from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ApproximateGP
from gpytorch.utils.errors import CachingError
from gpytorch.utils.memoize import add_to_cache, get_from_cache
from gpytorch.variational import _VariationalStrategy
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .._compat import DIAG_BY_DEFAULT
from ..context import Context, as_context
from ..linalg.allocator import keep_freed_memory
from ..sites import GaussianSites
from .amortized_multivariate_normal import AmortizedMultivariateNormal, AmortizedPrior
from .amortized_variational_distribution import AmortizedVariationalDistribution


class Encoding:
    """What a strategy remembers of a context: enough for q(f) anywhere. A strategy takes it wherever a context goes."""

    # Whether inputs are known by being the context's own, so that a part of them would not be recognized.
    of_points_only = False

    @property
    def tasks(self) -> torch.Size:
        """Batch shape of the context, `*T`, followed by K where the model has a latent dimension."""
        raise NotImplementedError

    def detach(self) -> Encoding:
        raise NotImplementedError

    def for_prediction(self) -> Encoding:
        """Off the graph, as GPyTorch's own test-time caches are (:class:`gpytorch.settings.detach_test_caches`)."""
        return self.detach() if settings.detach_test_caches.on() else self


class _AmortizedStrategy(_VariationalStrategy):
    """
    What all amortized strategies share: where contexts come from, what is remembered of a call, and when it is
    forgotten. A subclass fills in :meth:`_encode`, :meth:`_predict`, :meth:`_q_u` and :meth:`_p_u`.
    """

    inducing_points: Tensor
    # Whether each point of a context has a site of its own.
    has_sites_of_points = True
    # Whether a context can be taken in piece by piece.
    encodes_in_chunks = False

    def __init__(
        self,
        model: ApproximateGP,
        inducing_points: Tensor,
        variational_distribution: AmortizedVariationalDistribution,
        learn_inducing_locations: bool,
        jitter_val: float | None,
    ):
        if not isinstance(variational_distribution, AmortizedVariationalDistribution):
            raise TypeError(
                f"{type(self).__name__} needs an AmortizedVariationalDistribution(network), got "
                f"{type(variational_distribution).__name__}."
            )
        super().__init__(model, inducing_points, variational_distribution, learn_inducing_locations, jitter_val)
        keep_freed_memory()
        self._conditioning: Context | None = None
        self._conditioning_encoding: Encoding | None = None
        self._conditioning_hooks: list[RemovableHandle] = []
        self._q_u_versions: tuple[int, ...] = ()

    @abstractmethod
    def _encode(self, context: Context, sites: GaussianSites, **kwargs: Any) -> tuple[Encoding, Any]:
        """The encoding, and whatever was computed at the context's inputs that q(f) at them needs again."""

    @abstractmethod
    def _predict(self, x: Tensor, encoding: Encoding, at_x: Any, diag: bool, **kwargs: Any) -> MultivariateNormal:
        """q(f) at x; `at_x` is what :meth:`_encode` computed there, or None if x is elsewhere."""

    @abstractmethod
    def _q_u(self, encoding: Encoding) -> AmortizedMultivariateNormal:
        """q(u), or what stands for it."""

    @abstractmethod
    def _p_u(self, encoding: Encoding | None) -> AmortizedPrior:
        """p(u), or what stands for it, of the shape of q(u)."""

    @property
    def num_latents(self) -> int | None:
        """K, or None for a model without a latent batch dimension."""
        return self._variational_distribution.num_latents

    def sites(self, context: Context | tuple[Tensor, Tensor]) -> GaussianSites:
        """What the network makes of a context."""
        return self._variational_distribution(as_context(context))

    def encode(
        self,
        context: Context | tuple[Tensor, Tensor],
        sites: GaussianSites | None = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Encoding:
        """
        Condition on a context: everything about it that q(f) depends on.

        :param context: The context.
        :param sites: Its sites, if not those that the network makes of it.
        :param chunk_size: Take in so many points at a time, and compute each chunk again in the backward pass: the
            same answer and the same gradients in the memory of one chunk. The sites are then the network's.
        :param kwargs: Passed to the model's `forward`.
        """
        context = self._checked(context)
        if chunk_size is not None and sites is None:
            return self._encode_chunks(context.split(chunk_size), **kwargs)
        return self._encode(context, self.sites(context) if sites is None else sites, **kwargs)[0]

    def _encode_chunks(self, chunks: Iterable[Context], **kwargs: Any) -> Encoding:
        """The encoding of all chunks of a context together."""
        raise NotImplementedError(
            f"{type(self).__name__} takes in all points of a context together: chunk_size is for the sparse "
            "AmortizedVariationalStrategy (SGPVAE)."
        )

    @property
    def last_encoding(self) -> Encoding:
        """The encoding that the last call was conditioned on."""
        last = self._last_call()
        if last is None:
            self._raise_no_context()
        return last[1]

    def set_conditioning(self, context: Context | None) -> Context | None:
        """What calls without `context=` are conditioned on (see `conditioned_on`). Returns what it was before."""
        before, self._conditioning = self._conditioning, context
        self._forget_conditioning()
        for hook in self._conditioning_hooks:
            hook.remove()
        learnt = [p for p in self.model.parameters() if p.requires_grad and context is not None]
        self._conditioning_hooks = [parameter.register_hook(self._outdate_last_call) for parameter in learnt]
        return before

    @property
    def variational_distribution(self) -> AmortizedMultivariateNormal:
        """q(u) of the last call; under `conditioned_on` that of its context."""
        if self._conditioning is not None and self._last_call_is_outdated():
            self._remember(self._encoding_of(self._conditioning))
        last = self._last_call()
        if last is None:
            self._raise_no_context()
        return last[0]

    @property
    def prior_distribution(self) -> AmortizedPrior:
        """p(u), of the shape of the last q(u)."""
        if self._last_call() is None and self._conditioning is not None:
            self._remember(self._encoding_of(self._conditioning))
        last = self._last_call()
        return self._p_u(None if last is None else last[1])

    def get_fantasy_model(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__} needs no fantasy model to take in new data: "
            "use gpytorch_sgpvae.condition(model, (x, y)), or pass context=(x, y) to the model."
        )

    def __call__(
        self,
        x: Tensor,
        prior: bool = False,
        diag: bool = DIAG_BY_DEFAULT,
        context: Context | tuple[Tensor, Tensor] | Encoding | None = None,
        **kwargs: Any,
    ) -> MultivariateNormal:
        r"""
        :param x: Where to evaluate (`*T x N x D`). It never carries the latent dimension.
        :param prior: Return the prior p(f) instead; no context is needed then.
        :param diag: In training mode, whether the variances alone will do.
        :param context: What to condition on: a :class:`~gpytorch_sgpvae.Context`, a pair `(x, y)`, or the
            :class:`Encoding` of one.
        :param kwargs: Passed to the model's `forward`.
        :return: q(f) at x (`*T x K` x N, or `*T` x N where the network has `num_latents=None`).
        """
        x = x.unsqueeze(-1) if x.dim() == 1 else x
        self._check_inputs(x, "x")
        if prior:
            return self.model.forward(self._insert_latents(x), **kwargs)

        self._clear_cache()
        if context is None:
            context = self._active_context()
        at_x = None
        if isinstance(context, Encoding):
            encoding = context
        else:
            context = self._checked(context)
            encoding, at_context = self._encode(context, self.sites(context), **kwargs)
            at_x = at_context if context.is_at(x) else None
        self._check_tasks(x, encoding)
        self._remember(encoding)
        self.variational_params_initialized.fill_(1)
        return self._predict(x, encoding, at_x, diag and self.training, **kwargs)

    def train(self, mode: bool = True) -> _AmortizedStrategy:
        self._forget_conditioning()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> _AmortizedStrategy:
        self._forget_conditioning()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._forget_conditioning()
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        # q(u) of the last call hangs on a graph, which can be neither copied nor pickled.
        forgotten: dict[str, Any] = {"_memoize_cache": {}, "_conditioning": None, "_conditioning_encoding": None}
        return {**self.__dict__, **forgotten, "_conditioning_hooks": []}

    def _insert_latents(self, x: Tensor) -> Tensor:
        if self.num_latents is None:
            return x
        return x.unsqueeze(-3).expand(*x.shape[:-2], self.num_latents, *x.shape[-2:])  # (*T, K, N, D)

    def _active_context(self) -> Context | Encoding:
        if self._conditioning is None:
            self._raise_no_context()
        return self._conditioning if self.training else self._encoding_of(self._conditioning)

    def _encoding_of(self, conditioning: Context) -> Encoding:
        """Under `conditioned_on`: fresh in training, where a graph serves once; else encoded once."""
        if self.training:
            return self.encode(conditioning)
        if self._conditioning_encoding is None:
            self._conditioning_encoding = self.encode(conditioning).for_prediction()
        return self._conditioning_encoding

    def _remember(self, encoding: Encoding) -> None:
        """Under GPyTorch's own name, where its wrappers and objectives look for q(u)."""
        add_to_cache(self, "variational_distribution_memo", self._q_u(encoding))
        add_to_cache(self, "encoding_memo", encoding)
        self._q_u_versions = self._parameter_versions() if self._conditioning is not None else ()

    def _last_call(self) -> tuple[AmortizedMultivariateNormal, Encoding] | None:
        try:
            return get_from_cache(self, "variational_distribution_memo"), get_from_cache(self, "encoding_memo")
        except CachingError:
            return None

    def _last_call_is_outdated(self) -> bool:
        last = self._last_call()
        if last is None or not self.training:
            return last is None
        has_graph = last[0].loc.requires_grad or not torch.is_grad_enabled()
        return not has_graph or self._q_u_versions != self._parameter_versions()

    def _outdate_last_call(self, gradient: Tensor) -> None:
        """A backward pass has used up its graph."""
        self._q_u_versions = ()

    def _parameter_versions(self) -> tuple[int, ...]:
        """They count the changes in place, an optimizer's among them."""
        return tuple(parameter._version for parameter in self.model.parameters())

    def _forget_conditioning(self) -> None:
        """Under `conditioned_on`: whatever was computed from its context, or was there before it."""
        self._conditioning_encoding = None
        if self._conditioning is not None:
            self._clear_cache()

    def _checked(self, context: Context | tuple[Tensor, Tensor]) -> Context:
        context = as_context(context)
        self._check_inputs(context.x, "The context's x")
        return context

    def _check_inputs(self, x: Tensor, name: str) -> None:
        Z = self.inducing_points
        if x.dtype != Z.dtype or x.device != Z.device:
            raise ValueError(
                f"{name} is {x.dtype} on {x.device}, the model {Z.dtype} on {Z.device}: convert the data with "
                ".to(...), or the model with model.double(), .float() or .to(...)."
            )

    def _check_tasks(self, x: Tensor, encoding: Encoding) -> None:
        tasks = encoding.tasks if self.num_latents is None else encoding.tasks[:-1]
        if x.shape[:-2] == tasks:
            return
        try:
            torch.broadcast_shapes(x.shape[:-2], tasks)
        except RuntimeError:
            raise ValueError(
                f"x of shape {tuple(x.shape)} has the batch shape {tuple(x.shape[:-2])}, which does not broadcast with "
                f"the context's {tuple(tasks)}: give one x per task, or one x without a batch for all."
            ) from None

    def _raise_no_context(self) -> NoReturn:
        raise ValueError(
            f"{type(self).__name__} computes q(u) from data and was given none: call model(x, context=(x_seen, "
            "y_seen)), or wrap callers that cannot pass a context in `with conditioned_on(model, context):`. "
            "model(x, prior=True) needs none."
        )
