"""The command `sgpvae`: from a file with a table with holes to a filled one."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pandas as pd
import torch
from lightning.pytorch.utilities import rank_zero_only

from ..training import TrainingStoppedError
from .cells import Reading
from .errors import TableError, TableWarning, listed
from .families.label_columns import CategoryColumn
from .files import PIPE, check_room, check_source, check_target, frame_to_bytes, write_bytes
from .imputer import SAMPLE_ROWS, SGPVAEImputer
from .lossless import FileTable, Roles, filled_columns, is_whole, read_file, with_whole_numbers
from .options import make_parser
from .storage import check_folder
from .text_table import TextTable

# What a shell shows of a process that a signal has ended.
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


class Terminated(BaseException):
    """The process was asked to end, by SIGTERM."""


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command.

    :param arguments: The command line, by default that of the process.
    :return: 0; 1 where the data or a file is at fault, with a message that says what; 130 and 143 where Ctrl-C or
        SIGTERM ended it. Wrong usage exits with 2.
    """
    options = make_parser(RUNS).parse_args(arguments)
    options.quiet |= rank_zero_only.rank > 0  # of several processes that share a training, the first tells
    for stream in (sys.stdout, sys.stderr):  # into a file, Windows writes the few hundred letters of one code page
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(
        level=logging.WARNING if options.quiet else logging.INFO, format="%(message)s", stream=sys.stderr
    )
    logging.getLogger("lightning").setLevel(logging.ERROR)
    # As many as there are cores wait for each other more than they compute where others are at work too.
    torch.set_num_threads(min(max(options.threads, 1), os.cpu_count() or 1))
    with warnings.catch_warnings(record=True) as caught, _ending_by_signals():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TableWarning)
        message = None
        try:
            options.run(options)
            status = 0
        except BrokenPipeError:  # whoever read the output has seen enough, and there is nothing to flush to
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (TableError, TrainingStoppedError) as error:
            status, message = 1, str(error)
        except OSError as error:
            status, message = 1, _describe(error)
        except MemoryError:
            status, message = 1, "There is not enough memory for this table: take fewer rows, or a larger computer."
        except KeyboardInterrupt:
            status, message = INTERRUPTED, f"Interrupted: {options.kept}."
        except Terminated:
            status, message = TERMINATED, f"Ended by SIGTERM: {options.kept}."
    if message is not None:
        print(f"sgpvae: {message}", file=sys.stderr)
    if not options.quiet:
        for note in dict.fromkeys(str(warning.message) for warning in caught):
            print(f"sgpvae: note: {note}", file=sys.stderr)
    return status


def _fit(options: argparse.Namespace) -> None:
    check_folder(options.output)
    check_room(options.output)
    families = options.family or {}
    periods = {name: _number(name, value) for name, value in (options.periodic or {}).items()}
    labels = tuple(name for name in options.inputs if families.get(name) == CategoryColumn.family)
    covariates = tuple(options.covariates or ())
    sensor, value = options.long or (None, None)
    outputs = tuple(options.outputs) if value is None else (value,)
    roles = Roles(tuple(options.inputs), outputs, covariates, options.task, labels, sensor=sensor)
    imputer = SGPVAEImputer(
        options.inputs,
        options.outputs,
        options.task,
        long=options.long,
        periodic=periods,
        families=options.family,
        covariates=covariates,
        num_latents=options.latents,
        num_inducing=options.inducing,
        batch_size=options.batch_size,
        max_epochs=options.max_epochs,
        max_minutes=options.max_minutes,
        compare=not options.no_comparison,
        seed=options.seed,
        device=options.device,
        devices=options.devices,
        num_nodes=options.num_nodes,
        progress=not options.quiet,
    )
    if options.table == PIPE and options.devices * options.num_nodes > 1:
        raise TableError("Several processes cannot read one pipe: give the name of a file or a folder.")
    if os.path.isdir(options.table) or options.sample_rows is not None:
        _check_reading(options)
        imputer.fit_dataset(options.table, options.sample_rows or SAMPLE_ROWS)
    else:
        imputer.fit(_read(options, options.table, roles).frame)
    if rank_zero_only.rank > 0:  # of several processes, the first tells and saves
        return
    imputer.save(options.output)
    facts = {"model": str(options.output), "families": imputer.families_, **_comparison(imputer.comparison_)}
    _tell(options, facts, f"Saved {options.output}.")


def _impute(options: argparse.Namespace) -> None:
    if os.path.isdir(options.table) or options.output.endswith(("/", os.sep)):
        return _impute_dataset(options)
    if options.workers > 1 or options.scheduler is not None:
        raise TableError("Workers share the partitions of a folder: for one file, leave --workers and --scheduler out.")
    check_source(options.table)
    check_target(options.output)
    imputer = _load(options)
    table = _read(options, options.table, Roles.of(imputer))
    filled = imputer.transform(table.frame, intervals=True)
    columns = filled_columns(imputer)
    table.write_filled(filled, columns, options.output)
    counts = {column.name: int(filled[f"{column.name}_filled"].sum()) for column in columns}
    text = f"Filled {listed(f'{count} of {name}' for name, count in counts.items())}: {options.output}."
    _tell(options, {"output": options.output, "filled": counts}, text)


