"""
The dense joint strategy with private functions marginalized is the exact linear model of coregionalization, as it is
with one matrix over all observed entries, for any pattern of missing entries and wherever the inputs are.

Errors are at most 1e-8 in float64, unless a test says why not.
"""

from __future__ import annotations

import helpers
import oracles
import pytest
import torch
from gpytorch.means import ConstantMean, ZeroMean

from gpytorch_sgpvae import (
    GPVAE,
    Context,
    DecoderLikelihood,
    GaussianObservations,
    GaussianSites,
    GroupedKernel,
    JointFactorNet,
    PrivateLinear,
    TaskELBO,
    condition,
    point_covariances,
)
from gpytorch_sgpvae.linalg.entry_posterior import EntryPosterior
from gpytorch_sgpvae.linalg.private_functions import PrivatePosterior, SharedPosteriorFunction
from gpytorch_sgpvae.variational import dense_joint_amortized_variational_strategy as module

TOLERANCE = {"rtol": 0, "atol": 1e-8}
FORMS = {"marginalized": (True, PrivatePosterior), "all entries": (False, EntryPosterior)}


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def form(request, monkeypatch):
    take(request.param[0], monkeypatch)
    return request.param[1]


def take(marginalized, monkeypatch):
    monkeypatch.setattr(module, "_is_cheaper", lambda sites, num_entries: marginalized)


def make(num_outputs=3, num_shared=2, num_private=2, kernel=helpers.rbf, mean=None):
    """A model with private functions, all at random, and its likelihood."""
    decoder = PrivateLinear(num_shared, num_outputs, num_private)
    likelihood = DecoderLikelihood(decoder, GaussianObservations(num_outputs)).double()
    network = JointFactorNet(num_outputs, decoder.in_features, (4,), torch.nn.Tanh).double()
    helpers.perturb(likelihood)
    network.tie(likelihood)
    return helpers.JointModel(network, None, kernel, **({} if mean is None else {"mean": mean})), likelihood


def grouped(batch_shape):
    (K,) = batch_shape
    kernels = [helpers.KERNELS["matern12"](torch.Size([1])), helpers.rbf(torch.Size([K - 1]))]
    return GroupedKernel(kernels, [1, K - 1])


PATTERNS = {
    "random": lambda y: torch.where(torch.rand_like(y) < 0.4, torch.nan, y),
    "nothing missing": lambda y: y,
    "rows": lambda y: torch.where((torch.arange(y.shape[-2]) % 3 == 0).unsqueeze(-1), torch.nan, y),
    "an output": lambda y: torch.where(torch.arange(y.shape[-1]) == 0, torch.nan, y),
    "everything": lambda y: torch.full_like(y, torch.nan),
}


def make_tasks(layout, pattern, num_outputs):
    """Tasks (x, y) one by one, and as a context."""
    sizes = {"one": [7], "ragged": [7, 4, 1]}.get(layout, [7, 7])
    tasks = [helpers.make_data(num_points=n, num_outputs=num_outputs, missing=0) for n in sizes]
    tasks = [(x, pattern(y) if i == 0 else torch.where(y > 1, torch.nan, y)) for i, (x, y) in enumerate(tasks)]
    if layout == "ties":  # the same input three times makes all covariances singular
        for x, _ in tasks:
            x[1:3] = x[0]
    if layout == "one":
        return tasks, Context(*tasks[0])
    if layout == "shared":
        tasks = [(tasks[0][0], y) for _, y in tasks]
        return tasks, Context(tasks[0][0], torch.stack([y for _, y in tasks]))
    return tasks, Context.pad(tasks)


