"""What `JointFactorNet` promises, as every network does, and what it promises to a likelihood it is tied to."""

from __future__ import annotations

import copy
import pickle

import helpers
import pytest
import torch

from gpytorch_sgpvae import (
    GPVAE,
    MLP,
    SGPVAE,
    BernoulliObservations,
    CategoricalObservations,
    Context,
    DecoderLikelihood,
    GaussianObservations,
    HeteroscedasticGaussianObservations,
    JointFactorNet,
    LinearPlus,
    MixedObservations,
    NegativeBinomialObservations,
    PoissonObservations,
    StudentTObservations,
)


def make(tied, dtype=torch.float64):
    """A network whose corrections are not zero, and the likelihood that it may be tied to."""
    network, likelihood = helpers.make_tied(3, 2)
    if not tied:
        network = JointFactorNet(3, 2, (4,), torch.nn.Tanh)
    helpers.perturb(network)
    return network.to(dtype), likelihood.to(dtype)


def random_task(dtype, *shape):
    y, observed = torch.randn(*shape, dtype=dtype), torch.rand(*shape) < 0.6
    observed[..., 0, :] = False
    return y, observed


tied_or_not = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


@tied_or_not
class TestPromises:
    @pytest.mark.parametrize("tasks", [(), (4,), (2, 3)])
    def test_shapes_and_dtype(self, tied, tasks, dtype):
        network, _ = make(tied, dtype)
        sites = network(helpers.rows(*random_task(dtype, *tasks, 7, 3)))
        assert sites.shape == (*tasks, 3, 7)
        assert sites.loadings.shape == (3, 2)
        assert sites.precision.dtype == sites.precision_mean.dtype == sites.loadings.dtype == dtype

    @pytest.mark.parametrize("garbage", [0.0, 1e30, torch.nan, torch.inf])
    def test_missing_entries_influence_neither_values_nor_gradients(self, tied, garbage, dtype):
        network, likelihood = make(tied, dtype)
        y, observed = random_task(dtype, 4, 7, 3)
        parameters = [*network.parameters(), *(likelihood.parameters() if tied else ())]

        def run(y):
            y = y.clone().requires_grad_()
            sites = network(helpers.rows(y, observed))
            loss = sites.precision.sum() + sites.precision_mean.square().sum() + sites.loadings.square().sum()
            return sites, *torch.autograd.grad(loss, [y, *parameters])

        sites, *gradients = run(y)
        others, *other_gradients = run(torch.where(observed, y, garbage))
        assert torch.equal(sites.precision, others.precision)
        assert torch.equal(sites.precision_mean, others.precision_mean)
        assert all(torch.equal(*pair) for pair in zip(gradients, other_gradients, strict=True))
        assert (gradients[0][~observed] == 0).all()

    def test_a_missing_entry_has_precision_exactly_zero_and_an_observed_one_has_not(self, tied, dtype):
        network, _ = make(tied, dtype)
        y, observed = random_task(dtype, 4, 7, 3)
        sites = network(helpers.rows(y, observed))
        assert ((sites.precision > 0) == observed.mT).all()
        assert (sites.precision_mean[~observed.mT] == 0).all()

    def test_each_row_and_each_entry_is_read_by_itself(self, tied):
        network, _ = make(tied)
        y, observed = random_task(torch.float64, 4, 7, 3)
        sites, rows = network(helpers.rows(y, observed)), torch.randperm(7)
        permuted = network(helpers.rows(y[:, rows], observed[:, rows]))
        torch.testing.assert_close(permuted.precision, sites.precision[..., rows], rtol=0, atol=1e-12)
        torch.testing.assert_close(permuted.precision_mean, sites.precision_mean[..., rows], rtol=0, atol=1e-12)
        first = network(helpers.rows(y, observed & (torch.arange(3) == 1)))
        torch.testing.assert_close(first.precision[:, 1], sites.precision[:, 1], rtol=0, atol=1e-12)
        assert (first.precision[:, [0, 2]] == 0).all()

    def test_the_wrong_number_of_outputs_is_an_error_that_names_both(self, tied):
        with pytest.raises(ValueError, match=r"num_outputs=3.*\(7, 4\)"):
            make(tied)[0](helpers.rows(torch.randn(7, 4).double(), torch.ones(7, 4, dtype=torch.bool)))

    def test_copies_are_faithful_and_have_parameters_of_their_own(self, tied):
        network, _ = make(tied)
        context = helpers.rows(*random_task(torch.float64, 7, 3))
        expected = network(context)
        twins = [copy.deepcopy(network), pickle.loads(pickle.dumps(network))]
        if not tied:
            twins.append(JointFactorNet(3, 2, (4,), torch.nn.Tanh).double())
            twins[-1].load_state_dict(network.state_dict())
        else:
            twins.append(make(tied)[0])
            twins[-1].tie(network._tied[0])
            twins[-1].load_state_dict(network.state_dict())
        for twin in twins:
            sites = twin(context)
            for name in ("precision", "precision_mean", "loadings"):
                assert torch.equal(getattr(sites, name), getattr(expected, name))
            assert not {id(p) for p in network.parameters()} & {id(p) for p in twin.parameters()}

    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3, 1e6])
    def test_precisions_are_positive_and_at_most_so_many_times_those_of_the_noise(self, tied, scale, dtype):
        network, likelihood = make(tied, dtype)
        y = scale * torch.randn(50, 3, dtype=dtype)
        noise = likelihood.observation_model.noise if tied else network.log_noise.exp()
        factor = network(helpers.rows(y, y.isfinite())).precision * noise.unsqueeze(-1)
        assert factor.isfinite().all()
        assert factor.log().abs().max() <= 8.001  # as e^±8 is the largest correction


