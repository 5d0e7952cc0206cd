"""Windows are filled by PyPOTS' convention, with the exact posterior of the model that was learnt."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from gpytorch_sgpvae.models import window_model
from gpytorch_sgpvae.utils.tensor_files import read_tensors, write_tensors
from gpytorch_sgpvae.windows import WindowImputer

STEPS, FEATURES = 8, 3


def make_sets(seed: int = 0, number: int = 60) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A training set, and one with the windows before entries were hidden."""
    random = np.random.default_rng(seed)
    walks = random.standard_normal((number, STEPS, 2)).cumsum(1) @ random.standard_normal((2, FEATURES))
    X_ori = 50 + 10 * walks + random.standard_normal(walks.shape)
    X_ori[0, 0, 0] = np.nan  # missing before anything was hidden
    X = np.where(random.random(X_ori.shape) < 0.3, np.nan, X_ori)
    half = number // 2
    return {"X": X[:half]}, {"X": X[half:], "X_ori": X_ori[half:]}


def hidden(test_set):
    return np.isnan(test_set["X"]) & ~np.isnan(test_set["X_ori"])


@pytest.fixture(scope="module")
def fitted():
    train_set, val_set = make_sets()
    imputer = WindowImputer(STEPS, FEATURES, epochs=8)
    imputer.fit(train_set, val_set)
    return imputer


def test_what_is_known_stays_and_what_is_missing_is_filled(fitted):
    _, test_set = make_sets()
    filled = fitted.impute(test_set)
    known = ~np.isnan(test_set["X"])
    assert filled.shape == test_set["X"].shape
    assert filled.dtype == np.float32
    assert np.array_equal(filled[known], test_set["X"][known].astype(np.float32))
    assert np.isfinite(filled).all()


def test_it_is_better_than_linear_interpolation(fitted):
    import pandas as pd

    _, test_set = make_sets(0)
    truth, asked = test_set["X_ori"], hidden(test_set)
    lines = np.stack(
        [pd.DataFrame(window).interpolate(limit_direction="both").fillna(50.0) for window in test_set["X"]]
    )
    ours, theirs = (np.abs(filled - truth)[asked].mean() for filled in (fitted.impute(test_set), lines))
    assert ours < 0.8 * theirs


def test_intervals_are_around_what_was_filled_and_hold_the_truth_about_as_often_as_they_say(fitted):
    _, test_set = make_sets()
    result = fitted.predict(test_set, level=0.9)
    known, asked = ~np.isnan(test_set["X"]), hidden(test_set)
    for name in ("imputation", "lower", "upper"):
        assert np.array_equal(result[name][known], test_set["X"][known].astype(np.float32))
    assert (result["std"][known] == 0).all()
    assert (result["std"][~known] > 0).all()
    inside = (result["lower"] <= test_set["X_ori"]) & (test_set["X_ori"] <= result["upper"])
    assert 0.8 < inside[asked].mean() < 0.97
    wider = fitted.predict(test_set, level=0.99)
    assert (wider["upper"] > result["upper"])[~known].all()


def test_the_mean_of_draws_is_the_imputation_and_their_spread_its_standard_deviation(fitted):
    _, test_set = make_sets()
    test_set = {"X": test_set["X"][:4]}
    result, draws = fitted.predict(test_set), fitted.impute(test_set, n_sampling_times=2000)
    assert draws.shape == (4, 2000, STEPS, FEATURES)
    assert draws.dtype == np.float32
    missing = np.isnan(test_set["X"])
    errors = (draws.mean(1) - result["imputation"])[missing] / result["std"][missing]
    assert np.abs(errors).max() < 5 / np.sqrt(2000)
    assert draws.std(1)[missing] == pytest.approx(result["std"][missing], rel=0.15)
    assert (draws == draws[:, :1])[~missing[:, None].repeat(2000, axis=1)].all()


