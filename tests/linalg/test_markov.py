"""The recursions against textbook loops, whatever the number of chunks, and what they cost."""

from __future__ import annotations

import helpers
import pytest
import torch

from gpytorch_sgpvae.linalg.chain import Chain, Known, MarkovSites
from gpytorch_sgpvae.linalg.markov import draw_states, markov_posterior, mean_of_many, states_at, update
from gpytorch_sgpvae.linalg.state_space import to_state_space


def textbook(Phi, P_inf, C, precision, h, m, R):
    """
    A Kalman filter and the smoother of Bryson and Frazier, point by point, with inverses (Φ: ... x N x D x D).

    :return: m⁻, R⁻, r, N of all points, log |B|, and mean and variances of C s.
    """
    N, eye = h.shape[-2], torch.eye(P_inf.shape[-1], dtype=h.dtype)
    C = C.expand(*h.shape, P_inf.shape[-1])
    ms, Rs, gains, log_det = [], [], [], 0.0
    for n in range(N):
        phi, c = Phi[..., n, :, :], C[..., n, :, :]
        m, R = (phi @ m.unsqueeze(-1)).squeeze(-1), phi @ R @ phi.mT
        ms.append(m)
        Rs.append(R)
        X = (P_inf - R) @ c.mT
        B = torch.eye(h.shape[-1], dtype=h.dtype) + precision[..., n, :].unsqueeze(-1) * (c @ X)
        log_det = log_det + torch.logdet(B)
        D = torch.linalg.inv(B) * precision[..., n, :].unsqueeze(-2)
        residual = h[..., n, :] - precision[..., n, :] * (c @ m.unsqueeze(-1)).squeeze(-1)
        beta = torch.linalg.solve(B, residual)
        m, R = m + (X @ beta.unsqueeze(-1)).squeeze(-1), R + X @ D @ X.mT
        gains.append((c, X, D, beta))
    r, information, rs, Ns = torch.zeros_like(m), torch.zeros_like(R), [], []
    for n in reversed(range(N)):
        c, X, D, beta = gains[n]
        L = eye - X @ D @ c
        r = (c.mT @ beta.unsqueeze(-1) + L.mT @ r.unsqueeze(-1)).squeeze(-1)
        information = c.mT @ D @ c + L.mT @ information @ L
        rs.insert(0, r)
        Ns.insert(0, information)
        phi = Phi[..., n, :, :]
        r, information = (phi.mT @ r.unsqueeze(-1)).squeeze(-1), phi.mT @ information @ phi
    ms, Rs, rs, Ns = torch.stack(ms, -2), torch.stack(Rs, -3), torch.stack(rs, -2), torch.stack(Ns, -3)
    P = P_inf.unsqueeze(-3) - Rs
    mean = (C @ (ms.unsqueeze(-1) + P @ rs.unsqueeze(-1))).squeeze(-1)
    variance = (C @ (P - P @ Ns @ P) @ C.mT).diagonal(dim1=-2, dim2=-1)
    return ms, Rs, rs, Ns, log_det, mean, variance


def block_diagonal(transitions):
    """Make matrices (... x N x D x D) of blocks in groups (... x N x K x d x d)."""
    blocks = [part[..., k, :, :] for part in transitions for k in range(part.shape[-3])]
    size, first, rows = sum(block.shape[-1] for block in blocks), 0, []
    for block in blocks:
        d = block.shape[-1]
        rows.append(torch.nn.functional.pad(block, (first, size - first - d)))
        first += d
    return torch.cat(rows, -2)


def make_process(batch, N, groups, J, own_loadings, own_covariance):
    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    D = sum(K * d for K, d in groups)
    root = random(*(batch if own_covariance else ()), D, D)
    precision = torch.rand(*batch, N, J, dtype=torch.float64)
    precision[torch.rand(precision.shape) < 0.3] = 0.0
    return {
        # contracting, so that P∞ − Φ P∞ Φᵀ is a covariance
        "transitions": [0.25 * random(*batch, N, K, d, d) for K, d in groups],
        "P_inf": 0.1 * root @ root.mT + D * torch.eye(D, dtype=torch.float64),
        "C": random(*((*batch, N) if own_loadings else ()), J, D),
        "precision": precision,
        "h": random(*batch, N, J) * (precision > 0),
        "m": random(*batch, D),
        "R": (0.05 * torch.eye(D, dtype=torch.float64)).repeat(*batch, 1, 1),
    }


