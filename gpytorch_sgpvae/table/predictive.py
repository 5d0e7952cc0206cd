from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from ..likelihoods import Prediction
from .imputer import NUM_SAMPLES, ROWS_AT_A_TIME, SGPVAEImputer


def predictive(imputer: SGPVAEImputer, df: pd.DataFrame, context: pd.DataFrame) -> Prediction:
    """
    What :meth:`~gpytorch_sgpvae.table.SGPVAEImputer.predict` summarizes: the distributions of all outputs in all rows,
    in the outputs' own units (`N x P`; flags and categories are numbers of labels).

    :param imputer: Fitted.
    :param df: With the input columns, and that of the task.
    :param context: What is known of the tasks.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from gpytorch_sgpvae.table import SGPVAEImputer
        >>> from gpytorch_sgpvae.table.predictive import predictive
        >>> table = pd.DataFrame({"site": np.repeat(list("abcdef"), 9), "day": np.tile(np.arange(9.0), 6)})
        >>> table["warmth"] = np.sin(table["day"])
        >>> imputer = SGPVAEImputer(["day"], ["warmth"], task="site", max_epochs=1, progress=False).fit(table)
        >>> predictive(imputer, table, context=table).quantile([0.1, 0.9]).shape
        torch.Size([2, 54, 1])
    """
    reader = imputer._fitted_reader
    known = reader.read(context)
    parts = list(imputer._predictions(known, reader.read_places(df, context, known), np.arange(len(df))))
    order = torch.tensor(np.argsort(np.concatenate([rows for rows, _ in parts])))
    means, stddevs = (
        torch.cat([getattr(prediction, name) for _, prediction in parts])[order.to(parts[0][1].function_mean.device)]
        for name in ("function_mean", "function_stddev")
    )
    with torch.no_grad():
        return Prediction(parts[0][1].likelihood, means, stddevs, NUM_SAMPLES, chunk_size=ROWS_AT_A_TIME)
