"""Amortized Gaussian processes for GPyTorch: the sparse GP-VAE as a drop-in variational strategy."""

from .context import Context
from .sites import GaussianSites
from .mlp import MLP, LinearPlus, PrivateLinear
from .inference_networks import (
    FactorNet,
    FreeFormSites,
    IndexNet,
    InferenceNetwork,
    JointFactorNet,
    PairNet,
    PointNet,
    ZeroImputation,
)
from .linalg.kernels import GroupedKernel
from .variational import (
    AmortizedVariationalDistribution,
    AmortizedVariationalStrategy,
    DenseAmortizedVariationalStrategy,
    DenseJointAmortizedVariationalStrategy,
    InducingSitesVariationalStrategy,
    JointAmortizedVariationalStrategy,
    Posterior,
    condition,
    conditioned_on,
    persist_context,
    point_covariances,
)
from .likelihoods import (
    DecoderLikelihood,
    ObservationModel,
    GaussianObservations,
    HeteroscedasticGaussianObservations,
    StudentTObservations,
    LogNormalObservations,
    CensoredGaussianObservations,
    BernoulliObservations,
    CategoricalObservations,
    PoissonObservations,
    NegativeBinomialObservations,
    MixedObservations,
    Prediction,
)
from .mlls import ImportanceWeightedELBO, TaskELBO
from .models import GPVAE, SGPVAE, VAE, AmortizedModel
from .refinement import Refinement, refine

__version__ = "0.1.0"

__all__ = [
    "GPVAE",
    "MLP",
    "SGPVAE",
    "VAE",
    "AmortizedModel",
    "AmortizedVariationalDistribution",
    "AmortizedVariationalStrategy",
    "BernoulliObservations",
    "CategoricalObservations",
    "CensoredGaussianObservations",
    "Context",
    "DecoderLikelihood",
    "DenseAmortizedVariationalStrategy",
    "DenseJointAmortizedVariationalStrategy",
    "FactorNet",
    "FreeFormSites",
    "GaussianObservations",
    "GaussianSites",
    "GroupedKernel",
    "HeteroscedasticGaussianObservations",
    "ImportanceWeightedELBO",
    "IndexNet",
    "InducingSitesVariationalStrategy",
    "InferenceNetwork",
    "JointAmortizedVariationalStrategy",
    "JointFactorNet",
    "LinearPlus",
    "LogNormalObservations",
    "MixedObservations",
    "NegativeBinomialObservations",
    "ObservationModel",
    "PairNet",
    "PointNet",
    "PoissonObservations",
    "Posterior",
    "Prediction",
    "PrivateLinear",
    "Refinement",
    "StudentTObservations",
    "TaskELBO",
    "ZeroImputation",
    "condition",
    "conditioned_on",
    "persist_context",
    "point_covariances",
    "refine",
]
