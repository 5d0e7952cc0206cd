"""Beside the real PyPOTS: the same sets go in, and its own functions take what comes out."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from gpytorch_sgpvae.windows import WindowImputer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    imputation = pytest.importorskip("pypots.imputation", reason="PyPOTS is not installed")
    functional = pytest.importorskip("pypots.nn.functional")
    saving = pytest.importorskip("pypots.data.saving")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
STEPS, FEATURES = 8, 3


@pytest.fixture(scope="module")
def sets():
    random = np.random.default_rng(0)
    X_ori = (random.standard_normal((60, STEPS, 2)).cumsum(1) @ random.standard_normal((2, FEATURES))) / 2
    X = np.where(random.random(X_ori.shape) < 0.3, np.nan, X_ori)
    parts = [slice(40), slice(40, 50), slice(50, 60)]
    return [{"X": X[part], "X_ori": X_ori[part]} for part in parts]


@pytest.fixture(scope="module")
def theirs():
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_k": 4, "d_v": 4, "d_ffn": 8}
    return imputation.SAITS(STEPS, FEATURES, **sizes, batch_size=10, epochs=1, device="cpu", verbose=False)


@pytest.fixture(scope="module")
def ours():
    return WindowImputer(n_steps=STEPS, n_features=FEATURES, batch_size=10, epochs=4, device="cpu", verbose=False)


def test_one_script_runs_both_and_gets_the_same_kinds_of_arrays(sets, theirs, ours):
    train_set, val_set, test_set = sets
    for asked in ("imputation", "reconstruction"):
        results = []
        for model in (theirs, ours):
            assert model.fit(train_set, val_set) is None
            results.append((model.predict(test_set)[asked], model.impute(test_set)))
        for of_theirs, of_ours in zip(*results, strict=True):
            assert type(of_ours) is type(of_theirs)
            assert of_ours.dtype == of_theirs.dtype
            assert of_ours.shape == of_theirs.shape


def test_its_metrics_take_what_comes_out(sets, theirs, ours):
    train_set, val_set, test_set = sets
    ours.fit(train_set, val_set)
    mask = (np.isnan(test_set["X"]) & ~np.isnan(test_set["X_ori"])).astype(float)
    filled = ours.impute(test_set)
    for metric in (functional.calc_mae, functional.calc_mse, functional.calc_rmse, functional.calc_mre):
        assert np.isfinite(metric(filled, test_set["X_ori"], mask))
    error = np.abs(filled - test_set["X_ori"])[mask > 0].mean()
    assert functional.calc_mae(filled, test_set["X_ori"], mask) == pytest.approx(error)
    last = imputation.LOCF(device="cpu").impute(test_set)
    assert error < functional.calc_mae(last, test_set["X_ori"], mask)
    # as it scores its own probabilistic models
    draws = ours.predict(test_set, n_sampling_times=50)["imputation"]
    assert functional.calc_quantile_crps(draws, test_set["X_ori"], mask) < 2 * error


def test_files_that_it_writes_are_read(sets, ours, tmp_path):
    paths = [str(tmp_path / f"{name}.h5") for name in ("train", "val", "test")]
    for path, windows in zip(paths, sets, strict=True):
        saving.save_dict_into_h5(windows, path)
    ours.fit(sets[0], sets[1])
    expected = ours.impute(sets[2])
    ours.fit(paths[0], paths[1])
    assert np.array_equal(ours.impute(paths[2]), expected)


@pytest.mark.parametrize("windows", [{"Y": 1}, {"X": np.zeros((2, STEPS))}])
def test_both_refuse_the_same_sets(sets, theirs, ours, windows):
    for model in (theirs, ours):
        with pytest.raises((AssertionError, ValueError)):
            model.fit(windows)
        with pytest.raises(ValueError, match="must contain 'X_ori'"):
            model.fit(sets[0], {"X": sets[1]["X"]})
