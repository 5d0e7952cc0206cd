"""
All that depends on a version of Python, torch or GPyTorch, and every private name of theirs that the package uses. Each
entry says which version lacks what; an entry goes when the lower bound in `pyproject.toml` has passed that version.

Two private names stand elsewhere: the base classes `_VariationalStrategy` and `_VariationalDistribution`, which
GPyTorch documents for classes like ours to inherit from.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from gpytorch.likelihoods import gaussian_likelihood
from gpytorch.settings import _linalg_dtype_cholesky
from gpytorch.variational import IndependentMultitaskVariationalStrategy
from torch import Tensor
from torch.distributions import Distribution
from torch.utils import _pytree

__all__ = [
    "DIAG_BY_DEFAULT",
    "FUSED",
    "GaussianLikelihoodBase",
    "OutOfMemoryError",
    "add_note",
    "cholesky_dtype",
    "get_total_norm",
    "is_compiling",
    "is_in_transform",
    "tree_leaves",
    "tree_map",
    "unvalidated_distributions",
]

# GPyTorch < 1.15 does not know `diag`: its multitask strategies need the whole covariance of the strategy within them,
# but do not ask for it. There it is computed unasked.
DIAG_BY_DEFAULT = "diag" in inspect.signature(IndependentMultitaskVariationalStrategy.__call__).parameters

# GPyTorch's Gaussian likelihoods, of one output and of several, have no public base class.
GaussianLikelihoodBase = gaussian_likelihood._GaussianLikelihoodBase

# torch < 2.4 has an Adam in one kernel for GPUs only, and raises an error elsewhere: there torch chooses.
FUSED = True if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4) else None

# torch < 2.5 has it only among the errors of torch.cuda.
OutOfMemoryError = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError

# torch < 2.3 has no torch.compiler.is_compiling.
_is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling

# The functions on nested containers are private in every torch so far, and torch < 2.2 has no tree_leaves.
tree_map = _pytree.tree_map
tree_leaves = getattr(_pytree, "tree_leaves", lambda tree: _pytree.tree_flatten(tree)[0])


def is_compiling() -> bool:
    """Return whether a function is being compiled, exported or traced, so that no branch may depend on its values."""
    return _is_compiling() or torch.jit.is_tracing()


def is_in_transform() -> bool:
    """
    Return whether a transform of :mod:`torch.func`, such as `vmap`, is running. No version of torch has a public way to
    ask. If a version loses the private one, the answer is yes, which is right in either case but takes more memory.
    """
    peek = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    return peek is None or peek() is not None


def get_total_norm(tensors: Sequence[Tensor], norm_type: float) -> Tensor:
    """The norm of all tensors together, as if they were one vector. torch < 2.6 has no function for it."""
    if hasattr(torch.nn.utils, "get_total_norm"):
        return torch.nn.utils.get_total_norm(tensors, norm_type)
    norms = [torch.linalg.vector_norm(tensor, norm_type) for tensor in tensors]
    return torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.tensor(0.0)


def cholesky_dtype() -> torch.dtype:
    """The dtype in which GPyTorch factorizes matrices. It can be set in public, but is read by a private name."""
    return _linalg_dtype_cholesky.value()


@contextmanager
def unvalidated_distributions() -> Iterator[None]:
    """
    Let no distribution look at the values of its arguments. It is a setting of torch's, which no version has a public
    way to ask for.
    """
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def add_note(error: BaseException, note: str) -> None:
    """
    Add a line to what is shown of an error. Python 3.10 has no `add_note` and shows no notes: there the line is also
    put at the end of the message, where the message is the error's only argument.
    """
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.__notes__ = [*getattr(error, "__notes__", []), note]
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (f"{error.args[0]}\n{note}",)
