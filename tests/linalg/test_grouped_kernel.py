from __future__ import annotations

import copy
import pickle

import gpytorch
import helpers
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, MultitaskKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior

from gpytorch_sgpvae import SGPVAE, FactorNet, GaussianSites, GroupedKernel
from gpytorch_sgpvae.linalg.kernels import ScaledRBFKernel, default_grouped_kernel, spread_lengthscales


def quasi_periodic(batch):
    cycle = PeriodicKernel(active_dims=(0,), batch_shape=batch)
    change = MaternKernel(nu=1.5, ard_num_dims=2, active_dims=(1, 0), batch_shape=batch)
    return ScaleKernel(cycle * change, batch_shape=batch)


# input dimension 2 throughout
KERNELS = {
    **helpers.KERNELS,
    "ours": lambda batch: ScaledRBFKernel(ard_num_dims=2, batch_shape=batch),
    "active_dims": lambda batch: MaternKernel(nu=1.5, active_dims=(1,), batch_shape=batch),
    "quasi_periodic": quasi_periodic,
}
# For each group what makes its kernel, the kernel's batch shape, and the group's size.
GROUPS = [
    (KERNELS["active_dims"], (2,), 2),
    (KERNELS["matern52"], (), 2),
    (quasi_periodic, (3,), 3),
    (KERNELS["additive"], (1,), 1),
]
K = 8
INDICES = [
    0,
    5,
    -1,
    slice(None),
    slice(1, 6),
    slice(2, 4),
    slice(None, None, 3),
    [6, 0, 1, 4],
    torch.tensor([3, 3, 2]),
    torch.arange(K) % 2 == 0,
    (slice(3, 7),),
    Ellipsis,
]


def make_kernel(groups=GROUPS, dtype=torch.float64):
    """A grouped kernel whose parameters are all different, and the kernel of each latent function, made by hand."""
    kernels = [make(torch.Size(batch)).to(dtype) for make, batch, _ in groups]
    with torch.no_grad():
        for kernel in kernels:
            for parameter in kernel.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))
    singles = []
    for kernel, (make, batch, size) in zip(kernels, groups, strict=True):
        for k in range(size):
            singles.append(make(torch.Size([])).to(dtype))
            for parameter, source in zip(singles[-1].parameters(), kernel.parameters(), strict=True):
                own = source[k if batch == (size,) else 0] if batch else source
                parameter.data = own.detach().clone().reshape(parameter.shape)
    return GroupedKernel(kernels, [size for *_, size in groups]), singles


def one_by_one(singles, x1, x2):
    """The matrices of the latent functions, each from its own kernel and inputs (`... x K x N x N'`)."""
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2], (len(singles),))
    x1, x2 = (x.expand(*batch, *x.shape[-2:]) for x in (x1, x2))
    return torch.stack([kernel(x1[..., k, :, :], x2[..., k, :, :]).to_dense() for k, kernel in enumerate(singles)], -3)


