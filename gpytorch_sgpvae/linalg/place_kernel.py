"""A kernel of places that come again, by coordinates of theirs that are learnt."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

# Inputs that differ by less than this are those of the same place: numbers of less precision are rounded.
TOLERANCE = 1e-6


class PlaceKernel(Kernel):
    r"""
    A kernel of places that come again, such as stations, by an embedding: each latent function k has coordinates
    :math:`\mathbf e_{ks}` of its own for place s, which are learnt,

    .. math::

        k_k(\mathbf x, \mathbf x') = \exp \left( -\tfrac 1 2 | \mathbf e_{k s(\mathbf x)} - \mathbf e_{k s(\mathbf x')}
        |^2 \right)

    Times a kernel over positions it says which places have less to do with each other than their distance tells. Places
    that are not among the known ones have :math:`\mathbf e = 0`.

    :param num_places: The number of known places S.
    :param num_dims: The number of inputs that make a place d.
    :param size: The number of latent functions, as many as there are embeddings.
    :param embedding_dims: The number of coordinates of an embedding q.
    :param kwargs: Arguments of :class:`gpytorch.kernels.Kernel`: `active_dims`.

    :ivar places: The inputs of the known places (`S x d`).
    :ivar embedding: :math:`\mathbf e` (`size x S x q`), 0 at first.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.linalg.place_kernel import PlaceKernel
        >>> kernel = PlaceKernel(num_places=2, num_dims=1, size=1)
        >>> kernel.places.copy_(torch.tensor([[5.0], [7.0]]))
        tensor([[5.],
                [7.]])
        >>> kernel = kernel.initialize(embedding=torch.tensor([[[0.0, 1.0], [0.0, -1.0]]]))
        >>> kernel(torch.tensor([[5.0], [7.0]])).to_dense().detach()
        tensor([[[1.0000, 0.1353],
                 [0.1353, 1.0000]]])
    """

    places: Tensor
    embedding: Tensor

    def __init__(self, num_places: int, num_dims: int, size: int, embedding_dims: int = 2, **kwargs: Any):
        super().__init__(batch_shape=torch.Size([size]), **kwargs)
        self.register_buffer("places", torch.zeros(num_places, num_dims))
        self.register_parameter("embedding", torch.nn.Parameter(torch.zeros(size, num_places, embedding_dims)))

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        left, right = self._embedded(x1), self._embedded(x2)  # (..., K, N, q), (..., K, N', q)
        if diag:
            return (-0.5 * (left - right).square().sum(-1)).exp()
        squares = 0.5 * left.square().sum(-1).unsqueeze(-1) + 0.5 * right.square().sum(-1).unsqueeze(-2)
        return (left @ right.mT - squares).clamp_max(0.0).exp()

    def _embedded(self, x: Tensor) -> Tensor:
        """The coordinates of the places of some inputs (`... x K x N x q`)."""
        difference = (x.unsqueeze(-2) - self.places).abs().amax(-1)  # (..., N, S)
        return (difference < TOLERANCE).to(self.embedding.dtype) @ self.embedding
