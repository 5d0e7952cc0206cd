"""How theorems are compared with what the judges of `oracles.py` say."""

from __future__ import annotations

import torch

from gpytorch_sgpvae import Context, TaskELBO


def assert_close(actual, expected, dtype=torch.float64, tolerance=None):
    expected = expected.double()
    if tolerance is None:
        tolerance = 1e-8 if dtype == torch.float64 else 1e-2 * expected.abs().max().item()
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs().max().item() if expected.numel() else 0.0
    assert error <= tolerance, f"error {error:.1e} > {tolerance:.1e}"


def elbo_of(model, likelihood, x, y, base_samples):
    model.train()
    context = Context(x, y)
    return TaskELBO(likelihood, model)(model(context.x, context=context), context.y, base_samples=base_samples)
