"""A trained model without this package: functions of tensors that can be traced, saved and exported."""

from .modules import PredictionModule, EncoderModule, ConditioningModule, DecoderModule

__all__ = ["ConditioningModule", "DecoderModule", "EncoderModule", "PredictionModule"]
