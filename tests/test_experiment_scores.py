"""Scores of several models' predictions together."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

pytest.importorskip("lightning", reason="the experiments train with the extra train")

from experiments.scores import pool, score
from gpytorch_sgpvae import Prediction

MOMENTS = [(0.3, 0.5), (1.2, 0.4), (2.0, 0.7)]


@pytest.mark.parametrize("log", [False, True])
def test_a_pool_is_the_equal_mixture_of_its_models_in_the_units_of_the_values(log):
    shape = (4, 2)
    predictions = [
        Prediction.gaussian(*(torch.full(shape, value, dtype=torch.float64) for value in moments))
        for moments in MOMENTS
    ]
    pooled = pool(predictions, log)
    parts = [
        stats.lognorm(stddev, scale=math.exp(mean)) if log else stats.norm(mean, stddev) for mean, stddev in MOMENTS
    ]
    mean = sum(part.mean() for part in parts) / 3
    variance = sum(part.var() + part.mean() ** 2 for part in parts) / 3 - mean**2
    for name, value in (("mean", mean), ("variance", variance)):
        expected = torch.full(shape, value, dtype=torch.float64)
        torch.testing.assert_close(getattr(pooled, name), expected, rtol=1e-6, atol=0)

    y = torch.tensor([[0.7, 1.5], [2.0, 3.0], [0.2, torch.nan], [5.0, torch.nan]], dtype=torch.float64)
    density = torch.tensor(sum(part.pdf(y[~y.isnan()]) for part in parts) / 3)
    per_output = torch.full_like(y, torch.nan).masked_scatter(~y.isnan(), density.log()).nanmean(0)
    scores = score(pooled, y, ("nll_mixture", "mae"), median=True)
    assert scores["nll_mixture"] == pytest.approx(-per_output.mean().item(), rel=1e-6)

    median = pooled.quantile(0.5)[0, 0].item()
    assert sum(part.cdf(median) for part in parts) / 3 == pytest.approx(0.5, abs=1e-6)
    assert scores["mae"] == pytest.approx((y - median).abs().nanmean(0).mean().item(), rel=1e-6)
