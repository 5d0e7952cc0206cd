from __future__ import annotations

import gpytorch
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpytorch_sgpvae import Context
from gpytorch_sgpvae.context import as_context

NAN = torch.nan


class TestTheDoor:
    def test_nan_becomes_a_finite_filling_and_a_mask(self):
        y = torch.tensor([[1.0, NAN], [NAN, NAN], [2.0, 3.0]])
        context = Context(torch.rand(3, 1), y)
        assert context.filled.tolist() == [[1.0, 0.0], [0.0, 0.0], [2.0, 3.0]]
        assert context.observed.tolist() == [[True, False], [False, False], [True, True]]
        assert context.y is y

    def test_x_is_finite_and_always_the_same_object(self):
        x = torch.tensor([[0.0], [NAN], [2.0]])
        context = Context(x, torch.tensor([[1.0], [NAN], [2.0]]))
        assert context.x.isfinite().all()
        assert context.x is context.x
        assert context.is_at(context.x)
        assert context.is_at(x)
        assert not context.is_at(x.clone())

    def test_inputs_that_changed_in_place_are_no_longer_the_contexts_own(self):
        x = torch.rand(3, 1)
        context = Context(x, torch.randn(3, 1))
        x.add_(1)
        assert not context.is_at(x)
        with torch.inference_mode():
            x = torch.rand(3, 1)
            assert not Context(x, torch.randn(3, 1)).is_at(x)

    def test_gradients_pass_to_the_inputs_of_observed_rows(self):
        x = torch.rand(3, 1, requires_grad=True)
        Context(x, torch.randn(3, 1)).x.sum().backward()
        assert torch.equal(x.grad, torch.ones(3, 1))


class TestShapes:
    @pytest.mark.parametrize(
        ("x_shape", "y_shape", "batch_shape", "num_outputs"),
        [
            ((6, 2), (6, 3), (), 3),
            ((6, 2), (6,), (), 1),
            ((6,), (6,), (), 1),
            ((6,), (6, 3), (), 3),
            ((4, 6, 2), (4, 6, 3), (4,), 3),
            ((4, 6, 2), (4, 6), (4,), 1),
            ((6, 2), (4, 6, 3), (4,), 3),
            ((6, 2), (4, 6), (4,), 1),
            ((4, 6, 2), (6, 3), (4,), 3),
            ((5, 1, 6, 2), (4, 6, 3), (5, 4), 3),
            ((6, 6, 2), (6, 6), (6,), 1),
            ((0, 2), (0, 3), (), 3),
        ],
    )
    def test_batch_shapes_broadcast(self, x_shape, y_shape, batch_shape, num_outputs):
        context = Context(torch.rand(x_shape), torch.randn(y_shape))
        num_points = x_shape[-2] if len(x_shape) > 1 else x_shape[0]
        assert context.batch_shape == batch_shape
        assert context.filled.shape == context.observed.shape == (*batch_shape, num_points, num_outputs)
        assert context.y.shape == y_shape
        assert context.num_points == num_points
        assert context.num_outputs == num_outputs

    @given(
        batch=st.lists(st.integers(1, 3), max_size=2),
        num_points=st.integers(0, 5),
        num_outputs=st.integers(1, 3),
        missing=st.floats(0, 1),
        shared=st.booleans(),
    )
    def test_filled_observed_and_y_always_tell_the_same_story(self, batch, num_points, num_outputs, missing, shared):
        x = torch.rand(*([] if shared else batch), num_points, 2)
        y = torch.randn(*batch, num_points, num_outputs)
        y[torch.rand(y.shape) < missing] = NAN
        context = Context(x, y)
        assert torch.equal(context.observed, ~y.isnan())
        assert torch.equal(torch.where(context.observed, context.filled, NAN).isnan(), y.isnan())
        assert context.filled.isfinite().all()


