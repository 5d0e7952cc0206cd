"""What predictions come to in a table: a value or a label for each hole, and whole columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..likelihoods import Prediction
from ..likelihoods.observation_models.distributions import Categorical, ColumnwiseDistribution
from ..variational import Posterior


def most_probable(prediction: Prediction) -> Tensor:
    """The mean, or where values are labels the number of the most probable one (`n x P`)."""
    means = []
    for part, column in _parts(prediction):
        if isinstance(part, Categorical):
            column = part.probs.mean(0).argmax(-1).to(column.dtype)
        elif isinstance(part, torch.distributions.Bernoulli):
            column = (column > 0.5).to(column.dtype)
        means.append(column)
    return torch.cat(means, -1)


def label_probabilities(prediction: Prediction, points: Tensor) -> Tensor:
    """Of the labels (`n x P`), NaN where values are none."""
    result = torch.full_like(points, torch.nan)
    first = 0
    for part, column in _parts(prediction):
        last = first + column.shape[-1]
        if isinstance(part, (Categorical, torch.distributions.Bernoulli)):
            result[:, first:last] = part.log_prob(points[:, first:last]).exp().mean(0)
        first = last
    return result


def _parts(prediction: Prediction) -> list[tuple[torch.distributions.Distribution, Tensor]]:
    """The components of each kind (`S x n x P_g`), with their columns of the mean."""
    components = prediction.components
    if isinstance(components, ColumnwiseDistribution):
        return components.split(prediction.mean)
    return [(components, prediction.mean)]


def put(column: pd.Series, where: np.ndarray, values: np.ndarray) -> pd.Series:
    """The column with values at some positions, of the type that it had."""
    filled = column.copy()
    if pd.api.types.is_integer_dtype(column.dtype):
        values = np.round(values.astype(float)).astype(int)
    elif pd.api.types.is_float_dtype(column.dtype):
        values = values.astype(float)
    filled.iloc[where] = pd.array(list(values), dtype=column.dtype)
    return filled


class JointFunctions:
    """
    The latent functions at all inputs together, and what is certain beside them, for joint samples.

    :param posterior: Of the latent functions.
    :param x: The inputs (`N x D`).
    :param certain: (`N x C`).
    """

    def __init__(self, posterior: Posterior, x: Tensor, certain: Tensor):
        self.functions = posterior(x)
        self.certain = certain

    def sample(self, sample_shape: torch.Size) -> Tensor:
        functions = self.functions.sample(sample_shape)  # (S, N, K)
        return torch.cat([functions, self.certain.expand(*sample_shape, *self.certain.shape)], -1)
