"""Amortized models as BoTorch's, against BoTorch's own exact GP and against what counts and flags are."""

from __future__ import annotations

import copy

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BetaLikelihood, SoftmaxLikelihood

pytest.importorskip("botorch")

from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.active_learning import qNegIntegratedPosteriorVariance
from botorch.acquisition.max_value_entropy_search import qLowerBoundMaxValueEntropy
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.acquisition.objective import GenericMCObjective, ScalarizedPosteriorTransform
from botorch.acquisition.risk_measures import CVaR
from botorch.generation import MaxPosteriorSampling
from botorch.models import SingleTaskGP
from botorch.models.model import ModelList
from botorch.models.transforms import Normalize, Standardize
from botorch.models.transforms.input import InputPerturbation
from botorch.optim import optimize_acqf
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from helpers import Model

from gpytorch_sgpvae import (
    GPVAE,
    SGPVAE,
    BernoulliObservations,
    Context,
    FactorNet,
    GaussianObservations,
    HeteroscedasticGaussianObservations,
    MarkovGPVAE,
    MixedObservations,
    ObservationModel,
    PoissonObservations,
)
from gpytorch_sgpvae.botorch import AmortizedSurrogate, OutputPosterior
from gpytorch_sgpvae.botorch.conditionals import Conditional

SIZES = [(3,), (1,), (5, 3), (1, 3), (4, 5, 3), (1, 1), (2, 3)]


@pytest.fixture(autouse=True)
def _float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def rbf(batch_shape=(), outputscale=1.7, lengthscale=0.3):
    batch_shape = torch.Size(batch_shape)
    kernel = ScaleKernel(RBFKernel(batch_shape=batch_shape), batch_shape=batch_shape)
    kernel.outputscale = torch.as_tensor(outputscale).expand(batch_shape)
    kernel.base_kernel.lengthscale = torch.as_tensor(lengthscale).expand(*batch_shape, 1, 1)
    return kernel


def linear(num_latents, num_outputs, bias=0.0):
    decoder = torch.nn.Linear(num_latents, num_outputs)
    with torch.no_grad():
        decoder.weight.copy_(torch.eye(num_outputs, num_latents))
        decoder.bias.fill_(bias)
    return decoder


def exact(num_outputs=1, noise=0.05, bias=0.0):
    """A GP-VAE that is as many exact GPs as there are outputs."""
    batch = () if num_outputs == 1 else (num_outputs,)
    kernel = rbf(batch, lengthscale=torch.linspace(0.3, 0.5, num_outputs).view(*batch, 1, 1))
    model = GPVAE(
        num_outputs,
        num_outputs,
        network="jointfactornet",
        kernel=kernel,
        decoder=linear(num_outputs, num_outputs, bias),
    )
    model.likelihood.observation_model.noise = torch.full((num_outputs,), noise)
    return model


def single_task_gp(model, X, Y, bias=0.0, **transforms):
    """BoTorch's exact GP with the kernel and the noise of an :func:`exact` model."""
    ours = model.model.covar_module
    gp = SingleTaskGP(
        X,
        Y,
        covar_module=rbf(ours.batch_shape),
        likelihood=gpytorch.likelihoods.GaussianLikelihood(batch_shape=ours.batch_shape),
        **{"outcome_transform": None, **transforms},
    )
    gp.covar_module.load_state_dict(ours.state_dict())
    gp.likelihood.noise = model.likelihood.observation_model.noise.detach().view(*ours.batch_shape, 1)
    gp.mean_module.constant.data.fill_(bias)
    return gp


def assert_equal(ours, theirs, X, atol=1e-8, **kwargs):
    a, b = ours.posterior(X, **kwargs), theirs.posterior(X, **kwargs)
    assert isinstance(a, GPyTorchPosterior)
    torch.testing.assert_close(a.mean, b.mean, atol=atol, rtol=0)
    torch.testing.assert_close(a.variance, b.variance, atol=atol, rtol=0)
    covariances = [part.distribution.covariance_matrix for part in (a, b)]
    if a.mean.shape[-1] > 1 and not b.distribution._interleaved:
        N, P = b.distribution.event_shape
        covariances[1] = covariances[1].unflatten(-1, (P, N)).mT.flatten(-2)
        covariances[1] = covariances[1].mT.unflatten(-1, (P, N)).mT.flatten(-2).mT
    torch.testing.assert_close(*covariances, atol=atol, rtol=0)


