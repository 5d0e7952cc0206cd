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
from gpytorch_sgpvae.table import TableError, families
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


season = np.sin(np.arange(400) * 2 * np.pi / 365)
NO_COUNTS = {
    "degrees from 0 to 35": np.round(17 + 12 * season + 3 * random.normal(size=400)).clip(0, 35),
    "degrees, each as often": np.arange(360) % 36,
    "degrees around 5": np.round(7 + 2.5 * random.normal(size=400)).clip(0),
    "humidity in percent": np.round(100 * random.beta(5, 3, 400)),
    "pressure in hPa": np.round(1013 + 8 * random.normal(size=400)),
    "years": np.arange(400) % 40 + 1980,
    "ids": np.arange(400),
    "months": np.arange(396) % 12 + 1,
    "weekdays": np.arange(399) % 7,
    "ratings": random.integers(1, 6, 400),
    "eighths of the sky": np.round(8 * random.beta(0.5, 0.4, 400)),
}
CONCENTRATIONS = {
    "CO in steps of 100": 100 * np.round(np.exp(7 + 0.8 * random.normal(size=400)) / 100).clip(1, 100),
    "PM2.5, whole": np.round(np.exp(4 + random.normal(size=400))).clip(3, 900),
    "PM2.5": np.exp(4 + random.normal(size=400)).clip(3, 900),
}


@pytest.mark.parametrize("name", NO_COUNTS)
def test_whole_numbers_that_count_nothing_are_real(name):
    assert guess_family(column(NO_COUNTS[name].astype(float))) == "real"


@pytest.mark.parametrize("name", CONCENTRATIONS)
def test_concentrations_above_zero_are_positive(name):
    assert guess_family(column(CONCENTRATIONS[name])) == "positive"


@pytest.mark.parametrize(
    ("values", "family"),
    [
        (random.poisson(0.7, 400), "count"),
        (random.poisson(3 * random.gamma(1, 1, 400)), "count"),
        (5 * random.poisson(1, 400), "real"),  # 0, 5, 10, ...
        (random.poisson(200 * random.gamma(2, 0.5, 400)), "positive"),  # as large as any other number
        ((random.random(400) < 0.3) * np.round(random.gamma(0.7, 60, 400)), "amount"),  # rain in tenths of mm
        ((random.random(400) < 0.98) * np.round(np.exp(1 + random.normal(size=400)), 1), "positive"),  # some zeros
        (np.append(random.gamma(2, 5, 400), [1e-6] * 5), "positive"),  # the logarithms have a longer tail
        (np.abs(20 + 7 * random.normal(size=400)) + 1, "real"),  # a summer's temperatures: a wide range, no tail
        (273 + random.gamma(1, 5, 400), "real"),  # kelvins: a tail, no range
    ],
)
def test_the_guess_looks_at_size_gaps_zeros_range_and_tail(values, family):
    assert guess_family(column(values.astype(float))) == family


@pytest.mark.parametrize("family", ["count", "positive", "amount"])
def test_every_guess_can_be_overridden(family):
    years = column(np.arange(1980.0, 2020.0))
    assert fit_column(years).family == "real"
    assert fit_column(years, family).family == family


def test_temperatures_of_a_summer_do_not_refuse_those_of_a_winter():
    for summer in (column(5 + 30 * random.beta(2, 3, 400)), column(NO_COUNTS["degrees from 0 to 35"])):
        fitted = fit_column(summer)
        targets = torch.tensor(fitted.encode(pd.Series([-2.0, -40.0], name="y")))
        np.testing.assert_allclose(fitted.values_of(targets).numpy(), [-2.0, -40.0])


@pytest.mark.parametrize("family", ["positive", "amount", "count"])
def test_a_negative_value_is_refused_where_the_guess_rules_it_out(family):
    fitted = fit_column(column(COLUMNS[family]))
    message = rf"'y' is of the family {family}, .* but has -2 in row 2\. Correct it, or .*families={{'y': 'real'}}"
    with pytest.raises(TableError, match=message):
        fitted.encode(pd.Series([1.0, -2.0], name="y"))


@pytest.mark.parametrize("values", [*CONCENTRATIONS.values(), COLUMNS["amount"]])
def test_intervals_of_concentrations_are_never_negative(values):
    outputs = Outputs([fit_column(column(values))])
    likelihood = DecoderLikelihood(torch.nn.Identity(), outputs.observation_model().double())
    nothing = torch.zeros(4, 1, dtype=torch.float64)
    decoded = torch.tensor([[-9.0], [-3.0], [0.0], [3.0]]).double()
    with torch.no_grad():
        distribution = outputs.in_units(likelihood(decoded), nothing, nothing)
    assert (distribution.icdf(torch.tensor(0.025).double()) >= 0).all()
    assert (distribution.icdf(torch.tensor(0.975).double())[2:] > 0).all()


@pytest.mark.parametrize("mean", [1e1, 1e4, 1e6, 1e9])
def test_counts_of_any_size_start_as_close_to_the_data(mean):
    """Before any training, the decoder's values are close to the mean, and counts are noisy as their logarithms are."""
    values = column(random.poisson(mean * random.gamma(10, 0.1, 300)).astype(float))
    fitted = fit_column(values, "count")
    targets = fitted.encode(values)
    np.testing.assert_array_equal(targets, values.to_numpy())
    outputs = Outputs([fitted])
    model = outputs.observation_model().double()
    outputs.initialize(model, targets[:, None])
    values_at = torch.tensor(targets).unsqueeze(-1)
    start, _ = model.initial_sites(values_at.nan_to_num(), ~values_at.isnan())  # where the model sees the counts
    start = start[~values_at.isnan()]
    assert 0 < start.mean() < 20
    assert start.std() < 5
    with torch.no_grad():
        distribution = model((start.mean() + start.std() * torch.tensor([-5.0, 0.0]).double()).unsqueeze(-1))
    low, middle = distribution.mean.flatten().tolist()
    assert middle == pytest.approx(np.nanmean(targets), rel=0.1)
    assert low > 1e-9 * mean
    assert 0.02 < model.dispersion.reciprocal().item() / 0.1 < 0.3


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
    assert list(saved)[:5] == ["name", "family", "shift", "scale", "levels"]
    assert make_column(json.loads(json.dumps(saved))) == fitted


def test_only_the_families_know_their_names():
    folder = Path(table.__file__).parent
    named = re.compile("|".join(f'"{family}"' for family in FAMILIES))
    assert not [path.name for path in folder.glob("*.py") if named.search(path.read_text())]


def test_the_documentation_has_every_family():
    rows = re.findall(r"^(\w+) +\S.*$", families.__doc__.partition("model\n")[2], re.MULTILINE)
    assert rows == list(FAMILIES)
