from __future__ import annotations

import numpy as np
import pytest
import torch

from gpytorch_sgpvae.datasets import eeg, load_eeg, load_eeg_recordings
from gpytorch_sgpvae.datasets.eeg import Source, read_recording

CHANNELS = ["FZ", "F1", "CZ"]
NUM_SAMPLES = 32


def published(channels, y, trial=0):
    """A recording as it was published: an index with gaps, and a row for each electrode and sample."""
    lines = [
        ",trial number,sensor position,sample num,sensor value,subject identifier,matching condition,channel,name,time"
    ]
    for p, channel in enumerate(channels):
        lines += [
            f'{257 * p + n + 5},{trial},{channel},{n},{float(value)},c,"S2 nomatch,",{p},co2c0000337,{n / 256}'
            for n, value in enumerate(y[:, p])
        ]
    return "\n".join(lines) + "\n"


def make_voltages(trial):
    return np.random.RandomState(trial).randint(-50000, 50000, (NUM_SAMPLES, len(CHANNELS))) / 1000


@pytest.fixture
def small_eeg(cache, server, monkeypatch):
    """Three recordings for training and three for the test, the last of which is one of the former."""
    trials = [("train", 0), ("train", 4), ("train", 7), ("test", 2), ("test", 3), ("test", 7)]
    sources = [
        Source(
            partition, trial, server.offer(f"eeg/{partition}/{trial}.csv", published(CHANNELS, make_voltages(trial)))
        )
        for partition, trial in trials
    ]
    monkeypatch.setattr(eeg, "sources", lambda: sources)
    return server


def known(data):
    """All that is known of each task."""
    train, test = ([y for _, y in tasks] for tasks in (data.train, data.test))
    return [
        torch.where(y.isnan(), truth, y)
        for y, truth in zip(train + test, data.train_truth + data.test_truth, strict=True)
    ]


def test_the_published_recordings_are_60_with_a_sum_and_a_place_each():
    sources = eeg.sources()
    assert [source.partition for source in sources] == ["train"] * 30 + ["test"] * 30
    assert sources[0].trial == 0
    assert len({source.trial for source in sources}) == 55
    for source in sources:
        assert len(source.file.sha256) == 64
        assert source.file.url.startswith("https://raw.githubusercontent.com/zudoan/EGG/0a2f8367")
        assert source.file.url.endswith(source.file.path.removeprefix("eeg/"))


def test_a_published_recording_is_read(tmp_path):
    path = tmp_path / "Data1.csv"
    path.write_text(published(CHANNELS, make_voltages(1)))
    recording = read_recording(path)
    assert recording.channels == CHANNELS
    assert recording.y.tolist() == make_voltages(1).tolist()


def test_rows_in_another_order_are_the_same_recording(tmp_path):
    path = tmp_path / "Data1.csv"
    header, *rows = published(CHANNELS, make_voltages(1)).splitlines()
    path.write_text("\n".join([header, *rows[:NUM_SAMPLES], *rows[NUM_SAMPLES:][::-1]]))
    recording = read_recording(path)
    assert recording.channels == ["FZ", "CZ", "F1"]
    assert recording.y.tolist() == make_voltages(1)[:, [0, 2, 1]].tolist()


def test_the_first_trial_is_downloaded_on_its_own(small_eeg):
    data = load_eeg(["CZ", "FZ"], held_out=["FZ"], num_held_out=10)
    ((x, y),), (truth,) = data.test, data.test_truth
    assert x.squeeze(-1).tolist() == [n / 256 for n in range(NUM_SAMPLES)]
    assert y.isfinite().sum(0).tolist() == [NUM_SAMPLES, NUM_SAMPLES - 10]
    assert truth[-10:, 1].tolist() == make_voltages(0)[-10:, 0].tolist()
    assert torch.equal(truth.isnan(), ~y.isnan())
    assert len(small_eeg.requests) == 1


