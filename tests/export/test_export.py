"""A trained model as a function of tensors: what is traced, saved, exported and run elsewhere equals the model."""

from __future__ import annotations

import gpytorch
import helpers
import pytest
import torch
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, MultitaskGaussianLikelihood
from gpytorch.variational import LMCVariationalStrategy

from gpytorch_sgpvae import (
    GPVAE,
    MLP,
    SGPVAE,
    VAE,
    BernoulliObservations,
    CategoricalObservations,
    FactorNet,
    GaussianObservations,
    LogNormalObservations,
    MarkovGPVAE,
    NegativeBinomialObservations,
    PoissonObservations,
    StudentTObservations,
)
from gpytorch_sgpvae.export import PredictionModule, to_onnx
from gpytorch_sgpvae.likelihoods import DecoderLikelihood
from gpytorch_sgpvae.linalg.autograd import HandwrittenFunction

TOLERANCE = {"rtol": 0, "atol": 1e-5}
MODELS = {
    "SGPVAE": lambda **kwargs: SGPVAE(3, 2, torch.rand(5, 1), hidden_sizes=(4,), **kwargs),
    "GPVAE": lambda **kwargs: GPVAE(3, 2, hidden_sizes=(4,), **kwargs),
    "MarkovGPVAE": lambda **kwargs: MarkovGPVAE(3, 2, hidden_sizes=(4,), **kwargs),
}


def data(num_new=4, num_points=6, tasks=(), dtype=torch.float64):
    x, y = torch.rand(*tasks, num_points, 1, dtype=dtype), torch.randn(*tasks, num_points, 3, dtype=dtype)
    y[..., 1, :2] = y[..., 3, :] = torch.nan
    return torch.rand(*tasks, num_new, 1, dtype=dtype), x, y


def eager(model, likelihood, module, x, x_context, y_context):
    """What the model predicts with the same samples."""
    base_samples = module.decoder.base_samples
    samples = base_samples.view(len(base_samples), *[1] * (x.dim() - 1), -1)
    with torch.no_grad():
        q_f = model(x, context=(x_context, y_context))
        if likelihood.has_gaussian_outputs:
            prediction = likelihood.predict(q_f)
        else:
            prediction = likelihood.predict(q_f, base_samples=samples)
    return prediction.mean, prediction.variance


def assert_equal(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), other, **TOLERANCE)


