"""The model follows from a table's shape."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table.model import make_kernel
from gpytorch_sgpvae.table.plan import MOST_STATES, Plan, make_plan
from gpytorch_sgpvae.table.reading import TableReader

random = np.random.default_rng(0)


def make_stations(num_stations=6, num_days=10):
    """Stations somewhere, each with a value every day."""
    station, day = (index.ravel() for index in np.meshgrid(range(num_stations), range(num_days), indexing="ij"))
    place = random.uniform(0, 10, (num_stations, 2))
    table = pd.DataFrame({"station": station, "day": day.astype(float), "lat": place[station, 0]})
    table["lon"], table["kind"] = place[station, 1], np.where(station % 2, "hill", "valley")
    return table.assign(y=random.normal(size=len(table)), z=random.normal(size=len(table)))


def plan_of(table, inputs, task=None, periodic=None, covariates=(), **options):
    reader = TableReader.fit(table, inputs, ["y"], task, periodic or {}, {}, covariates)
    return make_plan(reader.inputs, reader.read(table), sum(reader.outputs.num_values), **options)


class TestKind:
    def test_a_series_without_tasks_is_markov(self):
        plan = plan_of(make_stations(1, 40), ["day"])
        assert (plan.kind, plan.time, plan.space, plan.has_places) == ("markov", 0, (), False)

    def test_series_of_tasks_are_markov(self):
        assert plan_of(make_stations(), ["day"], "station").kind == "markov"

    def test_inputs_that_are_constant_within_tasks_leave_it_markov(self):
        plan = plan_of(make_stations(), ["lat", "kind", "day"], "station")
        assert (plan.kind, plan.time, plan.has_places) == ("markov", 2, False)

    def test_rows_in_space_are_dense_without_a_time(self):
        table = pd.DataFrame(random.uniform(size=(50, 3)), columns=["a", "b", "y"])
        plan = plan_of(table, ["a", "b"])
        assert (plan.kind, plan.time, plan.space, plan.has_places) == ("dense", None, (0, 1), False)

    def test_stations_over_time_are_dense_with_places(self):
        plan = plan_of(make_stations(), ["lat", "day", "lon"])
        assert (plan.kind, plan.time, plan.space, plan.has_places) == ("dense", 1, (0, 2), True)

    def test_places_that_never_come_again_are_none(self):
        table = make_stations()
        table["lat"] += random.normal(size=len(table))
        dates = pd.Timestamp("2024-01-01") + pd.to_timedelta(table["day"], unit="D")
        plan = plan_of(table.assign(day=dates), ["lat", "day"])
        assert (plan.kind, plan.time, plan.has_places) == ("dense", 1, False)

    def test_inducing_points_make_it_sparse(self):
        plan = plan_of(make_stations(), ["day"], "station", num_inducing=7)
        assert (plan.kind, plan.num_inducing) == ("sparse", 7)

    def test_labels_have_no_distance_and_make_places(self):
        plan = plan_of(make_stations(2), ["kind", "day"])
        assert (plan.kind, plan.labels, plan.numbers, plan.place, plan.has_places) == ("dense", (0,), (1,), (0,), True)

    def test_a_periodic_input_is_no_time(self):
        table = make_stations(1, 40)
        assert plan_of(table, ["day"], periodic={"day": 7}).time is None
        plan = plan_of(table.assign(hour=table["day"] % 5), ["day", "hour"], periodic={"hour": 24})
        assert (plan.kind, plan.time, plan.cycles) == ("dense", 0, (1,))


class TestEmbedding:
    def test_stations_with_long_records_have_one(self):
        assert plan_of(make_stations(3, 200), ["lat", "lon", "day"]).num_embedded == 3
        assert plan_of(make_stations(4, 200), ["station", "day"]).num_embedded == 4

    def test_short_records_many_places_and_other_models_have_none(self):
        assert plan_of(make_stations(3, 199), ["lat", "lon", "day"]).num_embedded == 0
        assert plan_of(make_stations(70, 200), ["lat", "lon", "day"]).num_embedded == 0
        assert plan_of(make_stations(3, 200), ["day"], "station").num_embedded == 0
        assert plan_of(make_stations(3, 200), ["lat", "lon", "day"], num_inducing=7).num_embedded == 0


class TestTime:
    def test_a_date_is_the_time(self):
        table = make_stations()
        table["date"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(table["day"], unit="D")
        assert plan_of(table, ["lat", "lon", "date"]).time == 2

    def test_few_days_at_many_places_are_the_time_all_the_same(self):
        """Days have even steps, and positions have not."""
        table = pd.concat([make_stations(30, 4).assign(week=week) for week in range(3)])
        assert plan_of(table, ["lat", "day"], "week").time == 1


class TestSize:
    @pytest.mark.parametrize("num_values", [1, 2, 5, 15, 20, 21, 40, 60, 61, 64])
    def test_states_over_time_are_bounded_whatever_the_number_of_outputs(self, num_values):
        table = make_stations(1, 40)
        reader = TableReader.fit(table, ["day"], ["y"], None, {}, {}, ())
        plan = make_plan(reader.inputs, reader.read(table), num_values)
        kernel = make_kernel(plan, num_values)
        states = {0.5: 1, 1.5: 2}
        sizes = [plan.group_size] * plan.num_groups + [num_values] * plan.num_private
        assert sum(size * states[part.nu] for size, part in zip(sizes, kernel.kernels, strict=True)) <= MOST_STATES
        assert kernel.batch_shape.numel() == sum(sizes)
        assert plan.num_shared >= 1

    def test_covariates_are_outputs_to_the_model(self):
        table = make_stations(1, 40)
        assert plan_of(table, ["day"], covariates=["z"]).group_size == 2 * plan_of(table, ["day"]).group_size

    @pytest.mark.parametrize("number", [1, 2, 3, 6, 9])
    def test_a_number_of_latent_functions_is_kept(self, number):
        assert plan_of(make_stations(), ["day"], "station", num_latents=number).num_shared == number


def test_a_plan_comes_back_from_json():
    plan = plan_of(make_stations(), ["lat", "kind", "day"], periodic={"lat": 5})
    assert Plan(**json.loads(json.dumps(plan.to_dict()))) == plan
    assert "dense" in plan.description
