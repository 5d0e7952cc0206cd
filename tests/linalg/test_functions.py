"""Gradients by hand, against finite differences and against autograd."""

from __future__ import annotations

import pytest
import torch

from gpytorch_sgpvae.linalg import functions

M, N, K, T = 3, 5, 2, 2


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def covariance(*batch, size):
    root = torch.randn(*batch, size, size, dtype=torch.float64)
    return (root @ root.mT + torch.eye(size, dtype=torch.float64)).requires_grad_()


def precisions(*shape, zeros=False):
    values = torch.rand(*shape, dtype=torch.float64) + 0.5
    return (values * (torch.arange(shape[-1]) % 2) if zeros else values).requires_grad_()


def symmetric(matrix):
    """What a function of covariance matrices is given: finite differences of one entry would leave them."""
    return 0.5 * (matrix + matrix.mT)


CASES = {
    "squared_exponential": (
        functions.SquaredExponentialFunction.apply,
        lambda: (randn(T, K, N, 2), randn(T, K, M, 2), precisions(K, 1, 1)),
    ),
    "squared_exponential, shared inputs": (
        functions.SquaredExponentialFunction.apply,
        lambda: (randn(K, M, 2), randn(T, K, N, 2), precisions(1, 1)),
    ),
    "squared_exponential, shared inputs on the right": (
        functions.SquaredExponentialFunction.apply,
        lambda: (randn(T, K, M, 2), randn(K, N, 2), precisions(K, 1, 1)),
    ),
    "inverse_cholesky": (
        lambda matrix: functions.InverseCholeskyFunction.apply(symmetric(matrix)),
        lambda: (covariance(K, size=M),),
    ),
    "evidence": (functions.EvidenceFunction.apply, lambda: (randn(T, K, M, N), precisions(T, K, N), randn(T, K, N))),
    "evidence, shared inputs": (
        functions.EvidenceFunction.apply,
        lambda: (randn(K, M, N), precisions(T, K, N), randn(T, K, N)),
    ),
    "evidence, none": (
        functions.EvidenceFunction.apply,
        lambda: (randn(K, M, N), precisions(K, N, zeros=True), randn(K, N)),
    ),
    "whitened_posterior": (
        lambda precision, b: functions.WhitenedPosteriorFunction.apply(symmetric(precision), b),
        lambda: (covariance(T, K, size=M), randn(T, K, M)),
    ),
    "marginals": (
        lambda A, m, F: functions.MarginalsFunction.apply(A, m, symmetric(F)),
        lambda: (randn(T, K, M, N), randn(T, K, M), randn(T, K, M, M)),
    ),
    "marginals, shared inputs": (
        lambda A, m, F: functions.MarginalsFunction.apply(A, m, symmetric(F)),
        lambda: (randn(K, M, N), randn(T, K, M), randn(T, K, M, M)),
    ),
    "marginals, shared context": (
        lambda A, m, F: functions.MarginalsFunction.apply(A, m, symmetric(F)),
        lambda: (randn(T, K, M, N), randn(K, M), randn(K, M, M)),
    ),
    "dense_posterior": (
        lambda matrix, precision, h: functions.DensePosteriorFunction.apply(symmetric(matrix), precision, h),
        lambda: (covariance(T, K, size=M), precisions(T, K, M), randn(T, K, M)),
    ),
    "dense_posterior, shared inputs": (
        lambda matrix, precision, h: functions.DensePosteriorFunction.apply(symmetric(matrix), precision, h),
        lambda: (covariance(K, size=M), precisions(T, K, M), randn(T, K, M)),
    ),
}


