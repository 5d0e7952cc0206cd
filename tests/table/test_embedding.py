"""Places start in their embedding where what they say at the same time puts them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_sgpvae.linalg.place_kernel import PlaceKernel
from gpytorch_sgpvae.table import SGPVAEImputer, fitting, learnt

NUM_PLACES, NUM_TIMES = 4, 250


def make_table(seed=0):
    """Two pairs of stations on a line, where those that are alike are the far ones: 0 and 2, 1 and 3."""
    random = np.random.default_rng(seed)
    waves = np.sin(np.arange(NUM_TIMES)[:, None] / [7.0, 4.0] + random.uniform(0, 6, 2))
    parts = []
    for place in range(NUM_PLACES):
        values = waves[:, [place % 2]] * [1.0, -2.0] + 0.1 * random.normal(size=(NUM_TIMES, 2))
        parts.append(pd.DataFrame(values, columns=["y", "z"]).assign(km=float(place), hour=np.arange(NUM_TIMES) * 1.0))
    table = pd.concat(parts, ignore_index=True)
    table[["y", "z"]] = table[["y", "z"]].mask(random.random((len(table), 2)) < 0.2)
    return table


def started(table, inputs=("km", "hour"), **options):
    """A model before its training."""
    imputer = SGPVAEImputer(list(inputs), ["y", "z"], max_epochs=1, compare=False, progress=False, **options)
    found = []
    original = fitting.start_embedding
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "start_embedding", lambda *arguments: found.append((original(*arguments), arguments)))
        imputer.fit(table)
    model, plan = found[0][1][:2]
    return imputer, model, plan


def correlations(model, kernel_number):
    """What a group of latent functions has in common between places at one time (`S x S`)."""
    kernel = model.model.covar_module.kernels[kernel_number]
    x = torch.zeros(NUM_PLACES, 2, dtype=torch.float64)
    place = next(part for part in kernel.modules() if isinstance(part, PlaceKernel))
    x[:, place.active_dims] = place.places
    return kernel(x).to_dense().detach().mean(0)


def test_places_that_are_alike_are_close_in_it_wherever_they_are():
    _, model, plan = started(make_table())
    assert plan.num_embedded == NUM_PLACES
    shared = torch.stack([correlations(model, k) for k in range(plan.num_groups)]).mean(0)
    alike, others = shared[[0, 1], [2, 3]], shared[[0, 1, 2, 0], [1, 2, 3, 3]]
    assert alike.min() > 0.7
    assert others.max() < 0.4


def test_places_are_those_of_the_table_and_other_places_are_predicted():
    imputer, model, _ = started(make_table())
    scale = imputer.fitted_.reader.inputs[0].scale
    for kernel in model.modules():
        if isinstance(kernel, PlaceKernel):
            torch.testing.assert_close(kernel.places.diff(dim=0) * scale, torch.ones(3, 1, dtype=torch.float64))
    new = pd.DataFrame({"km": [1.5, 3.0], "hour": [10.5, 10.5]})
    assert np.isfinite(imputer.predict(new, context=make_table())[["y", "z", "y_std"]].to_numpy()).all()


def test_labels_have_one_too_and_outputs_of_all_families(tmp_path):
    table = make_table().assign(station=lambda table: "s" + table["km"].astype(str))
    table["z"] = np.where(table["z"].isna(), None, table["z"] > 0)
    imputer, _, plan = started(table, ["station", "hour"])
    assert (plan.num_embedded, imputer.families_["z"]) == (NUM_PLACES, "flag")
    alike = learnt.label_correlations(imputer.fitted_)["station"]
    with torch.no_grad():
        x = torch.zeros(NUM_PLACES, 2, dtype=torch.float64)
        x[:, 0] = torch.arange(NUM_PLACES)
        kernels = imputer.fitted_.model.model.covar_module.kernels[: plan.num_groups]
        matrix = torch.stack([kernel(x).to_dense().mean(0) for kernel in kernels]).mean(0)
    assert alike == pytest.approx(float(matrix[~torch.eye(NUM_PLACES, dtype=torch.bool)].mean()), abs=1e-9)
    filled = imputer.transform(table)
    imputer.save(tmp_path / "model")
    pd.testing.assert_frame_equal(SGPVAEImputer.load(tmp_path / "model").transform(table), filled)


def test_single_precision_is_enough():
    imputer, _, _ = started(make_table(), dtype="float32")
    assert not imputer.transform(make_table())[["y", "z"]].isna().any().any()
