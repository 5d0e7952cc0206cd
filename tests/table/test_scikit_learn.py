"""What scikit-learn asks of a transformer."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from gpytorch_sgpvae.table import SGPVAEImputer, TableError, TableWarning

QUICK = {"max_epochs": 1, "compare": False, "progress": False, "num_latents": 1}
TOGETHER = "a hole is filled from the rows around it, so that rows are explained together and their order counts"
EXPECTED = {"check_methods_sample_order_invariance": TOGETHER, "check_methods_subset_invariance": TOGETHER}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gpytorch_sgpvae.table.TableWarning")  # most of these tables have no holes
@pytest.mark.filterwarnings("ignore:Number of features of the input must be:UserWarning")
@parametrize_with_checks([SGPVAEImputer(**QUICK)], expected_failed_checks=lambda _: EXPECTED)
def test_it_passes_scikit_learns_checks(estimator, check):
    check(estimator)


def make_array(rows=40, seed=0):
    random = np.random.default_rng(seed)
    wave = np.sin(np.arange(rows) / 4)
    array = np.stack([wave, 2 * wave + 1, np.cos(np.arange(rows) / 4)], 1) + 0.05 * random.normal(size=(rows, 3))
    array[random.random(array.shape) < 0.2] = np.nan
    return array


@pytest.fixture(scope="module")
def array():
    return make_array()


@pytest.fixture(scope="module")
def fitted(array):
    return SGPVAEImputer(**QUICK).fit(array)


def test_what_needs_a_fit_says_so_in_scikit_learns_way(array):
    imputer = SGPVAEImputer()
    for ask in (imputer.transform, imputer.predict, imputer.scores, imputer.get_feature_names_out):
        with pytest.raises(NotFittedError):
            ask(array)
    with pytest.raises(TableError, match=r"has not been fitted yet: call fit\(table\) first"):
        imputer.transform(array)
    assert not hasattr(imputer, "n_features_in_")
    assert not hasattr(imputer, "feature_names_in_")


class TestArrays:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_an_array_with_holes_comes_back_as_one_without(self, array, dtype):
        given = array.astype(dtype)
        filled = SGPVAEImputer(**QUICK).fit_transform(given)
        assert filled.dtype == dtype
        assert not np.isnan(filled).any()
        np.testing.assert_array_equal(filled[~np.isnan(array)], given[~np.isnan(array)])

    def test_rows_are_told_apart_by_their_numbers_if_nothing_else_is_named(self, array):
        named = pd.DataFrame(array, columns=list("abc")).assign(row=np.arange(len(array)))
        expected = SGPVAEImputer(["row"], list("abc"), **QUICK).fit_transform(named)
        np.testing.assert_allclose(SGPVAEImputer(**QUICK).fit_transform(array), expected[list("abc")])

    def test_columns_are_called_by_their_numbers(self, array):
        table = np.column_stack([np.repeat([1.0, 2.0], 20), np.tile(np.arange(20.0), 2), array])
        imputer = SGPVAEImputer(inputs=[1], outputs=[2, 4], task=0, families={4: "real"}, **QUICK).fit(table)
        assert imputer.families_ == {"x2": "real", "x4": "real"}
        filled = imputer.transform(table)
        assert not np.isnan(filled[:, [0, 1, 2, 4]]).any()
        np.testing.assert_array_equal(filled[:, 3], table[:, 3])

    def test_all_that_tables_have_arrays_have_without_names(self, fitted, array):
        assert fitted.transform(array, intervals=True).shape == (40, 3 + 3 * 4)
        assert fitted.forecast(array, 5).shape == (5, 1 + 3 * 4)
        assert [draw.shape for draw in fitted.sample(array, 2)] == [(40, 3)] * 2
        masked, mask = fitted.hide(array)
        assert mask.dtype == bool
        np.testing.assert_array_equal(np.isnan(masked), np.isnan(array) | mask)
        assert fitted.scores(array).index.tolist() == ["x0", "x1", "x2"]

    def test_without_a_context_the_table_itself_is_what_is_known(self, fitted, array):
        predicted = fitted.predict(array)
        assert predicted.shape == (40, 3 * 4)
        holes = np.isnan(array[:, 0])
        np.testing.assert_allclose(predicted[holes, 0], fitted.transform(array)[holes, 0])

    def test_new_rows_of_a_table_without_inputs_need_their_numbers(self, fitted, array):
        frame = pd.DataFrame(array, columns=["a", "b", "c"])
        imputer = SGPVAEImputer(**QUICK).fit(frame)
        assert imputer.predict(pd.DataFrame({"row number": [3.5, 40]}), context=frame).shape == (2, 12)
        with pytest.raises(TableError, match="counted from 0 in the context, in a column 'row number'"):
            imputer.predict(frame[["a"]], context=frame)

    def test_a_frame_without_names_keeps_its_numbers(self, array):
        frame = pd.DataFrame(array)
        imputer = SGPVAEImputer(**QUICK).fit(frame)
        assert imputer.transform(frame).columns.equals(frame.columns)
        assert not hasattr(imputer, "feature_names_in_")
        with pytest.warns(TableWarning, match="X has feature names, but SGPVAEImputer was fitted without"):
            imputer.transform(frame.set_axis(list("abc"), axis=1))


class TestChoices:
    """The columns that are taken where a table's owner names none."""

    def test_an_index_of_dates_is_the_input(self, array):
        days = pd.date_range("2025-01-01", periods=40)
        for index in (days, days.rename("day"), days.to_period("D")):
            imputer = SGPVAEImputer(**QUICK).fit(pd.DataFrame(array, index, columns=list("abc")))
            assert [column.name for column in imputer.fitted_.reader.inputs] == [index.name or "index"]

    def test_columns_of_numbers_that_vary_are_the_outputs(self, array):
        table = pd.DataFrame(array, columns=list("abc")).assign(note="dry", one=1.0, week=np.arange(40) // 10)
        with pytest.warns(TableWarning, match="no outputs, and are left as they are: one"):
            imputer = SGPVAEImputer(task="week", **QUICK).fit(table)
        assert list(imputer.families_) == ["a", "b", "c"]

    def test_a_table_without_any_is_refused(self):
        with pytest.raises(TableError, match=r"no column of numbers that could be an output\. Name the outputs"):
            SGPVAEImputer().fit(pd.DataFrame({"a": ["x", "y"]}))


class TestFeatures:
    def test_their_names_are_those_of_the_table(self, imputer, table):
        assert imputer.n_features_in_ == table.shape[1]
        assert imputer.feature_names_in_.tolist() == table.columns.tolist()
        assert imputer.get_feature_names_out().tolist() == table.columns.tolist()
        with pytest.raises(ValueError, match="input_features is not equal to feature_names_in_"):
            imputer.get_feature_names_out(["a"] * table.shape[1])

    def test_those_of_an_array_have_numbers(self, fitted):
        assert fitted.n_features_in_ == 3
        assert fitted.get_feature_names_out().tolist() == ["x0", "x1", "x2"]

    def test_an_array_after_a_frame_is_taken_in_the_order_of_its_columns(self, array):
        frame = pd.DataFrame(array, columns=list("abc"))
        imputer = SGPVAEImputer(**QUICK).fit(frame)
        with pytest.warns(TableWarning, match="X does not have valid feature names, but SGPVAEImputer was fitted with"):
            np.testing.assert_array_equal(imputer.transform(array), imputer.transform(frame))
        with pytest.raises(TableError, match="X has 2 features, but SGPVAEImputer is expecting 3"):
            imputer.transform(array[:, :2])


class TestOutput:
    def test_the_kind_of_table_that_is_chosen_comes_out(self, fitted, array):
        polars = pytest.importorskip("polars")
        expected = fitted.transform(array)
        imputer = pickle.loads(pickle.dumps(fitted))
        as_pandas = imputer.set_output(transform="pandas").transform(array)
        pd.testing.assert_frame_equal(as_pandas, pd.DataFrame(expected, columns=["x0", "x1", "x2"]))
        as_polars = imputer.set_output(transform="polars").transform(array, intervals=True)
        assert isinstance(as_polars, polars.DataFrame)
        assert as_polars.columns[:4] == ["x0", "x1", "x2", "x0_std"]
        assert clone(imputer).set_output(transform=None)._container == "polars"
        assert isinstance(imputer.set_output(transform="default").transform(array), np.ndarray)

    def test_columns_are_never_renamed_by_their_places(self, imputer, table):
        chosen = pickle.loads(pickle.dumps(imputer)).set_output(transform="pandas")
        turned = table[table.columns[::-1]]
        pd.testing.assert_frame_equal(chosen.transform(turned), imputer.transform(turned))

    def test_scikit_learns_own_setting_is_obeyed(self, fitted, array):
        with sklearn.config_context(transform_output="pandas"):
            assert isinstance(fitted.transform(array), pd.DataFrame)

    def test_another_kind_is_refused(self, fitted):
        with pytest.raises(TableError, match="transform must be one of default, pandas, polars, got 'dask'"):
            fitted.set_output(transform="dask")


class TestCompany:
    def test_it_is_a_step_of_a_pipeline(self, array):
        target = np.sin(np.arange(40) / 4)
        pipeline = make_pipeline(SGPVAEImputer(**QUICK), Ridge()).fit(array, target)
        assert pipeline.score(array, target) > 0.8
        assert pipeline[:-1].get_feature_names_out().tolist() == ["x0", "x1", "x2"]

    def test_it_is_a_part_of_a_column_transformer(self, array):
        frame = pd.DataFrame(array, columns=list("abc"))
        parts = ColumnTransformer([("sgpvae", SGPVAEImputer(**QUICK), ["a", "b"])], remainder="passthrough")
        filled = parts.set_output(transform="pandas").fit_transform(frame)
        assert filled.columns.tolist() == ["sgpvae__a", "sgpvae__b", "remainder__c"]
        assert filled[["sgpvae__a", "sgpvae__b"]].notna().all(axis=None)

    def test_grid_search_chooses_among_its_parameters(self, array):
        search = GridSearchCV(SGPVAEImputer(**QUICK), {"num_latents": [1, 2]}, cv=2).fit(array)
        assert search.best_params_["num_latents"] in (1, 2)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        assert not np.isnan(search.transform(array)).any()

    def test_cross_validation_scores_it(self, array):
        scores = cross_val_score(SGPVAEImputer(**QUICK), array, cv=2)
        assert (scores < 0).all()
