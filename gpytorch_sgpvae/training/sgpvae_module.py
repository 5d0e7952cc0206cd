from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from gpytorch.models import ApproximateGP
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from linear_operator.utils.errors import NanError
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from .._compat import FUSED, get_total_norm
from ..context import Context
from ..likelihoods import DecoderLikelihood
from ..mlls import TaskELBO
from ..models.base import AmortizedModel, parts_of
from ..utils.files import is_url
from ..utils.seeds import TaskDraws, derive_seed, seeded
from ..variational.posterior import amortized_strategy
from .bad_steps import NUMERICAL_ERRORS, BadSteps, find_culprits
from .checkpoints import check_checkpoint, read_checkpoint, stamp_checkpoint
from .fingerprint import check_fingerprint, fingerprint
from .held_out import SCORES, predict_hidden, score_sums
from .parameter_groups import parameter_groups
from .task_dataset import TaskBatch, TaskDataset
from .task_loader import TaskLoader

if TYPE_CHECKING:
    from typing_extensions import Self


class SGPVAEModule(LightningModule):
    r"""
    Any model of this package for Lightning's :class:`~lightning.pytorch.Trainer`. With weights :math:`w_t` (1, or 0 for
    tasks that only fill up a batch) the loss of a batch is

    .. math::

        - \frac 1 B \sum_{t \in \text{batch}} w_t \, \mathcal L^{(t)}

    with B the nominal batch size, also for a last batch that is smaller. Every task counts the same, and the gradient
    of a step is the same whether its tasks come in one batch, one by one (`accumulate_grad_batches`), or on several
    processes.

    Random numbers come from the batch's seeds, one for each task and epoch: a task meets the same ones in any batch and
    on any process, and a run that is resumed meets those that it would have met.

    A step whose loss or gradient is not finite, or that fails with a numerical error, is skipped, counted
    (`skipped_steps`) and logged with the ids of the tasks that are to blame.

    It logs `train_elbo` (with the present factor of the KL divergence) and `val_elbo`, in nats per observed value; of
    the entries that it hides from itself in validation `val_mae`, `val_nll` (of the Gaussian with the predicted
    moments, or of the predicted mixture where outputs are not Gaussian) and `val_coverage` (of the 95 % interval); and
    `noise`, `lengthscale_min` and `lengthscale_max`, with the lengthscales of each kernel.

    :param model: A ready-made model, or an approximate GP with an amortized strategy.
    :param likelihood: The likelihood, where the model does not bring one.
    :param learning_rate: Adam's learning rate, or a mapping with one for each of `"hyperparameters"` (of kernels, means
        and noise), `"inducing_points"` and `"networks"` (inference network and decoder).
    :param schedule: `"cosine"` to decay the learning rates to zero over the run, None to keep them, or a function of
        the optimizer and the number of steps that returns a scheduler, which then takes one step each step.
    :param lr_warmup_steps: Steps in which the learning rates grow from zero, before the schedule.
    :param beta: Factor of the KL divergence.
    :param kl_warmup_steps: Steps in which that factor grows from zero.
    :param num_samples: Monte Carlo samples of a training step; by default
        :class:`gpytorch.settings.num_likelihood_samples`.
    :param hide: Hide each observed entry from the network with this probability, see
        :meth:`~gpytorch_sgpvae.Context.hide`.
    :param chunk_size: Points computed at a time, see :meth:`~gpytorch_sgpvae.TaskELBO.of_context`.
    :param batch_size: B, by default that of the training loader.
    :param num_tasks: Number of training tasks, for hyperpriors, by default that of the training loader.
    :param validation_hide: Fraction of the entries that is hidden in validation, and then predicted.
    :param validation_samples: Monte Carlo samples in validation.
    :param rescale: Mean and standard deviation of each output (`P`) if they were normalized: held-out scores are then
        in the original units.
    :param max_skipped_steps: The number of skipped steps in a row that ends the training.
    :param check_tasks: Whether a run refuses to go on with other tasks than it was begun with.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE
        >>> from gpytorch_sgpvae.training import SGPVAEModule, TaskDataset, TaskLoader, make_trainer
        >>> dataset = TaskDataset([(torch.rand(n, 2), torch.randn(n, 5)) for n in (7, 4, 9)])
        >>> sgpvae = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.rand(8, 2))
        >>> module = SGPVAEModule(sgpvae, learning_rate=1e-2, kl_warmup_steps=10, hide=0.25)
        >>> trainer = make_trainer(None, max_epochs=2, enable_progress_bar=False)
        >>> trainer.fit(module, TaskLoader(dataset, batch_size=2))
        >>> trainer.global_step
        4
    """

    def __init__(
        self,
        model: AmortizedModel | ApproximateGP,
        likelihood: Likelihood | None = None,
        learning_rate: float | Mapping[str, float] = 5e-3,
        schedule: str | Callable[[Optimizer, int], LRScheduler] | None = None,
        lr_warmup_steps: int = 0,
        beta: float = 1.0,
        kl_warmup_steps: int = 0,
        num_samples: int | None = None,
        hide: float = 0.0,
        chunk_size: int | None = None,
        batch_size: int | None = None,
        num_tasks: int | None = None,
        validation_hide: float = 0.25,
        validation_samples: int = 50,
        rescale: tuple[Tensor, Tensor] | None = None,
        max_skipped_steps: int = 10,
        check_tasks: bool = True,
    ):
        super().__init__()
        parts_of(model, likelihood)  # refuses a model without a likelihood
        if isinstance(model, AmortizedModel) and likelihood is not None:
            raise ValueError(f"{type(model).__name__} brings its own likelihood: leave out likelihood=.")
        if isinstance(schedule, str) and schedule != "cosine":
            raise ValueError(f'There is no schedule {schedule!r}: choose "cosine" or None, or give a function.')
        self.save_hyperparameters(ignore=["model", "likelihood", "schedule", "rescale"])
        self.model = model
        self.likelihood = likelihood
        self.schedule = schedule
        self.rescale = rescale
        self.bad_steps = BadSteps(max_skipped_steps)
        self._batch_size = batch_size
        self._num_tasks = num_tasks
        self._validation_sums: Tensor | None = None
        self._loader_state: dict[str, Any] | None = None
        # Fingerprints of the tasks that a run was begun with, and of those at hand.
        self._saved_tasks: dict[str, Any] | None = None
        self._tasks: dict[str, Any] | None = None

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path | IO,
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = True,
        **kwargs: Any,
    ) -> Self:
        """
        A model from a checkpoint whose sha256 is right. As in
        :meth:`lightning.pytorch.LightningModule.load_from_checkpoint`; without `weights_only=False` no code in it runs.

        :param checkpoint_path: Such as `last.ckpt` or `best.ckpt` in a run's folder.
        :param kwargs: Arguments of this class that are no part of the checkpoint: `model=`, and `likelihood=` if it has
            one.
        """
        if isinstance(checkpoint_path, (str, Path)) and not is_url(checkpoint_path):
            checkpoint_path = read_checkpoint(Path(checkpoint_path))
        return super().load_from_checkpoint(
            checkpoint_path, map_location, hparams_file, strict, weights_only=weights_only, **kwargs
        )

    @property
    def skipped_steps(self) -> int:
        """The number of training steps that had to be skipped."""
        return self.bad_steps.total

    def elbo(self, batch: TaskBatch, beta: float = 1.0, hide: float = 0.0, num_samples: int | None = None) -> Tensor:
        """The bound of each task of a batch, with random numbers from its seeds (`T`)."""
        context = batch.context
        gp, likelihood = self._parts
        draws = TaskDraws(batch.seeds, batch.lengths, context.num_points, like=context.x)
        seen = self.hide(context, hide, draws) if hide else context
        num_samples = num_samples or gpytorch.settings.num_likelihood_samples.value()
        kwargs = {}
        if isinstance(likelihood, DecoderLikelihood):
            kwargs["base_samples"] = draws.normal(num_samples, _num_functions(gp))
        objective = TaskELBO(likelihood, gp, beta, self._num_tasks or 1)
        with (
            # for whatever else is random, in a likelihood or a network of the user's own
            seeded(derive_seed(*batch.seeds), context.device),
            gpytorch.settings.num_likelihood_samples(num_samples),
            gpytorch.settings.observation_nan_policy("fill"),
        ):
            return objective.of_context(context, seen, self.hparams.chunk_size, **kwargs)

    def hide(self, context: Context, probability: float, draws: TaskDraws) -> Context:
        """
        Hide entries of a batch from the network in training; override it where you know the holes that the model will
        meet.

        :param context: The batch.
        :param probability: The parameter `hide`.
        :param draws: Random numbers of its tasks.
        """
        return context.hide(probability, base_samples=draws.uniform(context.num_outputs))

    def hide_in_validation(self, batch: TaskBatch, draws: TaskDraws) -> Context:
        """
        Hide entries of a batch from the model in validation; they are what it is judged by.

        :param batch: The batch.
        :param draws: Random numbers of its tasks, the same in every epoch.
        """
        context = batch.context
        return context.hide(self.hparams.validation_hide, base_samples=draws.uniform(context.num_outputs))

    def on_fit_start(self) -> None:
        # Also of a model that was evaluated before; GPyTorch's constraints even share a module among models.
        self.train()

    def on_train_start(self) -> None:
        loader = self.trainer.train_dataloader
        name, batch_sampler = type(loader).__name__, getattr(loader, "batch_sampler", None)
        self._batch_size = self.hparams.batch_size or getattr(loader, "batch_size", None)
        self._batch_size = self._batch_size or getattr(batch_sampler, "batch_size", None)
        if self._batch_size is None:
            raise ValueError(f"{name} does not tell its batch size: pass SGPVAEModule(batch_size=...).")
        dataset: Any = getattr(loader, "dataset", None)
        self._num_tasks = self.hparams.num_tasks or (len(dataset) if hasattr(dataset, "__len__") else None)
        if self._num_tasks is None:
            raise ValueError(f"{name} has no dataset of known length: pass SGPVAEModule(num_tasks=...).")
        self._tasks = None
        if self._saved_tasks is not None and self.hparams.check_tasks and isinstance(dataset, TaskDataset):
            self._tasks = fingerprint(dataset)
            check_fingerprint(self._saved_tasks, self._tasks)
        self._saved_tasks = None
        if self._loader_state is not None and isinstance(loader, TaskLoader):
            # Lightning would, but not where the number of steps was asked for before, as schedules do.
            loader.load_state_dict(self._loader_state)
        self._loader_state = None

    def training_step(self, batch: TaskBatch, batch_idx: int) -> Tensor:
        assert self._batch_size is not None
        elbo = self._training_elbo(batch)
        # Whether this step is good or bad: the other processes are waiting for what it has to add.
        self._log_training(batch, elbo)
        if elbo is None:
            return self._nan_loss()
        return -(batch.weights * elbo).sum() / self._batch_size

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        # Averaged over the processes by now: all of them see the same gradients, and come to the same decision.
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        is_good = bool(get_total_norm(gradients, norm_type=math.inf).isfinite())
        if not is_good:
            # An optimizer passes over parameters without gradients: no parameter moves, and no moment.
            optimizer.zero_grad(set_to_none=True)
        self.bad_steps.step(self.global_step + 1, is_good, lambda: self._advice(optimizer))
        if not is_good:
            self.log("skipped_steps", float(self.skipped_steps), prog_bar=True)

    def on_validation_epoch_start(self) -> None:
        self._validation_sums = None

    def validation_step(self, batch: TaskBatch, batch_idx: int) -> None:
        # Seeds that do not depend on the epoch, so that scores of different epochs can be compared.
        batch = batch._replace(seeds=[derive_seed("validation", id_) for id_ in batch.ids])
        try:
            sums = self._validation_scores(batch)
            if not bool(sums.isfinite().all()):
                raise NanError("the bound or a score is not finite.")
        except NUMERICAL_ERRORS as error:
            self.bad_steps.warn_of_validation(find_culprits(batch, self.elbo), error)
            return
        self._validation_sums = sums if self._validation_sums is None else self._validation_sums + sums

    def on_validation_epoch_end(self) -> None:
        sums = self._validation_sums
        if sums is None:  # every batch failed, or there was none
            sums = torch.zeros(len(SCORES) + 3, dtype=torch.float64, device=self.device)
        elbo, observed, *scores, hidden = self._summed_over_processes(sums).unbind()
        self.log("val_elbo", elbo / observed, prog_bar=True)
        for name, score in zip(SCORES, scores, strict=True):
            if bool(hidden > 0):
                self.log(f"val_{name}", score / hidden, prog_bar=True)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.Adam(parameter_groups(self, self.hparams.learning_rate), fused=FUSED)
        if callable(self.schedule):
            scheduler = self.schedule(optimizer, self._num_steps())
        else:
            scheduler = LambdaLR(optimizer, lambda step: self._rate_factor(step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        loader = self.trainer.train_dataloader
        state = loader.state_dict() if isinstance(loader, TaskLoader) else None
        dataset = getattr(loader, "dataset", None)
        if self._tasks is None and isinstance(dataset, TaskDataset):
            self._tasks = fingerprint(dataset)
        stamp_checkpoint(checkpoint, {"bad_steps": self.bad_steps.state_dict(), "loader": state, "tasks": self._tasks})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        stamp = check_checkpoint(checkpoint, self.state_dict())
        if self._trainer is not None and self.trainer.state.fn == TrainerFn.FITTING:
            # the run goes on; otherwise it is a model that is loaded
            self.bad_steps.load_state_dict(stamp["bad_steps"])
            self._loader_state = stamp["loader"]
            self._saved_tasks = stamp.get("tasks")

    @property
    def _parts(self) -> tuple[ApproximateGP, Likelihood]:
        return parts_of(self.model, self.likelihood)

    def _beta(self) -> float:
        warmup = self.hparams.kl_warmup_steps
        return self.hparams.beta * min(1.0, (self.global_step + 1) / (warmup + 1))

    def _rate_factor(self, step: int) -> float:
        warmup = self.hparams.lr_warmup_steps
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if self.schedule is None:
            return 1.0
        progress = (step - warmup) / max(self._num_steps() - warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))

    def _num_steps(self) -> int:
        num_steps = self.trainer.estimated_stepping_batches
        if math.isinf(num_steps):
            raise ValueError("A schedule needs to know where it ends: give the Trainer max_epochs or max_steps.")
        return int(num_steps)

    def _training_elbo(self, batch: TaskBatch) -> Tensor | None:
        """The bounds of the tasks (`T`), or nothing where one of them has none."""
        beta, hide, num_samples = self._beta(), self.hparams.hide, self.hparams.num_samples

        def bound(batch: TaskBatch) -> Tensor:
            return self.elbo(batch, beta, hide, num_samples)

        try:
            elbo = torch.where(batch.weights > 0, bound(batch), 0.0)
        except NUMERICAL_ERRORS as error:
            self.bad_steps.note(find_culprits(batch, bound), f"{type(error).__name__}: {error}", error)
            return None
        is_finite = elbo.isfinite().tolist()
        if not all(is_finite):
            ids = [id_ for id_, is_good in zip(batch.ids, is_finite, strict=True) if not is_good]
            self.bad_steps.note(ids, "the bound is not finite.")
            return None
        return elbo

    def _nan_loss(self) -> Tensor:
        """A loss whose gradients tell every process that this step is bad."""
        return math.nan * sum(parameter.sum() for parameter in self.parameters() if parameter.requires_grad)

    def _validation_scores(self, batch: TaskBatch) -> Tensor:
        """Sums of the bound, of its observed values, of the held-out scores, and of hidden values."""
        samples = self.hparams.validation_samples
        counts = batch.weights > 0
        elbo = torch.where(counts, self.elbo(batch, num_samples=samples), 0.0).sum()
        context = batch.context
        draws = TaskDraws(batch.seeds, batch.lengths, context.num_points, like=context.x)
        seen = self.hide_in_validation(batch, draws)
        gp, likelihood = self._parts
        prediction = predict_hidden(
            gp, likelihood, context.x, seen, draws.normal(samples, _num_functions(gp)), self.hparams.chunk_size
        )
        scored = context.observed & ~seen.observed & counts[:, None, None]
        truth = torch.where(scored, context.filled, torch.nan)
        scores = elbo.new_zeros(len(SCORES) + 1)
        if prediction is not None:
            if self.rescale is not None:
                mean, stddev = (torch.as_tensor(values).to(truth) for values in self.rescale)
                prediction, truth = prediction.rescale(mean, stddev), mean + stddev * truth
            scores = score_sums(prediction, truth)
        observed = (context.observed & counts[:, None, None]).sum()
        return torch.cat([torch.stack([elbo, observed.to(elbo.dtype)]), scores]).double()

    def _log_training(self, batch: TaskBatch, elbo: Tensor | None) -> None:
        sums = batch.weights.new_zeros(2)
        if elbo is not None:
            observed = (~batch.y.isnan()).flatten(1).sum(-1)  # (T,)
            sums = torch.stack([elbo.detach().sum(), observed[batch.weights > 0].sum().to(elbo.dtype)])
        total, observed = self._summed_over_processes(sums).unbind()
        if bool(observed > 0):
            self.log("train_elbo", total / observed, prog_bar=True, batch_size=1)
        if (self.global_step + 1) % self.trainer.log_every_n_steps == 0:
            for name, value in self._summary().items():
                self.log(name, value, prog_bar=name in ("noise", "lengthscale_min", "lengthscale_max"), batch_size=1)

    def _summary(self) -> dict[str, Tensor | float]:
        """Gather what people watch while a model trains."""
        gp, likelihood = self._parts
        summary: dict[str, Tensor | float] = {"beta": self._beta()}
        kernels = [module for module in gp.modules() if isinstance(module, gpytorch.kernels.Kernel)]
        lengthscales = [kernel.lengthscale.detach().flatten() for kernel in kernels if kernel.has_lengthscale]
        if lengthscales:
            every = torch.cat(lengthscales)
            summary |= {"lengthscale_min": every.min(), "lengthscale_max": every.max()}
            summary |= {f"lengthscale_{i}": value for i, value in enumerate(every.unbind())}
        noises = [module.noise for module in likelihood.modules() if isinstance(getattr(module, "noise", None), Tensor)]
        if noises:
            summary["noise"] = noises[0].detach().mean()
        return summary

    def _summed_over_processes(self, values: Tensor) -> Tensor:
        return self.trainer.strategy.reduce(values, reduce_op="sum")

    def _advice(self, optimizer: Optimizer) -> str:
        gp, _ = self._parts
        dtype = next(gp.parameters()).dtype
        rates = ", ".join(f"{group['lr']:.2g}" for group in optimizer.param_groups)
        precision = "" if dtype == torch.float64 else " float64 (model.double(), and TaskDataset(dtype=torch.float64));"
        return (
            "If it is always the same tasks, look at their data. Otherwise try a lower learning rate "
            f"(now {rates}); gradient_clip_val= of the Trainer;{precision} a larger jitter (strategy.jitter_val)."
        )


def _num_functions(gp: ApproximateGP) -> int:
    """Count the functions that the likelihood sees at an input, which the wrapper of the strategy knows."""
    if hasattr(gp.variational_strategy, "num_tasks"):  # of a wrapper, which may mix the latent functions
        return gp.variational_strategy.num_tasks
    return amortized_strategy(gp).num_latents or 1
