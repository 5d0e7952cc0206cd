import pytest
import torch

from gpytorch_sgpvae import MLP
from gpytorch_sgpvae.mlp import StackedMLP


@pytest.mark.parametrize("hidden_sizes", [(), (4,), (4, 5, 6)])
def test_a_stack_equals_its_networks_one_by_one(hidden_sizes):
    stack = StackedMLP(3, 2, 5, hidden_sizes, torch.nn.Tanh)
    inputs = torch.randn(3, 7, 2)
    outputs = stack(inputs)
    for p in range(3):
        single = MLP(2, 5, hidden_sizes, torch.nn.Tanh)
        layers = [module for module in single if isinstance(module, torch.nn.Linear)]
        for layer, weight, bias in zip(layers, stack.weights, stack.biases, strict=True):
            layer.weight.data, layer.bias.data = weight[p].T, bias[p, 0]
        torch.testing.assert_close(outputs[p], single(inputs[p]))


def test_no_hidden_layers_make_a_linear_map():
    mlp = MLP(3, 5, hidden_sizes=())
    f, g = torch.randn(2, 3)
    torch.testing.assert_close(mlp(f + g), mlp(f) + mlp(g) - mlp(torch.zeros(3)))


def test_the_wrong_width_is_an_error_that_names_the_fix():
    with pytest.raises(ValueError, match=r"takes 3 features.*\(7, 2\).*MLP\(2, 5"):
        MLP(3, 5)(torch.randn(7, 2))
