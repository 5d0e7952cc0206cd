"""JSON files: what was written comes back, and what was not is refused."""

from __future__ import annotations

import hashlib
import json
import math
import random

import pytest

from gpytorch_sgpvae.utils import json_files
from gpytorch_sgpvae.utils.json_files import read_json, write_json
from gpytorch_sgpvae.utils.tensor_files import DamagedFileError

CONTENT = {"kind": "model", "sizes": [3, 20], "name": 'Ōsaka "0" ' + "0" * 64, "nested": {"loss": 0.1, "none": None}}


@pytest.fixture
def path(tmp_path):
    write_json(tmp_path / "model.json", CONTENT)
    return tmp_path / "model.json"


def put(path, text):
    """A text with the sum that is right, as a forger would write it."""
    blank = text + json_files._TAIL
    path.write_bytes((blank[:-67] + hashlib.sha256(blank.encode()).hexdigest() + blank[-3:]).encode())


def test_what_was_written_comes_back(path):
    assert read_json(path) == CONTENT
    assert json.loads(path.read_text())["sizes"] == [3, 20]
    write_json(path, {"loss": math.nan})
    assert math.isnan(read_json(path)["loss"])
    write_json(path, {})
    assert read_json(path) == {}


def test_three_hundred_flipped_bits_are_all_seen(path):
    data, generator = path.read_bytes(), random.Random(0)
    for bit in [*(generator.randrange(8 * len(data)) for _ in range(60)), *range(8 * (len(data) - 30), 8 * len(data))]:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError):
            read_json(path)


def test_an_edited_file_is_refused(path):
    path.write_text(path.read_text().replace("[\n    3,", "[\n    4,"))
    with pytest.raises(DamagedFileError, match=r"model.json is damaged, or was edited: its sha256 is"):
        read_json(path)


@pytest.mark.parametrize("text", ["", "{}", "hello", '{"kind": "model"}'])
def test_a_file_without_a_sum_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(DamagedFileError, match="does not end with its checksum"):
        read_json(path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"a": 1, "a": 2, ', "a name comes twice"),
        ("[" * 100_000, "no JSON file"),
        ("[1, ", "no JSON file"),
        ('{"a": ' + "9" * 5000 + ", ", "no JSON file"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "no JSON file"),
    ],
    ids=["twice", "deep", "broken", "digits", "text"],
)
def test_what_is_no_description_is_refused(path, text, match):
    put(path, text)
    with pytest.raises(DamagedFileError, match=match):
        read_json(path)


def test_a_file_that_is_too_large_is_refused(path, monkeypatch):
    monkeypatch.setattr(json_files, "MOST_BYTES", 100)
    with pytest.raises(DamagedFileError, match="refused: it has more than 100 bytes"):
        read_json(path)
