"""A saved model is a folder without code in it, whole or not there."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import make_imputer, make_table

from gpytorch_sgpvae.table import SGPVAEImputer, TableError


@pytest.fixture
def folder(imputer, tmp_path):
    imputer.save(tmp_path / "model")
    return tmp_path / "model"


def test_it_predicts_the_same_after_loading(imputer, table, folder):
    loaded = SGPVAEImputer.load(folder)
    pd.testing.assert_frame_equal(loaded.transform(table, intervals=True), imputer.transform(table, intervals=True))
    assert loaded.families_ == imputer.families_
    pd.testing.assert_frame_equal(loaded.history_, imputer.history_)
    assert loaded.get_params() == {**imputer.get_params(), "covariates": [], "progress": True, "dtype": "float64"}


@pytest.mark.slow
def test_it_predicts_the_same_in_another_process(imputer, table, folder, tmp_path):
    table.to_csv(tmp_path / "table.csv", index=False)
    script = (
        "import sys, pandas as pd; from gpytorch_sgpvae.table import SGPVAEImputer; "
        "SGPVAEImputer.load(sys.argv[1]).transform(pd.read_csv(sys.argv[2])).to_csv(sys.argv[3], index=False)"
    )
    paths = [str(path) for path in (folder, tmp_path / "table.csv", tmp_path / "filled.csv")]
    subprocess.run([sys.executable, "-c", script, *paths], check=True)
    filled = pd.read_csv(tmp_path / "filled.csv")
    np.testing.assert_allclose(filled["temp"], imputer.transform(table)["temp"], rtol=1e-9)
    assert (filled["sky"] == imputer.transform(table)["sky"]).all()


def test_it_loads_in_single_precision(imputer, table, folder):
    loaded = SGPVAEImputer.load(folder, dtype=torch.float32)
    assert next(loaded.model_.parameters()).dtype == torch.float32
    np.testing.assert_allclose(loaded.transform(table)["temp"], imputer.transform(table)["temp"], rtol=0.05)


def test_the_folder_has_json_and_tensors_that_load_without_code(folder):
    names = sorted(path.name for path in folder.iterdir())
    assert names[0] == "imputer.json"
    assert len(names) == 2
    description = json.loads((folder / "imputer.json").read_text())
    assert description["tensors"] == names[1]
    state = torch.load(folder / names[1], weights_only=True)
    assert all(isinstance(value, torch.Tensor) for value in state.values())


def test_a_save_that_fails_leaves_the_old_model(table, folder, monkeypatch):
    before = SGPVAEImputer.load(folder).transform(table)
    other = make_imputer(max_epochs=1, seed=5).fit(table)
    original = json.dumps

    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr("gpytorch_sgpvae.table.storage.json.dumps", fail)
    with pytest.raises(OSError, match="no space"):
        other.save(folder)
    monkeypatch.setattr("gpytorch_sgpvae.table.storage.json.dumps", original)
    pd.testing.assert_frame_equal(SGPVAEImputer.load(folder).transform(table), before)


def test_a_save_that_is_killed_between_two_files_leaves_the_old_model(table, folder, monkeypatch):
    import gpytorch_sgpvae.table.storage as storage

    before = SGPVAEImputer.load(folder).transform(table)
    other = make_imputer(max_epochs=1, seed=5).fit(table)
    replacing = storage.replacing

    def killed(path):
        if path.name == "imputer.json":
            raise KeyboardInterrupt
        return replacing(path)

    monkeypatch.setattr(storage, "replacing", killed)
    with pytest.raises(KeyboardInterrupt):
        other.save(folder)
    monkeypatch.setattr(storage, "replacing", replacing)
    pd.testing.assert_frame_equal(SGPVAEImputer.load(folder).transform(table), before)
    other.save(folder)  # and the next one takes its place, and leaves nothing of the others
    assert len(list(folder.iterdir())) == 2
    pd.testing.assert_frame_equal(SGPVAEImputer.load(folder).transform(table), other.transform(table))


def test_a_model_of_a_newer_format_is_refused(folder):
    description = json.loads((folder / "imputer.json").read_text())
    (folder / "imputer.json").write_text(json.dumps({**description, "format": 99, "version": "9.0"}))
    with pytest.raises(TableError, match=r"saved by gpytorch_sgpvae 9.0, in format 99; .* Update the package"):
        SGPVAEImputer.load(folder)


def test_what_is_no_model_is_refused(folder, tmp_path, imputer):
    with pytest.raises(TableError, match="no saved model"):
        SGPVAEImputer.load(tmp_path / "gone")
    (folder / "imputer.json").write_text("{}")
    with pytest.raises(TableError, match="not the description of a saved model"):
        SGPVAEImputer.load(folder)
    imputer.save(folder)
    next(folder.glob("*.pt")).write_bytes(b"damaged")
    with pytest.raises(TableError, match="damaged or missing"):
        SGPVAEImputer.load(folder)


def test_it_does_not_write_over_what_is_no_model(imputer, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(TableError, match="holds other files and no saved model"):
        imputer.save(tmp_path)
    with pytest.raises(TableError, match="is a file"):
        imputer.save(tmp_path / "letter.txt")


def test_only_what_was_fitted_is_saved(tmp_path):
    with pytest.raises(TableError, match="not been fitted"):
        make_imputer().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_loaded_model_fills_tasks_that_it_has_never_seen(folder):
    filled = SGPVAEImputer.load(folder).transform(make_table(num_tasks=2, seed=9))
    assert filled["temp"].notna().all()
