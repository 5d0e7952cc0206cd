from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.distributions import Distribution, Normal

from ..utils.shapes import check_chunk_size
from ..variational.point_marginals import PointMarginals
from . import mixture
from .components import Derived, FunctionPosterior, checked_rows, given_gaussian, in_units
from .missing import fill_missing
from .targets import as_rows

# Random numbers are drawn for this many inputs at a time, whatever the chunk size, so that it does not change them.
BLOCK_SIZE = 32


class Prediction:
    r"""
    The predictive distribution of the outputs at each input: an equal mixture over S samples of the latent functions,

    .. math::

        p(y_{np}) = \frac 1 S \sum_{s=1}^S p \left( y_{np} \mid \mathbf f_n^{(s)} \right), \qquad
        \mathbf f_n^{(s)} \sim q(\mathbf f_n)

    The mean of the S samples at an input is the mean of q(f), so that the prediction's mean is exact as far as the
    decoder is linear.

    With a chunk size, and without gradients, the components never exist all at once, and a million inputs fit in
    memory: each quantity samples and decodes some inputs at a time, with the decoder's parameters as they are then.
    The samples depend on torch's seed alone, so that the chunk size changes no result.

    Where the outputs are Gaussian, as a :class:`~gpytorch_sgpvae.DecoderLikelihood` with a linear decoder and Gaussian
    noise makes them, the mixture is that one Gaussian, without samples; latent functions are drawn for :meth:`sample`.

    It is made from q(f) (:meth:`from_functions`) or from a conditioned model (:meth:`from_posterior`), from the moments
    that another model predicts (:meth:`gaussian`), or from other predictions: several models' of the same inputs
    (:meth:`pool`), one model's of different inputs (:meth:`concatenate`), the same in other units (:meth:`rescale`) or
    of other values (:meth:`transform`).

    :param decode: Maps latent function values (`... x N x K`), and the rows if there are any, to p(y | f), of batch
        shape `... x N x P`: a likelihood, for instance.
    :param function_mean: Mean of q(f) (`*T x N x K`).
    :param function_stddev: Standard deviation of q(f) (`*T x N x K`), or, of latent functions that depend on each
        other, Cholesky factors of their covariance at each input (`*T x N x K x K`).
    :param num_samples: Number of samples S.
    :param base_samples: Standard normal samples to use instead of new ones (`S x *T x N x K`).
    :param chunk_size: Decode this many inputs at a time; by default all at once.
    :param function_dist: q(f) over all inputs together, or a function that returns it: for joint samples only.
    :param rows: Further values that `decode` reads for each input, known with certainty (`*T x N x C` each, or `S x *T
        x N x C` where they differ between the components).

    :ivar type family: Class of the components.
    :ivar torch.Tensor shift: The units: values are shift + scale times what `decode` is about.
    :ivar torch.Tensor scale: The scale of these units.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE
        >>> model = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.rand(8, 2))
        >>> prediction = model.predict(torch.rand(4, 2), context=(torch.rand(20, 2), torch.randn(20, 5)))
        >>> prediction.mean.shape, prediction.quantile([0.05, 0.95]).shape
        (torch.Size([4, 5]), torch.Size([2, 4, 5]))
    """

    def __init__(
        self,
        decode: Callable[..., Distribution],
        function_mean: Tensor,
        function_stddev: Tensor,
        num_samples: int = 100,
        base_samples: Tensor | None = None,
        chunk_size: int | None = None,
        function_dist: MultivariateNormal | Callable[[], MultivariateNormal] | None = None,
        rows: Sequence[Tensor] = (),
    ):
        if base_samples is None and num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}.")
        if base_samples is not None and base_samples.dim() != function_mean.dim() + 1:
            shape = ("S", *function_mean.shape)
            raise ValueError(f"Expected base_samples of shape {shape}, got {tuple(base_samples.shape)}.")
        check_chunk_size(chunk_size)
        self.decode = decode
        self._marginals = PointMarginals(function_mean, function_stddev)
        self.num_samples = num_samples if base_samples is None else base_samples.shape[0]
        self.chunk_size = chunk_size
        self.function_dist = function_dist
        self.rows = checked_rows(rows, function_mean)
        self.shift, self.scale = function_mean.new_zeros(()), function_mean.new_ones(())
        self._base_samples = None if base_samples is None else base_samples.expand(-1, *function_mean.shape)
        self._sampled: Callable[[], Prediction] | None = None
        self._seed = int(torch.randint(2**62, (), device="cpu")) if base_samples is None else 0
        # A prediction made without gradients has none, also where it is decoded later.
        self._grad_enabled = torch.is_grad_enabled()
        # Without chunks it is decoded here, once; with them one input is, for P and so that errors come early.
        self._keep(self._decode(slice(None) if chunk_size is None else slice(1)))

    @classmethod
    def from_functions(
        cls,
        decode: Callable[..., Distribution],
        function_dist: MultivariateNormal,
        num_samples: int = 100,
        base_samples: Tensor | None = None,
        chunk_size: int | None = None,
    ) -> Prediction:
        """
        Decode latent functions with a given distribution.

        :param decode: See :class:`Prediction`.
        :param function_dist: q(f) (event shape `N x K`, or `N` for one latent function).
        :param num_samples: Number of samples S of the latent functions.
        :param base_samples: Standard normal samples to use instead of new ones (`S x *T x N x K`).
        :param chunk_size: Decode this many inputs at a time: the same answer in less memory.
        """
        sampled = partial(cls._of_functions, decode, function_dist, num_samples, base_samples, chunk_size)
        return sampled() if base_samples is not None else cls._exact(decode, [function_dist], sampled) or sampled()

    @classmethod
    def from_posterior(
        cls,
        decode: Callable[..., Distribution],
        posterior: FunctionPosterior,
        x: Tensor,
        num_samples: int = 100,
        base_samples: Tensor | None = None,
        chunk_size: int | None = None,
    ) -> Prediction:
        """
        Decode the latent functions of a conditioned model at some inputs.

        :param decode: See :class:`Prediction`.
        :param posterior: A :class:`~gpytorch_sgpvae.Posterior`.
        :param x: The inputs to predict at (`*T x N x D`).
        :param num_samples: Number of samples S of the latent functions.
        :param base_samples: Standard normal samples to use instead of new ones (`S x *T x N x K`).
        :param chunk_size: Compute for this many inputs at a time: the same answer in less memory.
        """
        sampled = partial(cls._of_posterior, decode, posterior, x, num_samples, base_samples, chunk_size)
        chunks = posterior.in_chunks(x, chunk_size)
        return sampled() if base_samples is not None else cls._exact(decode, chunks, sampled) or sampled()

    @classmethod
    def _of_functions(
        cls,
        decode: Callable[..., Distribution],
        function_dist: MultivariateNormal,
        num_samples: int,
        base_samples: Tensor | None,
        chunk_size: int | None,
    ) -> Prediction:
        marginals = PointMarginals.of(function_dist)
        return cls(decode, marginals.mean, marginals.root, num_samples, base_samples, chunk_size, function_dist)

    @classmethod
    def _of_posterior(
        cls,
        decode: Callable[..., Distribution],
        posterior: FunctionPosterior,
        x: Tensor,
        num_samples: int,
        base_samples: Tensor | None,
        chunk_size: int | None,
    ) -> Prediction:
        marginals = posterior.point_marginals(x, chunk_size)
        return cls(decode, marginals.mean, marginals.root, num_samples, base_samples, chunk_size, partial(posterior, x))

    @classmethod
    def gaussian(cls, mean: Tensor, stddev: Tensor, sampled: Callable[[], Prediction] | None = None) -> Prediction:
        """
        A mixture of a single Gaussian: what other models predict, to be scored as a prediction.

        :param mean: (`*T x N x P`).
        :param stddev: (`*T x N x P`).
        :param sampled: Makes the same prediction of samples of latent functions, where there are any: called for
            :meth:`sample`, whose draws may depend on each other, and for the latent functions themselves.
        """
        nothing = mean.new_empty(*mean.shape[:-1], 0)  # K = 0: there are no latent functions
        prediction = cls(given_gaussian, nothing, nothing, num_samples=1, rows=(mean, stddev))
        prediction._sampled = sampled
        return prediction

    @classmethod
    def _exact(
        cls,
        decode: Callable[..., Distribution],
        function_dists: Iterable[MultivariateNormal],
        sampled: Callable[[], Prediction],
    ) -> Prediction | None:
        """The Gaussian that outputs are, if their likelihood says that they are, at the inputs of each q(f)."""
        if not getattr(decode, "has_gaussian_outputs", False):
            return None
        likelihood: Any = decode
        parts = [likelihood.gaussian_marginals(q_f) for q_f in function_dists]
        means, stddevs = zip(*((part.mean, part.stddev) for part in parts), strict=True)
        return cls.gaussian(torch.cat(means, dim=-2), torch.cat(stddevs, dim=-2), sampled)

    @classmethod
    def pool(cls, predictions: Sequence[Prediction]) -> Prediction:
        r"""
        Combine the predictions of several models, each as likely to be right as the others, into the equal mixture of
        all their components,

        .. math::

            p(y_{np}) = \frac 1 R \sum_{r=1}^R p_r(y_{np})

        :param predictions: Predictions of the same values, with as many Gaussian components each.
        """
        parts = [prediction.components for prediction in predictions]
        if not all(isinstance(part, Normal) for part in parts):
            families = ", ".join(sorted({type(part).__name__ for part in parts}))
            raise TypeError(f"Only predictions with Gaussian components can be pooled, got {families}.")
        means, stddevs = torch.cat([part.mean for part in parts]), torch.cat([part.stddev for part in parts])
        nothing = means.new_empty(*means.shape[:-1], 0)  # (R S, *T, N, 0)
        return cls(given_gaussian, nothing[0], nothing[0], base_samples=nothing, rows=(means, stddevs))

    @classmethod
    def concatenate(cls, predictions: Sequence[Prediction], order: Tensor) -> Prediction:
        """
        Predictions of different inputs by one decoder as a single one, with new samples of the latent functions, or
        those that the predictions were given.

        :param predictions: Predictions of `*T x N_i x P` values each, without any change of units (:meth:`rescale`).
        :param order: The order of all these inputs: the index of the first one, of the second one, and so on (`N`).
        """
        first = predictions[0]
        if any(other.decode != first.decode or other.shift.dim() for other in predictions):
            raise ValueError("Only predictions that share a decoder, in its units, can be concatenated.")

        order = order.to(first._marginals.mean.device)
        marginals = PointMarginals.concatenate([prediction._marginals for prediction in predictions], order)

        def joined(tensors: Sequence[Tensor]) -> Tensor:
            return torch.cat(list(tensors), dim=-2).index_select(-2, order)

        given = [prediction._base_samples for prediction in predictions]
        concatenated = cls(
            first.decode,
            marginals.mean,
            marginals.root,
            first.num_samples,
            None if any(samples is None for samples in given) else joined(given),  # type: ignore[arg-type]
            first.chunk_size,
            rows=[joined(rows) for rows in zip(*(prediction.rows for prediction in predictions), strict=True)],
        )
        makers = [prediction._sampled for prediction in predictions if prediction._sampled is not None]
        if len(makers) == len(predictions):
            concatenated._sampled = partial(_concatenated, makers, order)
        return concatenated

    @property
    def function_mean(self) -> Tensor:
        """Mean of q(f) (`*T x N x K`)."""
        return self._marginals.mean if self._sampled is None else self._sampled().function_mean

    @property
    def function_stddev(self) -> Tensor:
        """Standard deviation of q(f) (`*T x N x K`)."""
        return self._marginals.stddev if self._sampled is None else self._sampled().function_stddev

    @property
    def components(self) -> Distribution:
        """The mixture's components, all at once, of batch shape `S x *T x N x P`."""
        components = self._decode(slice(None)) if self._decoded is None else self._decoded
        return in_units(components, self.shift, self.scale)

    @property
    def mean(self) -> Tensor:
        """(`*T x N x P`)"""
        return self.shift + self.scale * self._reduce(lambda components: components.mean.mean(0))

    @property
    def variance(self) -> Tensor:
        """The components' mean variance plus the variance of their means (`*T x N x P`)."""
        return self.scale.square() * self._reduce(lambda components: mixture.moments(components)[1])

    @property
    def stddev(self) -> Tensor:
        """(`*T x N x P`)"""
        return self.variance.sqrt()

    def rescale(self, mean: Tensor | float, stddev: Tensor | float) -> Prediction:
        r"""
        The same prediction in other units, :math:`\mu_p + \sigma_p y_{np}`: back from normalized observations to the
        original ones. Leave counts, flags and classes as they are, with mean 0 and standard deviation 1: their
        probabilities have no units.

        :param mean: The values that were subtracted from the observations (`P`, or a number).
        :param stddev: The values that the observations were then divided by (`P`, or a number).
        """
        shift, scale, num_outputs = self._as_tensor(mean), self._as_tensor(stddev), self._shape[-1]
        for name, value in (("mean", shift), ("stddev", scale)):
            if value.shape not in ((), (num_outputs,)):
                raise ValueError(f"{name} has shape {tuple(value.shape)}: expected a number or ({num_outputs},).")
        if not bool((scale > 0).all()):
            raise ValueError(f"Expected positive standard deviations, got {scale}: give constant outputs a 1.")
        rescaled = copy.copy(self)
        rescaled.shift = (shift + scale * self.shift).expand(num_outputs)
        rescaled.scale = (scale * self.scale).expand(num_outputs)
        if self._sampled is not None:
            rescaled._sampled = partial(_then, self._sampled, Prediction.rescale, mean, stddev)
        return rescaled

    def transform(self, function: Callable[..., Distribution], *rows: Tensor) -> Prediction:
        """
        Derive a prediction of something else from this one, component by component and with the same samples.

        :param function: Maps distributions of this prediction's values, of batch shape `... x n x P`, and the rows if
            there are any, to those of the new values.
        :param rows: Further values that it reads for each input, known with certainty (`*T x N x C` each).
        """
        derived, own = copy.copy(self), len(self.rows)
        derived.decode = Derived(self.decode, own, function)
        if self.shift.dim():  # rescaled: the function is given these units, and the new values have units of their own
            own_units = Derived(self.decode, own, partial(in_units, shift=self.shift, scale=self.scale))
            derived.decode = Derived(own_units, own, function)
            derived.shift, derived.scale = self._as_tensor(0.0), self._as_tensor(1.0)
        derived.rows = (*self.rows, *checked_rows(rows, self._marginals.mean))
        if self._sampled is not None:
            derived._sampled = partial(_then, self._sampled, Prediction.transform, function, *rows)
        derived._keep(derived._decode(slice(1)) if self._decoded is None else function(self.components, *rows))
        return derived

    @torch.no_grad()
    def quantile(self, p: float | Sequence[float] | Tensor) -> Tensor:
        r"""
        Quantiles of the mixture, :math:`\inf \{ y : F(y) \geq p \}`, by bisection of its distribution function F.
        Where the observation model's distribution has no `cdf`, they are those of some 4000 new draws from the
        components.

        :param p: A probability, or Q of them.
        :return: (`*T x N x P`, or `Q x *T x N x P`)
        """
        p = self._as_tensor(p)
        if p.dim() > 1 or not bool(((p > 0) & (p < 1)).all()):
            raise ValueError(f"Expected a probability, or a vector of them, strictly between 0 and 1, got {p}.")
        try:
            quantiles = self._reduce(lambda components: mixture.quantiles(components, p.reshape(-1)))
        except NotImplementedError:
            quantiles = self._reduce(lambda components: mixture.draw_quantiles(components, p.reshape(-1)), BLOCK_SIZE)
        return self.shift + self.scale * quantiles.reshape(*p.shape, *self._shape[1:])

    @torch.no_grad()
    def sample(self, n: int, joint: bool = False) -> Tensor:
        """
        Draw n values at each input (`n x *T x N x P`).

        :param n: Number of draws, each with latent functions of its own.
        :param joint: Whether a draw is one function through all inputs of a task, which takes an N x N matrix;
            otherwise its values are independent from input to input.
        """
        if self._sampled is not None:
            return self._sampled().sample(n, joint)
        if joint:
            if self.function_dist is None:
                raise ValueError("Joint samples need q(f) over all inputs: give Prediction the argument function_dist.")
            q_f = self.function_dist if isinstance(self.function_dist, MultivariateNormal) else self.function_dist()
            # one latent function may come as an event of N
            functions = q_f.sample(torch.Size([n])).reshape(n, *self._marginals.mean.shape)
        rows, draws = self._drawn_rows(n), []
        for part in self._parts(BLOCK_SIZE):
            if joint:
                values = functions[..., part, :]
            else:
                mean = self._marginals.mean[..., part, :]
                values = self._functions(part, mean.new_empty((n, *mean.shape)).normal_())
            draws.append(self.decode(values, *(row[..., part, :] for row in rows)).sample())
        return self.shift + self.scale * torch.cat(draws, dim=-2)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of the mixture, for each output on its own (`*T x N x P`); NaN where y is NaN."""
        return self.score(mixture.log_prob, y) - self.scale.log()

    def gaussian_log_prob(self, y: Tensor) -> Tensor:
        """Log density of the Gaussian with the mixture's mean and variance (`*T x N x P`); NaN where y is NaN."""
        return self.score(mixture.gaussian_log_prob, y) - self.scale.log()

    def score(self, function: Callable[..., Tensor], y: Tensor, chunk_size: int | None = None) -> Tensor:
        r"""
        Any function of the mixture and a value, chunk by chunk (`*T x N x P`); NaN where y is NaN.

        :param function: Maps components (`S x *T x n x P`) and values (`*T x n x P`), both in the units of the
            decoder (see :meth:`rescale`), to scores (`*T x n x P`).
        :param y: The values (`*T x N x P`, or `*T x N` for one output).
        :param chunk_size: Inputs at a time, if not the prediction's own number.
        """
        filled, observed = fill_missing((as_rows(y, self._shape) - self.shift) / self.scale)
        return torch.where(observed, self._reduce(function, chunk_size, filled), torch.nan)

    def _reduce(self, function: Callable[..., Tensor], chunk_size: int | None = None, *values: Tensor) -> Tensor:
        """Apply a function of the components (and of values, `*T x N x P`) chunk by chunk, and join the results."""
        if chunk_size is None and self._decoded is not None:
            return function(self._decoded, *values)
        parts = self._parts(chunk_size or self.chunk_size)
        return torch.cat([function(self._decode(part), *(y[..., part, :] for y in values)) for part in parts], dim=-2)

    def _parts(self, size: int | None) -> list[slice]:
        num_points = max(self._marginals.mean.shape[-2], 1)  # no inputs at all are one empty part
        size = size or num_points
        return [slice(start, start + size) for start in range(0, num_points, size)]

    def _decode(self, part: slice) -> Distribution:
        """The components at some of the inputs, in the units of the decoder."""
        with torch.set_grad_enabled(self._grad_enabled and torch.is_grad_enabled()):
            functions = self._functions(part, self._noise(part))
            return self.decode(functions, *(row[..., part, :] for row in self.rows))

    def _keep(self, decoded: Distribution) -> None:
        """Take over P and the family from what was decoded, and all of it unless there are chunks."""
        self._decoded = decoded if self.chunk_size is None else None
        self.family = type(decoded)
        self._shape = torch.Size([self.num_samples, *self._marginals.mean.shape[:-1], decoded.batch_shape[-1]])

    def _functions(self, part: slice, noise: Tensor) -> Tensor:
        """The latent functions at some of the inputs, from standard normal noise (`S x *T x n x K`)."""
        return self._marginals[part].draw(noise)

    def _noise(self, part: slice) -> Tensor:
        """Standard normal samples for some of the inputs (`S x *T x n x K`)."""
        if self._base_samples is not None:
            return self._base_samples[..., part, :]
        start, stop, _ = part.indices(self._marginals.mean.shape[-2])
        first, blocks = start - start % BLOCK_SIZE, []
        for begin in range(first, max(stop, 1), BLOCK_SIZE):
            block = self._marginals.mean[..., begin : begin + BLOCK_SIZE, :]
            generator = torch.Generator(block.device).manual_seed(self._seed + begin)
            noise = block.new_empty((self.num_samples, *block.shape)).normal_(generator=generator)
            blocks.append(_centered(noise))
        return torch.cat(blocks, dim=-2)[..., start - first : stop - first, :]

    def _drawn_rows(self, n: int) -> list[Tensor]:
        """The rows for n draws: where they differ between the components, each draw has those of a random one."""
        differs = [row.dim() > self._marginals.mean.dim() for row in self.rows]
        if not any(differs):
            return list(self.rows)
        chosen = torch.randint(self.num_samples, (n,), device=self._marginals.mean.device)
        return [row[chosen] if differ else row for row, differ in zip(self.rows, differs, strict=True)]

    def _as_tensor(self, values: float | Sequence[float] | Tensor) -> Tensor:
        return torch.as_tensor(values, dtype=self._marginals.mean.dtype, device=self._marginals.mean.device)


def _centered(noise: Tensor) -> Tensor:
    r"""
    Standard normal samples that sum to zero, in place (`S x ...`): each is :math:`\mathcal N(0, 1)` as before, since
    :math:`z_s - \bar z` has variance :math:`1 - 1 / S`, and what is linear in them has no error in its mean.
    """
    S = noise.shape[0]
    return noise if S == 1 else noise.sub_(noise.mean(0)).mul_(math.sqrt(S / (S - 1)))


def _then(make: Callable[[], Prediction], change: Callable[..., Prediction], *args: Any) -> Prediction:
    return change(make(), *args)


def _concatenated(makers: Sequence[Callable[[], Prediction]], order: Tensor) -> Prediction:
    return Prediction.concatenate([make() for make in makers], order)