def _impute_dataset(options: argparse.Namespace) -> None:
    _check_reading(options)
    imputer = _load(options)
    imputer.progress = not options.quiet
    options.kept = "finished partitions are kept, and the same command goes on with the others"
    done = imputer.impute_dataset(options.table, options.output, workers=options.workers, scheduler=options.scheduler)
    counts = {name: int(done[f"{name}_filled"].sum()) for name in imputer.families_}
    skipped = int(done["skipped"].sum())
    text = f"Filled {listed(f'{count} of {name}' for name, count in counts.items())}: {options.output}"
    there = f", where {skipped} of {len(done)} partitions were already" if skipped else ""
    facts = {"output": options.output, "filled": counts, "partitions": len(done), "skipped": skipped}
    _tell(options, facts, f"{text}{there}.")


def _predict(options: argparse.Namespace) -> None:
    if options.table == PIPE and options.at == PIPE:
        raise TableError("Only one of the two tables can come from a pipe.")
    for source in (options.table, options.at):
        if source is not None:
            check_source(source)
    check_target(options.output)
    imputer = _load(options)
    roles, columns = Roles.of(imputer), filled_columns(imputer)
    table = _read(options, options.table, roles)
    if options.at is None:
        predicted = imputer.forecast(table.frame, options.horizon)
        separator = table.table.separator if isinstance(table.table, TextTable) else ","
        whole = [name for name in roles.inputs if is_whole(table.frame, name) and is_whole(predicted, name)]
        frame = with_whole_numbers(predicted, columns).astype(dict.fromkeys(whole, "int64"))
        write_bytes(frame_to_bytes(frame, options.output, separator, options.decimal), options.output)
    else:
        places = _read(options, options.at, roles, is_places=True)
        predicted = imputer.predict(places.frame, context=table.frame)
        places.write_predicted(predicted, columns, options.output)
    rows = len(predicted)
    _tell(options, {"output": options.output, "rows": rows}, f"Predicted {rows} rows: {options.output}.")


def _score(options: argparse.Namespace) -> None:
    check_source(options.table)
    imputer = _load(options)
    scores = imputer.scores(_read(options, options.table, Roles.of(imputer)).frame, options.fraction, options.seed)
    if options.json:
        # what does not apply is null
        print(json.dumps(json.loads(scores.to_json(orient="index")), indent=2))
    else:
        print(scores.to_string(float_format="{:.4g}".format, na_rep=""))


def _report(options: argparse.Namespace) -> None:
    from .report import write_report

    check_source(options.table)
    check_target(str(options.output))
    imputer = _load(options)
    roles = Roles.of(imputer)
    frame = _read(options, options.table, roles).frame
    # others may have one name between them, which a page cannot show
    shown = [name in roles.named or list(frame.columns).count(name) == 1 for name in frame.columns]
    write_report(imputer, frame.loc[:, shown], options.output)
    _tell(options, {"output": str(options.output)}, f"Wrote {options.output}.")


RUNS = {"fit": _fit, "impute": _impute, "predict": _predict, "score": _score, "report": _report}


def _read(options: argparse.Namespace, source: str, roles: Roles, is_places: bool = False) -> FileTable:
    reading = Reading(options.na, options.decimal, options.day_first)
    return read_file(source, roles, reading, options.sep, options.encoding, is_places)


def _check_reading(options: argparse.Namespace) -> None:
    """Raise if options are given that only tables that are read whole have."""
    defaults = {"na": None, "sep": None, "encoding": None, "decimal": ".", "day_first": None}
    given = [name for name, usual in defaults.items() if getattr(options, name) != usual]
    if given:
        raise TableError(
            f"--{given[0].replace('_', '-')} is for a CSV file that fits into memory: a data set is read as pyarrow "
            "reads it. Write it as Parquet files, with types and empty cells."
        )


def _load(options: argparse.Namespace) -> SGPVAEImputer:
    return SGPVAEImputer.load(options.model, device=options.device)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise TableError(f"The period of {name!r} must be a number, got {text!r}.") from None


def _comparison(table: pd.DataFrame) -> dict[str, Any]:
    """Numbers and scores of held-out entries by output, and by method where there are several; null where none is."""
    result: dict[str, Any] = {}
    for score, method in table.columns:
        values = {name: None if value != value else value for name, value in table[score, method].to_dict().items()}
        for name, value in values.items():
            place = result.setdefault(score, {})
            if method:
                place.setdefault(name, {})[method] = value
            else:
                place[name] = value
    return {"comparison": result}


def _tell(options: argparse.Namespace, facts: dict[str, Any], text: str) -> None:
    """Print, but to the error stream where a table goes to a pipe, which must hold nothing else."""
    stream = sys.stderr if str(options.output) == PIPE else sys.stdout
    if options.json:
        print(json.dumps(facts), file=stream)
    elif not options.quiet:
        print(text, file=sys.stderr)


def _describe(error: OSError) -> str:
    if error.strerror is None or error.filename is None:
        return str(error)
    text = str(error.strerror)
    return text if text.endswith(".") else f"{error.filename}: {text}."


@contextmanager
def _ending_by_signals() -> Iterator[None]:
    """SIGTERM is an exception, so that files are whole or not there."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = None
    with suppress(ValueError):  # in another thread than the first nobody listens to signals
        before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