def test_without_a_validation_set_the_prediction_is_the_exact_posterior_of_its_model():
    train_set, test_set = make_sets()
    imputer = WindowImputer(STEPS, FEATURES, epochs=1)
    imputer.fit(train_set)
    mean, stddev = np.nanmean(train_set["X"], (0, 1)), np.nanstd(train_set["X"], (0, 1))
    windows = torch.tensor((test_set["X"] - mean) / stddev)
    x = torch.arange(float(STEPS), dtype=torch.float64).unsqueeze(-1)
    outputs = imputer.model.predict(x, (x, windows))
    result = imputer.predict(test_set)
    assert result["reconstruction"] == pytest.approx(mean + stddev * outputs.mean.numpy(), rel=1e-6)
    missing = np.isnan(test_set["X"])
    assert result["std"][missing] == pytest.approx((stddev * outputs.stddev.numpy())[missing], rel=1e-6)


@pytest.mark.parametrize("convert", [torch.tensor, np.ndarray.tolist, lambda X: X.astype(np.float32)])
def test_arrays_tensors_and_lists_are_the_same(fitted, convert):
    _, test_set = make_sets()
    assert fitted.impute({"X": convert(test_set["X"])}) == pytest.approx(fitted.impute(test_set), rel=1e-5)


def test_other_keys_are_passed_over():
    train_set, _ = make_sets(number=12)
    results = []
    for more in ({}, {"X_ori": "nothing to read", "y": np.zeros(6)}):
        imputer = WindowImputer(STEPS, FEATURES, epochs=1)
        imputer.fit({**train_set, **more})
        results.append(imputer.impute({**train_set, **more}))
    assert np.array_equal(*results)


def test_the_same_seed_learns_the_same():
    train_set, val_set = make_sets(number=40)
    results = []
    for seed in (0, 0, 1):
        imputer = WindowImputer(STEPS, FEATURES, batch_size=5, epochs=1, seed=seed)
        torch.manual_seed(len(results))
        imputer.fit(train_set)
        results.append(imputer.impute(val_set))
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def test_a_validation_set_that_gets_no_better_ends_the_training_and_the_best_parameters_are_kept():
    train_set, val_set = make_sets()
    # a learning rate that ruins the model
    imputer = WindowImputer(STEPS, FEATURES, epochs=30, patience=2, learning_rate=1.0)
    imputer.fit(train_set, val_set)
    scores = [epoch["mse"] for epoch in imputer.history]
    assert len(scores) == 1 + int(np.argmin(scores)) + 2 < 30
    asked, scale = hidden(val_set), np.nanstd(train_set["X"], (0, 1))
    errors = (imputer.predict(val_set)["reconstruction"] - val_set["X_ori"]) / scale
    assert np.square(errors[asked]).mean() == pytest.approx(min(scores), rel=1e-5)


def test_epochs_are_told_where_that_is_wanted(capsys):
    train_set, _ = make_sets(number=8)
    WindowImputer(STEPS, FEATURES, epochs=1).fit(train_set)
    assert capsys.readouterr().out == ""
    WindowImputer(STEPS, FEATURES, epochs=2, verbose=True).fit(train_set)
    assert capsys.readouterr().out.count("Epoch") == 2


def test_what_was_saved_fills_the_same(fitted, tmp_path):
    _, test_set = make_sets()
    path = tmp_path / "models" / "windows.pt"
    fitted.save(path)
    loaded = WindowImputer(STEPS, FEATURES)
    loaded.load(path)
    before, after = fitted.predict(test_set), loaded.predict(test_set)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fitted.save(path)
    fitted.save(path, overwrite=True)
    with pytest.raises(ValueError, match=f"make a WindowImputer with n_steps={STEPS}, n_features={FEATURES}"):
        WindowImputer(STEPS, FEATURES + 1).load(path)


def test_files_that_are_no_saved_imputer_are_refused(fitted, tmp_path):
    path = tmp_path / "windows.pt"
    fitted.save(path)
    for change, message in (
        (lambda content: content.update(kind="another"), "has not been written by WindowImputer"),
        (lambda content: content["tensors"]["mean"].fill_(torch.nan), "3 numbers in mean that are not finite"),
        (lambda content: content["tensors"].pop("factors"), "take another copy"),
    ):
        content = read_tensors(path)
        change(content)
        write_tensors(tmp_path / "changed.pt", content)
        with pytest.raises(ValueError, match=message):
            WindowImputer(STEPS, FEATURES).load(tmp_path / "changed.pt")
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="damaged"):
        WindowImputer(STEPS, FEATURES).load(path)


