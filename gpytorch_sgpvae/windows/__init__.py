"""Windows of time series with holes, filled, by the convention of PyPOTS: dictionaries of arrays in, arrays out."""

from .imputer import WindowImputer

__all__ = ["WindowImputer"]
