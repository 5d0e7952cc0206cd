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
    Pseudo-observations of the outputs themselves, which couple the latent functions as the decoder does: each observed
    output says something about one sum of latent functions, with perceptrons for what is not linear,

    .. math::

        l_n(\mathbf f_n) = \prod_{p \in \mathcal O_n} \mathcal N \left( g_{np} \mid \mathbf w_p^\top \mathbf f_n,
        \lambda_{np}^{-1} \right), \qquad
        g_{np} = y_{np} - b_p + \mathrm{net}_p(y_{np}), \qquad
        \lambda_{np} = e^{\mathrm{net}'_p(y_{np})} / \sigma_p^2

    Both perceptrons are zero at the start. :meth:`tie` makes the loadings :math:`\mathbf w_p`, :math:`b_p` and
    :math:`\sigma_p^2` those of a likelihood: with a linear decoder and Gaussian noise the posterior is then the exact
    one for any pattern of missing entries, throughout training. The network is for a
    :class:`~gpytorch_sgpvae.JointAmortizedVariationalStrategy` or a
    :class:`~gpytorch_sgpvae.DenseJointAmortizedVariationalStrategy`.

    See :class:`~gpytorch_sgpvae.InferenceNetwork` for the parameters. The sites are `*T x P x N`, with loadings
    `P x K`.

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
        self.corrections = StackedMLP(num_outputs, 1, 2, hidden_sizes, activation)
        with torch.no_grad():
            self.corrections.weights[-1].zero_()
            self.corrections.biases[-1].zero_()
        linear = torch.nn.Linear(num_latents, num_outputs)
        self.loadings: Tensor | None = torch.nn.Parameter(linear.weight.detach().clone())
        self.bias: Tensor | None = torch.nn.Parameter(torch.zeros(num_outputs))
        self.log_noise: Tensor | None = torch.nn.Parameter(torch.zeros(num_outputs))
        self._tied: tuple[Any, ...] = ()

    def tie(self, likelihood: Any) -> None:
        """
        Take loadings, bias and noise from a likelihood from now on, as its parameters move.

        :param likelihood: A :class:`~gpytorch_sgpvae.DecoderLikelihood` whose decoder is a :class:`torch.nn.Linear` or
            a :class:`~gpytorch_sgpvae.LinearPlus`, and whose observation model is
            :class:`~gpytorch_sgpvae.GaussianObservations`.
        """
        linear = linear_part(likelihood.decoder)
        if linear is None or not hasattr(likelihood.observation_model, "noise"):
            raise TypeError(
                "JointFactorNet can be tied to a decoder that is torch.nn.Linear or LinearPlus with Gaussian noise, got "
                f"{type(likelihood.decoder).__name__} with {type(likelihood.observation_model).__name__}."
            )
        if linear.weight.shape != (self.num_outputs, self.num_latents):
            raise ValueError(
                f"The decoder maps {linear.in_features} latent functions to {linear.out_features} values, but the "
                f"network has num_latents={self.num_latents} and num_outputs={self.num_outputs}."
            )
        # in a tuple, so that the likelihood's parameters do not become the network's
        self._tied = (likelihood,)
        self.loadings = self.bias = self.log_noise = None

    def forward(self, context: Context) -> GaussianSites:
        self.check_outputs(context)
        loadings, bias, noise = self._linear_model()
        y = context.filled  # (*T, N, P)
        corrections = self.corrections(self.by_output(y))  # (P, T N, 2)
        shift, log_factor = corrections.movedim(0, -2).reshape(*y.shape, 2).unbind(-1)  # (*T, N, P)
        # a factor beyond e^±8 would be an equality constraint, or nothing at all
        precision = torch.where(context.observed, (8 * torch.tanh(log_factor / 8)).exp() / noise, 0.0)
        values = y + shift if bias is None else y - bias + shift
        return GaussianSites((precision * values).mT, precision.mT, loadings)

    def _linear_model(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """Loadings (`P x K`), bias (`P`) and noise variance (`P`)."""
        if self._tied:
            (likelihood,) = self._tied
            linear: Any = linear_part(likelihood.decoder)
            return linear.weight, linear.bias, likelihood.observation_model.noise
        return self.loadings, self.bias, self.log_noise.exp()  # type: ignore[return-value, union-attr]
