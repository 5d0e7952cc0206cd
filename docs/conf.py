"""
Settings of the documentation, which is built of the whole repository: its pages stand in docs/, and the notebooks, the
glossary, the changelog and the results are pages where they are, so that links among them work here and on a code host.
"""

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType

import matplotlib.axes
import numpy as np
import torch
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.autosummary import autosummary_table

from gpytorch_sgpvae import plotting

sys.path.insert(0, str(Path(__file__).parent))
import inventories

project = "gpytorch_sgpvae"
author = "the gpytorch_sgpvae developers"
copyright = author
version = release = importlib.metadata.version("gpytorch-sgpvae")

extensions = [
    "gallery",
    "matplotlib.sphinxext.plot_directive",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",  # equations without a network
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "docs/**.rst",
    "tutorials/*.ipynb",
    "GLOSSARY.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "benchmarks/results/**.md",
    "experiments/RESULTS.md",
]
# folders that are not even looked into
exclude_patterns = [".*", "build", "dist", "runs", "docs/_build", "docs/_static", "docs/_templates", "*.egg-info"]
nitpicky = True
nitpick_ignore_regex = [
    # that are not in anybody's documentation, or in one that inventories.py does not know
    ("py:.*", r"(botorch|gpytorch\.lazy|lightning|pyarrow)\..*"),
    ("py:class", "InputTransform|Moments|OutcomeTransform|PosteriorTransform"),
    # that are not public, and stand in signatures
    ("py:class", "Encoding|AmortizedModel"),
    (
        "py:.*",
        r"gpytorch_sgpvae\.variational\.(amortized_strategy|encoding|conditioning|joint_prior|joint_strategy|point_marginals)\..*",
    ),
    ("py:.*", r"gpytorch_sgpvae\.(variational\.state_space_prior|linalg\.(markov|chain))\..*"),
    ("py:.*", r"gpytorch_sgpvae\..*\._.*"),
    ("py:.*", r"gpytorch_sgpvae\.(datasets\.missingness|inference_networks\.stacked_mlp|mlp|models\.base)\..*"),
    ("py:.*", r"gpytorch_sgpvae\.likelihoods\.components\..*"),
    (
        "py:.*",
        r"gpytorch_sgpvae\.(table\.answers|table\.outputs|table\.fitted|training\.task_dataset|utils\.seeds)\..*",
    ),
    ("py:.*", r"gpytorch_sgpvae\.likelihoods\.(components|observation_models\.distributions)\..*"),
    # that a class describes in its :ivar or :param lines
    ("py:attr", r"(StateSpace\.)?\w+"),
]

intersphinx_mapping = inventories.write(Path(__file__).parent / "_build" / "inventories")
intersphinx_disabled_reftypes = ["std:*"]

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are committed as they ran, and tested
nb_merge_streams = True

autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False  # not those of other packages
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autosummary_generate = False
default_role = "literal"

# For the model that the pictures are of: a second thread only waits for the first, and far longer on a busy machine.
torch.set_num_threads(1)
plot_include_source = True
plot_html_show_formats = plot_html_show_source_link = False
plot_formats = [("png", 110)]
# which its signatures name, and only a type checker imports
for module in vars(plotting).values():
    if isinstance(module, ModuleType):
        module.np, module.Axes = np, matplotlib.axes.Axes

html_theme = "furo"
html_title = "gpytorch_sgpvae"
html_static_path = ["_static"]
html_css_files = ["style.css"]
templates_path = ["_templates"]
html_additional_pages = {"index": "to_start_page.html"}
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", end_summaries)


def end_summaries(app: Sphinx, doctree: nodes.document) -> None:
    """A docstring's first sentence often goes on with an equation; in a list of names it ends there."""
    for table in doctree.findall(autosummary_table):
        for paragraph in table.findall(nodes.paragraph):
            last = paragraph[-1]
            if isinstance(last, nodes.Text) and last.endswith((",", ":")):
                paragraph.replace(last, nodes.Text(last[:-1] + "."))
