"""Amortized Gaussian processes for GPyTorch: the sparse GP-VAE as a drop-in variational strategy."""

from .context import Context
from .sites import GaussianSites
from .mlp import MLP
from .inference_networks import FactorNet, IndexNet, InferenceNetwork, PointNet, ZeroImputation
from .variational import (
    AmortizedVariationalDistribution,
    AmortizedVariationalStrategy,
    DenseAmortizedVariationalStrategy,
    Posterior,
    condition,
    conditioned_on,
)
from .likelihoods import (
    DecoderLikelihood,
    ObservationModel,
    GaussianObservations,
    HeteroscedasticGaussianObservations,
    StudentTObservations,
    LogNormalObservations,
    BernoulliObservations,
    CategoricalObservations,
    PoissonObservations,
    NegativeBinomialObservations,
    MixedObservations,
    Prediction,
)
from .mlls import TaskELBO
from .models import SGPVAE

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "SGPVAE",
    "AmortizedVariationalDistribution",
    "AmortizedVariationalStrategy",
    "BernoulliObservations",
    "CategoricalObservations",
    "Context",
    "DecoderLikelihood",
    "DenseAmortizedVariationalStrategy",
    "FactorNet",
    "GaussianObservations",
    "GaussianSites",
    "HeteroscedasticGaussianObservations",
    "IndexNet",
    "InferenceNetwork",
    "LogNormalObservations",
    "MixedObservations",
    "NegativeBinomialObservations",
    "ObservationModel",
    "PointNet",
    "PoissonObservations",
    "Posterior",
    "Prediction",
    "StudentTObservations",
    "TaskELBO",
    "ZeroImputation",
    "condition",
    "conditioned_on",
]
