from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from ..mlp import StackedMLP
from ..sites import GaussianSites

# On a CPU, the hidden units of one layer that are computed at once: they stay in its cache until they are read, and the
# allocator recycles them, where it returns larger tensors to the system and gets them back page by page.
BLOCK_BYTES = 2**21
# The rows of one network may take so many blocks, before they are cut too: it then prepares itself more than once.
BLOCKS_PER_NETWORK = 4

Terms = Callable[[Tensor], Sequence[Tensor]]


class InferenceNetwork(torch.nn.Module):
    r"""
    Base class of the partial inference networks, which turn the observed part of each :math:`\mathbf y_n` into
    Gaussian sites:

    .. math::

        \mathbf y_n^o \mapsto (g_{nk}, v_{nk}), \qquad
        \lambda_{nk} = 1 / v_{nk}, \qquad
        \lambda_{nk} = 0 \text{ where } \mathbf y_n^o = \emptyset

    A subclass fills in :meth:`encode`; what holds for all of them is done here, once: missing entries are
    replaced by zeros before any network sees them (whatever they hold), and a row with nothing observed has
    precision exactly 0.

    The standard deviation of a site is :math:`\sigma_\text{min} + \mathrm{softplus}(\cdot)`, so that precisions are
    positive and at most :math:`\sigma_\text{min}^{-2}` (for each output, where the outputs' precisions add up). It is
    measured in units of a latent function whose prior standard deviation is about 1: below a thousandth of that a
    pseudo-observation is an equality constraint, which no data of one row can justify and which costs digits
    everywhere else.

    :param num_outputs: Number of outputs P.
    :param num_latents: Number of latent functions K. With `None` the model has no latent batch dimension, and
        sites are `*T x N`: GPyTorch's single-output models work by swapping two lines.
    :param hidden_sizes: Units in each hidden layer of every perceptron.
    :param activation: Class of the activations.
    :param initial_stddev: Standard deviation of a site before training, about; by default that of the prior. Sites that
        start out confident of random values are slow to unlearn them, and one output may never be heard.
    :param min_stddev: The floor :math:`\sigma_\text{min}`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import GaussianSites, InferenceNetwork
        >>> class SumNet(InferenceNetwork):
        ...     "g = the sum of what is there, v = 1."
        ...     def encode(self, y, observed):
        ...         precision = torch.ones(*y.shape[:-1], self.latent_size, dtype=y.dtype, device=y.device)
        ...         return y.sum(-1, keepdim=True) * precision, precision
        >>> y = torch.tensor([[1.0, 2.0], [float("nan"), float("nan")]])
        >>> SumNet(num_outputs=2, num_latents=1)(y, ~y.isnan())
        GaussianSites(precision_mean=tensor([[3., 0.]]), precision=tensor([[1., 0.]]))
    """

    def __init__(
        self,
        num_outputs: int,
        num_latents: int | None,
        hidden_sizes: Sequence[int] = (20, 20),
        activation: Callable[[], torch.nn.Module] = torch.nn.ReLU,
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

    def forward(self, y: Tensor, observed: Tensor) -> GaussianSites:
        r"""
        :param y: Outputs (`*T x N x P`); what stands where nothing was observed does not matter.
        :param observed: Where there is something (`*T x N x P`, boolean).
        :return: The sites (`*T x K x N`, or `*T x N` with `num_latents=None`).
        """
        self.check_outputs(y, observed)
        precision_mean, precision = self.encode(torch.where(observed, y, 0.0), observed)  # (*T, N, K)
        anything = observed.any(-1, keepdim=True)  # (*T, N, 1)
        return self.as_sites(precision_mean * anything, precision * anything)

    def encode(self, y: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """
        :param y: Outputs (`*T x N x P`), finite, zero where nothing was observed.
        :param observed: (`*T x N x P`).
        :return: precision times mean, and precision (`*T x N x K` each).
        """
        raise NotImplementedError(f"{type(self).__name__} must implement encode(y, observed).")

    def check_outputs(self, y: Tensor, observed: Tensor) -> None:
        if y.shape[-1] != self.num_outputs or observed.shape != y.shape:
            raise ValueError(
                f"{type(self).__name__} was built for num_outputs={self.num_outputs}, got y of shape "
                f"{tuple(y.shape)} and observed of shape {tuple(observed.shape)}: both must be "
                f"(*T, N, {self.num_outputs})."
            )

    def as_sites(self, precision_mean: Tensor, precision: Tensor) -> GaussianSites:
        """From `*T x N x K` to sites of `*T x K x N`, or `*T x N` with `num_latents=None`."""
        if self.num_latents is None:
            return GaussianSites(precision_mean.squeeze(-1), precision.squeeze(-1))
        return GaussianSites(precision_mean.mT, precision.mT)

    def by_output(self, rows: Tensor) -> Tensor:
        """From `*T x N x P` to `P x (T N) x 1`, as P networks of one number each take it."""
        return rows.reshape(-1, self.num_outputs).mT.unsqueeze(-1)

    def sum_over_observed(self, networks: StackedMLP, y: Tensor, observed: Tensor, terms: Terms) -> list[Tensor]:
        r"""
        What the networks :math:`h_p` of its observed outputs say about each row, added up:

        .. math::

            \sum_{p \in \mathcal O_n} t(h_p(y_{np}))

        :param networks: P networks, of one number each.
        :param y: Outputs (`*T x N x P`), finite.
        :param observed: (`*T x N x P`).
        :param terms: :math:`t`, from features (`... x S`) to one or more things to add (`... x S'` each).
        :return: Their sums (`*T x N x S'` each).
        """
        inputs, present = self.by_output(y), self.by_output(observed)  # (P, T N, 1)
        block = entries_per_block(observed, networks.width * y.element_size())
        if block is None:
            totals = [(term * present).sum(0) for term in terms(networks(inputs))]  # (T N, S')
        else:
            totals = _sum_over_blocks(networks, inputs.contiguous(), present.contiguous(), terms, block)  # (T N, S')
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


def entries_per_block(observed: Tensor, bytes_per_entry: int) -> int | None:
    """
    How many of the entries to evaluate at once, so that none of their layers takes more than :data:`BLOCK_BYTES`; None
    for all of them, which takes the fewest operations.

    Evaluation in blocks leaves the missing entries out, and how many these are must be read from `observed`: a GPU
    would have to wait for that, a compiler and a transform of :mod:`torch.func` cannot know it.
    """
    if (
        observed.numel() * bytes_per_entry <= BLOCK_BYTES
        or observed.device.type != "cpu"
        or type(observed) is not Tensor
        or torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
    ):
        return None
    return max(1, BLOCK_BYTES // bytes_per_entry)


def _sum_over_blocks(networks: StackedMLP, inputs: Tensor, present: Tensor, terms: Terms, block: int) -> list[Tensor]:
    """Over networks (`P x B x 1` to `B x S'`), as many of them at once as fit into a block."""
    num_networks = max(1, block // inputs.shape[1])
    groups = networks.split(num_networks)
    totals = []
    num_rows = BLOCKS_PER_NETWORK * block
    for rows, present_rows in zip(inputs.split(num_rows, dim=1), present.split(num_rows, dim=1), strict=True):
        blocks = zip(groups, rows.split(num_networks), present_rows.split(num_networks), strict=True)
        sums = [_sum_over_observed_rows(*arguments, terms) for arguments in blocks]
        totals.append([reduce(torch.add, parts) for parts in zip(*sums, strict=True)])
    return [torch.cat(parts) for parts in zip(*totals, strict=True)]


def _sum_over_observed_rows(
    networks: Callable[[Tensor], Tensor], inputs: Tensor, present: Tensor, terms: Terms
) -> list[Tensor]:
    """Over networks (`P x B x 1` to `B x S'`), each of which sees its observed rows and is spared the others."""
    # the observed rows of each network come first, and there are as many rows as the one with most of them has
    num_rows = int(present.sum(1).max())
    order = present.argsort(dim=1, descending=True, stable=True)[:, :num_rows]  # (P, R, 1)
    inputs_in_order, present_in_order = inputs.gather(1, order), present.gather(1, order)
    return [
        term.new_zeros(inputs.shape[1], term.shape[-1]).index_add_(
            0, order.flatten(), (term * present_in_order).flatten(0, 1)
        )
        for term in terms(networks(inputs_in_order))  # (P, R, S')
    ]
