from __future__ import annotations

import torch
from torch import Tensor

from .base import ObservationModel
from .distributions import Categorical
from .initial_sites import mask_sites


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

    def initial_sites(self, y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""
        The likelihood's gradient and the diagonal of its Hessian where all classes are equally probable:

        .. math::

            \lambda_{npc} = \frac 1 C \left( 1 - \frac 1 C \right), \qquad
            \lambda_{npc} \, g_{npc} = [y_{np} = c] - \frac 1 C

        so that the C values of an output sum to zero, as all that is known about them is how they differ.
        """
        y, observed = self._fill(y, observed)
        classes = torch.arange(self.num_classes, dtype=y.dtype, device=y.device)
        chance = 1 / self.num_classes
        precision = torch.full_like(classes, chance * (1 - chance))  # (C,)
        g = ((y.unsqueeze(-1) == classes).to(y.dtype) - chance) / precision  # (..., N, P, C)
        g, precision = mask_sites(g, precision, observed.unsqueeze(-1).expand_as(g))
        return g.flatten(-2), precision.flatten(-2)
