"""Constants of places, the same in all tasks: a station in a hollow is colder in every week."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge

# A place is learnt from this many tasks, and from this many rows in each of them, on average at least.
FEWEST_TASKS = 3
FEWEST_ROWS = 2
# What is smooth in space is told from this many places.
FEWEST_FOR_SMOOTH = 10
# More places than that are not needed to tell what is smooth in space.
MOST_PLACES = 300
# The constants of an output are told from those of others where this many places have both.
FEWEST_FOR_OTHERS = 6
# What varies over shorter distances than this, in standardized inputs, is a place's own.
SHORTEST_LENGTHSCALE = 1.0
# Constants are smooth in space if less than this share of their variance is not.
LEAST_SHARE_OF_OWN = 0.05
# Inputs that agree in this many digits are the same.
DIGITS = 9


@dataclass(frozen=True)
class PlaceEffects:
    r"""
    A constant of each place and output, which is subtracted from the targets and comes back with the predictions. With
    s the place of row n and t its task,

    .. math::

        \bar y_{ts} = w_t + m(s) + e_s + \text{rest}, \qquad e_s \sim \mathcal N(0, \tau^2)

    where :math:`\bar y_{ts}` is the mean of the task's rows at the place and m is smooth in space. The constant of a
    known place is :math:`m(s) + e_s`, and that of a new one :math:`m(s)` with the deviation :math:`\tau`. Where a known
    place has no entry of an output at all, :math:`e_s` is regressed on that of the other outputs there.

    A place is made of all inputs but one, the one along which rows run (the days at a station). A table whose places do
    not come again in several tasks has no effects.

    :param inputs: The inputs that make a place.
    :param places: Theirs, as the kernel sees them (`S x d`).
    :param effects: m + e (`S x P`).
    :param deviations: The standard deviations of the effects on outputs that a place has no entry of, otherwise 0
        (`S x P`).
    :param spread: :math:`\tau` (`P`).
    :param weights: The weight of each known place in m nearby (`S x P`).
    :param lengthscales: The distances over which m changes (`P x d`).
    """

    inputs: list[int]
    places: np.ndarray
    effects: np.ndarray
    deviations: np.ndarray
    spread: np.ndarray
    weights: np.ndarray
    lengthscales: np.ndarray

    @classmethod
    def none(cls, num_outputs: int) -> PlaceEffects:
        """No place has any."""
        nothing = np.zeros((0, num_outputs))
        return cls([], np.zeros((0, 0)), nothing, nothing, np.zeros(num_outputs), nothing, np.ones((num_outputs, 0)))

    @classmethod
    def fit(
        cls,
        x: np.ndarray,
        y: np.ndarray,
        tasks: np.ndarray,
        additive: list[bool],
        inputs: Sequence[int],
        seed: int,
        are_distances: bool = True,
    ) -> PlaceEffects:
        """
        :param x: Inputs as the kernel sees them (`N x D`).
        :param y: Targets (`N x P`).
        :param tasks: The task of each row (`N`).
        :param additive: True for the targets that an effect can be added to (`P`).
        :param inputs: The inputs that make a place: all but the one along which rows run.
        :param seed: Seed of the places that say what is smooth.
        :param are_distances: Whether these inputs have distances, so that something can be smooth in them.
        """
        nothing, inputs = cls.none(y.shape[1]), list(inputs)
        if not inputs or not any(additive):
            return nothing
        places, place = np.unique(x[:, inputs].round(DIGITS), axis=0, return_inverse=True)
        place = place.reshape(-1)
        cells = len(np.unique(place * (tasks.max() + 1) + tasks))
        if cells < FEWEST_TASKS * len(places) or len(x) < FEWEST_ROWS * cells:
            return nothing
        effects, weights = np.zeros((2, len(places), y.shape[1]))
        spread, lengthscales = np.zeros(y.shape[1]), np.ones((y.shape[1], len(inputs)))
        is_seen = np.zeros((len(places), y.shape[1]), dtype=bool)
        for j in np.flatnonzero(additive):
            seen = is_seen[:, j]
            seen[place[~np.isnan(y[:, j])]] = True
            if not seen.any():
                continue
            effects[:, j] = _shrunken_means(y[:, j], place, tasks)
            spread[j] = effects[seen, j].std()
            if are_distances:
                weights[seen, j], lengthscales[j], spread[j] = _smooth_part(places[seen], effects[seen, j], seed)
        found = cls(inputs, places, effects, np.zeros_like(effects), spread, weights, lengthscales)
        own, deviations = _of_other_outputs(effects - found._smooth(places), is_seen, spread)
        return replace(found, effects=np.where(is_seen, effects, found._smooth(places) + own), deviations=deviations)

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The effects at some inputs, and the deviation of those that are not known (`N x P` each)."""
        effects, spread = np.zeros((2, len(x), self.effects.shape[1]))
        if len(self.places):
            numbers = {tuple(place): i for i, place in enumerate(self.places)}
            different, codes = np.unique(x[:, self.inputs].round(DIGITS), axis=0, return_inverse=True)
            known = np.array([numbers.get(tuple(place), -1) for place in different], dtype=int)
            values = np.where((known >= 0)[:, None], self.effects[known], self._smooth(different))
            deviation = np.where((known >= 0)[:, None], self.deviations[known], self.spread)
            effects, spread = values[codes.reshape(-1)], deviation[codes.reshape(-1)]
        return effects, spread

    def is_smooth(self, p: int) -> bool:
        """Whether the constants of output p are those of a field, and next to nothing is a place's own."""
        return bool(self.spread[p] ** 2 < LEAST_SHARE_OF_OWN * self.effects[:, p].var())

    def _smooth(self, places: np.ndarray) -> np.ndarray:
        """M at some places (`n x P`)."""
        result = np.zeros((len(places), self.effects.shape[1]))
        for j in np.flatnonzero(self.weights.any(0)):
            difference = (places[:, None] - self.places[None]) / self.lengthscales[j]
            result[:, j] = np.exp(-0.5 * np.square(difference).sum(-1)) @ self.weights[:, j]
        return result


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


