from .decoder_likelihood import DecoderLikelihood
from .observation_models import (
    BernoulliObservations,
    CategoricalObservations,
    CensoredGaussianObservations,
    GaussianObservations,
    HeteroscedasticGaussianObservations,
    LogNormalObservations,
    MixedObservations,
    NegativeBinomialObservations,
    ObservationModel,
    PoissonObservations,
    StudentTObservations,
)
from .prediction import Prediction

__all__ = [
    "BernoulliObservations",
    "CategoricalObservations",
    "CensoredGaussianObservations",
    "DecoderLikelihood",
    "GaussianObservations",
    "HeteroscedasticGaussianObservations",
    "LogNormalObservations",
    "MixedObservations",
    "NegativeBinomialObservations",
    "ObservationModel",
    "PoissonObservations",
    "Prediction",
    "StudentTObservations",
]