@pytest.mark.skipif(find_spec("h5py") is None, reason="h5py is not installed")
def test_a_file_is_read_as_its_dictionary(fitted, tmp_path):
    import h5py

    _, test_set = make_sets()
    path = tmp_path / "test.h5"
    with h5py.File(path, "w") as file:
        for key, values in test_set.items():
            file[key] = values
    assert np.array_equal(fitted.impute(str(path)), fitted.impute(test_set))
    other = WindowImputer(STEPS, FEATURES, epochs=1)
    other.fit(path, path)
    assert np.isfinite(other.impute(path)).all()


def test_without_h5py_the_error_says_what_to_install(fitted, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"gpytorch-sgpvae\[hdf5\]"):
        fitted.impute("windows.h5")


@pytest.mark.parametrize(
    ("test_set", "error", "message"),
    [
        ({"Y": 1}, ValueError, r"test_set must contain 'X', got the keys \['Y'\]"),
        ([[1.0]], TypeError, "test_set is a list: expected a dictionary"),
        ({"X": np.zeros((2, STEPS, 4))}, ValueError, r"has shape \(2, 8, 4\): expected \(n_samples, 8, 3\)"),
        ({"X": np.zeros((STEPS, FEATURES))}, ValueError, r"has shape \(8, 3\): expected"),
        ({"X": np.full((1, STEPS, FEATURES), np.inf)}, ValueError, "infinite values"),
    ],
)
def test_bad_sets_are_refused_with_what_was_expected(fitted, test_set, error, message):
    with pytest.raises(error, match=message):
        fitted.impute(test_set)


def test_what_cannot_be_learnt_from_is_refused():
    train_set, val_set = make_sets(number=8)
    imputer = WindowImputer(STEPS, FEATURES, epochs=1)
    with pytest.raises(RuntimeError, match="call fit"):
        imputer.impute(train_set)
    with pytest.raises(ValueError, match="no known entry"):
        imputer.fit({"X": np.full((2, STEPS, FEATURES), np.nan)})
    with pytest.raises(ValueError, match="val_set must contain 'X_ori'"):
        imputer.fit(train_set, {"X": val_set["X"]})
    with pytest.raises(ValueError, match="Nothing is hidden"):
        imputer.fit(train_set, {"X": val_set["X"], "X_ori": val_set["X"]})
    with pytest.raises(ValueError, match="4 in X, 3 in X_ori"):
        imputer.fit(train_set, {"X": val_set["X"], "X_ori": val_set["X_ori"][:3]})
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        WindowImputer(STEPS, FEATURES, epochs=0)


def test_windows_without_anything_and_features_without_anything_are_filled():
    train_set, test_set = make_sets(number=20)
    train_set["X"][3] = np.nan
    train_set["X"][:, :, 2] = np.nan
    test_set["X"][0] = np.nan
    imputer = WindowImputer(STEPS, FEATURES, epochs=1)
    imputer.fit(train_set)
    assert np.isfinite(imputer.impute(test_set)).all()


def test_long_windows_are_filtered_over_time_and_short_ones_are_not():
    kinds = {shape: type(window_model(*shape)).__name__ for shape in ((48, 7), (500, 5), (24, 132))}
    assert kinds == {(48, 7): "GPVAE", (500, 5): "MarkovGPVAE", (24, 132): "GPVAE"}
    assert type(window_model(500, 5, periods=[24])).__name__ == "MarkovGPVAE"


def test_both_kinds_of_models_have_the_same_bound(monkeypatch):
    x, windows = torch.arange(9.0, dtype=torch.float64).unsqueeze(-1), torch.randn(4, 9, 2, dtype=torch.float64)
    windows[torch.rand(windows.shape) < 0.3] = torch.nan
    dense = window_model(9, 2, num_shared=3).double()
    # the function has the name of its module
    monkeypatch.setattr(importlib.import_module("gpytorch_sgpvae.models.window_model"), "MOST_ENTRIES", 0)
    markov = window_model(9, 2, num_shared=3).double()
    assert type(dense) is not type(markov)
    for model in (dense, markov):
        model.initialize_from((x, windows))
    torch.testing.assert_close(dense.elbo((x, windows)), markov.elbo((x, windows)), atol=1e-8, rtol=0.0)


def test_a_model_of_no_outputs_is_refused():
    with pytest.raises(ValueError, match="num_outputs must be at least 1, got 0"):
        window_model(5, 0)
