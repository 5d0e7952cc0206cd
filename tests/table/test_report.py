"""The page is whole, says what is so, and can be read on a screen and on a phone."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from gpytorch_sgpvae.datasets import weather_table
from gpytorch_sgpvae.table import SGPVAEImputer
from gpytorch_sgpvae.table.report import write_report

OUTPUTS = ["temperature", "wind", "lightning", "fog", "sky"]
SECTIONS = ["table", "missingness", "scores", "calibration", "examples", "map", "training"]
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
    return SGPVAEImputer(
        ["lat", "lon", "elev", "day"], OUTPUTS, "week", num_inducing=10, max_epochs=1, compare=False, progress=False
    ).fit(table)


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


def test_the_scores_are_those_of_score_and_of_the_baselines(page, table, imputer):
    scores = imputer.score(table)
    compared = [row for row in page.rows if row and row[0] == "temperature"][1]
    assert compared[1] == f"{scores.at['temperature', 'rmse']:.3g}"
    masked, hidden = imputer.hide(table)
    errors = (table["temperature"] - masked["temperature"].mean())[hidden["temperature"]]
    assert compared[2] == f"{np.sqrt((errors**2).mean()):.3g}"


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


def test_a_table_of_one_series_with_dates_and_no_map(tmp_path):
    time = pd.date_range("2024-01-01", periods=60, freq="D")
    frame = pd.DataFrame({"when": time.astype(str), "level": np.sin(np.arange(60) / 5)})
    frame.loc[10:20, "level"] = np.nan
    imputer = SGPVAEImputer(["when"], ["level"], max_epochs=1, compare=False, progress=False).fit(frame)
    write_report(imputer, frame, tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    assert page.ids == [section for section in SECTIONS if section != "map"]


def test_a_table_of_labels_alone(tmp_path):
    kinds = np.array(["clear", "gray", "dark"])[np.arange(60) // 4 % 3]
    frame = pd.DataFrame({"day": np.arange(60), "sky": pd.Series(kinds).mask(np.arange(60) % 7 == 0)})
    imputer = SGPVAEImputer(["day"], ["sky"], max_epochs=1, compare=False, progress=False).fit(frame)
    write_report(imputer, frame, tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    assert page.ids == ["table", "missingness", "scores", "training"]
    assert any("accuracy" in row for row in page.rows)


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
