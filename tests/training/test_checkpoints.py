from __future__ import annotations

import errno
import os
import random

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from training_runs import (
    assert_same_parameters,
    make_loader,
    make_module,
    make_quiet_trainer,
    make_sgpvae,
    make_tasks,
)

from gpytorch_sgpvae import SGPVAE
from gpytorch_sgpvae.training import AtomicCheckpointIO, RunCheckpoint, SGPVAEModule
from gpytorch_sgpvae.utils.files import DiskFullError
from gpytorch_sgpvae.utils.tensor_files import DamagedFileError, read_tensors, write_tensors


@pytest.fixture
def run(tmp_path):
    """A finished run and its folder, with one checkpoint."""
    module = make_module()
    make_quiet_trainer(tmp_path, max_epochs=2).fit(module, make_loader())
    return module, tmp_path


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


class TestContent:
    def test_a_checkpoint_loads_without_running_code(self, run):
        _, folder = run
        checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
        assert checkpoint["gpytorch_sgpvae"]["format"] == 1
        assert checkpoint["gpytorch_sgpvae"]["version"]
        assert checkpoint["gpytorch_sgpvae"]["loader"]["position"] == 4

    def test_a_model_comes_back_from_it(self, run):
        module, folder = run
        loaded = SGPVAEModule.load_from_checkpoint(folder / "last.ckpt", model=make_sgpvae(seed=9), weights_only=True)
        assert_same_parameters(loaded, module)
        assert loaded.hparams.learning_rate == module.hparams.learning_rate

    def test_a_loaded_model_can_be_trained_on_other_tasks(self, run):
        _, folder = run
        loaded = SGPVAEModule.load_from_checkpoint(folder / "last.ckpt", model=make_sgpvae(), weights_only=True)
        trainer = make_quiet_trainer(max_epochs=1)
        trainer.fit(loaded, make_loader(make_tasks((3, 4, 5)), batch_size=1))
        assert trainer.global_step == 3

    def test_any_number_of_inducing_points_comes_back_from_it(self, tmp_path):
        module = make_module()
        module.model.strategy.set_inducing_points(torch.rand(9, 2))
        make_quiet_trainer(tmp_path, max_epochs=1).fit(module, make_loader())
        loaded = SGPVAEModule.load_from_checkpoint(tmp_path / "last.ckpt", model=make_sgpvae(), weights_only=True)
        assert loaded.model.strategy.inducing_points.shape == (9, 2)
        resumed = make_module()
        make_quiet_trainer(tmp_path, max_epochs=2).fit(resumed, make_loader(), ckpt_path="last")
        assert resumed.model.strategy.inducing_points.shape == (9, 2)

    def test_the_count_of_skipped_steps_comes_back(self, tmp_path):
        module = make_module()
        module.bad_steps.total = 3
        make_quiet_trainer(tmp_path, max_epochs=1).fit(module, make_loader())
        resumed = make_module()
        make_quiet_trainer(tmp_path, max_epochs=2).fit(resumed, make_loader(), ckpt_path="last")
        assert resumed.skipped_steps == 3


