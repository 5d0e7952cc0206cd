"""Data sets that are larger than memory: the same numbers, a partition at a time."""

from __future__ import annotations

import gc
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import torch
from command_files import run

from gpytorch_sgpvae.table import SGPVAEImputer, TableError
from gpytorch_sgpvae.table.large import job, layout
from gpytorch_sgpvae.table.large.samples import Samples
from gpytorch_sgpvae.table.large.source import open_source

OPTIONS = {"max_epochs": 1, "compare": False, "progress": False}


def make_units(number=30, rows=12, seed=0):
    """Tasks one after the other, with a flag, a column of whole numbers and one that has no role."""
    random = np.random.default_rng(seed)
    hour = np.tile(np.arange(rows), number)
    wave = np.sin(hour / 3 + np.repeat(random.uniform(0, 6, number), rows))
    table = pd.DataFrame({"unit": np.repeat([f"unit {i}" for i in range(number)], rows), "hour": hour})
    table["temp"] = (20 + 5 * wave + 0.1 * random.normal(size=len(wave))).astype("float32")
    table["load"] = 3 * wave + 0.1 * random.normal(size=len(wave))
    table["on"] = np.where(wave > 0, "yes", "no")
    table["note"] = [f"as measured {i}" for i in range(len(wave))]
    for name in ("temp", "load", "on"):
        table.loc[random.random(len(table)) < 0.25, name] = None
    return table


def make_series(rows=360):
    random = np.random.default_rng(0)
    wave = np.cumsum(random.normal(size=rows)) / 4
    table = pd.DataFrame({"time": pd.date_range("2025-01-01", periods=rows, freq="h"), "y": wave, "z": wave})
    table[["y", "z"]] += 0.1 * random.normal(size=(rows, 2))
    return table.mask(random.random(table.shape) < [0.0, 0.2, 0.2])


def write(table, folder, cuts):
    folder.mkdir()
    for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(table)], strict=True)):
        table.iloc[first:last].to_parquet(folder / f"part-{number}.parquet", index=False)
    return folder


@pytest.fixture(scope="module")
def units():
    table = make_units()
    return table, SGPVAEImputer(["hour"], ["temp", "load", "on"], task="unit", **OPTIONS).fit(table)


@pytest.fixture(scope="module")
def series():
    table = make_series()
    return table, SGPVAEImputer(["time"], ["y", "z"], **OPTIONS).fit(table)


def read(folder):
    return pd.read_parquet(folder)


def assert_same(found, expected, tolerance=1e-9):
    pd.testing.assert_frame_equal(
        found[expected.columns.tolist()], expected, rtol=tolerance, atol=tolerance, check_dtype=False
    )


@pytest.mark.parametrize("cuts", [[120, 240], [100, 103, 105, 250]])
def test_partitions_are_filled_as_the_table_at_once_also_where_they_cut_tasks(units, tmp_path, cuts):
    table, imputer = units
    done = imputer.impute_dataset(write(table, tmp_path / "in", cuts), tmp_path / "out")
    expected = imputer.transform(table, intervals=True)
    assert_same(read(tmp_path / "out"), expected)
    assert done["rows"].sum() == len(table)
    assert done["load_filled"].sum() == table["load"].isna().sum()


def test_only_holes_change_and_columns_keep_their_types(units, tmp_path):
    table, imputer = units
    table = table.assign(on=table["on"].astype("category"))
    imputer.impute_dataset(write(table, tmp_path / "in", [120]), tmp_path / "out", intervals=False)
    for name in ("part-0", "part-1"):
        before, after = (pq.read_table(tmp_path / folder / f"{name}.parquet") for folder in ("in", "out"))
        assert before.schema.types == after.schema.types
        for column in before.column_names:
            known = before[column].is_valid()
            assert before[column].filter(known).equals(after[column].filter(known))
            assert after[column].null_count == 0


