"""What every partial inference network promises. A new one is tested by adding it to `helpers.NETWORKS`."""

from __future__ import annotations

import copy
import math
from unittest.mock import patch

import helpers
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import gpytorch_sgpvae.inference_networks
from gpytorch_sgpvae import (
    FactorNet,
    FreeFormSites,
    GaussianSites,
    IndexNet,
    InferenceNetwork,
    JointFactorNet,
    PairNet,
    PointNet,
    TaskELBO,
    ZeroImputation,
)
from gpytorch_sgpvae.inference_networks import stacked_mlp


@pytest.fixture(params=helpers.NETWORKS)
def network_class(request):
    return request.param


def test_every_network_is_tested():
    public = {getattr(gpytorch_sgpvae.inference_networks, name) for name in gpytorch_sgpvae.inference_networks.__all__}
    # the others take other arguments, or return sites with loadings, and have tests of their own
    assert set(helpers.NETWORKS) == public - {InferenceNetwork, FreeFormSites, JointFactorNet, PairNet}


def random_task(dtype, *shape):
    y = torch.randn(*shape, dtype=dtype)
    observed = torch.rand(*shape) < 0.6
    observed[..., 0, :] = False
    return y, observed


def permute_outputs(network: InferenceNetwork, permutation: torch.Tensor) -> InferenceNetwork:
    """The network that reads output `permutation[i]` in column i."""
    network = copy.deepcopy(network)
    if isinstance(network, FactorNet):
        stacked = network.factors.parameters()
    elif isinstance(network, IndexNet):
        stacked = network.embeddings.parameters()
    elif isinstance(network, PointNet):
        stacked = [network.index]
    else:
        network.encoder[0].weight.data = network.encoder[0].weight.data[:, permutation]
        stacked = []
    for parameter in stacked:
        parameter.data = parameter.data[permutation]
    return network


@helpers.pairwise_cases(
    "network_class, batch_shape, num_latents, num_outputs, num_points, dtype",
    helpers.NETWORKS,
    [(4,), (2, 3), ()],
    [2, 1, None],
    [3, 1],
    [7, 1, 0],
    helpers.DTYPES,
)
def test_shapes_and_dtype(network_class, batch_shape, num_latents, num_outputs, num_points, dtype):
    network = network_class(num_outputs, num_latents).to(dtype)
    y = torch.randn(*batch_shape, num_points, num_outputs, dtype=dtype)
    sites = network(helpers.rows(y, y > 0))
    latents = () if num_latents is None else (num_latents,)
    assert sites.shape == (*batch_shape, *latents, num_points)
    assert sites.precision.dtype == sites.precision_mean.dtype == dtype


@pytest.mark.parametrize("garbage", [0.0, 1e30, torch.nan, torch.inf])
def test_missing_entries_influence_neither_values_nor_gradients(network_class, dtype, garbage):
    network = network_class(3, 2).to(dtype)
    y, observed = random_task(dtype, 4, 7, 3)

    def run(y):
        network.zero_grad()
        y = y.clone().requires_grad_()
        sites = network(helpers.rows(y, observed))
        (sites.precision.sum() + sites.precision_mean.square().sum()).backward()
        return sites, y.grad, [parameter.grad for parameter in network.parameters()]

    sites, y_grad, grads = run(y)
    other_sites, other_y_grad, other_grads = run(torch.where(observed, y, garbage))
    assert torch.equal(sites.precision, other_sites.precision)
    assert torch.equal(sites.precision_mean, other_sites.precision_mean)
    assert torch.equal(y_grad, other_y_grad)
    assert (y_grad[~observed] == 0).all()
    assert all(torch.equal(grad, other) for grad, other in zip(grads, other_grads, strict=True))


def test_a_row_with_nothing_observed_has_precision_exactly_zero(network_class, dtype):
    network = network_class(3, 2).to(dtype)
    y, observed = random_task(dtype, 4, 7, 3)
    sites = network(helpers.rows(y, observed))
    nothing = ~observed.any(-1).unsqueeze(-2).expand_as(sites.precision)
    assert nothing.any()
    assert (sites.precision[nothing] == 0).all()
    assert (sites.precision_mean[nothing] == 0).all()
    assert (sites.precision[~nothing] > 0).all()


