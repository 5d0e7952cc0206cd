"""What only the dense joint strategy does."""

from __future__ import annotations

import helpers
import pytest
import torch

from gpytorch_sgpvae import GPVAE, DenseJointAmortizedVariationalStrategy
from gpytorch_sgpvae.linalg.entry_posterior import EntryPosterior


@pytest.mark.parametrize("hide", [0.0, 0.5])
def test_entries_that_nobody_asks_for_change_neither_the_bound_nor_its_gradient(hide, monkeypatch):
    torch.manual_seed(0)
    model = GPVAE(3, 2, network="jointfactornet", decoder=torch.nn.Linear(2, 3)).double()
    x, y = torch.rand(6, 1, dtype=torch.float64), torch.randn(4, 6, 3, dtype=torch.float64)
    y[torch.rand(y.shape) < 0.3] = torch.nan
    covers, answers, results = EntryPosterior._covers, [], []
    for answer in (lambda *args: answers.append(covers(*args)) or answers[-1], lambda *args: False):
        monkeypatch.setattr(EntryPosterior, "_covers", answer)
        torch.manual_seed(1)
        loss = model.loss((x, y), hide=hide)
        results.append([loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)])
    assert answers == [hide == 0]  # what is hidden from the network is asked for
    for quick, slow in zip(*results, strict=True):
        assert (quick is None) == (slow is None)
        if quick is not None:
            torch.testing.assert_close(quick, slow)


def test_many_entries_are_warned_of(monkeypatch):
    monkeypatch.setattr(DenseJointAmortizedVariationalStrategy, "max_entries", 20)
    model = GPVAE(3, 2, network="jointfactornet")
    context = (torch.rand(7, 1), torch.randn(7, 3))
    with pytest.warns(UserWarning, match=r"21 x 21.*beyond 20 observed entries.*SGPVAE.*MarkovGPVAE"):
        model.condition(context)
    context[1][0, 0] = torch.nan
    model.condition(context)


def make_posterior(tasks=(), dtype=torch.float64):
    torch.manual_seed(0)
    model = GPVAE(3, 2, network="jointfactornet", decoder=torch.nn.Linear(2, 3)).to(dtype)
    x, y = torch.rand(*tasks, 6, 1, dtype=dtype), torch.randn(*tasks, 6, 3, dtype=dtype)
    y[torch.rand(y.shape) < 0.4] = torch.nan
    return model.eval().condition((x, y)), x


@pytest.mark.parametrize("tasks", [(), (2,)])
def test_draws_have_the_mean_and_the_covariance_of_q(tasks):
    """They are joint over all new inputs and latent functions, at the context's own inputs too."""
    posterior, x = make_posterior(tasks)
    new = torch.cat([x[..., :2, :], 3 * torch.rand(*tasks, 3, 1, dtype=x.dtype)], dim=-2)
    draws = posterior.sample(new, 40_000).flatten(-2)  # (n, *T, N K)
    q_f = posterior.encoding.strategy(new, context=posterior.encoding, diag=False)
    mean, covariance = q_f.mean.flatten(-2), q_f.covariance_matrix
    residual = (draws - draws.mean(0)).movedim(0, -1)  # (*T, N K, n)
    scale = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * scale / 200).all()
    error = residual @ residual.mT / draws.shape[0] - covariance
    assert (error.abs() < 6 / 200 * scale.unsqueeze(-1) * scale.unsqueeze(-2)).all()


@pytest.mark.parametrize("n", [2, 5])
def test_tasks_that_share_their_inputs_have_draws_of_their_own(n):
    """This holds where there are as many draws as tasks, too, so that one could be taken for the other."""
    torch.manual_seed(0)
    model = GPVAE(3, 2, network="jointfactornet", decoder=torch.nn.Linear(2, 3)).double().eval()
    x, y = torch.rand(6, 1, dtype=torch.float64), torch.randn(2, 6, 3, dtype=torch.float64)
    shared, alike = (model.condition((inputs, y)) for inputs in (x, x.expand(2, 6, 1)))
    draws = []
    for posterior, new in ((shared, x), (alike, x.expand(2, 6, 1))):
        torch.manual_seed(1)
        draws.append(posterior.sample(new, n))
    torch.testing.assert_close(*draws, atol=1e-8, rtol=0.0)
    assert draws[0].shape == (n, 2, 6, 2)
    residual = draws[0] - shared(x).mean
    assert not torch.allclose(residual[:, 0], residual[:, 1], atol=0.01)


def test_draws_take_no_matrix_over_all_latent_functions(dtype):
    posterior, x = make_posterior(dtype=dtype)
    with helpers.cholesky_calls() as shapes:
        draws = posterior.sample(torch.cat([x, x]), 3)
    assert draws.shape == (3, 12, 2)
    assert draws.dtype == dtype
    assert shapes == [(2, 18, 18)]
