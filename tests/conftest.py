import contextlib
import sys

import gpytorch
import hypothesis
import linear_operator
import pytest
import torch

# The tensors here are tiny: a second thread only waits for the first, and far longer on a busy machine.
torch.set_num_threads(1)
# Nor is an example's time a promise: the first one may have to load a library.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


# BoTorch changes these for all of a process when it is imported, as it is for its examples: found here before that.
COMPUTATIONS = [
    getattr(linear_operator.settings, f"_fast_{name}") for name in ("covar_root_decomposition", "log_prob", "solves")
]
NUMBERS = [
    linear_operator.settings.cholesky_max_tries,
    linear_operator.settings.max_cholesky_size,
    gpytorch.settings.max_eager_kernel_size,
]
AS_SHIPPED = [setting(setting.on()) for setting in COMPUTATIONS] + [setting(setting.value()) for setting in NUMBERS]


@pytest.fixture(autouse=True)
def _settings_as_shipped():
    """GPyTorch's settings are its own defaults, whether BoTorch is installed or not."""
    with contextlib.ExitStack() as stack:
        for setting in AS_SHIPPED:
            stack.enter_context(setting)
        yield


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


@pytest.fixture
def _no_grad():
    """GPyTorch's distance of a point to itself is 1e-8 instead of 0 while gradients are recorded."""
    with torch.no_grad():
        yield
