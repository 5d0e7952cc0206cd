"""The page is whole, says what is so, and can be read on a screen and on a phone."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import warnings
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from gpytorch_sgpvae.datasets import weather_table
from gpytorch_sgpvae.table import SGPVAEImputer, TableWarning
from gpytorch_sgpvae.table.case import Case
from gpytorch_sgpvae.table.fitted import FittedTable
from gpytorch_sgpvae.table.report import write_report

OUTPUTS = ["temperature", "wind", "lightning", "fog", "sky"]
SECTIONS = ["table", "missingness", "scores", "calibration", "examples", "map", "learnt", "training"]
TITLE = 'Weather <in "the" Alps> & elsewhere'


class Page(HTMLParser):
    """What a test asks of a page: its texts, its pictures, its tables, and all addresses."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.pictures, self.addresses, self.tags, self.rows = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        if tag == "section":
            self.ids.append(attributes["id"])
        if tag == "img":
            self.pictures.append(attributes)
        if tag == "tr":
            self.rows.append([])
        self.addresses += [attributes[name] for name in ("src", "href", "action", "data") if name in attributes]

    def handle_data(self, data):
        if self.rows and self.tags[-1] in ("td", "th") and data.strip():
            self.rows[-1].append(data.strip())


@pytest.fixture(scope="module")
def table():
    frame = weather_table(num_stations=6, num_weeks=3).table
    sky = np.where(frame["wind"] > 4, "clear", np.where(frame["wind"] > 2.5, "gray", "dark"))
    frame["sky"] = pd.Series(sky).mask(frame["wind"].isna())
    return frame


@pytest.fixture(scope="module")
def imputer(table):
    return fit(table, ["lat", "lon", "elev", "day"], OUTPUTS, task="week")