class TestRefusals:
    def refuse(self, folder, module, match):
        before = [parameter.detach().clone() for parameter in module.parameters()]
        with pytest.raises(ValueError, match=match):
            make_quiet_trainer(folder, max_epochs=3).fit(module, make_loader(), ckpt_path="last")
        assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))

    def test_another_architecture_is_refused_with_the_differences(self, run):
        _, folder = run
        wider = SGPVAEModule(SGPVAE(3, 2, torch.rand(5, 2, dtype=torch.float64), hidden_sizes=(16,)))
        self.refuse(
            folder, wider, r"(?s)another architecture.*decoder.0.weight is \(8, 2\) in the .* and \(16, 2\) in the"
        )

    def test_another_number_of_layers_is_refused_with_the_differences(self, run):
        _, folder = run
        deeper = SGPVAEModule(SGPVAE(3, 2, torch.rand(5, 2, dtype=torch.float64), hidden_sizes=(8, 8)))
        self.refuse(folder, deeper, r"(?s)another architecture.*decoder.4.weight is only in the model")

    def test_a_newer_format_is_refused(self, run):
        _, folder = run
        checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
        checkpoint["gpytorch_sgpvae"].update(format=99, version="9.0")
        write_tensors(folder / "last.ckpt", checkpoint)
        self.refuse(folder, make_module(), "format 99, of gpytorch_sgpvae 9.0; version .* reads up to 1: upgrade")

    def test_a_checkpoint_of_something_else_is_refused(self, run):
        _, folder = run
        checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
        del checkpoint["gpytorch_sgpvae"]
        write_tensors(folder / "last.ckpt", checkpoint)
        self.refuse(folder, make_module(), "not written by an SGPVAEModule")

    @pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
    def test_a_damaged_file_is_refused(self, run, damage):
        _, folder = run
        path = folder / "last.ckpt"
        whole = path.read_bytes()
        path.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "text": b"hello"}[damage])
        self.refuse(folder, make_module(), "last.ckpt cannot be read: it has no checksum at its end")

    def test_code_in_a_checkpoint_is_not_run(self, run):
        _, folder = run

        class Attack:
            def __reduce__(self):
                return os.mkdir, (str(folder / "attacked"),)

        checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
        write_tensors(folder / "last.ckpt", {**checkpoint, "extra": Attack()})
        self.refuse(folder, make_module(), "could run code when loaded and is therefore refused")
        assert not (folder / "attacked").exists()

    def test_a_missing_file_is_called_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            AtomicCheckpointIO().load_checkpoint(tmp_path / "none.ckpt")

    def test_sixty_flipped_bits_are_all_seen(self, run):
        _, folder = run
        path = folder / "last.ckpt"
        generator = random.Random(0)
        for _ in range(60):
            bit = generator.randrange(8 * path.stat().st_size)
            flip(path, bit)
            with pytest.raises(DamagedFileError):
                AtomicCheckpointIO().load_checkpoint(path)
            flip(path, bit)
        AtomicCheckpointIO().load_checkpoint(path)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_weights_that_are_not_finite_are_refused(self, run, value):
        _, folder = run
        checkpoint = read_tensors(folder / "last.ckpt")
        checkpoint["state_dict"]["model.likelihood.decoder.0.weight"][0, 1] = value
        write_tensors(folder / "last.ckpt", checkpoint)
        self.refuse(folder, make_module(), f"1 numbers in model.likelihood.decoder.0.weight .* not finite.* {value}")

    def test_a_damaged_one_gives_no_model(self, run):
        _, folder = run
        flip(folder / "last.ckpt", 5000)
        with pytest.raises(DamagedFileError, match=r"last.ckpt is damaged: its sha256 is"):
            SGPVAEModule.load_from_checkpoint(folder / "last.ckpt", model=make_sgpvae())

    def test_a_model_from_a_checkpoint_runs_no_code_unless_asked_to(self, run):
        _, folder = run

        class Attack:
            def __reduce__(self):
                return os.mkdir, (str(folder / "attacked"),)

        write_tensors(folder / "last.ckpt", {**read_tensors(folder / "last.ckpt"), "extra": Attack()})
        with pytest.raises(DamagedFileError, match="could run code"):
            SGPVAEModule.load_from_checkpoint(folder / "last.ckpt", model=make_sgpvae())
        assert not (folder / "attacked").exists()


class TestTwoCheckpoints:
    def make_run(self, folder, max_epochs=3, **kwargs):
        module = make_module()
        trainer = make_quiet_trainer(folder, max_epochs=max_epochs, checkpoint_every=1, **kwargs)
        trainer.fit(module, make_loader(), ckpt_path="last")
        return module

    def steps(self, folder):
        return [read_tensors(folder / name)["global_step"] for name in ("last.ckpt", "previous.ckpt")]

    def test_the_last_and_the_one_before_are_kept(self, tmp_path):
        self.make_run(tmp_path)
        assert self.steps(tmp_path) == [12, 11]
        assert {path.name for path in tmp_path.iterdir()} == {"last.ckpt", "previous.ckpt", "curves.png"}

    def test_a_run_whose_last_checkpoint_is_damaged_ends_as_if_it_were_not(self, tmp_path):
        reference = self.make_run(tmp_path / "reference")
        self.make_run(tmp_path / "run", max_epochs=2)
        flip(tmp_path / "run" / "last.ckpt", 5000)
        with pytest.warns(UserWarning, match=r"damaged: .* The checkpoint before it, previous.ckpt, takes"):
            module = self.make_run(tmp_path / "run")
        assert_same_parameters(module, reference)

    @pytest.mark.filterwarnings("ignore:.*takes its place")
    def test_a_damaged_one_does_not_take_the_place_of_the_good_one_before(self, tmp_path):
        self.make_run(tmp_path, max_epochs=2)
        flip(tmp_path / "last.ckpt", 5000)
        AtomicCheckpointIO().save_checkpoint({"global_step": 99}, tmp_path / "last.ckpt")
        assert self.steps(tmp_path) == [99, 7]

    def test_two_damaged_ones_are_an_error(self, tmp_path):
        self.make_run(tmp_path, max_epochs=2)
        for name in ("last.ckpt", "previous.ckpt"):
            flip(tmp_path / name, 5000)
        with pytest.raises(DamagedFileError, match=r"last.ckpt is damaged"):
            self.make_run(tmp_path)

    def test_the_older_one_alone_is_gone_on_from(self, tmp_path):
        """A kill between the two moves leaves it alone where the file system knows no links."""
        reference = self.make_run(tmp_path / "reference")
        self.make_run(tmp_path / "run", max_epochs=2)
        (tmp_path / "run" / "last.ckpt").unlink()
        assert_same_parameters(self.make_run(tmp_path / "run"), reference)
        (tmp_path / "run" / "last.ckpt").unlink()
        with pytest.warns(UserWarning, match=r"last.ckpt is missing. The checkpoint before it"):
            AtomicCheckpointIO().load_checkpoint(tmp_path / "run" / "last.ckpt")

    def test_a_full_disk_ends_with_a_sentence_and_with_room_the_run_goes_on(self, tmp_path, monkeypatch):
        reference = self.make_run(tmp_path / "reference")
        folder, sync, syncs = tmp_path / "run", os.fsync, []

        def fill_up(descriptor):
            syncs.append(descriptor)
            if len(syncs) > 10:  # two for each of the first five
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fill_up)
        with (
            pytest.warns(UserWarning, match=r"The training curves were not drawn: .*curves.png could not be written"),
            pytest.raises(DiskFullError, match=r"last.ckpt could not be written: there is no room .*: make room"),
        ):
            self.make_run(folder)
        assert self.steps(folder) == [5, 4]
        assert {path.name for path in folder.iterdir()} == {"last.ckpt", "previous.ckpt"}
        monkeypatch.undo()
        assert_same_parameters(self.make_run(folder), reference)


