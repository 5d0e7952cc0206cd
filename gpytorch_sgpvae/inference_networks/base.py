from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..context import Context
from ..sites import GaussianSites
from .stacked_mlp import LEAKY_RELU, StackedMLP, Terms, entries_per_block, sum_over_blocks


class InferenceNetwork(torch.nn.Module):
    r"""
    Base class of the partial inference networks, which turn the observed part of each :math:`\mathbf y_n` into
    Gaussian sites:

    .. math::

        \mathbf y_n^o \mapsto (g_{nk}, v_{nk}), \qquad
        \lambda_{nk} = 1 / v_{nk}, \qquad
        \lambda_{nk} = 0 \text{ where } \mathbf y_n^o = \emptyset

    A subclass fills in :meth:`encode`; what holds for all of them is done here, once: no network sees a NaN, and a row
    with nothing observed has precision exactly 0.

    A class whose sites of a row depend on that row alone says so by `row_wise = True`. Contexts can then be taken in
    piece by piece (`chunk_size`), and posteriors can be updated. Without it a network may look at the inputs and at
    other rows, and whatever takes a context apart refuses it.

    The standard deviation of a site is :math:`\sigma_\text{min} + \mathrm{softplus}(\cdot)`, so that precisions are
    positive and at most :math:`\sigma_\text{min}^{-2}` (for each output, where the outputs' precisions add up). It is
    measured in units of a latent function whose prior standard deviation is about 1: below a thousandth of that a
    pseudo-observation is an equality constraint, which no data of one row can justify and which costs digits
    everywhere else.

    :param num_outputs: Number of outputs P.
    :param num_latents: Number of latent functions K. With `None` the model has no latent batch dimension, and
        sites are `*T x N`, as GPyTorch's single-output models need them.
    :param hidden_sizes: Units in each hidden layer of every perceptron.
    :param activation: Class of the activations, by default a leaky ReLU with slope 0.1 below zero: units that large
        steps push below zero keep their gradients. A :class:`torch.nn.ReLU` costs the same.
    :param initial_stddev: Standard deviation of a site before training, about; by default that of the prior. Sites that
        start out confident of random values are slow to unlearn them, and one output may never be heard.
    :param min_stddev: The floor :math:`\sigma_\text{min}`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Context, InferenceNetwork
        >>> class SumNet(InferenceNetwork):
        ...     "g = the sum of what is there, v = 1."
        ...     row_wise = True
        ...     def encode(self, context):
        ...         y = context.filled
        ...         precision = torch.ones(*y.shape[:-1], self.latent_size, dtype=y.dtype, device=y.device)
        ...         return y.sum(-1, keepdim=True) * precision, precision
        >>> context = Context(torch.rand(2, 1), torch.tensor([[1.0, 2.0], [float("nan"), float("nan")]]))
        >>> SumNet(num_outputs=2, num_latents=1)(context)
        GaussianSites(precision_mean=tensor([[3., 0.]]), precision=tensor([[1., 0.]]), loadings=None)
    """

    # Whether the sites of a row depend on that row alone.
    row_wise = False
    # Whether its sites have loadings, so that all latent functions are inferred together.
    couples_latents = False

    def __init__(
        self,
        num_outputs: int,
        num_latents: int | None,
        hidden_sizes: Sequence[int] = (20, 20),
        activation: Callable[[], torch.nn.Module] = LEAKY_RELU,
        *,
        initial_stddev: float = 1.0,
        min_stddev: float = 1e-3,
    ):
        super().__init__()
        if num_outputs < 1 or (num_latents is not None and num_latents < 1):
            raise ValueError(
                f"num_outputs and num_latents must be at least 1 (or num_latents=None for a model without a latent "
                f"batch dimension), got {num_outputs} and {num_latents}."
            )
        if not 0 < min_stddev < initial_stddev:
            raise ValueError(f"Expected 0 < min_stddev < initial_stddev, got {min_stddev} and {initial_stddev}.")
        self.num_outputs = num_outputs
        self.num_latents = num_latents
        self.hidden_sizes = tuple(hidden_sizes)
        self.activation = activation
        self.initial_stddev = initial_stddev
        self.min_stddev = min_stddev

    @property
    def latent_size(self) -> int:
        """K, or 1 where the model has no latent batch dimension."""
        return self.num_latents or 1

    def forward(self, context: Context) -> GaussianSites:
        r"""
        :param context: The tasks, with y (`*T x N x P`).
        :return: The sites (`*T x K x N`, or `*T x N` with `num_latents=None`).
        """
        self.check_outputs(context)
        precision_mean, precision = self.encode(context)  # (*T, N, K)
        anything = context.observed.any(-1, keepdim=True)  # (*T, N, 1)
        return self.as_sites(precision_mean * anything, precision * anything)

    def encode(self, context: Context) -> tuple[Tensor, Tensor]:
        """
        :param context: The tasks; their outputs, `context.filled` (`*T x N x P`), are finite, and zero where nothing
            was observed.
        :return: precision times mean, and precision (`*T x N x K` each).
        """
        raise NotImplementedError(f"{type(self).__name__} must implement encode(context).")

    def check_outputs(self, context: Context) -> None:
        if context.num_outputs != self.num_outputs:
            raise ValueError(
                f"{type(self).__name__} was built for num_outputs={self.num_outputs}, got y of shape "
                f"{tuple(context.y.shape)}: expected (*T, N, {self.num_outputs})."
            )

    def as_sites(self, precision_mean: Tensor, precision: Tensor) -> GaussianSites:
        """Make sites of `*T x K x N`, or of `*T x N` with `num_latents=None`, from tensors of `*T x N x K`."""
        if self.num_latents is None:
            return GaussianSites(precision_mean.squeeze(-1), precision.squeeze(-1))
        return GaussianSites(precision_mean.mT, precision.mT)

    def by_output(self, rows: Tensor) -> Tensor:
        """Reorder `*T x N x P` to `P x (T N) x 1`, as P networks of one number each take it."""
        return rows.reshape(-1, self.num_outputs).mT.unsqueeze(-1)

    def sum_over_observed(self, networks: StackedMLP, context: Context, terms: Terms) -> list[Tensor]:
        r"""
        Sum what the networks :math:`h_p` of a row's observed outputs say about it:

        .. math::

            \sum_{p \in \mathcal O_n} t(h_p(y_{np}))

        :param networks: P networks, of one number each.
        :param context: The tasks.
        :param terms: :math:`t`, from features (`... x S`) to one or more things to add (`... x S'` each).
        :return: The two sums (`*T x N x S'` each).
        """
        y, observed = context.filled, context.observed  # (*T, N, P)
        inputs, present = self.by_output(y), self.by_output(observed)  # (P, T N, 1)
        block = entries_per_block(observed, networks.width * y.element_size())
        if block is None:
            totals = [(term * present).sum(0) for term in terms(networks(inputs))]  # (T N, S')
        else:
            totals = sum_over_blocks(networks, inputs.contiguous(), present.contiguous(), terms, block)  # (T N, S')
        return [total.view(*y.shape[:-1], total.shape[-1]) for total in totals]  # (*T, N, S')

    def site_parameters(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The last layer's 2K numbers, K means and K unconstrained standard deviations, as natural parameters."""
        mean, raw_stddev = features.chunk(2, dim=-1)
        stddev = self.min_stddev + torch.nn.functional.softplus(raw_stddev)
        precision = stddev.square().reciprocal()
        return precision * mean, precision

    def initialize_stddev(self, output_bias: Tensor) -> None:
        """Set the bias of a last layer so that the standard deviations start around :attr:`initial_stddev`."""
        raw_stddev = math.log(math.expm1(self.initial_stddev - self.min_stddev))
        with torch.no_grad():
            output_bias[..., self.latent_size :] = raw_stddev
