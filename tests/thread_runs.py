"""
A short training of each kind of ready-made model on a number of threads, as a program: threads have to be chosen
before anything is computed. `python tests/thread_runs.py THREADS STEPS FILE`
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from gpytorch_sgpvae import GPVAE, SGPVAE, VAE, AmortizedModel, MarkovGPVAE

# Adam divides a gradient by its own size plus this. With torch's 1e-8, a gradient that is zero but for rounding makes
# steps of full length, and rounding is what differs between numbers of threads.
EPS = 1e-5
MODELS: dict[str, Callable[[], AmortizedModel]] = {
    "sparse": lambda: SGPVAE(4, 3, torch.linspace(0, 10, 24).unsqueeze(-1)),
    "joint sparse": lambda: SGPVAE(4, 3, torch.linspace(0, 10, 24).unsqueeze(-1), network="jointfactornet"),
    "dense": lambda: GPVAE(4, 3),
    "joint dense": lambda: GPVAE(4, 3, network="jointfactornet"),
    "Markov": lambda: MarkovGPVAE(4, 3, network="factornet"),
    "joint Markov": lambda: MarkovGPVAE(4, 3),
    "pointwise": lambda: VAE(4, 3),
}


def train(make: Callable[[], AmortizedModel], dtype: torch.dtype, num_steps: int) -> dict[str, Tensor]:
    """The bound of the first and of the last step, the parameters, and what the model predicts."""
    torch.manual_seed(0)
    model = make().to(dtype)
    # large enough for torch to share out: 4 tasks of 100 points, with holes
    x = (10 * torch.rand(4, 100, 1)).sort(dim=-2).values.to(dtype)
    y = torch.sin(x * torch.arange(1, 5)) + 0.1 * torch.randn(4, 100, 4).to(dtype)
    y[torch.rand(y.shape) < 0.2] = torch.nan
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=EPS)
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        losses.append(model.loss((x, y)))
        losses[-1].backward()
        optimizer.step()
    mean = model.eval().predict(x, (x, y), num_samples=10).mean
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"first": losses[0].detach(), "last": losses[-1].detach(), "parameters": parameters, "prediction": mean}


def main(num_threads: int, num_steps: int, file: Path) -> None:
    torch.set_num_threads(num_threads)
    dtypes = (torch.float64, torch.float32)
    torch.save(
        {(name, dtype): train(make, dtype, num_steps) for name, make in MODELS.items() for dtype in dtypes}, file
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
