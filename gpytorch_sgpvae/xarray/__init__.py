"""Gappy fields of xarray, filled: labeled arrays go in and come out. It needs the extra `xarray`."""

from .grid_imputer import GridImputer

__all__ = ["GridImputer"]
