from __future__ import annotations

from functools import partial
from typing import Any

import torch
from gpytorch import Module
from gpytorch.constraints import Interval
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import Distribution

from ...magnitudes import check_magnitude
from ..missing import fill_missing


class ObservationModel(Module):
    r"""
    Base class of the observation models, which turn the decoder's values of a row into a distribution of each output:

    .. math::

        p(\mathbf y_n \mid \mathbf f_n) = \prod_{p=1}^P p \left( y_{np} \mid h(\mathbf f_n) \right)

    A subclass fills in :meth:`distribution`, and :attr:`decoder_size` where an output takes more than one value of the
    decoder. The distribution has batch shape `... x N x P` and an empty event shape, and 1 is in its support: that is
    what missing targets are filled with before they are masked. Its :attr:`support` is what targets are checked
    against. :meth:`initial_sites` is needed only by the networks that start from it.

    :param num_outputs: Number of outputs P.

    :ivar bool is_elementwise: Whether output p depends on the decoder's value p alone, so that expectations take no
        samples where the decoder is linear.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import ObservationModel
        >>> class LaplaceObservations(ObservationModel):
        ...     "Noise with heavier tails, of scale 1."
        ...     def distribution(self, decoded):
        ...         return torch.distributions.Laplace(decoded, torch.ones_like(decoded), validate_args=False)
        >>> LaplaceObservations(num_outputs=5)(torch.zeros(10, 5)).batch_shape
        torch.Size([10, 5])
    """

    is_elementwise: bool = False

    def __init__(self, num_outputs: int):
        super().__init__()
        if num_outputs < 1:
            raise ValueError(f"num_outputs must be at least 1, got {num_outputs}.")
        self.num_outputs = num_outputs

    @property
    def decoder_size(self) -> int:
        """The number of values that the decoder must give for each row: its `out_size`."""
        return self.num_outputs

    def forward(self, decoded: Tensor) -> Distribution:
        """
        :param decoded: The decoder's values (`... x N x decoder_size`).
        :return: p(y | f), of batch shape `... x N x P`.
        """
        if decoded.shape[-1:] != (self.decoder_size,):
            raise ValueError(
                f"{type(self).__name__} with num_outputs={self.num_outputs} takes {self.decoder_size} values per row, "
                f"but the decoder gave it values of shape {tuple(decoded.shape)}: give the decoder "
                f"out_size={self.decoder_size}."
            )
        check_magnitude(
            decoded,
            "What the decoder made of latent functions",
            "look for extreme outputs in the data, and for weights that a large step of training has spoilt.",
            nan_passes=True,
        )
        return self.distribution(decoded)

    def distribution(self, decoded: Tensor) -> Distribution:
        """
        :param decoded: The decoder's values (`... x N x decoder_size`).
        :return: p(y | f), of batch shape `... x N x P`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement distribution(decoded).")

    def initial_sites(self, y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""
        A Gaussian approximation of p(y | h) in the decoder's values h, for an inference network to start from:

        .. math::

            p(y_{np} \mid \mathbf h_n) \approx c \prod_j \mathcal N \left( g_{nj} \mid h_{nj}, \lambda_{nj}^{-1} \right)

        with j over the values that output p takes. Both are zero where nothing is observed.

        :param y: Outputs (`... x N x P`), in the support of p(y | h) where they are observed; NaN is missing.
        :param observed: False for what is missing too, whatever y holds there (`... x N x P`, boolean).
        :return: The pseudo-observations g and their precisions :math:`\lambda` (`... x N x decoder_size` each).
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement initial_sites(y, observed=None): return pseudo-observations of the "
            f"decoder's values and their precisions, both (..., N, {self.decoder_size}), and zero where y is missing."
        )

    def _fill(self, y: Tensor, observed: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outputs with holes filled, and where they are observed (`... x N x P` each)."""
        if y.shape[-1:] != (self.num_outputs,):
            raise ValueError(
                f"{type(self).__name__} has num_outputs={self.num_outputs}, but got outputs of shape "
                f"{tuple(y.shape)}: expected (..., N, {self.num_outputs})."
            )
        return fill_missing(y, observed)


class LearntParameter:
    """
    A learnt parameter of an observation model in GPyTorch's idiom, as an attribute of the class: `noise` reads and
    sets the constrained value, behind which stand `raw_noise`, `raw_noise_constraint` and perhaps `noise_prior`.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is None:
            return self
        return self._constraint(module).transform(getattr(module, f"raw_{self.name}"))

    def __set__(self, module: Module, value: Tensor | float) -> None:
        raw = getattr(module, f"raw_{self.name}")
        value = torch.as_tensor(value, dtype=raw.dtype, device=raw.device)
        module.initialize(**{f"raw_{self.name}": self._constraint(module).inverse_transform(value)})

    def register(self, module: Module, size: int, constraint: Interval, prior: Prior | None) -> None:
        """
        :param module: The observation model.
        :param size: Number of values: P, or 1 where the outputs share one.
        :param constraint: Constraint for the value.
        :param prior: Prior for the value, if any.
        """
        module.register_parameter(f"raw_{self.name}", torch.nn.Parameter(torch.zeros(size)))
        if prior is not None:
            # not the parameter's name: GPyTorch would make closures of it that cannot be pickled
            get, set_ = partial(_get, name=self.name), partial(_set, name=self.name)
            module.register_prior(f"{self.name}_prior", prior, get, set_)
        module.register_constraint(f"raw_{self.name}", constraint)

    def _constraint(self, module: Module) -> Interval:
        return getattr(module, f"raw_{self.name}_constraint")


def _get(module: Module, name: str) -> Tensor:
    return getattr(module, name)


def _set(module: Module, value: Tensor, name: str) -> None:
    setattr(module, name, value)
