from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from .base import ObservationModel
from .distributions import ColumnwiseDistribution


class MixedObservations(ObservationModel):
    r"""
    Outputs of different kinds side by side, with an observation model for each group of consecutive columns:

    .. math::

        p(\mathbf y_n \mid \mathbf f_n) = \prod_g p_g \left( \mathbf y_n^{(g)} \mid h^{(g)}(\mathbf f_n) \right)

    The decoder gives the values of the first group, then those of the second, and so on. Where columns of one kind do
    not stand together, name the kind again: `[GaussianObservations(1), BernoulliObservations(1),
    GaussianObservations(2)]` for a flag in the second of four columns.

    :param observation_models: The observation models, in the order of the columns of y.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import MLP, SGPVAE, BernoulliObservations, GaussianObservations, MixedObservations
        >>> observations = MixedObservations([GaussianObservations(2), BernoulliObservations(1)])
        >>> temperatures, flag = torch.randn(20, 2), (torch.rand(20, 1) < 0.5).float()
        >>> decoder = MLP(3, observations.decoder_size)
        >>> sgpvae = SGPVAE(observations.num_outputs, 3, torch.rand(8, 1), decoder=decoder,
        ...                 observation_model=observations)
        >>> sgpvae.loss((torch.rand(20, 1), torch.cat([temperatures, flag], -1))).shape
        torch.Size([])
    """

    def __init__(self, observation_models: Sequence[ObservationModel]):
        for model in observation_models:
            if not isinstance(model, ObservationModel):
                raise TypeError(
                    f"MixedObservations takes observation models, got {model!r}: give it objects such as "
                    "GaussianObservations(2); one of your own must be an ObservationModel."
                )
        super().__init__(sum(model.num_outputs for model in observation_models))
        self.observation_models = torch.nn.ModuleList(observation_models)
        self._decoder_sizes = [model.decoder_size for model in observation_models]

    @property
    def decoder_size(self) -> int:
        return sum(self._decoder_sizes)

    @property
    def is_elementwise(self) -> bool:  # type: ignore[override]
        return all(cast("ObservationModel", model).is_elementwise for model in self.observation_models)

    def distribution(self, decoded: Tensor) -> ColumnwiseDistribution:
        groups = decoded.split(self._decoder_sizes, dim=-1)
        return ColumnwiseDistribution(
            [model(group) for model, group in zip(self.observation_models, groups, strict=True)]
        )

    def initial_sites(self, y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sites of the first group, then those of the second, and so on: the order of the decoder's values."""
        y, observed = self._fill(y, observed)
        models = cast("Sequence[ObservationModel]", self.observation_models)
        sizes = [model.num_outputs for model in models]
        groups = zip(models, y.split(sizes, -1), observed.split(sizes, -1), strict=True)
        g, precision = zip(*(model.initial_sites(columns, seen) for model, columns, seen in groups), strict=True)
        return torch.cat(g, -1), torch.cat(precision, -1)
