from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_sgpvae.datasets import load_tsibench, tsibench
from gpytorch_sgpvae.datasets.missingness import block_holes, point_holes, run_holes
from gpytorch_sgpvae.datasets.tsibench import BEIJING_OUTPUTS, STATIONS, Benchmark, Series, make_windows

SMALL = Benchmark(lambda: Series([], ()), length=6, run=3, block=2, factor=0.1)


def series(num_outputs=3, lengths=(40, 20, 15)):
    random = np.random.default_rng(0)
    parts = [5 + 2 * random.standard_normal((length, num_outputs)) for length in lengths]
    parts[2][3, 1] = np.nan
    return Series(parts, tuple("abcdefgh"[:num_outputs]))


def test_windows_do_not_overlap_and_are_in_units_of_the_training_rows():
    given = series()
    data = make_windows(given, SMALL, "point", 0.5, seed=0)
    assert repr(data) == "WindowData(6 + 3 + 2 windows of 6 steps, 3 outputs)"
    mean, stddev = given.parts[0].mean(0), given.parts[0].std(0)
    for windows, rows in zip((data.train, data.validation, data.test), given.parts, strict=True):
        back = windows.truth.flatten(0, 1) * data.stddev + data.mean
        np.testing.assert_allclose(back.numpy(), rows[: len(back)], atol=1e-12)
        assert torch.equal(windows.seen[~windows.hidden].nan_to_num(), windows.truth[~windows.hidden].nan_to_num())
    np.testing.assert_allclose(data.mean.numpy(), mean)
    np.testing.assert_allclose(data.stddev.numpy(), stddev)
    assert not data.test.hidden[0, 3, 1]  # what is missing in the data is not to be judged by


@pytest.mark.parametrize("pattern", ["point", "subseq", "block"])
def test_a_seed_decides_what_is_hidden(pattern):
    first, same, other = (make_windows(series(), SMALL, pattern, 0.5, seed).train for seed in (1, 1, 2))
    assert torch.equal(first.hidden, same.hidden)
    assert not torch.equal(first.hidden, other.hidden)


def test_single_entries_are_gone_with_the_probability_that_was_asked_for():
    hidden = point_holes((200, 10, 5), 0.3, np.random.default_rng(0))
    assert hidden.mean() == pytest.approx(0.3, abs=0.02)


def test_runs_are_of_single_outputs_and_make_up_the_rate():
    hidden = run_holes((50, 12, 4), 0.5, 8, np.random.default_rng(0))
    assert hidden.mean() == pytest.approx(0.5, abs=0.01)
    per_series = hidden.sum(1)  # (T, P)
    assert set(np.unique(per_series)) == {0, 8}
    edges = np.diff(np.pad(hidden, ((0, 0), (1, 1), (0, 0))).astype(int), axis=1)
    assert (np.abs(edges).sum(1) <= 2).all()  # each in one piece
    with pytest.raises(ValueError, match=r"at most 67 %|at most 67%"):
        run_holes((50, 12, 4), 0.9, 8, np.random.default_rng(0))
    with pytest.raises(ValueError, match="holes of 1 to 12 steps, got 13"):
        run_holes((50, 12, 4), 0.5, 13, np.random.default_rng(0))


def test_blocks_are_of_neighboring_outputs_and_as_many_as_the_factor_says():
    shape, length, factor = (40, 10, 6), 3, 0.002
    hidden = block_holes(shape, factor, length, np.random.default_rng(0))
    number = int(np.ceil(40 * 4 * factor * 60 / 9))
    assert 9 < hidden.sum() <= 9 * number
    with pytest.raises(ValueError, match="holes of 1 to 6 steps, got 7"):
        block_holes(shape, factor, 7, np.random.default_rng(0))


def test_names_that_are_not_known_are_told_what_there_is():
    with pytest.raises(ValueError, match="'ETTm1': expected ETTh1, ItalyAir, BeijingAir"):
        load_tsibench("ETTm1")
    with pytest.raises(ValueError, match="'line': expected point, subseq, block"):
        load_tsibench("ETTh1", "line")
    with pytest.raises(ValueError, match=r"rate between 0 and 1, got 1\.5"):
        make_windows(series(), SMALL, "point", 1.5, seed=0)


def test_etth1_is_cut_by_months(cache, server, monkeypatch):
    dates = pd.date_range("2016-07-01", "2018-03-01", freq="12h", inclusive="left")  # 20 months
    frame = pd.DataFrame({"date": dates, "HUFL": np.arange(len(dates)), "OT": 1.0 * np.arange(len(dates))[::-1]})
    monkeypatch.setattr(tsibench, "ETTH1", server.offer("tsibench/ETTh1.csv", frame.to_csv(index=False)))
    parts, outputs = tsibench.read_etth1()
    assert outputs == ("HUFL", "OT")
    assert [dates[int(part[0, 0])].strftime("%Y-%m-%d") for part in parts] == ["2016-07-01", "2017-09-01", "2018-02-01"]
    assert sum(map(len, parts)) == len(dates)


