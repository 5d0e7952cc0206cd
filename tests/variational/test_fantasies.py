"""`get_fantasy_model`: copies of a model that have seen more, for any likelihood and in any wrapper."""

from __future__ import annotations

import pickle

import gpytorch
import helpers
import pytest
import torch
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    BetaLikelihood,
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    LaplaceLikelihood,
    MultitaskGaussianLikelihood,
    SoftmaxLikelihood,
    StudentTLikelihood,
)
from gpytorch.variational import LMCVariationalStrategy

from gpytorch_sgpvae import (
    GPVAE,
    MLP,
    SGPVAE,
    BernoulliObservations,
    DecoderLikelihood,
    FactorNet,
    MarkovGPVAE,
    NegativeBinomialObservations,
    PoissonObservations,
    StudentTObservations,
    condition,
    persist_context,
)

REAL, FLAGS, COUNTS = (
    torch.rand,
    lambda *shape: torch.randint(2, shape).float(),
    lambda *shape: torch.randint(4, shape).float(),
)
# how many outputs and latent functions
LIKELIHOODS = {
    "Gaussian": (1, None, GaussianLikelihood, REAL),
    "FixedNoiseGaussian": (1, None, lambda: FixedNoiseGaussianLikelihood(torch.full((12,), 0.1)), REAL),
    "Bernoulli": (1, None, BernoulliLikelihood, FLAGS),
    "StudentT": (1, None, StudentTLikelihood, REAL),
    "Laplace": (1, None, LaplaceLikelihood, REAL),
    "Beta": (1, None, BetaLikelihood, REAL),
    "Softmax": (1, 3, lambda: SoftmaxLikelihood(num_features=3, num_classes=4), COUNTS),
    "MultitaskGaussian": (2, 2, lambda: MultitaskGaussianLikelihood(num_tasks=2), REAL),
    **{
        f"Decoder{family.__name__}": (2, 2, lambda f=family: DecoderLikelihood(MLP(2, 2, (4,)), f(2)), outputs)
        for family, outputs in (
            (BernoulliObservations, FLAGS),
            (PoissonObservations, COUNTS),
            (NegativeBinomialObservations, COUNTS),
            (StudentTObservations, REAL),
        )
    },
}


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_any_likelihood(kind):
    num_outputs, num_latents, make_likelihood, outputs = LIKELIHOODS[kind]
    model = helpers.Model(torch.rand(5, 2), FactorNet(num_outputs, num_latents, (4,))).eval()
    model.likelihood = make_likelihood().eval()
    x, y = torch.rand(12, 2), outputs(12, num_outputs)
    persist_context(model, (x[:7], y[:7]))
    fantasy = model.get_fantasy_model(x[7:], y[7:])
    torch.testing.assert_close(fantasy(x).mean, condition(model, (x, y))(x).mean, rtol=1e-4, atol=1e-5)
    assert type(fantasy.likelihood) is type(model.likelihood)
    assert isinstance(fantasy.likelihood(fantasy(x)), torch.distributions.Distribution)
    # the model itself has seen no more than before
    torch.testing.assert_close(model(x).mean, condition(model, (x[:7], y[:7]))(x).mean)


@pytest.mark.parametrize("wrapper", ["IndependentMultitask", "LMC"])
@pytest.mark.parametrize("tasks", [(), (3,)])
def test_in_gpytorchs_wrappers(wrapper, tasks):
    model = helpers.make_model(3, 2)
    if wrapper == "LMC":
        model.variational_strategy = LMCVariationalStrategy(model.strategy, num_tasks=3, num_latents=2).double()
    x, y = helpers.make_data(*tasks)
    persist_context(model.eval(), (x[..., :7, :], y[..., :7, :]))
    fantasy = model.get_fantasy_model(x[..., 7:, :], y[..., 7:, :])
    again = fantasy.get_fantasy_model(x[..., :0, :], y[..., :0, :])
    everything = condition(model, (x, y))(x)
    for twin in (fantasy, again, pickle.loads(pickle.dumps(fantasy)), pickle.loads(pickle.dumps(model))):
        wrapped = twin.variational_strategy
        # a copy's wrapper asks the strategy within it, not that of the model it was copied of
        assert wrapped.get_fantasy_model.__self__ is wrapped.base_variational_strategy is not model.strategy
    for twin in (fantasy, again):
        torch.testing.assert_close(twin(x).mean, everything.mean)
        torch.testing.assert_close(twin(x).variance, everything.variance)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGPVAE(3, 2, torch.rand(5, 1)),
        lambda: SGPVAE(3, 2, torch.rand(5, 1), network="jointfactornet"),
        lambda: GPVAE(3, 2),
        lambda: GPVAE(3, 2, network="jointfactornet"),
        lambda: MarkovGPVAE(3, 2),
    ],
    ids=["SGPVAE", "SGPVAE-joint", "GPVAE", "GPVAE-joint", "MarkovGPVAE"],
)
def test_many_fantasies_of_the_same_task(make):
    model = make().double().eval()
    x, y = torch.rand(6, 1).double(), torch.randn(6, 3).double()
    y[2, 1] = torch.nan
    new, more = torch.rand(4, 2, 1).double(), torch.randn(4, 2, 3).double()
    persist_context(model.model, (x, y))
    fantasies = model.model.get_fantasy_model(new, more)(x)
    assert fantasies.mean.shape == (4, 6, 2)
    for i in range(4):
        alone = model.model.get_fantasy_model(new[i], more[i])(x)
        torch.testing.assert_close(fantasies.mean[i], alone.mean)
        torch.testing.assert_close(fantasies.variance[i], alone.variance)


def test_of_a_single_output_without_a_dimension():
    model = helpers.make_model(1, None).eval()
    x, y = torch.rand(6, 2).double(), torch.randn(6).double()
    persist_context(model, (x, y))
    fantasies = model.get_fantasy_model(torch.rand(4, 2, 2).double(), torch.randn(4, 2).double())
    assert fantasies(x).mean.shape == (4, 6)


def test_no_other_mean_or_kernel():
    model = helpers.make_model(1, None).eval()
    x, y = torch.rand(6, 2).double(), torch.randn(6).double()
    persist_context(model, (x, y))
    with pytest.raises(TypeError, match="mean and the kernel of the model"):
        model.get_fantasy_model(x, y, mean_module=gpytorch.means.ZeroMean())
