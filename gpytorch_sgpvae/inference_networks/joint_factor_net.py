from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..context import Context
from ..mlp import linear_part
from ..sites import GaussianSites
from .base import InferenceNetwork
from .stacked_mlp import LEAKY_RELU, StackedMLP


class JointFactorNet(InferenceNetwork):
    r"""
    Pseudo-observations of the decoder's values, which couple the latent functions as the decoder does: each observed
    output says something about a sum of latent functions, with perceptrons for what is not linear,

    .. math::

        l_n(\mathbf f_n) = \prod_{j \in \mathcal O_n} \mathcal N \left( g_{nj} \mid \mathbf w_j^\top \mathbf f_n,
        \lambda_{nj}^{-1} \right), \qquad
        g_{nj} = y_{nj} - b_j + \mathrm{net}_j(y_{nj}), \qquad
        \lambda_{nj} = e^{\mathrm{net}'_j(y_{nj})} / \sigma_j^2

    Both perceptrons are zero at the start. :meth:`tie` makes the loadings :math:`\mathbf w_j`, :math:`b_j` and
    :math:`\sigma_j^2` those of a likelihood: with a linear decoder and Gaussian noise the posterior is then the exact
    one for any pattern of missing entries, throughout training, as long as the perceptrons are zero. Outputs of other
    kinds, counts or flags, start from the Gaussian that is closest to their likelihood (`initial_sites` of their
    observation model), in place of :math:`y_{nj}` and :math:`\sigma_j^{-2}`.

    The network is for a :class:`~gpytorch_sgpvae.JointAmortizedVariationalStrategy` or a
    :class:`~gpytorch_sgpvae.DenseJointAmortizedVariationalStrategy`. See :class:`~gpytorch_sgpvae.InferenceNetwork` for
    the parameters. The sites are `*T x J x N` with loadings `J x K`, one for each of the decoder's J values: P of them
    for most kinds of outputs.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Context, DecoderLikelihood, GaussianObservations, JointFactorNet
        >>> network = JointFactorNet(num_outputs=5, num_latents=3)
        >>> network.tie(DecoderLikelihood(torch.nn.Linear(3, 5), GaussianObservations(5)))
        >>> sites = network(Context(torch.rand(10, 2), torch.randn(7, 10, 5)))
        >>> sites.shape, sites.loadings.shape
        (torch.Size([7, 5, 10]), torch.Size([5, 3]))
    """

    row_wise = True
    couples_latents = True
    _corrected: Tensor | None

    def __init__(
        self,
        num_outputs: int,
        num_latents: int,
        hidden_sizes: Sequence[int] = (20, 20),
        activation: Callable[[], torch.nn.Module] = LEAKY_RELU,
        **kwargs: Any,
    ):
        super().__init__(num_outputs, num_latents, hidden_sizes, activation, **kwargs)
        if num_latents is None:
            raise ValueError("JointFactorNet couples latent functions: give it num_latents, got None.")
        self._make_corrections(num_outputs)
        self.loadings: Tensor | None = torch.nn.Parameter(torch.nn.Linear(num_latents, num_outputs).weight.detach())
        self.bias: Tensor | None = torch.nn.Parameter(torch.zeros(num_outputs))
        self.log_noise: Tensor | None = torch.nn.Parameter(torch.zeros(num_outputs))
        self._tied: tuple[Any, ...] = ()

    def correct_only(self, values: Sequence[bool]) -> None:
        """
        Leave the pseudo-observations of some of the decoder's values as they are: those of Gaussian outputs of a linear
        decoder are exact, and perceptrons can only spoil them.

        :param values: Whether there is anything to correct, for each of the decoder's values (`J`).
        """
        num_values = self.corrections.biases[-1].shape[0]
        if len(values) != num_values:
            raise ValueError(f"Got {len(values)} values, but the decoder has {num_values}: name them all.")
        self._corrected = None if all(values) else torch.tensor(list(values), device=self.corrections.weights[0].device)
        self.corrections.requires_grad_(any(values))

    def tie(self, likelihood: Any) -> None:
        """
        Take loadings, bias and noise from a likelihood from now on, as its parameters move.

        :param likelihood: A :class:`~gpytorch_sgpvae.DecoderLikelihood` whose decoder is a :class:`torch.nn.Linear` or
            a :class:`~gpytorch_sgpvae.LinearPlus`.
        """
        linear = linear_part(likelihood.decoder)
        if linear is None or not hasattr(likelihood.observation_model, "initial_sites"):
            raise TypeError(
                "JointFactorNet can be tied to a decoder that is torch.nn.Linear or LinearPlus and to an observation "
                f"model with initial_sites, got {type(likelihood.decoder).__name__} with "
                f"{type(likelihood.observation_model).__name__}."
            )
        if linear.in_features != self.num_latents or likelihood.observation_model.num_outputs != self.num_outputs:
            raise ValueError(
                f"The likelihood has {linear.in_features} latent functions and "
                f"{likelihood.observation_model.num_outputs} outputs, but the network has "
                f"num_latents={self.num_latents} and num_outputs={self.num_outputs}."
            )
        # in a tuple, so that the likelihood's parameters do not become the network's
        self._tied = (likelihood,)
        self.loadings = self.bias = self.log_noise = None
        if linear.out_features != self.corrections.biases[-1].shape[0]:
            self._make_corrections(linear.out_features)

    def forward(self, context: Context) -> GaussianSites:
        self.check_outputs(context)
        loadings, bias, values, precision = self._linear_model(context)  # (J, K), (J,), (*T, N, J), (*T, N, J)
        inputs = values.reshape(-1, values.shape[-1]).mT.unsqueeze(-1)  # (J, T N, 1)
        corrections = self.corrections(inputs).movedim(0, -2).reshape(*values.shape, 2)
        if self._corrected is not None:
            corrections = corrections * self._corrected.unsqueeze(-1)
        shift, log_factor = corrections.unbind(-1)  # (*T, N, J)
        # a factor beyond e^±8 would make an equality constraint of a site, or nothing at all
        precision = precision * (8 * torch.tanh(log_factor / 8)).exp()
        means = values + shift if bias is None else values - bias + shift
        return GaussianSites((precision * means).mT, precision.mT, loadings, self._owners)

    @property
    def _owners(self) -> tuple[int, ...] | None:
        """The decoder's values that latent functions are private to, if it has such functions."""
        return getattr(linear_part(self._tied[0].decoder), "owners", None) if self._tied else None

    def _linear_model(self, context: Context) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Loadings (`J x K`), bias (`J`), and what the observed outputs say before any correction (`*T x N x J`)."""
        if self._tied:
            (likelihood,) = self._tied
            linear: Any = linear_part(likelihood.decoder)
            sites = likelihood.observation_model.initial_sites(context.filled, context.observed)
            return linear.weight, linear.bias, *sites
        precision = context.observed * (-self.log_noise).exp()  # type: ignore[operator]
        return self.loadings, self.bias, context.filled, precision  # type: ignore[return-value]

    def _make_corrections(self, num_sites: int) -> None:
        self.register_buffer("_corrected", None, persistent=False)
        self.corrections = StackedMLP(num_sites, 1, 2, self.hidden_sizes, self.activation)
        with torch.no_grad():
            self.corrections.weights[-1].zero_()
            self.corrections.biases[-1].zero_()
