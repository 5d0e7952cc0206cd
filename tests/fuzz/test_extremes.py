"""
Extreme numbers: outputs up to 1e30, inputs up to 1e300, parameters from 1e-6 to 1e6, in both dtypes, all strategies,
networks and observation models. What comes out is finite, or a sentence of the package's own says why not.
"""

from __future__ import annotations

import pytest
import torch
from budget import examples
from cases import Case, cases
from hypothesis import given
from outcomes import Sentence, not_finite, outcome
from torch import Tensor

pytestmark = [
    pytest.mark.slow,
    # GPyTorch's, where it adds jitter or lifts a variance to its floor
    pytest.mark.filterwarnings("ignore::linear_operator.utils.warnings.NumericalWarning"),
    pytest.mark.filterwarnings("ignore::gpytorch.utils.warnings.NumericalWarning"),
]
LEVELS = (0.05, 0.5, 0.95)


def train(case: Case) -> dict[str, Tensor]:
    """q(f), the bound, and its gradients."""
    model, context = case.make_model(), case.context()
    torch.manual_seed(case.seed)
    q_f = model(context.x, context=context)
    loss = model.loss(context)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"mean": q_f.mean, "variance": q_f.variance, "loss": loss, **gradients}


def ask(case: Case, what: str) -> dict[str, Tensor]:
    """One thing about the predictions, at the context's inputs and new ones."""
    model, context = case.make_model().eval(), case.context()
    new = case.inputs(case.new)
    x = torch.cat([context.x, new.expand(*context.batch_shape, *new.shape)], dim=-2)
    y = torch.cat([context.y, context.y.new_full((*context.batch_shape, *new.shape[:1], 2), torch.nan)], dim=-2)
    torch.manual_seed(case.seed)
    prediction = model.predict(x, context, num_samples=5)
    if what == "log_prob":
        return {what: torch.where(y.isnan(), 0.0, prediction.log_prob(y))}
    return {what: prediction.quantile(list(LEVELS)) if what == "quantile" else getattr(prediction, what)}


@given(case=cases())
@examples(70)
def test_training_is_finite_or_a_sentence(case):
    found = outcome(lambda: train(case))
    if not isinstance(found, Sentence):
        assert not_finite(found) == []
        assert (found["variance"] >= 0).all()


@pytest.mark.parametrize("what", ["mean", "variance", "quantile", "log_prob", "function_stddev"])
@given(case=cases())
@examples(25)
def test_predictions_are_finite_or_a_sentence(case, what):
    found = outcome(lambda: ask(case, what))
    if isinstance(found, Sentence):
        return
    assert not_finite(found) == []
    if what in ("variance", "function_stddev"):
        assert (found[what] >= 0).all()
    if what == "quantile":
        assert (found[what].diff(dim=0) >= 0).all()
