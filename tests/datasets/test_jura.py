from __future__ import annotations

import pytest
import torch

from gpytorch_sgpvae.datasets import jura, load_jura

HEADER = "rownames,Xloc,Yloc,Landuse,Rock,Cd,Co,Cr,Cu,Ni,Pb,Zn\n"
PREDICTION = HEADER + "1,2.386,3.077,3,3,1.74,9.32,38.32,25.72,21.32,77.36,92.56\n"
VALIDATION = HEADER + "1,2.672,3.558,3,5,1.57,8.28,37.12,18.6,18.6,38.2,65.2\n2,3.5,4.4,3,1,2,10,40,11,21,33,112\n"


@pytest.fixture
def small_jura(cache, server, monkeypatch):
    monkeypatch.setattr(jura, "PREDICTION", server.offer("jura/prediction.dat", PREDICTION))
    monkeypatch.setattr(jura, "VALIDATION", server.offer("jura/validation.dat", VALIDATION))


@pytest.mark.usefixtures("small_jura")
def test_cadmium_is_held_out_at_the_locations_of_the_second_file():
    data = load_jura()
    ((x, y),), (truth,) = data.train, data.train_truth
    assert x.dtype == y.dtype == torch.float64
    assert x.tolist() == [[2.386, 3.077], [2.672, 3.558], [3.5, 4.4]]
    assert y[:, :2].tolist() == [[21.32, 92.56], [18.6, 65.2], [21, 112]]
    assert y[0, 2] == 1.74
    assert y[1:, 2].isnan().all()
    assert truth[1:, 2].tolist() == [1.57, 2]
    assert torch.equal(truth.isnan(), ~y.isnan())
    assert data.outputs == {"Ni": "mg/kg", "Zn": "mg/kg", "Cd": "mg/kg"}
    assert data.inputs == {"Xloc": "km", "Yloc": "km"}
    assert data.seen == [True]


@pytest.mark.usefixtures("small_jura")
def test_other_metals_can_be_asked_for():
    data = load_jura(outputs=["Cu", "Pb"], held_out=["Pb", "Cu"])
    assert data.test[0][1].isfinite().tolist() == [[True, True], [False, False], [False, False]]
    with pytest.raises(ValueError, match="Cd cannot be held out: the outputs are Cu, Pb"):
        load_jura(outputs=["Cu", "Pb"])
    with pytest.raises(ValueError, match=r"prediction\.dat cannot be read \(it has no Hg, but rownames"):
        load_jura(outputs=["Hg", "Cd"])


def test_the_protocol_of_the_experiment(real_data):
    data = load_jura()
    ((x, y),), (truth,) = data.test, data.test_truth
    assert x.shape == (359, 2)
    assert y.isfinite().sum(0).tolist() == [359, 359, 259]
    assert truth.isfinite().sum(0).tolist() == [0, 0, 100]
    assert y[:259].isfinite().all()