class TestTie:
    def test_makes_the_sites_those_of_the_linear_model(self):
        network, likelihood = helpers.make_tied()
        y, observed = random_task(torch.float64, 4, 7, 3)
        sites = network(helpers.rows(y, observed))
        decoder, noise = likelihood.decoder, likelihood.observation_model.noise
        assert sites.loadings is decoder.weight
        torch.testing.assert_close(sites.precision.mT, observed / noise)
        torch.testing.assert_close(sites.precision_mean.mT, observed * (y - decoder.bias) / noise)

    def test_follows_the_likelihood_as_its_parameters_move(self):
        network, likelihood = helpers.make_tied()
        context = helpers.rows(*random_task(torch.float64, 4, 7, 3))
        before = network(context).precision
        likelihood.observation_model.noise = 2 * likelihood.observation_model.noise.detach()
        torch.testing.assert_close(network(context).precision, before / 2)

    def test_a_decoder_without_a_bias(self):
        likelihood = DecoderLikelihood(torch.nn.Linear(2, 3, bias=False), GaussianObservations(3)).double()
        network = JointFactorNet(3, 2).double()
        network.tie(likelihood)
        y = torch.randn(7, 3).double()
        sites = network(helpers.rows(y, y.isfinite()))
        torch.testing.assert_close(sites.precision_mean / sites.precision, y.mT)

    def test_the_parameters_stay_the_likelihoods(self):
        network, likelihood = helpers.make_tied()
        theirs = {id(parameter) for parameter in likelihood.parameters()}
        assert not theirs & {id(parameter) for parameter in network.parameters()}
        assert all(name.startswith("corrections") for name in network.state_dict())
        assert all(name.startswith("corrections") for name, _ in network.named_parameters())
        untied = JointFactorNet(3, 2).state_dict()
        assert {"loadings", "bias", "log_noise"} <= set(untied)

    @pytest.mark.parametrize("cls", [GPVAE, SGPVAE])
    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
    def test_a_copy_of_a_whole_model_is_tied_to_its_own_likelihood(self, cls, duplicate):
        arguments = (torch.rand(5, 2).double(),) if cls is SGPVAE else ()
        model = cls(3, 2, *arguments, network="jointfactornet").double()
        data = helpers.make_data()
        before = model.elbo(data).detach()
        twin = duplicate(model)
        network = twin.strategy._variational_distribution.network
        assert network._tied[0] is twin.likelihood
        assert network(Context(*data)).loadings is twin.likelihood.decoder.linear.weight
        assert len(list(twin.parameters())) == len(list(model.parameters()))
        helpers.perturb(twin)
        assert torch.equal(model.elbo(data), before)
        assert not torch.allclose(twin.elbo(data), before)
        twin.load_state_dict(model.state_dict())
        torch.testing.assert_close(twin.elbo(data), before, rtol=0, atol=1e-10)

    @pytest.mark.parametrize(
        ("decoder", "error", "message"),
        [
            (MLP(2, 3), TypeError, r"Linear or LinearPlus.*got MLP"),
            (torch.nn.Linear(4, 3), ValueError, r"4 latent functions and 3 outputs.*num_latents=2 and num_outputs=3"),
        ],
    )
    def test_what_does_not_fit_is_an_error_that_names_both(self, decoder, error, message):
        with pytest.raises(error, match=message):
            JointFactorNet(3, 2).tie(DecoderLikelihood(decoder, GaussianObservations(3)))

    def test_an_observation_model_without_sites_of_its_own_is_an_error(self):
        with pytest.raises(TypeError, match=r"initial_sites.*Identity"):
            JointFactorNet(3, 2).tie(DecoderLikelihood(torch.nn.Linear(2, 3), torch.nn.Identity()))

    def test_there_are_latent_functions_to_couple(self):
        with pytest.raises(ValueError, match="num_latents, got None"):
            JointFactorNet(3, None)


