"""What the paper compares with, and what it does not."""

from __future__ import annotations

import math
from itertools import cycle, islice
from typing import Any

import gpytorch
import numpy as np
import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gpytorch_sgpvae import Prediction


def mean_imputation(tasks: list[tuple[Tensor, Tensor]], shape: torch.Size) -> Prediction:
    """
    Predict each value by its output's mean, with its output's variance.

    :param tasks: What the means are taken over.
    :param shape: The shape of what is predicted (`*T x N x P`).
    """
    rows = torch.cat([y for _, y in tasks])  # (N, P)
    mean = rows.nanmean(0)
    stddev = (rows - mean).square().nanmean(0).sqrt()
    return Prediction.gaussian(mean.expand(shape), stddev.expand(shape))


def interpolation(x: Tensor, y: Tensor) -> Prediction:
    """
    Straight lines in time between the observed values of each output, and its first and last value beyond them. The
    standard deviation is that of the error where each observed value is taken from those before and after it.

    :param x: Times, in order (`N x 1`).
    :param y: (`N x P`), NaN is missing.
    """
    times = x.squeeze(-1).numpy()
    means, stddevs = [], []
    for column in y.T.numpy():
        seen = np.flatnonzero(~np.isnan(column))
        means.append(np.interp(times, times[seen], column[seen]))
        before, at, after = times[seen[:-2]], times[seen[1:-1]], times[seen[2:]]
        share = (at - before) / (after - before)
        errors = column[seen[1:-1]] - (1 - share) * column[seen[:-2]] - share * column[seen[2:]]
        stddevs.append(np.sqrt(np.mean(errors**2)))
    mean = torch.as_tensor(np.stack(means, axis=-1))
    return Prediction.gaussian(mean, torch.as_tensor(np.array(stddevs)).expand_as(mean))


class LeastSquares:
    r"""
    A linear regression, :math:`\mathbf y_n = \mathbf a + B \mathbf x_n + \boldsymbol \varepsilon_n`, with the
    standard deviations of the residuals.

    :param features: (`N x Q`).
    :param targets: (`N x P`); rows with a hole in either are left out.
    """

    def __init__(self, features: Tensor, targets: Tensor):
        rows = (features.isfinite().all(-1)) & (targets.isfinite().all(-1))
        design = self._with_constant(features[rows])
        self.weights = torch.linalg.lstsq(design, targets[rows]).solution  # (1 + Q, P)
        self.stddev = (targets[rows] - design @ self.weights).std(0)  # (P,)

    def __call__(self, features: Tensor) -> Tensor:
        """The mean (`... x P`) of features (`... x Q`)."""
        return self._with_constant(features) @ self.weights

    @staticmethod
    def _with_constant(features: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(features[..., :1]), features], dim=-1)


def regression(y: Tensor) -> Prediction:
    """
    The outputs with holes by least squares of those without, row by row.

    :param y: (`N x P`).
    """
    whole = y.isfinite().all(0)  # (P,)
    fit = LeastSquares(y[:, whole], y[:, ~whole])
    mean, stddev = torch.zeros_like(y), torch.ones_like(y)  # of the others: which nobody asks for
    mean[:, ~whole], stddev[:, ~whole] = fit(y[:, whole]), fit.stddev
    return Prediction.gaussian(mean, stddev)