def fit(table, inputs, outputs, **options):
    """Fit as quickly as can be; what it has to say about itself is not the matter here."""
    options = {"max_epochs": 1, "num_latents": 1, "progress": False, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        return SGPVAEImputer(inputs, outputs, **options).fit(table)


def written(imputer, table, folder):
    """The page, whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        write_report(imputer, table, folder / "report.html")
    return Page((folder / "report.html").read_text())


def sensors(num_rows=120, seed=0):
    """Three sensors along time, with holes."""
    random = np.random.default_rng(seed)
    wave = np.sin(np.arange(num_rows) / 5)
    values = wave[:, None] * [1.0, 2.0, -1.0] + 0.1 * random.normal(size=(num_rows, 3))
    frame = pd.DataFrame(np.where(random.random(values.shape) < 0.2, np.nan, values), columns=["a", "b", "c"])
    frame.insert(0, "when", pd.date_range("2024-02-01", periods=num_rows, freq="h"))
    return frame


@pytest.fixture(scope="module")
def path(imputer, table, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(imputer, table, path, TITLE)
    return path


@pytest.fixture(scope="module")
def page(path):
    return Page(path.read_text())


def test_it_has_every_section(page):
    assert page.ids == SECTIONS


def test_nothing_is_loaded_from_elsewhere_and_no_script_runs(page, path):
    assert all(address.startswith(("data:image/svg+xml;base64,", "#")) for address in page.addresses)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    text = re.sub(r'src="data:[^"]*"', "", path.read_text())
    assert "http" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_pictures_are_whole_and_told_in_words(page):
    assert len(page.pictures) >= 10
    for picture in page.pictures:
        assert len(picture["alt"]) > 20
        drawing = ET.fromstring(base64.b64decode(picture["src"].partition(",")[2]))
        assert drawing.tag.endswith("svg")


def test_names_and_titles_are_text_and_no_markup(path):
    assert "Weather &lt;in &#34;the&#34; Alps&gt; &amp; elsewhere" in path.read_text()


def test_the_summary_counts_what_is_missing(page, table, imputer):
    rows = {row[0]: row for row in page.rows}
    for name in OUTPUTS:
        described = next(row for row in page.rows if row[0] == name)
        assert described[1] == imputer.families_[name]
        assert described[2] == f"{table[name].isna().sum():,}"
    assert "output" in rows


def test_the_scores_are_those_of_score(page, table, imputer):
    scores = imputer.scores(table)
    own = next(row for row in page.rows if "NLL" in row)
    rows = page.rows[page.rows.index(own) + 1 :][: len(OUTPUTS)]
    assert [row[2] for row in rows if row[0] != "sky"] == [
        f"{scores.at[name, 'rmse']:.3g}" for name in OUTPUTS if name != "sky"
    ]


def test_the_model_is_compared_with_interpolation_and_boosting_on_the_same_entries(page, table, imputer):
    compared = [row for row in page.rows if row and row[0] == "temperature"][1]
    masked, hidden = imputer.hide(table)
    errors = (table["temperature"] - masked["temperature"].mean())[hidden["temperature"]]
    assert compared[3] == f"{np.sqrt((errors**2).mean()) / table['temperature'].std(ddof=0):.3g}"
    assert ["output", "entries", "model", "mean", "interpolation", "boosting"] in page.rows


def test_what_the_fit_found_is_there_too_and_winners_are_marked(page, path, imputer):
    comparison = imputer.comparison_
    of_wind = [row[:3] for row in page.rows if row[0] == "wind" and len(row) == 6]
    assert ["wind", str(comparison.at["wind", ("n", "")]), f"{comparison.at['wind', ('rmse', 'model')]:.3g}"] in of_wind
    # RMSE and CRPS of four outputs with numbers, now and in the fit
    assert path.read_text().count('<td class="best">') >= 2 * 2 * 4


def test_calibration_is_told_of_all_outputs(tmp_path):
    random = np.random.default_rng(0)
    values = np.sin(np.arange(80) / 5)[:, None] + 0.1 * random.normal(size=(80, 9))
    names = [f"sensor {p}" for p in range(9)]
    frame = pd.DataFrame(values, columns=names).assign(hour=np.arange(80.0))
    page = written(fit(frame, ["hour"], names, compare=False), frame, tmp_path)
    start = page.rows.index(["output", "hidden", "50 %", "80 %", "95 %"])
    assert [row[0] for row in page.rows[start + 1 : start + 10]] == names
    assert any("a panel for each of 9 outputs" in picture["alt"] for picture in page.pictures)


def test_the_map_is_of_a_moment_with_data_and_of_one_with_holes(table, imputer):
    case = Case(imputer, table)
    full, holes = case.moments
    known = ~case.known[:, case.mapped].isnan().numpy()
    moments = table.groupby(["week", "day"], sort=False).indices.values()
    assert known[full].sum() == max(known[rows].sum() for rows in moments)
    assert min(known[holes].sum(), (~known[holes]).sum()) > 0


def test_a_long_series_is_conditioned_on_once_and_drawn_from_what_is_near(monkeypatch, tmp_path):
    frame = sensors(num_rows=3000)
    imputer = fit(frame, ["when"], ["a", "b", "c"], compare=False, max_minutes=0.02)
    seen = []
    whole = FittedTable.moments_of
    monkeypatch.setattr(FittedTable, "moments_of", lambda self, x, *rest: seen.append(len(x)) or whole(self, x, *rest))
    case = Case(imputer, frame)
    case.scores, case.at_rows(case.hidden_rows), case.along_series
    case.at_rows(case.hidden_rows[:5]), case.scores
    assert len(seen) == 2
    assert seen[0] == 3000
    assert len(case.examples) == 3


@pytest.mark.slow
def test_the_same_table_makes_the_same_page(imputer, table, path, tmp_path):
    write_report(imputer, table, tmp_path / "again.html", TITLE)
    assert (tmp_path / "again.html").read_bytes() == path.read_bytes()


def test_an_old_page_stays_where_a_new_one_fails(imputer, table, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(ValueError, match="wind"):
        write_report(imputer, table.drop(columns="wind"), path)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"


def test_of_a_large_table_some_hidden_rows_are_judged(monkeypatch, tmp_path):
    monkeypatch.setattr("gpytorch_sgpvae.table.case.MOST_ASKED", 20)
    frame = sensors()
    imputer = fit(frame, ["when"], ["a", "b", "c"], compare=False)
    case = Case(imputer, frame)
    assert len(case.hidden_rows) == 20
    assert case.scores["n"].sum() == case.asked.sum() < case.num_hidden
    assert case.known.isnan().sum() == frame[["a", "b", "c"]].isna().to_numpy().sum() + case.num_hidden


def test_a_table_of_one_series_with_dates_has_no_map(tmp_path):
    frame = sensors()
    page = written(fit(frame, ["when"], ["a", "b", "c"]), frame, tmp_path)
    assert page.ids == [section for section in SECTIONS if section != "map"]


def test_a_table_of_labels_alone(tmp_path):
    kinds = np.array(["clear", "gray", "dark"])[np.arange(60) // 4 % 3]
    frame = pd.DataFrame({"day": np.arange(60), "sky": pd.Series(kinds).mask(np.arange(60) % 7 == 0)})
    page = written(fit(frame, ["day"], ["sky"]), frame, tmp_path)
    assert page.ids == ["table", "missingness", "scores", "learnt", "training"]
    assert any("accuracy" in row for row in page.rows)


ZONES = ["+02:00" if hour < 60 else "+01:00" for hour in range(120)]
DATES = {
    "mixed UTC offsets": lambda when: [f"{time:%Y-%m-%dT%H:%M}{zone}" for time, zone in zip(when, ZONES, strict=True)],
    "naive and aware times": lambda when: [f"{time:%Y-%m-%dT%H:%M}{'Z' * (i % 2)}" for i, time in enumerate(when)],
    "the day first": lambda when: [f"{time:%d.%m.%Y %H:%M}" for time in when],
    "a time zone": lambda when: when.dt.tz_localize("Europe/Berlin"),
}


@pytest.mark.parametrize("kind", DATES)
def test_dates_of_any_kind_are_drawn(kind, tmp_path):
    frame = sensors()
    frame["when"] = DATES[kind](frame["when"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        case = Case(fit(frame, ["when"], ["a", "b", "c"], compare=False), frame)
    assert len(written(case.imputer, frame, tmp_path).pictures) > 5
    steps = np.diff(24 * case.positions(case.frame).numpy())  # hours; an hour is lost where the offset changes
    assert steps.min() == pytest.approx(1.0, abs=1e-6)
    assert steps.max() == pytest.approx(2.0 if kind == "mixed UTC offsets" else 1.0, abs=1e-6)


@pytest.mark.parametrize("task", [None, "week(index)"])
def test_dates_in_the_index(task, tmp_path):
    frame = sensors(num_rows=24 * 14).set_index("when").rename_axis(None)
    page = written(fit(frame, ["index"], ["a", "b", "c"], task=task, compare=False), frame, tmp_path)
    assert page.ids == [section for section in SECTIONS if section != "map"]


def test_an_output_that_is_wholly_missing_from_the_table(tmp_path):
    frame = sensors()
    imputer = fit(frame, ["when"], ["a", "b", "c"])
    page = written(imputer, frame.assign(b=np.nan), tmp_path)
    assert ["b", "real", "120", "100 %"] in page.rows
    assert page.ids == [section for section in SECTIONS if section != "map"]


def test_covariates_are_known_where_series_are_drawn(tmp_path):
    frame = sensors().assign(sun=np.cos(np.arange(120) / 5))
    imputer = fit(frame, ["when"], ["a", "b"], covariates=["sun"], compare=False)
    assert len(written(imputer, frame, tmp_path).pictures) > 5


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed: the page is not opened in it")
class TestInABrowser:
    def run(self, folder, *options):
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        command += [f"--user-data-dir={folder / 'browser'}", *options]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    def test_it_shows_all_its_sections_and_pictures(self, path, tmp_path):
        """A script that only the test has tells how wide things are; the page is narrower than its window."""
        probe = tmp_path / "probe.html"
        script = """<script>addEventListener("load", () => {
            const images = [...document.images];
            const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, figure.wide"))
                .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName);
            document.body.dataset.drawn = images.filter(i => i.complete && i.naturalWidth > 0).length;
            document.body.dataset.images = images.length;
            document.body.dataset.wide = wide.join(" ");
            document.body.dataset.overflow = document.documentElement.scrollWidth - innerWidth;
            document.body.dataset.title = document.title; });</script>"""
        probe.write_text(path.read_text().replace("</body>", f"{script}</body>"))
        for width in (1280, 390):
            # a window is never as narrow as a phone, but a frame in it is
            frame = tmp_path / f"{width}.html"
            frame.write_text(f'<iframe id="f" src="probe.html" width="{width}" height="2000"></iframe>' + COPY)
            dom = self.run(
                tmp_path, "--allow-file-access-from-files", "--virtual-time-budget=20000", "--dump-dom", frame.as_uri()
            )
            found = dict(re.findall(r'data-(\w+)="([^"]*)"', dom.partition("</iframe>")[2]))
            assert found["images"] == found["drawn"] != "0"
            assert found["wide"] == ""
            assert int(found["overflow"]) <= 0
            assert "Weather" in found["title"]

    @pytest.mark.parametrize("width", [1280, 390])
    def test_a_screenshot_has_content_from_top_to_bottom(self, path, tmp_path, width):
        picture = tmp_path / "page.png"
        self.run(tmp_path, f"--screenshot={picture}", f"--window-size={width},3000", path.as_uri())
        pixels = np.asarray(Image.open(picture).convert("L"), dtype=float)
        bands = np.array_split(pixels, 10)
        assert all(band.std() > 5 for band in bands)


# What a page in a frame knows of itself, for the page around it.
COPY = """<script>
addEventListener("load", () => { const page = document.getElementById("f").contentDocument;
  const copy = document.createElement("p"); Object.assign(copy.dataset, page.body.dataset);
  document.body.append(copy); });</script>"""