class TestPad:
    def test_ragged_tasks_become_one_batch(self):
        tasks = [(torch.rand(n, 2), torch.randn(n, 3)) for n in (4, 1, 0, 6)]
        context = Context.pad(tasks)
        assert context.batch_shape == (4,)
        assert context.num_points == 6
        for t, (x, y) in enumerate(tasks):
            assert torch.equal(context.x[t, : len(x)], x)
            assert torch.equal(context.y[t, : len(x)], y)
            assert not context.observed[t, len(x) :].any()
        assert torch.equal(context.x[0, 4:], tasks[0][0][-1:].expand(2, 2))

    def test_one_output_and_one_input_dimension(self):
        context = Context.pad([(torch.rand(4), torch.randn(4)), (torch.rand(2), torch.randn(2))])
        assert context.x.shape == (2, 4, 1)
        assert context.y.shape == (2, 4)
        assert context.filled.shape == (2, 4, 1)

    def test_the_input_that_is_repeated_is_the_last_one_there_is(self):
        x = torch.tensor([[1.0], [2.0], [NAN]])
        y = torch.tensor([[1.0], [1.0], [NAN]])
        assert Context.pad([(x, y), (torch.rand(5, 1), torch.rand(5, 1))]).x[0, 3:].tolist() == [[2.0], [2.0]]

    @pytest.mark.parametrize("bad", [None, (torch.rand(3, 2),), (torch.rand(3, 2), torch.rand(3, 2), 1)])
    def test_what_is_no_pair_is_a_type_error(self, bad):
        with pytest.raises(TypeError, match=r"Task 1 .*pair"):
            Context.pad([(torch.rand(3, 2), torch.rand(3, 2)), bad])

    def test_contexts_and_generators_are_fine(self):
        contexts = (Context(torch.rand(n, 2), torch.randn(n, 3)) for n in (4, 2))
        assert Context.pad(contexts).batch_shape == (2,)

    @pytest.mark.parametrize(
        ("tasks", "message"),
        [
            ([], "at least one task"),
            ([(torch.rand(4, 2), torch.randn(3, 3))], r"Task 0 .*\(4, 2\).*\(3, 3\)"),
            ([(torch.rand(2, 4, 2), torch.randn(2, 4, 3))], "Task 0"),
            ([(torch.rand(4, 2), torch.randn(4, 3)), (torch.rand(4, 1), torch.randn(4, 3))], r"Task 1 .*only N may"),
            ([(torch.rand(4, 2), torch.randn(4, 3)), (torch.rand(4, 2), torch.randn(4, 2))], "column of NaN"),
            (
                [(torch.rand(4, 2), torch.randn(4, 3)), (torch.rand(4, 2).double(), torch.randn(4, 3).double())],
                "float64",
            ),
        ],
    )
    def test_tasks_that_do_not_fit_together_are_errors(self, tasks, message):
        with pytest.raises(ValueError, match=message):
            Context.pad(tasks)


class TestBadInput:
    @pytest.mark.parametrize(
        ("x", "y", "message"),
        [
            (torch.rand(6, 2), torch.randn(5, 3), r"\(6, 2\).*N = 6.*\(5, 3\).*\(\*T, N, P\)"),
            (torch.rand(4, 6, 2), torch.randn(3, 6, 3), r"\(4,\).*\(3,\).*do not broadcast"),
            (torch.rand(6, 2), torch.full((6, 3), torch.inf), "18 infinite entries.*NaN"),
            (torch.full((6, 2), NAN), torch.randn(6, 3), "not finite in 6 rows.*drop these rows"),
            (torch.full((6, 2), torch.inf), torch.randn(6, 3), "not finite in 6 rows"),
            (torch.rand(6, 2), torch.zeros(6, 3, dtype=torch.int64), r"torch.int64.*y.float\(\)"),
            (torch.rand(6, 2), torch.randn(6, 3, dtype=torch.float64), r"float32.*float64.*\.to\("),
            (torch.rand(6, 2), torch.tensor(1.0), "no dimensions"),
            (torch.rand(0, 6, 2), torch.randn(0, 6, 3), r"no tasks.*\(0, 6, 3\)"),
        ],
    )
    def test_is_a_value_error_that_names_shapes_and_the_fix(self, x, y, message):
        with pytest.raises(ValueError, match=message):
            Context(x, y)

    @pytest.mark.parametrize("bad", [[[1.0]], 3.0, None])
    def test_what_is_no_tensor_is_a_type_error(self, bad):
        with pytest.raises(TypeError, match=r"torch\.as_tensor"):
            Context(torch.rand(1, 1), bad)

    def test_checks_of_values_are_off_with_debug(self):
        with gpytorch.settings.debug(False):
            Context(torch.rand(6, 2), torch.full((6, 3), torch.inf))
            with pytest.raises(ValueError, match="N = 6"):
                Context(torch.rand(6, 2), torch.randn(5, 3))

    @pytest.mark.parametrize("bad", [None, torch.rand(3, 2), (torch.rand(3, 2),), "x, y"])
    def test_only_pairs_and_contexts_are_contexts(self, bad):
        with pytest.raises(TypeError, match="Context or a pair"):
            as_context(bad)


