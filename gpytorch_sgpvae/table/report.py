"""The report of a model on a table, as a page for people."""

from __future__ import annotations

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
from . import words
from .case import FRACTION, Case
from .comparison import MODEL, mark_best
from .imputer import SGPVAEImputer
from .learnt_section import learnt_section
from .numbers import is_date, read_numbers
from .page import COLUMN, PAGE, STYLE, Cell, Grid, Picture, Section, render

# Probabilities of intervals: of which the shares are drawn, and of which they are told.
LEVELS = [level / 20 for level in range(1, 20)]
TOLD = (0.5, 0.8, 0.95)
# Panels side by side, and at most in all.
PANELS_IN_ROW, MOST_PANELS = 6, 60


def write_report(
    imputer: SGPVAEImputer, frame: pd.DataFrame, path: str | Path, title: str = "A table with holes, filled"
) -> None:
    """
    Write a page about a table and what a model makes of it: one HTML file that loads nothing from elsewhere. A tenth of
    the known entries is hidden from the model and predicted, and so it is by means, linear interpolation and boosted
    trees (see :mod:`gpytorch_sgpvae.table.baselines`).

    :param imputer: Fitted.
    :param frame: A table as the imputer was fitted to; its tasks may be others.
    :param path: Path of the file, which is written whole or not at all.
    :param title: Title of the page.

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
    with matplotlib.rc_context(STYLE), seeded(derive_seed("report", imputer.seed)), torch.no_grad():
        sections = [
            _table(case),
            _missingness(case),
            _scores(case),
            *([_calibration(case)] if case.drawn else []),
            *([_examples(case)] if case.examples else []),
            *([_maps(case)] if case.moments else []),
            learnt_section(case.fitted),
            _training(case),
        ]
    lead = (
        f"{len(frame):,} rows of {words.names(case.outputs)}, and what the model makes of the {case.num_holes:,} "
        "entries that are missing."
    )
    footer = f"Made by gpytorch_sgpvae {__version__}: Gaussian processes that all columns share."
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
        spread = "" if not len(known) else f"{words.number(float(known.min()))} to {words.number(float(known.max()))}"
        spread = words.listed_values(column) if output.levels else spread
        mean = words.number(float(known.mean())) if output.is_number and len(known) else ""
        gone = int(column.isna().sum())
        rows.append([output.name, output.family, f"{gone:,}", words.percent(gone / len(column)), mean, spread])
    return Section(
        "table",
        "The table",
        facts={
            "rows": f"{len(case.frame):,}",
            "tasks" if case.task is None else f"tasks ({case.task})": f"{tasks:,}",
            "outputs": f"{len(case.outputs)}",
            "missing entries": f"{case.num_holes:,}",
            "missing": words.percent(case.num_holes / num_entries),
        },
        tables=[
            Grid("The outputs", ["output", "family", "missing", "of all", "mean", "values"], words.cells_of(rows)),
        ],
        notes=[
            f"Rows are told apart by the input{'s' * (len(case.inputs) > 1)} {words.names(case.inputs)}. "
            "A family is what the model takes the values for: real numbers, positive ones (log-normal), amounts (often "
            "exactly 0), counts, flags (of two values), or categories. It was guessed from the values, or given."
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
    share = words.percent(gone[most].mean())
    alt = f"Stripes where entries are missing, a band for each output; most of all in {most}, {share}."
    return Section(
        "missingness",
        "What is missing",
        text=[
            f"{words.percent(everything.mean())} of the rows have none of the outputs, "
            f"{words.percent(1 - np.logical_or.reduce(list(gone.values())).mean())} have all of them."
        ],
        pictures=[Picture.of(figure, alt, text)],
    )


def _scores(case: Case) -> Section:
    scores = case.scores
    names = [name for name in ("rmse", "mae", "nll", "crps", "coverage", "accuracy") if scores[name].notna().any()]
    of_model = [
        [
            str(output),
            f"{int(scores.at[output, 'n']):,}",
            *(
                words.percent(row[name]) if name in ("coverage", "accuracy") else words.number(row[name])
                for name in names
            ),
        ]
        for output, row in scores.iterrows()
    ]
    text = [
        f"{words.percent(FRACTION)} of the known entries, {case.num_hidden:,}, were hidden and predicted from the rest."
    ]
    if case.asked.sum() < case.num_hidden:
        text.append(f"{int(case.asked.sum()):,} of them, in rows that were chosen at random, are judged here.")
    tables = []
    if not case.comparison.empty:
        best = mark_best(case.comparison)["rmse"]
        text.append(f"The model has the lowest RMSE in {int(best[MODEL].sum())} of {len(best)} outputs.")
        tables += _comparison(case.comparison, "of entries hidden now")
    tables.append(
        Grid("All scores of the model", ["output", "hidden", *map(words.label, names)], words.cells_of(of_model))
    )
    fitted = case.imputer.comparison_
    if not fitted.empty:
        tables += _comparison(fitted, "of entries held out in the fit, single ones and runs, which it never saw")
    return Section(
        "scores",
        "How well hidden entries are predicted",
        text=text,
        tables=tables,
        notes=[
            "In comparisons, errors are divided by the standard deviation of the output's values: 1 is no better than "
            "a guess of the mean. The lowest are marked. Interpolation runs along the time, in rows that agree in "
            "everything else. Boosting stands for gradient-boosted trees, which see what surrounds an entry. The CRPS "
            "of a method without error bars is its mean absolute error.",
            "RMSE and MAE are the root mean squared and the mean absolute error, in the units of the column; a flag's "
            "are those of its probability. NLL is minus the mean log density, in nats. CRPS, the continuous ranked "
            "probability score, is an absolute error for distributions. Coverage is the share of values inside the "
            "95 % interval: ideally 95 %, and more for counts and flags, whose intervals end at whole numbers.",
            "If this is the table that was fitted, training has seen the entries that are hidden now, though it keeps "
            "little of them. It never saw those held out in the fit; some of these are long runs, with larger errors.",
        ],
    )


def _comparison(comparison: pd.DataFrame, of_what: str) -> list[Grid]:
    """The errors of all methods, the lowest of each row marked."""
    best = mark_best(comparison)
    grids = []
    for score in ("rmse", "crps"):
        rows = [
            [
                Cell(str(output)),
                Cell(f"{int(comparison.at[output, ('n', '')]):,}"),
                *(
                    Cell(words.number(value), bool(best.at[output, (score, name)]))
                    for name, value in row[score].items()
                ),
            ]
            for output, row in comparison.iterrows()
        ]
        header = ["output", "entries", *comparison[score].columns]
        grids.append(Grid(f"{words.label(score)} / standard deviation {of_what}", header, rows))
    return grids


def _calibration(case: Case) -> Section:
    rows = case.hidden_rows
    part = case.at_rows(rows).transform(case.imputer.outputs_.numbers_of)
    truth = case.truth[rows]
    shares = {level: metrics.coverage(part, truth, level).cpu() for level in sorted({*LEVELS, *TOLD})}  # (Q,) each
    counts = (~truth.isnan()).sum(0)
    judged = [q for q in range(len(case.measured)) if counts[q] > 0]
    inside = float((shares[0.95] * counts)[judged].sum() / counts.sum())
    drawn = judged[:MOST_PANELS]
    num_rows, num_columns = -(-len(drawn) // PANELS_IN_ROW), min(len(drawn), PANELS_IN_ROW)
    figure = Figure(figsize=(max(1.25 * num_columns + 0.5, 2.5), 1.5 * num_rows + 0.4), layout="constrained")
    panels = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, q in zip(panels, drawn, strict=False):
        panel.plot([0, 1], [0, 1], color="gray", linewidth=1, linestyle="--")
        panel.plot(LEVELS, [float(shares[level][q]) for level in LEVELS], color=plotting.STYLES[0]["color"])
        panel.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        panel.set_title(words.short(case.measured[q]), fontsize=9)
        panel.tick_params(labelsize=8)
    for panel in panels[: len(drawn)][-num_columns:]:  # also above empty ones
        panel.tick_params(labelbottom=True)
    for panel in panels[len(drawn) :]:
        panel.set_axis_off()
    figure.supxlabel("probability of the interval", fontsize=9)
    figure.supylabel("values inside it", fontsize=9)
    told = [
        [case.measured[q], f"{int(counts[q]):,}", *(words.percent(float(shares[level][q])) for level in TOLD)]
        for q in judged
    ]
    caption = "On the diagonal intervals hold what they promise; below it they are too narrow, above it too wide."
    if len(judged) > len(drawn):
        caption += f" The first {len(drawn)} outputs; the others are in the table."
    warning = case.fitted.calibration.warning
    return Section(
        "calibration",
        "Are the error bars honest?",
        text=[
            f"{words.percent(inside)} of the hidden values of {words.names([case.measured[q] for q in judged])} lie in "
            "their central 95 % interval.",
            *([warning] if warning is not None else []),
        ],
        pictures=[
            Picture.of(
                figure,
                "Share of hidden values in central intervals, over their probability, a panel for each of "
                f"{len(drawn)} outputs; {words.percent(inside)} of all values at 95 %.",
                caption,
            )
        ],
        tables=[
            Grid(
                "Share of hidden values in central intervals",
                ["output", "hidden", *map(words.percent, TOLD)],
                words.cells_of(told),
            )
        ],
        notes=["Intervals of counts, flags and zeros end at such values, and hold more than they promise."],
    )


def _examples(case: Case) -> Section:
    pictures = []
    for number, (rows, (grid, prediction)) in enumerate(zip(case.examples, case.along_series, strict=True)):
        part = case.frame.iloc[rows]
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
    others = len(case.measured) - len(case.drawn)
    return Section(
        "examples",
        "Some series",
        text=["The line is the mean, or the probability of a flag, and the band the central 95 % interval."],
        pictures=pictures,
        notes=[f"The first {len(case.drawn)} outputs with values; {others} more are not drawn."] if others else [],
    )


def _maps(case: Case) -> Section:
    assert case.coordinates is not None
    p, name = case.mapped, case.measured[case.mapped]
    pictures = []
    for rows in case.moments:
        part = case.frame.iloc[rows]
        places = torch.stack([torch.tensor(read_numbers(part[name])) for name in case.coordinates], dim=-1)
        of_rows = case.at_rows(rows).transform(case.imputer.outputs_.numbers_of)
        known = case.known[rows, p]
        filled = torch.where(known.isnan(), of_rows.mean[:, p].to(known), known)
        limits = {"vmin": float(filled.min()), "vmax": float(filled.max())}
        what: dict[str, tuple[Tensor, dict[str, Any]]] = {
            "known": (known, limits),
            "filled": (filled, limits),
            "standard deviation": (of_rows.stddev[:, p].to(known), {"cmap": "magma_r"}),
        }
        when = ", ".join(f"{column} {words.text_of(part[column].iloc[0])}" for column in case.moment_columns)
        holes = int(known.isnan().sum())
        for label, (values, options) in what.items():
            figure = Figure(figsize=(COLUMN, 3.4), layout="constrained")
            axes = plotting.plot_map(places, values, f"{name}, {label}", figure.add_subplot(), **options)
            axes.set(xlabel=case.coordinates[0], ylabel=case.coordinates[1], aspect="auto")
            caption = f"{name}, {label}{f'; {when}' if when else ''}."
            pictures.append(
                Picture.of(figure, f"Map of {len(rows)} places, {holes} without a value: {caption}", caption)
            )
    kinds = "the moment with most known places" if case.moment_columns else "all places"
    if len(case.moments) > 1:
        kinds += ", and one with many holes"
    return Section(
        "map",
        "On the map",
        text=[f"{name}, {kinds}: what the model was shown, what it makes of it, and how sure it is."],
        pictures=pictures,
        notes=["Small circles are places without a value. The standard deviation is that of a new measurement there."],
    )


def _training(case: Case) -> Section:
    scores = case.imputer.history_
    steps = scores["step"].tolist()
    drawn = [name for name in scores if name not in ("epoch", "step", "minutes")]
    history = {str(name): (steps, scores[name].tolist()) for name in drawn if scores[name].notna().any()}
    pictures = []
    for title, names in plotting.training_panels(history).items():
        figure = Figure(figsize=(COLUMN, 2.8), layout="constrained")
        (axes,) = plotting.plot_training_curves({name: history[name] for name in names}, figure.add_subplot())
        axes.set(title="")
        pictures.append(Picture.of(figure, f"{title} over the steps of training.", f"{title[0].upper()}{title[1:]}."))
    text = f"{int(steps[-1]):,} steps"
    if "val_score" in scores and scores["val_score"].notna().any():
        text += f", of which the best model, after step {int(steps[int(scores['val_score'].argmin())]):,}, was kept"
    return Section(
        "training",
        "Training",
        text=[f"{text}. Scores are of entries that were held out, in units of normalized outputs."],
        pictures=pictures,
    )


def _label_time(case: Case, axes: Axes) -> None:
    axes.set_xlabel(case.time or "")
    if is_date(case.frame[case.time]):
        axes.xaxis_date()
        axes.tick_params(axis="x", rotation=30)


def _series_label(case: Case, part: pd.DataFrame) -> str:
    """The task of a series, and whatever else its rows agree in that is no output."""
    named = [name for name in part if name not in case.outputs and name != case.time and part[name].nunique() == 1]
    named.sort(key=lambda name: (name != case.task, name in case.inputs))
    told = [f"{name} {words.text_of(part[name].iloc[0])}" for name in named]
    times = part[case.time]
    return ", ".join([*told, f"{case.time} {words.text_of(times.min())} to {words.text_of(times.max())}"])
