"""Amortized models as BoTorch's: what an acquisition function asks of a model. It needs the extra `botorch`."""

from .output_posterior import OutputPosterior
from .surrogate import AmortizedSurrogate

__all__ = ["AmortizedSurrogate", "OutputPosterior"]
