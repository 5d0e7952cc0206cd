"""What a model makes of a table, as a page for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from .. import __version__, metrics, plotting
from ..plotting.missingness import MAX_LABELS
from ..utils.files import replacing
from ..utils.seeds import derive_seed, seeded
from .baselines import fill_by_interpolation, fill_by_last_value, fill_by_mean, groups_of_rows
from .case import FRACTION, SEED, Case
from .imputer import SGPVAEImputer
from .numbers import is_date, read_numbers
from .page import COLUMN, PAGE, STYLE, Cell, Grid, Picture, Section, render

GRID_POINTS = 120
MODEL = "SGP-VAE"


def write_report(
    imputer: SGPVAEImputer, frame: pd.DataFrame, path: str | Path, title: str = "A table with holes, filled"
) -> None:
    """
    Write a page about a table and what a model makes of it: one HTML file that loads nothing from elsewhere. A tenth of
    the known entries is hidden from the model and predicted, and so it is by means, linear interpolation and last
    values (see :mod:`gpytorch_sgpvae.table.baselines`).

    :param imputer: Fitted.
    :param frame: A table as the imputer was fitted to; its tasks may be others.
    :param path: Of the file, which is written whole or not at all.
    :param title: Of the page.

    Example:
        >>> import tempfile
        >>> from gpytorch_sgpvae.datasets import weather_table
        >>> from gpytorch_sgpvae.table import SGPVAEImputer
        >>> from gpytorch_sgpvae.table.report import write_report
        >>> table = weather_table(num_stations=6, num_weeks=3).table
        >>> options = {"task": "week", "max_epochs": 1, "progress": False}
        >>> imputer = SGPVAEImputer(["lat", "lon", "day"], ["temperature", "wind"], **options).fit(table)
        >>> path = Path(tempfile.mkdtemp()) / "report.html"
        >>> write_report(imputer, table, path)
        >>> path.read_text()[:15]
        '<!DOCTYPE html>'
    """
    case = Case(imputer, frame)
    # the same table makes the same page
    with matplotlib.rc_context(STYLE), seeded(derive_seed("report", imputer.seed)):
        sections = [
            _table(case),
            _missingness(case),
            _scores(case),
            *([_calibration(case)] if case.drawn else []),
            *([_examples(case)] if case.drawn and case.examples else []),
            *([_maps(case)] if case.drawn and case.coordinates else []),
            _training(case),
        ]
    lead = (
        f"{len(frame):,} rows of {_names(case.outputs)}, and what the model makes of the {case.num_holes:,} entries "
        "that are missing."
    )
    footer = f"Made by gpytorch_sgpvae {__version__}, a sparse Gaussian process variational autoencoder."
    page = render(title, lead, sections, footer)
    with replacing(Path(path)) as file:
        file.write(page.encode())


def _table(case: Case) -> Section:
    tasks = 1 if case.task is None else case.frame[case.task].nunique()
    num_entries = len(case.frame) * len(case.outputs)
    rows = []
    for p, output in enumerate(case.columns):
        column = case.frame[output.name]
        known = case.values[:, p][~case.values[:, p].isnan()]
        spread = _listed(column) if output.levels else f"{_number(float(known.min()))} to {_number(float(known.max()))}"
        mean = _number(float(known.mean())) if output.is_number else ""
        gone = int(column.isna().sum())
        rows.append([output.name, output.family, f"{gone:,}", _percent(gone / len(column)), mean, spread])
    return Section(
        "table",
        "The table",
        facts={
            "rows": f"{len(case.frame):,}",
            "tasks" if case.task is None else f"tasks ({case.task})": f"{tasks:,}",
            "outputs": f"{len(case.outputs)}",
            "missing entries": f"{case.num_holes:,}",
            "missing": _percent(case.num_holes / num_entries),
        },
        tables=[
            Grid("The outputs", ["output", "family", "missing", "of all", "mean", "values"], _cells(rows)),
        ],
        notes=[
            f"The inputs, which say where a row is, are {_names(case.inputs)}. A family is what the model takes the "
            "values for: real numbers, positive ones (log-normal), amounts (often exactly 0), counts, flags (of two "
            "values), or categories. It was guessed from the values, or given."
        ],
    )


def _missingness(case: Case) -> Section:
    order, sizes = np.arange(len(case.frame)), None
    if case.task is not None:
        codes, keys = pd.factorize(case.frame[case.task])
        order, sizes = np.argsort(codes, kind="stable"), np.bincount(codes, minlength=len(keys)).tolist()
    figure = Figure(figsize=(PAGE, 1.1 + 0.3 * min(len(case.outputs), MAX_LABELS)), layout="constrained")
    plotting.plot_missingness(case.values[order], case.outputs, sizes, figure.add_subplot())
    gone = {name: case.frame[name].isna() for name in case.outputs}
    everything = np.logical_and.reduce(list(gone.values()))
    most = max(gone, key=lambda name: gone[name].mean())
    text = f"Rows from left to right{'' if case.task is None else f', task ({case.task}) by task'}. Black is missing."
    share = _percent(gone[most].mean())
    alt = f"Stripes where entries are missing, a band for each output; most of all in {most}, {share}."
    return Section(
        "missingness",
        "What is missing",
        text=[
            f"{_percent(everything.mean())} of the rows have none of the outputs, "
            f"{_percent(1 - np.logical_or.reduce(list(gone.values())).mean())} have all of them."
        ],
        pictures=[Picture.of(figure, alt, text)],
    )


def _scores(case: Case) -> Section:
    scores = case.imputer.score(case.frame, FRACTION, SEED)
    numbers = case.numbers
    rivals = {"column mean": fill_by_mean(numbers, case.measured)}
    if case.series:
        place = (case.inputs, case.measured, case.task)
        rivals["linear interpolation"] = fill_by_interpolation(numbers, *place)
        rivals["last value"] = fill_by_last_value(numbers, *place)
    errors = {MODEL: torch.tensor(scores.loc[case.measured, "rmse"].to_numpy())} | {
        name: metrics.rmse(torch.tensor(filled[case.measured].to_numpy(float)), case.truth)
        for name, filled in rivals.items()
    }
    compared = []
    for p, name in enumerate(case.measured):
        row = torch.stack([error[p] for error in errors.values()])
        compared.append([Cell(name), *(Cell(_number(float(value)), best=bool(value == row.min())) for value in row)])
    names = [name for name in ("rmse", "mae", "nll", "crps", "coverage", "accuracy") if scores[name].notna().any()]
    of_model = [
        [
            str(output),
            f"{int(scores.at[output, 'n']):,}",
            *(_percent(row[name]) if name in ("coverage", "accuracy") else _number(row[name]) for name in names),
        ]
        for output, row in scores.iterrows()
    ]
    wins = sum(row[1].best for row in compared)
    series = _names([name for name in case.inputs if name != case.time])
    notes = [
        "RMSE and MAE: root mean squared and mean absolute error, in the units of the column (of a flag, of its "
        "probability). NLL: minus the mean log density, in nats. CRPS: the continuous ranked probability score, an "
        "absolute error for distributions. Coverage: of the 95 % interval, ideally 95 %; more for counts and flags, "
        "whose intervals end at whole numbers.",
        "Training has seen the table with these entries in it. What it keeps of them is little, a network of some "
        "thousand weights; for a judgment without it, hide entries before fitting.",
    ]
    if case.series:
        notes.append(
            f"Interpolation and last values run along {case.time}, in rows of the same task that agree in everything "
            f"else{f' ({series})' if series else ''}; where such rows have no value, the column's mean is taken."
        )
    return Section(
        "scores",
        "How well hidden entries are predicted",
        text=[
            f"{_percent(FRACTION)} of the known entries, {case.num_hidden:,}, were hidden and predicted from the rest.",
            *([f"The model has the lowest error in {wins} of {len(compared)} outputs."] if compared else []),
        ],
        tables=[
            *(
                [Grid("RMSE of hidden entries, the lowest is marked", ["output", *errors], compared)]
                if compared
                else []
            ),
            Grid(f"All scores of the {MODEL}", ["output", "hidden", *map(_label, names)], _cells(of_model)),
        ],
        notes=notes,
    )


def _calibration(case: Case) -> Section:
    continuous = {column.name for column in case.columns if column.is_continuous}
    columns = [p for p in case.drawn if case.measured[p] in continuous] or case.drawn
    names = [case.measured[p] for p in columns]
    rows = case.hidden.any(-1)
    part = case.predict(case.frame[rows.numpy()])
    figure = Figure(figsize=(COLUMN, COLUMN), layout="constrained")
    axes = plotting.plot_calibration(part, case.truth[rows], case.measured, figure.add_subplot(), columns)
    inside = float(np.asarray(axes.get_lines()[-1].get_ydata())[-1])  # of all values together
    return Section(
        "calibration",
        "Are the error bars honest?",
        text=[f"Of the hidden values of {_names(names)}, {_percent(inside)} lie in their central 95 % interval."],
        pictures=[
            Picture.of(
                figure,
                f"Share of hidden values in central intervals, over their probability; {_percent(inside)} at 95 %.",
                "On the diagonal intervals hold what they promise; below it they are too narrow, above it too wide.",
            )
        ],
    )


def _examples(case: Case) -> Section:
    pictures = []
    for number, rows in enumerate(case.examples):
        part = case.frame.iloc[rows]
        grid = _grid(case, part)
        prediction = case.predict(grid)
        at, where = case.positions(part), case.positions(grid)
        figure = Figure(figsize=(COLUMN, 0.9 + 1.35 * len(case.drawn)), layout="constrained")
        panels = figure.subplots(len(case.drawn), 1, sharex=True, squeeze=False)[:, 0]
        plotting.plot_outputs(
            where,
            prediction,
            context=(at, case.known[rows]),
            held_out=(at, case.truth[rows]),
            names=case.measured,
            outputs=case.drawn,
            axes=panels,
        )
        panels[0].get_legend().remove()
        figure.legend(**plotting.legend_entries(panels), loc="outside upper left", ncols=3)
        _label_time(case, panels[-1])
        label = _series_label(case, part)
        caption = f"{label}. Circles were hidden from the model." if number == 0 else f"{label}."
        pictures.append(Picture.of(figure, f"Predictions along {case.time} with bands, {label}.", caption))
    rows = case.examples[0]
    grid = _grid(case, case.frame.iloc[rows])
    figure = Figure(figsize=(COLUMN, 3.0), layout="constrained")
    axes = plotting.plot_latents(case.positions(grid), case.predict(grid), axes=figure.add_subplot())
    _label_time(case, axes)
    label = _series_label(case, case.frame.iloc[rows])
    latents = Picture.of(
        figure,
        f"The latent functions along {case.time}, {label}.",
        f"The latent functions behind the first of these, {label}: all outputs are made of them.",
    )
    return Section(
        "examples",
        "Some series",
        text=["The line is the mean (of a flag its probability), the band the central 95 % interval."],
        pictures=[*pictures, latents],
    )


def _maps(case: Case) -> Section:
    assert case.coordinates is not None
    together = [*([] if case.task is None else [case.task])]
    if case.time not in case.coordinates:
        together.append(case.time)
    groups = groups_of_rows(case.frame, together)
    p, name = 0, case.measured[0]
    # as many places as possible, and of these the most holes
    rows = max(groups, key=lambda rows: (len(rows), int(case.known[rows, p].isnan().sum())))
    part = case.frame.iloc[rows]
    places = torch.stack([torch.tensor(read_numbers(part[name])) for name in case.coordinates], dim=-1)
    of_rows = case.predict(part)
    known = case.known[rows, p]
    filled = torch.where(known.isnan(), of_rows.mean[:, p].to(known), known)
    limits = {"vmin": float(filled.min()), "vmax": float(filled.max())}
    what: dict[str, tuple[Tensor, dict[str, Any]]] = {
        f"{name}, known": (known, limits),
        f"{name}, filled": (filled, limits),
        f"{name}, standard deviation": (of_rows.stddev[:, p].to(known), {"cmap": "magma_r"}),
    }
    when = ", ".join(f"{column} {_text(part[column].iloc[0])}" for column in together)
    pictures = []
    for label, (values, options) in what.items():
        figure = Figure(figsize=(COLUMN, 3.4), layout="constrained")
        axes = plotting.plot_map(places, values, label, figure.add_subplot(), **options)
        axes.set(xlabel=case.coordinates[0], ylabel=case.coordinates[1], aspect="auto")
        pictures.append(
            Picture.of(figure, f"Map of {len(rows)} places: {label}{f', {when}' if when else ''}.", f"{label}.")
        )
    return Section(
        "map",
        "On the map",
        text=[
            f"{name}{f' at {when}' if when else ''}: what the model was shown, what it makes of it, and how sure it is."
        ],
        pictures=pictures,
        notes=["Small circles are places without a value. The standard deviation is that of a new measurement there."],
    )


def _training(case: Case) -> Section:
    scores = case.imputer.history_
    history = {str(name): (scores["epoch"].tolist(), scores[name].tolist()) for name in scores if name != "epoch"}
    pictures = []
    for title, names in plotting.training_panels(history).items():
        figure = Figure(figsize=(COLUMN, 2.8), layout="constrained")
        (axes,) = plotting.plot_training_curves({name: history[name] for name in names}, figure.add_subplot())
        axes.set(xlabel="epoch", title="")
        pictures.append(Picture.of(figure, f"{title} over the epochs of training.", f"{title}."))
    return Section(
        "training",
        "Training",
        text=[
            "Scores of entries that were kept from training, in units of normalized outputs. It keeps the best model."
        ],
        pictures=pictures,
    )


def _grid(case: Case, part: pd.DataFrame) -> pd.DataFrame:
    """Rows that go evenly through the time of a series."""
    rows = pd.concat([part.iloc[[0]]] * GRID_POINTS, ignore_index=True)
    column = part[case.time]
    if is_date(case.frame[case.time]):
        dates = pd.to_datetime(column)
        rows[case.time] = pd.date_range(dates.min(), dates.max(), periods=GRID_POINTS)
    else:
        rows[case.time] = np.linspace(read_numbers(column).min(), read_numbers(column).max(), GRID_POINTS)
    return rows


def _label_time(case: Case, axes: Axes) -> None:
    axes.set_xlabel(case.time)
    if is_date(case.frame[case.time]):
        axes.xaxis_date()
        axes.tick_params(axis="x", rotation=30)


def _series_label(case: Case, part: pd.DataFrame) -> str:
    """The task of a series, and whatever else its rows agree in that is no output."""
    named = [name for name in part if name not in case.outputs and name != case.time and part[name].nunique() == 1]
    named.sort(key=lambda name: (name != case.task, name in case.inputs))
    return ", ".join(f"{name} {_text(part[name].iloc[0])}" for name in named) or "the table"


def _cells(rows: Sequence[Sequence[str]]) -> list[list[Cell]]:
    return [[Cell(text) for text in row] for row in rows]


def _names(names: Sequence[str]) -> str:
    shown = [*names] if len(names) <= 8 else [*names[:3], "...", names[-1]]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""


def _label(name: str) -> str:
    return name.upper() if name in ("rmse", "mae", "nll", "crps") else name


def _listed(column: pd.Series) -> str:
    counts = column.value_counts()
    shown = [f"{_text(label)} ({_percent(count / counts.sum())})" for label, count in counts.iloc[:4].items()]
    return ", ".join([*shown, *(["..."] if len(counts) > 4 else [])])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _percent(fraction: float) -> str:
    return "" if np.isnan(fraction) else f"{100 * fraction:.3g} %"
