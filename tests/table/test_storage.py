"""A saved model is a folder without code in it, whole or not there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from command_files import dated_imputer, folder_of, labelled_imputer, make_labelled, make_series, tiny_imputer
from sklearn.base import clone

from gpytorch_sgpvae.table import SGPVAEImputer, TableError, storage
from gpytorch_sgpvae.utils.json_files import read_json, write_json
from gpytorch_sgpvae.utils.locks import LOCK_NAME, locked
from gpytorch_sgpvae.utils.tensor_files import read_tensors, write_tensors


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(folder_of(tiny_imputer), tmp_path / "model")


@pytest.fixture(scope="module")
def other():
    return SGPVAEImputer.load(folder_of(labelled_imputer))


def tampered(folder, change):
    """The folder, with another description whose sum is right."""
    content = read_json(folder / "imputer.json")
    change(content)
    write_json(folder / "imputer.json", content)
    return folder


def tensors_of(folder):
    return folder / read_json(folder / "imputer.json")["tensors"]


@pytest.mark.parametrize("make", [labelled_imputer, tiny_imputer])
def test_it_predicts_the_same_after_loading(make):
    imputer, loaded = make(), SGPVAEImputer.load(folder_of(make))
    table = make_labelled() if make is labelled_imputer else make_series()
    pd.testing.assert_frame_equal(loaded.transform(table, intervals=True), imputer.transform(table, intervals=True))
    assert loaded.families_ == imputer.families_
    pd.testing.assert_frame_equal(loaded.history_, imputer.history_)
    assert loaded.get_params() == {**imputer.get_params(), "progress": True, "dtype": "float64", "covariates": []}


@pytest.mark.slow
def test_it_predicts_the_same_in_another_process(folder, tmp_path):
    table = make_series()
    table.to_csv(tmp_path / "table.csv", index=False)
    script = (
        "import sys, pandas as pd; from gpytorch_sgpvae.table import SGPVAEImputer; "
        "SGPVAEImputer.load(sys.argv[1]).transform(pd.read_csv(sys.argv[2])).to_csv(sys.argv[3], index=False)"
    )
    paths = [str(path) for path in (folder, tmp_path / "table.csv", tmp_path / "filled.csv")]
    subprocess.run([sys.executable, "-c", script, *paths], check=True)
    filled = pd.read_csv(tmp_path / "filled.csv")
    np.testing.assert_allclose(filled["temp"], tiny_imputer().transform(table)["temp"], rtol=1e-9)


def test_it_loads_in_single_precision(folder):
    loaded = SGPVAEImputer.load(folder, dtype=torch.float32)
    assert next(loaded.model_.parameters()).dtype == torch.float32
    expected = tiny_imputer().transform(make_series())["temp"]
    np.testing.assert_allclose(loaded.transform(make_series())["temp"], expected, rtol=0.05)


def test_the_folder_has_json_and_tensors_that_load_without_code(folder):
    names = sorted(path.name for path in folder.iterdir())
    assert names[0] == "imputer.json"
    assert len(names) == 2
    description = json.loads((folder / "imputer.json").read_text())
    assert description["tensors"] == names[1]
    state = torch.load(folder / names[1], weights_only=True)
    assert all(isinstance(value, torch.Tensor) for value in state.values())


def test_two_hundred_flipped_bits_are_all_seen(folder):
    random = np.random.default_rng(0)
    for path in (folder / "imputer.json", tensors_of(folder)):
        whole = path.read_bytes()
        for _ in range(100):
            data = bytearray(whole)
            data[random.integers(len(data))] ^= 1 << random.integers(8)
            path.write_bytes(data)
            with pytest.raises(TableError, match=r"damaged|cannot be read|is no"):
                SGPVAEImputer.load(folder)
        path.write_bytes(whole)
    SGPVAEImputer.load(folder)


def test_a_model_of_the_format_before_is_read(folder):
    def age(content):
        content["format"] = 6
        del content["form"], content["parameters"]["long"], content["plan"]["num_embedded"]

    table, imputer = make_series(), tiny_imputer()
    loaded = SGPVAEImputer.load(tampered(folder, age))
    pd.testing.assert_frame_equal(loaded.transform(table), imputer.transform(table))
    assert loaded.feature_names_in_.tolist() == table.columns.tolist()
    assert loaded.long is None


def test_a_model_of_an_array_keeps_the_numbers_of_its_columns(tmp_path):
    random = np.random.default_rng(0)
    array = np.column_stack([np.tile(np.arange(12.0), 3), np.repeat([1, 2, 3], 12), random.normal(size=(36, 2))])
    array[::5, 2] = np.nan
    options = {"periodic": {0: 6}, "families": {2: "real"}, "task": 1, "max_epochs": 1}
    imputer = SGPVAEImputer(inputs=[0], **options, compare=False, progress=False).fit(array)
    imputer.save(tmp_path / "model")
    loaded = SGPVAEImputer.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(array), imputer.transform(array))
    assert loaded.n_features_in_ == 4
    assert not hasattr(loaded, "feature_names_in_")
    assert loaded.outputs is None
    assert clone(loaded).set_params(progress=False).fit(array).families_ == imputer.families_


def put(*places):
    """A change of the description: a value at the end of a way of names and numbers."""
    *way, value = places

    def change(content):
        for place in way[:-1]:
            content = content[place]
        content[way[-1]] = value

    return change


TAMPERINGS = {
    "another kind": (put("kind", "letter"), "not the description of a saved model"),
    "a newer format": (put("format", 99), "in format 99; .* Update the package"),
    "an older format": (put("format", 1), "in format 1, of another kind .* Fit the table again"),
    "a format that is text": (put("format", "5"), "in format 5"),
    "a path": (put("tensors", "../../etc/passwd"), "names its file of tensors '../../etc/passwd'"),
    "an absolute path": (put("tensors", "/etc/passwd"), "no such name"),
    "another file": (put("tensors", "tensors-0000000000000000.pt"), "is missing"),
    "a name that is a number": (put("tensors", 3), "tensors is 3, expected text"),
    "no plan": (lambda content: content.pop("plan"), "the description has no plan"),
    "more than is known": (put("code", "1"), "has 'code', which is not known"),
    "a list for a record": (put("plan", []), r"plan is \[\], expected names with values"),
    "huge groups": (put("plan", "group_size", 10**9), "plan.group_size is 1000000000, expected a whole number"),
    "many groups": (put("plan", "num_groups", 10**9), "plan.num_groups is 1000000000"),
    "no latent functions": (put("plan", "num_groups", -1), "plan.num_groups is -1"),
    "many inducing points": (put("plan", "num_inducing", 10**12), "plan.num_inducing is 1000000000000"),
    "inducing points of an exact model": (put("plan", "num_inducing", 20), "num_inducing is 20 in a markov model"),
    "a model that there is not": (put("plan", "kind", "magic"), "plan.kind is 'magic', expected one of"),
    "a sparse model without points": (put("plan", "kind", "sparse"), "num_inducing is None in a sparse model"),
    "an input beyond": (put("plan", "time", 7), r"plan names inputs \[7\]"),
    "a label for a number": (put("plan", {"kind": "markov"}), "plan has no time"),
    "a true size": (put("plan", "group_size", True), "plan.group_size is True"),
    "more latent functions": (put("plan", "group_size", 5), "is damaged: .* is of shape"),
    "an infinite scale": (put("inputs", 0, "scale", float("inf")), r"inputs\[0\].scale is inf"),
    "a zero scale": (put("outputs", 0, "scale", 0.0), r"outputs\[0\].scale is 0.0, expected a number above 0"),
    "a shift that is text": (put("outputs", 0, "shift", "1"), r"outputs\[0\].shift is '1', expected a number"),
    "a family that there is not": (put("outputs", 0, "family", "price"), r"outputs\[0\].family is 'price'"),
    "a family that is a list": (put("outputs", 0, "family", ["real"]), r"outputs\[0\].family is \['real'\]"),
    "another family": (put("outputs", 0, "family", "count"), "is missing|no such tensor"),
    "labels of numbers": (put("outputs", 0, "levels", ["a"]), r"outputs\[0\].levels are not those of a real"),
    "many labels": (put("inputs", 0, "levels", list(range(10**4))), r"inputs\[0\].levels is 'a list of 10000'"),
    "many columns": (put("columns", ["a"] * 200_000), "columns is 'a list of 200000'"),
    "a long name": (put("columns", ["a" * 20_000]), "expected text of at most"),
    "another name": (put("inputs", 0, "name", "night"), "inputs are others than those of the parameters"),
    "another output": (put("outputs", 0, "name", "night"), "outputs are others than those of the parameters"),
    "a name twice": (put("outputs", 0, "name", "day"), "name a column twice"),
    "other numbers of outputs": (put("num_filled", 9), "num_filled is 9, expected 1"),
    "other numbers of columns": (put("form", "number", 9), "form.number is 9, which is not the number of columns"),
    "another form": (
        put("form", "long", {"sensor": "s", "value": "v", "places": ["day"], "sensors": ["temp"]}),
        "form.long is another than that of the parameters",
    ),
    "a form without names": (put("form", "features", 3), "form.features is 3, expected a list"),
    "another task": (put("task", "name", "night"), "the task is another than"),
    "a parameter that there is not": (put("parameters", "code", "1"), "parameters has 'code', which is not known"),
    "a type that there is not": (put("parameters", "dtype", "load"), "parameters.dtype is 'load'"),
    "a seed that is text": (put("parameters", "seed", "0"), "parameters.seed is '0'"),
    "a negative seed": (put("parameters", "seed", -1), "parameters.seed is -1"),
    "many cycles": (put("trend", "periods", [1.0] * 1000), "trend.periods is 'a list of 1000'"),
    "many harmonics": (put("trend", "harmonics", [10**9]), r"trend.harmonics\[0\] is 1000000000"),
    "cycles without harmonics": (put("trend", "periods", [1.0]), "of different lengths"),
    "a trend of no input": (put("trend", "time", 5), "trend names an input beyond"),
    "more cycles": (
        lambda content: content["trend"].update(periods=[3.0], harmonics=[2]),
        r"cycles is of shape \(0, 1\), expected \(4, 1\)",
    ),
    "a history that is text": (put("history", "step", ["1"]), r"history.step\[0\] is '1'"),
    "a ragged history": (put("history", "step", [1.0]), "history has columns of different lengths"),
    "a ragged comparison": (put("comparison", "index", ["a"]), "comparison has rows of different lengths"),
    "evidence that is not finite": (
        put("evidence", {"mean": float("nan"), "deviation": 1.0}),
        "evidence.mean is nan, expected a number",
    ),
}


@pytest.mark.parametrize(("change", "message"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_a_description_that_somebody_has_changed_gets_a_sentence(folder, change, message):
    with pytest.raises(TableError, match=message):
        SGPVAEImputer.load(tampered(folder, change))


def change_tensors(change):
    def apply(folder):
        path = tensors_of(folder)
        state = read_tensors(path)
        change(state)
        write_tensors(path, state)

    return apply


WEIGHT = "model.likelihood.decoder.bias"
WRONG_TENSORS = {
    "nan weights": (change_tensors(lambda state: state[WEIGHT].fill_(torch.nan)), "not finite"),
    "infinite weights": (change_tensors(lambda state: state[WEIGHT].fill_(torch.inf)), "not finite"),
    "nan factors": (
        change_tensors(lambda state: state["factors"].fill_(torch.nan)),
        "factors has numbers that are not",
    ),
    "a missing tensor": (change_tensors(lambda state: state.pop(WEIGHT)), "decoder.bias is missing, expected a tensor"),
    "missing factors": (change_tensors(lambda state: state.pop("factors")), "factors is missing, expected"),
    "another shape": (
        change_tensors(lambda state: state.update({WEIGHT: torch.ones(7)})),
        r"of shape \(7,\), expected",
    ),
    "another tensor": (change_tensors(lambda state: state.update(more=torch.ones(7))), "expected no such tensor"),
    "text": (change_tensors(lambda state: state.update({WEIGHT: "1"})), "is missing, expected a tensor"),
    "a list": (lambda folder: write_tensors(tensors_of(folder), [1]), "something else than tensors"),
    "no tensors": (lambda folder: tensors_of(folder).unlink(), "is missing"),
    "an empty file": (lambda folder: tensors_of(folder).write_bytes(b""), "has no checksum"),
    "half a file": (
        lambda folder: tensors_of(folder).write_bytes(tensors_of(folder).read_bytes()[:999]),
        "no checksum",
    ),
    "tensors of torch's own": (lambda folder: torch.save({}, tensors_of(folder)), "no checksum"),
    "an empty description": (lambda folder: (folder / "imputer.json").write_text(""), "does not end with its checksum"),
    "a description of older versions": (
        lambda folder: (folder / "imputer.json").write_text('{"kind": "gpytorch_sgpvae.table", "format": 4}'),
        "If an older version of this package saved it, fit the table again",
    ),
    "no description": (lambda folder: (folder / "imputer.json").unlink(), "There is no saved model"),
}


@pytest.mark.parametrize(("change", "message"), WRONG_TENSORS.values(), ids=WRONG_TENSORS)
def test_files_that_somebody_has_changed_get_a_sentence(folder, change, message):
    change(folder)
    with pytest.raises(TableError, match=message):
        SGPVAEImputer.load(folder)


def test_a_folder_that_is_not_there_gets_a_sentence(tmp_path):
    with pytest.raises(TableError, match="no saved model"):
        SGPVAEImputer.load(tmp_path / "gone")


@pytest.mark.parametrize("error", [OSError("no space left on device"), KeyboardInterrupt()], ids=["full", "killed"])
@pytest.mark.parametrize("step", ["replacing", "write_json"])
def test_a_save_that_ends_between_two_files_leaves_the_old_model(folder, other, monkeypatch, step, error):
    before = SGPVAEImputer.load(folder).transform(make_series())

    def fail(*args):
        raise error

    monkeypatch.setattr(storage, step, fail)
    with pytest.raises(type(error)):
        other.save(folder)
    monkeypatch.undo()
    pd.testing.assert_frame_equal(SGPVAEImputer.load(folder).transform(make_series()), before)
    other.save(folder)  # and the next one takes its place, and leaves nothing of the others
    assert len(list(folder.iterdir())) == 2
    assert SGPVAEImputer.load(folder).families_ == other.families_


def test_what_a_killed_save_leaves_in_a_new_folder_blocks_nobody(tmp_path):
    (tmp_path / "tensors-0123456789abcdef.pt").write_bytes(b"whole")
    (tmp_path / ".sgpvae-0123456789ab-0123456789abcdef.part").write_bytes(b"half")
    (tmp_path / LOCK_NAME).write_bytes(b"")
    tiny_imputer().save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_of_the_users_in_the_folder_survives(folder, other):
    for name in ("tensors-mine.pt", "letter.part", "letter.txt"):
        (folder / name).write_text("dear")
    other.save(folder)
    assert all((folder / name).read_text() == "dear" for name in ("tensors-mine.pt", "letter.part", "letter.txt"))
    assert len(list(folder.iterdir())) == 5


def test_a_save_waits_until_the_folder_is_free(folder, other):
    saving = threading.Thread(target=other.save, args=(folder,))
    with locked(folder):
        saving.start()
        saving.join(0.2)
        assert saving.is_alive()
        assert SGPVAEImputer.load(folder).families_ == {"temp": "real"}  # readers wait for nobody
    saving.join()
    assert SGPVAEImputer.load(folder).families_ == other.families_


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(folder, other, monkeypatch):
    read, calls = storage.read_tensors, []

    def late(path):
        if not calls:
            calls.append(path)
            other.save(folder)
        return read(path)

    monkeypatch.setattr(storage, "read_tensors", late)
    assert SGPVAEImputer.load(folder).families_ == other.families_


def test_it_does_not_write_over_what_is_no_model(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(TableError, match=r"holds other files, such as letter.txt, and no saved model"):
        tiny_imputer().save(tmp_path)
    with pytest.raises(TableError, match="is a file"):
        tiny_imputer().save(tmp_path / "letter.txt")


def test_only_what_was_fitted_is_saved(tmp_path):
    with pytest.raises(TableError, match="not been fitted"):
        SGPVAEImputer(["day"], ["temp"]).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    imputer = SGPVAEImputer.load(folder_of(tiny_imputer))
    imputer.seed = -5
    with pytest.raises(TableError, match=r"cannot be saved, because nobody could load it: parameters\.seed is -5"):
        imputer.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_numbers_of_numpy_are_saved(tmp_path):
    imputer = SGPVAEImputer.load(folder_of(tiny_imputer))
    imputer.seed = np.int64(3)
    imputer.save(tmp_path)
    assert SGPVAEImputer.load(tmp_path).seed == 3


def test_a_loaded_model_fills_tasks_that_it_has_never_seen():
    filled = SGPVAEImputer.load(folder_of(tiny_imputer)).transform(make_series(num_sites=5, seed=9))
    assert filled["temp"].notna().all()


def test_dates_covariates_and_cycles_come_back(tmp_path):
    imputer = dated_imputer(("sun",), (("hour", 7.0),))
    imputer.save(tmp_path)
    loaded = SGPVAEImputer.load(tmp_path)
    assert loaded.periodic == {"hour": 7.0}
    assert list(loaded.covariates) == ["sun"]