# torch.jit is deprecated, warns of sizes that become constants, and asks the likelihood how many data there are
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore:likelihood.num_data isn't set"
)
@pytest.mark.parametrize("network", ["factornet", "jointfactornet"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_trace_is_saved_and_loaded_and_right_for_other_data(make, network, tmp_path):
    model = make(network=network).double().eval()
    module = PredictionModule(model)
    example = data(num_points=4)
    # inputs that are equal in the example must not be taken for equal afterwards
    example = (example[1].clone(), *example[1:])
    trace = torch.jit.trace(module, example, check_trace=False)
    torch.jit.save(trace, tmp_path / "trace.pt")
    loaded = torch.jit.load(tmp_path / "trace.pt")
    for num_points in (4, 7):
        other = data(num_new=5, num_points=num_points)
        expected = eager(model.model, model.likelihood, module, *other)
        assert_equal(module(*other), expected)
        if num_points == 7 and make is MODELS["MarkovGPVAE"]:
            with pytest.raises(RuntimeError, match="shape"):  # its loops are as long as the example
                loaded(*other)
        else:
            assert_equal(loaded(*other), expected)


# of torch's own exporter
quiet = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.mark.slow
@helpers.needs_compile
@quiet
@pytest.mark.parametrize(("make", "network"), [("SGPVAE", "jointfactornet"), ("MarkovGPVAE", "factornet")])
def test_an_exported_program_is_right_for_other_data(make, network):
    model = MODELS[make](network=network).double().eval()
    module = PredictionModule(model)
    program = torch.export.export(module, data(num_new=2, num_points=4), strict=False).module()
    other = data(num_new=2, num_points=4)
    assert_equal(program(*other), eager(model.model, model.likelihood, module, *other))


@pytest.mark.slow
@helpers.needs_compile
@quiet
def test_onnxruntime_predicts_the_same_for_any_number_of_points(tmp_path):
    model = MODELS["GPVAE"]().double().eval()
    module = PredictionModule(model)
    to_onnx(module, data(), tmp_path / "model.onnx")
    other = data(num_new=7, num_points=9)
    outputs = run(tmp_path / "model.onnx", other, ["y_mean", "y_variance"])
    assert_equal(outputs, eager(model.model, model.likelihood, module, *other))


@pytest.mark.slow
@helpers.needs_compile
@quiet
def test_onnxruntime_runs_the_parts_by_themselves(tmp_path):
    module = PredictionModule(MODELS["SGPVAE"]())
    x, *seen = data(dtype=torch.float32)
    sites = module.encoder(*seen)
    q_f = module.conditioning(x, seen[0], *sites)
    parts = [
        (module.encoder, seen, sites),
        (module.conditioning, (x, seen[0], *sites), q_f),
        (module.decoder, q_f, module.decoder(*q_f)),
    ]
    for part, args, expected in parts:
        to_onnx(part, tuple(args), tmp_path / "part.onnx")
        assert_equal(run(tmp_path / "part.onnx", args), expected)


def run(file, args, outputs=None):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    inputs = {one.name: tensor.numpy() for one, tensor in zip(session.get_inputs(), args, strict=True)}
    return session.run(outputs, inputs)


@pytest.mark.parametrize("tasks", [(), (2,)])
@pytest.mark.parametrize("network", ["factornet", "jointfactornet"])
def test_a_batch_of_tasks_is_predicted_as_by_the_model(network, tasks):
    model = MODELS["SGPVAE"](network=network).double().eval()
    module = PredictionModule(model)
    inputs = data(tasks=tasks)
    assert_equal(module(*inputs), eager(model.model, model.likelihood, module, *inputs))
    assert all(part.shape == (*tasks, 4, 3) for part in module(*inputs))


@pytest.mark.parametrize(
    "observations",
    [
        BernoulliObservations(3),
        PoissonObservations(3),
        NegativeBinomialObservations(3),
        StudentTObservations(3),
        LogNormalObservations(3),
    ],
    ids=lambda observations: type(observations).__name__,
)
def test_every_family_of_outputs(observations):
    model = MODELS["SGPVAE"](observation_model=observations).double().eval()
    module = PredictionModule(model)
    x, x_context, y_context = data()
    y_context = y_context.abs().round()
    expected = eager(model.model, model.likelihood, module, x, x_context, y_context)
    assert_equal(module(x, x_context, y_context), expected)


def test_a_linear_decoder_with_gaussian_noise_needs_no_samples():
    model = MODELS["SGPVAE"](decoder=torch.nn.Linear(2, 3)).double().eval()
    inputs = data()
    few, many = (PredictionModule(model, num_samples=number)(*inputs) for number in (1, 64))
    assert_equal(few, many)
    assert_equal(few, eager(model.model, model.likelihood, PredictionModule(model), *inputs))


def gpytorch_model(kind):
    """A model with GPyTorch's likelihood and wrapper, and a context's outputs."""
    if kind in ("single", "bernoulli"):
        model = helpers.Model(torch.rand(5, 1), FactorNet(1, None))
        likelihood = GaussianLikelihood() if kind == "single" else BernoulliLikelihood()
        y = torch.randint(2, (6,)).double()
    else:
        model = helpers.Model(torch.rand(5, 1), FactorNet(3, 3 if kind == "independent" else 2))
        if kind == "LMC":
            model.variational_strategy = LMCVariationalStrategy(model.strategy, num_tasks=3, num_latents=2)
        noise = {"has_task_noise": False} if kind == "independent" else {"rank": 1}
        likelihood, y = MultitaskGaussianLikelihood(num_tasks=3, **noise), torch.randn(6, 3).double()
        y[2, 1] = torch.nan
    return model.double().eval(), likelihood.double().eval(), y


KINDS = ["single", "bernoulli", "independent", "LMC"]


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore:likelihood.num_data isn't set"
)
@pytest.mark.parametrize("kind", KINDS)
def test_gpytorchs_likelihoods_with_marginals_in_closed_form(kind):
    model, likelihood, y = gpytorch_model(kind)
    x, x_context, _ = data()
    expected = likelihood(model(x, context=(x_context, y)))
    module = PredictionModule(model, likelihood)
    trace = torch.jit.trace(module, (x[:2] / 2, x_context[:4] / 2, y[:4]), check_trace=False)
    for predict in (module, trace):
        assert_equal(predict(x, x_context, y), (expected.mean, expected.variance))


@pytest.mark.slow
@helpers.needs_compile
@quiet
@pytest.mark.parametrize("kind", ["bernoulli", "LMC"])
def test_gpytorchs_likelihoods_in_onnx(kind, tmp_path):
    model, likelihood, y = gpytorch_model(kind)
    x, x_context, _ = data()
    to_onnx(PredictionModule(model, likelihood), (x[:2] / 2, x_context[:4] / 2, y[:4]), tmp_path / "model.onnx")
    expected = likelihood(model(x, context=(x_context, y)))
    outputs = run(tmp_path / "model.onnx", (x, x_context, y), ["y_mean", "y_variance"])
    assert_equal(outputs, (expected.mean.detach(), expected.variance.detach()))


def test_a_decoder_reads_as_many_functions_as_LMC_mixes():
    model, _, y = gpytorch_model("LMC")  # two functions, of which it makes three
    likelihood = DecoderLikelihood(MLP(3, 3, (4,)), GaussianObservations(3)).double().eval()
    x, x_context, _ = data()
    module = PredictionModule(model, likelihood)
    assert_equal(module(x, x_context, y), eager(model, likelihood, module, x, x_context, y))


def test_a_decoder_of_a_single_function():
    model, _, y = gpytorch_model("single")
    likelihood = DecoderLikelihood(MLP(1, 1, (4,)), PoissonObservations(1)).double().eval()
    x, x_context, _ = data()
    module = PredictionModule(model, likelihood)
    assert_equal(module(x, x_context, y), eager(model, likelihood, module, x, x_context, y))


def test_a_module_is_a_copy_that_records_no_gradient_and_is_saved():
    model = MODELS["SGPVAE"]()
    module, inputs = PredictionModule(model), data(dtype=torch.float32)
    before = module(*inputs)
    assert model.training
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert_equal(module(*inputs), before)
    twin = PredictionModule(MODELS["SGPVAE"]())
    twin.load_state_dict(module.state_dict())
    assert_equal(twin(*inputs), before)


def test_a_bad_row_of_data_is_an_error_of_the_model_and_none_of_the_module():
    model = MODELS["SGPVAE"]().double().eval()
    x, x_context, y_context = data()
    y_context[0, 0] = torch.inf
    with pytest.raises(ValueError, match="infinite"):
        model.predict(x, (x_context, y_context))
    PredictionModule(model)(x, x_context, y_context)


class TestFunctionsWithAGradientByHand:
    def functions(self):
        def subclasses(cls):
            return {cls}.union(*map(subclasses, cls.__subclasses__()))

        return {
            function
            for function in subclasses(torch.autograd.Function)
            if function.__module__.startswith("gpytorch_sgpvae")
        } - {HandwrittenFunction}

    def test_all_of_them_can_step_aside(self):
        assert self.functions()
        assert all(issubclass(function, HandwrittenFunction) for function in self.functions())

    def test_they_do_where_no_gradient_is_recorded(self):
        model = MODELS["GPVAE"](network="jointfactornet").double().eval()
        inputs = data()
        called = []
        original = torch.autograd.Function.apply
        try:
            HandwrittenFunction.apply = classmethod(lambda cls, *args: called.append(cls) or original(*args))
            with torch.no_grad():
                model.predict(inputs[0], inputs[1:])
            model.requires_grad_(False)
            model(inputs[0], context=inputs[1:])
        finally:
            del HandwrittenFunction.apply
        assert not called


def test_vae_and_classes_are_predicted_too():
    for model, y in (
        (VAE(3, 2, hidden_sizes=(4,)), torch.randn(6, 3)),
        (SGPVAE(3, 2, torch.rand(5, 1), observation_model=CategoricalObservations(3, 4)), torch.zeros(6, 3)),
    ):
        model.eval()
        x = torch.rand(6, 1)
        module = PredictionModule(model)
        assert isinstance(model.likelihood, DecoderLikelihood)
        expected = eager(model.model, model.likelihood, module, x, x, y)
        assert_equal(module(x, x.clone(), y), expected)


# as above, and of values that the trace takes for constants
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore:likelihood.num_data isn't set"
)
def test_a_model_is_traced_in_gpytorchs_own_way(tmp_path):
    class Predict(torch.nn.Module):
        def __init__(self, model, likelihood):
            super().__init__()
            self.model, self.likelihood = model, likelihood

        def forward(self, x, x_context, y_context):
            outputs = self.likelihood(self.model(x, context=(x_context, y_context)))
            return outputs.mean, outputs.variance

    model = helpers.Model(torch.rand(5, 1), FactorNet(1, None)).double()
    predict = Predict(model, GaussianLikelihood().double()).eval()
    first, second = ((torch.rand(4, 1), torch.rand(6, 1), torch.randn(6)) for _ in range(2))
    first, second = ([part.double() for part in data] for data in (first, second))
    with torch.no_grad(), gpytorch.settings.trace_mode():
        predict(*first)  # once before, as in GPyTorch's documentation
        torch.jit.save(torch.jit.trace(predict, first, check_trace=False), tmp_path / "trace.pt")
    assert_equal(torch.jit.load(tmp_path / "trace.pt")(*second), predict(*second))
