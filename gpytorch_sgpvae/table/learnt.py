"""Tables of what a model has learnt, in the units of the table that it was fitted to."""

from __future__ import annotations

from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import MaternKernel

from ..linalg.label_kernels import LabelKernel
from ..linalg.place_kernel import PlaceKernel
from .calibration import noise_variance
from .fitted import FittedTable
from .model import matern_of

# The row of the latent functions that all outputs share, beside those of single outputs.
ALL = "all outputs"


def kernel_names(fitted: FittedTable) -> list[str]:
    """
    Name the groups of latent functions, in the order of their kernels: `shared 1 (rough)`, `own 1 (rough)`.

    :param fitted: The result of fitting a table.
    """
    plan, names = fitted.plan, []
    for i, kernel in enumerate(_kernels(fitted)):
        matern = next(part for part in [*kernel.modules(), None] if isinstance(part, MaternKernel) or part is None)
        words = [] if matern is None else ["rough" if matern.nu == 0.5 else "smooth"]
        is_private = i >= plan.num_groups
        if is_private and plan.has_places and i == plan.num_groups + 1:
            words.append("of each place")
        number = i - plan.num_groups + 1 if is_private else i + 1
        kind = f" ({', '.join(words)})" if words else ""
        names.append(f"{'own' if is_private else 'shared'} {number}{kind}")
    return names


def lengthscales(fitted: FittedTable) -> pd.DataFrame:
    r"""
    Tabulate the distances over which the latent functions change, in the units of each input, days for dates. A row is
    a group of latent functions that all outputs share (`"all outputs"`), or the functions that an output has for
    itself. The functions of a category have their geometric mean. NaN means that the functions do not depend on
    distances in an input. Labels and periodic inputs have no distances, and no columns.

    :param fitted: The result of fitting a table.
    """
    plan, inputs = fitted.plan, fitted.reader.inputs
    rows = []
    for i, (name, kernel) in enumerate(zip(kernel_names(fitted), _kernels(fitted), strict=True)):
        is_private = i >= plan.num_groups
        found: dict[str, np.ndarray] = {}
        for dims in ((plan.time,), plan.space):
            matern = None if not dims or dims == (None,) else matern_of(kernel, dims)  # type: ignore[arg-type]
            if matern is not None:
                scales = matern.lengthscale.detach().cpu().double().numpy().reshape(-1, len(dims))
                units = np.array([inputs[d].scale for d in dims])  # type: ignore[index]
                found |= {inputs[d].name: scales[:, k] * units[k] for k, d in enumerate(dims)}  # type: ignore[index]
        parts = [(column.name, values) for column, values in _values_of_columns(fitted)]
        for output, chosen in parts if is_private else [(ALL, np.arange(1))]:
            row = {"functions": name, "output": output}
            rows.append(row | {key: float(np.exp(np.log(values[chosen]).mean())) for key, values in found.items()})
    columns = [inputs[d].name for d in plan.numbers]
    return pd.DataFrame(rows).set_index(["functions", "output"]).reindex(columns=columns)


def label_correlations(fitted: FittedTable) -> pd.Series:
    r"""
    Tabulate how alike the shared latent functions are at different labels of an input, :math:`e^{-1/\ell}`: 1 where the
    label does not matter, 0 where labels have nothing in common. There is an entry for each input that holds labels.
    Where places have an embedding, it is times their mean correlation by that.

    :param fitted: The result of fitting a table.
    """
    plan, inputs = fitted.plan, fitted.reader.inputs
    found: dict[str, list[float]] = {inputs[d].name: [] for d in plan.labels}
    for kernel in _kernels(fitted)[: plan.num_groups]:
        parts = list(kernel.modules())
        embeddings = [part for part in parts if isinstance(part, PlaceKernel)]
        for part in parts:
            if isinstance(part, LabelKernel):
                scales = part.lengthscale.detach().cpu().double().numpy().reshape(-1, len(plan.labels))
                for k, d in enumerate(plan.labels):
                    more = [_at_different_places(embedding, plan.place.index(d)) for embedding in embeddings]
                    found[inputs[d].name].append(float(np.exp(-1 / scales[:, k]).mean() * np.prod(more)))
    return pd.Series({name: float(np.mean(values)) for name, values in found.items()}, dtype=float)