# --- the exact limit


@pytest.fixture
def data():
    return torch.rand(6, 2), torch.randn(6, 1)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("noise", [False, True])
def test_the_posterior_is_that_of_the_exact_gp(data, size, noise):
    model = exact(bias=0.4)
    X = torch.rand(*size, 2)
    assert_equal(AmortizedSurrogate(model, data), single_task_gp(model, *data, bias=0.4), X, observation_noise=noise)


@pytest.mark.parametrize("size", [(3,), (2, 3), (4, 2, 3)], ids=str)
def test_several_outputs_are_those_of_as_many_exact_gps_also_where_a_batch_has_their_number(size):
    model, X, Y = exact(num_outputs=2), torch.rand(6, 2), torch.randn(6, 2)
    ours, theirs, points = AmortizedSurrogate(model, (X, Y)), single_task_gp(model, X, Y), torch.rand(*size, 2)
    assert_equal(ours, theirs, points)
    assert_equal(ours, theirs, points, observation_noise=True)
    assert_equal(ours, theirs, points, posterior_transform=ScalarizedPosteriorTransform(torch.tensor([0.3, -2.0])))
    torch.testing.assert_close(
        ours.subset_output([1]).posterior(points).variance,
        theirs.posterior(points).variance[..., 1:],
        atol=1e-8,
        rtol=0,
    )
    torch.testing.assert_close(
        ours.posterior(points, output_indices=[1, 0]).mean, theirs.posterior(points).mean.flip(-1), atol=1e-8, rtol=0
    )


def test_conditioning_and_fantasies_are_those_of_the_exact_gp(data):
    model = exact()
    ours, theirs = AmortizedSurrogate(model, data), single_task_gp(model, *data)
    theirs.posterior(torch.rand(1, 2))  # fills the caches that it conditions with
    X, Y = torch.rand(2, 2), torch.randn(2, 1)
    assert_equal(ours.condition_on_observations(X, Y), theirs.condition_on_observations(X, Y), torch.rand(5, 3, 2))
    sampler = SobolQMCNormalSampler(torch.Size([4]), seed=1)
    X = torch.rand(5, 2, 2)
    ours, theirs = ours.fantasize(X, sampler), theirs.fantasize(X, sampler)
    assert ours.batch_shape == theirs.batch_shape == (4, 5)
    for size in [(3,), (5, 3), (1, 3), (4, 5, 3)]:
        assert_equal(ours, theirs, torch.rand(*size, 2))


def test_the_knowledge_gradient_and_its_gradients_are_those_of_the_exact_gp(data):
    model = exact()
    values, gradients = [], []
    for surrogate in (AmortizedSurrogate(model, data), single_task_gp(model, *data)):
        X = torch.linspace(0.1, 9, 2 * 6 * 2).view(2, 6, 2).sin().abs().requires_grad_()
        acquisition = qKnowledgeGradient(surrogate, 4, SobolQMCNormalSampler(torch.Size([4]), seed=1))
        values.append(acquisition(X))
        gradients.append(torch.autograd.grad(values[-1].sum(), X)[0])
    torch.testing.assert_close(*values, atol=1e-8, rtol=0)
    torch.testing.assert_close(*gradients, atol=1e-8, rtol=0)


