"""A page of sections with tables and pictures, in one file: nothing is loaded from elsewhere, and no script runs."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

import jinja2
import matplotlib
from matplotlib.figure import Figure

from .. import __version__

# Widths of a picture in a column of a page, and of one as wide as the page, in inches: both are readable on a phone.
COLUMN, PAGE = 4.4, 7.2
STYLE = {
    "svg.hashsalt": "gpytorch_sgpvae",  # the same picture is the same text
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "legend.fontsize": 9,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Picture:
    """
    :param source: An address that holds the picture itself.
    :param alt: A description of the picture for those who do not see it.
    :param caption: A text that explains how to read it.
    """

    source: str
    width: int
    height: int
    alt: str
    caption: str
    wide: bool = False

    @classmethod
    def of(cls, figure: Figure, alt: str, caption: str) -> Picture:
        """The figure as it is drawn; also with dates, a file of the same figure is the same."""
        file = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            figure.savefig(file, format="svg", metadata={"Date": None})
        width, height = (round(96 * inches) for inches in figure.get_size_inches())
        source = f"data:image/svg+xml;base64,{base64.b64encode(_shortened(file.getvalue())).decode()}"
        return cls(source, width, height, alt, caption, wide=figure.get_figwidth() > COLUMN)


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """
    A table.

    :param rows: The first cell of each is its heading.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Section:
    """
    :param key: The name of the section in links.
    :param text: Paragraphs at the top.
    :param facts: Names and values, shown large.
    :param notes: Paragraphs at the end, small.
    """

    key: str
    title: str
    text: Sequence[str] = ()
    facts: dict[str, str] = field(default_factory=dict)
    tables: Sequence[Grid] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()


def render(title: str, lead: str, sections: Sequence[Section], footer: str) -> str:
    """The page."""
    template = resources.files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(template)
    return page.render(title=title, lead=lead, sections=sections, footer=footer, version=__version__)


def _shortened(picture: bytes) -> bytes:
    """Paths without the digits that no screen shows."""
    digits = re.compile(rb"(\.\d\d)\d+")
    return re.sub(rb' d="[^"]*"', lambda path: digits.sub(rb"\1", path[0]), picture)
