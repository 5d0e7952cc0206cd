"""Files of tensors: what was written comes back, and what was not is refused."""

from __future__ import annotations

import hashlib
import io
import math
import os
import random
import zipfile

import pytest
import torch

from gpytorch_sgpvae.utils.tensor_files import (
    _MARK,
    DamagedFileError,
    check_finite,
    from_bytes,
    is_whole,
    read_tensors,
    to_bytes,
    write_tensors,
)

CONTENT = {
    "weight": torch.arange(200.0).reshape(20, 10),
    "step": 3,
    "names": ["a", "b"],
    "nested": {"x": torch.ones(3)},
}


@pytest.fixture
def path(tmp_path):
    write_tensors(tmp_path / "weights.pt", CONTENT)
    return tmp_path / "weights.pt"


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


class TestContent:
    def test_what_was_written_comes_back(self, path):
        content = read_tensors(path)
        assert content["step"] == 3
        assert content["names"] == ["a", "b"]
        assert torch.equal(content["weight"], CONTENT["weight"])
        assert torch.equal(content["nested"]["x"], torch.ones(3))

    def test_torch_and_zipfile_read_it_too(self, path):
        assert torch.load(path, weights_only=True)["step"] == 3
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            assert archive.comment.startswith(b"gpytorch_sgpvae sha256 ")

    def test_the_old_file_can_be_kept(self, path):
        write_tensors(path, {"step": 4}, previous=path.with_name("previous.pt"))
        assert read_tensors(path) == {"step": 4}
        assert read_tensors(path.with_name("previous.pt"))["step"] == 3

    def test_whether_a_file_is_whole_can_be_asked(self, path, tmp_path):
        assert is_whole(path)
        assert not is_whole(tmp_path / "none.pt")
        path.write_bytes(path.read_bytes()[:-1])
        assert not is_whole(path)


class TestDamage:
    def test_sixty_flipped_bits_are_all_seen(self, path):
        data, generator = path.read_bytes(), random.Random(0)
        for _ in range(60):
            with pytest.raises(DamagedFileError, match=r"weights.pt (is damaged|cannot be read)"):
                from_bytes(flipped(data, generator.randrange(8 * len(data))), str(path))

    def test_every_flipped_bit_of_the_last_bytes_is_seen(self, path):
        data = path.read_bytes()
        for bit in range(8 * (len(data) - 130), 8 * len(data)):
            with pytest.raises(DamagedFileError):
                from_bytes(flipped(data, bit), "it")

    @pytest.mark.parametrize(
        "change", [lambda d: d[:-1], lambda d: d[: len(d) // 2], lambda d: d + b"\0", lambda d: b""]
    )
    def test_other_lengths_are_seen(self, path, change):
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(DamagedFileError, match="no checksum at its end"):
            read_tensors(path)

    def test_a_file_that_is_missing_is_called_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            read_tensors(tmp_path / "none.pt")


class TestRefusals:
    def test_code_is_not_run(self, path, tmp_path):
        class Attack:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "attacked"),)

        write_tensors(path, {"weight": Attack()})
        with pytest.raises(DamagedFileError, match="could run code when loaded and is therefore refused"):
            read_tensors(path)
        assert not (tmp_path / "attacked").exists()

    def test_an_archive_that_grows_when_unpacked_is_refused(self, path):
        buffer = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as old, zipfile.ZipFile(buffer, "w") as new:
            for entry in old.infolist():
                new.writestr(entry.filename, old.read(entry), zipfile.ZIP_DEFLATED)
        with pytest.raises(DamagedFileError, match="unpacked it would be larger than the"):
            from_bytes(sealed(buffer.getvalue()), "it")

    def test_a_tensor_that_is_larger_than_its_file_is_refused(self):
        data = to_bytes({"weight": torch.zeros(1).expand(10**12)})
        with pytest.raises(DamagedFileError, match=r"shape \(1000000000000,\) in it takes 4000000000000 bytes, more"):
            from_bytes(data, "it")

    @pytest.mark.parametrize("tensor", [torch.eye(3).to_sparse(), torch.empty(3, device="meta")])
    def test_what_is_no_plain_array_is_refused(self, tensor):
        with pytest.raises(DamagedFileError, match="not a plain array of numbers"):
            from_bytes(to_bytes([(tensor,)]), "it")

    def test_what_is_no_archive_is_refused(self):
        with pytest.raises(DamagedFileError, match="no archive of tensors"):
            from_bytes(sealed(b"hello" + b"\0" * 20), "it")

    def test_a_container_that_holds_itself_ends(self):
        content = [torch.ones(2)]
        content.append(content)
        assert torch.equal(from_bytes(to_bytes(content), "it")[0], torch.ones(2))


LIKE = {"weight": torch.ones(3), "lower_bound": torch.tensor(0.0), "upper_bound": torch.tensor(math.inf)}


class TestFiniteNumbers:
    def test_finite_ones_pass(self):
        check_finite({**LIKE, "step": torch.tensor(3)}, LIKE, "it")

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("name", ["weight", "lower_bound"])
    def test_others_are_refused_by_name(self, name, value):
        damaged = LIKE[name].clone()
        damaged.view(-1)[0] = value
        with pytest.raises(DamagedFileError, match=f"it has 1 numbers in {name} that are not finite, such as {value}"):
            check_finite({**LIKE, name: damaged}, LIKE, "it")

    def test_a_buffer_that_is_nan_in_the_model_too_passes(self):
        unset = {"unset": torch.tensor([math.nan, 1.0])}
        check_finite(unset, unset, "it")

    def test_an_infinite_bound_has_to_be_the_models_own(self):
        with pytest.raises(DamagedFileError, match="upper_bound"):
            check_finite({"upper_bound": torch.tensor(-math.inf)}, LIKE, "it")


def sealed(archive: bytes) -> bytes:
    """Bytes with a sum that is right, as a forger would make them."""
    signed = archive[:-2] + (len(_MARK) + 64).to_bytes(2, "little") + _MARK
    return signed + hashlib.sha256(signed).hexdigest().encode()