def exact(model, likelihood, x, y, x_new):
    """The posterior of vec(f*), its outputs' mean and variance (N* x P each), and the evidence, by the judges."""
    K, N = model.strategy.num_latents, len(x)
    both = torch.cat([x, x_new])
    prior = model.forward(both.expand(K, *both.shape))
    mean, covar = prior.mean, prior.lazy_covariance_matrix.to_dense()
    decoder, noise = likelihood.decoder, likelihood.observation_model.noise
    posterior, evidence = oracles.coregionalization(
        covar[:, :N, :N], covar[:, N:, :N], covar[:, N:, N:], mean[:, :N], mean[:, N:], decoder.weight, noise,
        y - decoder.bias,
    )  # fmt: skip
    sums = oracles.observed_sums(decoder.weight, torch.ones(len(x_new), len(noise), dtype=torch.bool))
    variance = (sums @ posterior.covariance @ sums.T).diagonal().view(len(x_new), -1)
    return posterior, (sums @ posterior.mean).view(len(x_new), -1) + decoder.bias, variance, evidence


@pytest.mark.filterwarnings("ignore:Negative variance")
@helpers.pairwise_cases(
    "form, pattern, sizes, layout, kernel, mean",
    FORMS,
    PATTERNS,
    {"P=3,L=2,I=2": (3, 2, 2), "P=2,L=3,I=1": (2, 3, 1), "P=1,L=1,I=1": (1, 1, 1)},
    ["ragged", "one", "own", "shared", "ties"],
    {"rbf": helpers.rbf, "grouped": grouped, "matern12": helpers.KERNELS["matern12"]},
    {"constant_mean": lambda batch: ConstantMean(batch_shape=batch), "zero_mean": lambda batch: ZeroMean()},
)
def test_it_is_the_exact_linear_model(form, pattern, sizes, layout, kernel, mean, monkeypatch):
    marginalized, posterior_class = form
    take(marginalized, monkeypatch)
    model, likelihood = make(*sizes, kernel, mean)
    tasks, context = make_tasks(layout, pattern, sizes[0])
    # one of them beside the data, one far away
    x_new = torch.tensor([[1.0, 1.0], [2.0, 0.5], [1e3, -1e3]]).double()
    # GPyTorch's distance of equal points is up to 1e-8, as rounding has it, and another one in the judge's matrix
    tolerance = {"rtol": 0, "atol": 1e-5} if layout == "ties" else TOLERANCE
    with torch.no_grad():
        elbos = TaskELBO(likelihood, model)(model(context.x, context=context), context.y).reshape(-1)
        q_f = condition(model.eval(), context)(x_new)
        own = likelihood.value_marginals(model(context.x, context=context))
        assert type(condition(model, context).encoding.posterior) is posterior_class
        moments = likelihood.value_marginals(q_f)
        for t, (x, y) in enumerate(tasks):
            posterior, value, variance, evidence = exact(model, likelihood, x, y, x_new)
            torch.testing.assert_close(elbos[t], evidence, **tolerance)
            expected = (value, variance, posterior.mean.view(3, -1), posterior.covariance)
            for actual, wanted in zip((*moments, q_f.mean, q_f.covariance_matrix), expected, strict=True):
                torch.testing.assert_close(actual.reshape(-1, *wanted.shape)[t], wanted, **tolerance)
            at_data = exact(model, likelihood, x, y, x)[1:3]
            for actual, wanted in zip(own, at_data, strict=True):
                actual = actual.reshape(-1, context.num_points, sizes[0])[t, : len(x)]
                # here all points have equals in the judge's matrix
                torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-5)


def test_both_forms_have_the_same_gradients(monkeypatch):
    """Gradients of the bound and of the outputs at new inputs, by all parameters and the data."""
    model, likelihood = make(4, 3, 2, grouped)
    x, y = helpers.make_data(3, num_points=8, num_outputs=4)
    y[0] = torch.nan
    x, x_new = x.requires_grad_(), (3 * torch.rand(3, 5, 2).double()).requires_grad_()
    results = []
    for marginalized in (True, False):
        take(marginalized, monkeypatch)
        elbo = TaskELBO(likelihood, model)(model(x, context=(x, y)), y).sum()
        outputs = likelihood.gaussian_marginals(model(x_new, context=(x, y)))
        leaves = [*model.parameters(), *likelihood.parameters(), x]
        results.append(
            [
                *torch.autograd.grad(elbo, leaves, allow_unused=True),
                *torch.autograd.grad((outputs.mean * outputs.stddev).sum(), [*leaves, x_new], allow_unused=True),
            ]
        )
    for quick, slow in zip(*results, strict=True):
        torch.testing.assert_close(quick, slow, **TOLERANCE)