# the observation model of three outputs, and a target that it can have produced
FAMILIES = {
    "Gaussian": (lambda: GaussianObservations(3), lambda f: f),
    "Poisson": (lambda: PoissonObservations(3), lambda f: torch.poisson(f.exp())),
    "Bernoulli": (lambda: BernoulliObservations(3), lambda f: (f > 0).to(f.dtype)),
    "Categorical": (lambda: CategoricalObservations(3, 4), lambda f: f.add(1.5).round().clamp(0, 3)),
    "NegativeBinomial": (lambda: NegativeBinomialObservations(3), lambda f: torch.poisson(f.exp())),
    "StudentT": (lambda: StudentTObservations(3), lambda f: f),
    "Heteroscedastic": (lambda: HeteroscedasticGaussianObservations(3), lambda f: f),
    "Mixed": (
        lambda: MixedObservations([GaussianObservations(1), CategoricalObservations(1, 3), PoissonObservations(1)]),
        lambda f: torch.stack([f[..., 0], f[..., 1].add(1).round().clamp(0, 2), torch.poisson(f[..., 2].exp())], -1),
    ),
}


@pytest.mark.parametrize("cls", [GPVAE, SGPVAE])
@pytest.mark.parametrize(("create", "target"), FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("linear", [True, False], ids=["Linear", "LinearPlus"])
def test_every_family_of_outputs_trains_and_predicts(cls, create, target, linear):
    x = torch.rand(3, 15, 2).double() * 3
    f = torch.stack([x[..., 0].sin(), x[..., 1].cos(), x.sum(-1).sin()], -1)
    y = target(f + 0.1 * torch.randn_like(f))
    y[torch.rand(y.shape) < 0.2] = torch.nan
    y[0, 3], y[1, :, 1] = torch.nan, torch.nan
    observations = create()
    decoder = torch.nn.Linear(2, observations.decoder_size) if linear else None
    arguments = (torch.rand(5, 2).double() * 3,) if cls is SGPVAE else ()
    model = cls(3, 2, *arguments, "jointfactornet", decoder=decoder, observation_model=observations, hidden_sizes=(8,))
    model.double()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    samples = torch.randn(8, 3, 15, 2).double()  # the same throughout: the loss is then a function of the parameters
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = -model.elbo((x, y), base_samples=samples).sum()
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < losses[0]
    new = torch.rand(4, 2).double() * 3
    prediction = model.eval().predict(new, (x, y), num_samples=5)
    for value in (prediction.mean, prediction.variance, prediction.quantile(0.3)):
        assert value.shape == (3, 4, 3)
        assert value.isfinite().all()
    for joint in (True, False):
        draws = prediction.sample(2, joint=joint)
        assert draws.shape == (2, 3, 4, 3)
        assert draws.isfinite().all()


def test_corrections_have_a_gradient_although_they_start_at_zero():
    model = GPVAE(3, 2, "jointfactornet").double()
    assert isinstance(model.likelihood.decoder, LinearPlus)
    model.likelihood.decoder.mlp.output_bias.data.fill_(0.1)  # at the exact posterior itself their gradient is zero
    model.loss(helpers.make_data(2)).backward()
    assert model.strategy._variational_distribution.network.corrections.weights[-1].grad.abs().max() > 0


class TestCorrectOnly:
    def test_what_is_exact_already_stays_as_the_linear_model_says_and_the_rest_is_corrected(self):
        network, _ = helpers.make_tied()
        context = helpers.rows(*random_task(torch.float64, 4, 7, 3))
        plain = network(context)
        helpers.perturb(network)
        network.correct_only([False, True, False])
        sites = network(context)
        for name in ("precision", "precision_mean"):
            ours, theirs = getattr(sites, name), getattr(plain, name)
            assert torch.equal(ours[:, [0, 2]], theirs[:, [0, 2]])
            assert (ours[:, 1] != theirs[:, 1])[context.observed.mT[:, 1]].all()

    def test_only_what_is_corrected_has_gradients(self):
        network, _ = make(tied=True)
        network.correct_only([False, True, False])
        sites = network(helpers.rows(*random_task(torch.float64, 4, 7, 3)))
        parameters = list(network.corrections.parameters())
        gradients = torch.autograd.grad(sites.precision.sum() + sites.precision_mean.square().sum(), parameters)
        for gradient in gradients:
            assert not gradient[[0, 2]].any()
            assert gradient[1].any()

    def test_without_anything_to_correct_no_parameter_is_trained(self):
        network, _ = make(tied=True)
        network.correct_only([False] * 3)
        assert not any(parameter.requires_grad for parameter in network.parameters())
        network.correct_only([True] * 3)
        assert all(parameter.requires_grad for parameter in network.corrections.parameters())

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
    def test_copies_keep_it(self, duplicate):
        network, _ = make(tied=True)
        network.correct_only([False, True, False])
        context = helpers.rows(*random_task(torch.float64, 7, 3))
        assert torch.equal(duplicate(network)(context).precision, network(context).precision)

    def test_another_number_of_values_is_refused_with_both(self):
        with pytest.raises(ValueError, match="Got 2 values, but the decoder has 3"):
            make(tied=True)[0].correct_only([True, False])
