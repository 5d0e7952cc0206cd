from __future__ import annotations

import unittest

import pytest
import torch
from linear_operator import to_linear_operator
from linear_operator.test.linear_operator_test_case import LinearOperatorTestCase

from gpytorch_sgpvae.variational.posterior_covariance import PosteriorCovariance


class TestPosteriorCovariance(LinearOperatorTestCase, unittest.TestCase):
    """linear_operator's own test case, against dense algebra."""

    seed = 0
    batch = ()

    def create_linear_op(self):
        prior = torch.randn(*self.batch, 5, 5)
        prior = prior @ prior.mT + 5 * torch.eye(5)
        A, root = torch.randn(*self.batch, 3, 5), 0.1 * torch.randn(*self.batch, 3, 3)
        F = root @ root.mT
        for tensor in (prior, A, F):
            tensor.requires_grad_()
        variance = prior.diagonal(dim1=-2, dim2=-1) - (A * (F @ A)).sum(-2)
        return PosteriorCovariance(to_linear_operator(prior), A, F, variance)

    def evaluate_linear_op(self, linear_op):
        prior, A, F = linear_op.prior_covar.to_dense(), linear_op.A, linear_op.reduction
        return prior - A.mT @ F @ A


class TestBatchOfPosteriorCovariances(TestPosteriorCovariance):
    batch = (3,)


def test_its_diagonal_costs_nothing():
    covariance = TestPosteriorCovariance().create_linear_op()
    assert covariance.diagonal(dim1=-1, dim2=-2) is covariance.variance


def test_nothing_is_put_together_before_somebody_looks(monkeypatch):
    covariance = TestPosteriorCovariance().create_linear_op()
    monkeypatch.setattr(PosteriorCovariance, "explicit", lambda self: pytest.fail("somebody looked"))
    assert covariance.shape == (5, 5)
    assert covariance.dtype == torch.float32
    covariance.diagonal(dim1=-1, dim2=-2)
