"""What the report says of TSI-Bench: ours, other methods on the same masks, and published figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpytorch_sgpvae.plotting import STYLES

from .runs import NAMES, Run, by_row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Outcomes = dict[Run, dict[str, Any]]
OURS = "windows"


class Published(NamedTuple):
    """
    MAE and MSE in TSI-Bench's tables; the best network in the one may not be the best in the other.

    :param network: The best of 24 networks.
    :param line: Linear interpolation; None where there is no figure.
    :param prototype: An early prototype of the model here, on its own draws of the masks.
    """

    network: tuple[float, float]
    line: tuple[float | None, float | None]
    prototype: tuple[float, float] | None


PUBLISHED = {
    "ETTh1-point10": Published((0.144, 0.047), (0.197, 0.106), (0.105, 0.029)),
    "ETTh1-point50": Published((0.223, 0.107), (0.267, 0.178), (0.166, 0.071)),
    "ETTh1-point90": Published((0.507, 0.498), (0.616, None), (0.390, 0.365)),
    "ETTh1-subseq": Published((0.558, 0.731), (0.722, 1.322), (0.337, 0.293)),
    "ETTh1-block": Published((0.401, 0.340), (0.527, None), (0.355, 0.284)),
    "ItalyAir-point10": Published((0.185, 0.099), (0.135, 0.106), (0.088, 0.046)),
    "ItalyAir-point50": Published((0.279, 0.230), (0.214, 0.252), (0.134, 0.074)),
    "ItalyAir-point90": Published((0.454, 0.513), (0.481, None), (0.465, 0.483)),
    "ItalyAir-subseq": Published((0.377, 0.350), (0.329, 0.407), (0.235, 0.145)),
    "ItalyAir-block": Published((0.404, 0.391), (0.377, 0.478), (0.227, 0.150)),
    "BeijingAir-point10": Published((0.102, 0.100), (0.112, 0.114), (0.089, 0.038)),
    "BeijingAir-point50": Published((0.144, 0.187), (0.165, 0.231), None),
    "BeijingAir-point90": Published((0.258, 0.333), (0.366, None), None),
    "BeijingAir-subseq": Published((0.193, 0.262), (0.358, 0.588), None),
    "BeijingAir-block": Published((0.181, 0.226), (0.285, 0.418), None),
}
# What was to be reached: settings ahead of everything published; over the prototype's figures; coverage; minutes.
AHEAD_IN, OVER_PROTOTYPE, COVERAGE = 12, 1.05, (0.93, 0.97)
MINUTES = {"ETTh1": 2.0, "ItalyAir": 2.0, "BeijingAir": 15.0}


def tables(outcomes: Outcomes) -> str:
    """A table of each error with a row for each setting, one of what else is said, and what was reached."""
    rows = by_row(outcomes)
    models = [model for model in NAMES if any(row.model == model for row in rows)]
    settings = [setting for setting in PUBLISHED if any(row.variant == setting for row in rows)]
    parts = []
    for i, column in enumerate(("mae", "mse")):
        header = [column.upper(), *(NAMES[model] for model in models), "best published network", "line, published"]
        lines = [
            [
                _label(setting),
                *_with_the_least_bold([_scores(rows, model, setting, column) for model in models]),
                f"{PUBLISHED[setting].network[i]:.3f}",
                _number(PUBLISHED[setting].line[i]),
            ]
            for setting in settings
        ]
        parts.append(_markdown([header, *lines]))
    parts += [_markdown(_details(rows, models, settings)), "\n".join(f"- {line}" for line in verdicts(outcomes))]
    return "\n\n".join(parts)


def verdicts(outcomes: Outcomes) -> list[str]:
    """What was to be reached, and whether it was, computed from the outcomes."""
    rows = by_row(outcomes)
    ours = {row.variant: results for row, results in rows.items() if row.model == OURS}
    if not ours:
        return []
    errors = {setting: tuple(_mean(results, column) for column in ("mae", "mse")) for setting, results in ours.items()}
    ahead = [
        setting
        for setting, found in errors.items()
        if all(
            error < min(number for number in (network, line) if number is not None)
            for error, network, line in zip(found, *PUBLISHED[setting][:2], strict=True)
        )
        and all(
            error < _mean(rows[row], column)
            for error, column in zip(found, ("mae", "mse"), strict=True)
            for row in rows
            if row.model == "interpolation" and row.variant == setting
        )
    ]
    behind = [setting for setting in errors if setting not in ahead]
    lines = [
        f"MAE and MSE below every published network and below linear interpolation, as published and as run here, in "
        f"{len(ahead)} of {len(errors)} settings ({_verdict(len(ahead) >= AHEAD_IN)}: {AHEAD_IN} of {len(PUBLISHED)} "
        f"were to be)" + (f"; not in {', '.join(map(_label, behind))}" if behind else "")
    ]
    ratios = {
        setting: max(error / of_it for error, of_it in zip(found, PUBLISHED[setting].prototype or (), strict=False))
        for setting, found in errors.items()
        if PUBLISHED[setting].prototype
    }
    worse = [f"{_label(setting)} ({ratio:.2f})" for setting, ratio in ratios.items() if ratio > OVER_PROTOTYPE]
    lines.append(
        f"within 5 % of an early prototype, or better, in {len(ratios) - len(worse)} of {len(ratios)} settings"
        + (f"; not in {', '.join(worse)}: **short**" if worse else ": reached")
    )
    covered = {setting: _mean(results, "coverage") for setting, results in ours.items()}
    outside = [
        f"{_label(setting)} ({share:.3f})"
        for setting, share in covered.items()
        if not COVERAGE[0] <= share <= COVERAGE[1]
    ]
    lines.append(
        f"coverage of the 95 % intervals from {COVERAGE[0]} to {COVERAGE[1]} in {len(covered) - len(outside)} of "
        f"{len(covered)} settings" + (f"; not in {', '.join(outside)}: **short**" if outside else ": reached")
    )
    for name, minutes in MINUTES.items():
        times = [
            result["scores"]["processor_seconds"] / 60
            for setting, results in ours.items()
            if setting.startswith(f"{name}-")
            for result in results
        ]
        if times:
            lines.append(
                f"{name}: at most {max(times):.1f} minutes of one core a run, {minutes:g} were allowed: "
                f"{_verdict(max(times) <= minutes)}"
            )
    return lines


def draw(outcomes: Outcomes) -> Figure:
    """MAE by setting, a panel for each data set: ours, other methods on the same masks, and the best published."""
    import matplotlib.pyplot as plt

    rows = by_row(outcomes)
    found = {row.variant.partition("-")[0] for row in rows}
    names = [name for name in MINUTES if name in found]
    figure, panels = plt.subplots(1, len(names), figsize=(4 * len(names), 4.2), layout="constrained", squeeze=False)
    others = [model for model in NAMES if model != OURS and any(row.model == model for row in rows)]
    looks = dict(zip(others, zip("s^Dv<>PpX", [f"C{i}" for i in range(1, 10)], strict=True), strict=False))
    handles: dict[str, Any] = {}
    for axes, name in zip(panels[0], names, strict=True):
        settings = [setting for setting in PUBLISHED if setting.startswith(f"{name}-")]
        for model, (marker, color) in looks.items():
            points = _points(rows, model, settings)
            marks = axes.plot(*points, linestyle="", marker=marker, color=color)
            handles[NAMES[model]] = marks[0]
        published = [PUBLISHED[setting].network[0] for setting in settings]
        handles["best of 24 networks, published"] = axes.plot(
            range(len(settings)), published, color="black", marker="_", markersize=18, linestyle=""
        )[0]
        handles[NAMES[OURS]] = axes.plot(
            *_points(rows, OURS, settings), color=STYLES[0]["color"], marker="o", markersize=9, linestyle=""
        )[0]
        axes.set_xticks(range(len(settings)), [_holes(setting) for setting in settings], rotation=30)
        axes.set(title=name, ylim=(0, None))
        axes.grid(axis="y", alpha=0.3)
    panels[0][0].set_ylabel("MAE, standardized")
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return figure


def time_table(outcomes: Outcomes) -> str:
    """Errors and seconds by the number of rounds over the training windows."""
    rows = by_row(outcomes)
    header = ["", "epochs", "seconds", "MAE", "MSE"]
    lines = [
        [NAMES[row.model], row.variant, *(f"{_mean(results, 'processor_seconds'):.1f}",), *_errors(results)]
        for row, results in sorted(
            rows.items(), key=lambda item: (list(NAMES).index(item[0].model), int(item[0].variant))
        )
    ]
    return _markdown([header, *lines])


def draw_time(outcomes: Outcomes) -> Figure:
    """MAE against seconds of one core, a line for each method."""
    import matplotlib.pyplot as plt

    rows = by_row(outcomes)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for style, model in zip(STYLES, [name for name in NAMES if any(row.model == name for row in rows)], strict=False):
        points = sorted(
            (_mean(results, "processor_seconds"), _mean(results, "mae"))
            for row, results in rows.items()
            if row.model == model
        )
        axes.plot(*zip(*points, strict=True), color=style["color"], marker=style["marker"], label=NAMES[model])
    axes.axhline(PUBLISHED["ETTh1-point50"].network[0], color="black", linestyle=":", label="best of 24, published")
    axes.set(xscale="log", xlabel="seconds of training on one core", ylabel="MAE of the test windows")
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


def _details(rows: dict[Run, list[dict[str, Any]]], models: Sequence[str], settings: Sequence[str]) -> list[list[str]]:
    lines = [["", "", "runs", "CRPS", "coverage", "before the factor", "seconds", "parameters"]]
    for setting in settings:
        for model in models:
            results = rows.get(Run("tsibench", model, variant=setting))
            if results:
                numbers = [_mean(results, column) for column in ("crps", "coverage", "coverage_before")]
                seconds, parameters = (_mean(results, column) for column in ("processor_seconds", "parameters"))
                lines.append(
                    [
                        _label(setting),
                        NAMES[model],
                        str(len(results)),
                        *map(_number, numbers),
                        f"{seconds:.0f}",
                        f"{parameters:,.0f}" if parameters else "",
                    ]
                )
    return lines


def _points(rows: dict[Run, Any], model: str, settings: Sequence[str]) -> tuple[list[int], list[float]]:
    found = {
        i: _mean(rows[row], "mae")
        for i, setting in enumerate(settings)
        for row in rows
        if row.model == model and row.variant == setting
    }
    return list(found), list(found.values())


def _scores(rows: dict[Run, Any], model: str, setting: str, column: str) -> list[float]:
    results = rows.get(Run("tsibench", model, variant=setting), [])
    return [result["scores"][column] for result in results]


def _with_the_least_bold(scores: Sequence[list[float]]) -> list[str]:
    means = [statistics.fmean(values) if values else float("inf") for values in scores]
    cells = []
    for values, mean in zip(scores, means, strict=True):
        cell = f"{mean:.3f}" if values else ""
        cell += f" ({statistics.stdev(values):.3f})" if len(values) > 1 else ""
        cells.append(f"**{cell}**" if values and mean == min(means) else cell)
    return cells


def _mean(results: Sequence[dict[str, Any]], column: str) -> float:
    """The mean over runs, NaN where they have no such score."""
    return statistics.fmean(result["scores"].get(column, float("nan")) for result in results)


def _errors(results: Sequence[dict[str, Any]]) -> list[str]:
    return [f"{_mean(results, column):.4f}" for column in ("mae", "mse")]


def _number(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.3f}"


def _label(setting: str) -> str:
    return f"{setting.partition('-')[0]}, {_holes(setting)}"


def _holes(setting: str) -> str:
    holes = setting.partition("-")[2]
    return (
        f"{holes.removeprefix('point')} %"
        if holes.startswith("point")
        else {"subseq": "runs", "block": "blocks"}[holes]
    )


def _verdict(reached: bool) -> str:
    return "reached" if reached else "**short**"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    header, *rest = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rest])
