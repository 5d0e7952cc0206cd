"""A trained model without this package: functions of tensors that can be traced, saved and exported."""

from .modules import PredictionModule, EncoderModule, ConditioningModule, DecoderModule
from .onnx import to_onnx

__all__ = ["ConditioningModule", "DecoderModule", "EncoderModule", "PredictionModule", "to_onnx"]
