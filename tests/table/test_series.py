"""Rows along time, in space and with inducing points: what is predicted of them, and drawn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_sgpvae import GPVAE, SGPVAE, MarkovGPVAE
from gpytorch_sgpvae.models import AmortizedModel
from gpytorch_sgpvae.table import SGPVAEImputer


def make_series(num_rows=120):
    random = np.random.default_rng(0)
    time = np.arange(float(num_rows))
    wave = np.cumsum(random.normal(size=num_rows)) / 4
    table = pd.DataFrame(
        {"time": time, "y": wave + 0.1 * random.normal(size=num_rows), "z": random.normal(size=num_rows)}
    )
    table["z"] += wave
    table.loc[40:60, "y"] = np.nan
    return table.mask(random.random(table.shape) < [0.0, 0.1, 0.1])


@pytest.fixture(scope="module")
def series():
    table = make_series()
    return table, SGPVAEImputer(["time"], ["y", "z"], max_epochs=5, compare=False, progress=False).fit(table)


def make_field():
    """Points in space, so that no input is a time."""
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.uniform(0, 5, (110, 2)), columns=["a", "b"])
    table["y"] = np.sin(table["a"]) + np.cos(table["b"]) + 0.1 * random.normal(size=110)
    table["z"] = np.sin(table["a"]) + 0.3 * random.normal(size=110)
    return table.mask(random.random(table.shape) < [0.0, 0.0, 0.2, 0.1])


MODELS = {
    "markov": (make_series, ["time"], {}, MarkovGPVAE),
    "dense": (make_field, ["a", "b"], {}, GPVAE),
    "sparse": (make_field, ["a", "b"], {"num_inducing": 25}, SGPVAE),
}


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    make, inputs, options, kind = MODELS[request.param]
    table = make()
    imputer = SGPVAEImputer(inputs, ["y", "z"], max_epochs=5, compare=False, progress=False, **options).fit(table)
    assert isinstance(imputer.model_, kind)
    return table, imputer


def test_draws_scatter_around_the_predictions_as_these_say(case):
    table, imputer = case
    filled, holes = imputer.transform(table, intervals=True), table["y"].isna().to_numpy()
    draws = np.stack([draw["y"].to_numpy()[holes] for draw in imputer.sample(table, 300)])
    stddev = filled["y_std"].to_numpy()[holes]
    error = (draws.mean(0) - filled["y"].to_numpy()[holes]) / stddev
    assert np.abs(error).max() < 5 / np.sqrt(300)
    np.testing.assert_allclose(draws.std(0) / stddev, 1.0, atol=0.25)
    assert (draws.std(0) / stddev).mean() == pytest.approx(1.0, abs=0.05)


def test_draws_keep_what_is_known_and_agree_with_a_seed(case):
    table, imputer = case
    first, second = (imputer.sample(table, 2) for _ in range(2))
    pd.testing.assert_frame_equal(first[1], second[1])
    assert not first[0].equals(first[1])
    known = table["y"].notna()
    assert (first[0]["y"] == table["y"])[known].all()


def test_rows_next_to_each_other_are_drawn_together(series):
    table, imputer = series
    draws = np.stack([draw["y"].to_numpy()[49:51] for draw in imputer.sample(table, 300)])
    assert np.corrcoef(draws.T)[0, 1] > 0.3


def test_intervals_take_no_more_calls_of_the_model_than_means(case, monkeypatch):
    table, imputer = case
    counts, call, condition = [], AmortizedModel.__call__, AmortizedModel.condition

    def count(method):
        return lambda self, *args, **kwargs: counts.append(1) or method(self, *args, **kwargs)

    monkeypatch.setattr(AmortizedModel, "__call__", count(call))
    monkeypatch.setattr(AmortizedModel, "condition", count(condition))
    found = []
    for intervals in (False, True):
        counts.clear()
        imputer.transform(table, intervals=intervals)
        found.append(len(counts))
    assert found[0] == found[1] > 0


def test_a_value_is_the_same_whether_asked_for_alone_or_with_others(case):
    table, imputer = case
    places = table[imputer.inputs].iloc[[3, 50, 80]] + 0.3
    together = imputer.predict(places, context=table)
    alone = pd.concat([imputer.predict(places.iloc[[i]], context=table) for i in range(3)])
    pd.testing.assert_frame_equal(alone, together, rtol=1e-6)


class TestForecasts:
    @pytest.fixture(scope="class")
    @classmethod
    def forecast(cls, series):
        table, imputer = series
        future = pd.DataFrame({"time": 119 + np.array([0.5, 1, 2, 4, 8, 16, 32, 64, 10_000])})
        return imputer.predict(future, context=table), imputer, table

    def test_past_the_end_they_get_less_certain_the_farther_they_are(self, forecast):
        assert (np.diff(forecast[0]["y_std"]) >= -1e-9).all()
        assert forecast[0]["y_std"].iloc[6] > 1.5 * forecast[0]["y_std"].iloc[0]

    def test_far_away_nothing_is_known_but_what_the_column_is_like(self, forecast):
        predicted, _, table = forecast
        assert predicted["y_std"].iloc[-1] == pytest.approx(table["y"].std(), rel=0.7)
        assert abs(predicted["y"].iloc[-1] - table["y"].mean()) < table["y"].std()

    def test_they_follow_what_the_other_output_says(self, forecast):
        _, imputer, table = forecast
        last = pd.DataFrame({"time": [120.0], "y": [np.nan], "z": [np.nan]})
        means = []
        for z in (-3.0, 3.0):
            means.append(imputer.transform(pd.concat([table, last.assign(z=z)], ignore_index=True))["y"].iloc[-1])
        assert means[0] < means[1]


def test_a_long_series_is_filled_in_stretches_as_it_is_at_once(series, monkeypatch):
    table, imputer = series
    expected = imputer.transform(table, intervals=True)
    monkeypatch.setattr("gpytorch_sgpvae.table.blocks.MOST_ROWS", 60)
    monkeypatch.setattr("gpytorch_sgpvae.table.blocks.MARGIN_ROWS", 40)
    in_stretches = imputer.transform(table, intervals=True)
    assert ((in_stretches["y"] - expected["y"]).abs() < 0.05 * table["y"].std()).all()
    np.testing.assert_allclose(in_stretches["y_std"], expected["y_std"], rtol=0.05)


def test_a_large_field_is_filled_in_blocks_as_it_is_at_once(monkeypatch):
    table = make_field()
    imputer = SGPVAEImputer(["a", "b"], ["y", "z"], max_epochs=2, compare=False, progress=False).fit(table)
    expected, sizes = imputer.transform(table)["y"], []
    call = GPVAE.forward

    def record(self, x, *args, **kwargs):
        sizes.extend([x.shape[-2]] * (len(x) if x.dim() == 3 else 1))
        return call(self, x, *args, **kwargs)

    monkeypatch.setattr(GPVAE, "forward", record)
    monkeypatch.setattr("gpytorch_sgpvae.table.blocks.MOST_ENTRIES", 120)
    monkeypatch.setattr("gpytorch_sgpvae.table.blocks.MOST_VALUES", 300)
    in_blocks = imputer.transform(table)["y"]
    assert len(sizes) > 1
    assert max(sizes) <= 80
    assert (in_blocks - expected).std() < 0.1 * expected.std()


def test_single_precision_gives_the_same_within_its_digits(series, tmp_path):
    table, imputer = series
    imputer.save(tmp_path / "model")
    single = SGPVAEImputer.load(tmp_path / "model", dtype=torch.float32)
    expected = imputer.transform(table, intervals=True)
    filled = single.transform(table, intervals=True)
    np.testing.assert_allclose(filled["y"], expected["y"], atol=1e-3)
    np.testing.assert_allclose(filled["y_std"], expected["y_std"], rtol=1e-2)