@helpers.pairwise_cases(
    "num_chunks, batch, N, groups, J, own_loadings, own_covariance",
    [1, 2, 5, 11],
    [(3,), (), (2, 2)],
    [11, 7, 1],
    [[(1, 2)], [(2, 1), (1, 3)], [(1, 1)]],
    [1, 3],
    [False, True],
    [False, True],
)
def test_posterior_and_every_gradient_are_the_textbooks(num_chunks, batch, N, groups, J, own_loadings, own_covariance):
    process = make_process(batch, N, groups, J, own_loadings, own_covariance)
    leaves = [tensor.requires_grad_() for tensor in (*process["transitions"], *list(process.values())[1:])]
    P_inf, C, precision, h, m, R = list(process.values())[1:]
    expected = textbook(block_diagonal(process["transitions"]), P_inf, C, precision, h, m, R)
    posterior = markov_posterior(process["transitions"], P_inf, C, precision, h, Known(m, R), num_chunks)
    actual = (*posterior.states.points(), posterior.log_det, posterior.mean, posterior.variance)
    gradients = []
    weights = [torch.randn_like(part) for part in expected]
    for parts in (actual, expected):
        objective = sum((weight * part).sum() for weight, part in zip(weights, parts, strict=True))
        gradients.append(torch.autograd.grad(objective, leaves))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    for leaf, one, other in zip(leaves, *gradients, strict=True):
        if leaf is P_inf or leaf is R:  # which are symmetric, so that half of their gradient is anybody's choice
            one, other = one + one.mT, other + other.mT
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("unused", ["states", "outputs", "log_det"])
def test_what_nobody_uses_has_no_gradient(unused):
    process = make_process((2,), 6, [(1, 2)], 1, False, False)
    h = process["h"].requires_grad_()
    P_inf, C, precision, _, m, R = list(process.values())[1:]
    posterior = markov_posterior(process["transitions"], P_inf, C, precision, h, Known(m, R), 2)
    expected = textbook(block_diagonal(process["transitions"]), P_inf, C, precision, h, m, R)
    used = {"states": slice(4, 7), "outputs": slice(0, 5), "log_det": slice(0, 4)}[unused]
    actual = (*posterior.states.points(), posterior.log_det, posterior.mean, posterior.variance)[used]
    gradients = [torch.autograd.grad(sum(p.sum() for p in parts), h)[0] for parts in (actual, expected[used])]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


def matern_chain(nu=1.5, lengthscale=1.0):
    import gpytorch

    kernel = gpytorch.kernels.MaternKernel(nu=nu, batch_shape=torch.Size([2])).double()
    kernel.initialize(lengthscale=lengthscale)
    with torch.no_grad():
        return kernel, Chain.together(to_state_space(kernel))


def make_sites(chain, times, J=2):
    precision = 10 * torch.rand(len(times), J, dtype=torch.float64)
    C = torch.randn(J, chain.observation.shape[-2], dtype=torch.float64) @ chain.observation
    return MarkovSites(times, C, precision, torch.randn_like(precision))