def test_italian_sensors_keep_the_mark_of_a_hole_as_a_value(cache, server, monkeypatch):
    rows = [f"10/03/2004;{hour:02d}.00.00;{hour},5;-200;;" for hour in range(10)]
    text = "\n".join(["Date;Time;CO(GT);T;;", *rows, *3 * [";;;;;"]]) + "\n"
    monkeypatch.setattr(tsibench, "ITALY_AIR", server.offer("tsibench/AirQualityUCI.csv", text))
    parts, outputs = tsibench.read_italy_air()
    assert outputs == ("CO(GT)", "T")
    assert [len(part) for part in parts] == [6, 2, 2]
    assert parts[1].tolist() == [[6.5, -200.0], [7.5, -200.0]]


def station_text(number):
    frame = pd.DataFrame({"No": [1, 2], "year": 2013, "month": 3, "day": 1, "hour": [0, 1]})
    for i, name in enumerate(BEIJING_OUTPUTS):
        frame[name] = [number + 0.1 * i, np.nan if name == "CO" else 0.0]
    return frame.assign(wd="N", station="x").to_csv(index=False, na_rep="NA")


def test_beijing_is_put_together_from_the_files_of_its_stations(cache, server, monkeypatch):
    files = {
        station: server.offer(file.path, station_text(i))
        for i, (station, file) in enumerate(tsibench.STATION_FILES.items())
    }
    # as published: their contents are checked together
    monkeypatch.setattr(tsibench, "STATION_FILES", {name: file._replace(sha256=None) for name, file in files.items()})
    with pytest.raises(ValueError, match=r"values of the 12 stations .* Delete these files"):
        tsibench.beijing_air()
    values = np.array(
        [
            [number + 0.1 * i for number in range(12) for i in range(11)],
            [np.nan if i == 4 else 0.0 for i in range(11)] * 12,
        ]
    )
    monkeypatch.setattr(tsibench, "BEIJING_VALUES", tsibench.values_sha256(values))
    frame = tsibench.beijing_air()
    assert frame["date"].tolist() == list(pd.to_datetime(["2013-03-01 00:00", "2013-03-01 01:00"]))
    assert frame.columns[1] == f"{STATIONS[0]}_PM2.5"
    np.testing.assert_allclose(frame.drop(columns="date").to_numpy(float), values)


def test_the_checksum_of_values_does_not_depend_on_how_they_were_written():
    values = np.array([[1.5, np.nan], [-0.25, 1e-9]])
    assert tsibench.values_sha256(values) == tsibench.values_sha256(np.array([[1.50000001, np.nan], [-0.25, 0.0]]))
    assert tsibench.values_sha256(values) != tsibench.values_sha256(np.array([[1.5, 0.0], [-0.25, 0.0]]))
    assert tsibench.values_sha256(values) != tsibench.values_sha256(np.array([[1.5, np.nan], [-0.25, 0.001]]))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("ETTh1", [(213, 48, 7), (76, 48, 7), (72, 48, 7)]),
        ("ItalyAir", [(467, 12, 13), (155, 12, 13), (155, 12, 13)]),
        ("BeijingAir", [(852, 24, 132), (305, 24, 132), (304, 24, 132)]),
    ],
)
def test_the_protocol_of_the_benchmark(real_data, name, shapes):
    if not (real_data / "tsibench").is_dir():
        pytest.skip("the data folder has no tsibench/")
    for pattern, rate in (("point", 0.1), ("subseq", 0.5), ("block", 0.5)):
        data = load_tsibench(name, pattern, rate)
        assert [tuple(part.truth.shape) for part in (data.train, data.validation, data.test)] == shapes
        assert data.test.hidden.double().mean().item() == pytest.approx(rate, abs=0.02)
    known = ~data.train.truth.isnan()
    assert data.train.truth[known].square().mean().item() == pytest.approx(1.0, abs=0.02)


def test_the_checksum_of_the_stations_is_that_of_the_file_with_all_of_them(real_data):
    if not (real_data / "tsibench").is_dir():
        pytest.skip("the data folder has no tsibench/")
    values = tsibench.beijing_air().drop(columns="date").to_numpy(float)
    assert tsibench.values_sha256(values) == tsibench.BEIJING_VALUES
