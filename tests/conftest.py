import sys

import hypothesis
import pytest
import torch

# The tensors here are tiny: a second thread only waits for the first, and far longer on a busy machine.
torch.set_num_threads(1)
# Nor is an example's time a promise: the first one may have to load a library.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    if "matplotlib.pyplot" in sys.modules:  # which not every test needs
        sys.modules["matplotlib.pyplot"].close("all")
