from .amortized_variational_distribution import AmortizedVariationalDistribution
from .amortized_variational_strategy import AmortizedVariationalStrategy
from .posterior import Posterior, condition, conditioned_on

__all__ = [
    "AmortizedVariationalDistribution",
    "AmortizedVariationalStrategy",
    "Posterior",
    "condition",
    "conditioned_on",
]
