from .base import ObservationModel
from .gaussian_observations import GaussianObservations
from .heteroscedastic_gaussian_observations import HeteroscedasticGaussianObservations
from .student_t_observations import StudentTObservations
from .log_normal_observations import LogNormalObservations
from .censored_gaussian_observations import CensoredGaussianObservations
from .bernoulli_observations import BernoulliObservations
from .categorical_observations import CategoricalObservations
from .poisson_observations import PoissonObservations
from .negative_binomial_observations import NegativeBinomialObservations
from .mixed_observations import MixedObservations

__all__ = [
    "BernoulliObservations",
    "CategoricalObservations",
    "CensoredGaussianObservations",
    "GaussianObservations",
    "HeteroscedasticGaussianObservations",
    "LogNormalObservations",
    "MixedObservations",
    "NegativeBinomialObservations",
    "ObservationModel",
    "PoissonObservations",
    "StudentTObservations",
]
