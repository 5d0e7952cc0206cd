"""The section of a report that tells what the model has learnt."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from . import learnt, words
from .fitted import FittedTable
from .page import PAGE, Grid, Picture, Section

# Outputs and labels of a heat map with names, and with numbers.
MOST_NAMED, MOST_NUMBERED = 40, 14


def learnt_section(fitted: FittedTable) -> Section:
    """
    Lengthscales, shares of variance, cycles and correlations of the outputs.

    :param fitted: The result of fitting a table.
    """
    scales, variances, cycles = learnt.lengthscales(fitted), learnt.variances(fitted), learnt.cycles(fitted)
    tables = []
    are_dates = {column.name: column.is_date for column in fitted.reader.inputs}
    if len(scales.columns):
        tables.append(
            Grid(
                "Lengthscales, within which values are alike",
                ["latent functions", *map(str, scales)],
                words.cells_of(_lengthscale_rows(scales, are_dates)),
            )
        )
    shares = ["shared", "own", "noise", "trend"]
    tables.append(
        Grid(
            "What outputs are made of",
            ["output", "shared functions", "its own", "noise", "noise, std", "trend, of all"],
            words.cells_of(
                [
                    [
                        str(name),
                        *(words.percent(row[key]) for key in shares[:3]),
                        words.number(row["noise_std"]),
                        words.percent(row["trend"]),
                    ]
                    for name, row in variances.iterrows()
                ]
            ),
        )
    )
    is_date = fitted.trend.time is not None and fitted.reader.inputs[fitted.trend.time].is_date
    as_text = words.duration if is_date else words.number
    if len(cycles):
        tables.append(
            Grid(
                "Cycles: the part of the variance that each explains",
                ["output", *(as_text(float(period)) for period in cycles.index)],
                words.cells_of([[str(name), *map(words.percent, cycles[name])] for name in cycles]),
            )
        )
    text = [f"{fitted.plan.description}."]
    for name, value in learnt.label_correlations(fitted).items():
        text.append(f"Shared functions at different labels of {name} have a correlation of {value:.2f}.")
    correlations = learnt.correlations(fitted)
    pictures = []
    if len(correlations) > 1:
        pictures.append(_heat_map(correlations))
    return Section(
        "learnt",
        "What the model learnt",
        text=text,
        tables=tables,
        pictures=pictures,
        notes=[
            "A rough function wanders like the price of a share, a smooth one bends like a road. Each output has "
            "functions of its own: the table has the shortest and the longest of their lengthscales.",
            "The trend (cycles, and constants of places) is taken off first. Shared functions, own functions and noise "
            "share the rest, as the model expects it far from all data. An output that is nearly all its own gains "
            "little from the others.",
        ],
    )


def _lengthscale_rows(scales: pd.DataFrame, are_dates: dict[str, bool]) -> list[list[str]]:
    """A row for each kind of functions; of those that outputs have for themselves, the shortest and the longest."""
    rows = []
    for functions, part in scales.groupby(level="functions", sort=False):
        row = [str(functions)]
        for name, values in part.items():
            as_text = words.duration if are_dates[str(name)] else words.number
            limits = [] if values.isna().all() else [values.min(), values.max()]
            row.append(" to ".join(dict.fromkeys(as_text(float(limit)) for limit in limits)))
        rows.append(row)
    return rows


def _heat_map(correlations: pd.DataFrame) -> Picture:
    number = len(correlations)
    side = float(np.clip(2.2 + 0.33 * number, 3.2, PAGE))
    figure = Figure(figsize=(side, 0.85 * side), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(correlations, cmap="RdBu_r", vmin=-1, vmax=1)
    if number <= MOST_NAMED:
        names = [words.short(str(name)) for name in correlations]
        axes.set_xticks(range(number), names, rotation=90, fontsize=8)
        axes.set_yticks(range(number), names, fontsize=8)
    if number <= MOST_NUMBERED:
        for i, j in np.ndindex(number, number):
            value = correlations.iloc[i, j]
            color = "white" if abs(value) > 0.6 else "black"
            axes.text(j, i, f"{value:.1f}".replace("-0.0", "0.0"), ha="center", va="center", fontsize=7, color=color)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, shrink=0.8)
    values = correlations.to_numpy(copy=True)
    np.fill_diagonal(values, 0.0)
    i, j = np.unravel_index(np.abs(values).argmax(), values.shape)
    most = f"{correlations.index[i]} and {correlations.columns[j]}, {values[i, j]:.2f}"
    return Picture.of(
        figure,
        f"Correlations of {number} outputs in the model, a square of {number} x {number} cells; strongest of {most}.",
        f"Outputs that speak to each other: their correlations in a row by shared functions. The strongest: {most}.",
    )
