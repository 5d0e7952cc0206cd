"""
The mathematics, stated as theorems and judged by dense textbook code (`oracles.py`).

Errors are at most 1e-8 in float64, and 1e-2 of the largest value in float32, unless a test says why not. The oracle
uses the same K_uu + jitter as the strategy does.
"""

from __future__ import annotations

import copy

import gpytorch
import helpers
import oracles
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean, ZeroMean

from gpytorch_sgpvae import (
    GPVAE,
    MLP,
    SGPVAE,
    VAE,
    Context,
    FactorNet,
    GroupedKernel,
    JointFactorNet,
    LinearPlus,
    TaskELBO,
    condition,
    point_covariances,
    refine,
    refinement,
)
from gpytorch_sgpvae.linalg.conditionals import dense_posterior, evidence_of_sites, whitened_posterior
from gpytorch_sgpvae.mlp import linear_part

NOISE = 0.05


def assert_close(actual, expected, dtype=torch.float64, tolerance=None):
    expected = expected.double()
    if tolerance is None:
        tolerance = 1e-8 if dtype == torch.float64 else 1e-2 * expected.abs().max().item()
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs().max().item() if expected.numel() else 0.0
    assert error <= tolerance, f"error {error:.1e} > {tolerance:.1e}"


def dense_prior(model, x, k=None):
    """The prior's mean and covariance at x (N x D) in float64, of the k-th latent function."""
    twin = copy.deepcopy(model).double()
    with torch.no_grad():
        prior = twin.forward(x.double() if k is None else x.double().expand(model.strategy.num_latents, *x.shape))
        mean, covar = prior.mean, prior.lazy_covariance_matrix.to_dense()
    return (mean, covar) if k is None else (mean[k], covar[k])


def dense_blocks(model, x, x_new, k=None):
    """Kuu with the strategy's jitter, Kuf, Kus, Kff, Kss, and the means at Z, x and x_new."""
    Z = model.strategy.inducing_points.detach()
    M, N = len(Z), len(x)
    mean, covar = dense_prior(model, torch.cat([Z, x, x_new]), k)
    Kuu = covar[:M, :M] + model.strategy.jitter_val * torch.eye(M, dtype=torch.float64)
    Kuf, Kus = covar[:M, M : M + N], covar[:M, M + N :]
    Kff, Kss = covar[M : M + N, M : M + N], covar[M + N :, M + N :]
    return Kuu, Kuf, Kus, Kff, Kss, mean[:M], mean[M : M + N], mean[M + N :]


@pytest.fixture(params=helpers.KERNELS.values(), ids=helpers.KERNELS.keys())
def kernel(request):
    return request.param


MEANS = {"zero_mean": ZeroMean, "constant_mean": ConstantMean, "linear_mean": lambda: LinearMean(2)}
INPUTS = {"own_inputs": False, "shared_inputs": True}
every_kernel_and_mean = helpers.pairwise_cases("kernel, mean, dtype", helpers.KERNELS, MEANS, helpers.DTYPES)
every_kernel_and_inputs = helpers.pairwise_cases(
    "kernel, dtype, shared_inputs", helpers.KERNELS, helpers.DTYPES, INPUTS
)


def regression_model(kernel, mean, dtype, inducing_points, **kwargs):
    """A model whose sites are those of GP regression, g = y and v = σ²."""
    model = helpers.Model(inducing_points, helpers.ExactSites(NOISE), kernel, mean(), **kwargs).to(dtype)
    with torch.no_grad():
        for parameter in (*model.mean_module.parameters(), *model.covar_module.parameters()):
            parameter.add_(0.3 * torch.randn_like(parameter))
    likelihood = GaussianLikelihood().to(dtype)
    likelihood.noise = NOISE
    return model, likelihood


@pytest.fixture
def _no_grad():
    """GPyTorch's distance of a point to itself is 1e-8 instead of 0 while gradients are recorded."""
    with torch.no_grad():
        yield


@pytest.mark.usefixtures("_no_grad")
class TestTheorem1:
    """With the sites of GP regression the sparse posterior is the textbook's."""

    @every_kernel_and_mean
    def test_the_elbo_is_titsias_bound(self, kernel, mean, dtype):
        model, likelihood = regression_model(kernel, mean, dtype, torch.rand(6, 2, dtype=dtype) * 3)
        x, y = torch.rand(15, 2, dtype=dtype) * 3, torch.randn(15, dtype=dtype)
        elbo = TaskELBO(likelihood, model)(model(x, context=(x, y)), y)
        Kuu, Kuf, _, Kff, _, _, mean_f, _ = dense_blocks(model, x, x[:0])
        noise = likelihood.noise.double().item()
        assert_close(elbo, oracles.titsias_bound(Kuu, Kuf, Kff, mean_f, y.double(), noise), dtype)

    @every_kernel_and_mean
    def test_the_posterior_at_inducing_points_equal_to_the_inputs_is_exact_gp_regression(self, kernel, mean, dtype):
        # up to the jitter's effect: jitter / noise relative to the data, and more in the worst direction
        jitter = 1e-8 if dtype == torch.float64 else 1e-4
        x, y, x_new = (
            torch.rand(10, 2, dtype=dtype) * 3,
            torch.randn(10, dtype=dtype),
            torch.rand(4, 2, dtype=dtype) * 3,
        )
        model, likelihood = regression_model(kernel, mean, dtype, x, jitter_val=jitter)
        elbo = TaskELBO(likelihood, model)(model(x, context=(x, y)), y)
        q_f = model.eval()(x_new, context=(x, y))

        mean_all, covar_all = dense_prior(model, torch.cat([x, x_new]))
        exact = oracles.exact_gp(
            covar_all[:10, :10],
            covar_all[10:, :10],
            covar_all[10:, 10:],
            mean_all[:10],
            mean_all[10:],
            y.double(),
            NOISE,
        )
        evidence = oracles.log_normal_density(
            y.double(), mean_all[:10], covar_all[:10, :10] + NOISE * torch.eye(10, dtype=torch.float64)
        )
        tolerance = 100 * jitter / NOISE if dtype == torch.float64 else None
        assert_close(q_f.mean, exact.mean, dtype, tolerance)
        assert_close(q_f.covariance_matrix, exact.covariance, dtype, tolerance)
        assert_close(elbo, evidence, dtype, tolerance)

    @every_kernel_and_mean
    def test_the_posterior_is_the_textbooks_sparse_posterior(self, kernel, mean, dtype):
        model, _ = regression_model(kernel, mean, dtype, torch.rand(6, 2, dtype=dtype) * 3)
        x, y, x_new = (
            torch.rand(15, 2, dtype=dtype) * 3,
            torch.randn(15, dtype=dtype),
            torch.rand(4, 2, dtype=dtype) * 3,
        )
        q_f = model.eval()(x_new, context=(x, y))
        Kuu, Kuf, Kus, _, Kss, mean_u, mean_f, mean_s = dense_blocks(model, x, x_new)
        precision = torch.full((15,), 1 / NOISE, dtype=torch.float64)
        q_u = oracles.sparse_posterior(Kuu, Kuf, mean_u, mean_f, y.double() * precision, precision)
        predictive = oracles.sparse_predictive(q_u, Kuu, Kus, Kss, mean_u, mean_s)
        assert_close(q_f.mean, predictive.mean, dtype)
        assert_close(q_f.variance, predictive.covariance.diagonal(), dtype)
        assert_close(q_f.covariance_matrix, predictive.covariance, dtype)
        kl = oracles.kl_divergence(q_u, oracles.Gaussian(mean_u, Kuu))
        assert_close(model.variational_strategy.kl_divergence(), kl, dtype)

    @every_kernel_and_inputs
    def test_every_latent_function_and_task_has_the_textbooks_posterior(self, kernel, dtype, shared_inputs):
        model = helpers.make_model(kernel=kernel, dtype=dtype).eval()
        x, y = helpers.make_data(4, dtype=dtype)
        x = x[0] if shared_inputs else x
        x_new = torch.rand(5, 2, dtype=dtype) * 3
        context = Context(x, y)
        sites = model.strategy._variational_distribution(context)
        q_f = model(x_new, context=context)
        kl = model.strategy.kl_divergence()
        for t in range(4):
            for k in range(2):
                x_t = x if shared_inputs else x[t]
                Kuu, Kuf, Kus, _, Kss, mean_u, mean_f, mean_s = dense_blocks(model, x_t, x_new, k)
                q_u = oracles.sparse_posterior(
                    Kuu, Kuf, mean_u, mean_f, sites.precision_mean[t, k].double(), sites.precision[t, k].double()
                )
                predictive = oracles.sparse_predictive(q_u, Kuu, Kus, Kss, mean_u, mean_s)
                assert_close(q_f.mean[t, :, k], predictive.mean, dtype)
                assert_close(q_f.variance[t, :, k], predictive.covariance.diagonal(), dtype)
                assert_close(kl[t, k], oracles.kl_divergence(q_u, oracles.Gaussian(mean_u, Kuu)), dtype)