def test_every_gradient_of_the_bound_passes_gradcheck(monkeypatch):
    take(True, monkeypatch)
    model, likelihood = make(2, 1, 1)
    helpers.check_gradients_of_elbo(model, likelihood)


def test_gradients_of_gradients_pass_gradgradcheck():
    root = torch.randn(2, 3, 3).double()
    H_root, b = torch.randn(6, 6).double(), torch.randn(6).double()

    def function(root, H_root, b):
        S, m, log_det = SharedPosteriorFunction.apply(root @ root.mT, H_root @ H_root.mT, b)
        return S, m, log_det

    arguments = tuple(tensor.requires_grad_() for tensor in (root, H_root, b))
    assert torch.autograd.gradcheck(function, arguments)
    assert torch.autograd.gradgradcheck(function, arguments, fast_mode=True)


def test_precisions_of_any_size_are_legal(form):
    """Some are 0, and some so large that an entry is known exactly; float32 data are as good as their rounding."""
    model, likelihood = make(3, 2, 1)
    x, y = helpers.make_data(num_points=6)
    x[1] = x[0]
    precision = torch.tensor([0.0, 1e-14, 1e-3, 1.0, 1e6, 1e10]).double().expand(3, 6)
    sites = GaussianSites(
        precision * torch.randn(3, 6).double(), precision, likelihood.decoder.weight, likelihood.decoder.owners
    )
    model.eval()
    encoding = model.strategy.encode((x, y), sites)
    q_f = model(x, context=encoding)
    mean, variance = likelihood.value_marginals(q_f)
    W = likelihood.decoder.weight
    blocks = W @ point_covariances(q_f) @ W.mT
    assert type(encoding.posterior) is form
    assert mean.isfinite().all()
    loss = variance.sum() + encoding.posterior.kl_divergence
    assert torch.autograd.grad(loss, likelihood.decoder.shared)[0].isfinite().all()
    torch.testing.assert_close(variance, blocks.diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-5)
    assert (variance[5].abs() < 1e-8).all()


@pytest.mark.parametrize("num_shared", [0, 5])
def test_all_functions_may_be_private_or_shared(num_shared, monkeypatch):
    """If none is shared there are as many separate regressions as outputs."""
    weight = torch.randn(3, num_shared).double() if num_shared else torch.eye(3).double()
    owners = tuple(range(3)) if not num_shared else (-1,) * 5
    precision = torch.rand(2, 3, 6).double() * (torch.rand(2, 3, 6) < 0.7)
    sites = GaussianSites(precision * torch.randn(2, 3, 6).double(), precision, weight, owners)
    K = weight.shape[-1]
    model = helpers.JointModel(helpers.GivenSites(sites, K))
    context = helpers.make_data(2, num_points=6)
    results = []
    for marginalized in (True, False):
        take(marginalized, monkeypatch)
        q_f = model(context[0], context=context)
        results.append((q_f.mean, point_covariances(q_f), model.variational_strategy.kl_divergence()))
    torch.testing.assert_close(*results, **TOLERANCE)


@pytest.mark.parametrize("tasks", [(), (2,)])
def test_saved_updated_and_detached_posteriors_are_the_same(tasks, form):
    model, likelihood = make(3, 2, 1)
    x, y = helpers.make_data(*tasks, num_points=9)
    x_new = torch.rand(4, 2).double()
    model.eval()
    whole = condition(model, (x, y))
    expected = likelihood.value_marginals(whole(x_new))
    saved = model.strategy.encoding_from_state_dict(whole.encoding.state_dict())
    first = condition(model, (x[..., :5, :], y[..., :5, :]))
    updated = first.update((x[..., 5:, :], y[..., 5:, :]))
    for encoding in (saved, (updated or first).encoding, whole.encoding.detach()):
        assert type(encoding.posterior) is form
        q_f = model(x_new, context=encoding)
        for actual, wanted in zip(likelihood.value_marginals(q_f), expected, strict=True):
            torch.testing.assert_close(actual, wanted, **TOLERANCE)


