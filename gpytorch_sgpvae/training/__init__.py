"""
Training that can be left alone: loading of tasks of unequal length, and a module for Lightning's Trainer. Needs the
extra `train`.
"""

from importlib.util import find_spec

from .task_dataset import Task, TaskBatch, TaskDataset, TaskIndex, collate_tasks
from .windows import WindowId
from .task_sampler import TaskSampler
from .task_loader import TaskLoader

if find_spec("lightning") is None:
    raise ImportError("Training needs Lightning: pip install 'gpytorch-sgpvae[train]'")

from .bad_steps import TrainingStoppedError
from .checkpoints import AtomicCheckpointIO, RunCheckpoint
from .curves import TrainingCurves
from .sgpvae_module import SGPVAEModule
from .trainer import FinishStepOnInterrupt, make_trainer

__all__ = [
    "AtomicCheckpointIO",
    "FinishStepOnInterrupt",
    "RunCheckpoint",
    "SGPVAEModule",
    "Task",
    "TaskBatch",
    "TaskDataset",
    "TaskIndex",
    "TaskLoader",
    "TaskSampler",
    "TrainingCurves",
    "TrainingStoppedError",
    "WindowId",
    "collate_tasks",
    "make_trainer",
]
