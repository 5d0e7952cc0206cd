from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from gpytorch_sgpvae.datasets import files
from gpytorch_sgpvae.datasets.files import DataFile, check_name, locate, read_table

PATH = "sea/waves.csv"
CONTENT = "time,height\n0,1.5\n1,2.5\n"


def put(folder, content=CONTENT, path=PATH):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(content)
    return folder / path


def left_in(cache):
    return [path for path in cache.rglob("*") if path.is_file()]


class TestDataFolder:
    def test_its_files_are_taken_and_nothing_is_downloaded(self, folder, server):
        path = put(folder)
        assert locate(server.offer(PATH, CONTENT)) == path
        assert server.requests == []

    def test_a_missing_file_is_named_with_where_to_get_it(self, folder, server):
        file = server.offer(PATH, CONTENT)
        with pytest.raises(FileNotFoundError, match=r"no file .*waves\.csv.*unset SGPVAE_DATA to download") as error:
            locate(file)
        assert str(folder / PATH) in str(error.value)
        assert file.url in str(error.value)
        assert server.requests == []

    def test_a_damaged_file_is_named_with_both_sums(self, folder, server):
        path = put(folder, CONTENT[:-4])
        file = server.offer(PATH, CONTENT)
        with pytest.raises(ValueError, match=r"waves\.csv is damaged, or another version: its sha256") as error:
            locate(file)
        assert all(text in str(error.value) for text in (str(path), file.sha256, file.url))

    def test_a_file_of_another_size_is_named_with_both_sizes(self, folder, server):
        put(folder)
        with pytest.raises(ValueError, match=r"waves\.csv is damaged, or another version: it has 24 bytes, expected 7"):
            locate(server.offer(PATH, CONTENT)._replace(size=7))

    def test_it_has_to_be_a_folder(self, folder, monkeypatch):
        monkeypatch.setenv("SGPVAE_DATA", str(folder / "elsewhere"))
        with pytest.raises(FileNotFoundError, match=r"elsewhere', which is no folder: .*unset the variable"):
            locate(DataFile(PATH))

    def test_an_empty_variable_is_none(self, cache, server, monkeypatch):
        monkeypatch.setenv("SGPVAE_DATA", "")
        assert locate(server.offer(PATH, CONTENT)) == cache / PATH


class TestDownload:
    def test_a_file_is_downloaded_once(self, cache, server):
        file = server.offer(PATH, CONTENT)
        assert locate(file) == locate(file) == cache / PATH
        assert (cache / PATH).read_text() == CONTENT
        assert server.requests == [f"/{PATH}"]

    def test_what_has_another_sum_is_refused_and_not_kept(self, cache, server):
        file = server.offer(PATH, CONTENT)._replace(sha256="0" * 64)
        with pytest.raises(
            ValueError, match=r"does not have the sha256 0000.*Try again, or put the file.*SGPVAE_DATA"
        ) as error:
            locate(file)
        assert file.url in str(error.value)
        assert left_in(cache) == []

    def test_what_is_not_there_is_an_error_that_names_the_place(self, cache, server):
        file = server.offer(PATH, CONTENT)
        server.contents.clear()
        with pytest.raises(ConnectionError, match=r"could not be downloaded .*404.*put the file.*SGPVAE_DATA") as error:
            locate(file)
        assert file.url in str(error.value)
        assert left_in(cache) == []

    @pytest.mark.parametrize("summed", [True, False])
    def test_half_a_file_is_not_kept(self, cache, server, summed):
        file = server.offer(PATH, CONTENT)
        file = file if summed else file._replace(sha256=None)
        server.cut.add(f"/{PATH}")
        with pytest.raises(ConnectionError, match="could not be downloaded"):
            locate(file)
        assert left_in(cache) == []
        server.cut.clear()
        assert locate(file).read_text() == CONTENT

    def test_a_server_that_cannot_be_reached_is_an_error_that_says_what_to_do(self, cache, monkeypatch):
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with socket.socket() as closed:  # bound, so that nobody else takes the port, and not listening
            closed.bind(("127.0.0.1", 0))
            file = DataFile(PATH, "0" * 64, f"http://127.0.0.1:{closed.getsockname()[1]}/{PATH}")
            with pytest.raises(ConnectionError, match=r"Try again when that is mended, or put the file .*SGPVAE_DATA"):
                locate(file)
        assert left_in(cache) == []

    def test_a_file_that_was_damaged_in_the_cache_is_downloaded_again(self, cache, server):
        put(cache, CONTENT[:-4])
        assert locate(server.offer(PATH, CONTENT)).read_text() == CONTENT

    def test_a_file_that_nobody_offers_says_where_it_goes(self, cache):
        with pytest.raises(FileNotFoundError, match=r"Nobody offers it for download: put your copy there, or name the"):
            locate(DataFile(PATH))
        path = put(cache)
        assert locate(DataFile(PATH)) == path

    def test_what_has_another_size_is_refused_and_not_kept(self, cache, server):
        file = server.offer(PATH, CONTENT)._replace(sha256=None, size=len(CONTENT) + 1)
        with pytest.raises(ValueError, match=r"has 24 bytes, expected 25\. Try again, or put the file .*SGPVAE_DATA"):
            locate(file)
        assert left_in(cache) == []
        assert locate(file._replace(size=len(CONTENT))) == cache / PATH