def test_draws_have_the_mean_and_the_covariance_of_q(form):
    model, _ = make(2, 1, 1)
    posterior = condition(model.eval(), helpers.make_data(num_points=6, num_outputs=2))
    x_new = torch.rand(2, 2).double()
    with torch.no_grad():
        draws = posterior.sample(x_new, 40_000).flatten(-2)
        q_f = model(x_new, context=posterior.encoding)
    assert isinstance(posterior.encoding.posterior, form)
    scale = q_f.stddev.flatten()
    assert ((draws.mean(0) - q_f.mean.flatten()).abs() < 5 * scale / 200).all()
    assert ((draws.T.cov() - q_f.covariance_matrix).abs() < 6 / 200 * scale.unsqueeze(-1) * scale).all()


class TestCost:
    """Many outputs with private functions, a linear decoder and Gaussian noise."""

    J, L, N = 40, 2, 6

    def step(self, x_new=None):
        model, likelihood = make(self.J, self.L, 2, helpers.KERNELS["matern12"])
        x, y = helpers.make_data(2, num_points=self.N, num_outputs=self.J)
        context = Context(x, y)

        def run():
            TaskELBO(likelihood, model)(model(context.x, context=context), context.y).sum().backward()
            q_f = model.eval()(x if x_new is None else x_new, context=context)
            likelihood.gaussian_marginals(q_f).stddev.sum().backward()

        return run

    @pytest.mark.parametrize("new_inputs", [False, True])
    def test_no_array_over_all_entries_in_a_step_or_in_a_prediction_of_outputs(self, new_inputs):
        x_new = torch.rand(2, 5, 2).double() if new_inputs else None
        K, N = self.L + 2 * self.J, self.N
        run = self.step(x_new)
        with helpers.largest_allocation() as allocation:
            run()
        # each task's prior covariances of all functions, at all inputs of all tasks together
        assert allocation.numel <= K * (2 * (N + 5)) ** 2
        assert allocation.numel < (0.5 * self.J * N) ** 2

    def test_a_matrix_for_each_output_and_one_of_what_they_share_are_factorized(self):
        run = self.step()
        with helpers.cholesky_calls() as shapes:
            run()
        size = self.L * self.N
        assert sorted(shapes) == sorted(2 * [(2, self.J, self.N, self.N), (2, size, size)])

    @pytest.mark.parametrize(
        ("num_observed", "expected"), [(1, EntryPosterior), (6, PrivatePosterior)], ids=["one output seen", "all seen"]
    )
    def test_the_cheaper_form_is_taken_for_what_is_observed(self, num_observed, expected):
        model, _ = make(6, 1, 1)
        x, y = helpers.make_data(num_points=8, num_outputs=6, missing=0)
        y[:, num_observed:] = torch.nan
        assert type(condition(model, (x, y)).encoding.posterior) is expected

    def test_the_warning_is_about_the_matrix_that_is_factorized(self, monkeypatch, recwarn):
        monkeypatch.setattr(module.DenseJointAmortizedVariationalStrategy, "max_entries", 20)
        model, _ = make(6, 1, 1)
        condition(model, helpers.make_data(num_points=8, num_outputs=6))
        assert not recwarn.list


def test_a_ready_made_model_marginalizes_its_private_functions():
    gpvae = GPVAE(8, 2, network="jointfactornet", num_private=2)
    context = (torch.rand(6, 1), torch.randn(6, 8))
    assert type(gpvae.condition(context).encoding.posterior) is PrivatePosterior
