"""
A generated table of weather with holes, filled by the `sgpvae` command: scores, a report and a map of what was filled.

    python examples/weather_table.py --output demo
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib
import pandas as pd
import torch
from matplotlib.figure import Figure

from gpytorch_sgpvae.datasets import WeatherTable, weather_table
from gpytorch_sgpvae.plotting import plot_map

COLUMNS = ["--inputs", "lat,lon,elev,day", "--outputs", "temperature,wind,lightning,fog", "--task", "week"]


def main() -> None:
    arguments, fit_options = parse_arguments()
    folder = Path(arguments.output)
    table, model, filled, report, picture = (
        folder / name for name in ("weather.csv", "model", "filled.csv", "report.html", "map.png")
    )
    folder.mkdir(parents=True, exist_ok=True)
    weather = weather_table(arguments.stations, arguments.weeks, arguments.missing, arguments.seed)
    weather.table.to_csv(table, index=False)
    holes = weather.table.isna().to_numpy().sum()
    print(f"{table}: {len(weather.table)} rows, {holes} holes.")

    sgpvae("fit", table, *COLUMNS, "--output", model, "--seed", arguments.seed, *fit_options)
    sgpvae("impute", model, table, "--output", filled)
    sgpvae("score", model, table)
    sgpvae("report", model, table, "--output", report)

    draw(weather, pd.read_csv(filled)).savefig(picture, dpi=120)
    print(f"The filled table is {filled}, a map of it {picture}. Open {report} in a browser.")


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Any other options go to `sgpvae fit`.",
    )
    parser.add_argument("--output", default="demo", help="folder of all files (default: %(default)s)")
    parser.add_argument("--stations", type=int, default=40, help="number of stations (default: %(default)s)")
    parser.add_argument("--weeks", type=int, default=20, help="number of weeks, the tasks (default: %(default)s)")
    parser.add_argument("--missing", type=float, default=0.3, help="fraction that is gone (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the table and of the training (default: %(default)s)")
    return parser.parse_known_args()


def sgpvae(*arguments: object) -> None:
    """Show the command, and run it."""
    words = ["sgpvae", *map(str, arguments)]
    print(f"\n$ {shlex.join(words)}", flush=True)
    # that of this Python, whatever the shell would find
    subprocess.run([Path(sys.executable).with_name("sgpvae"), *words[1:]], check=True)


def draw(weather: WeatherTable, filled: pd.DataFrame) -> Figure:
    """Temperatures of the day with most holes: what there was, what was filled in, and the truth."""
    holes = weather.table["temperature"].isna().groupby([weather.table["week"], weather.table["day"]]).sum()
    week, day = holes.idxmax()
    chosen = (weather.table["week"] == week) & (weather.table["day"] == day)
    places = torch.tensor(weather.table.loc[chosen, ["lon", "lat"]].to_numpy())
    truth = weather.truth.loc[chosen, "temperature"]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for panel, (title, frame) in zip(
        figure.subplots(1, 3),
        {"with holes": weather.table, "filled": filled, "the truth": weather.truth}.items(),
        strict=True,
    ):
        values = torch.tensor(frame.loc[chosen, "temperature"].to_numpy())
        plot_map(places, values, "temperature (°C)", panel, vmin=truth.min(), vmax=truth.max())
        panel.set(title=title, xlabel="longitude", ylabel="latitude", aspect="auto")
    figure.suptitle(f"Week {week}, day {day}")
    return figure


if __name__ == "__main__":
    matplotlib.use("Agg")
    main()