def test_transforms_learn_from_the_context_as_in_the_exact_gp_and_stay_as_they_are_in_eval_mode():
    X, Y = 10 + 5 * torch.rand(6, 2), 3 + 20 * torch.randn(6, 1)
    model = exact()

    def transforms():
        return {"input_transform": Normalize(2), "outcome_transform": Standardize(1)}

    ours, theirs = AmortizedSurrogate(model, (X, Y), **transforms()), single_task_gp(model, X, Y, **transforms())
    theirs.posterior(X)
    assert_equal(ours, theirs, 10 + 5 * torch.rand(4, 3, 2), atol=1e-7, observation_noise=True)
    new = 10 + 5 * torch.rand(2, 2), 3 + 20 * torch.randn(2, 1)
    assert_equal(ours.condition_on_observations(*new), theirs.condition_on_observations(*new), X, atol=1e-6)
    learnt = ours.outcome_transform
    again = AmortizedSurrogate(model, (X[:3], Y[:3]), outcome_transform=learnt)
    assert again.outcome_transform.means == Y.mean()


def test_perturbed_inputs_are_for_predictions_and_not_for_data(data):
    model, perturbations = exact(), torch.tensor([[0.0, 0.0], [0.1, -0.2], [0.3, 0.0]])
    plain = AmortizedSurrogate(model, data)
    perturbed = AmortizedSurrogate(model, data, input_transform=InputPerturbation(perturbations))
    X = torch.rand(2, 2)
    expected = plain.posterior((X.unsqueeze(1) + perturbations).flatten(0, 1))
    torch.testing.assert_close(perturbed.posterior(X).mean, expected.mean)
    torch.testing.assert_close(perturbed.posterior(X).variance, expected.variance)
    acquisition = qLogExpectedImprovement(perturbed, best_f=0.0, objective=CVaR(alpha=0.5, n_w=3))
    assert acquisition(torch.rand(5, 1, 2)).isfinite().all()


# --- what amortized models add


def test_without_data_it_is_the_prior_and_with_data_of_a_batch_of_tasks_one_posterior_each():
    model = exact()
    prior = AmortizedSurrogate(model).posterior(torch.rand(3, 2))
    torch.testing.assert_close(prior.variance, torch.full((3, 1), 1.7))
    X, Y, points = torch.rand(4, 6, 2), torch.randn(4, 6, 1), torch.rand(3, 2)
    surrogate = AmortizedSurrogate(model, Context(X, Y))
    assert surrogate.batch_shape == (4,)
    for i in range(4):
        alone = AmortizedSurrogate(model, (X[i], Y[i, :, 0]))  # one output may come without its dimension
        torch.testing.assert_close(surrogate.posterior(points).mean[i], alone.posterior(points).mean)


def test_a_missing_output_of_an_evaluation_is_the_evaluation_without_it():
    model, X, Y = exact(num_outputs=2), torch.rand(6, 2), torch.randn(6, 2)
    first = AmortizedSurrogate(model, (X, Y))
    X, Y = torch.rand(2, 2), torch.stack([torch.full((2,), torch.nan), torch.randn(2)], -1)
    points = torch.rand(5, 2)
    both, second = first.condition_on_observations(X, Y), first.subset_output([1])
    torch.testing.assert_close(both.posterior(points).mean[:, 0], first.posterior(points).mean[:, 0])
    torch.testing.assert_close(
        second.condition_on_observations(X, Y[:, 1:]).posterior(points).mean[:, 0], both.posterior(points).mean[:, 1]
    )


def network_with_own_likelihood(likelihood, num_outputs=1):
    return Model(torch.rand(5, 2), FactorNet(num_outputs, None)).double(), likelihood


def counts(n, p=1):
    return torch.poisson(3 * torch.rand(n, p))


def flags(n):
    return (torch.rand(n, 1) < 0.5).double()


