"""The training step under torch.compile."""

from __future__ import annotations

import helpers
import pytest
import torch

from gpytorch_sgpvae import GPVAE, SGPVAE, Context

pytestmark = pytest.mark.slow


@helpers.needs_compile
# Dynamo warns of what it leaves to the interpreter, and of its own ways with functions that bring a gradient.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dense", [True, False])
def test_a_compiled_training_step_is_the_plain_one(dense):
    torch._dynamo.reset()
    make = GPVAE if dense else lambda *args, **kwargs: SGPVAE(*args, torch.rand(5, 2), **kwargs)
    model = make(3, 2, hidden_sizes=(8,)).double()
    context = Context(*helpers.make_data(2))
    samples = torch.randn(1, 2, 12, 2, dtype=torch.float64)

    def step(loss):
        model.zero_grad()
        value = loss(context, base_samples=samples)
        value.backward()
        return value.detach(), [parameter.grad.clone() for parameter in model.parameters()]

    expected, expected_gradients = step(model.loss)
    value, gradients = step(torch.compile(model.loss, backend="aot_eager"))
    torch.testing.assert_close(value, expected)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, wanted)