class IndependentGPs(gpytorch.Module):
    r"""
    An exact Gaussian process for each output of each task, with hyperparameters that the tasks share, by maximum
    likelihood. Missing rows are left out of each: with :math:`m_n` 1 where there is a value,

    .. math::

        \log \mathcal N(\mathbf m \circ \mathbf y \mid 0, \; \mathbf m \mathbf m^\top \circ K
        + \mathrm{diag}(\mathbf m \sigma^2 + 1 - \mathbf m))

    is the likelihood of what is there, but for a constant.

    :param num_outputs: P.
    :param input_dim: D.
    :param lengthscale: The lengthscale to start from.
    :param noise: The variance of the noise to start from.
    :param kernel: A kernel with batch shape P, which is then scaled; by default an RBF kernel.
    """

    def __init__(
        self,
        num_outputs: int,
        input_dim: int,
        lengthscale: float = 1.0,
        noise: float = 0.1,
        kernel: gpytorch.kernels.Kernel | None = None,
    ):
        super().__init__()
        batch = torch.Size([num_outputs])
        base = kernel or gpytorch.kernels.RBFKernel(ard_num_dims=input_dim, batch_shape=batch)
        self.kernel = gpytorch.kernels.ScaleKernel(base, batch_shape=batch)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=batch)
        self.double()
        base.lengthscale, self.likelihood.noise = lengthscale, noise

    def log_likelihood(self, x: Tensor, y: Tensor) -> Tensor:
        """
        :param x: (`*T x N x D`).
        :param y: (`*T x N x P`), NaN is missing.
        :return: (`*T x P`)
        """
        values, observed, chol = self._factorize(x, y)[:3]
        white = torch.linalg.solve_triangular(chol, values.unsqueeze(-1), upper=False).squeeze(-1)
        log_det = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (white.square().sum(-1) + log_det + observed.sum(-1) * math.log(2 * math.pi))

    def fit(
        self,
        tasks: list[tuple[Tensor, Tensor]],
        num_steps: int = 200,
        lr: float = 0.1,
        tasks_per_step: int | None = None,
    ) -> IndependentGPs:
        """
        :param tasks: Pairs of x and y, as :meth:`log_likelihood` takes them.
        :param num_steps: Steps of Adam, with a cosine schedule.
        :param lr: Its learning rate.
        :param tasks_per_step: Tasks in a step, in turn, where all of them would take too long.
        """
        in_turn = cycle(tasks)
        optimizer = torch.optim.Adam(self.parameters(), lr=lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
        for _ in range(num_steps):
            optimizer.zero_grad()
            for x, y in islice(in_turn, tasks_per_step or len(tasks)):
                (-self.log_likelihood(x, y).sum()).backward()
            optimizer.step()
            schedule.step()
        return self

    @torch.no_grad()
    def predict(self, x: Tensor, y: Tensor) -> Prediction:
        """The outputs at x, given those of them that are observed."""
        values, observed, chol, covar = self._factorize(x, y)
        cross = covar * observed.unsqueeze(-1)  # (*T, P, N, N), from what is observed to everything
        white = torch.linalg.solve_triangular(chol, cross, upper=False)
        alpha = torch.linalg.solve_triangular(chol, values.unsqueeze(-1), upper=False)
        mean = (white.mT @ alpha).squeeze(-1)
        variance = covar.diagonal(dim1=-2, dim2=-1) - white.square().sum(-2) + self.likelihood.noise
        return Prediction.gaussian(mean.mT, variance.sqrt().mT)

    def _factorize(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        observed = (~y.isnan()).mT.to(y.dtype)  # (*T, P, N)
        values = y.nan_to_num().mT * observed
        covar = self.kernel(x.unsqueeze(-3)).to_dense()  # (*T, P, N, N)
        masked = covar * observed.unsqueeze(-1) * observed.unsqueeze(-2)
        chol = psd_safe_cholesky(masked + torch.diag_embed(observed * self.likelihood.noise + 1 - observed))
        return values, observed, chol, covar


def gpar(x: Tensor, y: Tensor, num_samples: int, log: bool = False, fix: bool = True, **settings: Any) -> Prediction:
    """
    The autoregressive model of Requeima et al. (2019), from the package `gpar`: outputs that are observed more often
    come first, and help to predict the others.

    :param x: (`N x D`).
    :param y: In original units (`N x P`), NaN is missing.
    :param num_samples: Samples of its predictive distribution, for the mean and the standard deviation.
    :param log: Whether it models the outputs' logarithms.
    :param fix: Whether an output's hyperparameters stay as they are when those of later ones are learnt.
    :param settings: Passed to its `GPARRegressor`.
    """
    try:
        from gpar import GPARRegressor, log_transform
    except ImportError as error:
        raise ImportError("GPAR is not installed here: make experiments EXPERIMENT='jura --model gpar'") from error
    order = (~y.isnan()).sum(0).argsort(descending=True, stable=True)
    transform = {"transform_y": log_transform} if log else {}
    model = GPARRegressor(linear=False, nonlinear=True, nonlinear_scale=1.0, impute=True, **settings, **transform)
    model.fit(x.numpy(), y[:, order].numpy(), fix=fix)
    samples = model.sample(x.numpy(), num_samples=num_samples, posterior=True)
    values = torch.as_tensor(np.stack(samples))[..., order.argsort()]  # (S, N, P)
    return Prediction.gaussian(values.mean(0), values.std(0))
