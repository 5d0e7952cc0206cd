"""A posterior is made of its own tensors alone: anything else is a sentence."""

from __future__ import annotations

import helpers
import pytest
import torch

from gpytorch_sgpvae import GPVAE, SGPVAE, MarkovGPVAE, Posterior, condition


def sparse(**kwargs):
    return SGPVAE(5, 3, torch.linspace(0, 1, 8), **kwargs).double().model


MODELS = {
    "sparse": sparse,
    "sparse, joint": lambda: sparse(network="jointfactornet"),
    "sparse, own inducing points": lambda: SGPVAE(5, 3, torch.rand(3, 8, 1)).double().model,
    "without latent dimension": lambda: helpers.make_model(num_latents=None),
    "dense, joint": lambda: GPVAE(5, 3, network="jointfactornet").double().model,
    "Markov": lambda: MarkovGPVAE(5, 3, network="factornet").double().model,
    "Markov, joint": lambda: MarkovGPVAE(5, 3, network="jointfactornet").double().model,
}


def make_context(name, *tasks):
    size = (2, 3) if name == "without latent dimension" else (1, 5)
    return tuple(torch.rand(*tasks, 20, number, dtype=torch.float64) for number in size)


@pytest.fixture(params=MODELS)
def model_and_context(request):
    return MODELS[request.param]().eval(), make_context(request.param)


@pytest.mark.parametrize("tasks", [(), (4,), (2, 1)])
@pytest.mark.parametrize("name", MODELS)
def test_its_own_tensors_are_taken(name, tasks):
    model = MODELS[name]().eval()
    x, y = make_context(name, *tasks)
    posterior = condition(model, (x, y))
    loaded = Posterior.from_state_dict(model, posterior.state_dict())
    torch.testing.assert_close(loaded(x).mean, posterior(x).mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(loaded(x).variance, posterior(x).variance, rtol=0, atol=1e-12)


def test_a_missing_and_an_unexpected_name_are_named(model_and_context):
    model, context = model_and_context
    state = condition(model, context).state_dict()
    for name in state:
        if name == "loadings" and not hasattr(model.variational_strategy, "max_entries"):
            continue  # over time sites may be of the latent functions themselves, which have other shapes
        rest = {key: value for key, value in state.items() if key != name}
        with pytest.raises(ValueError, match=f"no posterior of the model: it lacks {name}"):
            Posterior.from_state_dict(model, rest)
    with pytest.raises(ValueError, match="it has extra, which it should not have"):
        Posterior.from_state_dict(model, {**state, "extra": torch.ones(3)})


def test_what_is_no_dictionary_of_numbers_is_refused(model_and_context):
    model, context = model_and_context
    state = condition(model, context).state_dict()
    with pytest.raises(ValueError, match="expected a dictionary of tensors, got a list"):
        Posterior.from_state_dict(model, list(state.values()))
    for value, kind in (("text", "str"), (state["precision"].long(), "torch.int64")):
        with pytest.raises(ValueError, match=f"precision must be a dense tensor of floating-point numbers, got {kind}"):
            Posterior.from_state_dict(model, {**state, "precision": value})


@pytest.mark.parametrize("cut", ["first", "last", "scalar"])
def test_other_shapes_are_refused(model_and_context, cut):
    model, context = model_and_context
    state = condition(model, context).state_dict()
    for name, value in state.items():
        other = {"first": value[:-1], "last": value[..., :-1], "scalar": value.flatten()[0]}[cut]
        if name == "x" and cut == "last" and hasattr(model.variational_strategy, "max_entries"):
            continue  # the dense strategy does not know how many columns inputs have
        with pytest.raises(
            ValueError, match=r"no posterior of the model: .* has shape|Inducing points of shape|inputs with 0 columns"
        ):
            Posterior.from_state_dict(model, {**state, name: other})


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_are_refused(model_and_context, number):
    model, context = model_and_context
    state = condition(model, context).state_dict()
    for name, value in state.items():
        damaged = value.clone(memory_format=torch.contiguous_format)
        damaged.view(-1)[0] = number
        with pytest.raises(ValueError, match=f"{name} has 1 numbers that are not finite"):
            Posterior.from_state_dict(model, {**state, name: damaged})


def test_negative_precisions_are_refused(model_and_context):
    model, context = model_and_context
    state = condition(model, context).state_dict()
    with pytest.raises(ValueError, match="precision must not be negative, but its smallest is -"):
        Posterior.from_state_dict(model, {**state, "precision": -1 - state["precision"]})


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_numbers_that_are_no_covariance_are_refused_in_a_sentence():
    model = sparse().eval()
    state = condition(model, make_context("sparse")).state_dict()
    indefinite = 1e6 * (1 - torch.eye(8, dtype=torch.float64)).expand(3, 8, 8)
    with pytest.raises(ValueError, match="no posterior of the model: nothing can be computed from it"):
        Posterior.from_state_dict(model, {**state, "precision": indefinite})


def test_tasks_that_do_not_fit_each_other_are_refused():
    model = sparse().eval()
    one, other = (condition(model, make_context("sparse", tasks)).state_dict() for tasks in (4, 3))
    with pytest.raises(ValueError, match=r"precision has shape \(3, 3, 8, 8\), expected .*, T = \(4,\)"):
        Posterior.from_state_dict(model, {**one, "precision": other["precision"]})


def test_another_models_posterior_is_refused():
    x, y = make_context("sparse")
    state = condition(SGPVAE(5, 2, torch.linspace(0, 1, 8)).double().model.eval(), (x, y)).state_dict()
    with pytest.raises(ValueError, match=r"Luu_inv has shape \(2, 8, 8\), expected \(\*T, K, M, M\) with K = 3, M = 8"):
        Posterior.from_state_dict(sparse().eval(), state)