def elbo_of(model, likelihood, x, y, base_samples):
    model.train()
    context = Context(x, y)
    return TaskELBO(likelihood, model)(model(context.x, context=context), context.y, base_samples=base_samples)


class TestTheorem2:
    """What is missing has no influence."""

    @pytest.mark.parametrize("network", helpers.NETWORKS)
    def test_a_missing_row_equals_the_row_deleted(self, network, dtype):
        model, likelihood = helpers.make_model(network=network, dtype=dtype), helpers.make_likelihood(dtype=dtype)
        x, y = helpers.make_data(dtype=dtype)
        y[[2, 7]] = torch.nan
        kept = [n for n in range(12) if n not in (2, 7)]
        samples = torch.randn(3, 12, 2, dtype=dtype)
        whole = elbo_of(model, likelihood, x, y, samples)
        deleted = elbo_of(model, likelihood, x[kept], y[kept], samples[:, kept])
        assert_close(whole, deleted, dtype)
        x_new = torch.rand(4, 2, dtype=dtype)
        q_whole, q_deleted = (condition(model.eval(), c)(x_new) for c in ((x, y), (x[kept], y[kept])))
        assert_close(q_whole.mean, q_deleted.mean, dtype)
        assert_close(q_whole.variance, q_deleted.variance, dtype)

    @pytest.mark.parametrize("network", [FactorNet])
    def test_an_output_that_is_missing_everywhere_equals_a_model_without_it(self, network, dtype):
        model, likelihood = helpers.make_model(network=network, dtype=dtype), helpers.make_likelihood(dtype=dtype)
        x, y = helpers.make_data(dtype=dtype)
        y[:, 1] = torch.nan
        samples = torch.randn(3, 12, 2, dtype=dtype)
        whole = elbo_of(model, likelihood, x, y, samples)

        smaller = copy.deepcopy(model)
        smaller_likelihood = copy.deepcopy(likelihood)
        factors = smaller.strategy._variational_distribution.network.factors
        for parameter in factors.parameters():
            parameter.data = parameter.data[[0, 2]]
        smaller.strategy._variational_distribution.network.num_outputs = 2
        last = smaller_likelihood.decoder[-1]
        last.weight.data, last.bias.data = last.weight.data[[0, 2]], last.bias.data[[0, 2]]
        smaller_likelihood.decoder.out_size = smaller_likelihood.observation_model.num_outputs = 2
        raw_noise = smaller_likelihood.observation_model.raw_noise
        raw_noise.data = raw_noise.data[[0, 2]]
        assert_close(whole, elbo_of(smaller, smaller_likelihood, x, y[:, [0, 2]], samples), dtype)

    def test_a_missing_entry_of_factor_net_equals_the_product_of_the_other_factors(self, dtype):
        network = FactorNet(3, 2).to(dtype)
        y = torch.randn(12, 3, dtype=dtype)
        observed = torch.rand(12, 3) < 0.5
        single = [network(helpers.rows(y, observed & (torch.arange(3) == p))) for p in range(3)]
        everything = network(helpers.rows(y, observed))
        total = single[0] + single[1] + single[2]
        assert_close(everything.precision, total.precision, dtype)
        assert_close(everything.precision_mean, total.precision_mean, dtype)

    @pytest.mark.parametrize("network", helpers.NETWORKS)
    def test_padding_changes_nothing(self, network, dtype):
        model, likelihood = helpers.make_model(network=network, dtype=dtype), helpers.make_likelihood(dtype=dtype)
        tasks = [helpers.make_data(num_points=n, dtype=dtype) for n in (12, 5, 1, 0)]
        padded = Context.pad(tasks)
        samples = torch.randn(3, 4, 12, 2, dtype=dtype)
        elbos = elbo_of(model, likelihood, padded.x, padded.y, samples)
        for t, (x, y) in enumerate(tasks):
            assert_close(elbos[t], elbo_of(model, likelihood, x, y, samples[:, t, : len(x)]), dtype)


class TestTheorem3:
    """Nothing observed: the prior."""

    @helpers.pairwise_cases("network, kernel, dtype", helpers.NETWORKS, helpers.KERNELS, helpers.DTYPES)
    def test_nothing_observed_gives_the_prior_with_finite_gradients(self, network, kernel, dtype):
        model, likelihood = (
            helpers.make_model(network=network, kernel=kernel, dtype=dtype),
            helpers.make_likelihood(dtype=dtype),
        )
        x, y = helpers.make_data(4, missing=1.1, dtype=dtype)
        q_f = model(x, context=(x, y))
        prior = model(x, prior=True)
        assert_close(q_f.mean, prior.mean, dtype)
        assert_close(q_f.variance, prior.variance, dtype, 1e-8 if dtype == torch.float64 else 1e-5)
        kl = model.variational_strategy.kl_divergence()
        assert torch.equal(kl, torch.zeros_like(kl))
        (TaskELBO(likelihood, model)(q_f, y).sum() + q_f.mean.sum() + q_f.variance.sum()).backward()
        for parameter in (*model.parameters(), *likelihood.parameters()):
            assert parameter.grad is None or parameter.grad.isfinite().all()


def dense_model(kernel, dtype, num_latents=2, **kwargs):
    """A model with the dense strategy, and its sparse twin with the same parameters and inducing points of its own."""
    sparse = helpers.make_model(num_latents=num_latents, kernel=kernel, dtype=dtype, **kwargs)
    dense = helpers.DenseModel(sparse)
    return dense, sparse


