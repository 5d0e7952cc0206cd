"""Tables that are larger than memory: fitted to samples, and filled a partition at a time."""

from importlib.util import find_spec

from ..errors import TableError

if find_spec("pyarrow") is None:
    raise TableError("Data sets of files need pyarrow: pip install 'gpytorch-sgpvae[arrow]'.")
