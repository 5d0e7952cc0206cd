from .task_elbo import TaskELBO

__all__ = ["TaskELBO"]
