"""How the experiments' models are trained."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import gpytorch
import torch
from torch import Tensor

from gpytorch_sgpvae import Context, InferenceNetwork
from gpytorch_sgpvae.models import AmortizedModel
from gpytorch_sgpvae.training import SGPVAEModule, TaskDataset, TaskLoader, make_trainer
from gpytorch_sgpvae.training.quiet import quiet_lightning

Task = tuple[Tensor, Tensor]

# As the paper has it.
ELBO_SAMPLES = 100
PREDICTION_SAMPLES = 100
# What models get that are compared at equal training time, in seconds of the processor.
BUDGET = 60.0


@dataclass(frozen=True)
class TaskSettings:
    """
    How to train on many tasks.

    :param num_epochs: How often every task comes.
    :param learning_rate: The learning rate of Adam.
    :param schedule: The learning rate's schedule, see :class:`~gpytorch_sgpvae.training.SGPVAEModule`.
    :param batch_size: Tasks in a step.
    :param num_samples: Samples of the latent functions in a step.
    :param hide: Probability of an observed entry to be hidden from the network.
    """

    num_epochs: int
    learning_rate: float = 1e-3
    schedule: str | None = None
    batch_size: int = 1
    num_samples: int = 1
    hide: float = 0.0

    def shortened(self) -> TaskSettings:
        return dataclasses.replace(self, num_epochs=1)


def train_on_tasks(model: AmortizedModel, tasks: list[Task], settings: TaskSettings, seed: int) -> None:
    module = SGPVAEModule(
        model,
        learning_rate=settings.learning_rate,
        schedule=settings.schedule,
        num_samples=settings.num_samples,
        hide=settings.hide,
    )
    with quiet_lightning():
        trainer = make_trainer(
            None,
            max_epochs=settings.num_epochs,
            gradient_clip_val=1e4,
            enable_progress_bar=False,
            accelerator="cpu",
            devices=1,
            log_every_n_steps=1000,
        )
        trainer.fit(module, TaskLoader(TaskDataset(tasks), settings.batch_size, seed=seed))
    model.eval()


def optimize(
    model: AmortizedModel,
    loss: Callable[[], Tensor],
    num_steps: int,
    lr: float,
    schedule: str | None = None,
    factors: Mapping[torch.nn.Module, float] = MappingProxyType({}),
) -> None:
    """
    Train by Adam, for few steps, in which a trainer would take longer than the model.

    :param model: What to train.
    :param loss: The loss of one step.
    :param num_steps: How many.
    :param lr: The learning rate.
    :param schedule: With `one_cycle` it rises from a small one in the first tenth of the steps, and then decays to
        zero; with `cosine` it rises from zero in the first twentieth; with `late` it decays in the second half; by
        default it stays as it is.
    :param factors: Modules whose parameters have another learning rate, as a multiple of `lr`.
    """
    factor_of = {parameter: factor for module, factor in factors.items() for parameter in module.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if factor_of.get(p, 1.0) == factor], "lr": factor * lr}
        for factor in sorted({1.0, *factor_of.values()})
    ]
    optimizer = torch.optim.Adam(groups, fused=True)
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    if schedule == "one_cycle":
        highest = [group["lr"] for group in groups]
        # one step more, as its last one would be of length zero
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, highest, num_steps + 1, pct_start=0.1)
    elif schedule == "cosine":
        warmup = max(num_steps // 20, 1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda i: min(1.0, (i + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * i / num_steps))
        )
    elif schedule == "late":
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, 2 * (1 - i / num_steps)))
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    model.eval()


def optimize_for(seconds: float, model: AmortizedModel, loss: Callable[[], Tensor], lr: float) -> dict[str, float]:
    """
    Train by Adam for a number of seconds of the processor, and for at least one step. The learning rate is a function
    of the time that is used up: it rises from zero in the first twentieth of it, and then decays to zero
    along a cosine.

    :param seconds: How many. Other processes on the machine do not count.
    :param model: What to train.
    :param loss: The loss of one step.
    :param lr: The highest learning rate.
    :return: What it took, for :attr:`~experiments.experiment.Outcome.extra`.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr, fused=True)
    start, used, steps = time.process_time(), 0.0, 0
    while used < seconds or not steps:
        share = min(used / seconds, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, 20 * share) * 0.5 * (1 + math.cos(math.pi * share))
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        used, steps = time.process_time() - start, steps + 1
    model.eval()
    return {"training_steps": steps, "training_seconds": used}


@torch.no_grad()
def initialize(*modules: torch.nn.Module) -> None:
    """
    Start as the authors' code does: normal weights after Glorot and Bengio, and no biases but those that the sites'
    standard deviations start with. All kinks of a perceptron are then at zero: with little data it stays closer to a
    linear map.

    :param modules: Inference networks and decoders.
    """
    for module in modules:
        for name, parameter in module.named_parameters():
            if "bias" in name:
                parameter.zero_()
            else:
                for matrix in parameter.view(-1, *parameter.shape[-2:]):
                    torch.nn.init.xavier_normal_(matrix)
        if isinstance(module, InferenceNetwork):
            module.initialize_stddev(parameter)  # the last one, the bias of the last layer


@torch.no_grad()
def training_elbo(model: AmortizedModel, tasks: list[Task]) -> float:
    """The sum of the tasks' bounds, by which runs are kept or dropped."""
    with gpytorch.settings.num_likelihood_samples(ELBO_SAMPLES):
        return sum(model.elbo(Context(*task)).item() for task in tasks)


def centers(x: Tensor, num_centers: int, seed: int) -> Tensor:
    """Inducing points: the centers of k-means over all inputs (`M x D`)."""
    from sklearn.cluster import KMeans

    means = KMeans(num_centers, n_init=1, random_state=seed).fit(x.numpy())
    return torch.as_tensor(means.cluster_centers_, dtype=x.dtype)
