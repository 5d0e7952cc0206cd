"""
Theorems 10 and 11 about latent functions that are inferred together, judged by dense textbook code (`oracles.py`).

Errors are at most 1e-8 in float64, unless a test says why not.
"""

from __future__ import annotations

import gpytorch
import helpers
import oracles
import pytest
import torch
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from theorem_tools import assert_close, elbo_of

from gpytorch_sgpvae import (
    GPVAE,
    MLP,
    SGPVAE,
    Context,
    FactorNet,
    GroupedKernel,
    JointFactorNet,
    LinearPlus,
    TaskELBO,
    point_covariances,
    refine,
)
from gpytorch_sgpvae.mlp import linear_part


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
