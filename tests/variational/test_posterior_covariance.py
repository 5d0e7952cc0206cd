from __future__ import annotations

import unittest
from functools import partial

import helpers
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.variational import LMCVariationalStrategy
from linear_operator import to_linear_operator
from linear_operator.test.linear_operator_test_case import LinearOperatorTestCase

from gpytorch_sgpvae import point_covariances
from gpytorch_sgpvae.variational.point_marginals import PointMarginals
from gpytorch_sgpvae.variational.posterior_covariance import JointPosteriorCovariance, LazyMatrix, PosteriorCovariance


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


class TestJointPosteriorCovariance(LinearOperatorTestCase, unittest.TestCase):
    """K = 2 latent functions at N = 3 points, with an F of its own for each pair of them, or one for all."""

    seed = 0
    batch = ()
    shared = False

    def create_linear_op(self):
        root = torch.randn(*self.batch, 2, 3, 3)
        prior = root @ root.mT + 5 * torch.eye(3)
        size = 4 if self.shared else 8
        C, root = torch.randn(*self.batch, 2, 4, 3), 0.1 * torch.randn(*self.batch, size, size)
        F = root @ root.mT
        for tensor in (prior, C, F):
            tensor.requires_grad_()
        dense = self.dense(prior, C, F)
        blocks = dense.unflatten(-2, (3, 2)).unflatten(-1, (3, 2)).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        return JointPosteriorCovariance(to_linear_operator(prior), C, F, blocks)

    def dense(self, prior, C, F):
        F = F.expand(*self.batch, 4, 4).repeat(*[1] * len(self.batch), 2, 2) if self.shared else F
        F = F.unflatten(-2, (2, 4)).unflatten(-1, (2, 4))  # (*T, K, R, K, R)
        prior = torch.einsum("...knm,kl->...nkml", prior, torch.eye(2))
        covar = prior - torch.einsum("...krn,...krls,...lsm->...nkml", C, F, C)
        return covar.flatten(-4, -3).flatten(-2)

    def evaluate_linear_op(self, linear_op):
        return self.dense(linear_op.prior_covar.to_dense(), linear_op.C, linear_op.reduction)


class TestBatchOfJointPosteriorCovariances(TestJointPosteriorCovariance):
    batch = (3,)


class TestJointPosteriorCovarianceWithOneReductionForAllPairs(TestJointPosteriorCovariance):
    batch = (3,)
    shared = True


