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
from .linalg.state_space import StateSpace, register_state_space, to_state_space
from .variational import (
    AmortizedVariationalDistribution,
    AmortizedVariationalStrategy,
    DenseAmortizedVariationalStrategy,
    DenseJointAmortizedVariationalStrategy,
    InducingSitesVariationalStrategy,
    JointAmortizedVariationalStrategy,
    MarkovAmortizedVariationalStrategy,
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
from .models import GPVAE, SGPVAE, VAE, AmortizedModel, MarkovGPVAE
from .refinement import Refinement, refine

__version__ = "0.2.0"

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
    "MarkovAmortizedVariationalStrategy",
    "MarkovGPVAE",
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
    "StateSpace",
    "StudentTObservations",
    "TaskELBO",
    "ZeroImputation",
    "condition",
    "conditioned_on",
    "persist_context",
    "point_covariances",
    "refine",
    "register_state_space",
    "to_state_space",
]
