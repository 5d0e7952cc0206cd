from .importance_weighted_elbo import ImportanceWeightedELBO
from .task_elbo import TaskELBO

__all__ = ["ImportanceWeightedELBO", "TaskELBO"]
