"""The options of the command `sgpvae`, and its help."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from .cells import USUAL_MARKS
from .text_table import SEPARATORS

Run = Callable[[argparse.Namespace], None]

EXAMPLES = {
    None: """\
sgpvae fit weather.csv --inputs lat,lon,elev,day --outputs TMAX,TMIN,PRCP --task week -o model/
sgpvae impute model/ weather.csv -o filled.csv
sgpvae score model/ weather.csv
sgpvae predict model/ sensors.csv --horizon 48 -o forecast.csv
sgpvae report model/ weather.csv -o report.html""",
    "fit": """\
sgpvae fit weather.csv --inputs lat,lon,day --outputs TMAX,PRCP --task week -o model/
sgpvae fit traffic.csv --inputs time,hour --outputs cars,wet --periodic hour=24 --family cars=count -o model/
sgpvae fit sensors.csv --inputs date --outputs CO,NOx --na=-200 --sep semicolon --decimal=, --day-first -o model/
sgpvae fit readings.csv --inputs time --long sensor,value -o model/
sgpvae fit readings/ --inputs time --outputs CO,NOx --task sensor -o model/
zcat weather.csv.gz | sgpvae fit - --inputs day --outputs TMAX -o model/ --quiet""",
    "impute": """\
sgpvae impute model/ weather.csv -o filled.csv
sgpvae impute model/ - -o - < weather.csv > filled.csv
sgpvae impute model/ readings/ -o filled/ --workers 8""",
    "predict": """\
sgpvae predict model/ weather.csv --at new_places.csv -o predicted.csv
sgpvae predict model/ sensors.csv --horizon 48 -o forecast.csv""",
    "score": """\
