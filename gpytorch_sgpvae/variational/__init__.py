from .amortized_variational_distribution import AmortizedVariationalDistribution
from .amortized_variational_strategy import AmortizedVariationalStrategy
from .dense_amortized_variational_strategy import DenseAmortizedVariationalStrategy
from .dense_joint_amortized_variational_strategy import DenseJointAmortizedVariationalStrategy
from .inducing_sites_variational_strategy import InducingSitesVariationalStrategy
from .joint_amortized_variational_strategy import JointAmortizedVariationalStrategy
from .markov_amortized_variational_strategy import MarkovAmortizedVariationalStrategy
from .point_marginals import point_covariances
from .posterior import Posterior, condition, conditioned_on, persist_context

__all__ = [
    "AmortizedVariationalDistribution",
    "AmortizedVariationalStrategy",
    "DenseAmortizedVariationalStrategy",
    "DenseJointAmortizedVariationalStrategy",
    "InducingSitesVariationalStrategy",
    "JointAmortizedVariationalStrategy",
    "MarkovAmortizedVariationalStrategy",
    "Posterior",
    "condition",
    "conditioned_on",
    "persist_context",
    "point_covariances",
]
