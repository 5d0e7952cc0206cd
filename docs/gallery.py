"""The pictures of gallery.md, from the outputs that notebooks were committed with, so that none is kept twice."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parent.parent
TUTORIALS = ROOT / "tutorials"
FOLDER = ROOT / "docs" / "_build" / "gallery"


class TutorialPicture(SphinxDirective):
    """
    A picture of a notebook in `tutorials/` as a link to it, with the content as its caption. The argument is the
    notebook's name without its ending, `number` counts its pictures from 0, `alt` says what is to be seen.
    """

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"number": directives.nonnegative_int, "alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        self.env.note_dependency(str(TUTORIALS / f"{name}.ipynb"))
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"{name}.png"
        path.write_bytes(pictures(TUTORIALS / f"{name}.ipynb")[self.options["number"]])

        # The caption has the same link as Sphinx knows it, which is checked.
        link = nodes.reference(refuri=self.env.app.builder.get_relative_uri(self.env.docname, f"tutorials/{name}"))
        link += nodes.image(uri=f"/{path.relative_to(ROOT).as_posix()}", alt=self.options["alt"])
        container = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, container)
        caption = nodes.caption("", "", *container.children[0].children)
        return [nodes.figure("", link, caption, classes=["tutorial-picture"])]


def pictures(notebook: Path) -> list[bytes]:
    """The PNG files among a notebook's outputs, from top to bottom."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    found = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    return [base64.b64decode("".join(lines)) for lines in found]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("tutorial-picture", TutorialPicture)
    return {"parallel_read_safe": True}