class TestWriting:
    @pytest.mark.parametrize("where", ["save", "fsync", "replace"])
    def test_whatever_is_cut_short_leaves_the_last_good_checkpoint(self, tmp_path, monkeypatch, where):
        io, path = AtomicCheckpointIO(), tmp_path / "last.ckpt"
        io.save_checkpoint({"step": 1}, path)

        def killed(*args, **kwargs):
            raise KeyboardInterrupt

        monkeypatch.setattr(torch if where == "save" else os, where, killed)
        with pytest.raises(KeyboardInterrupt):
            io.save_checkpoint({"step": 2}, path)
        monkeypatch.undo()
        assert io.load_checkpoint(path) == {"step": 1}
        io.save_checkpoint({"step": 3}, path)
        assert io.load_checkpoint(path) == {"step": 3}
        assert sorted(file.name for file in tmp_path.iterdir()) == ["last.ckpt", "previous.ckpt"]

    def test_an_existing_folder_is_written_into_and_a_missing_one_made(self, tmp_path):
        AtomicCheckpointIO().save_checkpoint({}, tmp_path / "a" / "b" / "last.ckpt")
        assert (tmp_path / "a" / "b" / "last.ckpt").exists()

    def test_a_checkpoint_every_so_many_steps_and_one_at_the_end(self, tmp_path, monkeypatch):
        steps = []
        original = RunCheckpoint._save

        def save(callback, trainer, at_end_of_epoch=False):
            steps.append((trainer.global_step, at_end_of_epoch))
            original(callback, trainer, at_end_of_epoch)

        monkeypatch.setattr(RunCheckpoint, "_save", save)
        make_quiet_trainer(tmp_path, max_epochs=3, checkpoint_every=5).fit(make_module(), make_loader())
        assert steps == [(5, False), (10, False), (12, True)]

    def test_an_interval_below_one_is_an_error(self):
        with pytest.raises(ValueError, match="every_n_steps must be at least 1"):
            RunCheckpoint("folder", 0)

    @pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")
    def test_the_best_model_is_kept_beside_the_last(self, tmp_path):
        trainer = make_quiet_trainer(tmp_path, max_epochs=4, monitor="val_elbo")
        trainer.fit(make_module(), make_loader(), make_loader(make_tasks(seed=3), shuffle=False))
        best = next(callback for callback in trainer.callbacks if type(callback).__name__ == "BestCheckpoint")
        assert isinstance(best, ModelCheckpoint)
        assert {path.name for path in tmp_path.iterdir()} == {"best.ckpt", "last.ckpt", "curves.png"}
        assert torch.load(tmp_path / "best.ckpt", weights_only=True)["state_dict"]
        module = make_module()
        scores = make_quiet_trainer().validate(
            module, make_loader(make_tasks(seed=3), shuffle=False), ckpt_path=tmp_path / "best.ckpt", verbose=False
        )
        assert scores[0]["val_elbo"] == pytest.approx(best.best_model_score.item())
