"""From a table with holes to a filled table, with error bars. Needs the extra `table`."""

from importlib.util import find_spec

_missing = [name for name in ("lightning", "pandas", "sklearn") if find_spec(name) is None]
if _missing:
    raise ImportError(f"Tables need {', '.join(_missing)}: pip install 'gpytorch-sgpvae[table]'")

from .errors import TableError, TableWarning
from .imputer import SGPVAEImputer

__all__ = ["SGPVAEImputer", "TableError", "TableWarning"]
