"""Examples in the docstrings of rooms whose extra is not installed are left out."""

from importlib.util import find_spec

# Each room, and what it cannot be imported without.
NEEDS = {"botorch": "botorch", "xarray": "xarray"}
collect_ignore_glob = [f"gpytorch_sgpvae/{room}/*" for room, needed in NEEDS.items() if find_spec(needed) is None]
