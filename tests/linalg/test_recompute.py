from __future__ import annotations

import gc
import weakref

import pytest
import torch

from gpytorch_sgpvae.linalg.recompute import recomputed


@pytest.fixture
def network():
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()


def gradients(result, tensors):
    return torch.autograd.grad(result, tensors, retain_graph=True)


def test_results_and_gradients_are_those_of_the_function(network):
    """It holds for parameters, leaves, and what was computed before from those same leaves."""
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    scaled = 2 * x.sin()

    def function():
        return network(x), (network(scaled) * scaled[:, :2]).sum()

    tensors = [x, *network.parameters()]
    first, second = function(), recomputed(function)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(*(gradients(r[0].sum() + r[1], tensors) for r in (first, second)), strict=True):
        torch.testing.assert_close(a, b)


def test_the_random_numbers_are_the_same_in_the_backward_pass():
    x = torch.ones(4, requires_grad=True)
    seen = []

    def function():
        seen.append(torch.randn(4))
        return (x * seen[-1],)

    (result,) = recomputed(function)
    state = torch.get_rng_state()
    torch.randn(7)
    (gradient,) = gradients(result.sum(), x)
    assert torch.equal(gradient, seen[0])
    assert torch.equal(seen[0], seen[1])
    # and the generator goes on from where it was
    after = torch.randn(3)
    torch.set_rng_state(state)
    torch.randn(7)
    assert torch.equal(after, torch.randn(3))


def test_nothing_of_the_function_is_kept(network):
    kept = []

    def function():
        hidden = network(torch.ones(5, 3, dtype=torch.float64))
        kept.append(weakref.ref(hidden))
        return (hidden.exp().sum(),)

    result = recomputed(function)
    gc.collect()
    assert kept[0]() is None
    result[0].backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_without_gradients_the_function_is_simply_called(network):
    with torch.no_grad():
        (result,) = recomputed(lambda: (network(torch.ones(3, dtype=torch.float64)),))
    assert not result.requires_grad


def test_results_without_a_gradient_are_allowed(network):
    x = torch.randn(3, dtype=torch.float64)
    constant, value = recomputed(lambda: (x + 1, network(x).sum()))
    (value + constant.sum()).backward()
    expected = gradients(network(x).sum(), list(network.parameters()))
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