CASES = {
    "gaussian": lambda: (GPVAE(1, 3, network="jointfactornet"), torch.randn(8, 1)),
    "gaussian_perceptron_sparse": lambda: (SGPVAE(1, 2, torch.rand(5, 2)), torch.randn(8, 1)),
    "heteroscedastic": lambda: (
        GPVAE(1, 2, observation_model=HeteroscedasticGaussianObservations(1)),
        torch.randn(8, 1),
    ),
    "counts": lambda: (
        GPVAE(1, 1, network="jointfactornet", decoder=linear(1, 1), observation_model=PoissonObservations(1)),
        counts(8),
    ),
    "counts_perceptron_sparse": lambda: (
        SGPVAE(1, 2, torch.rand(5, 2), observation_model=PoissonObservations(1)),
        counts(8),
    ),
    "flags": lambda: (
        GPVAE(1, 2, network="jointfactornet", decoder=linear(2, 1), observation_model=BernoulliObservations(1)),
        flags(8),
    ),
    "mixed": lambda: (
        GPVAE(
            3,
            2,
            network="jointfactornet",
            observation_model=MixedObservations(
                [GaussianObservations(1), PoissonObservations(1), BernoulliObservations(1)]
            ),
        ),
        torch.cat([torch.randn(8, 1), counts(8), flags(8)], -1),
    ),
    "own_gaussian": lambda: (
        *network_with_own_likelihood(gpytorch.likelihoods.GaussianLikelihood()),
        torch.randn(8, 1),
    ),
    "own_flags": lambda: (*network_with_own_likelihood(gpytorch.likelihoods.BernoulliLikelihood()), flags(8)),
    "own_heavy_tails": lambda: (
        *network_with_own_likelihood(gpytorch.likelihoods.StudentTLikelihood()),
        torch.randn(8, 1),
    ),
}


def make(case, **kwargs):
    model, *likelihood, Y = CASES[case]()
    return AmortizedSurrogate(model.double(), (torch.rand(8, 2), Y), *likelihood, **kwargs)


@pytest.fixture(params=CASES)
def surrogate(request):
    return make(request.param, num_samples=128)


def acquisitions(surrogate, names):
    Y = surrogate.context.filled
    scalarize = None if surrogate.num_outputs == 1 else ScalarizedPosteriorTransform(torch.ones(Y.shape[-1]))
    sampler = SobolQMCNormalSampler(torch.Size([4]), seed=0)
    functions = {
        "LogEI": lambda **kwargs: LogExpectedImprovement(surrogate, best_f=Y.sum(-1).max(), **kwargs),
        "qLogNEI": lambda **kwargs: qLogNoisyExpectedImprovement(
            surrogate, surrogate.context.x, sampler, cache_root=False, **kwargs
        ),
        "qKG": lambda **kwargs: qKnowledgeGradient(surrogate, 4, sampler, **kwargs),
        "qNIPV": lambda **kwargs: qNegIntegratedPosteriorVariance(surrogate, torch.rand(8, 2), **kwargs),
    }
    return {name: functions[name](posterior_transform=scalarize) for name in names}


@pytest.mark.parametrize("case", ["gaussian", "counts", "flags"])
@pytest.mark.parametrize("name", ["LogEI", "qLogNEI", "qKG", "qNIPV"])
def test_every_acquisition_function_can_be_optimized(case, name):
    surrogate = make(case)
    bounds, q = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), 1 if name == "LogEI" else 2
    (acquisition,) = acquisitions(surrogate, [name]).values()
    candidates, value = optimize_acqf(acquisition, bounds, q, num_restarts=1, raw_samples=2, options={"maxiter": 2})
    assert candidates.shape == (q, 2)
    assert candidates.isfinite().all()
    assert value.isfinite()


def test_several_surrogates_of_other_kinds_are_one_model():
    amounts, successes = make("counts"), make("flags")
    model = ModelList(amounts, successes)
    bounds, X = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), amounts.context.x
    improvement = qLogExpectedImprovement(
        model,
        best_f=amounts.context.filled.max(),
        objective=GenericMCObjective(lambda Y, X=None: Y[..., 0]),
        constraints=[lambda Y: 0.5 - Y[..., 1]],  # at least every second time
    )
    hypervolume = qLogNoisyExpectedHypervolumeImprovement(model, torch.zeros(2), X, prune_baseline=True)
    for acquisition in (improvement, hypervolume):
        candidates, value = optimize_acqf(acquisition, bounds, 2, num_restarts=1, raw_samples=2, options={"maxiter": 2})
        assert candidates.shape == (2, 2)
        assert value.isfinite()


