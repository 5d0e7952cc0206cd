"""What fills the holes of a table: :class:`SGPVAEImputer` and its peers, each as a function of a problem."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from gpytorch_sgpvae import Prediction
from gpytorch_sgpvae.table import SGPVAEImputer
from gpytorch_sgpvae.table.baselines import fill_by_interpolation, fill_by_mean, group_numbers
from gpytorch_sgpvae.table.boosting import fill_by_boosting
from gpytorch_sgpvae.table.numbers import read_anything

from .kriging import krige
from .tables import Problem

# What is said of the test's outputs (N x P): a distribution, or a value for each.
Imputed = Prediction | np.ndarray
Imputer = Callable[[Problem, int, bool], Imputed]

PYPOTS = importlib.util.find_spec("pypots") is not None
# More than any training takes: its steps end it, as they do on a core that has nothing else to do.
MOST_MINUTES = 60.0
# Draws from the posterior of IterativeImputer.
NUM_DRAWS = 20
# The penalty of the wide ridge, for standardized columns; chosen on a seed of the twelve stations that is not reported.
RIDGE_PENALTY = 100.0
# The fraction of the windows to stop early on, and of their entries to be predicted.
VALIDATION_SHARE, VALIDATION_HIDDEN = 0.1, 0.2


def ours(problem: Problem, seed: int, quick: bool) -> Imputed:
    """Fill by this package, with its defaults, and time enough for all steps even on a busy machine."""
    options = {"max_epochs": 1 if quick else None, "max_minutes": MOST_MINUTES, "seed": seed, "progress": False}
    imputer = SGPVAEImputer(problem.inputs, problem.outputs, problem.task, **options)
    imputer.fit(problem.train)
    return imputer.predictive(problem.test, context=problem.test)


def column_means(problem: Problem, seed: int, quick: bool) -> Imputed:
    means = problem.train[problem.outputs].mean()
    return fill_by_mean(problem.test.fillna(means), problem.outputs)[problem.outputs].to_numpy()


def linear_interpolation(problem: Problem, seed: int, quick: bool) -> Imputed:
    """Interpolate in the whole series of a station, past the ends of weeks."""
    inputs = [*problem.places, problem.time]
    return fill_by_interpolation(problem.test, inputs, problem.outputs)[problem.outputs].to_numpy()


def boosting(problem: Problem, seed: int, quick: bool) -> Imputed:
    """Boost trees on the whole series of a station, past the ends of weeks; a training table is learnt from too."""
    parts = [problem.test] if problem.train is problem.test else [problem.train, problem.test]
    table = pd.concat([part.assign(part=number) for number, part in enumerate(parts)])
    table = table.assign(series=group_numbers(table, ["part", *problem.places]))
    wanted = table[problem.outputs].isna().to_numpy() & (table["part"] == len(parts) - 1).to_numpy()[:, None]
    inputs, rows = [*_described(problem), problem.time], 500 if quick else 20_000
    task = None if _described(problem) else "series"
    filled = fill_by_boosting(table, inputs, problem.outputs, task, seed=seed, max_rows=rows, wanted=wanted)
    return filled[problem.outputs].to_numpy()[-len(problem.test) :]


def wide_ridge(problem: Problem, seed: int, quick: bool) -> Imputed:
    """
    Ridge regression where each output of each place is a column, and each time a row: all places at a time tell of each
    other. The penalty is fixed: with BayesianRidge, columns that are nearly the same get huge coefficients.
    """
    wide = problem.test.pivot(index=problem.time, columns=problem.places, values=problem.outputs).dropna(
        axis=1, how="all"
    )
    options = {"max_iter": 2 if quick else 10, "random_state": seed, "keep_empty_features": True}
    imputer, scaler = IterativeImputer(Ridge(RIDGE_PENALTY), **options), StandardScaler()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # ten rounds are what it gets
        filled = scaler.inverse_transform(imputer.fit_transform(scaler.fit_transform(wide)))
    long = pd.DataFrame(filled, wide.index, wide.columns).stack(problem.places, future_stack=True)
    at = pd.MultiIndex.from_frame(problem.test[[problem.time, *problem.places]])
    return long[problem.outputs].reindex(at).to_numpy()


def kriging(problem: Problem, seed: int, quick: bool) -> Imputed:
    """Each output a Gaussian process over place and time, from the closest known entries; recordings one by one."""
    columns = [*_described(problem), problem.time]
    x = np.stack([read_anything(problem.test[name]) for name in columns], 1)
    steps = [*(x[:, :-1].std(0) / 10), np.diff(np.unique(x[:, -1])).min()]
    groups = group_numbers(problem.test, [name for name in problem.places if name not in problem.inputs])
    return krige(x, problem.test[problem.outputs].to_numpy(float), np.array(steps), groups, seed, quick)


def iterative_imputer(problem: Problem, seed: int, quick: bool) -> Imputed:
    """Bayesian ridge regression of each column on all others, inputs included; its posterior as a Gaussian."""
    imputer = IterativeImputer(sample_posterior=True, skip_complete=True, max_iter=10, random_state=seed, tol=0.0)
    draws = _with_scaled_columns(imputer, problem, 2 if quick else NUM_DRAWS)  # (S, N, P)
    # what was observed does not vary, and is not judged
    return Prediction.gaussian(torch.tensor(draws.mean(0)), torch.tensor(draws.std(0, ddof=1)).clamp(min=1e-6))


def knn_imputer(problem: Problem, seed: int, quick: bool) -> Imputed:
    """Fill from the rows that are closest in inputs and outputs."""
    return _with_scaled_columns(KNNImputer(n_neighbors=5, weights="distance"), problem, 1)[0]


def saits(problem: Problem, seed: int, quick: bool) -> Imputed:
    """Fill by SAITS, with the sizes of PyPOTS' introduction."""
    from pypots.imputation import SAITS

    sizes = {"n_layers": 2, "d_model": 256, "n_heads": 4, "d_k": 64, "d_v": 64, "d_ffn": 128, "dropout": 0.1}
    return _with_windows(lambda **shared: SAITS(**sizes, **shared), problem, seed, quick)


