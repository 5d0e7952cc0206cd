from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import Any, NoReturn

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ApproximateGP
from gpytorch.utils.errors import CachingError
from gpytorch.utils.memoize import add_to_cache, get_from_cache
from gpytorch.variational import _VariationalStrategy
from torch import Tensor

from .._compat import DIAG_BY_DEFAULT, is_compiling
from ..context import Context, as_context
from ..linalg.allocator import keep_freed_memory
from ..magnitudes import check_magnitude
from ..sites import GaussianSites
from ..utils.shapes import broadcast, expands_to
from .amortized_multivariate_normal import AmortizedMultivariateNormal, AmortizedPrior
from .amortized_variational_distribution import AmortizedVariationalDistribution
from .conditioning import Conditioning
from .encoding import Encoding
from .joint_prior import JointPrior, joint_prior


class AmortizedStrategy(_VariationalStrategy):
    """
    Base class of the amortized strategies. It knows where contexts come from, what is remembered of a call, and when
    that is forgotten. A subclass fills in :meth:`_encode`, which makes an :class:`Encoding`; the encoding does the
    rest.
    """

    inducing_points: Tensor
    # Whether sites may couple the latent functions.
    takes_loadings = False
    # What is raised where there is no context. torch.jit asks all properties of a module whether they exist.
    missing_context_error: type[Exception] = ValueError

    def __init__(
        self,
        model: ApproximateGP,
        inducing_points: Tensor,
        variational_distribution: AmortizedVariationalDistribution,
        learn_inducing_locations: bool,
        jitter_val: float | None,
        x_has_latents: bool = False,
    ):
        if not isinstance(variational_distribution, AmortizedVariationalDistribution):
            raise TypeError(
                f"{type(self).__name__} needs an AmortizedVariationalDistribution(network), got "
                f"{type(variational_distribution).__name__}."
            )
        super().__init__(model, inducing_points, variational_distribution, learn_inducing_locations, jitter_val)
        if x_has_latents and self.num_latents is None:
            raise ValueError("x_has_latents=True needs a network with num_latents, got num_latents=None.")
        keep_freed_memory()
        self.x_has_latents = x_has_latents
        self._conditioning: Conditioning | None = None
        self._forward_is_lazy = False

    @abstractmethod
    def _encode(self, context: Context, sites: GaussianSites, x: Tensor, **kwargs: Any) -> tuple[Encoding, Any]:
        """
        The encoding, and what its :meth:`~Encoding.predict` needs to know about the prior at x, all from one call of
        the model's `forward`. If x is `context.x`, nothing is computed twice.
        """

    def _encode_chunks(self, chunks: Iterable[Context], **kwargs: Any) -> Encoding:
        """The encoding of all chunks of a context together."""
        raise NotImplementedError

    def _why_not_in_chunks(self) -> str | None:
        """The reason why a context cannot be taken in piece by piece, or None if it can."""
        return (
            f"{type(self).__name__} takes in all points of a context together: chunk_size is for the sparse "
            "AmortizedVariationalStrategy (SGPVAE)."
        )

    def _rows_depend_on_each_other(self) -> str:
        return (
            f"The sites of {type(self._variational_distribution.network).__name__} may depend on other rows than their "
            "own, so that a context cannot be taken in piece by piece (chunk_size, update): condition on all of it at "
            "once. A network that reads each row by itself says so by `row_wise = True` on its class."
        )

    def _prior_without_context(self) -> AmortizedPrior:
        """p(u), or what stands for it, where nothing has been conditioned on."""
        self._raise_no_context()

    def encoding_from_state_dict(self, state_dict: dict[str, Tensor]) -> Encoding:
        """The encoding that :meth:`Encoding.state_dict` was called of."""
        raise NotImplementedError(f"{type(self).__name__} has no encodings that can be saved.")

    @property
    def num_latents(self) -> int | None:
        """K, or None for a model without a latent batch dimension."""
        batch_shape = self._variational_distribution.batch_shape
        return batch_shape[0] if batch_shape else None

    def sites(self, context: Context | tuple[Tensor, Tensor]) -> GaussianSites:
        """What the network makes of a context."""
        return self._checked_sites(self._variational_distribution(as_context(context)))

    def point_sites(self, context: Context | tuple[Tensor, Tensor]) -> GaussianSites:
        """What the network makes of a context, where these are sites of its points (`*T x K x N`)."""
        return self.sites(context)

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

    def encode(
        self,
        context: Context | tuple[Tensor, Tensor],
        sites: GaussianSites | None = None,
        chunk_size: int | None = None,
        strict: bool = True,
        **kwargs: Any,
    ) -> Encoding:
        """
        Condition on a context: everything about it that q(f) depends on.

        :param context: The context.
        :param sites: Its sites, if not those that the network makes of it.
        :param chunk_size: The number of points to take in at a time. Each chunk is computed again in the backward pass:
            the same answer and the same gradients in the memory of one chunk, if the model's `forward` treats each
            input by itself. The sites are then the network's.
        :param strict: Whether it is an error if the context cannot be taken in piece by piece; otherwise it is taken in
            as a whole.
        :param kwargs: Passed to the model's `forward`.
        """
        context = self._checked(context)
        if chunk_size is not None and sites is None:
            reason = self._why_not_in_chunks()
            if reason is None:
                return self._encode_chunks(context.split(chunk_size), **kwargs)
            if strict:
                raise NotImplementedError(reason)
        sites = self.sites(context) if sites is None else self._checked_sites(sites)
        return self._encode(context, sites, context.x, **kwargs)[0]

    @property
    def last_encoding(self) -> Encoding:
        """The encoding that the last call was conditioned on."""
        encoding = self._last_encoding()
        if encoding is None:
            self._raise_no_context()
        return encoding

    def set_conditioning(self, conditioning: Conditioning | None) -> Conditioning | None:
        """Set what calls without `context=` are conditioned on, and return what it was before."""
        before, self._conditioning = self._conditioning, conditioning
        if before is not None:
            before.end()
        self._clear_cache()
        return before

    @property
    def variational_distribution(self) -> AmortizedMultivariateNormal:
        """q(u) of the last call; under `conditioned_on` that of its context."""
        q_u, conditioning = self._last_q_u(), self._conditioning
        if conditioning is not None and (q_u is None or not conditioning.holds(q_u, self)):
            q_u = self._remember(conditioning.encoding(self))
        if q_u is None:
            self._raise_no_context()
        return q_u

    @property
    def prior_distribution(self) -> AmortizedPrior:
        """p(u), of the shape of the last q(u)."""
        encoding = self._last_encoding()
        if encoding is None and self._conditioning is not None:
            encoding = self._conditioning.encoding(self)
            self._remember(encoding)
        return self._prior_without_context() if encoding is None else encoding.p_u()

    def get_fantasy_model(
        self, inputs: Tensor, targets: Tensor, mean_module: None = None, covar_module: None = None
    ) -> ApproximateGP:
        r"""
        A copy of the model that has seen further points beside the context that
        :func:`~gpytorch_sgpvae.persist_context` gave it, and needs no `context=` either. It works for any likelihood,
        as conditioning asks none.

        :param inputs: (`*T x N x D`). More batch dimensions than the context's are as many fantasies of the same tasks.
        :param targets: (`*T x N x P`, or `*T x N` for one output).
        :param mean_module: None, as the copy has the model's own.
        :param covar_module: None, as the copy has the model's own.
        """
        if mean_module is not None or covar_module is not None:
            raise TypeError("A fantasy model has the mean and the kernel of the model: pass none.")
        if self._conditioning is None:
            raise NotImplementedError(
                f"{type(self).__name__} makes fantasy models of a model that has been given a context: call "
                "gpytorch_sgpvae.persist_context(model, (x_seen, y_seen)) first. Without a copy, new data are taken in "
                "by gpytorch_sgpvae.condition(model, (x, y)), or by passing context=(x, y) to the model."
            )
        seen, further = self._conditioning.seen, self._checked((inputs, targets))
        if isinstance(seen, Context) and not expands_to(further.batch_shape, seen.batch_shape):
            tasks = torch.broadcast_shapes(further.batch_shape, seen.batch_shape)
            encoding = self.encode(seen.expand(tasks))
        else:
            encoding = self._conditioning.encoding(self)
        model, encoding = copy.deepcopy((self.model, encoding.absorb(further).detach()))
        encoding.strategy.set_conditioning(Conditioning(encoding, persistent=True))
        return model

    def __call__(
        self,
        x: Tensor,
        prior: bool = False,
        diag: bool = DIAG_BY_DEFAULT,
        context: Context | tuple[Tensor, Tensor] | Encoding | None = None,
        x_has_latents: bool | None = None,
        **kwargs: Any,
    ) -> MultivariateNormal:
        r"""
        :param x: Where to evaluate (`*T x N x D`, or `*T x K x N x D` for a strategy with `x_has_latents=True`).
        :param prior: Return the prior p(f) instead; no context is needed then.
        :param diag: In training mode, whether the variances alone will do.
        :param context: What to condition on: a :class:`~gpytorch_sgpvae.Context`, a pair `(x, y)`, or the
            :class:`Encoding` of one.
        :param x_has_latents: False says that the batch dimensions of this x are all tasks, however many latent
            functions there are; by default x is as the strategy was built for, and a shape that could be read either
            way is an error.
        :param kwargs: Passed to the model's `forward`.
        :return: q(f) at x (`*T x K` x N, or `*T` x N where the network has `num_latents=None`).
        """
        x = x.unsqueeze(-1) if x.dim() == 1 else x
        self._check_inputs(x, "x")
        if x_has_latents and not self.x_has_latents:
            raise ValueError("This strategy is for x without a latent dimension: build it with x_has_latents=True.")
        is_plain = x_has_latents is False
        if is_plain and self.x_has_latents:
            x = self._insert_latents(x)
            is_plain = False
        if not (isinstance(context, Context) and context.is_at(x)):
            check_magnitude(x, "x", "predict where it is finite, and scale it as the inputs that the model has seen.")
        if prior:
            return self.model.forward(self._for_latents(x), **kwargs)

        self._clear_cache()
        if context is None:
            context = self._active_context()
        at_x = None
        if isinstance(context, Encoding):
            encoding = context
            self._check_tasks(x, encoding.tasks, is_plain)
        else:
            context = self._checked(context)
            self._check_tasks(x, context.batch_shape, is_plain)
            at_context = context.is_at(x)
            encoding, at_x = self._encode(context, self.sites(context), context.x if at_context else x, **kwargs)
        if encoding is context:
            # its q(u) is computed when somebody asks: for rows that came one by one it takes all of them together
            add_to_cache(self, "encoding_memo", encoding)
        else:
            self._remember(encoding)
        if not is_compiling():  # it is a buffer, and an exported model changes none
            self.variational_params_initialized.fill_(1)
        return encoding.predict(x, at_x, diag and self.training, **kwargs)

    def train(self, mode: bool = True) -> AmortizedStrategy:
        self._forget_conditioning()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> AmortizedStrategy:
        self._forget_conditioning()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._forget_conditioning()
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        # q(u) of the last call hangs on a graph, which can be neither copied nor pickled.
        kept = self._conditioning if self._conditioning is not None and self._conditioning.persistent else None
        return {**self.__dict__, "_memoize_cache": {}, "_conditioning": kept}

    def _prior(self, *groups: Tensor, **kwargs: Any) -> JointPrior:
        """The prior at groups of inputs (`*T x K x N x D`), from one call of the model's `forward`."""
        forward = partial(self.model.forward, **kwargs)
        prior = joint_prior(forward, groups, self.num_latents is not None, self._forward_is_lazy)
        self._forward_is_lazy = prior.is_lazy
        return prior

    def _for_latents(self, x: Tensor) -> Tensor:
        """New inputs, with the latent dimension if they come without."""
        return x if self.x_has_latents else self._insert_latents(x)

    def _insert_latents(self, x: Tensor) -> Tensor:
        if self.num_latents is None:
            return x
        return x.unsqueeze(-3).expand(*x.shape[:-2], self.num_latents, *x.shape[-2:])  # (*T, K, N, D)

    def _active_context(self) -> Context | Encoding:
        if self._conditioning is None:
            self._raise_no_context()
        return self._conditioning.for_call(self)

    def _remember(self, encoding: Encoding) -> AmortizedMultivariateNormal:
        """Store q(u) under GPyTorch's own name, where its wrappers and objectives look for it."""
        q_u = encoding.q_u()
        add_to_cache(self, "variational_distribution_memo", q_u)
        add_to_cache(self, "encoding_memo", encoding)
        if self._conditioning is not None:
            self._conditioning.note(self)
        return q_u

    def _last_encoding(self) -> Encoding | None:
        try:
            return get_from_cache(self, "encoding_memo")
        except CachingError:
            return None

    def _last_q_u(self) -> AmortizedMultivariateNormal | None:
        """The q(u) of the last call, computed now if nobody has asked before."""
        encoding = self._last_encoding()
        try:
            return get_from_cache(self, "variational_distribution_memo")
        except CachingError:
            return None if encoding is None else self._remember(encoding)

    def _forget_conditioning(self) -> None:
        """Forget what was computed from the context of `conditioned_on`, or was there before it."""
        if self._conditioning is not None:
            self._conditioning.forget()
            self._clear_cache()

    def _checked(self, context: Context | tuple[Tensor, Tensor]) -> Context:
        context = as_context(context)
        self._check_inputs(context.x, "The context's x")
        return context

    def _checked_sites(self, sites: GaussianSites) -> GaussianSites:
        if sites.loadings is not None and not self.takes_loadings:
            raise TypeError(
                f"{type(self).__name__} infers each latent function by itself, but the sites of "
                f"{type(self._variational_distribution.network).__name__} have loadings, which couple them: use "
                "JointAmortizedVariationalStrategy (SGPVAE) or DenseJointAmortizedVariationalStrategy (GPVAE)."
            )
        return sites

    def _check_inputs(self, x: Tensor, name: str) -> None:
        Z = self.inducing_points
        if len(Z) and x.shape[-1] != Z.shape[-1]:
            raise ValueError(
                f"{name} of shape {tuple(x.shape)} has {x.shape[-1]} input dimensions, but the inducing points of "
                f"shape {tuple(Z.shape)} have {Z.shape[-1]}: expected (*T, N, D)."
            )
        if x.dtype != Z.dtype or x.device != Z.device:
            raise ValueError(
                f"{name} is {x.dtype} on {x.device}, the model {Z.dtype} on {Z.device}: convert the data with "
                ".to(...), or the model with model.double(), .float() or .to(...)."
            )

    def _check_tasks(self, x: Tensor, tasks: torch.Size, is_plain: bool) -> None:
        batch, num_latents = x.shape[:-2], self.num_latents
        if self.x_has_latents:
            if batch[-1:] != (num_latents,) or broadcast(batch[:-1], tasks) is None:
                raise ValueError(
                    f"x of shape {tuple(x.shape)} does not fit a strategy with x_has_latents=True: expected (*T, "
                    f"{num_latents}, N, D) with tasks *T that broadcast with the context's {tuple(tasks)}."
                )
            return
        if batch == tasks:
            return
        as_tasks = broadcast(batch, tasks) is not None
        as_latents = (
            not is_plain
            and num_latents is not None
            and batch[-1:] == (num_latents,)
            and broadcast(batch[:-1], tasks) is not None
        )
        if as_latents:
            raise ValueError(
                f"x of shape {tuple(x.shape)} looks like inputs for each of the {num_latents} latent functions"
                + (f", or like {tuple(batch)} tasks with one context" if as_tasks else "")
                + ": build the strategy with x_has_latents=True in the first case"
                + ("; in the second, call the model with x_has_latents=False." if as_tasks else ".")
            )
        if not as_tasks:
            raise ValueError(
                f"x of shape {tuple(x.shape)} has the batch shape {tuple(batch)}, which does not broadcast with "
                f"the context's {tuple(tasks)}: give one x per task, or one x without a batch for all."
            )

    def _raise_no_context(self) -> NoReturn:
        raise self.missing_context_error(
            f"{type(self).__name__} computes q(u) from data and was given none: call model(x, context=(x_seen, "
            "y_seen)), or wrap callers that cannot pass a context in `with conditioned_on(model, context):`. "
            "model(x, prior=True) needs none."
        )
