"""What holds of any tasks of ordinary size: ragged, with holes, ties and repeated inputs, down to none at all."""

from __future__ import annotations

import pytest
import torch
from budget import examples
from cases import Case, cases
from hypothesis import given
from torch import Tensor

from gpytorch_sgpvae import AmortizedModel, Context

pytestmark = pytest.mark.slow
TOLERANCE = {"float64": {"rtol": 1e-8, "atol": 1e-8}, "float32": {"rtol": 5e-3, "atol": 5e-3}}


def posterior(model: AmortizedModel, context: Context, new: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances of q(f) at the context's own inputs, then, of models that know more than these, at others."""
    x = context.x
    if "PointwiseStrategy" not in type(model.strategy).__name__:
        x = torch.cat([x, new.expand(*context.batch_shape, *new.shape)], dim=-2)
    q_f = model(x, context=context)
    return q_f.mean, q_f.variance


def assert_same(case: Case, actual: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE[case.dtype])


@given(case=cases(extreme=False))
@examples(40)
def test_a_row_without_outputs_is_the_task_without_the_row(case):
    model, new = case.make_model().eval(), case.inputs(case.new)
    for x, y in case.pairs():
        kept = ~y.isnan().all(-1)
        everything = posterior(model, Context(x, y), new)
        rows = torch.cat([kept.nonzero().flatten(), torch.arange(len(x), everything[0].shape[-2])])
        assert_same(case, [part[rows] for part in everything], posterior(model, Context(x[kept], y[kept]), new))


@given(case=cases(extreme=False))
@examples(40)
def test_padding_changes_nothing(case):
    model, new = case.make_model().eval(), case.inputs(case.new)
    context = case.context()
    together, bounds = posterior(model, context, new), _bounds(model, context)
    for i, (x, y) in enumerate(case.pairs()):
        rows = torch.cat([torch.arange(len(x)), torch.arange(context.num_points, together[0].shape[-2])])
        assert_same(case, [part[i][rows] for part in together], posterior(model, Context(x, y), new))
        torch.testing.assert_close(bounds[i], _bounds(model, Context(x, y)), **TOLERANCE[case.dtype])


@given(case=cases(extreme=False))
@examples(40)
def test_the_order_of_rows_changes_nothing(case):
    model, new = case.make_model().eval(), case.inputs(case.new)
    for x, y in case.pairs():
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(case.seed))
        expected = posterior(model, Context(x, y), new)
        rows = torch.cat([order, torch.arange(len(x), expected[0].shape[-2])])
        actual = posterior(model, Context(x[order], y[order]), new)
        assert_same(case, actual, [part[rows] for part in expected])


@given(case=cases(extreme=False))
@examples(40)
def test_the_posterior_of_nothing_is_the_prior(case):
    model, new = case.make_model().eval(), case.inputs(case.new)
    for x, y in case.pairs():
        mean, variance = posterior(model, Context(x, torch.full_like(y, torch.nan)), new)
        places = torch.cat([x, new])[: len(mean)]
        prior = model.model(places, prior=True)
        assert_same(case, (mean, variance), (prior.mean, prior.variance))


def _bounds(model: AmortizedModel, context: Context) -> Tensor:
    """The bound of each task, with samples of zero: any would do that do not depend on the batch."""
    shape = (1, *context.batch_shape, context.num_points, 2)
    return model.elbo(context, base_samples=torch.zeros(shape, dtype=context.dtype))
