"""
Run the notebooks from top to bottom, at full length, and keep their outputs. A notebook of which a claim does not hold
stays as it was, and so does one whose data are not to be had.

    python tutorials/run.py             # all of them, as `make tutorials` does
    python tutorials/run.py 02 08       # some of them
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parent
# What the loaders of gpytorch_sgpvae.datasets raise where there is neither a file nor a network.
NO_DATA = ("ConnectionError", "FileNotFoundError")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="how the notebooks' names begin; by default all")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where they are")
    arguments = parser.parse_args()
    notebooks = sorted(
        path for path in arguments.folder.glob("*.ipynb") if path.name.startswith(tuple(arguments.names or [""]))
    )
    if not notebooks:
        sys.exit(f"No notebook in {arguments.folder} begins with {' or '.join(arguments.names) or 'anything'}.")

    os.environ.pop("SGPVAE_SHORT", None)
    # The tensors are small: a second thread would only wait for the first.
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    failures = []
    for path in notebooks:
        start = time.perf_counter()
        try:
            run(path)
            outcome = "done"
        except CellExecutionError as error:
            if error.ename in NO_DATA and not os.environ.get("SGPVAE_DATA"):
                outcome = f"skipped, without its data: {error.evalue}"
            else:
                outcome = "FAILED"
                failures.append(f"{path.name}\n{error}")
        print(f"{path.stem:32}{time.perf_counter() - start:6.0f} s  {outcome}", flush=True)
    if failures:
        sys.exit("\n".join(failures))


def run(path: Path) -> None:
    """Run a notebook in place, and keep the outputs only if every cell runs."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=40"],  # only what goes wrong
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":  # warnings and progress bars tell of this machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel})
    unfinished = path.with_suffix(".unfinished")
    nbformat.write(notebook, unfinished)
    unfinished.replace(path)


if __name__ == "__main__":
    main()
