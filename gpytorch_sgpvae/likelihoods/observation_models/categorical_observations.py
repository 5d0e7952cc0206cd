from __future__ import annotations

from torch import Tensor

from .base import ObservationModel
from .distributions import Categorical


class CategoricalObservations(ObservationModel):
    r"""
    Classes 0, ..., C - 1, with unnormalized log probabilities that the decoder gives:

    .. math::

        p(y_{np} = c \mid \mathbf f_n) \propto \exp \left( h_{pc}(\mathbf f_n) \right)

    The decoder gives P C values for each row: the C values of the first output, then those of the second, and so on.
    Targets hold the index of the class as a floating-point number, so that NaN can be missing. A distribution's `mean`
    and `variance` are those of the index, which means something where the classes are in order; `probs`
    (`... x N x P x C`) always does.

    :param num_outputs: Number of outputs P.
    :param num_classes: Number of classes C of each output, at least 2. Outputs with different numbers of classes stand
        side by side in :class:`~gpytorch_sgpvae.MixedObservations`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import CategoricalObservations
        >>> observations = CategoricalObservations(num_outputs=2, num_classes=3)
        >>> distribution = observations(torch.zeros(10, observations.decoder_size))
        >>> distribution.batch_shape, distribution.probs.shape
        (torch.Size([10, 2]), torch.Size([10, 2, 3]))
    """

    def __init__(self, num_outputs: int, num_classes: int):
        super().__init__(num_outputs)
        if num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {num_classes}.")
        self.num_classes = num_classes

    @property
    def decoder_size(self) -> int:
        return self.num_outputs * self.num_classes

    def distribution(self, decoded: Tensor) -> Categorical:
        logits = decoded.unflatten(-1, (self.num_outputs, self.num_classes))  # (..., N, P, C)
        return Categorical(logits=logits, validate_args=False)
