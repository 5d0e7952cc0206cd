"""What a model has learnt is told in the table's units, for models that were made by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_sgpvae.table import SGPVAEImputer, TableWarning
from gpytorch_sgpvae.table.cycles import Cycles
from gpytorch_sgpvae.table.learnt import (
    ALL,
    correlations,
    cycles,
    kernel_names,
    label_correlations,
    lengthscales,
    variances,
)
from gpytorch_sgpvae.table.model import matern_of
from gpytorch_sgpvae.table.trend import Trend


def fit(inputs, outputs, frame, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        imputer = SGPVAEImputer(inputs, outputs, max_epochs=1, num_latents=3, compare=False, progress=False, **options)
        return imputer.fit(frame).fitted_


@pytest.fixture
def over_time():
    """Two series along dates, with shared loadings of (3, 0) and (0, 4) and more."""
    hours = np.arange(60)
    values = np.random.default_rng(0).normal(size=(60, 2)) * [5.0, 1.0]
    frame = pd.DataFrame(values, columns=["a", "b"]).assign(when=pd.date_range("2024-01-01", periods=60, freq="h"))
    assert len(hours) == len(frame)
    return fit(["when"], ["a", "b"], frame)


def test_lengthscales_are_in_days(over_time):
    scale = over_time.reader.inputs[0].scale
    for number, kernel in enumerate(over_time.model.model.covar_module.kernels):
        matern_of(kernel, (0,)).lengthscale = (number + 1) / scale
    found = lengthscales(over_time)
    assert kernel_names(over_time) == [
        "shared 1 (rough)",
        "shared 2 (smooth)",
        "shared 3 (rough)",
        "own 1 (rough)",
        "own 2 (smooth)",
    ]
    assert found.columns.tolist() == ["when"]
    assert found.loc[("shared 2 (smooth)", ALL), "when"] == pytest.approx(2.0)
    assert found.loc[("own 2 (smooth)", "b"), "when"] == pytest.approx(5.0)


def test_shares_of_variance_are_those_of_the_loadings(over_time):
    decoder, outputs = over_time.model.likelihood.decoder, over_time.reader.outputs
    with torch.no_grad():
        decoder.shared.copy_(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
        decoder.private.copy_(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        outputs.set_noise(over_time.model.likelihood.observation_model, torch.tensor([1.0, 0.25]))
    found = variances(over_time)
    assert found[["shared", "own", "noise"]].to_numpy() == pytest.approx(
        np.array([[2 / 4, 1 / 4, 1 / 4], [1 / 3.25, 2 / 3.25, 0.25 / 3.25]])
    )
    scales = [column.scale for column in outputs.columns]
    assert found["noise_std"].tolist() == pytest.approx([scales[0], 0.5 * scales[1]])
    assert found["trend"].tolist() == [0.0, 0.0]


def test_outputs_are_correlated_by_what_they_share(over_time):
    decoder = over_time.model.likelihood.decoder
    with torch.no_grad():
        decoder.shared.copy_(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0]]))
        decoder.private.zero_()
    assert correlations(over_time).to_numpy() == pytest.approx(np.array([[1, -(0.5**0.5)], [-(0.5**0.5), 1]]))
    with torch.no_grad():
        decoder.private[:, 0] = torch.tensor([3.0**0.5, 6.0**0.5])
    found = correlations(over_time)
    assert found.loc["a", "b"] == pytest.approx(-1 / (4 * 8) ** 0.5)
    assert found.columns.tolist() == ["a", "b"]


def test_cycles_explain_half_the_squares_of_their_amplitudes(over_time):
    coefficients = np.zeros((6, 2))
    coefficients[0], coefficients[5] = [1.0, 0.0], [0.0, 0.6]  # of the day, and of the week
    none = Trend.none(2)
    trend = Trend(none.places, Cycles([1.0, 7.0], [2, 1], coefficients), 0)
    found = cycles(over_time.with_(trend=trend))
    assert found.index.tolist() == [1.0, 7.0]
    assert found.to_numpy() == pytest.approx(np.array([[0.5, 0.0], [0.0, 0.18]]))
    assert cycles(over_time.with_(trend=none)).empty


def test_labels_are_told_by_their_correlation_and_each_kind_of_a_category_by_itself():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"soil": np.repeat(["clay", "sand"], 30), "x": random.random(60), "y": random.random(60)})
    frame["sky"] = np.array(["clear", "gray", "dark"])[random.integers(3, size=60)]
    frame["lead"] = random.normal(size=60)
    fitted = fit(["x", "y", "soil"], ["sky", "lead"], frame)
    for kernel in fitted.model.model.covar_module.kernels:
        for part in kernel.modules():
            if type(part).__name__ == "LabelKernel":
                part.lengthscale = 2.0
    assert label_correlations(fitted)["soil"] == pytest.approx(np.exp(-0.5))
    assert correlations(fitted).columns.tolist() == ["sky: clear", "sky: dark", "sky: gray", "lead"]
    found = variances(fitted)
    assert np.isnan(found.at["sky", "noise"])
    assert found.loc["lead", ["shared", "own", "noise"]].sum() == pytest.approx(1.0)
    assert set(lengthscales(fitted).columns) == {"x", "y"}
