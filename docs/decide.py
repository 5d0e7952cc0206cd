"""
Draws the flow chart of decide.md: from data to a model, a network and a dtype. It is narrow, to be read on a phone.

    python docs/decide.py
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from gpytorch_sgpvae.plotting import STYLES

PICTURE = Path(__file__).with_name("decide.svg")
# Text as paths looks the same on every machine; a fixed salt and no date make the same file of the same drawing.
SETTINGS = {"svg.fonttype": "path", "svg.hashsalt": "decide", "font.family": "DejaVu Sans"}

BLUE, _, GREEN = (STYLES[i]["color"] for i in range(3))
INK, GRAY, PAPER = "#222222", "#777777", "#F6F7F9"

# In inches. Questions stand on the left, answers on the right, and between them the arrow of "yes".
WIDTH, ROW, TITLE = 4.7, 0.98, 0.5
QUESTION_WIDTH, ANSWER_WIDTH, MARGIN, GAP = 2.0, 2.08, 0.06, 0.2

# (title, color, ((question, name of the answer, what it means), …), what is left if every answer is no)
STEPS = (
    (
        "1  Which model",
        BLUE,
        (
            ("Is it a table\nthat you want filled?", "SGPVAEImputer", "chooses all that is below"),
            ("Is time the only input, with\nmore than some 300 points\nin a task?", "MarkovGPVAE", "exact, O(N), no M"),
            ("Has a task at most\nsome hundred points?", "GPVAE", "exact, no M"),
        ),
        ("SGPVAE", "with M inducing points: a few for each\nlengthscale along each input"),
    ),
    (
        "2  Which network",
        GREEN,
        (
            (
                "Are outputs close to sums\nof causes that they share?",
                '"jointfactornet"',
                "initialize_from(context),\nprivate functions, 1 or 2",
            ),
            ("Are there hundreds of\noutputs of one kind?", '"pointnet"', "as many weights\nfor 10 or 1000 outputs"),
        ),
        ('"factornet"', "each output is read by itself"),
    ),
    (
        "3  Which dtype",
        GRAY,
        (("Is there a GPU, or are\nmany tasks in a batch?", "float32", "half the memory, faster"),),
        ("float64", "no rounding to think of"),
    ),
)


def main() -> None:
    PICTURE.write_text(draw())
    print(f"The picture is in {PICTURE}.")


def draw() -> str:
    """The text of the SVG file."""
    height = sum(TITLE + ROW * (len(questions) + 1) for _, _, questions, _ in STEPS)
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, height), facecolor="white")
        canvas = figure.add_axes((0, 0, 1, 1))
        canvas.set(xlim=(0, WIDTH), ylim=(0, height))
        canvas.axis("off")
        top = height
        for title, color, questions, otherwise in STEPS:
            top = draw_step(canvas, top, title, color, questions, otherwise)
        file = StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib leaves spaces at the ends of some lines
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def draw_step(
    canvas: Axes,
    top: float,
    title: str,
    color: str,
    questions: tuple[tuple[str, str, str], ...],
    otherwise: tuple[str, str],
) -> float:
    """Draw a step below a height, and return where it ends."""
    canvas.text(MARGIN, top - TITLE / 2, title, va="center", fontsize=12, weight="bold", color=INK)
    middle = MARGIN + QUESTION_WIDTH / 2
    right = WIDTH - MARGIN - ANSWER_WIDTH
    top -= TITLE
    for question, name, meaning in questions:
        row = top - ROW + GAP
        box(canvas, MARGIN, row, QUESTION_WIDTH, PAPER, GRAY)
        write = {"ha": "center", "va": "center", "color": INK}
        canvas.text(middle, row + (ROW - GAP) / 2, question, fontsize=9.2, linespacing=1.3, **write)
        answer(canvas, right, row, ANSWER_WIDTH, color, name, meaning)
        arrow(canvas, (MARGIN + QUESTION_WIDTH, row + (ROW - GAP) / 2), (right, row + (ROW - GAP) / 2))
        between = (MARGIN + QUESTION_WIDTH + right) / 2
        canvas.text(between, row + ROW / 2 + 0.02, "yes", fontsize=9, ha="center", color=INK)
        arrow(canvas, (middle, row), (middle, row - GAP))
        canvas.text(middle + 0.1, row - GAP / 2, "no", fontsize=9, va="center", color=INK)
        top -= ROW
    answer(canvas, MARGIN, top - ROW + GAP, WIDTH - 2 * MARGIN, color, *otherwise)
    return top - ROW


def answer(canvas: Axes, left: float, bottom: float, width: float, color: str, name: str, meaning: str) -> None:
    box(canvas, left, bottom, width, "white", color)
    write = {"ha": "center", "va": "center", "color": INK}
    middle, lines = left + width / 2, meaning.count("\n")
    center = bottom + (ROW - GAP) / 2
    canvas.text(middle, center + 0.13 + 0.07 * lines, name, fontsize=10.2, weight="bold", **write)
    canvas.text(middle, center - 0.13, meaning, fontsize=9, linespacing=1.3, **write)


def box(canvas: Axes, left: float, bottom: float, width: float, color: str, edge: str) -> None:
    style = {"boxstyle": "round,pad=0,rounding_size=0.09", "facecolor": color, "edgecolor": edge, "linewidth": 1.3}
    canvas.add_patch(FancyBboxPatch((left, bottom), width, ROW - GAP, **style))


def arrow(canvas: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 11, "linewidth": 1.2, "color": INK, "shrinkA": 1, "shrinkB": 1}
    canvas.add_patch(FancyArrowPatch(start, end, **style))


if __name__ == "__main__":
    main()