def variances(fitted: FittedTable) -> pd.DataFrame:
    """
    Tabulate the parts that each output is made of. The shares `shared`, `own` and `noise` are those of functions which
    all outputs share, of its own functions and of noise; they add up to 1 and say nothing of the trend. The share of
    the `trend`, cycles and constants of places, which was taken off before, is that of the whole variance. `noise_std`
    is the noise's standard deviation in the column's units, in the middle of its values. Families without Gaussian
    noise have no `noise`, `noise_std` and `trend`: their shares are of what comes before their noise.

    :param fitted: The result of fitting a table.
    """
    outputs = fitted.reader.outputs
    shared, private = np.square(_shared(fitted)).sum(1), np.square(_private(fitted)).sum(1)  # (J,)
    noise = noise_variance(outputs, fitted.model, next(fitted.model.parameters())).cpu().double().numpy()  # (P,)
    rows = []
    for p, (column, values) in enumerate(_values_of_columns(fitted)):
        parts = np.array([shared[values].sum(), private[values].sum(), noise[p]])
        row = dict(zip(("shared", "own", "noise"), parts / max(parts.sum(), 1e-300), strict=True))
        row |= {"trend": np.nan, "noise_std": np.nan}
        if column.is_gaussian:
            marginal = float(fitted.calibration.marginal[p])  # of standardized targets
            row["trend"] = max(0.0, 1 - marginal**2) if _has_trend(fitted) and np.isfinite(marginal) else 0.0
            around = column.values_of(torch.tensor([-1.0, 1.0], dtype=torch.float64) * float(np.sqrt(noise[p])))
            row["noise_std"] = float(around[1] - around[0]) / 2
        else:
            row["noise"] = np.nan
        rows.append(row)
    return pd.DataFrame(rows, index=pd.Index(outputs.names, name="output"))


def correlations(fitted: FittedTable) -> pd.DataFrame:
    r"""
    Tabulate the correlations of the outputs in a row that their loadings of shared functions imply, before noise and
    without the trend. Each of the labels of a category has a row and a column.

    .. math::

        \frac{\mathbf w_j^\top \mathbf w_{j'}}{\sqrt{(|\mathbf w_j|^2 + |\mathbf v_j|^2)
        (|\mathbf w_{j'}|^2 + |\mathbf v_{j'}|^2)}}

    :param fitted: The result of fitting a table.
    """
    shared, private = _shared(fitted), _private(fitted)
    covariance = shared @ shared.T  # (J, J)
    stddev = np.sqrt(np.diag(covariance) + np.square(private).sum(1)).clip(1e-300)
    values = covariance / np.outer(stddev, stddev)
    np.fill_diagonal(values, 1.0)
    names = []
    for column, numbers in _values_of_columns(fitted):
        names += [column.name] if len(numbers) == 1 else [f"{column.name}: {label}" for label in column.levels]
    return pd.DataFrame(values, index=names, columns=names)


def cycles(fitted: FittedTable) -> pd.DataFrame:
    """
    The cycles that were found, a row for each `period`, in the unit of the time, days for dates: the share of each
    output's variance that the cycle explains.

    :param fitted: The result of fitting a table.
    """
    found, names = fitted.trend.cycles, fitted.reader.outputs.names
    rows, first = [], 0
    for period, number in zip(found.periods, found.harmonics, strict=True):
        # sines and cosines have the variance 1/2, and targets are standardized
        rows.append([period, *(0.5 * np.square(found.coefficients[first : first + 2 * number]).sum(0))])
        first += 2 * number
    return pd.DataFrame(rows, columns=["period", *names]).set_index("period")


def _at_different_places(kernel: PlaceKernel, d: int) -> float:
    """The mean of a kernel over pairs of its places that differ in an input, the d-th of those that make them."""
    with torch.no_grad():
        matrix = kernel.forward(kernel.places, kernel.places).mean(0)  # (S, S)
        differ = kernel.places[:, d].unsqueeze(1) != kernel.places[:, d]
        return float(matrix[differ].mean()) if bool(differ.any()) else 1.0


def _has_trend(fitted: FittedTable) -> bool:
    return bool(fitted.trend.cycles.periods) or len(fitted.trend.places.places) > 0


def _kernels(fitted: FittedTable) -> list[gpytorch.kernels.Kernel]:
    return list(fitted.model.model.covar_module.kernels)


def _values_of_columns(fitted: FittedTable) -> list[tuple[Any, np.ndarray]]:
    """The output columns with the numbers of the decoder's values that each takes."""
    outputs = fitted.reader.outputs
    ends = np.cumsum(outputs.num_values)
    return list(zip(outputs.columns, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))


def _shared(fitted: FittedTable) -> np.ndarray:
    """Loadings of the functions that all outputs share (`J x K`)."""
    decoder: Any = fitted.model.likelihood.decoder
    return decoder.shared.detach().cpu().double().numpy()


def _private(fitted: FittedTable) -> np.ndarray:
    """Loadings of the functions that each of the decoder's values has for itself (`J x I`)."""
    decoder: Any = fitted.model.likelihood.decoder
    return decoder.private.detach().cpu().double().numpy()
