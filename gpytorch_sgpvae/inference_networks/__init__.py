from .base import InferenceNetwork
from .factor_net import FactorNet
from .free_form import FreeFormSites
from .index_net import IndexNet
from .joint_factor_net import JointFactorNet
from .pair_net import PairNet
from .point_net import PointNet
from .zero_imputation import ZeroImputation

__all__ = [
    "FactorNet",
    "FreeFormSites",
    "IndexNet",
    "InferenceNetwork",
    "JointFactorNet",
    "PairNet",
    "PointNet",
    "ZeroImputation",
]
