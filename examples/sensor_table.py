"""
A generated table of hourly sensors with outages, filled by the `sgpvae` command: scores beside interpolation and
boosted trees, a report, and a picture of the longest outages.

    python examples/sensor_table.py --output demo
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure

from gpytorch_sgpvae.datasets import sensor_table
from gpytorch_sgpvae.datasets.sensor_table import OUTPUTS
from gpytorch_sgpvae.table.baselines import fill_by_interpolation
from gpytorch_sgpvae.table.boosting import fill_by_boosting

COLUMNS = ["--inputs", "time", "--outputs", ",".join(OUTPUTS)]
OURS = "sgpvae"
RIVALS: dict[str, Callable[..., pd.DataFrame]] = {
    "interpolation": fill_by_interpolation,
    "boosted trees": fill_by_boosting,
}
# How many outputs with a long outage the picture shows, and how many hours before and after it.
NUM_PANELS, HOURS_AROUND = 3, 72


def main() -> None:
    arguments, fit_options = parse_arguments()
    folder = Path(arguments.output)
    table, model, filled, report, picture = (
        folder / name for name in ("sensors.csv", "model", "filled.csv", "report.html", "outages.png")
    )
    folder.mkdir(parents=True, exist_ok=True)
    sensors = sensor_table(arguments.days, arguments.missing, arguments.seed)
    sensors.table.to_csv(table, index=False)
    holes = sensors.table.isna().to_numpy().sum()
    print(f"{table}: {len(sensors.table)} hours of {len(OUTPUTS)} sensors, {holes} holes.")

    sgpvae("fit", table, *COLUMNS, "--output", model, "--seed", arguments.seed, *fit_options)
    sgpvae("impute", model, table, "--output", filled)
    sgpvae("report", model, table, "--output", report)

    ours = pd.read_csv(filled, parse_dates=["time"])
    errors, coverage = compare(sensors.table, sensors.truth, ours)
    print("\nWhat `sgpvae fit` said of itself came from a few runs of known entries that it hid. Here are all holes,")
    print("as the generator knows what was there. RMSE in standard deviations:\n")
    print(errors.to_string(float_format="{:.3f}".format))
    print(f"\n{100 * coverage:.1f} % of the true values are inside their 95 % intervals.")
    draw(sensors.table, sensors.truth, ours).savefig(picture, dpi=120)
    print(f"The filled table is {filled}, a picture of it {picture}. Open {report} in a browser.")


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Any other options go to `sgpvae fit`.",
    )
    parser.add_argument("--output", default="demo", help="folder of all files (default: %(default)s)")
    parser.add_argument("--days", type=int, default=90, help="number of days (default: %(default)s)")
    parser.add_argument("--missing", type=float, default=0.25, help="fraction that is gone (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the table and of the training (default: %(default)s)"
    )
    return parser.parse_known_args()


def sgpvae(*arguments: object) -> None:
    """Show the command, and run it."""
    words = ["sgpvae", *map(str, arguments)]
    print(f"\n$ {shlex.join(words)}", flush=True)
    # that of this Python, whatever the shell would find
    subprocess.run([Path(sys.executable).with_name("sgpvae"), *words[1:]], check=True)


def compare(table: pd.DataFrame, truth: pd.DataFrame, ours: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """The errors of the holes for each output and way of filling, and the share of them inside our intervals."""
    holes, scale = table[OUTPUTS].isna(), truth[OUTPUTS].std()
    ways = {OURS: ours} | {name: fill(table, ["time"], OUTPUTS) for name, fill in RIVALS.items()}
    errors = pd.DataFrame(
        {
            name: (way[OUTPUTS] - truth[OUTPUTS]).where(holes).pow(2).mean().pow(0.5) / scale
            for name, way in ways.items()
        }
    )
    errors.loc["mean"] = errors.mean()
    lower, upper = (ours[[f"{name}_{end}" for name in OUTPUTS]].to_numpy() for end in ("lower", "upper"))
    values = truth[OUTPUTS].to_numpy()
    return errors, float(((lower <= values) & (values <= upper))[holes.to_numpy()].mean())


def draw(table: pd.DataFrame, truth: pd.DataFrame, ours: pd.DataFrame) -> Figure:
    """The longest outages: what is known, what was filled in with its 95 % interval, and the truth."""
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    outages = sorted(((*longest_outage(table[name]), name) for name in OUTPUTS), reverse=True)[:NUM_PANELS]
    for panel, (length, start, name) in zip(figure.subplots(len(outages), 1), outages, strict=True):
        shown = slice(max(start - HOURS_AROUND, 0), start + length + HOURS_AROUND)
        time = table["time"][shown]
        panel.fill_between(
            time,
            ours[f"{name}_lower"][shown],
            ours[f"{name}_upper"][shown],
            alpha=0.3,
            color="C0",
            label="95 % interval",
        )
        panel.plot(time, ours[name].where(table[name].isna())[shown], color="C0", label="filled")
        panel.plot(time, truth[name].where(table[name].isna())[shown], "--", color="gray", label="truth")
        panel.plot(time, table[name][shown], ".", color="black", markersize=3, label="known")
        panel.set_ylabel(name)
        locator = panel.xaxis.get_major_locator()
        panel.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    figure.legend(*panel.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def longest_outage(column: pd.Series) -> tuple[int, int]:
    """How many holes in a row there are at the most, and where they start."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], column.isna().to_numpy(), [False]])))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    if not len(lengths):
        return 0, 0
    longest = int(lengths.argmax())
    return int(lengths[longest]), int(starts[longest])


if __name__ == "__main__":
    matplotlib.use("Agg")
    main()