class TestLazyMatrix(LinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        root = torch.randn(3, 4, 4)
        self.matrix = (root @ root.mT + 4 * torch.eye(4)).requires_grad_()
        return LazyMatrix(torch.zeros(1), torch.Size([3, 4, 4]), partial(torch.clone, self.matrix))

    def evaluate_linear_op(self, linear_op):
        return linear_op._compute()


def test_the_blocks_of_points_cost_nothing(monkeypatch):
    covariance = TestJointPosteriorCovariance().create_linear_op()
    monkeypatch.setattr(JointPosteriorCovariance, "explicit", lambda self: pytest.fail("somebody looked"))
    assert covariance.shape == (6, 6)
    q_f = MultitaskMultivariateNormal(torch.zeros(3, 2), covariance)
    assert point_covariances(q_f) is covariance.blocks
    assert torch.equal(q_f.variance, covariance.blocks.diagonal(dim1=-2, dim2=-1))
    PointMarginals.of(q_f).draw(torch.randn(5, 3, 2))


def dense_blocks(q_f):
    """The blocks of the covariance matrix, point by point."""
    covar, (N, K) = q_f.covariance_matrix, q_f.event_shape
    if q_f._interleaved:
        return torch.stack([covar[..., n * K : (n + 1) * K, n * K : (n + 1) * K] for n in range(N)], -3)
    return torch.stack([covar[..., n::N, n::N] for n in range(N)], -3)


def joint_model(sparse):
    return helpers.JointModel(helpers.make_tied()[0], torch.rand(5, 2).double() * 3 if sparse else None)


def lmc_q_f(x, y):
    model = helpers.make_model()
    model.variational_strategy = LMCVariationalStrategy(model.strategy, num_tasks=2, num_latents=2).double()
    return model(x, context=(x, y))


def dense_q_f(*batch, interleaved):
    root = torch.randn(*batch, 12, 12).double()
    covariance = to_linear_operator(root @ root.mT)  # GPyTorch cannot expand a distribution with a plain tensor
    return MultitaskMultivariateNormal(torch.zeros(*batch, 6, 2).double(), covariance, interleaved=interleaved)


KINDS = {
    "sparse joint, training": lambda x, y: joint_model(True)(x, context=(x, y)),
    "sparse joint, eval": lambda x, y: joint_model(True).eval()(x, context=(x, y)),
    "sparse joint, diag=False": lambda x, y: joint_model(True).variational_strategy(x, context=(x, y), diag=False),
    "dense joint, training": lambda x, y: joint_model(False)(x, context=(x, y)),
    "dense joint, training, elsewhere": lambda x, y: joint_model(False)(x + 0.1, context=(x, y)),
    "dense joint, eval": lambda x, y: joint_model(False).eval()(x, context=(x, y)),
    "dense joint, prior": lambda x, y: joint_model(False)(x, prior=True),
    "independent, training": lambda x, y: helpers.make_model()(x, context=(x, y)),
    "independent, eval": lambda x, y: helpers.make_model().eval()(x, context=(x, y)),
    "linear model of coregionalization": lmc_q_f,
    "independent functions one by one": lambda x, y: MultitaskMultivariateNormal.from_independent_mvns(
        [helpers.make_model(1, None).eval()(x, context=(x, y[..., :1])) for _ in range(2)]
    ),
    "dense matrix, interleaved": lambda x, y: dense_q_f(*x.shape[:-2], interleaved=True),
    "dense matrix, not interleaved": lambda x, y: dense_q_f(*x.shape[:-2], interleaved=False),
}


@pytest.mark.parametrize("tasks", [(), (4,)])
@pytest.mark.parametrize("create", KINDS.values(), ids=KINDS.keys())
def test_point_covariances_are_the_blocks_of_the_covariance_matrix(create, tasks):
    x, y = helpers.make_data(*tasks, num_points=6)
    with torch.no_grad():
        q_f = create(x, y)
        blocks = point_covariances(q_f)
        assert blocks.shape == (*tasks, 6, 2, 2)
        torch.testing.assert_close(blocks, dense_blocks(q_f), rtol=0, atol=1e-8)
        torch.testing.assert_close(blocks.diagonal(dim1=-2, dim2=-1), q_f.variance, rtol=0, atol=1e-8)


@pytest.mark.parametrize("tasks", [(), (4,)])
def test_point_covariances_of_one_latent_function_without_a_dimension_for_it(tasks):
    x, y = helpers.make_data(*tasks, num_outputs=1)
    q_f = helpers.make_model(1, None).eval()(x, context=(x, y))
    assert torch.equal(point_covariances(q_f), q_f.variance[..., None, None])


@pytest.mark.parametrize("create", [KINDS["sparse joint, eval"], KINDS["dense joint, training"]])
def test_draws_at_a_point_have_its_covariance_and_points_are_independent(create):
    q_f = create(*helpers.make_data(num_points=6))
    draws = PointMarginals.of(q_f).draw(torch.randn(40_000, 6, 2).double()).detach()
    covariance = torch.cov(draws.flatten(1).T)
    expected = torch.block_diag(*point_covariances(q_f).detach())
    assert (expected[0, 1].abs() > 0.02) or (expected[2, 3].abs() > 0.02)
    # about five standard errors of covariances up to one
    torch.testing.assert_close(covariance, expected, rtol=0, atol=0.04)


# GPyTorch's parts of independent functions one by one are broken
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "one by one" not in kind])
def test_a_part_or_an_expansion_of_q_f_still_knows_how_its_latent_functions_depend_on_each_other(kind):
    with torch.no_grad():
        q_f = KINDS[kind](*helpers.make_data(4, num_points=6))
        blocks = point_covariances(q_f)
        torch.testing.assert_close(point_covariances(q_f[..., 1:4, :]), blocks[:, 1:4], rtol=0, atol=1e-8)
        torch.testing.assert_close(point_covariances(q_f[2]), blocks[2], rtol=0, atol=1e-8)
        expanded = q_f.expand(torch.Size([3, 4]))
        torch.testing.assert_close(point_covariances(expanded), blocks.expand(3, 4, 6, 2, 2), rtol=0, atol=1e-8)
        for part in (q_f[..., 1:4, :], q_f[2], expanded):
            root = PointMarginals.of(part).root
            root = root if PointMarginals.of(part).is_coupled else torch.diag_embed(root)
            torch.testing.assert_close(root @ root.mT, point_covariances(part), rtol=0, atol=1e-8)
