"""The command `sgpvae`: from a file with a table with holes to a filled one."""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from .. import __version__
from ..training import TrainingStoppedError
from ..utils.files import is_url, replacing
from .errors import TableError, TableWarning, listed
from .imputer import SGPVAEImputer

EXAMPLES = {
    None: """\
sgpvae fit weather.csv --inputs lat,lon,elev,day --outputs TMAX,TMIN,PRCP --task week -o model/
sgpvae impute model/ weather.csv -o filled.csv
sgpvae score model/ weather.csv
sgpvae report model/ weather.csv -o report.html""",
    "fit": """\
sgpvae fit weather.csv --inputs lat,lon,day --outputs TMAX,PRCP --task week -o model/
sgpvae fit traffic.csv --inputs time,hour --outputs cars,wet --periodic hour=24 --family cars=count -o model/
zcat weather.csv.gz | sgpvae fit - --inputs day --outputs TMAX -o model/ --quiet""",
    "impute": """\
sgpvae impute model/ weather.csv -o filled.csv
sgpvae impute model/ - -o - < weather.csv > filled.csv""",
    "predict": "sgpvae predict model/ weather.csv --at new_places.csv -o predicted.csv",
    "score": """\
sgpvae score model/ weather.csv
sgpvae score model/ weather.csv --fraction 0.3 --json > scores.json""",
    "report": "sgpvae report model/ weather.csv -o report.html",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command.

    :param arguments: By default those of the process.
    :return: 0; 1 where the data or a file is at fault, with a message that says what. Wrong usage exits with 2.
    """
    options = make_parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.WARNING if options.quiet else logging.INFO, format="%(message)s", stream=sys.stderr
    )
    logging.getLogger("lightning").setLevel(logging.ERROR)
    # As many as there are cores wait for each other more than they compute where others are at work too.
    torch.set_num_threads(max(options.threads, 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TableWarning)
        try:
            options.run(options)
            status = 0
        except BrokenPipeError:  # whoever read the output has seen enough, and there is nothing to flush to
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (TableError, TrainingStoppedError, OSError, UnicodeDecodeError) as error:
            print(f"sgpvae: {error}", file=sys.stderr)
            status = 1
    if not options.quiet:
        for message in dict.fromkeys(str(warning.message) for warning in caught):
            print(f"sgpvae: note: {message}", file=sys.stderr)
    return status


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sgpvae",
        description="Fill the holes of a table, with error bars. Tables are CSV files, - for a pipe, or Parquet files.",
        epilog=_epilog(None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sgpvae {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    fit = _add(commands, "fit", _fit, "Learn from a table with holes, and save the model in a folder.")
    fit.add_argument("table", metavar="TABLE", help="the table")
    fit.add_argument(
        "--inputs", required=True, type=_names, help="columns that say where a row is, with commas between"
    )
    fit.add_argument("--outputs", required=True, type=_names, help="columns with holes, with commas between")
    fit.add_argument(
        "--task",
        help="column with the same value in all rows of a task, or hour, day, week, month, quarter or year of a column "
        "of dates, such as 'week(date)'; default: the table is one task",
    )
    fit.add_argument("--periodic", type=_pairs, metavar="COLUMN=PERIOD,…", help="periods of inputs; of dates in days")
    fit.add_argument(
        "--family",
        type=_pairs,
        metavar="COLUMN=FAMILY,…",
        help="of outputs for which the guess is wrong; category for inputs whose numbers are labels",
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
    fit.add_argument("--no-comparison", action="store_true", help="do not compare with simpler ways")
    fit.add_argument("--seed", type=int, default=0, help="of everything random (default: %(default)s)")
    fit.add_argument("-o", "--output", required=True, type=Path, metavar="MODEL", help="folder for the model")

    impute = _add(
        commands,
        "impute",
        _impute,
        "Fill the holes. For each output NAME it adds NAME_std, NAME_lower and NAME_upper (a 95 % interval; empty "
        "where the value was known) and NAME_filled (whether it was not).",
    )
    _add_model_and_table(impute)
    impute.add_argument("-o", "--output", required=True, metavar="FILE", help="the filled table, or - for a pipe")

    predict = _add(commands, "predict", _predict, "Predict the outputs at places that the table does not have.")
    _add_model_and_table(predict, "what is known of the tasks")
    predict.add_argument(
        "--at", required=True, metavar="FILE", help="table with the inputs (and the task) to predict at"
    )
    predict.add_argument("-o", "--output", required=True, metavar="FILE", help="the predictions, or - for a pipe")

    score = _add(commands, "score", _score, "Hide known entries, predict them, and print how well that went.")
    _add_model_and_table(score)
    score.add_argument("--fraction", type=float, default=0.1, help="of the known entries (default: %(default)s)")
    score.add_argument("--seed", type=int, default=0, help="of their choice (default: %(default)s)")

    report = _add(commands, "report", _report, "Write a page about the table, its holes and how well they are filled.")
    _add_model_and_table(report)
    report.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help="the page, an HTML file")
    return parser


def _fit(options: argparse.Namespace) -> None:
    frame = _read(options.table)
    imputer = SGPVAEImputer(
        options.inputs,
        options.outputs,
        options.task,
        periodic={name: _number(name, value) for name, value in (options.periodic or {}).items()},
        families=options.family,
        covariates=options.covariates or (),
        num_latents=options.latents,
        num_inducing=options.inducing,
        batch_size=options.batch_size,
        max_epochs=options.max_epochs,
        max_minutes=options.max_minutes,
        compare=not options.no_comparison,
        seed=options.seed,
        device=options.device,
        progress=not options.quiet,
    )
    imputer.fit(frame).save(options.output)
    comparison = imputer.comparison_
    errors = {} if comparison.empty else comparison["rmse"].T.to_dict()
    facts = {"model": str(options.output), "families": imputer.families_, "rmse": errors}
    _tell(options, facts, f"Saved {options.output}.")


def _impute(options: argparse.Namespace) -> None:
    frame, imputer = _read(options.table), _load(options)
    filled = _with_whole_numbers(imputer.transform(frame, intervals=True), imputer)
    _write(filled, options.output)
    counts = {name: int(filled[f"{name}_filled"].sum()) for name in imputer.families_}
    text = f"Filled {listed(f'{count} of {name}' for name, count in counts.items())}: {options.output}."
    _tell(options, {"output": options.output, "filled": counts}, text)


def _predict(options: argparse.Namespace) -> None:
    if options.table == "-" and options.at == "-":
        raise TableError("Only one of the two tables can come from a pipe.")
    frame, places, imputer = _read(options.table), _read(options.at), _load(options)
    predicted = _with_whole_numbers(imputer.predict(places, context=frame), imputer)
    taken = [name for name in predicted.columns if name in places.columns]
    result = pd.concat([places.drop(columns=taken), predicted], axis=1)
    _write(result, options.output)
    _tell(options, {"output": options.output, "rows": len(result)}, f"Predicted {len(result)} rows: {options.output}.")


def _score(options: argparse.Namespace) -> None:
    frame, imputer = _read(options.table), _load(options)
    scores = imputer.score(frame, options.fraction, options.seed)
    if options.json:
        # what does not apply is null
        print(json.dumps(json.loads(scores.to_json(orient="index")), indent=2))
    else:
        print(scores.to_string(float_format="{:.4g}".format, na_rep=""))


def _report(options: argparse.Namespace) -> None:
    from .report import write_report

    frame, imputer = _read(options.table), _load(options)
    write_report(imputer, frame, options.output)
    _tell(options, {"output": str(options.output)}, f"Wrote {options.output}.")


def _add(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text.split(". ")[0].rstrip("."),
        description=text.replace("%", "%%"),
        epilog=_epilog(name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--device", help="to compute on, such as cuda; default: the CPU")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="to compute with: more help with long tasks only (default: 1)",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    return parser


def _add_model_and_table(parser: argparse.ArgumentParser, text: str = "the table") -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a fitted model")
    parser.add_argument("table", metavar="TABLE", help=text)


def _epilog(command: str | None) -> str:
    lines = "\n".join(f"  {line}" for line in EXAMPLES[command].splitlines())
    return f"examples:\n{lines}\n\nexit codes: 0 done, 1 the data or a file is at fault, 2 wrong usage"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.rpartition("=") for part in _names(text)]
    if not all(name and value for name, _, value in pairs):
        raise argparse.ArgumentTypeError(f"expected COLUMN=VALUE with commas between, got {text!r}")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise TableError(f"The period of {name!r} must be a number, got {text!r}.") from None


def _load(options: argparse.Namespace) -> SGPVAEImputer:
    return SGPVAEImputer.load(options.model, device=options.device)


def _read(source: str) -> pd.DataFrame:
    if is_url(source):
        raise TableError(f"{source} is an address, not a file: download it, and give the name of the file.")
    try:
        if _is_parquet(source):
            return pd.read_parquet(source)
        return pd.read_csv(sys.stdin if source == "-" else source)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise TableError(f"{'The pipe' if source == '-' else source} cannot be read as a CSV table: {error}") from error


def _write(frame: pd.DataFrame, target: str) -> None:
    """The whole table or nothing."""
    if target == "-":
        sys.stdout.write(frame.to_csv(index=_has_own_index(frame)))
        sys.stdout.flush()
        return
    buffer = io.BytesIO()
    if _is_parquet(target):
        frame.to_parquet(buffer, index=_has_own_index(frame))
    else:
        frame.to_csv(buffer, index=_has_own_index(frame))
    with replacing(Path(target)) as file:
        file.write(buffer.getvalue())


def _has_own_index(frame: pd.DataFrame) -> bool:
    """Whether the rows have names or dates, as Parquet files can hold them."""
    return isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex)) or any(name for name in frame.index.names)


def _with_whole_numbers(frame: pd.DataFrame, imputer: SGPVAEImputer) -> pd.DataFrame:
    """Counts, and labels that are numbers, as whole ones: a hole has made them floating-point numbers on reading."""
    whole = [
        name
        for name in (column.name for column in imputer.outputs_.columns if not column.is_continuous)
        if pd.api.types.is_float_dtype(frame[name].dtype) and (frame[name].dropna() % 1 == 0).all()
    ]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def _is_parquet(path: str) -> bool:
    if Path(path).suffix.lower() not in (".parquet", ".pq"):
        return False
    if importlib.util.find_spec("pyarrow") is None:
        raise TableError(f"{path} is a Parquet file, which needs pyarrow: pip install pyarrow, or use CSV.")
    return True


def _tell(options: argparse.Namespace, facts: dict[str, Any], text: str) -> None:
    """Where a table goes to a pipe, nothing else may."""
    stream = sys.stderr if options.output in ("-", Path("-")) else sys.stdout
    if options.json:
        print(json.dumps(facts), file=stream)
    elif not options.quiet:
        print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