@pytest.mark.parametrize("case", ["gaussian", "counts", "flags"])
def test_further_ways_to_choose_a_point(case):
    surrogate, candidates = make(case), torch.rand(20, 2)
    assert MaxPosteriorSampling(surrogate)(candidates, num_samples=3).shape == (3, 2)
    for acquisition in (
        UpperConfidenceBound(surrogate, beta=2.0),
        PosteriorMean(surrogate),
        qLowerBoundMaxValueEntropy(surrogate, candidates),
        qMultiStepLookahead(surrogate, batch_sizes=[1], num_fantasies=[2]),
    ):
        q = getattr(acquisition, "get_augmented_q_batch_size", lambda q: q)(1)
        X = torch.rand(3, q, 2, requires_grad=True)
        (gradient,) = torch.autograd.grad(acquisition(X).sum(), X)
        assert gradient.isfinite().all()


def test_gradients_reach_the_points_of_every_kind_of_fantasy(surrogate):
    (acquisition,) = acquisitions(surrogate, ["qKG"]).values()
    X = torch.rand(3, 6, 2, requires_grad=True)  # two points, and the best ones of four fantasies
    (gradient,) = torch.autograd.grad(acquisition(X).sum(), X)
    assert gradient.isfinite().all()
    assert gradient[:, :2].any()
    assert gradient[:, 2:].any()


def test_its_moments_are_those_of_many_samples(surrogate):
    X = torch.rand(3, 2)
    posterior = surrogate.posterior(X)
    q_f = surrogate._conditioned(X)(X)
    functions = q_f.rsample(torch.Size([20_000]))
    functions = functions if len(q_f.event_shape) == 2 else functions.unsqueeze(-1)
    conditional = Conditional(surrogate.likelihood, functions, q_f)
    means = conditional.mean.detach()  # (S, q, P)
    scale = means.std(0)
    torch.testing.assert_close(posterior.mean / scale, means.mean(0) / scale, atol=0.05, rtol=0)
    torch.testing.assert_close(posterior.variance.sqrt() / scale, torch.ones_like(scale), atol=0.08, rtol=0)
    covariance = torch.cov(means.flatten(-2).mT)
    scale = scale.flatten()
    error = (posterior.distribution.covariance_matrix - covariance) / (scale.unsqueeze(-1) * scale)
    # correlations of 128 samples
    assert error.abs().max() < 0.25
    outputs = surrogate.posterior(X, observation_noise=True)
    variance = means.var(0) + conditional.variance.mean(0)
    torch.testing.assert_close(outputs.variance / variance, torch.ones_like(variance), atol=0.1, rtol=0)


def test_a_surrogate_can_be_copied_and_moved_to_another_dtype(surrogate):
    fantasy = surrogate.fantasize(torch.rand(2, 2, requires_grad=True), IIDNormalSampler(torch.Size([2])))
    X = torch.rand(3, 2)
    copied = copy.deepcopy(surrogate)
    torch.testing.assert_close(copied.posterior(X).mean, surrogate.posterior(X).mean)
    assert fantasy.posterior(X).mean.shape == (2, 3, surrogate.num_outputs)
    assert copied.float().posterior(X.float()).mean.dtype == torch.float32


# --- counts and flags


@pytest.mark.parametrize("case", ["counts", "flags", "own_flags"])
def test_outputs_and_fantasies_of_counts_and_flags_are_counts_and_flags(case):
    surrogate, X = make(case), torch.rand(5, 3, 2)
    posterior = surrogate.posterior(X, observation_noise=True)
    assert isinstance(posterior, OutputPosterior)
    samples = posterior.rsample(torch.Size([2000]))
    assert samples.shape == (2000, 5, 3, 1)
    assert (samples == samples.round()).all()
    assert (samples >= 0).all()
    assert case == "counts" or (samples <= 1).all()
    torch.testing.assert_close(samples.mean(0), posterior.mean, atol=0.2, rtol=0)
    fantasy = surrogate.fantasize(X, get_sampler(posterior, torch.Size([4])))
    fantasized = fantasy.context.filled[..., 8:, :]
    assert fantasized.shape == (4, 5, 3, 1)
    assert (fantasized == fantasized.round()).all()


