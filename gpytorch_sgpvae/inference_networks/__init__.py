from .base import InferenceNetwork
from .factor_net import FactorNet
from .index_net import IndexNet
from .point_net import PointNet
from .zero_imputation import ZeroImputation

__all__ = ["FactorNet", "IndexNet", "InferenceNetwork", "PointNet", "ZeroImputation"]
