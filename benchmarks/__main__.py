"""
Measure speed, memory and accuracy, beside the authors' package, PyPOTS, celerite2, smolgp (where they are installed),
scikit-learn and GPyTorch's own SVGP.

    python -m benchmarks                               # everything but `large` and `tables`; as `make bench` does
    python -m benchmarks tables                        # how well tables are filled; takes hours, and can be stopped
    python -m benchmarks large                         # twenty million rows; takes an hour, and can be stopped
    python -m benchmarks shapes --shapes weather eeg   # one study, two shapes
    python -m benchmarks --quick                       # does it all run? takes seconds
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from .imputers import IMPUTERS
from .shapes import SHAPES
from .studies import STUDIES
from .study import Options

RESULTS = Path(__file__).parent / "results"
# Studies that take hours, or data that not everybody has: they are run by name, or in a quick run.
LONG = {"large", "tables"}


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = parse_arguments(arguments)
    torch.set_num_threads(parsed.threads)
    # A quick run never writes over results.
    folder = parsed.output or (Path(tempfile.mkdtemp(prefix="benchmarks-")) if parsed.quick else RESULTS)
    options = Options(
        shapes={key: SHAPES[key].shrunk() if parsed.quick else SHAPES[key] for key in parsed.shapes},
        repeats=parsed.repeats or (2 if parsed.quick else 11),
        threads=parsed.threads,
        quick=parsed.quick,
        gpu_tflops=parsed.gpu_tflops,
        folder=folder,
        seeds=parsed.seeds,
        again=parsed.again,
        files=parsed.files,
    )
    for name in parsed.studies or [name for name in STUDIES if parsed.quick or name not in LONG]:
        print(STUDIES[name](options).write(name, folder, options), flush=True)
    print(f"The files are in {folder}.")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "studies",
        nargs="*",
        metavar="study",
        help=f"which to run: {', '.join(STUDIES)} (default: all but the last two)",
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=SHAPES,
        default=list(SHAPES),
        help="shapes of the studies `shapes` and `accuracy` (default: all)",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    parser.add_argument("--repeats", type=int, help="rounds that are measured (default: 11, or 2 with --quick)")
    parser.add_argument(
        "--gpu-tflops",
        type=float,
        default=10.0,
        help="product rate in float64 of the GPU that predictions assume (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=5,
        help="seeds of the studies `tables` and `dropin`; 0 makes a table of what was run (default: %(default)s)",
    )
    parser.add_argument(
        "--again",
        nargs="+",
        choices=IMPUTERS,
        default=[],
        help="imputers of the study `tables` whose results are deleted first, of all seeds, to be measured anew",
    )
    parser.add_argument(
        "--files", type=int, help="of the study `large`, of 250,000 rows each (default: 80, twenty million rows)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs: no results")
    parser.add_argument(
        "--output",
        type=Path,
        help=f"folder of the results (default: {RESULTS}, or a temporary one with --quick)",
    )
    parsed = parser.parse_args(arguments)
    unknown = set(parsed.studies) - set(STUDIES)
    if unknown:
        parser.error(f"there is no study {', '.join(sorted(unknown))}: choose from {', '.join(STUDIES)}")
    return parsed


if __name__ == "__main__":
    main()