class TestNames:
    """An inventory that somebody has tampered with must not lead out of the cache, or to what is no file."""

    ELSEWHERE = (
        "../a.csv",
        "b/../../a.csv",
        "/etc/passwd",
        "C:/a.csv",
        "..\\a.csv",
        "b\\a.csv",
        "~/a",
        "b//a.csv",
        "b/",
        "",
    )
    NO_FILES = (".", "b/.ssh", "b/-rf", "b/a.csv\0", "b/a\n.csv", "b/nul", "CON.csv", "b/a a.csv", "b/a.csv?x=1")

    @pytest.mark.parametrize("path", ELSEWHERE + NO_FILES)
    def test_a_name_that_leads_elsewhere_is_refused_before_anything_is_asked_for(self, cache, server, path):
        with pytest.raises(ValueError, match="is no name of a file below a folder: expected letters"):
            locate(server.offer(PATH, CONTENT)._replace(path=path))
        assert server.requests == []
        assert not cache.exists()

    def test_nor_is_it_read_from_the_data_folder(self, folder):
        (folder.parent / "secret.csv").write_text(CONTENT)
        with pytest.raises(ValueError, match="no name of a file"):
            locate(DataFile("../secret.csv"))

    @pytest.mark.parametrize("path", ["SMNI_CMI_TEST/Test/Data241.csv", "ghcn/JAW00041416.csv", "a-b_c.tar.gz"])
    def test_names_of_files_are_fine(self, path):
        check_name(path)


class TestTables:
    def test_columns_come_in_the_order_asked_for(self, tmp_path):
        assert list(read_table(put(tmp_path), ["height", "time"], optional=["foam"]).columns) == ["height", "time"]

    @pytest.mark.parametrize("content", [CONTENT, "", "<html>not found</html>", 'time,foam\n"0,'])
    def test_a_file_of_another_layout_is_named_with_what_was_expected(self, tmp_path, content):
        path = put(tmp_path, content)
        with pytest.raises(
            ValueError, match=r"Expected comma-separated values with columns time, foam: .*get it again"
        ):
            read_table(path, ["time", "foam"])
        with pytest.raises(ValueError, match=str(path)):
            read_table(path, ["time", "foam"])


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas.*pip install 'gpytorch-sgpvae\[datasets\]'"):
        files.require("pandas")


def test_without_the_extra_there_are_generated_data():
    script = (
        "import sys; sys.modules['pandas'] = sys.modules['pooch'] = None; "
        "from gpytorch_sgpvae import datasets; print(datasets.bouncing_ball(2, 5, 3).y.shape)"
    )
    output = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "torch.Size([2, 5, 3])"