def test_every_partition_has_the_same_columns_also_one_without_rows_or_holes(units, tmp_path):
    table, imputer = units
    whole = table[:120].assign(temp=20.0, load=1.0, on="no").astype(table.dtypes.to_dict())
    write(pd.concat([whole, table[120:]]), tmp_path / "in", [60, 60, 120])
    imputer.impute_dataset(tmp_path / "in", tmp_path / "out")
    schemas = [pq.read_schema(path).remove_metadata() for path in sorted((tmp_path / "out").iterdir())]
    assert len(schemas) == 4
    assert all(schema == schemas[0] for schema in schemas)


@pytest.mark.parametrize("inputs", [["hour"], ["hour", "east"]])
def test_what_a_partition_takes_is_free_as_soon_as_it_is_filled(tmp_path, inputs):
    """Without waiting for Python to look for cycles, which it does seldom, and may hold gigabytes until then."""
    table = make_units(4)
    table["east"] = np.random.default_rng(0).uniform(size=len(table))
    imputer = SGPVAEImputer(inputs, ["temp", "load"], task="unit", **OPTIONS).fit(table)
    assert imputer.fitted_.plan.kind == ("markov" if len(inputs) == 1 else "dense")
    write(table, tmp_path / "in", [24])
    imputer.impute_dataset(tmp_path / "in", tmp_path / "first")
    gc.collect()
    gc.disable()
    try:
        imputer.impute_dataset(tmp_path / "in", tmp_path / "second")
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [item for item in gc.garbage if isinstance(item, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left


def test_a_long_series_is_filled_with_the_rows_near_each_partition(series, tmp_path, monkeypatch):
    table, imputer = series
    monkeypatch.setitem(job.MARGIN, "markov", 60)
    cuts = [90, 100, 180, 270]
    parts = [table[first:last] for first, last in zip([0, *cuts], [*cuts, len(table)], strict=True)]
    shuffled = pd.concat([part.sample(frac=1, random_state=0) for part in parts])
    imputer.impute_dataset(write(shuffled, tmp_path / "in", cuts), tmp_path / "out")
    found = read(tmp_path / "out").sort_values("time", ignore_index=True)
    expected = imputer.transform(table, intervals=True)
    for name in ("y", "z"):
        assert (found[name] - expected[name]).abs().max() < 5e-3 * table[name].std()
        np.testing.assert_allclose(found[f"{name}_std"], expected[f"{name}_std"], rtol=5e-3)


def test_sensors_whose_partitions_are_days_have_rows_of_the_days_before_and_after(tmp_path, monkeypatch):
    table = pd.concat([make_series(200).assign(sensor=name) for name in "abc"]).sort_values("time", ignore_index=True)
    imputer = SGPVAEImputer(["time"], ["y", "z"], task="sensor", **OPTIONS).fit(table)
    monkeypatch.setitem(job.MARGIN, "markov", 40)
    monkeypatch.setattr(layout, "SEARCHED", 2)
    opened = open_source(write(table, tmp_path / "in", [150, 300, 450]))
    found = layout.survey(opened, imputer.fitted_.reader.task, imputer.fitted_.reader.inputs[0], False)
    assert layout.find_layout(found, opened.partitions, 40).needed[3] == ([2, 1], [])
    imputer.impute_dataset(tmp_path / "in", tmp_path / "out")
    assert_same(read(tmp_path / "out"), imputer.transform(table, intervals=True), 1e-2)


def test_series_whose_partitions_overlap_are_refused_or_read_whole(series, tmp_path, monkeypatch):
    table, imputer = series
    mixed = table.sample(frac=1, random_state=0)
    write(mixed, tmp_path / "in", [120, 240])
    imputer.impute_dataset(tmp_path / "in", tmp_path / "out")
    assert_same(read(tmp_path / "out").sort_values("time", ignore_index=True), imputer.transform(table, intervals=True))
    monkeypatch.setattr(layout, "MOST_ROWS_TOGETHER", 200)
    with pytest.raises(TableError, match=r"sorted by time \(now part-\d.parquet and part-\d.parquet overlap"):
        imputer.impute_dataset(tmp_path / "in", tmp_path / "other")


def test_what_is_done_is_not_done_again_unless_rows_or_model_change(units, tmp_path):
    table, imputer = units
    folder = write(table, tmp_path / "in", [120, 240])
    assert not imputer.impute_dataset(folder, tmp_path / "out")["skipped"].any()
    (tmp_path / "out" / "part-1.parquet").unlink()
    assert imputer.impute_dataset(folder, tmp_path / "out")["skipped"].tolist() == [True, False, True]
    table[240:].assign(load=1.0).to_parquet(folder / "part-2.parquet", index=False)
    assert imputer.impute_dataset(folder, tmp_path / "out")["skipped"].tolist() == [True, True, False]
    assert imputer.impute_dataset(folder, tmp_path / "out")["skipped"].all()
    assert not imputer.impute_dataset(folder, tmp_path / "out", intervals=False)["skipped"].any()


def test_a_run_that_breaks_off_leaves_whole_partitions_and_the_next_goes_on(units, tmp_path, monkeypatch):
    table, imputer = units
    folder, out = write(table, tmp_path / "in", [120, 240]), tmp_path / "out"
    write_table = job.pyarrow.parquet.write_table

    def break_off(table, file):
        write_table(table, file)
        if (out / "part-0.parquet").exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job.pyarrow.parquet, "write_table", break_off)
        with pytest.raises(KeyboardInterrupt):
            imputer.impute_dataset(folder, out)
    assert [path.name for path in out.iterdir()] == ["part-0.parquet"]
    assert imputer.impute_dataset(folder, out)["skipped"].tolist() == [True, False, False]
    assert_same(read(out), imputer.transform(table, intervals=True))


def test_folders_of_others_and_of_other_data_sets_are_left_alone(units, tmp_path):
    table, imputer = units
    folder = write(table, tmp_path / "in", [120])
    with pytest.raises(TableError, match="was not written by impute"):
        imputer.impute_dataset(folder, folder)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(TableError, match=r"thesis\.txt, which is no partition"):
        imputer.impute_dataset(folder, tmp_path / "out")
    write(table.assign(load_std=1.0), tmp_path / "with", [120])
    with pytest.raises(TableError, match="already has columns load_std"):
        imputer.impute_dataset(tmp_path / "with", tmp_path / "new")


@pytest.mark.parametrize("kind", ["folders", "files", "one file", "data set", "CSV"])
def test_data_sets_of_all_kinds_are_read(units, tmp_path, kind):
    table, imputer = units
    folder = write(table.iloc[:, :-1].assign(year=2024), tmp_path / "in", [120, 240])
    if kind == "folders":
        source = tmp_path / "years"
        pyarrow.dataset.write_dataset(
            pa.Table.from_pandas(table.assign(area=table.index // 150)),
            source,
            format="parquet",
            partitioning=["area"],
            partitioning_flavor="hive",
        )
    elif kind == "files":
        source = sorted(folder.iterdir())
    elif kind == "one file":
        source = tmp_path / "large.parquet"
        table.to_parquet(source, index=False, row_group_size=100)
    elif kind == "data set":
        source = pyarrow.dataset.dataset(folder)
    else:
        source = tmp_path / "csv"
        source.mkdir()
        for number, part in enumerate((table[:180], table[180:])):
            part.to_csv(source / f"part-{number}.csv", index=False)
    opened = open_source(source, most_rows=150)
    assert opened.num_rows == len(table)
    assert len(opened.partitions) == {"CSV": 2}.get(kind, 3)
    imputer.impute_dataset(source, tmp_path / "out")
    found = read(tmp_path / "out").sort_values(["unit", "hour"], ignore_index=True)
    expected = imputer.transform(table, intervals=True).sort_values(["unit", "hour"], ignore_index=True)
    names = ["unit", "hour", "load", "load_std", "on"]
    assert_same(found[names], expected[names], 1e-6 if kind == "CSV" else 1e-9)  # single precision in text


def test_a_column_may_be_written_in_different_ways_in_different_files(units, tmp_path):
    table, imputer = units
    folder = write(table, tmp_path / "in", [120, 240])
    encoded = table[120:240].astype({"on": "category", "unit": "category", "temp": "float64"})
    encoded.to_parquet(folder / "part-1.parquet", index=False)
    whole = table[240:].assign(hour=lambda part: part["hour"].astype("int16"))
    whole.drop(columns="note").to_parquet(folder / "part-2.parquet", index=False)
    imputer.impute_dataset(folder, tmp_path / "out")
    expected = imputer.transform(table, intervals=True)
    expected.loc[240:, "note"] = None
    assert_same(read(tmp_path / "out"), expected, 1e-6)  # of single precision in the other files
    (tmp_path / "bad").mkdir()
    table[:120].to_parquet(tmp_path / "bad" / "part-0.parquet", index=False)
    table[120:].assign(load="3 kW").to_parquet(tmp_path / "bad" / "part-1.parquet", index=False)
    with pytest.raises(TableError, match=r"cannot be read as one table: .*load has incompatible types"):
        open_source(tmp_path / "bad")


def test_sources_that_are_none_are_refused(tmp_path):
    for source, message in (
        (pd.DataFrame(), "got a DataFrame. Tables in memory have fit and transform"),
        (tmp_path, "holds neither a Parquet nor a CSV file"),
        (tmp_path / "none", "There is no file or folder"),
        (pyarrow.dataset.dataset(pa.table({"a": [1]})), "is one in memory"),
    ):
        with pytest.raises(TableError, match=message):
            open_source(source)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(TableError, match="cannot be read as one table"):
        open_source(tmp_path)


def test_samples_are_whole_tasks_and_none_of_the_first_comes_again(tmp_path, monkeypatch):
    monkeypatch.setattr("gpytorch_sgpvae.table.large.samples.MOST_PARTITIONS", 4)
    table = make_units(60)
    source = open_source(write(table, tmp_path / "in", range(90, 720, 90)))  # each of them cuts a task
    columns = ["unit", "hour", "temp"]
    samples, again = (Samples(source, columns, ["hour"], "unit", 200, seed=1, progress=False) for _ in range(2))
    drawn = [samples.draw(number) for number in range(5)]
    pd.testing.assert_frame_equal(drawn[0], again.draw(0))
    assert all(sizes.eq(12).all() for sizes in (sample.groupby("unit").size() for sample in drawn))
    first, *later = [set(sample["unit"]) for sample in drawn]
    assert 100 <= len(drawn[0]) <= 300
    assert all(first.isdisjoint(units) for units in later)
    assert len(set().union(*later)) >= 30


def test_samples_of_a_long_series_are_stretches_of_it(tmp_path):
    source = open_source(write(make_series(1000), tmp_path / "in", range(100, 1000, 100)))
    samples = Samples(source, ["time", "y"], ["time"], None, 300, seed=1, progress=False)
    first, second = (samples.draw(number)["time"].sort_values() for number in range(2))
    assert 200 <= len(first) <= 400
    assert not set(first) & set(second)
    assert (first.diff() > pd.Timedelta(hours=1)).sum() < 30


def test_samples_of_long_tasks_are_of_fewer_partitions_and_no_larger(tmp_path):
    table = make_units(48, rows=100)
    source = open_source(write(table, tmp_path / "in", range(400, 4800, 400)))
    samples = Samples(source, ["unit", "hour", "temp"], ["hour"], "unit", 800, seed=1, progress=False)
    drawn = [samples.draw(number) for number in range(6)]
    assert [sample.groupby("unit").size().tolist() for sample in drawn] == [[100] * 8] * 6
    assert not set(drawn[0]["unit"]) & set().union(*(sample["unit"] for sample in drawn[1:]))
    assert len(set().union(*(sample["unit"] for sample in drawn))) == 48


def test_samples_of_very_long_tasks_are_stretches_of_each(tmp_path):
    table = make_units(20, rows=600).sort_values("hour", kind="stable", ignore_index=True)  # partitions are like days
    for number, (task, cuts) in enumerate((("sorted by time", range(1200, 12000, 1200)), ("one file", []))):
        source = open_source(write(table, tmp_path / f"in {task}", cuts))
        samples = Samples(source, ["unit", "hour", "temp"], ["hour"], "unit", 2000, seed=number, progress=False)
        first, second = (samples.draw(i).assign(sample=i) for i in range(2))
        for sample in (first, second):
            assert 1000 <= len(sample) <= 3000
            stretches = sample.sort_values(["unit", "hour"]).groupby("unit")["hour"].diff().ne(1).sum()
            assert len(sample) >= 50 * stretches
        both = pd.concat([first, second])
        assert not both.duplicated(["unit", "hour"]).any()


def test_a_data_set_no_larger_than_a_sample_is_fitted_as_the_table_that_it_is(series, tmp_path):
    table, imputer = series
    found = SGPVAEImputer(["time"], ["y", "z"], **OPTIONS).fit_dataset(write(table, tmp_path / "in", [100, 200]))
    pd.testing.assert_frame_equal(found.transform(table), imputer.transform(table))


def test_each_epoch_is_trained_on_a_sample_of_its_own(tmp_path, monkeypatch):
    table = make_units(200)
    write(table, tmp_path / "in", range(240, 2400, 240))
    drawn, draw = [], Samples.draw

    def record(self, number):
        drawn.append(number)
        return draw(self, number)

    monkeypatch.setattr(Samples, "draw", record)
    imputer = SGPVAEImputer(["hour"], ["temp", "load"], task="unit", **{**OPTIONS, "max_epochs": 3})
    imputer.fit_dataset(tmp_path / "in", sample_rows=480)
    assert drawn == [0, 1, 2]
    assert imputer.history_["epoch"].max() == 3
    with pytest.raises(TableError, match="sample_rows must be a whole number from 1, got 0"):
        imputer.fit_dataset(tmp_path / "in", sample_rows=0)


def test_the_command_fits_and_fills_folders_and_goes_on_where_it_was(units, tmp_path, capsys):
    table, _ = units
    folder = write(table, tmp_path / "in", [120, 240])
    out, model = tmp_path / "out", tmp_path / "model"
    fit = ["fit", folder, "--inputs", "hour", "--outputs", "temp,load", "--task", "unit", "--max-epochs", "1"]
    assert run(*fit, "--sample-rows", "120", "--no-comparison", "--quiet", "-o", model) == 0
    impute_all = ["impute", model, folder, "-o", out, "--quiet", "--json"]
    assert run(*impute_all) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["partitions"] == 3
    assert told["filled"]["load"] == table["load"].isna().sum()
    (out / "part-1.parquet").unlink()
    assert run(*impute_all) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 2
    assert run(*impute_all, "--sep", "tab") == 1
    assert "--sep is for a CSV file that fits into memory" in capsys.readouterr().err


def test_a_task_that_has_rows_in_too_many_partitions_is_named_with_what_to_do(units, tmp_path, monkeypatch):
    table, imputer = units
    scattered = table.sample(frac=1, random_state=0)
    write(scattered, tmp_path / "in", range(30, 360, 30))
    monkeypatch.setattr(layout, "MOST_ROWS_TOGETHER", 100)
    with pytest.raises(TableError, match="Write the table sorted by the task"):
        imputer.impute_dataset(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_notes_of_partitions_are_told_once(units, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "FEWEST_ROWS_JUDGED", 10)
    table, imputer = units
    write(table.assign(load=table["load"] + 500), tmp_path / "in", [120, 240])
    with pytest.warns(UserWarning, match="explained much worse") as caught:
        imputer.impute_dataset(tmp_path / "in", tmp_path / "out")
    assert len(caught) <= 3
