from .decoder_likelihood import DecoderLikelihood
from .gaussian_observations import GaussianObservations
from .prediction import Prediction

__all__ = ["DecoderLikelihood", "GaussianObservations", "Prediction"]