@pytest.mark.parametrize(
    ("observation_model", "Y"),
    [(BernoulliObservations(1), flags), (PoissonObservations(1), counts)],
    ids=["flags", "counts"],
)
def test_the_gradient_of_fantasies_is_about_that_of_what_is_expected_of_them(observation_model, Y):
    kernel = rbf(outputscale=4.0, lengthscale=0.2)
    model = GPVAE(
        1, 1, network="jointfactornet", kernel=kernel, decoder=linear(1, 1, 0.5), observation_model=observation_model
    )
    surrogate = AmortizedSurrogate(model.double(), (torch.rand(4, 1), Y(4)))
    grid = torch.linspace(0, 1, 15).unsqueeze(-1)

    def value(X):
        fantasy = surrogate.fantasize(X, SobolQMCNormalSampler(torch.Size([1024]), seed=0))
        return fantasy.posterior(grid).mean.squeeze(-1).amax(-1).mean(0)

    X = torch.linspace(0.05, 0.95, 7).view(-1, 1, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(value(X).sum(), X)
    with torch.no_grad():
        difference = (value(X + 0.03) - value(X - 0.03)) / 0.06
    assert torch.cosine_similarity(gradient.flatten(), difference.flatten(), dim=0) > 0.95


def test_over_time_too():
    surrogate = AmortizedSurrogate(
        MarkovGPVAE(1, 2, observation_model=PoissonObservations(1)).double(), (torch.rand(8, 1), counts(8))
    )
    X = torch.rand(3, 5, 1, requires_grad=True)
    acquisition = acquisitions(surrogate, ["qKG"])["qKG"]
    assert torch.autograd.grad(acquisition(X).sum(), X)[0].isfinite().all()


# --- what goes wrong


class CauchyObservations(ObservationModel):
    def distribution(self, decoded):
        return torch.distributions.Cauchy(decoded, torch.ones_like(decoded))


def test_errors_say_what_came_and_what_to_do(data):
    surrogate = AmortizedSurrogate(exact(), data)
    with pytest.raises(ValueError, match=r"expected .*\(\*b, n, 1\), with NaN"):
        surrogate.condition_on_observations(torch.rand(2, 2), torch.rand(2, 3))
    with pytest.raises(NotImplementedError, match="pass no noise"):
        surrogate.condition_on_observations(torch.rand(2, 2), torch.rand(2, 1), noise=torch.ones(2, 1))
    with pytest.raises(ValueError, match="There are 1 outputs"):
        surrogate.posterior(torch.rand(2, 2), output_indices=[1])
    with pytest.raises(ValueError, match="is for Gaussian outputs"):
        make("counts", outcome_transform=Standardize(1))
    with pytest.raises(NotImplementedError, match="pass True for the likelihood's own"):
        make("counts").posterior(torch.rand(2, 2), observation_noise=torch.ones(1))
    heavy = GPVAE(1, 1, observation_model=CauchyObservations(1)).double()
    with pytest.raises(TypeError, match="no finite mean"):
        AmortizedSurrogate(heavy, data).posterior(torch.rand(2, 2))


def test_a_likelihood_without_numbers_as_outputs_or_without_quantiles_is_named(data):
    model = Model(torch.rand(5, 2), FactorNet(1, 3)).double()
    classes = AmortizedSurrogate(model, (data[0], torch.randint(4, (6, 1)).double()), SoftmaxLikelihood(3, 4).double())
    with pytest.raises(TypeError, match="Categorical has no finite mean"):
        classes.posterior(torch.rand(2, 2))
    model, likelihood = network_with_own_likelihood(BetaLikelihood().double())
    shares = AmortizedSurrogate(model, (data[0], torch.rand(6, 1)), likelihood)
    assert shares.posterior(torch.rand(2, 2)).mean.shape == (2, 1)
    with pytest.raises(NotImplementedError, match="Beta has no quantile function"):
        shares.posterior(torch.rand(2, 2), observation_noise=True).rsample()