class TestValues:
    @helpers.pairwise_cases(
        "make, batch, inputs, dtype",
        KERNELS,
        [(3,), (), (1,)],
        [(5,), (4, 5), (2, 3, 5), (4, 1), (1,), ()],
        helpers.DTYPES,
    )
    def test_each_latent_function_has_the_kernel_of_its_group(self, make, batch, inputs, dtype):
        kernel, singles = make_kernel([(make, batch, 3), (KERNELS["matern52"], (2,), 2)], dtype)
        x1, x2 = torch.randn(*inputs, 6, 2, dtype=dtype), torch.randn(*inputs, 4, 2, dtype=dtype)
        tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0, "atol": 1e-10}
        # K_uf, K_ff and its diagonal
        torch.testing.assert_close(kernel(x1, x2).to_dense(), one_by_one(singles, x1, x2), **tolerance)
        expected = one_by_one(singles, x1, x1)
        assert kernel(x1).shape == expected.shape == (*inputs[:-1], 5, 6, 6)
        torch.testing.assert_close(kernel(x1).to_dense(), expected, **tolerance)
        variance = expected.diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(kernel(x1).diagonal(dim1=-2, dim2=-1), variance, **tolerance)
        torch.testing.assert_close(kernel(x1, diag=True), variance, **tolerance)

    def test_inputs_of_each_latent_functions_own_meet_inputs_that_all_share(self):
        kernel, singles = make_kernel()
        own, shared = torch.randn(3, K, 6, 2, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
        for x1, x2 in ((own, shared), (shared, own)):
            torch.testing.assert_close(kernel(x1, x2).to_dense(), one_by_one(singles, x1, x2))

    def test_of_a_lazy_matrix_only_the_block_is_computed_that_is_asked_for(self):
        kernel, singles = make_kernel()
        x = torch.randn(3, K, 60, 2, dtype=torch.float64)
        with helpers.largest_allocation() as largest:
            block = kernel(x)[..., :5, 20:24].to_dense()
        assert largest.numel <= 4 * x.numel()
        torch.testing.assert_close(block, one_by_one(singles, x[..., :5, :], x[..., 20:24, :]))

    def test_no_group_evaluates_what_belongs_to_another(self):
        seen = []

        class Recording(RBFKernel):
            def forward(self, x1, x2, diag=False, **params):
                seen.append((tuple(x1.shape), tuple(x2.shape)))
                return super().forward(x1, x2, diag=diag, **params)

        kernel = GroupedKernel([Recording(batch_shape=torch.Size([2])), Recording()], [2, 3])
        kernel(torch.randn(7, 5, 6, 2), torch.randn(7, 5, 4, 2)).to_dense()
        assert seen == [((7, 2, 6, 2), (7, 2, 4, 2)), ((7, 3, 6, 2), (7, 3, 4, 2))]
        # what is the same for a whole group is computed once
        seen.clear()
        kernel(torch.randn(6, 2)).to_dense()
        assert seen[1] == ((6, 2), (6, 2))

    def test_it_is_a_group_itself(self):
        inner, singles = make_kernel()
        outer_singles = [RBFKernel().double(), *singles]
        outer = GroupedKernel([RBFKernel().double(), inner], [1, K])
        x = torch.randn(K + 1, 6, 2, dtype=torch.float64)
        expected = one_by_one(outer_singles, x, x)
        torch.testing.assert_close(outer(x).to_dense(), expected)
        for index in (1, 5, slice(0, 4), slice(3, 8)):
            torch.testing.assert_close(outer(x)[index].to_dense(), expected[index])

    def test_kernels_of_several_outputs_can_be_groups_if_they_agree(self):
        groups = [MultitaskKernel(RBFKernel(), num_tasks=2), MultitaskKernel(MaternKernel(), num_tasks=2)]
        kernel, x = GroupedKernel(groups, [1, 2]), torch.randn(3, 5, 2)
        assert kernel.num_outputs_per_input(x, x) == 2
        assert kernel(x).shape == (3, 10, 10)
        for k, group in enumerate((groups[0], groups[1], groups[1])):
            torch.testing.assert_close(kernel(x).to_dense()[k], group(x[k]).to_dense())
        with pytest.raises(ValueError, match=r"\[2, 1\] outputs"):
            GroupedKernel([groups[0], RBFKernel()], [1, 2])(x).to_dense()

    def test_a_batch_of_input_dimensions_comes_after_the_latent_functions(self):
        kernel = GroupedKernel([RBFKernel(batch_shape=torch.Size([2])), MaternKernel()], [2, 3])
        x = torch.randn(5, 6, 4)
        with pytest.warns(DeprecationWarning, match="last_dim_is_batch"):
            matrix, variance = (
                kernel(x, last_dim_is_batch=True).to_dense(),
                kernel(x, diag=True, last_dim_is_batch=True),
            )
        assert variance.shape == (5, 4, 6)
        for k in range(5):
            expected = torch.stack([kernel[k](x[k, :, d : d + 1]).to_dense() for d in range(4)])
            torch.testing.assert_close(matrix[k], expected)

    def test_gradients_are_right(self):
        kernel, _ = make_kernel()
        names, parameters = zip(*kernel.named_parameters(), strict=True)
        x1, x2 = torch.randn(2, K, 3, 2, dtype=torch.float64), torch.randn(2, K, 4, 2, dtype=torch.float64)

        def function(x1, x2, *values):
            with gpytorch.settings.lazily_evaluate_kernels(False):
                matrix = torch.func.functional_call(kernel, dict(zip(names, values, strict=True)), (x1, x2))
            return matrix.to_dense()

        inputs = [tensor.detach().requires_grad_() for tensor in (x1, x2, *parameters)]
        assert torch.autograd.gradcheck(function, inputs)


class TestStrategies:
    """q(f) of each latent function is that of a model of it alone, with its own kernel."""

    class SitesOf(torch.nn.Module):
        num_latents, row_wise = None, True

        def __init__(self, network, latent):
            super().__init__()
            self.network, self.latent = network, latent

        def forward(self, context):
            sites = self.network(context)
            return GaussianSites(sites.precision_mean[..., self.latent, :], sites.precision[..., self.latent, :])

    @pytest.mark.parametrize("tasks", [(), (3,), (2, 3)])
    @pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
    def test_latent_functions_are_what_they_are_alone(self, tasks, dense):
        kernel, singles = make_kernel()
        Z, network = 3 * torch.rand(5, 2, dtype=torch.float64), FactorNet(3, K, (8,)).double()
        mean = gpytorch.means.ZeroMean()
        model = helpers.Model(Z, network, lambda _: kernel, mean)
        alone = [helpers.Model(Z, self.SitesOf(network, k), lambda _, k=k: singles[k], mean).double() for k in range(K)]
        if dense:
            model, alone = helpers.DenseModel(model), [helpers.DenseModel(each) for each in alone]
        x, y = helpers.make_data(*tasks)
        x_new = 3 * torch.rand(4, 2, dtype=torch.float64)
        for mode in (True, False):
            model.train(mode)
            for inputs in (x, x_new):
                q_f = model(inputs, context=(x, y))
                kl_divergence = model.variational_strategy.kl_divergence()
                own_kl = 0.0
                for k, each in enumerate(alone):
                    own = each.train(mode)(inputs, context=(x, y))
                    torch.testing.assert_close(q_f.mean[..., k], own.mean, rtol=0, atol=1e-8)
                    torch.testing.assert_close(q_f.variance[..., k], own.variance, rtol=0, atol=1e-8)
                    own_kl = own_kl + each.variational_strategy.kl_divergence()
                torch.testing.assert_close(kl_divergence, own_kl, rtol=0, atol=1e-8)

    @pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
    def test_gradients_of_the_elbo_are_right(self, dense):
        kernel, _ = make_kernel([(quasi_periodic, (1,), 1), (KERNELS["matern12"], (), 1)])
        model = helpers.make_model(num_outputs=2, activation=torch.nn.Tanh, kernel=lambda _: kernel)
        model = helpers.DenseModel(model) if dense else model
        helpers.check_gradients_of_elbo(model, helpers.make_likelihood(2, activation=torch.nn.Tanh))

    def test_no_tensor_is_made_on_the_default_device(self, dtype):
        """The default device is `meta`, which stands in for a GPU, and everything else is on the CPU."""
        kernel, _ = make_kernel(dtype=dtype)
        sgpvae = SGPVAE(3, K, torch.rand(5, 2, dtype=dtype), kernel=kernel)
        x, y = helpers.make_data(4, dtype=dtype)
        with torch.device("meta"):
            sgpvae.loss((x, y)).backward()
            prediction = sgpvae.eval().predict(x, (x, y), num_samples=7, chunk_size=5)
            matrix, variance = kernel(x[0]).to_dense(), kernel(x[0], diag=True)
        assert all(tensor.device.type == "cpu" for tensor in (prediction.mean, matrix, variance))
        assert all(parameter.grad.isfinite().all() for parameter in kernel.parameters())

    def test_a_ready_made_model_is_trained_with_it(self):
        kernel = default_grouped_kernel(5, 2, shortest=0.2, longest=2.0, periods=[1.0])
        sgpvae = SGPVAE(3, 5, torch.rand(6, 2), kernel=kernel)
        context = helpers.make_data(4, dtype=torch.float32)
        before = {name: parameter.detach().clone() for name, parameter in kernel.named_parameters()}
        optimizer = torch.optim.Adam(sgpvae.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            sgpvae.loss(context).backward()
            optimizer.step()
        changed = {name for name, parameter in kernel.named_parameters() if not torch.equal(parameter, before[name])}
        assert before.keys() - changed == {"kernels.2.kernels.0.raw_period_length"}

    def test_another_number_of_latent_functions_is_an_error(self):
        sgpvae = SGPVAE(3, 2, torch.rand(6, 2))
        sgpvae.model.covar_module = GroupedKernel([RBFKernel(), MaternKernel()], [2, 1])
        with pytest.raises(ValueError, match=r"2 latent functions, but a GroupedKernel with sizes=\(2, 1\) of 3"):
            sgpvae.loss(helpers.make_data(4, dtype=torch.float32))


class TestIndices:
    @pytest.mark.parametrize("index", INDICES, ids=str)
    def test_of_the_kernel_are_those_of_its_matrices(self, index):
        kernel, singles = make_kernel()
        x = torch.randn(K, 6, 2, dtype=torch.float64)
        expected = one_by_one(singles, x, x)[index]
        selected = kernel[index]
        assert selected.batch_shape == expected.shape[:-2]
        torch.testing.assert_close(selected(x[index]).to_dense(), expected)

    @pytest.mark.parametrize("latents", INDICES[:7], ids=str)
    @pytest.mark.parametrize("tasks", [1, slice(None), slice(1, 3)], ids=str)
    def test_of_a_lazy_matrix_are_those_of_the_dense_one(self, tasks, latents):
        kernel, singles = make_kernel()
        x = torch.randn(3, K, 6, 2, dtype=torch.float64)
        expected = one_by_one(singles, x, x)[tasks, latents]
        torch.testing.assert_close(kernel(x)[tasks, latents].to_dense(), expected)
        torch.testing.assert_close(kernel(x)[tasks, latents, 1:3, 2:].to_dense(), expected[..., 1:3, 2:])
        variance = kernel(x)[tasks, latents].diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(variance, expected.diagonal(dim1=-2, dim2=-1))

    def test_tasks_and_latent_functions_are_taken_in_pairs(self):
        kernel, singles = make_kernel()
        x = torch.randn(3, K, 6, 2, dtype=torch.float64)
        pairs = torch.tensor([0, 2, 2, 1]), torch.tensor([7, 0, 5, 5])
        torch.testing.assert_close(kernel(x)[pairs].to_dense(), one_by_one(singles, x, x)[pairs])
        with pytest.raises(IndexError, match="one by one"):
            kernel.expand_batch(3, K)[torch.tensor([[0], [1]]), torch.tensor([[0, 1], [2, 3]])]

    def test_one_latent_functions_kernel_is_a_plain_one(self):
        kernel, _ = make_kernel()
        assert isinstance(kernel[-1].kernels[0], ScaleKernel)
        assert kernel[0].kernels[0].active_dims.tolist() == [1]
        assert kernel[2] is kernel[3] is kernel.kernels[1]
        assert kernel[4].base_kernel.kernels[1].active_dims.tolist() == [1, 0]
        assert kernel.kernels[0].active_dims.tolist() == [1]  # and the kernel itself is as it was
        with pytest.raises(IndexError):
            kernel[K]

    def test_kernels_of_whole_groups_keep_their_parameters(self):
        kernel, _ = make_kernel()
        x = torch.randn(K, 6, 2, dtype=torch.float64)
        kernel(x)[2:7].to_dense().sum().backward()
        grads = [[parameter.grad is not None for parameter in group.parameters()] for group in kernel.kernels]
        assert [set(grad) for grad in grads] == [{False}, {True}, {True}, {False}]

    def test_it_expands_to_more_batch_dimensions(self):
        kernel, singles = make_kernel()
        x = torch.randn(6, 2, dtype=torch.float64)
        for expanded in (kernel.expand_batch(3, K), kernel.expand_batch(torch.Size([3, K]))):
            assert expanded.batch_shape == (3, K)
            assert expanded(x).shape == (3, K, 6, 6)
            expected = one_by_one(singles, x, x).expand(3, K, 6, 6)
            torch.testing.assert_close(expanded(x).to_dense(), expected)
            assert expanded[1].batch_shape == (K,)
            torch.testing.assert_close(expanded[1](x).to_dense(), expected[1])
            torch.testing.assert_close(expanded[:, 2:5](x).to_dense(), expected[:, 2:5])
        assert kernel.batch_shape == (K,)
        one = GroupedKernel([RBFKernel()], [1])
        assert one.expand_batch(4)(x.float()).to_dense().shape == (4, 6, 6)
        for shape in ((), (3,), (K, 3)):
            with pytest.raises(RuntimeError, match=r"batch shape \(8,\) to"):
                kernel.expand_batch(torch.Size(shape))


class TestModule:
    def test_it_says_what_it_is_made_of(self):
        kernel, _ = make_kernel()
        assert kernel.sizes == (2, 2, 3, 1)
        assert isinstance(kernel.kernels, torch.nn.ModuleList)
        assert kernel.batch_shape == (K,)
        assert kernel.dtype == torch.float64
        assert kernel.is_stationary
        assert not GroupedKernel([RBFKernel(), LinearKernel()], [1, 1]).is_stationary
        x = torch.randn(6, 2)
        assert kernel.num_outputs_per_input(x, x) == 1

    def test_it_is_saved_and_copied(self):
        kernel, _ = make_kernel()
        x = torch.randn(K, 6, 2, dtype=torch.float64)
        expected = kernel(x).to_dense()
        fresh, _ = make_kernel()
        assert not torch.allclose(fresh(x).to_dense(), expected)
        assert "kernels.2.base_kernel.kernels.0.raw_period_length" in kernel.state_dict()
        fresh.load_state_dict(kernel.state_dict())
        for other in (fresh, copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
            assert torch.equal(other(x).to_dense(), expected)
            assert other.sizes == kernel.sizes
            assert not {id(p) for p in other.parameters()} & {id(p) for p in kernel.parameters()}

    def test_it_changes_its_dtype(self):
        kernel, _ = make_kernel()
        assert kernel.float()(torch.randn(6, 2)).to_dense().dtype == torch.float32

    def test_priors_of_its_kernels_count(self):
        prior = GammaPrior(2.0, 3.0)
        rough = MaternKernel(nu=0.5, batch_shape=torch.Size([2]), lengthscale_prior=prior)
        kernel = GroupedKernel([rough, RBFKernel()], [2, 1])
        ((name, _, found, closure, _),) = kernel.named_priors()
        assert name == "kernels.0.lengthscale_prior"
        torch.testing.assert_close(found.log_prob(closure(rough)), prior.log_prob(rough.lengthscale))
        plain = GroupedKernel([MaternKernel(nu=0.5, batch_shape=torch.Size([2])), RBFKernel()], [2, 1])
        elbos = []
        context = helpers.make_data(4, dtype=torch.float32)
        sgpvae = SGPVAE(3, 3, torch.rand(5, 2), kernel=kernel)
        samples = torch.zeros(1, 4, 12, 3)
        for each in (kernel, plain):
            sgpvae.model.covar_module = each
            elbos.append(sgpvae.elbo(context, num_tasks=4, base_samples=samples).sum())
        torch.testing.assert_close(elbos[0] - elbos[1], prior.log_prob(rough.lengthscale).sum(), rtol=1e-3, atol=1e-3)

    def test_samples_of_hyperparameters_can_be_loaded(self):
        prior = GammaPrior(2.0, 3.0)
        rough = MaternKernel(nu=0.5, batch_shape=torch.Size([2]), lengthscale_prior=prior)
        kernel = GroupedKernel([rough, RBFKernel(batch_shape=torch.Size([1]))], [2, 3])
        samples, x = prior.sample((4, 2, 1, 1)), torch.randn(6, 2)
        expected = torch.stack([kernel.initialize(**{"kernels.0.lengthscale": s})(x).to_dense() for s in samples])
        kernel.pyro_load_from_samples({"kernels.0.lengthscale_prior": samples})
        assert kernel.batch_shape == (4, 5)
        torch.testing.assert_close(kernel(x).to_dense(), expected)
        with pytest.raises(NotImplementedError, match="samples of its hyperparameters"):
            kernel[0, 1]


class TestErrors:
    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            ([2], "2 kernels and 1 sizes"),
            ([2, 1, 1], "2 kernels and 3 sizes"),
            ([2, 0], r"at least 1, got \[2, 0\]"),
            ([2, 1.0], r"whole numbers of at least 1, got \[2, 1.0\]"),
            ([3, 1], r"kernels\[0\], a MaternKernel, has batch shape \(2,\), but its group has 3 latent functions"),
        ],
    )
    def test_sizes_that_do_not_fit_are_named(self, sizes, message):
        with pytest.raises(ValueError, match=message):
            GroupedKernel([MaternKernel(batch_shape=torch.Size([2])), RBFKernel()], sizes)

    def test_there_is_a_group_and_it_has_a_kernel(self):
        with pytest.raises(ValueError, match="at least one group"):
            GroupedKernel([], [])
        with pytest.raises(TypeError, match="got Linear"):
            GroupedKernel([torch.nn.Linear(2, 2)], [1])
        with pytest.raises(ValueError, match=r"batch shape \(4, 2\)"):
            GroupedKernel([RBFKernel(batch_shape=torch.Size([4, 2]))], [2])

    @pytest.mark.parametrize("x2", [None, torch.zeros(6, 2)])
    def test_inputs_of_another_number_of_latent_functions_are_named(self, x2):
        kernel, x = GroupedKernel([RBFKernel(), MaternKernel()], [2, 1]), torch.zeros(7, 4, 6, 2)
        message = r"Inputs of shape \(7, 4, 6, 2\) are of 4 latent functions.*expected \(..., 3, N, D\)"
        for call in (kernel, kernel.forward, lambda x, x2: kernel(torch.zeros(6, 2), x)):
            with pytest.raises(ValueError, match=message):
                call(x, x if x2 is None else x2)

    @pytest.mark.parametrize(
        "compose",
        [ScaleKernel, lambda kernel: kernel + RBFKernel(), lambda kernel: RBFKernel() * kernel],
        ids=["scale", "sum", "product"],
    )
    def test_gpytorchs_composites_of_it_fail_and_are_never_wrong(self, compose):
        kernel = GroupedKernel([RBFKernel(batch_shape=torch.Size([2])), MaternKernel()], [2, 1])
        with pytest.raises(RuntimeError, match="broadcast"):
            compose(kernel)(torch.randn(6, 2)).to_dense()


class TestDefaults:
    def test_lengthscales_are_spread_in_equal_ratios(self):
        lengthscales = spread_lengthscales(5, 0.5, 50.0)
        torch.testing.assert_close(lengthscales[[0, -1]], torch.tensor([0.5, 50.0]))
        torch.testing.assert_close(lengthscales[1:] / lengthscales[:-1], torch.full((4,), 100**0.25))
        torch.testing.assert_close(spread_lengthscales(1, 0.5, 50.0), torch.tensor([5.0]))
        torch.testing.assert_close(spread_lengthscales(2, 3.0, 3.0), torch.tensor([3.0, 3.0]))

    @pytest.mark.parametrize(("shortest", "longest"), [(0.0, 1.0), (2.0, 1.0), (1.0, float("inf")), (-1.0, 1.0)])
    def test_lengthscales_that_are_none_are_an_error(self, shortest, longest):
        with pytest.raises(ValueError, match="0 < shortest <= longest"):
            spread_lengthscales(3, shortest, longest)

    @pytest.mark.parametrize(
        ("num_latents", "periods", "sizes"),
        [
            (1, [], (1,)),
            (2, [], (1, 1)),
            (5, [], (2, 3)),
            (3, [24.0], (1, 1, 1)),
            (8, [24.0], (3, 3, 2)),
            (13, [24.0, 168.0], (3, 4, 3, 3)),
        ],
    )
    def test_groups_are_of_about_the_same_size(self, num_latents, periods, sizes):
        kernel = default_grouped_kernel(num_latents, 1, shortest=1.0, longest=10.0, periods=periods)
        assert kernel.sizes == sizes
        assert kernel.batch_shape == (num_latents,)

    @pytest.mark.parametrize("input_dim", [1, 3])
    def test_rough_smooth_and_periodic_functions_start_where_they_should(self, input_dim):
        kernel = default_grouped_kernel(8, input_dim, shortest=2.0, longest=200.0, periods=[24.0, 168.0])
        rough, smooth, daily, weekly = kernel.kernels
        assert (rough.nu, smooth.nu) == (0.5, 1.5)
        for group in (rough, smooth):
            expected = spread_lengthscales(2, 2.0, 200.0)[:, None, None].expand(2, 1, input_dim)
            torch.testing.assert_close(group.lengthscale, expected)
        for group, period, change in ((daily, 24.0, 200.0), (weekly, 168.0, 4 * 168.0)):
            cycle, matern = group.kernels
            torch.testing.assert_close(cycle.period_length, torch.full((2, 1, 1), period))
            assert not cycle.raw_period_length.requires_grad
            assert matern.nu == 1.5
            torch.testing.assert_close(matern.lengthscale, torch.full((2, 1, input_dim), change))

    def test_variances_are_one_and_cycles_are_in_the_first_input_dimension(self):
        kernel = default_grouped_kernel(6, 2, shortest=2.0, longest=200.0, periods=[24.0])
        x = torch.tensor([[0.0, 0.0], [12.0, 0.0], [24.0, 0.0], [0.0, 12.0], [0.0, 24.0]])
        torch.testing.assert_close(kernel(x).diagonal(dim1=-2, dim2=-1), torch.ones(6, 5))
        correlations = kernel(x).to_dense()[-1, 0]
        assert correlations[1] < 0.2 < 0.9 < correlations[2]
        assert correlations[3] > correlations[4] > 0.9
        assert not any("outputscale" in name for name, _ in kernel.named_parameters())

    def test_too_few_latent_functions_and_odd_periods_are_errors(self):
        with pytest.raises(ValueError, match=r"num_latents=2 is too few.*at least 3"):
            default_grouped_kernel(2, 1, shortest=1.0, longest=2.0, periods=[24.0])
        with pytest.raises(ValueError, match=r"num_latents=0 is too few.*at least 1"):
            default_grouped_kernel(0, 1, shortest=1.0, longest=2.0)
        with pytest.raises(ValueError, match="positive and finite"):
            default_grouped_kernel(5, 1, shortest=1.0, longest=2.0, periods=[0.0])
