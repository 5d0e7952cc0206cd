"""Pages as a browser shows them."""

from __future__ import annotations

import contextlib
import functools
import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="chromium is not installed: pages are not opened in it"
)

OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--dump-dom"]
OPTIONS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]

# One page after the other in a frame, and the blocks of code that are wider than their box.
PROBE = """<!doctype html><iframe id="f" width="%(width)d" height="900"></iframe><script>
const pages = %(pages)s, letters = %(letters)s, found = {};
const frame = document.getElementById("f");
let next = 0;
frame.onload = () => {
    const page = frame.contentDocument;
    if (page && page.body && page.location.href !== "about:blank") {
        const blocks = letters === null ? [] : [...page.querySelectorAll("pre")];
        const scroll = e => e.scrollWidth > e.clientWidth + 1;
        const wide = blocks.filter(scroll);
        for (const e of blocks.filter(e => e.textContent.split("\\n").every(line => line.length <= letters))) {
            e.style.whiteSpace = "pre";
            if (scroll(e) && !wide.includes(e)) wide.push(e);
        }
        if (page.documentElement.scrollWidth > %(width)d) wide.push(page.body);
        if (wide.length) found[pages[next - 1]] = wide.map(e => [e.scrollWidth - e.clientWidth, e.textContent]);
    }
    if (next < pages.length) frame.src = pages[next++];
    else { document.body.dataset.done = next; document.body.dataset.found = JSON.stringify(found); }
};
frame.src = pages[next++];
</script>"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with contextlib.suppress(ConnectionError):  # the browser has left the page
            super().copyfile(source, outputfile)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the files of a folder, and yield the address at which they are."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def what_scrolls(
    folder: Path, pages: Sequence[str], width: int, letters: int | None, profile: Path
) -> dict[str, list[list[Any]]]:
    """
    Find what has to be scrolled sideways, and by how many pixels, by page: the page itself, its blocks of code, and
    those of short lines that would have to be if the lines were not wrapped.

    :param folder: The site.
    :param pages: Its pages.
    :param width: The width of the window, in pixels.
    :param letters: The length of a line of code that must fit without being wrapped; None if code may be scrolled.
    :param profile: A folder for the browser.
    """
    probe = folder / "probe.html"
    settings = {"width": width, "letters": json.dumps(letters), "pages": json.dumps(pages)}
    probe.write_text(PROBE % settings)
    try:
        shown = what_is_shown(folder, "probe.html", profile, width + 100)
    finally:
        probe.unlink()
    done = re.search(r'data-done="(\d+)"', shown)
    assert done, shown[-500:]
    assert int(done[1]) == len(pages)
    return json.loads(html.unescape(re.search(r'data-found="([^"]*)"', shown)[1]))


def what_is_shown(folder: Path, page: str, profile: Path, width: int = 1280) -> str:
    """
    A page's HTML after its scripts have run.

    :param folder: The site.
    :param page: The page in it, with a query if there is one.
    :param profile: A folder for the browser.
    :param width: The width of the window, in pixels.
    """
    with serving(folder) as address:
        command = ["chromium", *OPTIONS, f"--user-data-dir={profile}", "--virtual-time-budget=600000"]
        command += [f"--window-size={width},1000", f"{address}/{page}"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
