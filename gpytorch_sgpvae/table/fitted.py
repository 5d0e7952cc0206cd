"""The result of fitting a table: all that is needed to predict its entries, and to be saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..context import Context
from ..likelihoods import Prediction
from ..models import AmortizedModel
from ..utils.seeds import derive_seed, seeded
from .blocks import ROWS_AT_A_TIME, Block, Question, blocks_in_space, blocks_in_time, ends_of_gaps, side_by_side
from .calibration import Calibration, gaussian_variance, noise_variance
from .form import TableForm
from .model import lengthscales_of
from .plan import Plan, number_places
from .reading import TableReader, TaskTable
from .trend import Trend

# Components of a predicted mixture, where outputs are not all Gaussian.
NUM_COMPONENTS = 32


@dataclass(frozen=True)
class Evidence:
    """
    The log evidence of windows of a table, in nats for each known entry.

    :param mean: The mean over windows.
    :param deviation: The standard deviation over windows.
    """

    mean: float
    deviation: float


@dataclass(frozen=True)
class FittedTable:
    """
    A model of a table, with the way from the table's columns to its numbers and back.

    :param form: The form in which tables come.
    :param reader: The reader, with what it learnt of the columns.
    :param plan: The shape of the model.
    :param trend: The part that is taken off the targets first: constants of places, and cycles.
    :param model: The model of the rest.
    :param calibration: The widths that intervals must have.
    :param history: The scores of held-out entries in the course of training.
    :param comparison: The errors of the final predictions of them, beside simpler ways.
    :param evidence: The model's evidence on the table that it was fitted to.
    """

    form: TableForm
    reader: TableReader
    plan: Plan
    trend: Trend
    model: AmortizedModel
    calibration: Calibration
    history: pd.DataFrame
    comparison: pd.DataFrame
    evidence: Evidence | None = None

    def with_(self, **changes: Any) -> FittedTable:
        """The same with other parts."""
        return replace(self, **changes)

    def predictions(
        self, context: TaskTable, places: TaskTable, rows: np.ndarray, seed: int
    ) -> Iterator[tuple[np.ndarray, Prediction]]:
        """
        Yield some rows at a time with their prediction, in the columns' units (`n x P`). Until the last one has been
        taken, all that the caller draws at random comes from the seed too.

        :param context: The known entries.
        :param places: The rows to predict: the context itself, or other inputs of its tasks.
        :param rows: The numbers of the rows wanted among these.
        :param seed: The seed of all random numbers.
        """
        with torch.no_grad(), gpytorch.settings.debug(False), seeded(derive_seed("predict", seed)):
            for asked, mean, variance in self.value_moments(context, places, rows):
                yield asked, self.prediction_of(places, asked, mean, variance)

    def value_moments(
        self, context: TaskTable, places: TaskTable, rows: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
        """
        Yield some rows at a time with mean and variance of the decoder's values there (`n x J` each).

        :param context: The known entries.
        :param places: The rows to predict: the context itself, or other inputs of its tasks.
        :param rows: The numbers of the rows wanted among these.
        """
        for together in side_by_side(self.questions(context, places, rows), self.plan.kind):
            if len(together) == 1:
                x, y, numbers, asked = together[0]
                yield asked, *self.moments_of(x, y, numbers)
            else:
                yield np.concatenate([asked for *_, asked in together]), *self._moments_of_several(together)

    def moments_of(self, x: np.ndarray, y: np.ndarray, numbers: np.ndarray) -> tuple[Tensor, Tensor]:
        """
        Mean and variance of the decoder's values (`m x J` each).

        :param x: Inputs (`n x D`).
        :param y: Targets less their trend (`n x P`).
        :param numbers: The numbers of the rows that are asked for (`m`).
        """
        likelihood = self.model.likelihood
        if self.plan.kind == "sparse":
            known = ~np.isnan(y).all(1)
            posterior = self.model.condition(self.as_context(x[known], y[known]), ROWS_AT_A_TIME)
            parts = [
                likelihood.value_marginals(posterior(self.as_tensor(x[part])))
                for part in np.array_split(numbers, -(-len(numbers) // ROWS_AT_A_TIME))
            ]
            mean, variance = (torch.cat(part) for part in zip(*parts, strict=True))
            return mean, variance
        # rows without anything known are asked like those of the context: the outputs there need no latent functions
        return self._moments_at_rows(self.as_context(x, y), (torch.as_tensor(numbers),))

    def _moments_of_several(self, questions: Sequence[Question]) -> tuple[Tensor, Tensor]:
        """The same of several sets of rows, one after the other, from one call of the model."""
        seen = Context.pad([(self.as_tensor(x), self.as_tensor(y)) for x, y, _, _ in questions])
        counts = [len(numbers) for _, _, numbers, _ in questions]
        tasks = torch.as_tensor(np.repeat(np.arange(len(counts)), counts))
        rows = torch.as_tensor(np.concatenate([numbers for _, _, numbers, _ in questions]))
        return self._moments_at_rows(seen, (tasks, rows))

    def _moments_at_rows(self, seen: Context, at: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """
        Return the moments at some rows of a context, by their tasks and numbers; what only other rows need is not
        computed.
        """
        likelihood: Any = self.model.likelihood
        at = tuple(part.to(seen.x.device) for part in at)
        asked = torch.zeros(*seen.x.shape[:-1], likelihood.decoder.out_features, dtype=torch.bool, device=seen.x.device)
        asked[at] = True
        mean, variance = likelihood.value_marginals(self.model(seen.x, context=seen), asked)  # (T, N, J) each
        return mean[at], variance[at]

    def questions(self, context: TaskTable, places: TaskTable, rows: np.ndarray) -> Iterator[Question]:
        """
        Yield, for some rows at a time, inputs and targets less their trend that the model is to see together (`n x D`,
        `n x P`), which of these are the rows that were asked for, and the numbers of those.

        :param context: The known entries.
        :param places: The rows to predict: the context itself, or other inputs of its tasks.
        :param rows: The numbers of the rows wanted among these.
        """
        wanted = np.zeros(len(places.x), dtype=bool)
        wanted[rows] = True
        is_same = places is context
        targets = context.y - self.trend.at(context)[0]
        nothing = np.zeros(0, dtype=int)
        for number, task_rows in enumerate(places.rows):
            asked = task_rows[wanted[task_rows]]
            if not len(asked):
                continue
            known = context.rows[number] if number < len(context.rows) else nothing
            x, y = context.x[known], targets[known]
            is_asked = wanted[known] if is_same else np.zeros(len(known), dtype=bool)
            numbers = known
            if not is_same:
                new_targets = places.y[asked] - self.trend.at(places, asked)[0]
                x, y = np.concatenate([x, places.x[asked]]), np.concatenate([y, new_targets])
                is_asked, numbers = np.append(is_asked, np.ones(len(asked), bool)), np.append(known, asked)
            for block in self._blocks(x, y, is_asked):
                place = np.empty(len(x), dtype=int)  # of each row within the block
                place[block.seen] = np.arange(len(block.seen))
                yield x[block.seen], y[block.seen], place[block.asked], numbers[block.asked]

    def prediction_of(
        self, places: TaskTable, rows: np.ndarray, mean: Tensor, variance: Tensor, as_targets: bool = False
    ) -> Prediction:
        """
        The prediction of some rows, in the columns' units (`n x P`).

        :param places: The inputs of the rows.
        :param rows: The numbers of the rows.
        :param mean: Mean of the decoder's values (`n x J`).
        :param variance: Variance of these (`n x J`).
        :param as_targets: Whether to predict the targets less their trend instead.
        """
        outputs = self.reader.outputs
        effects, spread = (self.as_tensor(part) for part in self.trend.at(places, rows))
        stddev = variance.clamp_min(0.0).sqrt()
        total = gaussian_variance(outputs, self.model, stddev, torch.zeros_like(spread))
        ratios = self.calibration.ratios(total)  # (n, P)
        # the values of Gaussian outputs are certain, and their variance is that of the noise: no samples are needed
        of_values = torch.where(self._is_corrected, stddev * outputs.for_values(ratios), 0.0)
        # held-out entries, which ratios were learnt from, are at known places: they say nothing of the trend's spread
        added_variance = ratios.square() * total + spread.square() - noise_variance(outputs, self.model, stddev)
        components = self._components.expand(-1, *mean.shape)
        of_targets = Prediction(self.model.likelihood.observation_model, mean, of_values, base_samples=components)
        if as_targets:
            return of_targets.transform(outputs.widened, added_variance)
        return of_targets.transform(outputs.in_units, effects, added_variance)

    def draws(
        self, context: TaskTable, places: TaskTable, rows: np.ndarray, n: int, seed: int
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """
        Yield some rows at a time with n draws of the outputs there, in the columns' units (`n x m x P`), jointly over
        rows that are predicted together: a whole series over time, a block of neighboring rows otherwise.

        :param context: The known entries.
        :param places: The rows to predict: the context itself, or other inputs of its tasks.
        :param rows: The numbers of the rows wanted among these.
        :param n: The number of draws.
        :param seed: The seed of all random numbers.
        """
        outputs, likelihood = self.reader.outputs, self.model.likelihood
        with torch.no_grad(), gpytorch.settings.debug(False), seeded(derive_seed("predict", seed)):
            for x, y, numbers, asked in self.questions(context, places, rows):
                known = ~np.isnan(y).all(1)
                posterior = self.model.condition(self.as_context(x[known], y[known]))
                values = likelihood.decoder(posterior.sample(self.as_tensor(x[numbers]), n))  # (n, m, J)
                mean, variance = self.moments_of(x, y, numbers)
                effects, spread = (self.as_tensor(part) for part in self.trend.at(places, asked))
                total = gaussian_variance(outputs, self.model, variance.clamp_min(0.0).sqrt(), torch.zeros_like(spread))
                ratios = self.calibration.ratios(total)  # (m, P)
                values = mean + outputs.for_values(ratios) * (values - mean)
                noise = noise_variance(outputs, self.model, mean)
                more = ratios.square() * noise + spread.square() - noise
                yield asked, outputs.in_units(likelihood.observation_model(values), effects, more).sample()

    def as_context(self, x: np.ndarray, y: np.ndarray) -> Context:
        """Rows as the model takes them."""
        return Context(self.as_tensor(x), self.as_tensor(y))

    def as_tensor(self, values: np.ndarray) -> Tensor:
        """Numbers of the model's type, on its device."""
        parameter = next(self.model.parameters())
        return torch.as_tensor(values, dtype=parameter.dtype, device=parameter.device)

    @property
    def is_gaussian(self) -> np.ndarray:
        """True for the outputs with Gaussian targets (`P`)."""
        return np.array([column.is_gaussian for column in self.reader.outputs.columns])

    @property
    def lengthscales(self) -> np.ndarray:
        """The distance in each input over which rows are near (`D`)."""
        return lengthscales_of(self.model, self.plan)

    @cached_property
    def _is_corrected(self) -> Tensor:
        """True for the decoder's values that belong to outputs that are not Gaussian (`J`)."""
        return torch.tensor(self.reader.outputs.are_corrected, device=next(self.model.parameters()).device)

    @cached_property
    def _components(self) -> Tensor:
        """
        Standard normal numbers, as many as a mixture has components, for each of the decoder's values: the same evenly
        spread ones, in orders of their own (`S x 1 x J`).
        """
        outputs = self.reader.outputs
        num_values = sum(outputs.num_values)
        number = NUM_COMPONENTS if any(outputs.are_corrected) else 1
        levels = (torch.arange(number, dtype=torch.float64) + 0.5) / number
        nodes = torch.special.ndtri(levels)
        nodes = nodes / nodes.std(correction=0) if number > 1 else nodes
        random = np.random.default_rng(0)
        orders = np.stack([random.permutation(number) for _ in range(num_values)], 1)  # (S, J)
        return self.as_tensor(nodes.numpy()[orders]).unsqueeze(1)

    def _blocks(self, x: np.ndarray, y: np.ndarray, is_asked: np.ndarray) -> Iterator[Block]:
        if self.plan.kind == "markov":
            assert self.plan.time is not None
            return blocks_in_time(x[:, self.plan.time], is_asked)
        if self.plan.kind == "sparse":
            return iter([Block(np.arange(len(x)), np.flatnonzero(is_asked))])
        known = ~np.isnan(y)
        ends = None
        if self.plan.has_places:
            ends = ends_of_gaps(number_places(x[:, list(self.plan.place)]), x[:, self.plan.time], known)
        return blocks_in_space(x, known.sum(1), y.shape[1], is_asked, self.lengthscales, ends)


def in_order(parts: Sequence[tuple[np.ndarray, Prediction]], rows: np.ndarray | None = None) -> Prediction:
    """
    The predictions of some rows at a time as one.

    :param parts: Numbers of rows, and their prediction.
    :param rows: The numbers of the rows, in the order of the result; by default all of them, in their own order.
    """
    numbers = np.concatenate([part for part, _ in parts])
    order = np.argsort(numbers)
    if rows is not None:
        order = order[np.searchsorted(numbers, rows, sorter=order)]
    return Prediction.concatenate([prediction for _, prediction in parts], torch.tensor(order))
