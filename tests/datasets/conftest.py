from __future__ import annotations

import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpytorch_sgpvae.datasets import files
from gpytorch_sgpvae.datasets.files import DataFile


@pytest.fixture
def real_data():
    """The folder with the real files."""
    folder = os.environ.get(files.FOLDER_VARIABLE)
    if not folder:
        pytest.skip(f"{files.FOLDER_VARIABLE} is not set: it names the folder with the real files")
    return Path(folder)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder, that `SGPVAE_DATA` names."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv(files.FOLDER_VARIABLE, str(folder))
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no `SGPVAE_DATA`."""
    folder = tmp_path / "cache"
    monkeypatch.delenv(files.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(files, "cache_folder", lambda: folder)
    return folder


class Server:
    """Serves what is in `contents`, by path; of a path in `cut` only the first half."""

    def __init__(self):
        self.contents: dict[str, bytes] = {}
        self.cut: set[str] = set()
        self.requests: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.requests.append(self.path)
                if self.path not in server.contents:
                    self.send_error(404)
                    return
                content = server.contents[self.path]
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if self.path in server.cut else content)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def offer(self, path: str, content: str | bytes) -> DataFile:
        """A file on this server, at the same path as in a data folder."""
        content = content.encode() if isinstance(content, str) else content
        self.contents[f"/{path}"] = content
        return DataFile(path, hashlib.sha256(content).hexdigest(), f"{self.url}/{path}")


@pytest.fixture
def server(monkeypatch):
    """A server on the loopback interface, which no proxy comes between."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join(timeout=5)
