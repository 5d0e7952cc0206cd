"""Which kind of values a column has, and its way to targets and back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_sgpvae import DecoderLikelihood, table
from gpytorch_sgpvae.table import families
from gpytorch_sgpvae.table.families import FAMILIES, fit_column, guess_family, make_column
from gpytorch_sgpvae.table.outputs import Outputs

random = np.random.default_rng(0)
COLUMNS = {
    "real": random.normal(15, 8, 300),
    "positive": np.exp(random.normal(0, 1, 300)),
    "amount": np.maximum(random.normal(0, 3, 300), 0) ** 2,
    "count": random.poisson(4, 300).astype(float),
    "flag": random.integers(0, 2, 300).astype(float),
    "category": random.choice(["a", "b", "c"], 300),
}


def column(values):
    series = pd.Series(values, name="y")
    series[::7] = None
    return series


@pytest.mark.parametrize("family", COLUMNS)
def test_the_family_is_guessed(family):
    assert guess_family(column(COLUMNS[family])) == family


@pytest.mark.parametrize(
    ("values", "family"),
    [
        ([True, False, True], "flag"),
        (["yes", "no", "no"], "flag"),
        ([1000.5, 1013.2, 1020.1], "real"),  # above zero, without a tail
        ([-1, 0, 3], "real"),
        ([0, 3, 1, 0, 8], "count"),
        ([21, 22, 23, 24, 22], "real"),  # whole degrees vary too little for counts
        ([0.0, 0.0, 1.5, 0.2], "amount"),
        ([0.0, 1.0, 0.0], "flag"),
    ],
)
def test_small_columns_are_guessed_too(values, family):
    assert guess_family(pd.Series(values, name="y")) == family


@pytest.mark.parametrize("family", COLUMNS)
def test_targets_and_back_are_the_values(family):
    values = column(COLUMNS[family])
    fitted = fit_column(values)
    outputs = Outputs([fitted])
    targets = torch.tensor(fitted.encode(values)).unsqueeze(-1)
    back = fitted.decode(outputs.values_of(targets).squeeze(-1).numpy()[values.notna().to_numpy()])
    expected = values.dropna().to_numpy()
    if family == "category":
        assert (back == expected).all()
    else:
        np.testing.assert_allclose(back.astype(float), expected.astype(float), atol=1e-12)


def test_densities_in_units_integrate_to_one():
    """The change of units is a change of variables: of log-normal, censored and Gaussian columns alike."""
    fitted = [fit_column(column(COLUMNS[name])) for name in ("real", "positive", "amount")]
    outputs = Outputs(fitted)
    likelihood = DecoderLikelihood(torch.nn.Identity(), outputs.observation_model().double())
    nothing = torch.zeros(1, 3, dtype=torch.float64)
    with torch.no_grad():
        distribution = outputs.in_units(likelihood(nothing + 0.3), nothing, nothing)
    quantiles = distribution.icdf(torch.tensor(0.9, dtype=torch.float64))
    torch.testing.assert_close(distribution.cdf(quantiles), torch.full_like(quantiles, 0.9))
    for j in range(3):
        lower = -80.0 if j == 0 else 0.0
        grid = torch.linspace(lower, float(quantiles[0, j]), 200_001, dtype=torch.float64)[1:]
        values = quantiles.expand(len(grid), 3).clone()
        values[:, j] = grid
        density = distribution.log_prob(values).exp()[:, j]
        mass = float(torch.trapezoid(density, grid))
        if fitted[j].family == "amount":
            mass += float(distribution.cdf(torch.zeros(1, 3, dtype=torch.float64))[0, j])
        assert mass == pytest.approx(0.9, abs=5e-3)


def test_neighbors_of_one_family_share_an_observation_model():
    fitted = [FAMILIES["real"](name) for name in "ab"] + [FAMILIES["flag"]("c", levels=(0, 1))]
    model = Outputs(fitted).observation_model()
    assert [part.num_outputs for part in model.observation_models] == [2, 1]
    assert type(Outputs(fitted[:2]).observation_model()).__name__ == "GaussianObservations"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_column_comes_back_from_what_is_saved_of_it(family):
    fitted = fit_column(column(COLUMNS[family]), family)
    saved = fitted.to_dict()
    assert list(saved) == ["name", "family", "shift", "scale", "levels"]  # as format 1 has it
    assert make_column(json.loads(json.dumps(saved))) == fitted


def test_only_the_families_know_their_names():
    folder = Path(table.__file__).parent
    named = re.compile("|".join(f'"{family}"' for family in FAMILIES))
    assert not [path.name for path in folder.glob("*.py") if named.search(path.read_text())]


def test_the_documentation_has_every_family():
    rows = re.findall(r"^(\w+) +\S.*$", families.__doc__.partition("model\n")[2], re.MULTILINE)
    assert rows == list(FAMILIES)
