"""
The triangular algebra of Gaussian processes in ONNX, which has no operator for it: loops over the columns of a factor
and over the rows of a solution, for matrices of any size in batches of any shape. It needs the extra `export`.
"""

# mypy: ignore-errors
# onnxscript reads these functions as a language of its own: annotations are types of ONNX, operators are nodes.

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from onnxscript import DOUBLE, FLOAT, script
from onnxscript import opset18 as op

Real = TypeVar("Real", FLOAT, DOUBLE)


@script()
def _cholesky(A: Real) -> Real:
    shape = op.Shape(A)
    size = op.Gather(shape, -1)
    batches = op.Concat([-1], op.Unsqueeze(size, [0]), op.Unsqueeze(size, [0]), axis=0)
    rest = op.Reshape(A, batches)  # (B, M, M)
    L = rest * op.CastLike(0, rest)
    numbers = op.Range(0, size, 1)
    for j in range(size):
        column = op.Gather(rest, j, axis=2)  # (B, M)
        pivot = op.Unsqueeze(op.Gather(column, j, axis=1), [1])  # (B, 1)
        column = op.Where(numbers < j, op.CastLike(0, column), column / op.Sqrt(pivot))
        rest = rest - op.Unsqueeze(column, [2]) * op.Unsqueeze(column, [1])
        here = op.CastLike(numbers == j, column)
        L = L + op.Unsqueeze(column, [2]) * op.Unsqueeze(here, [0, 1])
    return op.Reshape(L, shape)


@script()
def _solve_lower(L: Real, B: Real) -> Real:
    # with the batch dimensions of both
    L = L + op.CastLike(0, L) * op.ReduceSum(B, [-1], keepdims=1)
    B = B + op.CastLike(0, B) * op.ReduceSum(L, [-1], keepdims=1)
    shape = op.Shape(B)
    size, width = op.Gather(shape, [-2]), op.Gather(shape, [-1])
    factors = op.Reshape(L, op.Concat([-1], size, size, axis=0))  # (B, M, M)
    right = op.Reshape(B, op.Concat([-1], size, width, axis=0))  # (B, M, R)
    X = right * op.CastLike(0, right)
    numbers = op.Range(0, op.Squeeze(size), 1)
    for i in range(op.Squeeze(size)):
        row = op.Gather(factors, i, axis=1)  # (B, M)
        pivot = op.Unsqueeze(op.Gather(row, i, axis=1), [1])  # (B, 1)
        solved = op.Squeeze(op.MatMul(op.Unsqueeze(row, [1]), X), [1])  # (B, R)
        x = (op.Gather(right, i, axis=1) - solved) / pivot  # (B, R)
        here = op.CastLike(numbers == i, x)
        X = X + op.Unsqueeze(here, [0, 2]) * op.Unsqueeze(x, [1])
    return op.Reshape(X, shape)


def linalg_cholesky_ex(A, upper: bool = False, check_errors: bool = False):
    _expect(not upper)
    return _cholesky(A), op.Constant(value_int=0)


def linalg_solve_triangular(L, B, upper: bool, left: bool = True, unitriangular: bool = False):
    _expect(left and not upper and not unitriangular)
    return _solve_lower(L, B)


def cholesky_inverse(L, upper: bool = False):
    _expect(not upper)
    shape = op.Shape(L)
    size = op.Gather(shape, -1)
    eye = op.EyeLike(op.Expand(op.CastLike(0, L), op.Concat(op.Unsqueeze(size, [0]), op.Unsqueeze(size, [0]), axis=0)))
    inverse = _solve_lower(L, eye)
    dims = list(range(len(L.shape)))
    return op.MatMul(op.Transpose(inverse, perm=[*dims[:-2], dims[-1], dims[-2]]), inverse)


# onnxruntime has the operators for these three in float32 alone.


def leaky_relu(x, negative_slope: float = 0.01):
    return op.Where(x < op.CastLike(0.0, x), x * op.CastLike(negative_slope, x), x)


def softplus(x, beta: float = 1.0, threshold: float = 20.0):
    beta = op.CastLike(beta, x)
    z = x * beta
    return (op.Max(z, op.CastLike(0.0, x)) + op.Log(op.Exp(-op.Abs(z)) + op.CastLike(1.0, x))) / beta


def erf(x):
    # which is right to 1e-7
    return op.CastLike(op.Erf(op.Cast(x, to=FLOAT.dtype)), x)


def _expect(is_lower: bool) -> None:
    if not is_lower:
        raise NotImplementedError(
            "to_onnx translates lower triangular factors that are solved from the left, and no others."
        )


TRANSLATIONS: "dict[Callable[..., Any], Callable[..., Any]]" = {
    torch.ops.aten.linalg_cholesky_ex.default: linalg_cholesky_ex,
    torch.ops.aten.linalg_solve_triangular.default: linalg_solve_triangular,
    torch.ops.aten.cholesky_inverse.default: cholesky_inverse,
    torch.ops.aten.leaky_relu.default: leaky_relu,
    torch.ops.aten.softplus.default: softplus,
    torch.ops.aten.erf.default: erf,
}
