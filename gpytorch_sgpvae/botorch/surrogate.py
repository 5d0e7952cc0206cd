from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import FantasizeMixin, Model
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.assorted import gpt_posterior_settings
from botorch.posteriors import GPyTorchPosterior
from gpytorch.likelihoods import Likelihood
from gpytorch.models import ApproximateGP
from gpytorch.settings import detach_test_caches
from torch import Tensor

from ..context import Context, as_context
from ..models.base import AmortizedModel, parts_of
from ..variational import Posterior, condition
from ..variational.posterior import amortized_strategy
from .conditionals import is_gaussian
from .output_posterior import OutputPosterior
from .responses import moments, response, select, with_noise


class AmortizedSurrogate(Model, FantasizeMixin):
    r"""
    A trained model and the data of one task, as a model of BoTorch: what is optimized is a function of the family that
    the model was trained on, and nothing is fitted while it is. New data are a forward pass, so that every likelihood
    can fantasize.

    Its :meth:`posterior` is about the mean of each output given the latent functions,

    .. math::

        m_p(\mathbf x) = \mathbb E[y_p \mid \mathbf f(\mathbf x)]

    in the outputs' own units: rates of counts, probabilities of flags. It is always Gaussian, and joint over the q
    points and the P outputs. With a linear decoder and Gaussian noise it is exact. Otherwise its mean and variances are
    those of :math:`m_p(\mathbf x)`, by quadrature or low-discrepancy samples, and its correlations those of samples.
    With `observation_noise=True` it is about the outputs themselves: for kinds that are not Gaussian an
    :class:`OutputPosterior`, whose samples are counts, flags and so on. `fantasize` draws these and conditions on
    them, as if they had been measured.

    A missing output of an evaluation is NaN. The model is not trained here; it is used in eval mode, and what it knows
    is a snapshot of its parameters.

    :param model: A trained model, such as :class:`~gpytorch_sgpvae.SGPVAE`, :class:`~gpytorch_sgpvae.GPVAE` or
        :class:`~gpytorch_sgpvae.MarkovGPVAE`, or an approximate GP with an amortized strategy.
    :param context: The task's data: a :class:`~gpytorch_sgpvae.Context` or a pair of X (`*b x n x d`) and Y
        (`*b x n x P`); by default none.
    :param likelihood: The likelihood, for an approximate GP that does not bring one.
    :param input_transform: A transform from X to the inputs that the model was trained on.
    :param outcome_transform: A transform from Y to the outputs that the model was trained on, which must be Gaussian
        then. As in BoTorch's own models, transforms in train mode learn from the context, and those in eval mode stay
        as they are: pass one in eval mode to keep what it learnt from the training tasks.
    :param num_samples: Number of samples of the latent functions where there is no closed form.

    Example:
        >>> import torch
        >>> from botorch.acquisition import LogExpectedImprovement
        >>> from botorch.optim import optimize_acqf
        >>> from gpytorch_sgpvae import GPVAE
        >>> from gpytorch_sgpvae.botorch import AmortizedSurrogate
        >>> gpvae = GPVAE(num_outputs=1, num_latents=3, network="jointfactornet").double()  # trained on other tasks
        >>> X, Y = torch.rand(5, 2).double(), torch.randn(5, 1).double()
        >>> surrogate = AmortizedSurrogate(gpvae, (X, Y))
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
        >>> acquisition = LogExpectedImprovement(surrogate, best_f=Y.max())
        >>> candidate, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=2, raw_samples=8)
        >>> surrogate = surrogate.condition_on_observations(candidate, torch.randn(1, 1).double())
        >>> surrogate.posterior(torch.rand(7, 3, 2).double()).mean.shape
        torch.Size([7, 3, 1])
    """

    def __init__(
        self,
        model: AmortizedModel | ApproximateGP,
        context: Context | tuple[Tensor, Tensor] | None = None,
        likelihood: Likelihood | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
        num_samples: int = 256,
    ):
        super().__init__()
        self.model, self.likelihood = parts_of(model, likelihood)
        self.num_samples = num_samples
        self._context = None if context is None else _as_rows(as_context(context))
        self._posterior: Posterior | None = None
        self._subset: list[int] | None = None
        if outcome_transform is not None and not is_gaussian(self.likelihood):
            raise ValueError(
                f"outcome_transform={type(outcome_transform).__name__} is for Gaussian outputs: counts, flags and "
                "other kinds have no other units. Leave it out."
            )
        X, Y = self._data()
        for name, transform, data in (
            ("input_transform", input_transform, X),
            ("outcome_transform", outcome_transform, Y),
        ):
            if transform is not None:
                if transform.training and data is not None and data.shape[-2]:
                    transform(data)
                setattr(self, name, transform.eval())
        self.eval()

    @property
    def num_outputs(self) -> int:
        return self._all_outputs if self._subset is None else len(self._subset)

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size() if self._context is None else self._context.batch_shape

    @property
    def context(self) -> Context | None:
        """The task's data, in the units of :meth:`posterior`."""
        return self._context

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Any:
        r"""
        The joint distribution of what the outputs are on average, or of the outputs, at each q points.

        :param X: (`b x q x d`), where b broadcasts with :attr:`batch_shape`. Gradients reach it, and in a fantasy the
            points that it was made at.
        :param output_indices: The indices of the outputs; by default all.
        :param observation_noise: Whether it is about the outputs themselves; a tensor is a variance to add, of Gaussian
            outputs (in the model's units, as in BoTorch).
        :param posterior_transform: One of BoTorch's, to apply to the result.
        :return: A :class:`~botorch.posteriors.GPyTorchPosterior` over `b x q x P`, or an :class:`OutputPosterior`.
        """
        self.eval()
        inputs = self.transform_inputs(X)
        subset = self._chosen(output_indices)
        with gpt_posterior_settings():
            q_f = self._conditioned(inputs)(inputs, x_has_latents=False)
            result: Any
            if observation_noise is not False and not is_gaussian(self.likelihood):
                if isinstance(observation_noise, Tensor):
                    raise NotImplementedError(
                        "A tensor of observation_noise is for Gaussian outputs: pass True for the likelihood's own."
                    )
                outputs = moments(self.likelihood, q_f, self.num_samples)
                result = OutputPosterior(self.likelihood, q_f, outputs, subset)
            else:
                result = GPyTorchPosterior(self._gaussian(q_f, observation_noise))
        if hasattr(self, "outcome_transform"):
            outcome_transform: Any = self.outcome_transform
            result = outcome_transform.untransform_posterior(result, X=X)
        if subset is not None and isinstance(result, GPyTorchPosterior):
            result = GPyTorchPosterior(select(result.distribution, subset))
        return result if posterior_transform is None else posterior_transform(posterior=result, X=X)

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> AmortizedSurrogate:
        r"""
        The same model with further data of the task, or of each of a batch of tasks.

        :param X: (`b x n x d`).
        :param Y: (`b' x n x P`), where b' broadcasts with b; NaN is missing.
        :param noise: None, as the noise is the likelihood's.
        :param kwargs: Arguments that BoTorch passes to its own models; they have no effect.
        """
        if noise is not None:
            raise NotImplementedError(
                "Observations of an AmortizedSurrogate have the noise of its likelihood: pass no noise."
            )
        if Y.shape[-1:] != (self.num_outputs,) or X.shape[-2] != Y.shape[-2]:
            raise ValueError(
                f"X of shape {tuple(X.shape)} and Y of shape {tuple(Y.shape)} do not fit: expected (*b, n, d) and "
                f"(*b, n, {self.num_outputs}), with NaN for outputs that were not measured."
            )
        if self._subset is not None:
            missing = Y.new_full((*Y.shape[:-1], self._all_outputs), torch.nan)
            index = torch.tensor(self._subset, device=Y.device).expand(Y.shape)
            Y = missing.scatter(-1, index, Y)
        # as many dimensions as X has, so that it is read as one row for each point
        Y = Y.expand(*torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2]), *Y.shape[-2:])
        seen_X, seen_Y = self._data()
        if seen_X is not None and seen_Y is not None:
            X, Y = _append(seen_X, X), _append(seen_Y, Y)
        return self._with(_context=Context(X, Y))

    def subset_output(self, idcs: list[int]) -> AmortizedSurrogate:
        """
        The same model, about some of its outputs. It still has seen all of them, and takes in new values of these.

        :param idcs: The indices of the outputs to keep.
        """
        return self._with(_subset=self._chosen(idcs))

    # neither is BoTorch's own, which are for models whose training data wait for a transform
    def eval(self) -> AmortizedSurrogate:
        return self.train(False)

    def train(self, mode: bool = True) -> AmortizedSurrogate:
        if mode:
            self._posterior = None
        return torch.nn.Module.train(self, mode)

    def __getstate__(self) -> dict[str, Any]:
        # what was conditioned on hangs on a graph, perhaps, and is computed again
        return {**self.__dict__, "_posterior": None}

    def _apply(self, *args: Any, **kwargs: Any) -> AmortizedSurrogate:
        super()._apply(*args, **kwargs)
        self._posterior = None
        if self._context is not None:
            Z = amortized_strategy(self.model).inducing_points
            self._context = self._context.to(dtype=Z.dtype, device=Z.device)
        return self

    def _gaussian(self, q_f: Any, observation_noise: bool | Tensor) -> Any:
        distribution = response(self.likelihood, q_f, self.num_samples)
        if observation_noise is False:
            return distribution
        if isinstance(observation_noise, Tensor):
            return with_noise(distribution, observation_noise)
        return with_noise(distribution, moments(self.likelihood, q_f, self.num_samples).noise)

    def _conditioned(self, X: Tensor) -> Posterior:
        """The model, conditioned on what is known; gradients reach the data that require them, and no parameters."""
        if self._posterior is None:
            seen_X, seen_Y = self._data()
            if seen_X is None or seen_Y is None:
                seen_X, seen_Y = X.new_empty(0, X.shape[-1]), X.new_empty(0, self._all_outputs)
            else:
                if hasattr(self, "input_transform"):
                    # without what is for predictions alone, such as perturbed inputs
                    input_transform: Any = self.input_transform
                    seen_X = input_transform.preprocess_transform(seen_X)
                if hasattr(self, "outcome_transform"):
                    outcome_transform: Any = self.outcome_transform
                    seen_Y, _ = outcome_transform(seen_Y, X=seen_X)
            has_graph = torch.is_grad_enabled() and (seen_X.requires_grad or seen_Y.requires_grad)
            with torch.set_grad_enabled(has_graph), detach_test_caches(not has_graph):
                self._posterior = condition(self.model, (seen_X, seen_Y))
        return self._posterior

    def _data(self) -> tuple[Tensor | None, Tensor | None]:
        """X (`*b x n x d`) and Y (`*b' x n x P`), whose batches broadcast."""
        return (None, None) if self._context is None else (self._context.x, self._context.y)

    @property
    def _all_outputs(self) -> int:
        return amortized_strategy(self.model)._variational_distribution.network.num_outputs

    def _chosen(self, outputs: Sequence[int] | None) -> list[int] | None:
        """Numbers of outputs, of those there are, as numbers of all outputs of the model."""
        if outputs is None:
            return self._subset
        if not outputs or not all(-self.num_outputs <= number < self.num_outputs for number in outputs):
            raise ValueError(f"There are {self.num_outputs} outputs, from 0 on, but {list(outputs)} were asked for.")
        return [(self._subset or range(self._all_outputs))[number] for number in outputs]

    def _with(self, **changes: Any) -> AmortizedSurrogate:
        changed = copy.copy(self)
        changed.__dict__.update(changes)
        return changed


def _as_rows(context: Context) -> Context:
    """Add a dimension for the outputs where y came without one."""
    if context.y.shape[-2:] == context.filled.shape[-2:]:
        return context
    return Context(context.x, torch.where(context.observed, context.filled, torch.nan))


def _append(seen: Tensor, new: Tensor) -> Tensor:
    """Rows below rows, with batch dimensions that broadcast."""
    batch = torch.broadcast_shapes(seen.shape[:-2], new.shape[:-2])
    return torch.cat([part.expand(*batch, *part.shape[-2:]) for part in (seen, new)], dim=-2)
