"""What GPyTorch's own tests of variational strategies check, for ours; what fails is listed in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_strategies import CASES
from upstream_case import OBJECTIVES, SITUATIONS, WITHOUT_OBJECTIVE, UpstreamCase, why_not

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "concepts" / "gpytorch.md"
TRIALS = [
    (case, wrapper, objective, situation)
    for case in CASES
    for wrapper in (("none", "joint") if case.is_joint else ("none", "IndependentMultitask", "LMC"))
    for objective in OBJECTIVES
    for situation in SITUATIONS
    if objective is OBJECTIVES[0] or not situation.startswith(WITHOUT_OBJECTIVE)
]


def as_parameters(case, wrapper, objective, situation):
    reason = why_not(case, wrapper, situation)
    marks = [] if reason is None else [pytest.mark.xfail(strict=True, reason=reason)]
    names = case.__name__.removeprefix("Test"), wrapper, objective.__name__, situation.removeprefix("test_")
    return pytest.param(case, wrapper, objective, situation, marks=marks, id="-".join(names))


@pytest.mark.parametrize(("case", "wrapper", "objective", "situation"), [as_parameters(*trial) for trial in TRIALS])
def test_what_upstream_checks(case, wrapper, objective, situation):
    upstream = UpstreamCase(case(), wrapper, objective)
    upstream.setUp()
    getattr(upstream, situation)()


def test_the_documentation_says_how_many_pass_and_why_others_do_not():
    text = DOCUMENTATION.read_text(encoding="utf-8")
    for wrapper in {wrapper for _, wrapper, _, _ in TRIALS}:
        reasons = [why_not(case, own, situation) for case, own, _, situation in TRIALS if own == wrapper]
        row = rf"^\| .*`{wrapper}`.* \| {reasons.count(None)} of {len(reasons)} \|$"
        assert re.search(row, text, re.MULTILINE), f"{row} is not in {DOCUMENTATION}"
    unfolded = " ".join(text.split())
    for reason in {why_not(case, wrapper, situation) for case, wrapper, _, situation in TRIALS} - {None}:
        assert reason in unfolded, reason
