r"""
The pictures that every user wants. Each function draws on the axes that it is given, or makes some, and returns them;
tensors may be of any dtype, on any device, with gradients or without. Needs the extra `plot`.

Bands are central 95 % intervals. The colors are Okabe and Ito's, which color-blind people can tell apart; `STYLES` has
them, each with a marker and dashes, for pictures of your own.

Example:
    >>> import torch
    >>> from gpytorch_sgpvae import SGPVAE, plotting
    >>> x, y = torch.linspace(0, 1, 30), torch.randn(30, 2)
    >>> y[:10, 1] = torch.nan
    >>> model = SGPVAE(num_outputs=2, num_latents=1, inducing_points=torch.linspace(0, 1, 8)).eval()
    >>> grid = torch.linspace(0, 1, 100)
    >>> prediction = model.predict(grid, context=(x, y))
    >>> latents = plotting.plot_latents(grid, model.condition((x, y)))
    >>> latents.get_xlabel(), latents.get_ylabel()
    ('x', 'f')
    >>> for axes in plotting.plot_outputs(grid, prediction, context=(x, y), names=["wind", "rain"]):
    ...     print(axes.get_ylabel())
    wind
    rain
"""

from importlib.util import find_spec

if find_spec("matplotlib") is None:
    raise ImportError("Plotting needs matplotlib: pip install 'gpytorch-sgpvae[plot]'")

# None of these imports matplotlib: who only wants the styles does not wait for it.
from .calibration import plot_calibration
from .latents import plot_latents
from .maps import plot_map, plot_predicted_map
from .missingness import plot_missingness
from .outputs import plot_outputs
from .panels import legend_entries
from .styles import STYLES as STYLES
from .training_curves import TRAINING_PANELS as TRAINING_PANELS
from .training_curves import plot_training_curves, training_panels

__all__ = [
    "legend_entries",
    "plot_calibration",
    "plot_latents",
    "plot_map",
    "plot_missingness",
    "plot_outputs",
    "plot_predicted_map",
    "plot_training_curves",
    "training_panels",
]
