"""GPyTorch's notebooks, and what to know about a swap in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import data
from .data import Data

EXAMPLES = "https://docs.gpytorch.ai/en/stable/examples"
VARIATIONAL = f"{EXAMPLES}/04_Variational_and_Approximate_GPs"
PYRO = f"{EXAMPLES}/07_Pyro_Integration"
ADVANCED = f"{EXAMPLES}/08_Advanced_Usage"
STRATEGIES = "https://docs.gpytorch.ai/en/stable/variational.html"


@dataclass(frozen=True)
class Notebook:
    """
    :param name: That of its scripts in `original` and `swapped`, and of what was tried first in `attempts`.
    :param title: For people.
    :param page: Where GPyTorch has it.
    :param make_data: Generated data of its shape.
    :param steps: Steps of the optimizer.
    :param note: What changes beside the two lines, and why.
    """

    name: str
    title: str
    page: str
    make_data: Callable[[], Data]
    steps: int
    note: str = ""


def many() -> Data:
    return data.surface(1500, 18)


NOTEBOOKS = (
    Notebook(
        "svgp_regression",
        "SVGP regression",
        f"{VARIATIONAL}/SVGP_Regression_CUDA.html",
        lambda: data.surface(8000, 18),
        40,
        "Targets come in minibatches, the context is all points: a step reads all of them.",
    ),
    Notebook(
        "multitask_independent",
        "Multitask, independent",
        f"{VARIATIONAL}/SVGP_Multitask_GP_Regression.html",
        lambda: data.signals(100),
        250,
    ),
    Notebook(
        "multitask_lmc",
        "Multitask, LMC",
        f"{VARIATIONAL}/SVGP_Multitask_GP_Regression.html",
        lambda: data.signals(100),
        250,
    ),
    Notebook(
        "task_indices",
        "Multitask, `task_indices`",
        f"{VARIATIONAL}/SVGP_Multitask_GP_Regression.html",
        lambda: data.one_output_each(100),
        250,
        "The context has a column for each output, with NaN where a point has not measured it.",
    ),
    Notebook(
        "non_gaussian",
        "Non-Gaussian: ten labels",
        f"{VARIATIONAL}/Non_Gaussian_Likelihoods.html",
        lambda: data.stripes(10),
        100,
        "A constant function explains ten labels about as well, and with large steps the kernel is there before the "
        "network can tell labels apart. Start with a lengthscale that the data can be seen with, and take smaller "
        "steps.",
    ),
    Notebook(
        "predictive_likelihood",
        "Predictive log likelihood",
        f"{VARIATIONAL}/Approximate_GP_Objective_Functions.html",
        many,
        120,
    ),
    Notebook(
        "gamma_robust",
        "Gamma-robust objective",
        "https://docs.gpytorch.ai/en/stable/marginal_log_likelihoods.html#gammarobustvariationalelbo",
        lambda: data.sine(100, stddev=0.1, outliers=0.1),
        200,
        "The likelihood must be Gaussian, as with GPyTorch's strategy.",
    ),
    Notebook(
        "uncertain_inputs",
        "Uncertain inputs",
        f"{VARIATIONAL}/GP_Regression_with_Uncertain_Inputs.html",
        lambda: data.uncertain_sine(20),
        300,
        "In training the context has the inputs that were drawn.",
    ),
    Notebook(
        "mean_field",
        "Mean-field q(u)",
        f"{VARIATIONAL}/Modifying_the_variational_strategy_and_distribution.html",
        many,
        120,
        "The network takes the place of any distribution, and its q(u) has a full covariance.",
    ),
    Notebook(
        "orthogonally_decoupled",
        "Orthogonally decoupled",
        f"{VARIATIONAL}/Modifying_the_variational_strategy_and_distribution.html",
        many,
        120,
        "GPyTorch's wrapper calls the strategy inside it without keywords: `persist_context` in place of `context=`.",
    ),
    Notebook(
        "batch_decoupled",
        "Batch-decoupled",
        STRATEGIES + "#batchdecoupledvariationalstrategy",
        many,
        120,
        "GPyTorch's strategy reads the parameters of a free-form q(u). Use ours in its place, with one set of inducing "
        "points.",
    ),
    Notebook(
        "natural_gradients",
        "Natural gradients (NGD)",
        f"{VARIATIONAL}/Natural_Gradient_Descent.html",
        many,
        120,
        "NGD's steps are for a free-form q(u). Adam trains the network; `refine` takes natural gradient steps.",
    ),
    Notebook(
        "polya_gamma",
        "Pólya-Gamma classification",
        f"{VARIATIONAL}/PolyaGamma_Binary_Classification.html",
        lambda: data.noisy_labels(80),
        100,
        "The likelihood stays. NGD goes, and Adam trains the network.",
    ),
    Notebook(
        "contour_integrals",
        "CIQ",
        f"{VARIATIONAL}/SVGP_CIQ.html",
        lambda: data.surface(750, 18),
        25,
        "GPyTorch's strategy reads the parameters of a free-form q(u), and there is no contour integral quadrature "
        "here: ours takes Cholesky factors. NGD goes too.",
    ),
    Notebook(
        "nearest_neighbors",
        "VNNGP",
        f"{VARIATIONAL}/VNNGP.html",
        lambda: data.surface(750, 3),
        100,
        "GPyTorch's strategy is one approximation with its mean-field q(u). Ours takes fewer inducing points in its "
        "place; over time `MarkovAmortizedVariationalStrategy` needs none.",
    ),
    Notebook(
        "gplvm",
        "Bayesian GPLVM",
        f"{VARIATIONAL}/Gaussian_Process_Latent_Variable_Models_with_Stochastic_Variational_Inference.html",
        lambda: data.flow(200),
        300,
        "The context has the latent inputs as they were drawn, all of them, and targets come in minibatches.",
    ),
    Notebook(
        "deep_gp",
        "Deep GP",
        f"{EXAMPLES}/05_Deep_Gaussian_Processes/Deep_Gaussian_Processes.html",
        lambda: data.surface(1250, 18),
        60,
        "The hidden layer is swapped, with `x_has_latents=True`; the last one stays. Calls pass `context=` on.",
    ),
    Notebook(
        "pyro_high_level",
        "Pyro, high level",
        f"{PYRO}/Pyro_GPyTorch_High_Level.html",
        lambda: data.sine(21),
        200,
        "Pyro calls the model without keywords: `persist_context`.",
    ),
    Notebook(
        "pyro_low_level",
        "Pyro, low level",
        f"{PYRO}/Pyro_GPyTorch_Low_Level.html",
        lambda: data.waiting_times(100),
        200,
        "As above.",
    ),
    Notebook(
        "pyro_clusters",
        "Pyro, clustered outputs",
        f"{PYRO}/Clustered_Multitask_GP_Regression.html",
        lambda: data.clusters(50, 9),
        200,
        "As above.",
    ),
    Notebook(
        "cox_process",
        "Cox process",
        f"{PYRO}/Cox_Process_Example.html",
        lambda: data.arrivals(2.0),
        200,
        "Events have no outputs that a network could read: the context has their counts in bins. The objective is "
        "still that of the events.",
    ),
    Notebook(
        "updating",
        "Model updating",
        f"{ADVANCED}/SVGP_Model_Updating.html",
        lambda: data.sine(250),
        150,
        "`persist_context`, and then `get_fantasy_model` returns a model of the same kind, for any likelihood.",
    ),
    Notebook(
        "torchscript",
        "TorchScript",
        f"{ADVANCED}/TorchScript_Variational_Models.html",
        many,
        120,
        "The context is part of what is traced: `persist_context` before.",
    ),
)