def test_permuting_the_outputs_together_with_their_networks_changes_nothing(network_class, dtype):
    network = network_class(5, 2).to(dtype)
    y, observed = random_task(dtype, 4, 7, 5)
    permutation = torch.tensor([3, 0, 4, 1, 2])
    sites = network(helpers.rows(y, observed))
    other = helpers.rows(y[..., permutation], observed[..., permutation])
    permuted = permute_outputs(network, permutation)(other)
    torch.testing.assert_close(permuted.precision, sites.precision, rtol=1e-5, atol=0)
    torch.testing.assert_close(permuted.precision_mean, sites.precision_mean, rtol=1e-4, atol=1e-3)
    # and the permutation of the outputs alone does
    assert not torch.allclose(
        network(helpers.rows(y[..., permutation], observed[..., permutation])).precision, sites.precision
    )


@pytest.mark.parametrize("set_network", [PointNet, IndexNet])
def test_deep_sets_depend_on_the_set_of_pairs_of_index_and_value_alone(set_network):
    """The representation is a sum over observed pairs, in whatever order they are added."""
    network = set_network(4, 2).double()
    y, observed = random_task(torch.float64, 7, 4)
    seen = {}
    network.head.register_forward_pre_hook(lambda module, inputs: seen.update(representation=inputs[0]))
    network(helpers.rows(y, observed))
    pairs = [(n, p) for n in range(7) for p in range(4) if observed[n, p]]
    total = torch.zeros(7, network.representation_size, dtype=torch.float64)
    for i in torch.randperm(len(pairs)).tolist():
        n, p = pairs[i]
        if set_network is PointNet:
            total[n] += network.embedding(torch.stack([network.index[p], y[n, p]]))
        else:
            total[n] += network.embeddings(y[n, p].expand(4, 1, 1))[p, 0]
    torch.testing.assert_close(seen["representation"], total, rtol=0, atol=1e-12)


def test_every_output_of_factor_net_has_weights_of_its_own_and_all_are_evaluated_as_one_by_one(dtype):
    network = FactorNet(3, 2).to(dtype)
    y = torch.randn(7, 3, dtype=dtype)
    sites = network(helpers.rows(y, torch.ones(7, 3, dtype=torch.bool)))
    precision = 0
    for p in range(3):
        hidden = y[:, [p]]
        for i, (weight, bias) in enumerate(zip(network.factors.weights, network.factors.biases, strict=True)):
            hidden = hidden @ weight[p] + bias[p]
            hidden = torch.nn.functional.leaky_relu(hidden, 0.1) if i < 2 else hidden
        precision = precision + (network.min_stddev + torch.nn.functional.softplus(hidden[:, 2:])) ** -2
    torch.testing.assert_close(sites.precision.mT, precision)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3, 1e6])
def test_precision_is_positive_and_bounded_where_anything_is_observed(network_class, dtype, scale):
    network = network_class(3, 2).to(dtype)
    y = scale * torch.randn(50, 3, dtype=dtype)
    precision = network(helpers.rows(y, torch.ones(50, 3, dtype=torch.bool))).precision
    bound = network.min_stddev**-2 * (3 if network_class is FactorNet else 1)
    assert (precision > 0).all()
    assert (precision <= bound * 1.0001).all()