def gp_vae(problem: Problem, seed: int, quick: bool) -> Imputed:
    """Fill by GP-VAE, with the sizes of PyPOTS' introduction. Its samples are all the same: no distribution."""
    from pypots.imputation import GPVAE

    sizes: dict[str, Any] = {"latent_size": 37, "encoder_sizes": (128, 128), "decoder_sizes": (256, 256)}
    return _with_windows(lambda **shared: GPVAE(**sizes, **shared), problem, seed, quick)


def _with_scaled_columns(imputer: Any, problem: Problem, num_draws: int) -> np.ndarray:
    """Impute inputs, time and outputs, all of them scaled; the outputs in original units (`S x N x P`)."""
    columns = list(dict.fromkeys([*problem.inputs, problem.time, *problem.outputs]))
    chosen = [columns.index(name) for name in problem.outputs]
    train, test = (_numbers(table[columns]) for table in (problem.train, problem.test))
    scaler = StandardScaler().fit(train)
    imputer.fit(scaler.transform(train))
    test = scaler.transform(test)
    return np.stack([scaler.inverse_transform(imputer.transform(test))[:, chosen] for _ in range(num_draws)])


def _numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Dates in days."""
    return table.apply(read_anything)


def _described(problem: Problem) -> list[str]:
    """Inputs that say where a series is."""
    return [name for name in problem.places if name in problem.inputs]


def _with_windows(make: Callable[..., Any], problem: Problem, seed: int, quick: bool) -> np.ndarray:
    """
    Fill by a model of PyPOTS: samples are windows of a series, features its outputs and, observed everywhere, its
    place. It stops when a tenth of the windows, of which a fifth of the entries is hidden for this, has not improved
    for ten epochs.
    """
    from pypots.utils.random import set_random_seed

    set_random_seed(seed)
    columns = [*_described(problem), *problem.outputs]
    scaler = StandardScaler().fit(problem.train[columns])

    def windows(frame: Any) -> np.ndarray:
        return scaler.transform(frame[columns]).reshape(-1, problem.steps, len(columns)).astype(np.float32)

    random = np.random.RandomState(seed)
    samples = windows(problem.train)
    samples = samples[random.permutation(len(samples))]
    validation, training = np.split(samples, [max(int(VALIDATION_SHARE * len(samples)), 1)])
    hidden = random.random_sample(validation.shape) < VALIDATION_HIDDEN
    shared = {"epochs": 2 if quick else 100, "patience": 1 if quick else 10, "batch_size": 32, "device": "cpu"}
    model = make(n_steps=problem.steps, n_features=len(columns), verbose=False, **shared)
    model.fit({"X": training}, {"X": np.where(hidden, np.nan, validation), "X_ori": validation})
    filled = model.predict({"X": windows(problem.test)})["imputation"]
    rows = scaler.inverse_transform(np.asarray(filled, dtype=float).reshape(-1, len(columns)))
    return rows[:, -len(problem.outputs) :]


OURS, WIDE = "SGPVAEImputer", "wide ridge"
IMPUTERS: dict[str, Imputer] = {
    OURS: ours,
    "column means": column_means,
    "linear interpolation": linear_interpolation,
    "boosting": boosting,
    WIDE: wide_ridge,
    "kriging": kriging,
    "IterativeImputer": iterative_imputer,
    "KNNImputer": knn_imputer,
    "PyPOTS GP-VAE": gp_vae,
    "PyPOTS SAITS": saits,
}
AVAILABLE = [name for name in IMPUTERS if PYPOTS or not name.startswith("PyPOTS")]
