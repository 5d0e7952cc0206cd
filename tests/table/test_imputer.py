"""Promises to the owner of a table."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import FAMILIES, OUTPUTS, make_imputer, make_table
from sklearn.base import clone

from gpytorch_sgpvae import MarkovGPVAE
from gpytorch_sgpvae.table import SGPVAEImputer, TableError, TableWarning


class TestTransform:
    def test_holes_are_filled_and_nothing_else_changes(self, imputer, table):
        shuffled = table.sample(frac=1.0, random_state=0).set_index(np.arange(len(table)) % 7)  # labels come again
        filled = imputer.transform(shuffled)
        assert not filled[OUTPUTS].isna().any().any()
        assert filled.columns.equals(shuffled.columns)
        assert filled.index.equals(shuffled.index)
        known = shuffled.notna()
        for name in shuffled.columns:
            assert (filled[name][known[name].to_numpy()] == shuffled[name].dropna()).all()
        assert (filled.dtypes == shuffled.dtypes).all()

    def test_what_is_filled_is_of_the_columns_kind(self, imputer, table):
        filled = imputer.transform(table)
        assert (filled["cars"] == filled["cars"].round()).all()
        assert (filled["cars"] >= 0).all()
        assert (filled["rain"] >= 0).all()
        assert set(filled["wet"]) == {True, False}
        assert set(filled["sky"]) == {"clear", "dark", "gray"}

    @pytest.mark.parametrize("dtype", ["bool", "boolean", "object", "string", "category", "int"])
    def test_a_flag_without_holes_stays_as_it_is(self, dtype):
        day = np.tile(np.arange(6.0), 4)
        table = pd.DataFrame({"site": np.repeat(list("abcd"), 6), "day": day, "y": np.sin(day)})
        flag = pd.Series(table["y"] > 0)
        if dtype in ("object", "string", "category"):
            flag = flag.map({True: "yes", False: "no"})
        table["flag"] = flag.astype(dtype)
        table.loc[::5, "y"] = np.nan
        imputer = SGPVAEImputer(["day"], ["y", "flag"], "site", max_epochs=1, compare=False, progress=False).fit(table)
        assert imputer.families_["flag"] == "flag"
        for filled in (imputer.transform(table), imputer.transform(table, intervals=True), *imputer.sample(table, 1)):
            pd.testing.assert_series_equal(filled["flag"], table["flag"])
            assert filled["y"].notna().all()
        spread = imputer.transform(table, intervals=True)
        assert spread[["flag_std", "flag_lower", "flag_upper"]].isna().all(axis=None)
        assert not spread["flag_filled"].any()

    def test_values_beyond_those_of_the_fit_are_taken(self, imputer, table):
        winter = table.assign(temp=table["temp"] - 40)
        with pytest.warns(TableWarning, match="explained much worse than those of the table that was fitted"):
            filled = imputer.transform(winter, intervals=True)
        assert winter["temp"].max() < 0
        assert filled["temp"].notna().all()
        assert (filled["temp_lower"].dropna() < 0).any()

    def test_the_order_of_the_rows_does_not_matter(self, imputer, table):
        order = np.random.default_rng(0).permutation(len(table))
        temp = imputer.transform(table.iloc[order])["temp"].sort_index()
        pd.testing.assert_series_equal(temp, imputer.transform(table)["temp"], rtol=1e-6)

    def test_intervals_are_given_for_what_was_filled(self, imputer, table):
        filled = imputer.transform(table, intervals=True)
        for name in OUTPUTS:
            holes = table[name].isna()
            assert filled[f"{name}_filled"].equals(holes.rename(f"{name}_filled"))
            assert filled[f"{name}_std"].notna().equals(holes.rename(f"{name}_std"))
        holes = table["temp"].isna()
        assert (filled["temp_lower"] < filled["temp"])[holes].all()
        assert (filled["temp"] < filled["temp_upper"])[holes].all()

    def test_it_never_changes_the_table_it_was_given(self, imputer, table):
        before = table.copy()
        imputer.transform(table)
        imputer.scores(table)
        imputer.sample(table, 1)
        pd.testing.assert_frame_equal(table, before)

    def test_whole_numbers_with_holes_stay_whole(self, table):
        table = table.astype({"cars": "Int64", "wet": "boolean", "sky": "category", "temp": "float32"})
        filled = make_imputer(max_epochs=1).fit_transform(table)
        assert not filled[OUTPUTS].isna().any().any()
        assert (filled.dtypes == table.dtypes).all()


class TestPredict:
    def test_it_has_a_value_and_an_interval_for_each_output(self, imputer, table):
        places = pd.DataFrame({"site": ["site 3", "site 0"], "day": [4.5, 0.5]}, index=["x", "y"])
        predicted = imputer.predict(places, context=table)
        assert predicted.index.tolist() == ["x", "y"]
        expected = [f"{name}{suffix}" for name in OUTPUTS for suffix in ("", "_std", "_lower", "_upper")]
        assert set(predicted.columns) == {*expected, "wet_probability", "sky_probability"}
        assert (predicted["rain_lower"] >= 0).all()
        assert predicted["sky_lower"].isna().all()  # labels have no order

    def test_asking_again_gives_the_same_answer(self, imputer, table):
        places = table[["site", "day"]]
        predicted = imputer.predict(places, context=table)
        again = imputer.predict(places, context=table)
        pd.testing.assert_frame_equal(predicted, again)

    def test_known_values_of_the_task_make_it_certain(self, imputer, table):
        places = pd.DataFrame({"site": ["site 0"], "day": [9.5]})
        everything = imputer.predict(places, context=table)
        rest = table[(table["site"] != "site 0") | (table["day"] < 2)]
        assert everything["temp_std"].item() < imputer.predict(places, context=rest)["temp_std"].item()

    def test_a_task_of_which_nothing_is_known_is_told(self, imputer, table):
        with pytest.warns(TableWarning, match="no rows of the task elsewhere"):
            predicted = imputer.predict(pd.DataFrame({"site": ["elsewhere"], "day": [3]}), context=table)
        assert predicted["temp"].notna().all()

    def test_tasks_that_it_has_never_seen_are_filled_better_than_by_means(self, imputer):
        unseen = make_table(num_tasks=4, seed=1)
        scores = imputer.scores(unseen, fraction=0.3)
        assert scores.loc["temp", "rmse"] < 0.5 * unseen["temp"].std()


class TestPredictive:
    def test_it_has_the_distributions_that_predict_summarizes(self, imputer, table):
        places = table[["site", "day"]].sample(frac=0.3, random_state=0)
        predictive, predicted = imputer.predictive(places, context=table), imputer.predict(places, context=table)
        assert predictive.mean.shape == (len(places), len(OUTPUTS))
        np.testing.assert_allclose(predictive.mean[:, 0], predicted["temp"])
        np.testing.assert_allclose(predictive.stddev[:, 0], predicted["temp_std"])

    def test_asking_again_gives_the_same_answer(self, imputer, table):
        first, second = (imputer.predictive(table, context=table) for _ in range(2))
        assert torch.equal(first.mean, second.mean)

    def test_known_values_are_read_in_their_own_units(self, imputer, table):
        values = imputer.read_outputs(table)
        assert torch.equal(values.isnan(), torch.tensor(table[OUTPUTS].isna().to_numpy()))
        np.testing.assert_allclose(values[:, :3], table[OUTPUTS[:3]].astype(float), atol=1e-12)
        levels = imputer.outputs_.columns[4].levels
        assert [levels[int(i)] for i in values[:, 4][~values[:, 4].isnan()]] == table["sky"].dropna().tolist()


class TestScore:
    def test_it_has_a_row_for_each_output_and_only_scores_that_apply(self, imputer, table):
        scores = imputer.scores(table, fraction=0.2)
        assert scores.index.tolist() == OUTPUTS
        assert scores["family"].to_dict() == FAMILIES
        assert (scores["n"] > 0).all()
        assert scores.loc[["temp", "rain", "cars"], ["rmse", "mae", "nll", "crps", "coverage"]].notna().all(axis=None)
        assert scores["accuracy"].notna().tolist() == [False, False, False, True, True]
        assert np.isnan(scores.loc["sky", "rmse"])

    def test_errors_are_those_of_the_predicted_means(self, imputer, table):
        scores = imputer.scores(table, fraction=0.2, seed=3)
        masked, mask = imputer.hide(table, 0.2, 3)
        filled = imputer.transform(masked)
        hidden = mask["temp"]
        error = (filled["temp"] - table["temp"])[hidden]
        assert scores.loc["temp", "n"] == hidden.sum()
        np.testing.assert_allclose(scores.loc["temp", "rmse"], np.sqrt((error**2).mean()), rtol=0.05)

    def test_what_is_hidden_was_known_and_is_a_hole_now(self, imputer, table):
        masked, mask = imputer.hide(table, 0.3, seed=1)
        assert mask.columns.tolist() == OUTPUTS
        assert table[OUTPUTS].notna()[mask].eq(True).where(mask, True).all(axis=None)
        assert masked[OUTPUTS].isna().equals(table[OUTPUTS].isna() | mask)
        assert 0.25 < mask.sum().sum() / table[OUTPUTS].notna().sum().sum() < 0.35
        assert mask.equals(imputer.hide(table, 0.3, seed=1)[1])


class TestOneNumber:
    def test_it_is_minus_the_mean_error_of_the_outputs_in_their_deviations(self, imputer, table):
        scores, values = imputer.scores(table), imputer.read_outputs(table).numpy()
        errors = [scores["crps"].iloc[p] / np.nanstd(values[:, p]) for p in range(3)]
        errors += [1 - scores["accuracy"].iloc[p] for p in (3, 4)]
        assert imputer.score(table) == pytest.approx(-np.mean(errors))


class TestSample:
    def test_draws_are_filled_tables_that_differ_where_holes_were(self, imputer, table):
        first, second = imputer.sample(table, 2)
        for draw in (first, second):
            assert not draw[OUTPUTS].isna().any().any()
            assert (draw["temp"] == table["temp"])[table["temp"].notna()].all()
        holes = table["temp"].isna()
        assert (first["temp"] != second["temp"])[holes].all()

    def test_draws_scatter_as_the_predictions_say(self, imputer, table):
        draws = np.stack([draw["temp"] for draw in imputer.sample(table, 100)])
        filled = imputer.transform(table, intervals=True)
        holes = table["temp"].isna().to_numpy()
        ratio = draws.std(0)[holes] / filled["temp_std"].to_numpy()[holes]
        assert 0.9 < ratio.mean() < 1.1


class TestFit:
    def test_the_families_are_guessed_and_shown(self, imputer):
        assert imputer.families_ == FAMILIES
        assert "rain (amount)" in repr(imputer)
        assert isinstance(imputer.model_, MarkovGPVAE)

    def test_a_seed_makes_it_reproducible(self, table):
        table = table.head(60)
        models = [make_imputer(max_epochs=2, seed=seed).fit(table).transform(table) for seed in (1, 1, 2)]
        pd.testing.assert_frame_equal(models[0], models[1])
        assert not models[0]["temp"].equals(models[2]["temp"])

    def test_it_keeps_the_parameters_that_predicted_held_out_entries_best(self, imputer):
        history = imputer.history_
        assert {"epoch", "train_elbo", "val_score", "val_coverage"} <= set(history.columns)
        assert history["val_score"].min() < history["val_score"].iloc[0]

    def test_an_override_of_the_family_is_kept(self, table):
        imputer = make_imputer(families={"cars": "real"}, max_epochs=1).fit(table)
        assert imputer.families_["cars"] == "real"

    @pytest.mark.slow
    def test_intervals_of_large_counts_are_as_wide_as_poissons(self):
        random = np.random.default_rng(0)
        table = pd.DataFrame({"site": np.repeat(np.arange(10), 12), "day": np.tile(np.arange(12), 10)})
        table["cars"] = random.poisson(400, len(table)).astype(float)
        table["temp"] = random.normal(size=len(table))
        families = {"cars": "count"}
        imputer = SGPVAEImputer(
            ["day"], ["cars", "temp"], "site", families=families, max_epochs=5, compare=False, progress=False
        )
        predicted = imputer.fit(table).predict(table[["site", "day"]], context=table)
        assert 0.8 < predicted["cars_std"].mean() / 20 < 1.5

    @pytest.mark.slow
    @pytest.mark.parametrize("mean", [1e1, 1e4, 1e6, 1e9])
    def test_counts_of_any_size_have_intervals_that_hold_nine_of_ten(self, mean):
        random = np.random.default_rng(0)
        table = pd.DataFrame({"site": np.repeat(np.arange(8), 20), "day": np.tile(np.arange(20.0), 8)})
        rate = mean * np.exp(0.5 * np.sin(table["day"] / 3 + table["site"]))
        truth = random.poisson(rate * random.gamma(50, 1 / 50, len(table))).astype(float)
        table["y"] = np.where(np.arange(len(table)) % 4, truth, np.nan)
        families = {"y": "count"}
        imputer = SGPVAEImputer(
            ["day"], ["y"], "site", families=families, max_epochs=30, compare=False, progress=False
        ).fit(table)
        filled = imputer.transform(table, intervals=True)
        holes = filled["y_filled"]
        inside = (filled["y_lower"] <= truth) & (truth <= filled["y_upper"])
        assert inside[holes].mean() >= 0.85
        # what is not known is 14 % of the rate, and Poisson's noise
        width = (filled["y_upper"] - filled["y_lower"])[holes].mean()
        assert width < 2 * 3.92 * np.hypot(0.14 * mean, mean**0.5)

    def test_one_long_task_is_learnt_in_windows(self, monkeypatch):
        monkeypatch.setattr("gpytorch_sgpvae.table.learning.MOST_ROWS", 40)
        time = np.arange(120.0)
        table = pd.DataFrame({"time": time, "y": np.sin(time / 5), "z": np.cos(time / 5)})
        table.loc[::4, "y"] = np.nan
        imputer = SGPVAEImputer(["time"], ["y", "z"], max_epochs=8, compare=False, progress=False).fit(table)
        error = (imputer.transform(table)["y"] - np.sin(time / 5))[::4]
        assert error.std() < 0.3

    def test_a_periodic_input_continues(self):
        hour = np.arange(72.0)
        table = pd.DataFrame({"hour": hour, "y": np.sin(hour * np.pi / 12), "z": np.cos(hour * np.pi / 12)})
        imputer = SGPVAEImputer(
            ["hour"], ["y", "z"], periodic={"hour": 24}, max_epochs=4, compare=False, progress=False
        ).fit(table)
        first, later = (
            imputer.predict(pd.DataFrame({"hour": [6.5 + shift]}), context=table)["y"].item() for shift in (0, 2400)
        )
        assert first == pytest.approx(later, abs=1e-6)

    def test_periodic_and_other_inputs_have_a_product_of_kernels(self):
        random = np.random.default_rng(0)
        table = pd.DataFrame({"hour": np.arange(48.0), "depth": random.random(48), "y": random.normal(size=48)})
        imputer = SGPVAEImputer(
            ["depth", "hour"], ["y"], periodic={"hour": 24}, max_epochs=1, compare=False, progress=False
        )
        assert imputer.fit(table).transform(table.assign(y=[np.nan, *table["y"][1:]]))["y"].notna().all()
        names = dict(imputer.model_.named_parameters())
        assert any("kernels.1.raw_period_length" in name for name in names)

    def test_it_works_in_single_precision(self, table):
        imputer = make_imputer(max_epochs=1, dtype=torch.float32).fit(table)
        assert next(imputer.model_.parameters()).dtype == torch.float32
        assert not imputer.transform(table)[OUTPUTS].isna().any().any()

    def test_scikit_learn_can_clone_it(self, imputer):
        twin = clone(imputer)
        assert twin.get_params()["inputs"] == ["day"]
        with pytest.raises(TableError, match="not been fitted"):
            twin.transform(pd.DataFrame())

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda imputer: pickle.loads(pickle.dumps(imputer))])
    def test_a_copy_predicts_the_same_and_has_parameters_of_its_own(self, imputer, table, duplicate):
        twin, expected = duplicate(imputer), imputer.transform(table, intervals=True)
        pd.testing.assert_frame_equal(twin.transform(table, intervals=True), expected)
        with torch.no_grad():
            for parameter in twin.model_.parameters():
                parameter.mul_(1.5)
        assert not twin.transform(table)["temp"].equals(expected["temp"])
        pd.testing.assert_frame_equal(imputer.transform(table, intervals=True), expected)

    @pytest.mark.parametrize("name", ["num_latents", "num_inducing", "batch_size", "max_epochs"])
    def test_numbers_below_one_are_refused(self, table, name):
        with pytest.raises(TableError, match=f"{name} must be a whole number from 1, .* got 0"):
            make_imputer(**{name: 0}).fit(table)
