"""The same seed, the same numbers: on one number of threads to the bit, on another as closely as rounding allows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import thread_runs
import torch

pytestmark = pytest.mark.slow
STEPS = 3
CASES = [(name, dtype) for name in thread_runs.MODELS for dtype in (torch.float64, torch.float32)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trainings on one thread and on two, each twice."""
    folder, found = tmp_path_factory.mktemp("threads"), {}
    for num_threads in (1, 2):
        for attempt in (1, 2):
            file = folder / f"{num_threads}-{attempt}.pt"
            command = [sys.executable, thread_runs.__file__, str(num_threads), str(STEPS), str(file)]
            # threads that wait without spinning: other tests may run beside this one
            environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
            environment.pop("OMP_NUM_THREADS", None)
            subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parent.parent)
            found[num_threads, attempt] = torch.load(file, weights_only=True)
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_two_fits_with_one_seed_are_equal_to_the_bit_on_one_number_of_threads(runs, num_threads, case):
    one, other = (runs[num_threads, attempt][case] for attempt in (1, 2))
    assert all(torch.equal(one[what], other[what]) for what in one)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_first_step_is_the_same_up_to_rounding_on_any_number_of_threads(runs, case):
    one, other = runs[1, 1][case], runs[2, 1][case]
    tolerance = 1e-12 if case[1] == torch.float64 else 1e-6
    torch.testing.assert_close(one["first"], other["first"], rtol=tolerance, atol=0.0)


@pytest.mark.parametrize("case", [case for case in CASES if case[1] == torch.float64], ids=str)
def test_fits_in_float64_agree_on_any_number_of_threads(runs, case):
    one, other = runs[1, 1][case], runs[2, 1][case]
    for what in one:
        torch.testing.assert_close(one[what], other[what], rtol=1e-6, atol=1e-6)
