from __future__ import annotations

import os
import pickle

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


@pytest.fixture
def run(tmp_path):
    """A finished run and its folder."""
    module = make_module()
    make_quiet_trainer(tmp_path, max_epochs=2, checkpoint_every=1).fit(module, make_loader())
    return module, tmp_path


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
        torch.save(checkpoint, folder / "last.ckpt")
        self.refuse(folder, make_module(), "format 99, of gpytorch_sgpvae 9.0; version .* reads up to 1: upgrade")

    def test_a_checkpoint_of_something_else_is_refused(self, run):
        _, folder = run
        checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
        del checkpoint["gpytorch_sgpvae"]
        torch.save(checkpoint, folder / "last.ckpt")
        self.refuse(folder, make_module(), "not written by an SGPVAEModule")

    @pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
    def test_a_damaged_file_is_refused(self, run, damage):
        _, folder = run
        path = folder / "last.ckpt"
        whole = path.read_bytes()
        path.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "text": b"hello"}[damage])
        self.refuse(folder, make_module(), r"last.ckpt cannot be read as a checkpoint: it is damaged")

    def test_code_in_a_checkpoint_is_not_run(self, run):
        _, folder = run

        class Attack:
            def __reduce__(self):
                return os.mkdir, (str(folder / "attacked"),)

        checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
        torch.save({**checkpoint, "extra": Attack()}, folder / "last.ckpt")
        self.refuse(folder, make_module(), "could run code when loaded and is therefore refused")
        assert not (folder / "attacked").exists()

    def test_a_missing_file_is_called_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            AtomicCheckpointIO().load_checkpoint(tmp_path / "none.ckpt")


class TestWriting:
    @pytest.mark.parametrize("where", ["save", "fsync", "replace"])
    def test_whatever_is_cut_short_leaves_the_last_good_checkpoint(self, tmp_path, monkeypatch, where):
        io, path = AtomicCheckpointIO(), tmp_path / "last.ckpt"
        io.save_checkpoint({"step": 1}, path)

        def killed(*args, **kwargs):
            raise KeyboardInterrupt

        def half(checkpoint, file):
            file.write(pickle.dumps(checkpoint)[:5])
            raise KeyboardInterrupt

        if where == "save":
            monkeypatch.setattr(torch, "save", half)
        else:
            monkeypatch.setattr(os, where, killed)
        with pytest.raises(KeyboardInterrupt):
            io.save_checkpoint({"step": 2}, path)
        monkeypatch.undo()
        assert io.load_checkpoint(path) == {"step": 1}
        io.save_checkpoint({"step": 3}, path)
        assert io.load_checkpoint(path) == {"step": 3}
        assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]

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
