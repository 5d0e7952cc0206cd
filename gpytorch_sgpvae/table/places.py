"""What is special about each place, in all tasks alike: a station in a hollow is colder in every week."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

# A place is learnt from so many tasks, and from so many rows in each of them, on average at least.
FEWEST_TASKS = 3
FEWEST_ROWS = 2
FEWEST_PLACES = 10
# More places than that are not needed to tell what is smooth in space.
MOST_PLACES = 300
# What varies over shorter distances than this, in standardized inputs, is a place's own.
SHORTEST_LENGTHSCALE = 1.0
# Inputs that agree in so many digits are the same.
DIGITS = 9


@dataclass(frozen=True)
class PlaceEffects:
    r"""
    A constant of each place and output, which is subtracted from the targets and comes back with the predictions. With
    s the place of row n and t its task,

    .. math::

        \bar y_{ts} = w_t + m(s) + e_s + \text{rest}, \qquad e_s \sim \mathcal N(0, \tau^2)

    where :math:`\bar y_{ts}` is the mean of the task's rows at the place and m is smooth in space. Only :math:`e_s` is
    taken out: what is smooth is left to the model, which knows it at new places too. There e is 0, with the deviation
    :math:`\tau`.

    A place is made of all inputs but one, the one along which most rows run (the days at a station). A table whose
    places do not come again in several tasks has no effects.

    :param inputs: Which inputs make a place.
    :param places: Theirs, as the kernel sees them (`S x d`).
    :param effects: e (`S x P`).
    :param spread: :math:`\tau` (`P`).
    """

    inputs: list[int]
    places: np.ndarray
    effects: np.ndarray
    spread: np.ndarray

    @classmethod
    def none(cls, num_outputs: int) -> PlaceEffects:
        return cls([], np.zeros((0, 0)), np.zeros((0, num_outputs)), np.zeros(num_outputs))

    @classmethod
    def fit(cls, x: np.ndarray, y: np.ndarray, tasks: np.ndarray, additive: list[bool], seed: int) -> PlaceEffects:
        """
        :param x: Inputs as the kernel sees them (`N x D`).
        :param y: Targets (`N x P`).
        :param tasks: The task of each row (`N`).
        :param additive: Which targets an effect can be added to (`P`).
        """
        nothing = cls.none(y.shape[1])
        inputs = _find_place_inputs(x)
        if not inputs or not any(additive):
            return nothing
        places, place = np.unique(x[:, inputs].round(DIGITS), axis=0, return_inverse=True)
        cells = len(np.unique(place * (tasks.max() + 1) + tasks))
        if cells < FEWEST_TASKS * len(places) or len(x) < FEWEST_ROWS * cells:
            return nothing
        effects, spread = np.zeros((len(places), y.shape[1])), np.zeros(y.shape[1])
        for j in np.flatnonzero(additive):
            effects[:, j], spread[j] = _own_part(places, _shrunken_means(y[:, j], place, tasks), seed)
        return cls(inputs, places, effects, spread)

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The effects at some inputs, and the deviation of those that are not known (`N x P` each)."""
        effects, spread = np.zeros((2, len(x), self.effects.shape[1]))
        if len(self.places):
            numbers = {tuple(place): i for i, place in enumerate(self.places)}
            found = np.array([numbers.get(tuple(place), -1) for place in x[:, self.inputs].round(DIGITS)], dtype=int)
            effects[found >= 0] = self.effects[found[found >= 0]]
            spread[found < 0] = self.spread
        return effects, spread


def _find_place_inputs(x: np.ndarray) -> list[int]:
    """All inputs but one: that without which there are the fewest different rows, but enough of them."""
    rests = [[k for k in range(x.shape[1]) if k != d] for d in range(x.shape[1])]
    counts = [len(np.unique(x[:, rest].round(DIGITS), axis=0)) if rest else 1 for rest in rests]
    enough = [(count, rest) for count, rest in zip(counts, rests, strict=True) if count >= FEWEST_PLACES]
    return min(enough)[1] if enough else []


def _shrunken_means(y: np.ndarray, place: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """A mean for each place beside that of each task, closer to zero the less is known of it (`S`)."""
    known = ~np.isnan(y)
    shape = (place.max() + 1, tasks.max() + 1)
    sums, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, (place[known], tasks[known]), y[known])
    np.add.at(counts, (place[known], tasks[known]), 1)
    present = counts > 0
    cells = np.where(present, sums / np.maximum(counts, 1), 0.0)  # (S, T)
    num_tasks = present.sum(1)
    means, shrinkage = np.zeros(shape[0]), 0.0
    for _ in range(50):  # of a two-way table with holes it converges within a few rounds
        of_tasks = ((cells - means[:, None]) * present).sum(0) / np.maximum(present.sum(0), 1)
        rest = (cells - of_tasks) * present
        means = rest.sum(1) / np.maximum(num_tasks + shrinkage, 1)
        within = (((rest - means[:, None]) * present) ** 2).sum() / max(present.sum() - len(means), 1)
        between = max(means.var() - within / max(num_tasks.mean(), 1), 1e-6)
        shrinkage = within / between
    return means


def _own_part(places: np.ndarray, means: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """What a smooth function of the place leaves of its means, and how large that is."""
    scale = means.std()
    if scale == 0:
        return np.zeros_like(means), 0.0
    standardized = (places - places.mean(0)) / np.maximum(places.std(0), 1e-12)
    chosen = np.random.default_rng(seed).permutation(len(places))[:MOST_PLACES]
    smooth = RBF(np.ones(places.shape[1]), length_scale_bounds=(SHORTEST_LENGTHSCALE, 1e3))
    kernel = ConstantKernel(1.0) * smooth + WhiteKernel(0.1, noise_level_bounds=(1e-4, 1e1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of lengthscales at their bounds
        gp = GaussianProcessRegressor(kernel, random_state=seed).fit(standardized[chosen], means[chosen] / scale)
    own = means - scale * gp.predict(standardized)
    return own, float(scale * np.sqrt(gp.kernel_.k2.noise_level))
