"""Tables with holes, filled, with error bars. Needs the extra `table`."""

from importlib.util import find_spec

if any(find_spec(name) is None for name in ("lightning", "pandas", "sklearn")):
    raise ImportError("Tables need pandas, scikit-learn and Lightning: pip install 'gpytorch-sgpvae[table]'")

from .errors import TableError, TableWarning
from .imputer import SGPVAEImputer

__all__ = ["SGPVAEImputer", "TableError", "TableWarning"]
