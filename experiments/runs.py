"""What a run is, and the file that it leaves a line in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
NAMES = {
    "gpvae": "GP-VAE",
    "sgpvae": "SGP-VAE",
    "vae": "VAE",
    "markov": "Markov GP-VAE",
    "sgpvae-windows": "SGP-VAE in windows, M = 100",
    "joint": "joint model",
    "igp": "independent GPs",
    "windows": "GP-VAE, joint and exact",
    "windows-perceptrons": "GP-VAE, joint, with perceptrons",
    "windows-independent": "GP-VAE, independent",
    "saits": "SAITS",
    "brits": "BRITS",
    "transformer": "Transformer",
    "pypots-gpvae": "PyPOTS' GP-VAE",
    "mean": "mean imputation",
    "interpolation": "linear interpolation",
    "imputer": "SGPVAEImputer",
    "boosting": "boosted trees",
    "last": "last value",
    "regression": "linear regression",
    "gpar": "GPAR",
    "lds": "linear dynamical system, 8 states",
    "lds16": "linear dynamical system, 16 states",
    "factornet": "FactorNet",
    "indexnet": "IndexNet",
    "pointnet": "PointNet",
    "zeroimputation": "zero imputation",
}


@dataclass(frozen=True, order=True)
class Run:
    """
    One training and its scores.

    :param experiment: Its name.
    :param model: `gpvae`, `sgpvae`, `markov`, `vae`, or a baseline.
    :param network: The model's network, if it has one.
    :param inducing: Number of inducing points; 0 where there are none.
    :param preset: `paper`, `tuned` or `timed`; empty for a baseline.
    :param variant: The variant of an experiment that has several.
    :param seed: The seed of everything random about it.
    """

    experiment: str
    model: str
    network: str = ""
    inducing: int = 0
    preset: str = ""
    variant: str = ""
    seed: int = 0

    @property
    def row(self) -> Run:
        """What runs with different seeds share."""
        return Run(self.experiment, self.model, self.network, self.inducing, self.preset, self.variant)

    def __str__(self) -> str:
        parts = [self.model, self.network, f"M={self.inducing}" if self.inducing else "", self.preset, self.variant]
        return f"{self.experiment}: {' '.join(part for part in parts if part)}, seed {self.seed}"


class ResultFile:
    """
    One line of JSON for each finished run of an experiment. A line is written whole, or not at all: one that a kill has
    cut short is passed over, and its run is run again.
    """

    def __init__(self, experiment: str, folder: Path = RESULTS):
        self.path = folder / f"{experiment}.jsonl"

    def read(self) -> dict[Run, dict[str, Any]]:
        """The outcome of each run; the last one where there are several."""
        outcomes = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            try:
                content = json.loads(line)
            except json.JSONDecodeError:
                continue
            outcomes[Run(**content["run"])] = content
        return outcomes

    def drop(self, unwanted: Callable[[Run], bool]) -> None:
        """
        Forget runs. The file is written anew, or stays as it is.

        :param unwanted: Which ones.
        """
        kept_lines = [json.dumps(content) for run, content in self.read().items() if not unwanted(run)]
        if self.path.exists():
            temporary = self.path.with_suffix(".part")
            temporary.write_text("".join(f"{line}\n" for line in kept_lines))
            os.replace(temporary, self.path)

    def append(self, run: Run, outcome: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"run": asdict(run), **outcome})
        with self.path.open("a+") as file:
            # A line that was cut short has no end.
            file.seek(0)
            unfinished = not file.read().endswith("\n") and file.tell() > 0
            file.write("\n" * unfinished + line + "\n")
            file.flush()
            os.fsync(file.fileno())


def by_row(outcomes: dict[Run, dict[str, Any]]) -> dict[Run, list[dict[str, Any]]]:
    """The outcomes of all seeds of each row of a table."""
    rows: dict[Run, list[dict[str, Any]]] = {}
    for run in sorted(outcomes):
        rows.setdefault(run.row, []).append(outcomes[run])
    return rows


def kept(outcomes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the two thirds of a row's runs with the highest training ELBO (10 of 15); all where there is no ELBO."""
    outcomes = list(outcomes)
    if any(outcome["elbo"] is None for outcome in outcomes):
        return outcomes
    best = sorted(outcomes, key=lambda outcome: outcome["elbo"], reverse=True)
    return best[: -(-2 * len(best) // 3)]


def row_label(row: Run) -> str:
    """A row of a table, for people."""
    variant = f"({row.variant})" if row.variant else ""
    parts = [NAMES[row.model], NAMES.get(row.network, ""), f"M = {row.inducing}" if row.inducing else "", variant]
    return " ".join(part for part in parts if part)
