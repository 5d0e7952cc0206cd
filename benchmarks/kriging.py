"""Ordinary kriging: each output is a Gaussian process of its own, and holes are predicted from what is closest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from gpytorch_sgpvae import Prediction

# Entries that a hole is predicted from, and those of a block that hyperparameters are learnt from.
NUM_NEIGHBOURS = 128
NUM_BLOCKS, BLOCK_SIZE = 16, 128
NUM_STEPS, LEARNING_RATE = 60, 0.1
# How many holes are predicted at a time.
CHUNK_SIZE = 500
JITTER = 1e-6


def krige(x: np.ndarray, y: np.ndarray, steps: np.ndarray, groups: np.ndarray, seed: int, quick: bool) -> Prediction:
    """
    Predict all outputs in all rows. An entry that is known is its own prediction.

    :param x: Places and times (`N x D`).
    :param y: Outputs, NaN where they are missing (`N x P`).
    :param steps: A short distance along each input (`D`): lengthscales start at ten of them.
    :param groups: A number of each row; rows of different groups know nothing of each other (`N`).
    :param seed: Seed of the blocks that hyperparameters are learnt from.
    :param quick: Hardly learn.
    """
    random = np.random.RandomState(seed)
    mean, stddev = y.copy(), np.full(y.shape, JITTER)
    for p in range(y.shape[1]):
        known = ~np.isnan(y[:, p])
        centre, scale = y[known, p].mean(), y[known, p].std() or 1.0
        z = (y[:, p] - centre) / scale
        field = _Field.start(10 * steps)
        field = field.learn(*_blocks(field, x, z, groups, random), num_steps=2 if quick else NUM_STEPS)
        for rows in _split(groups):
            holes, given = rows[~known[rows]], rows[known[rows]]
            if len(holes):
                moments = field.predict(x[holes], x[given], z[given])
                mean[holes, p], stddev[holes, p] = centre + scale * moments[0], scale * moments[1]
    return Prediction.gaussian(torch.tensor(mean), torch.tensor(stddev))


@dataclass(frozen=True)
class _Field:
    """
    A standardized output: exponential covariance with a lengthscale for each input, a constant mean, and a nugget.

    :param log_lengthscales: `D`.
    :param log_variances: Variances of the process and of the nugget (`2`).
    :param constant: The mean (`1`).
    """

    log_lengthscales: Tensor
    log_variances: Tensor
    constant: Tensor

    @classmethod
    def start(cls, lengthscales: np.ndarray) -> _Field:
        return cls(torch.tensor(lengthscales).log(), torch.tensor([0.9, 0.1]).double().log(), torch.zeros(1).double())

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Inputs in lengthscales."""
        return x / self.log_lengthscales.exp().numpy()

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The covariance of the process without its nugget (`... x N x M`)."""
        lengthscales = self.log_lengthscales.exp()
        distances = torch.cdist(x1 / lengthscales, x2 / lengthscales, compute_mode="donot_use_mm_for_euclid_dist")
        return self.log_variances[0].exp() * (-distances).exp()

    def factor(self, x: Tensor) -> Tensor:
        """Cholesky factor of the covariance of values (`... x N x N`)."""
        nugget = self.log_variances[1].exp() + JITTER
        return torch.linalg.cholesky(self.covariance(x, x) + nugget * torch.eye(x.shape[-2], dtype=x.dtype))

    def learn(self, x: Tensor, z: Tensor, num_steps: int) -> _Field:
        """
        The field that maximizes the mean marginal likelihood of blocks.

        :param x: Inputs of the blocks (`B x n x D`).
        :param z: Their values (`B x n`).
        :param num_steps: Steps of Adam.
        """
        parameters = [p.clone().requires_grad_() for p in (self.log_lengthscales, self.log_variances, self.constant)]
        field = _Field(*parameters)
        optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
        for _ in range(num_steps):
            optimizer.zero_grad()
            L = field.factor(x)
            a = torch.linalg.solve_triangular(L, (z - field.constant).unsqueeze(-1), upper=False)
            # -log p(z) = |L⁻¹ (z - c)|² / 2 + log |L| + …
            loss = (a.square().sum() / 2 + L.diagonal(dim1=-2, dim2=-1).log().sum()) / z.numel()
            loss.backward()
            optimizer.step()
        return _Field(*(p.detach() for p in parameters))

    def predict(self, x: np.ndarray, given_x: np.ndarray, given_z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        Means and standard deviations of values, the nugget included (`N` each).

        :param x: Where (`N x D`).
        :param given_x: Inputs of known values (`M x D`).
        :param given_z: Known values (`M`).
        """
        number = min(NUM_NEIGHBOURS, len(given_z))
        prior = float(self.log_variances.exp().sum())  # variance of a value
        if number == 0:
            return np.full(len(x), float(self.constant)), np.full(len(x), prior**0.5)
        closest = NearestNeighbors(n_neighbors=number).fit(self.scaled(given_x)).kneighbors(self.scaled(x))[1]
        means, variances = [], []
        for chunk in np.split(np.arange(len(x)), range(CHUNK_SIZE, len(x), CHUNK_SIZE)):
            near = torch.tensor(given_x[closest[chunk]])  # (C, n, D)
            z = torch.tensor(given_z[closest[chunk]]).unsqueeze(-1) - self.constant  # (C, n, 1)
            k = self.covariance(near, torch.tensor(x[chunk]).unsqueeze(-2))  # (C, n, 1)
            A, a = torch.linalg.solve_triangular(self.factor(near), torch.cat([k, z], -1), upper=False).unbind(-1)
            means.append(self.constant + (A * a).sum(-1))
            variances.append(prior - A.square().sum(-1))
        return torch.cat(means).numpy(), torch.cat(variances).clamp(min=JITTER).sqrt().numpy()


def _blocks(
    field: _Field, x: np.ndarray, z: np.ndarray, groups: np.ndarray, random: np.random.RandomState
) -> tuple[Tensor, Tensor]:
    """Known values that are close to each other, around some drawn at random (`B x n x D`, `B x n`)."""
    of_group = [rows[~np.isnan(z[rows])] for rows in _split(groups)]
    size = min(BLOCK_SIZE, max(len(rows) for rows in of_group))
    large = [rows for rows in of_group if len(rows) >= size]
    chosen = []
    for _ in range(NUM_BLOCKS):
        rows = large[random.randint(len(large))]
        place = field.scaled(x[rows[random.randint(len(rows))]][None])
        chosen.append(rows[NearestNeighbors(n_neighbors=size).fit(field.scaled(x[rows])).kneighbors(place)[1][0]])
    return torch.tensor(x[np.stack(chosen)]), torch.tensor(z[np.stack(chosen)])


def _split(groups: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(groups == group) for group in np.unique(groups)]