@pytest.mark.usefixtures("small_eeg")
def test_recordings_of_the_training_set_are_not_in_the_test_set():
    data = load_eeg_recordings()
    for y, trial in zip(known(data), [0, 4, 7, 2, 3], strict=True):
        assert y.tolist() == make_voltages(trial).tolist()
    assert (len(data.train), len(data.test), data.seen) == (3, 2, [False, False])
    assert list(data.outputs) == CHANNELS


@pytest.mark.usefixtures("small_eeg")
def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="experiments 1 and 2, got 3"):
        load_eeg_recordings(experiment=3)
    with pytest.raises(ValueError, match="no channels F99, only FZ, F1, CZ"):
        load_eeg_recordings(channels=["FZ", "F99"])
    with pytest.raises(ValueError, match=f"num_held_out between 0 and {NUM_SAMPLES}, got 33"):
        load_eeg(["FZ"], ["FZ"], num_held_out=33)


def test_a_damaged_file_in_the_folder_says_what_to_do(folder):
    (folder / "eeg").mkdir()
    (folder / eeg.ALL_TRIALS.path).write_bytes(b"half")
    with pytest.raises(
        ValueError, match=r"60trials\.npz is damaged.*delete it and unset SGPVAE_DATA, for the published"
    ):
        load_eeg_recordings()
    with pytest.raises(FileNotFoundError, match=r"Data236\.csv.*unset SGPVAE_DATA to download"):
        load_eeg()


class TestRealFiles:
    def test_the_protocol_of_the_small_experiment(self, real_data):
        data = load_eeg()
        ((x, y),), (truth,) = data.test, data.test_truth
        assert list(data.outputs) == ["F3", "F4", "F5", "F6", "FZ", "F1", "F2"]
        assert (x[0].item(), x[1].item(), len(x)) == (0, 1 / 256, 256)
        assert y.isfinite().sum(0).tolist() == [256] * 4 + [156] * 3
        assert truth[156:, 4:].isfinite().all()
        assert truth.isfinite().sum() == 300

    @pytest.mark.parametrize(("experiment", "gone"), [(1, 0.5), (2, 0.1)])
    def test_the_protocol_of_the_large_experiments(self, real_data, experiment, gone):
        data = load_eeg_recordings(experiment)
        assert (len(data.train), len(data.test)) == (30, 25)
        train, test = (torch.stack([y for _, y in tasks]) for tasks in (data.train, data.test))  # (T, 256, 64)
        assert train.isnan().double().mean() == pytest.approx(gone, abs=0.02)
        assert test.isnan().double().mean() == pytest.approx(1 - 0.75 * 0.5, abs=0.02)
        assert test.isnan().all(-1).double().mean() == pytest.approx(0.25, abs=0.05)
        assert not train.isnan().all(-1).any()
        complete = torch.stack(known(data))
        assert complete.isfinite().all()
        assert len({y.numpy().tobytes() for y in complete}) == 55

    def test_both_experiments_have_the_same_test_tasks_which_another_seed_changes(self, real_data):
        first, second, other = load_eeg_recordings(1), load_eeg_recordings(2), load_eeg_recordings(1, seed=1)
        assert torch.equal(torch.stack(first.test_truth).isnan(), torch.stack(second.test_truth).isnan())
        assert not torch.equal(torch.stack(first.test_truth).isnan(), torch.stack(other.test_truth).isnan())

    def test_the_published_files_give_the_same_numbers(self, real_data, tmp_path):
        with np.load(real_data / eeg.ALL_TRIALS.path) as packed:
            channels, voltages = packed["channels"].tolist(), packed["y"] / 1000
            keys = list(zip(packed["partition"].tolist(), packed["trial"].tolist(), strict=True))
        assert keys == [(source.partition, source.trial) for source in eeg.sources()]
        path = tmp_path / "Data.csv"
        path.write_text(published(channels, voltages[0]))
        raw = read_recording(path)
        assert raw.channels == channels
        assert raw.y.numpy().tobytes() == np.ascontiguousarray(voltages[0]).tobytes()

    def test_the_packed_files_agree(self, real_data):
        one = eeg._first_recording(["CZ", "F3"])
        all_of_them = eeg._all_recordings()["train", 0]
        assert torch.equal(one, eeg._select(all_of_them, ["CZ", "F3"]))