@pytest.mark.parametrize(("function", "inputs"), CASES.values(), ids=CASES.keys())
def test_gradients_and_their_gradients_are_those_of_finite_differences(function, inputs):
    inputs = inputs()
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("zeros", [False, True])
def test_the_dense_gradient_is_that_of_the_textbooks_formulas(zeros):
    """Precisions of 0 are among them, of which finite differences would make negative ones."""
    K_matrix, precision, h = covariance(T, size=M), precisions(T, M, zeros=zeros), randn(T, M)
    eye = torch.eye(M, dtype=torch.float64)
    posterior_covariance = torch.linalg.inv(torch.linalg.inv(K_matrix) + torch.diag_embed(precision))
    mean = (posterior_covariance @ h.unsqueeze(-1)).squeeze(-1)
    weights = torch.linalg.solve(K_matrix, mean)
    reduction = torch.diag_embed(precision) @ torch.linalg.inv(eye + K_matrix @ torch.diag_embed(precision))
    ratio = torch.linalg.solve(K_matrix, posterior_covariance)
    trace = ratio.diagonal(dim1=-2, dim2=-1).sum(-1)
    kl = 0.5 * (trace + (mean * weights).sum(-1) - M - torch.logdet(ratio))
    textbook = (weights, reduction, kl, mean, posterior_covariance.diagonal(dim1=-2, dim2=-1))
    ours = functions.DensePosteriorFunction.apply(K_matrix, precision, h)
    for result, expected in zip(ours, textbook, strict=True):
        torch.testing.assert_close(result, expected)
    bars = [torch.randn_like(result) for result in ours]
    bars[1] = symmetric(bars[1])
    for subset in ([0, 1, 2, 3, 4], [2, 3, 4], [0], [1]):
        arguments = [(K_matrix, precision, h), [bars[i] for i in subset]]
        gradients = torch.autograd.grad([ours[i] for i in subset], *arguments, retain_graph=True)
        expected = torch.autograd.grad([textbook[i] for i in subset], *arguments, retain_graph=True, allow_unused=True)
        for gradient, wanted in zip(gradients, expected, strict=True):
            wanted = torch.zeros_like(gradient) if wanted is None else wanted
            if gradient.dim() == 3:
                gradient, wanted = symmetric(gradient), symmetric(wanted)
            torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("outputs", [[0], [1], [2], [3], [0, 2, 3]])
def test_parts_of_the_whitened_posterior_have_gradients_of_their_own(outputs):
    precision, b = covariance(K, size=M), randn(K, M)

    def plainly(precision, b):
        B = precision + torch.eye(M, dtype=torch.float64)
        R = torch.linalg.inv(torch.linalg.cholesky(B))
        S = torch.linalg.inv(B)
        m = (S @ b.unsqueeze(-1)).squeeze(-1)
        trace = S.diagonal(dim1=-2, dim2=-1).sum(-1)
        return m, R, torch.eye(M, dtype=torch.float64) - S, 0.5 * (trace + m.square().sum(-1) - M + torch.logdet(B))

    ours, textbook = functions.WhitenedPosteriorFunction.apply(precision, b), plainly(precision, b)
    bars = [torch.randn_like(ours[i]) for i in outputs]
    for i in outputs:
        torch.testing.assert_close(ours[i], textbook[i])
    gradients = torch.autograd.grad([ours[i] for i in outputs], (precision, b), bars)
    expected = torch.autograd.grad([textbook[i] for i in outputs], (precision, b), bars, allow_unused=True)
    torch.testing.assert_close(symmetric(gradients[0]), symmetric(expected[0]))
    torch.testing.assert_close(gradients[1], torch.zeros_like(b) if expected[1] is None else expected[1])


def test_a_graph_that_is_kept_can_be_used_again():
    """The backward passes work in place, but not on what they were given to keep."""
    for function, make_inputs in CASES.values():
        inputs = make_inputs()
        results = function(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        bars = [torch.randn_like(result) for result in results]
        first, second = (torch.autograd.grad(results, inputs, bars, retain_graph=True) for _ in range(2))
        for a, b in zip(first, second, strict=True):
            assert torch.equal(a, b)


def test_the_dense_posterior_is_the_same_with_and_without_division_by_precisions(monkeypatch):
    """Precisions from the least that are divided by to the largest that anybody has."""
    K_matrix, h = covariance(T, size=M), randn(T, M)
    precision = torch.logspace(-2.5, 7, T * M, dtype=torch.float64).view(T, M).requires_grad_()
    results = []
    for least in (functions.LEAST_INFORMATION, torch.inf):
        monkeypatch.setattr(functions, "LEAST_INFORMATION", least)
        outputs = functions.DensePosteriorFunction.apply(K_matrix, precision, h)
        loss = outputs[2].sum() + outputs[3].square().sum() + (precision.detach() * outputs[4]).sum()
        results.append([*outputs, *torch.autograd.grad(loss, (K_matrix, precision, h))])
    for divided, multiplied in zip(*results, strict=True):
        torch.testing.assert_close(divided, multiplied, rtol=1e-6, atol=1e-6)