def _of_other_outputs(own: np.ndarray, is_seen: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    Predict the effects of places where no entry tells them, by ridge regression on their effects on the other outputs,
    with standard deviations (`S x P` each).

    :param own: The effects of places (`S x P`).
    :param is_seen: True where entries tell the effect (`S x P`).
    :param spread: The standard deviation of the effects among places (`P`).
    """
    known = np.where(is_seen, own, 0.0)
    values, deviations = known.copy(), np.where(is_seen, 0.0, spread)
    for j in range(own.shape[1]):
        seen, others = is_seen[:, j], np.delete(np.arange(own.shape[1]), j)
        told = ~seen & is_seen[:, others].any(1)
        usable = seen & is_seen[:, others].any(1)
        if not told.any() or usable.sum() < FEWEST_FOR_OTHERS:
            continue
        ridge = BayesianRidge().fit(known[usable][:, others], known[usable, j])
        values[told, j], deviations[told, j] = ridge.predict(known[told][:, others], return_std=True)
    return values, deviations


def _smooth_part(places: np.ndarray, means: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Fit a smooth function of the place: its values (`S`), its lengthscales (`d`), and the deviation from it."""
    scale, width = means.std(), np.maximum(places.std(0), 1e-12)
    weights, lengthscales = np.zeros_like(means), width
    if scale == 0 or len(places) < FEWEST_FOR_SMOOTH:
        return weights, lengthscales, float(scale)
    chosen = np.random.default_rng(seed).permutation(len(places))[:MOST_PLACES]
    smooth = RBF(np.ones(places.shape[1]), length_scale_bounds=(SHORTEST_LENGTHSCALE, 1e3))
    kernel = ConstantKernel(1.0) * smooth + WhiteKernel(0.1, noise_level_bounds=(1e-4, 1e1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of lengthscales at their bounds
        gp = GaussianProcessRegressor(kernel, random_state=seed).fit(places[chosen] / width, means[chosen] / scale)
    fitted = gp.kernel_
    weights[chosen] = scale * fitted.k1.k1.constant_value * gp.alpha_
    return weights, width * fitted.k1.k2.length_scale, float(scale * np.sqrt(fitted.k2.noise_level))