def test_precisions_of_a_billion_lose_no_more_than_their_digits():
    """The filter of one chunk is the textbook's; chunks pass on what they say about the state that they start from."""
    _, chain = matern_chain()
    times = torch.rand(400, dtype=torch.float64).sort().values * 20
    sites = make_sites(chain, times)
    sites = sites._replace(precision=1e8 * sites.precision, h=1e8 * sites.h)
    arguments = chain.between(times), chain.stationary_covariance, sites.loadings, sites.precision, sites.h
    one, many = (markov_posterior(*arguments, num_chunks=n) for n in (1, 20))
    torch.testing.assert_close(one.mean, many.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(one.log_det, many.log_det, rtol=1e-9, atol=0)


def test_states_between_points_are_those_of_a_chain_with_rows_there_that_say_nothing():
    _, chain = matern_chain()
    times = torch.tensor([0.0, 1.0, 1.0, 4.0], dtype=torch.float64)
    new = torch.tensor([5.0, -1.0, 0.3, 1.0, 3.9], dtype=torch.float64)
    sites = make_sites(chain, times)
    merged, order = torch.cat([times, new]).sort(stable=True)
    nothing = torch.zeros(len(new), 2, dtype=torch.float64)
    precision, h = (torch.cat([part, nothing])[order] for part in (sites.precision, sites.h))
    arguments = chain.stationary_covariance, sites.loadings
    posterior = markov_posterior(chain.between(times), *arguments, sites.precision, sites.h)
    expected = markov_posterior(chain.between(merged), *arguments, precision, h).states.points()
    actual = states_at(new, chain, sites, posterior.states.points())
    places = order.argsort()[len(times) :]
    P = chain.stationary_covariance
    for states in (actual, expected):
        assert states.mean.shape[-1] == 4
    for index, place in enumerate(places):
        means, covariances = [], []
        for states, n in ((actual, index), (expected, place)):
            prior = P - states.reduction[n]
            means.append(states.mean[n] + prior @ states.score[n])
            covariances.append(prior - prior @ states.information[n] @ prior)
        torch.testing.assert_close(*means, rtol=0, atol=1e-12)
        torch.testing.assert_close(*covariances, rtol=0, atol=1e-12)


def test_an_update_is_a_step_of_the_filter():
    _, chain = matern_chain()
    sites = make_sites(chain, torch.tensor([0.0, 0.7], dtype=torch.float64))
    P = chain.stationary_covariance
    arguments = chain.between(sites.times), P, sites.loadings, sites.precision, sites.h
    states = markov_posterior(*arguments).states.points()
    known = update(Known(states.mean[0], states.reduction[0]), P, sites.loadings, sites.precision[0], sites.h[0])
    (phi,) = chain.between(sites.times)
    phi = torch.block_diag(*phi[1])
    torch.testing.assert_close(phi @ known.mean, states.mean[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(phi @ known.reduction @ phi.T, states.reduction[1], rtol=0, atol=1e-12)


@helpers.pairwise_cases(
    "N, J, batch, own_loadings, own_covariance", [40, 9, 1], [1, 3], [(), (2,)], [False, True], [False, True]
)
def test_means_of_many_are_those_of_each(N, J, batch, own_loadings, own_covariance):
    process = make_process(batch, N, [(1, 2), (2, 1)], J, own_loadings, own_covariance)
    transitions, P_inf, C, precision = list(process.values())[:4]
    h = torch.randn(5, *batch, N, J, dtype=torch.float64)  # also beside a precision of zero
    means = mean_of_many(transitions, P_inf, C, precision)(h)
    for one, mean in zip(h, means, strict=True):
        expected = markov_posterior(transitions, P_inf, C, precision, one).mean
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("num_points", [5, 40])
def test_draws_from_the_prior_have_its_covariance(num_points):
    kernel, chain = matern_chain(2.5)
    times = torch.rand(num_points, dtype=torch.float64).sort().values * 3
    times[1] = times[0]
    draws = draw_states(chain, chain.between(times), torch.Size([20_000]))
    values = (draws @ chain.observation.T)[..., [0, 1, 2, -1], :]  # (S, 4, 2)
    expected = kernel(times[[0, 1, 2, -1], None].expand(2, 4, 1)).to_dense()
    for k in range(2):
        torch.testing.assert_close(torch.cov(values[..., k].T), expected[k], rtol=0, atol=0.05)
    assert torch.equal(values[:, 0], values[:, 1])  # at the same time
    assert abs(torch.corrcoef(values[:, 0].T)[0, 1]) < 0.05


def test_no_array_grows_faster_than_the_number_of_points():
    sizes = []
    for N in (200, 2000):
        process = make_process((), N, [(1, 2)], 1, False, False)
        leaves = [tensor.requires_grad_() for tensor in process["transitions"]]
        P_inf, C, precision, h, m, R = list(process.values())[1:]
        with helpers.largest_allocation() as largest:
            posterior = markov_posterior(leaves, P_inf, C, precision, h, Known(m, R))
            (posterior.mean.sum() + posterior.log_det).backward()
        sizes.append(largest.numel)
    assert sizes[1] <= 12 * sizes[0]
    assert sizes[1] <= 2 * 2000 * 4
