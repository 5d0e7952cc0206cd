"""What an experiment offers to the command line and to the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Outcome:
    """
    :param scores: Of what was held out.
    :param elbo: Of the training data, by which runs are kept; None for a baseline.
    :param extra: Whatever else a figure needs.
    """

    scores: dict[str, float]
    elbo: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """
    :param title: For the report.
    :param run: Does one run; the second argument asks for the shortest possible one.
    :param trained: Models with an inference network, the default first.
    :param baselines: Others.
    :param deterministic: Those of them that no seed changes.
    :param columns: The scores that the paper has, and that the report shows first.
    :param published: Of each row of the paper's table (a label) what it says in each column.
    :param seeds: How many runs by default.
    :param inducing: Numbers of inducing points by default, for the SGP-VAE.
    :param variants: Of an experiment that has several.
    :param text: What the report says about it.
    :param targets: Of each column what is to be reached, at most.
    :param network: The network by default.
    :param presets: How its models can be trained, the default last.
    :param ahead: Scores in which that network, tuned, is to be ahead of every other, every VAE and every baseline.
    :param figure: Draws the outcomes of all runs; None where there is nothing to draw yet.
    """

    title: str
    run: Callable[[Run, bool], Outcome]
    trained: tuple[str, ...]
    baselines: tuple[str, ...]
    deterministic: tuple[str, ...]
    columns: tuple[str, ...]
    published: dict[str, dict[str, str]]
    seeds: int = 15
    inducing: tuple[int, ...] = (0,)
    variants: tuple[str, ...] = ("",)
    text: str = ""
    targets: dict[str, float] = field(default_factory=dict)
    network: str = "factornet"
    presets: tuple[str, ...] = ("paper", "tuned")
    ahead: tuple[str, ...] = ()
    figure: Callable[[dict[Run, dict[str, Any]]], Figure | None] | None = None

    @property
    def models(self) -> tuple[str, ...]:
        return self.trained + self.baselines
