import copy
import pickle
from unittest.mock import patch

import helpers
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpytorch_sgpvae import MLP
from gpytorch_sgpvae.inference_networks import stacked_mlp
from gpytorch_sgpvae.inference_networks.stacked_mlp import LEAKY_RELU, StackedMLP

by_pieces = patch.multiple(stacked_mlp, MANY_UNITS=1, MANY_ROWS=0)


def evaluate_in_groups(stack, inputs, size):
    return torch.cat([group(part) for group, part in zip(stack.split(size), inputs.split(size), strict=True)])


def gradients(outputs, stack, inputs):
    """The gradients of a number that depends on all outputs in different ways."""
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    return torch.autograd.grad((outputs * weights).sum(), [inputs, *stack.parameters()])


def assert_groups_equal_the_stack(stack, inputs, size=2):
    inputs = inputs.requires_grad_()
    whole, groups = stack(inputs), evaluate_in_groups(stack, inputs, size)
    torch.testing.assert_close(groups, whole, rtol=0, atol=1e-12)
    for grad, expected in zip(gradients(groups, stack, inputs), gradients(whole, stack, inputs), strict=True):
        torch.testing.assert_close(grad, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("hidden_sizes", [(), (4,), (4, 5, 6)])
@pytest.mark.parametrize("num_rows", [7, stacked_mlp.MANY_ROWS])
def test_a_stack_equals_its_networks_one_by_one(hidden_sizes, num_rows):
    stack = StackedMLP(3, 2, 5, hidden_sizes, torch.nn.Tanh)
    inputs = torch.randn(3, num_rows, 2)
    outputs = stack(inputs)
    for p in range(3):
        single = MLP(2, 5, hidden_sizes, torch.nn.Tanh)
        layers = [module for module in single if isinstance(module, torch.nn.Linear)]
        for layer, weight, bias in zip(layers, stack.weights, stack.biases, strict=True):
            layer.weight.data, layer.bias.data = weight[p].T, bias[p, 0]
        torch.testing.assert_close(outputs[p], single(inputs[p]))


ACTIVATIONS = {
    "relu": torch.nn.ReLU,
    "own relu": lambda: torch.nn.ReLU(),
    "leaky relu": LEAKY_RELU,
    "own leaky relu": lambda: torch.nn.LeakyReLU(0.3),
    "folded": lambda: torch.nn.LeakyReLU(-1.0),
    "tanh": torch.nn.Tanh,
    "silu": torch.nn.SiLU,
    "elu": torch.nn.ELU,
    "normalized": lambda: torch.nn.Sequential(torch.nn.LayerNorm(6), torch.nn.Softmax(dim=-1)),
}


@helpers.pairwise_cases("activation, depth, in_size, num_rows", ACTIVATIONS, [2, 1, 3, 0], [1, 2], [40, 1, 0])
def test_groups_of_a_stack_equal_the_stack(activation, depth, in_size, num_rows):
    stack = StackedMLP(5, in_size, 4, (6,) * depth, activation).double()
    inputs = torch.randn(5, num_rows, in_size, dtype=torch.float64)
    assert_groups_equal_the_stack(stack, inputs)
    with by_pieces:
        assert_groups_equal_the_stack(stack, inputs)


def test_an_activation_may_tell_rows_from_units():
    """Each sees `P x B x hidden`, as it does in an MLP."""
    shapes = []

    class Spy(torch.nn.Tanh):
        def forward(self, input):
            shapes.append(tuple(input.shape))
            return super().forward(input)

    StackedMLP(5, 1, 4, (6, 7), Spy)(torch.randn(5, 9, 1))
    assert shapes == [(5, 9, 6), (5, 9, 7)]


@pytest.mark.parametrize("activation", [torch.nn.ReLU, LEAKY_RELU], ids=["relu", "leaky relu"])
class TestPieces:
    """Two layers of one number, with inputs at, between and beyond their kinks."""

    @pytest.fixture(autouse=True)
    def _activation(self, activation):
        self.activation = activation

    def stack(self, units, dtype=torch.float64):
        return StackedMLP(3, 1, 4, (units, 7), self.activation).to(dtype)

    @pytest.mark.parametrize("units", [1, 14, 15, 16, 17, 100])
    @pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
    def test_any_number_of_them(self, units, scale):
        stack = self.stack(units)
        with torch.no_grad():
            stack.weights[0].div_(scale)
        with by_pieces:
            assert_groups_equal_the_stack(stack, scale * torch.randn(3, 50, 1, dtype=torch.float64))

    @by_pieces
    def test_a_unit_is_off_at_its_kink_whichever_side_it_is_on_beyond(self):
        stack = self.stack(20)
        with torch.no_grad():
            # kinks at integers, exactly
            stack.weights[0].copy_(torch.tensor([1.0, -1.0, 2.0, -4.0]).repeat(5))
            stack.biases[0].copy_(-stack.weights[0] * torch.randint(-2, 3, (3, 1, 20)))
        assert_groups_equal_the_stack(
            stack, torch.arange(-3, 4, dtype=torch.float64).repeat(3).expand(3, 21).unsqueeze(-1)
        )

    @by_pieces
    def test_biases_and_inputs_of_zero(self):
        """An optimizer that starts from biases of zero meets them, with images whose background is zero."""
        stack = self.stack(20)
        torch.nn.init.zeros_(stack.biases[0])
        assert_groups_equal_the_stack(
            stack, torch.tensor([0.0, 1.0, 0.0, -1.0, -0.0]).double().expand(3, 5).unsqueeze(-1)
        )

    @by_pieces
    @pytest.mark.parametrize("zero", [0.0, -0.0])
    def test_units_that_are_constant(self, zero):
        stack = self.stack(20)
        with torch.no_grad():
            stack.weights[0][..., :15] = zero
            stack.biases[0][..., :10] = zero
        assert_groups_equal_the_stack(stack, torch.randn(3, 50, 1, dtype=torch.float64))

    @by_pieces
    def test_single_precision_loses_nothing(self):
        stack = self.stack(100, torch.float32)
        exact = copy.deepcopy(stack).double()
        inputs = torch.randn(3, 500, 1)
        errors = [
            (outputs - exact(inputs.double())).norm()
            for outputs in (evaluate_in_groups(stack, inputs, 2), stack(inputs))
        ]
        assert errors[0] < 3 * errors[1]

    @by_pieces
    def test_second_derivatives(self):
        stack = self.stack(10)
        inputs = torch.randn(3, 8, 1, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradgradcheck(lambda x: evaluate_in_groups(stack, x, 2).square(), inputs)

    def test_many_rows_of_wide_layers_cost_no_product_of_their_own(self):
        stack = StackedMLP(1, 1, 4, (128, 128), self.activation)
        inputs = torch.randn(1, 2000, 1)
        with FlopCounterMode(display=False) as products:
            stack(inputs).sum().backward()
        with FlopCounterMode(display=False) as pieces:
            evaluate_in_groups(stack, inputs, 1).sum().backward()
        assert products.get_total_flops() > 6 * 2000 * 128**2
        assert pieces.get_total_flops() < products.get_total_flops() / 8


@pytest.mark.parametrize(
    "network", [MLP(1, 4), StackedMLP(3, 1, 4), StackedMLP(3, 1, 4, (20, 20), torch.nn.ReLU), StackedMLP(3, 1, 4, ())]
)
def test_nothing_of_the_callers_is_overwritten(network):
    inputs = torch.randn(3, 9, 1)
    before = inputs.clone()
    network(inputs)
    assert torch.equal(inputs, before)


@pytest.mark.parametrize("own", [torch.nn.ReLU(), torch.nn.LeakyReLU(0.1)])
def test_an_activation_of_the_callers_own_stays_as_it_is(own):
    MLP(3, 5, activation=lambda: own)
    StackedMLP(2, 3, 5, activation=lambda: own)
    assert not own.inplace


def test_a_stack_can_be_copied_and_pickled():
    stack = StackedMLP(3, 1, 4)
    inputs = torch.randn(3, 9, 1)
    for twin in (copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))):
        assert torch.equal(twin(inputs), stack(inputs))
    assert list(stack.state_dict()) == [*(f"weights.{i}" for i in range(3)), *(f"biases.{i}" for i in range(3))]
    assert [tuple(weight.shape) for weight in stack.weights] == [(3, 1, 20), (3, 20, 20), (3, 20, 4)]
    assert [tuple(bias.shape) for bias in stack.biases] == [(3, 1, 20), (3, 1, 20), (3, 1, 4)]