class TestHide:
    def test_hides_a_part_of_the_observed_entries_and_shows_none_that_were_missing(self):
        x, y = torch.rand(200, 1), torch.randn(4, 200, 3)
        y[torch.rand(y.shape) < 0.3] = NAN
        context = Context(x, y)
        hidden = context.hide(0.25, generator=torch.Generator().manual_seed(0))
        assert not (hidden.observed & ~context.observed).any()
        kept = hidden.observed.sum() / context.observed.sum()
        assert kept == pytest.approx(0.75, abs=0.03)
        assert torch.equal(hidden.filled[hidden.observed], context.filled[hidden.observed])
        assert hidden.is_at(context.x)

    @pytest.mark.parametrize(("probability", "expected"), [(0.0, 1.0), (1.0, 0.0)])
    def test_nothing_or_everything(self, probability, expected):
        context = Context(torch.rand(5, 1), torch.randn(5, 3)).hide(probability)
        assert context.observed.float().mean() == expected

    @pytest.mark.parametrize("probability", [-0.1, 1.1])
    def test_what_is_no_probability_is_an_error(self, probability):
        with pytest.raises(ValueError, match="between 0 and 1"):
            Context(torch.rand(5, 1), torch.randn(5, 3)).hide(probability)


class TestSubset:
    def test_is_of_random_points_of_each_task(self):
        x = torch.arange(10.0).unsqueeze(-1)
        y = x + 100 * torch.arange(3.0).view(3, 1, 1)
        subset = Context(x, y).subset(4)
        assert subset.batch_shape == (3,)
        assert subset.num_points == 4
        assert torch.equal(subset.y, subset.x + 100 * torch.arange(3.0).view(3, 1, 1))
        assert all(len(points.unique()) == 4 for points in subset.x)
        assert len({tuple(points.sort(0).values.flatten().tolist()) for points in subset.x}) > 1

    def test_leaves_out_empty_rows_while_there_are_others(self):
        tasks = [(torch.rand(n, 1), torch.randn(n, 2)) for n in (100, 5, 0)]
        subset = Context.pad(tasks).subset(10)
        assert subset.num_informative.tolist() == [10, 5, 0]
        assert torch.equal(subset.y[1, :5].sort(0).values, tasks[1][1].sort(0).values)

    def test_of_more_points_than_there_are_is_all_of_them(self):
        assert Context(torch.rand(5, 1), torch.randn(5, 3)).subset(9).num_points == 5

    def test_of_no_points_is_an_error(self):
        with pytest.raises(ValueError, match="at least 1 point"):
            Context(torch.rand(5, 1), torch.randn(5, 3)).subset(0)


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3), (4, 6)])
def test_what_is_made_of_a_context_has_a_y_like_its_own(shape):
    context = Context(torch.rand(6, 2), torch.randn(shape))
    assert context.hide(0.5).y.shape == shape
    assert context.subset(6).y.shape == shape


def test_to_changes_dtype_and_keeps_the_rest():
    context = Context(torch.rand(3, 1), torch.tensor([[1.0], [NAN], [2.0]])).to(torch.float64)
    assert context.dtype == context.y.dtype == context.filled.dtype == torch.float64
    assert context.observed.tolist() == [[True], [False], [True]]


def test_repr_is_short():
    assert repr(Context(torch.rand(3, 1), torch.randn(2, 3, 4))) == (
        "Context(batch_shape=(2,), num_points=3, input_dim=1, num_outputs=4)"
    )
