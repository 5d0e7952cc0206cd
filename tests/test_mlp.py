import pytest
import torch

from gpytorch_sgpvae import MLP


def test_no_hidden_layers_make_a_linear_map():
    mlp = MLP(3, 5, hidden_sizes=())
    f, g = torch.randn(2, 3)
    torch.testing.assert_close(mlp(f + g), mlp(f) + mlp(g) - mlp(torch.zeros(3)))


def test_the_wrong_width_is_an_error_that_names_the_fix():
    with pytest.raises(ValueError, match=r"takes 3 features.*\(7, 2\).*MLP\(2, 5"):
        MLP(3, 5)(torch.randn(7, 2))
