from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..variational import DenseJointAmortizedVariationalStrategy, MarkovAmortizedVariationalStrategy
from ..variational.posterior import amortized_strategy
from .modules import PredictionModule

# Strategies whose exported operations are for as many points as the example has.
OF_SO_MANY_POINTS = (DenseJointAmortizedVariationalStrategy, MarkovAmortizedVariationalStrategy)


def to_onnx(module: torch.nn.Module, args: tuple[Tensor, ...], file: str | Path, dynamic_shapes: Any = None) -> None:
    """
    Write a :class:`PredictionModule`, or one of its parts, as an ONNX model, which needs the extra `export` and torch
    2.9 or newer. Inputs are named as the arguments of the module's `forward`; the outputs of a
    :class:`PredictionModule` are `y_mean` and `y_variance`.

    ONNX has no Cholesky factor: it becomes a loop over columns, in operators that onnxruntime has for float32 and
    float64. For thousands of inducing points, or of data without them, torch is much faster.

    :param module: The module.
    :param args: Its arguments, as an example: at least two points each. Their batch shapes and the numbers of input
        dimensions and outputs are those that the model will have.
    :param file: Where to write it.
    :param dynamic_shapes: Which sizes may be others later, as `torch.export.export` takes it; by default the
        numbers of points of a :class:`PredictionModule`, unless its strategy is that of `GPVAE` with
        `network="jointfactornet"`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE
        >>> from gpytorch_sgpvae.export import PredictionModule, to_onnx
        >>> module = PredictionModule(SGPVAE(num_outputs=2, num_latents=1, inducing_points=torch.rand(3, 1)))
        >>> to_onnx(module, (torch.rand(4, 1), torch.rand(5, 1), torch.randn(5, 2)), "model.onnx")  # doctest: +SKIP
    """
    try:
        from .onnx_functions import TRANSLATIONS
    except ImportError as error:
        raise ImportError("to_onnx needs onnx and onnxscript: pip install 'gpytorch-sgpvae[export]'.") from error
    output_names = None
    if isinstance(module, PredictionModule):
        output_names = ["y_mean", "y_variance"]
        if dynamic_shapes is None:
            dynamic_shapes = _numbers_of_points(module, *args)
    program = torch.onnx.export(
        module,
        args,
        dynamo=True,
        verbose=False,
        input_names=list(inspect.signature(module.forward).parameters)[: len(args)],
        output_names=output_names,
        dynamic_shapes=dynamic_shapes,
        custom_translation_table=TRANSLATIONS,
    )
    assert program is not None  # as dynamo=True says
    program.save(str(file))


def _numbers_of_points(
    module: PredictionModule, x: Tensor, x_context: Tensor, y_context: Tensor
) -> tuple[dict[int, Any], ...] | None:
    """The dimensions of points, where the strategy's algebra is the same for any number of them."""
    if isinstance(amortized_strategy(module.conditioning.model), OF_SO_MANY_POINTS):
        return None
    dims = x.dim() - 2, x_context.dim() - 2, y_context.dim() - (1 if y_context.dim() < x_context.dim() else 2)
    return tuple({dim: torch.export.Dim.DYNAMIC} for dim in dims)