def test_a_site_of_one_output_starts_with_the_initial_stddev(network_class):
    network = network_class(1, 2, initial_stddev=0.3)
    y = 0.1 * torch.randn(500, 1)
    stddev = network(helpers.rows(y, torch.ones(500, 1, dtype=torch.bool))).precision.rsqrt()
    assert 0.15 < stddev.median() < 0.6


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_whole_training_steps_stay_finite_for_large_outputs(network_class, dtype, scale):
    model, likelihood = helpers.make_model(network=network_class, dtype=dtype), helpers.make_likelihood(dtype=dtype)
    x, y = helpers.make_data(3, num_points=60, dtype=dtype)
    y = scale * y
    parameters = [*model.parameters(), *likelihood.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    elbo = TaskELBO(likelihood, model)
    for _ in range(5):
        optimizer.zero_grad()
        loss = -elbo(model(x, context=(x, y)), y).mean()
        loss.backward()
        assert loss.isfinite()
        assert all(parameter.grad.isfinite().all() for parameter in parameters)
        optimizer.step()
        assert all(parameter.isfinite().all() for parameter in parameters)


@pytest.mark.parametrize("shape", [(7, 2), (7, 4), (4, 7, 1)])
def test_the_wrong_number_of_outputs_is_an_error_that_names_both(network_class, shape):
    y = torch.randn(shape)
    with pytest.raises(ValueError, match=rf"num_outputs=3.*{shape[-1]}\)"):
        network_class(3, 2)(helpers.rows(y, y > 0))


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((0, 2), {}, "num_outputs and num_latents must be at least 1"),
        ((3, 0), {}, "num_outputs and num_latents must be at least 1"),
        ((3, 2, (0,)), {}, "Layer sizes must be at least 1"),
        ((3, 2), {"min_stddev": 2.0}, "min_stddev < initial_stddev"),
    ],
)
def test_impossible_sizes_are_errors(network_class, arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        network_class(*arguments, **keywords)


def test_copies_and_state_dicts_are_faithful(network_class):
    network = network_class(3, 2)
    other = network_class(3, 2)
    other.load_state_dict(network.state_dict())
    y, observed = random_task(torch.float32, 7, 3)
    for twin in (copy.deepcopy(network), other):
        assert torch.equal(twin(helpers.rows(y, observed)).precision, network(helpers.rows(y, observed)).precision)


MISSINGNESS = {
    "ragged": lambda observed: observed & (torch.rand(observed.shape[-1]) > torch.rand(observed.shape)),
    "none": lambda observed: torch.ones_like(observed),
    "an output never observed": lambda observed: observed & (torch.arange(observed.shape[-1]) != 1),
    "one output alone": lambda observed: observed & (torch.arange(observed.shape[-1]) == 1),
    "everything": lambda observed: torch.zeros_like(observed),
}
# The entries of a block, given the number of rows that a network has.
BLOCKS = {
    "two networks": lambda num_rows: 2 * num_rows,
    "some rows of a network": lambda num_rows: 3,
    "a row of a network": lambda num_rows: 1,
}
# The rows from which on a network is evaluated by pieces.
MIN_ROWS = {"pieces": 1, "products": 10**9}


class TestBlocks:
    """On a CPU, large networks are evaluated in blocks that fit into its cache, at the observed entries alone."""

    def run(self, network, y, observed):
        y = y.clone().requires_grad_()
        network.zero_grad()
        sites = network(helpers.rows(y, observed))
        loss = sites.precision.square().sum() + sites.precision_mean.sum()
        loss.backward()
        return [sites.precision, sites.precision_mean, y.grad, *(parameter.grad for parameter in network.parameters())]

    @helpers.pairwise_cases(
        "network_class, entries, min_rows, missing, batch_shape, num_outputs",
        helpers.NETWORKS,
        BLOCKS,
        MIN_ROWS,
        MISSINGNESS,
        [(4,), (2, 3), ()],
        [5, 1],
    )
    def test_they_change_neither_values_nor_gradients(
        self, network_class, entries, min_rows, missing, batch_shape, num_outputs
    ):
        network = network_class(num_outputs, 2, (20, 20)).double()
        y, observed = random_task(torch.float64, *batch_shape, 11, num_outputs)
        observed = missing(observed)
        with patch.object(stacked_mlp, "BLOCK_BYTES", 10**9):
            expected = self.run(network, y, observed)
        with (
            patch.object(stacked_mlp, "BLOCK_BYTES", 20 * 8 * entries(math.prod(batch_shape) * 11)),
            patch.multiple(stacked_mlp, MANY_UNITS=1, MANY_ROWS=min_rows),
        ):
            results = self.run(network, y, observed)
        for result, value in zip(results, expected, strict=True):
            torch.testing.assert_close(result, value, rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize("network_class", [FactorNet, IndexNet, PointNet])
    def test_missing_entries_cost_no_products(self, network_class):
        network = network_class(40, 2, (50, 50))
        y = torch.randn(400, 40)

        def flops(observed):
            with FlopCounterMode(display=False) as counter:
                network(helpers.rows(y, observed)).precision.sum().backward()
            return counter.get_total_flops()

        everything, half, nothing = (flops(torch.rand(y.shape) < rate) for rate in (1.1, 0.5, -1))
        # a group of networks has as many rows as the one among them with most
        assert half < 0.65 * everything
        # but for the layers that follow the sum
        assert nothing < 0.05 * everything

    @pytest.mark.parametrize(
        ("network_class", "hidden_sizes", "num_rows", "num_outputs", "num_blocks"),
        [
            (FactorNet, (50, 50), 100, 300, 1),
            (IndexNet, (50, 50), 100, 300, 1),
            (PointNet, (50, 50), 100, 300, 1),
            # slopes and intercepts of the pieces
            (FactorNet, (256, 256), 20_000, 2, 2 * stacked_mlp.BLOCKS_PER_NETWORK),
            (FactorNet, (50, 50), 100_000, 2, stacked_mlp.BLOCKS_PER_NETWORK),
        ],
    )
    def test_no_tensor_of_all_hidden_units_exists(self, network_class, hidden_sizes, num_rows, num_outputs, num_blocks):
        network = network_class(num_outputs, 2, hidden_sizes)
        y = torch.randn(num_rows, num_outputs)
        with helpers.largest_allocation() as allocation, torch.no_grad():
            network(helpers.rows(y, y > -1))
        weights = max(parameter.numel() for parameter in network.parameters())
        assert allocation.numel <= max(weights, num_blocks * stacked_mlp.BLOCK_BYTES // y.element_size())
        assert allocation.numel < y.numel() * hidden_sizes[0]

    def test_transforms_of_torch_func_see_no_values(self, network_class):
        network = network_class(3, 2)
        y, observed = random_task(torch.float32, 4, 7, 3)
        expected = network(helpers.rows(y, observed)).precision
        with patch.object(stacked_mlp, "BLOCK_BYTES", 1):
            mapped = torch.func.vmap(lambda y, observed: network(helpers.rows(y, observed)).precision)(y, observed)
            torch.testing.assert_close(mapped, expected)
            _, vjp = torch.func.vjp(lambda y: network(helpers.rows(y, observed)).precision, y)
            assert torch.func.vmap(vjp)(torch.randn(5, *expected.shape))[0].shape == (5, *y.shape)

    @helpers.needs_compile
    def test_a_compiler_sees_no_values(self, network_class):
        network = network_class(3, 2)
        y, observed = random_task(torch.float32, 4, 7, 3)
        with patch.object(stacked_mlp, "BLOCK_BYTES", 1):
            compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(
                compiled(helpers.rows(y, observed)).precision, network(helpers.rows(y, observed)).precision
            )

    def test_tensors_without_values_have_shapes(self, network_class):
        with patch.object(stacked_mlp, "BLOCK_BYTES", 1):
            with torch.device("meta"):
                sites = network_class(3, 2)(helpers.rows(torch.zeros(7, 3), torch.zeros(7, 3, dtype=torch.bool)))
            assert sites.shape == (2, 7)
            with FakeTensorMode():
                sites = network_class(3, 2)(helpers.rows(torch.zeros(7, 3), torch.zeros(7, 3, dtype=torch.bool)))
            assert sites.shape == (2, 7)


@given(
    data=st.data(),
    num_points=st.integers(0, 6),
    num_outputs=st.integers(1, 4),
    batch_shape=st.lists(st.integers(1, 3), max_size=2),
)
def test_sites_are_finite_and_zero_exactly_where_rows_are_empty(data, num_points, num_outputs, batch_shape):
    network = data.draw(st.sampled_from(helpers.NETWORKS))(num_outputs, 2, (4,))
    y = torch.randn(*batch_shape, num_points, num_outputs)
    observed = torch.rand(y.shape) < data.draw(st.floats(0, 1))
    sites = network(helpers.rows(y, observed))
    assert sites.precision.isfinite().all()
    assert sites.precision_mean.isfinite().all()
    expected = observed.any(-1).unsqueeze(-2).expand(sites.shape)
    assert torch.equal(sites.precision > 0, expected)


class TestOwnNetworks:
    def test_a_subclass_needs_to_fill_in_encode_alone(self):
        class Constant(InferenceNetwork):
            def encode(self, context):
                y = context.filled
                return y[..., :1].expand(*y.shape[:-1], 2), torch.ones(*y.shape[:-1], 2)

        y, observed = random_task(torch.float32, 4, 7, 3)
        sites = Constant(3, 2)(helpers.rows(y, observed))
        assert isinstance(sites, GaussianSites)
        assert torch.equal(sites.precision > 0, observed.any(-1).unsqueeze(-2).expand(4, 2, 7))

    def test_one_without_encode_says_so(self):
        with pytest.raises(NotImplementedError, match="encode"):
            InferenceNetwork(3, 2)(helpers.rows(torch.zeros(7, 3), torch.ones(7, 3, dtype=torch.bool)))


def test_zero_imputation_cannot_tell_a_missing_value_from_zero():
    network = ZeroImputation(2, 1)
    y = torch.tensor([[1.0, 0.0]])
    hidden = network(helpers.rows(y, torch.tensor([[True, False]])))
    assert torch.equal(hidden.precision, network(helpers.rows(y, torch.tensor([[True, True]]))).precision)
