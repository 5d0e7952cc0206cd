"""Checks of the description of a saved table: types and sizes, before anything is made of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from .errors import TableError
from .families import FAMILIES, make_column
from .families.label_columns import MOST_LABELS
from .inputs import MOST_LEVELS

# A file in the same folder, and nothing else.
TENSORS = re.compile(r"tensors-[0-9a-f]{16}\.pt")
# More than any table needs, and less than a computer has.
MOST_COLUMNS, MOST_VALUES, MOST_TEXT = 100_000, 5_000, 10_000
MOST_LATENTS, MOST_INDUCING, MOST_EMBEDDED = 1_000, 10_000, 1_000
MOST_CYCLES, MOST_HISTORY = 16, 100_000
# Numbers of the decoder: latent functions times values.
MOST_WEIGHTS = 10**7

Check = Callable[[Any, str], None]


class DescriptionError(ValueError):
    """An error in a description: its place, what stands there, and what should."""


def check_description(content: Mapping[str, Any]) -> None:
    """
    Raise a :class:`DescriptionError` unless a description is such as `save_table` writes.

    :param content: The content of `imputer.json`, without its checksum.
    """
    _DESCRIPTION(content, "the description")
    inputs, outputs, parameters, plan = (content[name] for name in ("inputs", "outputs", "parameters", "plan"))
    number, names = len(inputs), [column["name"] for column in outputs]
    if len({*names, *(column["name"] for column in inputs)}) != number + len(outputs):
        raise DescriptionError("inputs and outputs name a column twice")
    if parameters["inputs"] not in (None, [column["name"] for column in inputs]):
        raise DescriptionError("inputs are others than those of the parameters")
    filled = len(names) - len(parameters["covariates"])
    if parameters["outputs"] not in (None, names[:filled]) or parameters["covariates"] != names[filled:]:
        raise DescriptionError("outputs are others than those of the parameters")
    if content["num_filled"] != filled:
        raise DescriptionError(f"num_filled is {content['num_filled']}, expected {filled}")
    _check_form(content["form"], parameters, names[:filled], content["columns"])
    if parameters["task"] != (None if content["task"] is None else content["task"]["name"]):
        raise DescriptionError("the task is another than that of the parameters")
    roles = [*plan["space"], *plan["labels"], *plan["cycles"], *([] if plan["time"] is None else [plan["time"]])]
    if sorted(roles) != list(range(number)):
        raise DescriptionError(f"plan names inputs {sorted(roles)}, expected each of {number} once")
    for d, column in enumerate(inputs):
        if bool(column["levels"]) != (d in plan["labels"]) or (column["period"] is not None) != (d in plan["cycles"]):
            raise DescriptionError(f"plan takes the input {column['name']!r} for another kind than it is")
    if (plan["kind"] == "sparse") != (plan["num_inducing"] is not None):
        raise DescriptionError(f"plan.num_inducing is {plan['num_inducing']} in a {plan['kind']} model")
    if plan["kind"] == "markov" and roles != [plan["time"]] and plan["time"] is None:
        raise DescriptionError("plan.time is None in a markov model")
    trend = content["trend"]
    if any(d >= number for d in [*trend["place_inputs"], *([] if trend["time"] is None else [trend["time"]])]):
        raise DescriptionError(f"trend names an input beyond the {number} that there are")
    if len(trend["periods"]) != len(trend["harmonics"]):
        raise DescriptionError("trend.periods and trend.harmonics are of different lengths")
    values = sum(make_column(column).num_values for column in outputs)
    latents = plan["group_size"] * plan["num_groups"] + plan["num_private"] * values
    if values > MOST_VALUES or latents * values > MOST_WEIGHTS or not latents:
        raise DescriptionError(f"the model has {latents} latent functions of {values} values, which is out of bounds")
    if len({len(column) for column in content["history"].values()}) > 1:
        raise DescriptionError("history has columns of different lengths")
    table = content["comparison"]
    if len(table["data"]) != len(table["index"]) or any(len(row) != len(table["columns"]) for row in table["data"]):
        raise DescriptionError("comparison has rows of different lengths")


def _check_form(
    form: Mapping[str, Any], parameters: Mapping[str, Any], outputs: Sequence[str], columns: Sequence[str]
) -> None:
    features, long = form["features"], form["long"]
    if form["number"] != len(columns if features is None else features):
        raise DescriptionError(f"form.number is {form['number']}, which is not the number of columns")
    if parameters["long"] != (None if long is None else [long["sensor"], long["value"]]):
        raise DescriptionError("form.long is another than that of the parameters")
    if long is not None and long["sensors"] != outputs:
        raise DescriptionError("form.long.sensors are others than the outputs")


def named_file(folder: Any, name: str) -> Any:
    """The file of tensors in a folder, by the name that the description has for it."""
    if not TENSORS.fullmatch(name):
        raise TableError(f"{folder} names its file of tensors {name!r}, which is no such name: save the model again.")
    return folder / name


def _refuse(value: Any, where: str, expected: str) -> None:
    text = repr(value)
    raise DescriptionError(f"{where} is {text if len(text) < 60 else text[:56] + ' ...'}, expected {expected}")


def _whole(low: int, high: int) -> Check:
    def check(value: Any, where: str) -> None:
        if type(value) is not int or not low <= value <= high:
            _refuse(value, where, f"a whole number from {low} to {high}")

    return check


def _real(above: float = -math.inf, finite: bool = True) -> Check:
    def check(value: Any, where: str) -> None:
        if type(value) not in (int, float) or (finite and not (abs(value) < math.inf and value > above)):
            _refuse(value, where, "a number" + (f" above {above:g}" if above > -math.inf else ""))

    return check


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        _refuse(value, where, f"text of at most {MOST_TEXT} characters")


def _flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        _refuse(value, where, "true or false")


def _label(value: Any, where: str) -> None:
    if type(value) not in (str, bool, int, float) or (isinstance(value, str) and len(value) > MOST_TEXT):
        _refuse(value, where, "a label: text, a number, true or false")


def _one_of(values: Collection[Any]) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, (str, type(None))) or value not in values:
            _refuse(value, where, f"one of {', '.join(map(str, values))}")

    return check


def _maybe(inner: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return check


def _list(inner: Check, most: int, least: int = 0) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            shown = f"a list of {len(value)}" if isinstance(value, list) else value
            _refuse(shown, where, f"a list of {least} to {most}")
        for i, entry in enumerate(value):
            inner(entry, f"{where}[{i}]")

    return check


def _names_to(inner: Check, most: int) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict) or len(value) > most:
            _refuse(value, where, f"names with values, at most {most}")
        for name, entry in value.items():
            inner(entry, f"{where}.{name}")

    return check


def _record(**fields: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            _refuse(value, where, "names with values")
        for name in fields:
            if name not in value:
                raise DescriptionError(f"{where} has no {name}")
        for name in value:
            if name not in fields:
                raise DescriptionError(f"{where} has {name[:60]!r}, which is not known")
        for name, inner in fields.items():
            inner(value[name], name if where == "the description" else f"{where}.{name}")

    return check


def _output(value: Any, where: str) -> None:
    common = {
        "name": _text,
        "family": _one_of(FAMILIES),
        "shift": _real(),
        "scale": _real(above=0.0),
        "levels": _list(_label, MOST_LABELS),
    }
    family = value.get("family") if isinstance(value, dict) else None
    known = fields(FAMILIES[family]) if isinstance(family, str) and family in FAMILIES else ()
    # what a family has beside these is a positive number
    _record(**common, **{entry.name: _real(above=0.0) for entry in known if entry.name not in common})(value, where)
    low, high = FAMILIES[value["family"]].num_levels
    if not low <= len(value["levels"]) <= high or len(set(value["levels"])) != len(value["levels"]):
        raise DescriptionError(f"{where}.levels are not those of a {value['family']}")


_COLUMNS = _list(_text, MOST_COLUMNS)
_PLACES = _list(_whole(0, MOST_COLUMNS), MOST_COLUMNS)
_DESCRIPTION = _record(
    kind=_text,
    format=_whole(0, 10**6),
    version=_text,
    parameters=_record(
        inputs=_maybe(_list(_text, MOST_COLUMNS, 1)),
        outputs=_maybe(_list(_text, MOST_COLUMNS, 1)),
        task=_maybe(_text),
        long=_maybe(_list(_text, 2, 2)),
        covariates=_COLUMNS,
        periodic=_maybe(_names_to(_real(above=0.0), MOST_COLUMNS)),
        families=_maybe(_names_to(_one_of(FAMILIES), MOST_COLUMNS)),
        num_latents=_maybe(_whole(1, MOST_LATENTS)),
        num_inducing=_maybe(_whole(1, MOST_INDUCING)),
        batch_size=_maybe(_whole(1, 2**63)),
        max_epochs=_maybe(_whole(1, 2**63)),
        max_minutes=_maybe(_real(above=0.0, finite=False)),
        compare=_flag,
        seed=_whole(0, 2**128),
        dtype=_one_of(("float32", "float64")),
    ),
    form=_record(
        features=_maybe(_COLUMNS),
        number=_whole(0, MOST_COLUMNS),
        long=_maybe(_record(sensor=_text, value=_text, places=_COLUMNS, sensors=_COLUMNS)),
    ),
    inputs=_list(
        _record(
            name=_text,
            is_date=_flag,
            from_task_start=_flag,
            period=_maybe(_real(above=0.0)),
            shift=_real(),
            scale=_real(above=0.0),
            levels=_list(_label, MOST_LEVELS),
            day_first=_maybe(_flag),
            has_zone=_maybe(_flag),
        ),
        MOST_COLUMNS,
        1,
    ),
    outputs=_list(_output, MOST_COLUMNS, 1),
    task=_maybe(_record(name=_text, day_first=_maybe(_flag))),
    columns=_COLUMNS,
    num_filled=_whole(1, MOST_COLUMNS),
    plan=_record(
        kind=_one_of(("markov", "dense", "sparse")),
        time=_maybe(_whole(0, MOST_COLUMNS)),
        space=_PLACES,
        labels=_PLACES,
        cycles=_PLACES,
        has_places=_flag,
        group_size=_whole(0, MOST_LATENTS),
        num_groups=_whole(0, 3),
        num_private=_whole(0, 2),
        num_inducing=_maybe(_whole(1, MOST_INDUCING)),
        num_embedded=_whole(0, MOST_EMBEDDED),
    ),
    trend=_record(
        place_inputs=_PLACES,
        periods=_list(_real(above=0.0), MOST_CYCLES),
        harmonics=_list(_whole(1, MOST_CYCLES), MOST_CYCLES),
        time=_maybe(_whole(0, MOST_COLUMNS)),
    ),
    not_calibrated=_COLUMNS,
    evidence=_maybe(_record(mean=_real(), deviation=_real())),
    history=_names_to(_list(_real(finite=False), MOST_HISTORY), 100),
    comparison=_record(
        index=_COLUMNS,
        columns=_list(_list(_text, 2, 2), 100),
        data=_list(_list(_maybe(_real(finite=False)), 100), MOST_COLUMNS),
    ),
    tensors=_text,
)