class TestTheorem4:
    """Without inducing points: u = f."""

    @pytest.mark.usefixtures("_no_grad")
    @every_kernel_and_inputs
    def test_the_dense_posterior_is_exact_regression_on_the_sites(self, kernel, dtype, shared_inputs):
        model, _ = dense_model(kernel, dtype)
        model.eval()
        x, y = helpers.make_data(3, dtype=dtype)
        y[:, [1, 4]] = torch.nan
        x = x[0] if shared_inputs else x
        x_new = torch.rand(5, 2, dtype=dtype) * 3
        sites = model.strategy.sites((x, y))
        q_new, q_own = model(x_new, context=(x, y)), model(x, context=(x, y))
        for t in range(3):
            for k in range(2):
                x_t = x if shared_inputs else x[t]
                mean, covar = dense_prior(model, torch.cat([x_t, x_new]), k)
                natural = sites.precision_mean[t, k].double(), sites.precision[t, k].double()
                Kff, Ksf, Kss = covar[:12, :12], covar[12:, :12], covar[12:, 12:]
                new = oracles.dense_posterior(Kff, Ksf, Kss, mean[:12], mean[12:], *natural)
                own = oracles.dense_posterior(Kff, Kff, Kff, mean[:12], mean[:12], *natural)
                for q, oracle in ((q_new, new), (q_own, own)):
                    assert_close(q.mean[t, :, k], oracle.mean, dtype)
                    # in float32 a variance is what is left of the prior's
                    tolerance = 1e-8 if dtype == torch.float64 else 1e-4
                    assert_close(q.variance[t, :, k], oracle.covariance.diagonal(), dtype, tolerance)

    @pytest.mark.usefixtures("_no_grad")
    def test_dense_equals_sparse_at_inducing_points_equal_to_the_inputs(self, kernel):
        dense, sparse = dense_model(kernel, torch.float64)
        likelihood = helpers.make_likelihood()
        x, y = helpers.make_data()
        # up to the jitter's effect, which grows with the sites' precision (some hundreds)
        sparse.strategy.set_inducing_points(x)
        sparse.strategy.jitter_val = 1e-10
        samples = torch.randn(3, 12, 2, dtype=torch.float64)
        elbo, expected = (elbo_of(model, likelihood, x, y, samples) for model in (dense, sparse))
        assert_close(elbo, expected, tolerance=1e-4)
        x_new = torch.rand(5, 2, dtype=torch.float64) * 3
        q_dense, q_sparse = (model.eval()(x_new, context=(x, y)) for model in (dense, sparse))
        assert_close(q_dense.mean, q_sparse.mean, tolerance=1e-5)
        assert_close(q_dense.covariance_matrix, q_sparse.covariance_matrix, tolerance=1e-5)

    @pytest.mark.parametrize("precision", [0.0, 1e-18, 1e-12, 1e-9, 1e-4, 1.0, 1e4, 1e6])
    def test_precisions_of_any_size_have_the_textbooks_posterior_and_divergence(self, precision):
        """A precision of 0 with a λg that is not zero is among them: such a site is linear in f."""
        x = torch.rand(5, 2, dtype=torch.float64)
        K = gpytorch.kernels.MaternKernel(nu=0.5).double()(x).to_dense().detach()
        precision = torch.full((5,), precision, dtype=torch.float64)
        h = 3 * torch.randn(5, dtype=torch.float64) * precision.clamp_min(1.0)
        posterior = dense_posterior(K, helpers.GaussianSites(h, precision), torch.zeros(5, dtype=torch.float64))
        zero = torch.zeros(5, dtype=torch.float64)
        covariance = torch.linalg.inv(torch.linalg.inv(K) + torch.diag(precision))
        oracle = oracles.Gaussian(covariance @ h, covariance)
        kl = oracles.kl_divergence(oracle, oracles.Gaussian(zero, K))
        torch.testing.assert_close(K @ posterior.weights, oracle.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(posterior.kl_divergence, kl, rtol=1e-8, atol=1e-8)

    @pytest.mark.usefixtures("_no_grad")
    def test_both_forms_of_the_elbo_agree(self, kernel):
        """KL[q || p] = E_q log l − log Z_q, with the sites as normalized Gaussians, of the points that have one."""
        model, _ = dense_model(kernel, torch.float64)
        x, y = helpers.make_data()
        y[3] = torch.nan
        model.eval()
        q_f, sites = model(x, context=(x, y)), model.strategy.sites((x, y))
        for k in range(2):
            kept = sites.precision[k] > 0
            g, v = (sites.precision_mean / sites.precision)[k][kept], 1 / sites.precision[k][kept]
            mean, variance = q_f.mean[kept, k], q_f.variance[kept, k]
            expected_log_sites = torch.distributions.Normal(g, v.sqrt()).log_prob(mean).sum() - (variance / v).sum() / 2
            prior_mean, covar = dense_prior(model, x, k)
            log_Zq = oracles.log_normal_density(g, prior_mean[kept], covar[kept][:, kept] + torch.diag(v))
            assert_close(model.strategy.kl_divergence()[k], expected_log_sites - log_Zq)


def sigma_points(num_latents, *shape):
    """Samples under which the expectation of any quadratic function is exact (2 K x *shape x K)."""
    points = num_latents**0.5 * torch.cat([torch.eye(num_latents), -torch.eye(num_latents)]).double()
    return points.view(2 * num_latents, *[1] * len(shape), num_latents).expand(-1, *shape, -1)


class TestTheorem5:
    """With a linear decoder: GP factor analysis, and factor analysis without a kernel."""

    def make(self, orthogonal):
        decoder = torch.nn.Linear(2, 3).double()
        observations = helpers.GaussianObservations(3).double()
        observations.noise = torch.tensor([0.1, 0.2, 0.3])
        if orthogonal:
            basis = torch.linalg.qr(torch.randn(3, 2).double()).Q
            decoder.weight.data = observations.noise.detach().sqrt().unsqueeze(-1) * basis * torch.tensor([1.0, 2.0])
        gpvae = GPVAE(3, 2, decoder=decoder, observation_model=observations).double()
        gpvae.model.covar_module.base_kernel.lengthscale = torch.tensor([0.4, 0.8]).view(2, 1, 1)
        x, y = helpers.make_data(num_points=6, missing=0)
        K = gpvae.model.covar_module(x.expand(2, 6, 2)).to_dense().detach()
        parameters = (K, decoder.weight.detach(), decoder.bias.detach(), observations.noise.detach())
        return gpvae, x, y, parameters

    def optimal_sites(self, y, W, b, noise):
        """λ_k = w_kᵀ Σ⁻¹ w_k and λ_k g_k = w_kᵀ Σ⁻¹ (y − b)."""
        precision = (W.square() / noise.unsqueeze(-1)).sum(0)
        return helpers.GaussianSites(((y - b) / noise @ W).mT, precision.unsqueeze(-1).expand(2, len(y)))

    def elbo(self, gpvae, x, y, sites=None):
        encoding = gpvae.strategy.encode((x, y), sites)
        objective = TaskELBO(gpvae.likelihood, gpvae.model)
        return objective(gpvae.model(x, context=encoding), y, base_samples=sigma_points(2, len(x)))

    @pytest.mark.parametrize("orthogonal", [True, False])
    def test_the_elbo_stays_below_the_exact_log_marginal(self, orthogonal):
        gpvae, x, y, parameters = self.make(orthogonal)
        evidence = oracles.log_normal_density(y.reshape(-1), *oracles.gp_factor_analysis(*parameters))
        assert self.elbo(gpvae, x, y) < evidence

    def test_it_reaches_it_at_the_optimal_sites_for_orthogonal_loadings(self):
        gpvae, x, y, parameters = self.make(orthogonal=True)
        evidence = oracles.log_normal_density(y.reshape(-1), *oracles.gp_factor_analysis(*parameters))
        assert_close(self.elbo(gpvae, x, y, self.optimal_sites(y, *parameters[1:])).detach(), evidence)

    @pytest.mark.parametrize("orthogonal", [True, False])
    def test_refined_sites_reach_the_optimum_of_the_factorized_family(self, orthogonal, monkeypatch):
        gpvae, x, y, parameters = self.make(orthogonal)
        optimum = oracles.factorized_optimum(*parameters, y)
        monkeypatch.setattr(refinement, "_base_samples", lambda *arguments: {"base_samples": sigma_points(2, len(x))})
        before = self.elbo(gpvae, x, y).detach()
        gap = refine(gpvae, (x, y), steps=100).gap
        # an optimizer's precision, not the algebra's
        assert_close(before + gap, optimum, tolerance=1e-5)

    def test_a_delta_kernel_makes_the_gp_vae_a_vae(self, dtype):
        class Delta(gpytorch.kernels.Kernel):
            def forward(self, x1, x2, diag=False, **params):
                equal = (x1.unsqueeze(-2) == x2.unsqueeze(-3)).all(-1).to(x1.dtype)
                return equal.diagonal(dim1=-1, dim2=-2) if diag else equal

        gpvae, vae = GPVAE(3, 2, kernel=Delta()).to(dtype), VAE(3, 2).to(dtype)
        vae.load_state_dict(gpvae.state_dict(), strict=False)
        x, y = helpers.make_data(4, dtype=dtype)
        y[0, 2] = torch.nan
        samples = torch.randn(3, 4, 12, 2, dtype=dtype)
        assert_close(vae.elbo((x, y), base_samples=samples), gpvae.elbo((x, y), base_samples=samples), dtype)
        q_vae, q_gpvae = (model.eval().condition((x, y))(x) for model in (vae, gpvae))
        assert_close(q_vae.mean, q_gpvae.mean, dtype)
        assert_close(q_vae.variance, q_gpvae.variance, dtype)
        elsewhere = vae.condition((x, y))(x + 1)
        assert torch.equal(elsewhere.variance, torch.ones_like(elsewhere.variance))
        some = torch.cat([x[:, 3:5], x[:, :1] + 1], dim=-2)
        q_vae, q_gpvae = (model.condition((x, y))(some) for model in (vae, gpvae))
        assert_close(q_vae.mean, q_gpvae.mean, dtype)
        assert_close(q_vae.variance, q_gpvae.variance, dtype)

    @pytest.mark.parametrize("orthogonal", [True, False])
    def test_a_linear_vae_is_factor_analysis(self, orthogonal):
        gpvae, x, y, (_, W, b, noise) = self.make(orthogonal)
        vae = VAE(3, 2, decoder=gpvae.likelihood.decoder, observation_model=gpvae.likelihood.observation_model)
        vae = vae.double()
        evidence = torch.distributions.MultivariateNormal(b, W @ W.T + torch.diag(noise)).log_prob(y).sum()
        assert self.elbo(vae, x, y) < evidence
        best = self.elbo(vae, x, y, self.optimal_sites(y, W, b, noise)).detach()
        if orthogonal:
            assert_close(best, evidence)
        else:
            assert best < evidence


class TestTheorem6:
    """Evidence adds."""

    def test_factor_nets_sites_of_disjoint_outputs_sum_to_the_sites_of_all(self, dtype):
        network = FactorNet(4, 2).to(dtype)
        y = torch.randn(3, 12, 4, dtype=dtype)
        observed = torch.rand(3, 12, 4) < 0.7
        left = torch.tensor([True, False, True, False])
        total = network(helpers.rows(y, observed & left)) + network(helpers.rows(y, observed & ~left))
        assert_close(total.precision, network(helpers.rows(y, observed)).precision, dtype)
        assert_close(total.precision_mean, network(helpers.rows(y, observed)).precision_mean, dtype)

    def test_evidence_of_disjoint_rows_sums_to_the_evidence_of_all(self, kernel, dtype):
        model = helpers.make_model(kernel=kernel, dtype=dtype)
        x, y = helpers.make_data(3, dtype=dtype)
        parts = [model.strategy.encode((x[:, rows], y[:, rows])).evidence for rows in (slice(0, 5), slice(5, 12))]
        total, everything = parts[0] + parts[1], model.strategy.encode((x, y)).evidence
        # accumulated in float64 also for a float32 model, whose A is rounded alike in the parts and in the whole
        scale = everything.precision.abs().max().item()
        tolerance = 1e-8 if dtype == torch.float64 else 1e-6 * scale
        assert_close(total.precision, everything.precision, torch.float64, tolerance)
        assert_close(total.precision_mean, everything.precision_mean, torch.float64, tolerance)
        assert_close(
            whitened_posterior(total).weights, whitened_posterior(everything).weights, torch.float64, tolerance
        )


class TestTheorem7:
    """Tasks do not know of each other, and order does not matter."""

    @pytest.mark.parametrize("network", helpers.NETWORKS)
    def test_a_batch_of_tasks_equals_the_tasks_one_by_one(self, network, dtype):
        model, likelihood = helpers.make_model(network=network, dtype=dtype), helpers.make_likelihood(dtype=dtype)
        x, y = helpers.make_data(4, dtype=dtype)
        samples = torch.randn(3, 4, 12, 2, dtype=dtype)
        elbos = elbo_of(model, likelihood, x, y, samples)
        for t in range(4):
            assert_close(elbos[t], elbo_of(model, likelihood, x[t], y[t], samples[:, t]), dtype)

    @pytest.mark.parametrize("batch_shape", [(2, 3), (1,), (3, 1, 2)])
    def test_any_batch_shape_equals_the_tasks_in_a_row(self, batch_shape):
        model, likelihood = helpers.make_model(), helpers.make_likelihood()
        x, y = helpers.make_data(*batch_shape)
        samples = torch.randn(3, *batch_shape, 12, 2, dtype=x.dtype)
        elbos = elbo_of(model, likelihood, x, y, samples)
        in_a_row = elbo_of(model, likelihood, x.reshape(-1, 12, 2), y.reshape(-1, 12, 3), samples.reshape(3, -1, 12, 2))
        assert_close(elbos, in_a_row.view(batch_shape))

    def test_inputs_shared_by_all_tasks_equal_inputs_given_to_each(self, dtype):
        model, likelihood = helpers.make_model(dtype=dtype), helpers.make_likelihood(dtype=dtype)
        x, y = helpers.make_data(4, dtype=dtype)
        samples = torch.randn(3, 4, 12, 2, dtype=dtype)
        shared = elbo_of(model, likelihood, x[0], y, samples)
        assert_close(shared, elbo_of(model, likelihood, x[0].expand(4, 12, 2).clone(), y, samples), dtype)

    @pytest.mark.parametrize("network", helpers.NETWORKS)
    def test_a_permutation_of_points_or_tasks_changes_nothing_else(self, network, dtype):
        model, likelihood = helpers.make_model(network=network, dtype=dtype), helpers.make_likelihood(dtype=dtype)
        x, y = helpers.make_data(4, dtype=dtype)
        samples = torch.randn(3, 4, 12, 2, dtype=dtype)
        points, tasks = torch.randperm(12), torch.randperm(4)
        elbos = elbo_of(model, likelihood, x, y, samples)
        assert_close(elbo_of(model, likelihood, x[:, points], y[:, points], samples[:, :, points]), elbos, dtype)
        assert_close(elbo_of(model, likelihood, x[tasks], y[tasks], samples[:, tasks]), elbos[tasks], dtype)

    def test_as_many_tasks_as_latent_functions_are_not_paired(self):
        model = helpers.make_model(num_latents=3).eval()
        x, y = helpers.make_data(3)
        q_f = model(x, context=(x, y))
        assert q_f.batch_shape == (3,)
        for t in range(3):
            assert_close(q_f.mean[t], model(x[t], context=(x[t], y[t])).mean)


class TestTheorem8:
    """Every gradient is right."""

    @pytest.mark.parametrize("network", helpers.NETWORKS)
    def test_gradients_of_the_elbo_by_all_parameters(self, network, kernel):
        # tanh, as finite differences cannot step over the kinks of ReLU
        model = helpers.make_model(2, 2, 3, network, kernel=kernel, activation=torch.nn.Tanh)
        likelihood = helpers.make_likelihood(2, 2, activation=torch.nn.Tanh)
        helpers.check_gradients_of_elbo(model, likelihood)

    def test_gradients_of_q_f_and_the_kl_divergence_by_sites_inputs_and_inducing_points(self):
        model = helpers.make_model(1, None, 3)
        x_new = torch.rand(2, 2, dtype=torch.float64)

        class GivenSites(torch.nn.Module):
            num_latents = None

        def function(precision_mean, precision, x, Z):
            network = GivenSites()
            network.forward = lambda context: helpers.GaussianSites(precision_mean, precision)
            given = helpers.Model(Z, network, mean=model.mean_module)
            given.covar_module = model.covar_module
            del given.strategy.inducing_points
            given.strategy.inducing_points = Z
            q_f = given(x_new, context=(x, precision_mean.detach()))
            return q_f.mean, q_f.variance, given.strategy.kl_divergence()

        inputs = (
            torch.randn(4, dtype=torch.float64, requires_grad=True),
            (torch.rand(4, dtype=torch.float64) + 0.5).requires_grad_(),
            torch.rand(4, 2, dtype=torch.float64, requires_grad=True),
            torch.rand(3, 2, dtype=torch.float64, requires_grad=True),
        )
        assert torch.autograd.gradcheck(function, inputs)

    def test_a_precision_of_zero_has_a_finite_gradient(self):
        A = torch.randn(3, 4, dtype=torch.float64)
        precision = torch.tensor([0.0, 1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
        sites = helpers.GaussianSites(precision_mean=2 * precision, precision=precision)
        posterior = whitened_posterior(evidence_of_sites(A, sites, torch.zeros(4, dtype=torch.float64)))
        (gradient,) = torch.autograd.grad(posterior.kl_divergence + posterior.weights.sum(), precision)
        assert gradient.isfinite().all()


class TestTheorem9:
    """Free-form sites are as good as a free-form q(u)."""

    @pytest.mark.parametrize("likelihood", [gpytorch.likelihoods.BernoulliLikelihood(), GaussianLikelihood()])
    def test_free_form_sites_reach_the_elbo_of_a_free_form_cholesky_factor(self, likelihood):
        likelihood = copy.deepcopy(likelihood).double()
        x = torch.rand(12, 2, dtype=torch.float64) * 3
        y = (x[:, 0] > 1.5).double()
        model = helpers.make_model(1, None, 4)
        rival = helpers.FreeFormModel(model)
        parameters = [*rival.variational_strategy._variational_distribution.parameters()]
        optimizer = torch.optim.LBFGS(parameters, max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")
        objective = TaskELBO(likelihood, rival)

        def closure():
            optimizer.zero_grad()
            loss = -objective(rival(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        best = objective(rival(x), y).detach()
        start = TaskELBO(likelihood, model)(model(x, context=(x, y)), y).detach()
        gap = refine(model, (x, y), steps=100, likelihood=likelihood).gap
        # two optimizers' precision; GPyTorch's q(f) has another jitter of 1e-6 in its variance
        assert_close(start + gap, best, tolerance=1e-3)


def joint_prior(model, *groups):
    """The prior mean (K, N) at each group of inputs, and the covariance (K, N, N') of each pair."""
    x = torch.cat(groups)
    with torch.no_grad():
        prior = model.forward(x.expand(model.strategy.num_latents, *x.shape))
        mean, covar = prior.mean, prior.lazy_covariance_matrix.to_dense()
    sizes = [len(group) for group in groups]
    blocks = [rows.split(sizes, -1) for rows in covar.split(sizes, -2)]
    return mean.split(sizes, -1), blocks


def joint_dense_prior(model, x, x_new):
    """Kff, Ksf, Kss, and the means at x and x_new."""
    if x_new is x:  # GPyTorch's distance between two copies of a point is not quite 0
        (mean,), ((Kff,),) = joint_prior(model, x)
        return Kff, Kff, Kff, mean, mean
    (mean_f, mean_s), ((Kff, _), (Ksf, Kss)) = joint_prior(model, x, x_new)
    return Kff, Ksf, Kss, mean_f, mean_s


def joint_sparse_prior(model, x, x_new):
    """Kuu with the strategy's jitter, Kuf, Kus, Kff, Kss, and the means at x and x_new."""
    Z = model.strategy.inducing_points.detach()
    (_, mean_f, mean_s), blocks = joint_prior(model, Z, x, x_new)
    Kuu = blocks[0][0] + model.strategy.jitter_val * torch.eye(len(Z), dtype=torch.float64)
    return Kuu, blocks[0][1], blocks[0][2], blocks[1][1], blocks[2][2], mean_f, mean_s


def exact_coregionalization(model, likelihood, x, y, x_new):
    """The posterior of vec(f*) and the log marginal likelihood, by the judges."""
    linear, noise = linear_part(likelihood.decoder), likelihood.observation_model.noise.detach()
    Kff, Ksf, Kss, mean_f, mean_s = joint_dense_prior(model, x, x_new)
    W, b = linear.weight.detach(), linear.bias.detach()
    return oracles.coregionalization(Kff, Ksf, Kss, mean_f, mean_s, W, noise, y - b)


def grouped(batch_shape):
    (K,) = batch_shape
    rough = gpytorch.kernels.MaternKernel(nu=0.5, batch_shape=torch.Size([1]))
    return rough if K == 1 else GroupedKernel([rough, helpers.rbf(torch.Size([K - 1]))], [1, K - 1])


def hide_random(y):
    return torch.where(torch.rand_like(y) < 0.4, torch.nan, y)


def hide_rows(y):
    return torch.where((torch.arange(y.shape[-2]) % 3 == 0).unsqueeze(-1), torch.nan, y)


def hide_outputs(y):
    return torch.where(torch.arange(y.shape[-1]) == 0, torch.nan, y)


def hide_all_but_one(y):
    first = (torch.arange(y.shape[-2]) == 0).unsqueeze(-1) & (torch.arange(y.shape[-1]) == y.shape[-1] - 1)
    return torch.where(first, y, torch.nan)


JOINT_PATTERNS = {
    "random": hide_random,
    "none": lambda y: y,
    "rows": hide_rows,
    "outputs": hide_outputs,
    "all_but_one": hide_all_but_one,
    "everything": lambda y: torch.full_like(y, torch.nan),
}
JOINT_KERNELS = {"grouped": grouped, "rbf": helpers.rbf, "matern12": helpers.KERNELS["matern12"]}
JOINT_MEANS = {
    "constant_mean": lambda latents: ConstantMean(batch_shape=latents),
    "zero_mean": lambda latents: ZeroMean(),
    "linear_mean": lambda latents: LinearMean(2, batch_shape=latents),
}
every_linear_model = helpers.pairwise_cases(
    "pattern, sizes, layout, kernel, mean",
    JOINT_PATTERNS,
    {"P=3,K=2": (3, 2), "P=2,K=4": (2, 4), "K=1": (3, 1), "P=1": (1, 2)},
    ["ragged", "one", "own", "shared"],
    JOINT_KERNELS,
    JOINT_MEANS,
)


def joint_tasks(layout, pattern, num_outputs):
    """The tasks (x, y) one by one, and all of them as a context."""
    sizes = {"one": [7], "own": [7, 7, 7], "shared": [7, 7, 7], "ragged": [7, 3, 1]}[layout]
    tasks = [helpers.make_data(num_points=n, num_outputs=num_outputs, missing=0) for n in sizes]
    if layout == "shared":
        tasks = [(tasks[0][0], y) for _, y in tasks]
    # only the first task has the pattern as it is: the others have more entries, so that the batch is uneven
    tasks = [(x, pattern(y) if i == 0 else torch.where(y > 1, torch.nan, y)) for i, (x, y) in enumerate(tasks)]
    if layout == "one":
        return tasks, Context(*tasks[0])
    if layout == "shared":
        return tasks, Context(tasks[0][0], torch.stack([y for _, y in tasks]))
    return tasks, Context.pad(tasks)


def joint_elbos(model, likelihood, context):
    """A row for each task, also if there is but one."""
    return TaskELBO(likelihood, model)(model(context.x, context=context), context.y).reshape(-1)


def assert_is_joint(q_f, t, expected, num_latents):
    """Mean, full covariance, variances and covariances of each point of the t-th task."""
    mean = q_f.mean.reshape(-1, *q_f.event_shape)[t]
    N = len(mean)
    size = N * num_latents
    assert_close(mean.flatten(), expected.mean)
    assert_close(q_f.covariance_matrix.reshape(-1, size, size)[t], expected.covariance)
    assert_close(q_f.variance.reshape(-1, size)[t], expected.covariance.diagonal())
    blocks = torch.stack(
        [expected.covariance[i : i + num_latents, i : i + num_latents] for i in range(0, size, num_latents)]
    )
    assert_close(point_covariances(q_f).reshape(-1, *blocks.shape)[t], blocks)


class TestTheorem10:
    """With a linear decoder and Gaussian noise: the exact linear model of coregionalization, whatever is missing."""

    @pytest.mark.usefixtures("_no_grad")
    @every_linear_model
    def test_the_dense_joint_elbo_is_the_exact_log_marginal_and_q_f_the_exact_posterior(
        self, pattern, sizes, layout, kernel, mean
    ):
        network, likelihood = helpers.make_tied(*sizes)
        model = helpers.JointModel(network, None, kernel, mean)
        tasks, context = joint_tasks(layout, pattern, sizes[0])
        x_new = torch.rand(4, 2, dtype=torch.float64) * 3
        elbos = joint_elbos(model, likelihood, context)
        training = model(context.x, context=context)
        model.eval()
        new, own = model(x_new, context=context), model(context.x, context=context)
        elbos_in_eval = joint_elbos(model, likelihood, context)
        for t, (x, y) in enumerate(tasks):
            posterior, evidence = exact_coregionalization(model, likelihood, x, y, x_new)
            assert_close(elbos[t], evidence)
            assert_close(elbos_in_eval[t], evidence)
            assert_is_joint(new, t, posterior, sizes[1])
            posterior, _ = exact_coregionalization(model, likelihood, x, y, x)
            blocks = point_covariances(training).reshape(-1, context.num_points, sizes[1], sizes[1])[t, : len(x)]
            for n in range(len(x)):
                of_point = slice(n * sizes[1], (n + 1) * sizes[1])
                assert_close(blocks[n], posterior.covariance[of_point, of_point])
            assert_close(training.mean.reshape(-1, *training.event_shape)[t, : len(x)].flatten(), posterior.mean)
            size = len(x) * sizes[1]
            covariance = own.covariance_matrix.reshape(-1, *own.covariance_matrix.shape[-2:])[t, :size, :size]
            assert_close(covariance, posterior.covariance)

    @pytest.mark.usefixtures("_no_grad")
    def test_nothing_observed_has_the_log_marginal_zero(self):
        network, likelihood = helpers.make_tied()
        context = Context(*helpers.make_data(2, missing=1.1))
        for Z in (None, torch.rand(4, 2).double()):
            assert_close(joint_elbos(helpers.JointModel(network, Z), likelihood, context), torch.zeros(2))

    @pytest.mark.usefixtures("_no_grad")
    @every_linear_model
    def test_the_sparse_joint_elbo_is_titsias_bound_and_q_f_the_textbooks(self, pattern, sizes, layout, kernel, mean):
        network, likelihood = helpers.make_tied(*sizes)
        model = helpers.JointModel(network, torch.rand(4, 2).double() * 3, kernel, mean)
        tasks, context = joint_tasks(layout, pattern, sizes[0])
        x_new = torch.rand(4, 2, dtype=torch.float64) * 3
        elbos = joint_elbos(model, likelihood, context)
        kl = model.variational_strategy.kl_divergence().reshape(-1)
        new = model.eval()(x_new, context=context)
        W, b = likelihood.decoder.weight, likelihood.decoder.bias
        noise = likelihood.observation_model.noise
        for t, (x, y) in enumerate(tasks):
            Kuu, Kuf, Kus, Kff, Kss, mean_f, mean_s = joint_sparse_prior(model, x, x_new)
            assert_close(elbos[t], oracles.coregionalized_titsias_bound(Kuu, Kuf, Kff, mean_f, W, noise, y - b))
            precision = (~y.isnan()) / noise
            q_u = oracles.joint_sparse_posterior(Kuu, Kuf, mean_f, W, (y - b).nan_to_num() * precision, precision)
            assert_is_joint(new, t, oracles.joint_sparse_predictive(q_u, Kuu, Kus, Kss, mean_s), sizes[1])
            p_u = oracles.Gaussian(torch.zeros_like(q_u.mean), torch.block_diag(*Kuu))
            assert_close(kl[t], oracles.kl_divergence(q_u, p_u))

    @pytest.mark.usefixtures("_no_grad")
    def test_the_sparse_one_at_inducing_points_equal_to_the_inputs_tends_to_the_exact_one(self):
        network, likelihood = helpers.make_tied()
        x, y = helpers.make_data(num_points=8)
        x_new, errors = torch.rand(4, 2).double() * 3, []
        model = helpers.JointModel(network, x, helpers.KERNELS["matern12"])
        for jitter in (1e-4, 1e-6, 1e-8):
            model.strategy.jitter_val = jitter
            posterior, evidence = exact_coregionalization(model, likelihood, x, y, x_new)
            error = (joint_elbos(model.train(), likelihood, Context(x, y)) - evidence).abs()
            q_f = model.eval()(x_new, context=(x, y))
            errors.append(max(error.item(), (q_f.covariance_matrix - posterior.covariance).abs().max().item()))
        # in proportion to the jitter
        assert errors[1] < 0.05 * errors[0]
        assert errors[2] < 0.05 * errors[1]
        assert errors[2] < 1e-5

    @pytest.mark.parametrize("cls", [GPVAE, SGPVAE])
    @pytest.mark.parametrize("linear", [True, False], ids=["Linear", "LinearPlus"])
    def test_a_ready_made_model_is_the_exact_one_at_the_start_and_a_linear_one_throughout_training(self, cls, linear):
        decoder = torch.nn.Linear(2, 3) if linear else None
        x, y = helpers.make_data(2, num_points=7)
        arguments = (torch.rand(5, 2).double() * 3,) if cls is SGPVAE else ()
        vae = cls(3, 2, *arguments, network="jointfactornet", decoder=decoder).double()
        vae.strategy._variational_distribution.network.corrections.requires_grad_(False)
        optimizer = torch.optim.Adam([p for p in vae.parameters() if p.requires_grad], lr=0.05)
        for _ in range(5 if linear else 1):
            with torch.no_grad():
                elbos = vae.elbo((x, y))
                for t in range(2):
                    assert_close(elbos[t], self.exact(vae, x[t], y[t]))
            optimizer.zero_grad()
            vae.loss((x, y)).backward()
            optimizer.step()

    def exact(self, vae, x, y):
        linear, noise = linear_part(vae.likelihood.decoder), vae.likelihood.observation_model.noise
        if isinstance(vae, GPVAE):
            return exact_coregionalization(vae_model(vae), vae.likelihood, x, y, x)[1]
        Kuu, Kuf, _, Kff, _, mean_f, _ = joint_sparse_prior(vae_model(vae), x, x[:0])
        return oracles.coregionalized_titsias_bound(Kuu, Kuf, Kff, mean_f, linear.weight, noise, y - linear.bias)

    @pytest.mark.parametrize("kernel", [helpers.rbf, grouped])
    @pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
    @pytest.mark.parametrize("decoder", ["linear", "mlp", "untied"])
    def test_gradients_of_the_elbo_by_all_parameters(self, sparse, kernel, decoder):
        """Gradients by the loadings come through the decoder and through the sites that are tied to it."""
        network, likelihood = helpers.make_tied(2, 2)
        if decoder == "mlp":
            likelihood.decoder = LinearPlus(MLP(2, 2, (4,), torch.nn.Tanh)).double()
            helpers.perturb(likelihood.decoder)
        if decoder == "untied":
            network = JointFactorNet(2, 2, (4,), torch.nn.Tanh).double()
        helpers.perturb(network)
        model = helpers.JointModel(network, torch.rand(3, 2).double() * 3 if sparse else None, kernel)
        helpers.check_gradients_of_elbo(model, likelihood)

    @pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
    @pytest.mark.parametrize("sizes", [(3, 2), (2, 4), (3, 1)], ids=["P=3,K=2", "P=2,K=4", "K=1"])
    @pytest.mark.parametrize("start", ["network", "given"])
    def test_one_step_of_refinement_from_anywhere_reaches_the_exact_posterior(self, sparse, sizes, start):
        """The optimum over q(u): Titsias' bound, and the exact log marginal likelihood without inducing points."""
        network, likelihood = helpers.make_tied(*sizes)
        helpers.perturb(network, scale=1.0)
        x, y = helpers.make_data(2, num_points=7, num_outputs=sizes[0])
        y[0, 2], y[1] = torch.nan, hide_outputs(y[1])
        if start == "given":
            precision = torch.rand(2, 5, 7).double() * (~y.isnan()).any(-1).unsqueeze(-2)
            loadings = torch.randn(2, 7, 5, sizes[1]).double()
            sites = helpers.GaussianSites(torch.randn(2, 5, 7).double() * precision, precision, loadings)
            network = helpers.GivenSites(sites, sizes[1])
        Z = torch.rand(4, 2).double() * 3 if sparse else None
        model = helpers.JointModel(network, Z)
        with torch.no_grad():
            before = joint_elbos(model, likelihood, Context(x, y))
            posterior, gap = refine(model.eval(), (x, y), steps=1, likelihood=likelihood)
            x_new = torch.rand(4, 2).double() * 3
            q_f = posterior(x_new)
            W, b, noise = likelihood.decoder.weight, likelihood.decoder.bias, likelihood.observation_model.noise
            for t in range(2):
                # the precision in directions that no output sees is 1e-8 instead of 0, of up to K of them in 7 points
                if sparse:
                    Kuu, Kuf, _, Kff, _, mean_f, _ = joint_sparse_prior(model, x[t], x_new)
                    best = oracles.coregionalized_titsias_bound(Kuu, Kuf, Kff, mean_f, W, noise, y[t] - b)
                else:
                    exact, best = exact_coregionalization(model, likelihood, x[t], y[t], x_new)
                    assert_close(q_f.mean[t].flatten(), exact.mean, tolerance=1e-6)
                    assert_close(q_f.covariance_matrix[t], exact.covariance, tolerance=1e-6)
                assert before[t] < best - 1e-3
                assert_close(before[t] + gap[t], best, tolerance=1e-6)


def vae_model(vae):
    """The approximate GP, which knows its strategy by the name that the tests have for it."""
    vae.model.strategy = vae.strategy
    return vae.model


class TestTheorem11:
    """Without loadings, joint = independent."""

    def make(self, sparse, network):
        Z = torch.rand(5, 2).double() * 3
        independent = helpers.Model(Z, network, jitter_val=1e-6).double()
        joint = helpers.JointModel(network, Z if sparse else None, **({"jitter_val": 1e-6} if sparse else {}))
        if not sparse:
            independent = helpers.DenseModel(independent)
        independent.mean_module, independent.covar_module = joint.mean_module, joint.covar_module
        return independent, joint

    def assert_equal(self, independent, joint, data, x_new):
        likelihood = helpers.make_likelihood()
        samples = torch.randn(3, 4, 12, 2).double()
        assert_close(elbo_of(joint, likelihood, *data, samples), elbo_of(independent, likelihood, *data, samples))
        kl = independent.variational_strategy.kl_divergence()
        assert_close(joint.variational_strategy.kl_divergence(), kl)
        for q, p in [
            (joint(data[0], context=data), independent(data[0], context=data)),
            (joint.eval()(x_new, context=data), independent.eval()(x_new, context=data)),
        ]:
            assert_close(q.mean, p.mean)
            assert_close(q.variance, p.variance)
            assert_close(point_covariances(q), point_covariances(p))
        x = x_new
        expected = independent.strategy(x, context=data).covariance_matrix  # (T, K, N, N)
        actual = joint(x, context=data).covariance_matrix.unflatten(-1, (len(x), 2)).unflatten(-3, (len(x), 2))
        for k in range(2):
            assert_close(actual[:, :, k, :, k], expected[:, k])
        assert_close(actual[:, :, 0, :, 1], torch.zeros_like(expected[:, 0]))

    @pytest.mark.usefixtures("_no_grad")
    @pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
    @pytest.mark.parametrize("shared_inputs", [True, False])
    def test_joint_equals_independent(self, sparse, shared_inputs):
        x, y = helpers.make_data(4)
        y[1] = torch.nan
        data = (x[0] if shared_inputs else x, y)
        independent, joint = self.make(sparse, FactorNet(3, 2, (8,)))
        self.assert_equal(independent, joint, data, torch.rand(5, 2).double() * 3)

    @pytest.mark.usefixtures("_no_grad")
    @pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
    @pytest.mark.parametrize("shape", [(2, 2), (1, 2, 2), (12, 2, 2), (4, 1, 2, 2), (4, 12, 2, 2)])
    def test_the_identity_as_loadings_is_no_loadings(self, sparse, shape):
        data = helpers.make_data(4)
        sites = FactorNet(3, 2, (8,)).double()(Context(*data))
        eye = torch.eye(2).double().expand(shape)
        independent, _ = self.make(sparse, helpers.GivenSites(sites, 2))
        _, joint = self.make(
            sparse, helpers.GivenSites(helpers.GaussianSites(sites.precision_mean, sites.precision, eye), 2)
        )
        if sparse:
            independent.strategy.set_inducing_points(joint.strategy.inducing_points.detach())
        independent.mean_module, independent.covar_module = joint.mean_module, joint.covar_module
        self.assert_equal(independent, joint, data, torch.rand(5, 2).double() * 3)


class TestEvidenceOfJointSites:
    """Theorem 6, evidence adds, for sites with loadings."""

    def test_sites_of_disjoint_outputs_sum_to_the_sites_of_all(self):
        network, _ = helpers.make_tied(4, 2)
        helpers.perturb(network)
        y = torch.randn(3, 12, 4).double()
        observed, left = torch.rand(3, 12, 4) < 0.7, torch.tensor([True, False, True, False])
        total = network(helpers.rows(y, observed & left)) + network(helpers.rows(y, observed & ~left))
        everything = network(helpers.rows(y, observed))
        assert total.loadings is everything.loadings
        assert_close(total.precision, everything.precision)
        assert_close(total.precision_mean, everything.precision_mean)

    @pytest.mark.usefixtures("_no_grad")
    @pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
    def test_sites_with_different_loadings_are_all_taken_into_account(self, sparse):
        """A point has as many pseudo-observations as there are rows of both, by a judge and one after the other."""
        x, x_new = torch.rand(6, 2).double() * 3, torch.rand(3, 2).double() * 3
        parts = [
            helpers.GaussianSites(torch.randn(J, 6).double(), torch.rand(J, 6).double(), loadings)
            for J, loadings in [(3, torch.randn(3, 2).double()), (1, torch.randn(6, 1, 2).double()), (2, None)]
        ]
        total = parts[0] + parts[1] + parts[2]
        assert total.shape == (6, 6)
        precision, precision_mean = total.precision.mT, total.precision_mean.mT
        W = total.loadings
        Z = torch.rand(4, 2).double() * 3
        model = helpers.JointModel(helpers.GivenSites(total, 2), Z if sparse else None).eval()
        q_f = model(x_new, context=(x, torch.zeros(6, 1).double()))
        assert_is_joint(q_f, 0, posterior_of_sites(model, x, x_new, W, precision_mean, precision), 2)
        # a sum of the natural parameters of f
        added = sum(part.point_precision() for part in parts)
        assert_close(total.point_precision(), added)
        h = sum(part.to_latents(part.precision_mean) for part in parts)
        assert_close(total.to_latents(total.precision_mean), h)

    def test_evidence_of_disjoint_rows_sums_to_the_evidence_of_all(self):
        network, _ = helpers.make_tied()
        model = helpers.JointModel(network, torch.rand(4, 2).double() * 3)
        x, y = helpers.make_data(3)
        parts = [model.strategy.encode((x[:, rows], y[:, rows])).evidence for rows in (slice(0, 5), slice(5, 12))]
        total, everything = parts[0] + parts[1], model.strategy.encode((x, y)).evidence
        assert_close(total.precision, everything.precision)
        assert_close(total.precision_mean, everything.precision_mean)


def posterior_of_sites(model, x, x_new, W, precision_mean, precision):
    """q(vec(f*)) for pseudo-observations of any sums (W is N x J x K, or J x K), by the judges."""
    if len(model.strategy.inducing_points):
        Kuu, Kuf, Kus, _, Kss, mean_f, mean_s = joint_sparse_prior(model, x, x_new)
        q_u = oracles.joint_sparse_posterior(Kuu, Kuf, mean_f, W, precision_mean, precision)
        return oracles.joint_sparse_predictive(q_u, Kuu, Kus, Kss, mean_s)
    Kff, Ksf, Kss, mean_f, mean_s = joint_dense_prior(model, x, x_new)
    y = torch.where(precision > 0, precision_mean / precision, torch.nan)
    return oracles.coregionalization(Kff, Ksf, Kss, mean_f, mean_s, W, 1 / precision, y)[0]


class TestGeneralLoadings:
    """Pseudo-observations of sums that differ from point to point and from task to task."""

    @pytest.mark.usefixtures("_no_grad")
    @pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
    @pytest.mark.parametrize("shared_inputs", [True, False])
    @pytest.mark.parametrize("shape", [(3, 2), (1, 3, 2), (6, 3, 2), (4, 1, 3, 2), (4, 6, 3, 2)])
    def test_the_posterior_is_the_judges(self, sparse, shared_inputs, shape):
        x, x_new = torch.rand(4, 6, 2).double() * 3, torch.rand(5, 2).double() * 3
        x = x[0] if shared_inputs else x
        precision = torch.rand(4, 3, 6).double() * (torch.rand(4, 3, 6) < 0.6)
        sites = helpers.GaussianSites(torch.randn(4, 3, 6).double() * precision, precision, torch.randn(shape).double())
        network = helpers.GivenSites(sites, 2)
        model = helpers.JointModel(network, torch.rand(4, 2).double() * 3 if sparse else None)
        context = Context(x, torch.zeros(4, 6, 1).double())
        training, q_f = model(context.x, context=context), model.eval()(x_new, context=context)
        W = sites.loadings.expand(4, 6, 3, 2)
        for t in range(4):
            x_t = x if shared_inputs else x[t]
            natural = (W[t], sites.precision_mean[t].mT, precision[t].mT)
            assert_is_joint(q_f, t, posterior_of_sites(model, x_t, x_new, *natural), 2)
            own = posterior_of_sites(model, x_t, x_t, *natural)
            assert_close(training.mean[t].flatten(), own.mean)
            blocks = own.covariance.view(6, 2, 6, 2).diagonal(dim1=0, dim2=2).movedim(-1, 0)
            assert_close(point_covariances(training)[t], blocks)


def test_the_judges_agree_with_each_other():
    """Exact regression, Titsias' bound at Z = X, and the sparse posterior at Z = X are one thing."""
    x = torch.rand(6, 2, dtype=torch.float64)
    y = torch.randn(6, dtype=torch.float64)
    covar = gpytorch.kernels.MaternKernel(nu=0.5).double()(x).to_dense().detach()
    zero, eye = torch.zeros(6, dtype=torch.float64), torch.eye(6, dtype=torch.float64)
    exact = oracles.exact_gp(covar, covar, covar, zero, zero, y, NOISE)
    q_u = oracles.sparse_posterior(covar, covar, zero, zero, y / NOISE, torch.full_like(y, 1 / NOISE))
    assert_close(q_u.mean, exact.mean)
    assert_close(q_u.covariance, exact.covariance)
    bound = oracles.titsias_bound(covar, covar, covar, zero, y, NOISE)
    assert_close(bound, oracles.log_normal_density(y, zero, covar + NOISE * eye))
    expected_log = -0.5 * ((y - q_u.mean).square() + q_u.covariance.diagonal()).sum() / NOISE
    expected_log = expected_log - 3 * torch.log(torch.tensor(2 * torch.pi * NOISE, dtype=torch.float64))
    assert_close(expected_log - oracles.kl_divergence(q_u, oracles.Gaussian(zero, covar)), bound)
