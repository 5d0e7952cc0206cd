"""What the documentation says is so."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
import torch
from browser import needs_browser, what_is_shown, what_scrolls

import gpytorch_sgpvae
from gpytorch_sgpvae import metrics
from gpytorch_sgpvae.table import SGPVAEImputer, cli
from gpytorch_sgpvae.utils.locks import locked

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("concepts/*"), *DOCS.glob("reference/*")])
START = DOCS / "start.md"
# The pages show what users type, with fits of minutes.
SHORT_FIT = ["--max-epochs", "1", "--no-comparison", "--quiet"]


@pytest.mark.parametrize("name", ["architecture", "decide", "explaining_away"])
def test_the_committed_picture_is_what_the_code_draws(name):
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    if mpl.__version__ != pinned:
        pytest.skip(f"matplotlib {mpl.__version__} may draw it in other words than {pinned}")
    drawn = runpy.run_path(str(DOCS / f"{name}.py"))["draw"]()
    assert drawn == (DOCS / f"{name}.svg").read_text(), f"run python docs/{name}.py"


def blocks_of(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != START], ids=lambda page: str(page.relative_to(DOCS))
)
def test_the_code_on_the_page_does_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some pages write files
    run_code(page)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gpytorch_sgpvae.table.TableWarning")  # after one epoch
def test_who_starts_here_gets_a_model_and_a_filled_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SGPVAEImputer.__init__.__kwdefaults__, "max_epochs", 1)
    run_code(START)
    Path("filled.csv").unlink()
    commands = [shlex.split(line) for line in "".join(blocks_of(START, "sh")).splitlines() if line.startswith("sgpvae")]
    assert [command[1] for command in commands] == ["fit", "impute", "report"]
    for command in commands:
        assert cli.main([*command[1:], *(SHORT_FIT if command[1] == "fit" else ["--quiet"])]) == 0
    assert not pd.read_csv("filled.csv")[["temperature", "ozone"]].isna().any(axis=None)
    assert Path("report.html").stat().st_size > 100_000


def run_code(page):
    text = page.read_text()
    if page.suffix == ".md":  # whose fences would be taken for output
        blocks = blocks_of(page, "python")
        assert all(block.startswith(">>> ") for block in blocks)
        text = "\n".join(blocks)
    for extra in re.findall(r"^>>> (?:from gpytorch_sgpvae\.|import )(botorch|polars|xarray)\b", text, re.MULTILINE):
        pytest.importorskip(extra)
    torch.manual_seed(0)
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    report: list[str] = []
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failures = doctest.DocTestRunner(optionflags=options, verbose=False).run(test, out=report.append).failed
    assert not failures, "".join(report)


def test_what_the_pages_link_to_is_there():
    broken = [
        (page.name, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert not broken


def test_the_gallery_has_a_picture_of_every_tutorial():
    text = (DOCS / "gallery.md").read_text()
    shown = dict(re.findall(r"```\{tutorial-picture\} (\w+)\n:number: (\d+)\n:alt: .{20}", text))
    assert set(shown) == {path.stem for path in (ROOT / "tutorials").glob("*.ipynb")}
    pictures = runpy.run_path(str(DOCS / "gallery.py"))["pictures"]
    for name, number in shown.items():
        assert pictures(ROOT / "tutorials" / f"{name}.ipynb")[int(number)].startswith(b"\x89PNG"), name


def test_the_reference_has_every_public_name():
    text = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.rst"))
    documented = set(re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.MULTILINE))
    packages = [name for _, name, is_package in pkgutil.iter_modules(gpytorch_sgpvae.__path__) if is_package]
    assert "training" in packages
    public = set(gpytorch_sgpvae.__all__)
    for name in packages:
        if name in ("botorch", "xarray") and find_spec(name) is None:
            continue  # of an extra
        room = importlib.import_module(f"gpytorch_sgpvae.{name}")
        # rooms without public names have no list of them; a dictionary has no docstring of its own
        names = getattr(room, "__all__", [])
        public.update(each for each in names if not isinstance(getattr(room, each), dict))
    functions = inspect.getmembers(metrics, inspect.isfunction)
    public.update(name for name, function in functions if function.__module__ == metrics.__name__)
    missing = {name for name in public if not name.startswith("_")} - documented
    assert not missing


@pytest.mark.skipif(find_spec("sklearn") is None, reason="make docs installs scikit-learn")
def test_inventories_lead_to_the_pages_of_other_projects():
    inventories = runpy.run_path(str(DOCS / "inventories.py"))
    found = {name: inventories["entries"](site) for name, site in inventories["SITES"].items()}
    assert found["torch"]["torch.nn.modules.linear.Linear"] == (
        "class",
        "generated/torch.nn.Linear.html#torch.nn.Linear",
    )
    if find_spec("xarray") is not None:
        assert found["xarray"]["xarray.Dataset.interp"][0] == "method"
    assert found["torch"]["torch.exp"] == ("function", "generated/torch.exp.html#torch.exp")
    assert found["torch"]["Tensor"] == found["torch"]["torch.Tensor"] == ("class", "tensors.html#torch.Tensor")
    normal = "distributions.html#torch.distributions.normal.Normal"
    assert found["torch"]["torch.distributions.Normal"] == ("class", normal)
    elbo = "marginal_log_likelihoods.html#gpytorch.mlls.VariationalELBO"
    assert found["gpytorch"]["gpytorch.mlls.variational_elbo.VariationalELBO"] == ("class", elbo)
    operator = "data_sparse_operators.html#linear_operator.operators.DiagLinearOperator"
    assert found["linear_operator"]["linear_operator.operators.DiagLinearOperator"] == ("class", operator)
    assert found["pandas"]["pandas.DataFrame"] == ("class", "api/pandas.DataFrame.html#pandas.DataFrame")
    for name, site in found.items():  # none has taken up what it only imports
        assert not [key for key in site if key.startswith("collections") and name != "python"]


def build(source, output):
    options = ["-c", source / "docs", "-E", "-W", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", *options, source, output]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation, which builds without a warning. One process builds it for all that run the tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with locked(folder, seconds=600):
        if not (folder / "index.html").exists():
            result = build(ROOT, folder)
            assert result.returncode == 0, result.stderr
    return folder


def pages_of(site):
    pages = [str(path.relative_to(site)) for path in site.rglob("*.html") if "_static" not in path.parts]
    assert len(pages) > 40
    sources = [page for page in pages if page.startswith("_modules")]
    return [page for page in pages if page not in sources[3:]]  # which look all the same


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sphinx") is None, reason="make docs installs Sphinx")
class TestSite:
    def test_it_has_every_notebook_and_needs_no_network(self, site):
        assert "docs/index.html" in (site / "index.html").read_text()
        start = (site / "docs" / "index.html").read_text()
        notebooks = list((ROOT / "tutorials").glob("*.ipynb"))
        assert notebooks
        assert all(f'href="../tutorials/{path.stem}.html"' in start for path in notebooks)
        idea = (site / "docs" / "concepts" / "idea.html").read_text()
        assert "http" not in re.search(r'<script[^>]*src="([^"]*mathjax[^"]*)"', idea)[1]

    def test_names_of_others_are_links_to_their_documentation(self, site):
        text = "".join(path.read_text() for path in (site / "docs").rglob("*.html"))
        for target in (
            "https://docs.pytorch.org/docs/stable/tensors.html#torch.Tensor",
            "https://docs.gpytorch.ai/en/stable/variational.html#gpytorch.variational.VariationalStrategy",
            "https://pandas.pydata.org/docs/reference/api/pandas.DataFrame.html#pandas.DataFrame",
            "https://scikit-learn.org/stable/modules/generated/sklearn.base.BaseEstimator.html#sklearn.base.BaseEstimator",
            "https://numpy.org/doc/stable/reference/generated/numpy.ndarray.html#numpy.ndarray",
        ):
            assert f'href="{target}"' in text

    @needs_browser
    def test_no_line_of_code_has_to_be_scrolled(self, site, tmp_path):
        """The window has 1280 pixels, in which lines as long as ours are allowed to be are not wrapped either."""
        assert not what_scrolls(site, pages_of(site), 1280, 120, tmp_path)

    @needs_browser
    def test_no_page_has_to_be_scrolled_sideways_on_a_phone(self, site, tmp_path):
        """The window has 390 pixels, and code, tables and figures have to be within their boxes."""
        assert not what_scrolls(site, pages_of(site), 390, None, tmp_path)

    @needs_browser
    def test_a_search_leads_to_the_page(self, site, tmp_path):
        shown = what_is_shown(site, "search.html?q=jitter", tmp_path)
        assert 'href="docs/concepts/choosing.html#jitter"' in shown

    def test_no_page_loads_anything_from_elsewhere(self, site):
        elsewhere = re.compile(r"""<(?:script|img|link rel=.stylesheet.)[^>]*(?:src|href)=.https?:""")
        assert not [page for page in site.rglob("*.html") if elsewhere.search(page.read_text())]

    def test_broken_links_end_the_build(self, tmp_path):
        source = tmp_path / "source"
        (source / "docs").mkdir(parents=True)
        settings = (DOCS / "conf.py").read_text()
        (source / "docs" / "conf.py").write_text(settings)
        for name in ("gallery.py", "inventories.py"):
            shutil.copy(DOCS / name, source / "docs")
        for folder in ("_static", "_templates"):
            shutil.copytree(DOCS / folder, source / "docs" / folder)
        links = [
            "[a page](gone.md)",
            "[a heading](#nowhere)",
            "![a picture](gone.png)",
            "{py:class}`gpytorch_sgpvae.Gone`",
        ]
        (source / "docs" / "index.md").write_text("# Start\n\n" + "\n".join(links))
        result = build(source, tmp_path / "html")
        assert result.returncode != 0
        for target in ("gone.md", "nowhere", "gpytorch_sgpvae.Gone", "gone.png"):
            assert target in result.stderr
