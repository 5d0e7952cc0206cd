from .amortized_variational_distribution import AmortizedVariationalDistribution
from .amortized_variational_strategy import AmortizedVariationalStrategy
from .dense_amortized_variational_strategy import DenseAmortizedVariationalStrategy
from .inducing_sites_variational_strategy import InducingSitesVariationalStrategy
from .posterior import Posterior, condition, conditioned_on, persist_context

__all__ = [
    "AmortizedVariationalDistribution",
    "AmortizedVariationalStrategy",
    "DenseAmortizedVariationalStrategy",
    "InducingSitesVariationalStrategy",
    "Posterior",
    "condition",
    "conditioned_on",
    "persist_context",
]
