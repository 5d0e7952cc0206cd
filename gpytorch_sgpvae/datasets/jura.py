from __future__ import annotations

from collections.abc import Sequence

import torch

from .files import GITHUB, DataFile, locate, read_table
from .missingness import columns_of, hold_out
from .task_data import TaskData

_PLACE = f"{GITHUB}/shixinxing/NNGPVAE-official/402c899187d227e0dd1c12b210cb47442cbd3eeb/data"
PREDICTION = DataFile(
    "jura/prediction.dat",
    "ac09ef5312f2b8864abad54908eb920692b22a75fcad93bea2860fd72c38016e",
    f"{_PLACE}/jura/prediction.dat",
)
VALIDATION = DataFile(
    "jura/validation.dat",
    "c86380abc391c731fafd0ba778eaacda4bfeaa72b71d5723821acc6d9a13d3b2",
    f"{_PLACE}/jura/validation.dat",
)


def load_jura(outputs: Sequence[str] = ("Ni", "Zn", "Cd"), held_out: Sequence[str] = ("Cd",)) -> TaskData:
    r"""
    Heavy metals in the topsoil of the Swiss Jura (`Goovaerts (1997)`_): one task of 359 locations. Cadmium is missing
    at the last 100 of them, and is to be predicted from nickel and zinc, which are known everywhere. Training and test
    have the same task.

    :param outputs: Columns of y: of Cd, Co, Cr, Cu, Ni, Pb and Zn, in mg/kg.
    :param held_out: The metals that are missing at the last 100 locations, some of `outputs`.

    Example:
        >>> from gpytorch_sgpvae.datasets import load_jura
        >>> data = load_jura()  # doctest: +SKIP
        >>> data  # doctest: +SKIP
        TaskData(1 + 1 tasks, Xloc [km], Yloc [km] -> Ni [mg/kg], Zn [mg/kg], Cd [mg/kg])
        >>> data.train[0][1].shape, data.test_truth[0].isfinite().sum(0)  # doctest: +SKIP
        (torch.Size([359, 3]), tensor([  0,   0, 100]))

    .. _Goovaerts (1997):
        https://global.oup.com/academic/product/9780195115383
    """
    inputs = {"Xloc": "km", "Yloc": "km"}
    full, partial = (
        torch.tensor(read_table(locate(file), [*inputs, *outputs]).to_numpy(float)) for file in (PREDICTION, VALIDATION)
    )
    x, y = torch.cat([full, partial]).split([len(inputs), len(outputs)], dim=-1)
    hidden = torch.zeros_like(y, dtype=torch.bool)
    hidden[len(full) :] = columns_of(outputs, held_out)
    y, truth = hold_out(y, hidden)
    return TaskData(
        train=[(x, y)],
        train_truth=[truth],
        test=[(x, y)],
        test_truth=[truth],
        seen=[True],
        inputs=inputs,
        outputs=dict.fromkeys(outputs, "mg/kg"),
    )