sgpvae score model/ weather.csv
sgpvae score model/ weather.csv --fraction 0.3 --json > scores.json""",
    "report": "sgpvae report model/ weather.csv -o report.html",
}


def make_parser(runs: Mapping[str, Run]) -> argparse.ArgumentParser:
    """
    The options of all commands.

    :param runs: The function of each command.
    """
    parser = argparse.ArgumentParser(
        prog="sgpvae",
        description="Fill the holes of a table, with error bars. Tables are CSV files, - for a pipe, or Parquet files.",
        epilog=_epilog(None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sgpvae {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    fit = _add(commands, "fit", runs, "Learn from a table with holes, and save the model in a folder.")
    fit.add_argument(
        "table", metavar="TABLE", help="the table; a folder of Parquet or CSV files if it is larger than memory"
    )
    fit.add_argument(
        "--inputs", required=True, type=_names, help="columns that say where a row is, with commas between"
    )
    targets = fit.add_mutually_exclusive_group(required=True)
    targets.add_argument("--outputs", type=_names, help="columns with holes, with commas between")
    targets.add_argument(
        "--long",
        type=_pair,
        metavar="SENSOR,VALUE",
        help="a table with a row for each reading: the column that names its sensor, and that of what was read",
    )
    fit.add_argument(
        "--task",
        help="column with the same value in all rows of a task, or hour, day, week, month, quarter or year of a column "
        "of dates, such as 'week(date)'; default: the table is one task",
    )
    fit.add_argument("--periodic", type=_pairs, metavar="COLUMN=PERIOD,…", help="periods of inputs, in days for dates")
    fit.add_argument(
        "--family",
        type=_pairs,
        metavar="COLUMN=FAMILY,…",
        help="families of outputs where the guess is wrong; category for inputs whose numbers are labels",
    )
    fit.add_argument("--covariates", type=_names, help="columns without holes that tell of the outputs")
    fit.add_argument(
        "--latents", type=int, metavar="N", help="latent functions that outputs share; default: by the table's shape"
    )
    fit.add_argument("--inducing", type=int, metavar="N", help="inducing points of a sparse model; default: none")
    fit.add_argument("--batch-size", type=int, metavar="N", help="windows in a step; default: by the table's shape")
    fit.add_argument(
        "--max-epochs", type=int, metavar="N", help="rounds over the table at the most; default: a number of steps"
    )
    fit.add_argument(
        "--max-minutes",
        type=float,
        metavar="M",
        help="minutes of training at the most; default: 1, and 1 more for each 20,000 rows, up to 10",
    )
    fit.add_argument(
        "--sample-rows",
        type=int,
        metavar="N",
        help="for a table larger than memory, the rows that columns and trend are learnt from, and those of each epoch "
        "(default: 100000)",
    )
    fit.add_argument(
        "--devices", type=int, default=1, metavar="N", help="processes that share the training (default: 1)"
    )
    fit.add_argument(
        "--num-nodes", type=int, default=1, metavar="N", help="machines, with that many processes on each (default: 1)"
    )
    fit.add_argument("--no-comparison", action="store_true", help="do not compare with simpler ways")
    fit.add_argument("--seed", type=int, default=0, help="seed of everything random (default: %(default)s)")
    fit.add_argument("-o", "--output", required=True, type=Path, metavar="MODEL", help="folder for the model")

    impute = _add(
        commands,
        "impute",
        runs,
        "Fill the holes, and leave all else as it is. For each output NAME it adds NAME_std, NAME_lower and NAME_upper "
        "(a 95 % interval; empty where the value was known) and NAME_filled (whether it was not).",
    )
    _add_model_and_table(impute, "the table; a folder of Parquet or CSV files if it is larger than memory")
    impute.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="the filled table, or - for a pipe; or a folder/"
    )
    impute.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that share a folder's partitions (default: 1)"
    )
    impute.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="address of a Dask scheduler whose workers share them, such as tcp://10.0.0.1:8786",
    )

    predict = _add(commands, "predict", runs, "Predict the outputs at rows that the table does not have.")
    _add_model_and_table(predict, "what is known of the tasks")
    where = predict.add_mutually_exclusive_group(required=True)
    where.add_argument("--at", metavar="FILE", help="table with the inputs (and the task) to predict at")
    where.add_argument(
        "--horizon",
        type=int,
        metavar="N",
        help="predict past the end of the table: N further rows of each series, at its usual step",
    )
    predict.add_argument("-o", "--output", required=True, metavar="FILE", help="the predictions, or - for a pipe")

    score = _add(commands, "score", runs, "Hide known entries, predict them, and print how well that went.")
    _add_model_and_table(score)
    score.add_argument("--fraction", type=float, default=0.1, help="share of the known entries (default: %(default)s)")
    score.add_argument("--seed", type=int, default=0, help="seed of their choice (default: %(default)s)")

    report = _add(commands, "report", runs, "Write a page about the table, its holes and how well they are filled.")
    _add_model_and_table(report)
    report.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help="the page, an HTML file")
    return parser


def _add(commands: Any, name: str, runs: Mapping[str, Run], text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text.split(". ")[0].rstrip("."),
        description=text,
        epilog=_epilog(name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=runs[name], kept="nothing was written")
    parser.add_argument("--device", help="device to compute on, such as cuda; default: the CPU")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="threads to compute with; more than one help with long tasks only (default: 1)",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    _add_reading(parser)
    return parser


def _add_reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reading tables")
    group.add_argument(
        "--na",
        type=_marks,
        metavar="MARK,…",
        help="cells of outputs that stand for a missing value, besides empty ones; write --na=-200 for numbers below 0 "
        f"(default: {','.join(USUAL_MARKS)})",
    )
    group.add_argument(
        "--sep",
        type=_separator,
        metavar="CHAR",
        help="separator of cells: comma, semicolon, tab or another character (default: that of the header)",
    )
    group.add_argument(
        "--decimal", choices=(".", ","), default=".", help="the character before decimals (default: %(default)s)"
    )
    group.add_argument(
        "--encoding",
        metavar="NAME",
        help="encoding of CSV files, such as cp1252 (default: utf-8, or what the file's mark says)",
    )
    order = group.add_mutually_exclusive_group()
    order.add_argument(
        "--day-first", dest="day_first", action="store_const", const=True, help="1/2/2024 is a day of February"
    )
    order.add_argument(
        "--month-first", dest="day_first", action="store_const", const=False, help="1/2/2024 is a day of January"
    )


def _add_model_and_table(parser: argparse.ArgumentParser, text: str = "the table") -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a fitted model")
    parser.add_argument("table", metavar="TABLE", help=text)


def _epilog(command: str | None) -> str:
    lines = "\n".join(f"  {line}" for line in EXAMPLES[command].splitlines())
    return f"examples:\n{lines}\n\nexit codes: 0 done, 1 the data or a file is at fault, 2 wrong usage"


def _names(text: str) -> list[str]:
    """Names with commas between; those with commas in them have quotes around them."""
    cells = next(csv.reader([text.replace("\n", " ")], skipinitialspace=True), [])
    return [cell.strip() for cell in cells if cell.strip()]


def _pair(text: str) -> list[str]:
    names = _names(text)
    if len(names) != 2:
        raise argparse.ArgumentTypeError(f"expected two columns with a comma between, got {text!r}")
    return names


def _marks(text: str) -> tuple[str, ...]:
    return tuple(_names(text))


def _separator(text: str) -> str:
    names = {name: mark for mark, name in SEPARATORS.items()}
    mark = names.get(text.lower(), "\t" if text == "\\t" else text)
    if len(mark) != 1 or mark in '"\r\n\0' or mark.isalnum():
        raise argparse.ArgumentTypeError(f"expected comma, semicolon, tab or one character, got {text!r}")
    return mark


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.rpartition("=") for part in _names(text)]
    if not all(name and value for name, _, value in pairs):
        raise argparse.ArgumentTypeError(f"expected COLUMN=VALUE with commas between, got {text!r}")
    return {name.strip(): value.strip() for name, _, value in pairs}
