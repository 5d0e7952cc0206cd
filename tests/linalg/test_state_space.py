"""State spaces against the kernels of GPyTorch that they stand for."""

from __future__ import annotations

import warnings

import gpytorch
import helpers
import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad

from gpytorch_sgpvae import GroupedKernel
from gpytorch_sgpvae.linalg.kernels import ScaledRBFKernel
from gpytorch_sgpvae.linalg.state_space import StateSpace, register_state_space, to_state_space
from gpytorch_sgpvae.linalg.times import times_of

TOLERANCE = {"rtol": 0.0, "atol": 1e-12}
# The tolerance of angles after a million periods: these are rounded to 1e-10, and so are their sines.
FAR_TOLERANCE = {"rtol": 0.0, "atol": 1e-8}
BATCHES = [torch.Size([]), torch.Size([3])]
# As good as all harmonics for the periodic kernels here.
MANY_HARMONICS = 11
# Lengthscales are about one.
LAGS = torch.tensor([0.0, 1e-9, 1e-3, 0.2, 0.9, 2.3, 17.0, 1e6], dtype=torch.float64)
STEPS = torch.tensor([0.0, 1e-6, 0.03, 0.8, 2.9, 40.0], dtype=torch.float64)

EXACT = {
    "matern12": lambda batch: MaternKernel(nu=0.5, batch_shape=batch),
    "matern32": lambda batch: MaternKernel(nu=1.5, batch_shape=batch),
    "matern52": lambda batch: MaternKernel(nu=2.5, batch_shape=batch),
    "one_ard_dimension": lambda batch: MaternKernel(nu=2.5, ard_num_dims=1, batch_shape=batch),
    "constant": lambda batch: ConstantKernel(batch_shape=batch),
    "cosine": lambda batch: CosineKernel(batch_shape=batch),
    "scaled": lambda batch: ScaleKernel(MaternKernel(nu=1.5, batch_shape=batch), batch_shape=batch),
    "only_scale_batched": lambda batch: ScaleKernel(MaternKernel(nu=1.5), batch_shape=batch),
    "only_lengthscale_batched": lambda batch: ScaleKernel(MaternKernel(nu=1.5, batch_shape=batch)),
    "sum": lambda batch: MaternKernel(nu=0.5) + ConstantKernel(batch_shape=batch) + MaternKernel(nu=2.5),
    "product": lambda batch: MaternKernel(nu=1.5) * CosineKernel(batch_shape=batch) * ConstantKernel(),
    "nested": lambda batch: ScaleKernel(
        (MaternKernel(nu=0.5) + ScaleKernel(CosineKernel(batch_shape=batch))) * MaternKernel(nu=2.5) + ConstantKernel(),
        batch_shape=batch,
    ),
}
APPROXIMATE = {
    "periodic": lambda batch: periodic(batch),
    "sum_of_periodic": lambda batch: ScaleKernel(periodic(batch)) + periodic(),
    "product_of_periodic": lambda batch: ScaleKernel(
        periodic() * MaternKernel(nu=0.5, batch_shape=batch) * ScaleKernel(periodic(batch))
    ),
}
KERNELS = {**EXACT, **APPROXIMATE}


def periodic(batch=()):
    """A periodic kernel that is hardly different from its first harmonics."""
    kernel = PeriodicKernel(batch_shape=torch.Size(batch))
    return kernel.initialize(lengthscale=3.0)


def make_kernel(make, batch, dtype=torch.float64):
    kernel = make(torch.Size(batch)).to(dtype)
    helpers.perturb(kernel)
    return kernel


def kernel_at(kernel, lags):
    """
    The kernel itself at some lags (`*batch x N`). Each is a batch of its own, as GPyTorch subtracts the mean of the
    inputs, and that would round small lags beside large ones.
    """
    ones = [1] * len(kernel.batch_shape)
    matrices = kernel(lags.reshape(-1, *ones, 1, 1), lags.new_zeros(1, 1)).to_dense()  # (N, *batch, 1, 1)
    return matrices[..., 0, 0].expand(len(lags), *kernel.batch_shape).movedim(0, -1)


class TestCovariance:
    @pytest.mark.parametrize("batch", BATCHES, ids=str)
    @pytest.mark.parametrize("make", EXACT.values(), ids=EXACT)
    def test_is_the_kernel(self, make, batch):
        kernel = make_kernel(make, batch)
        [space] = to_state_space(kernel)
        assert space.batch_shape == batch
        actual = space.covariance(LAGS)
        assert actual.shape == (*batch, len(LAGS))
        torch.testing.assert_close(actual, kernel_at(kernel, LAGS), **TOLERANCE)
        torch.testing.assert_close(space.variance, kernel_at(kernel, LAGS)[..., 0], **TOLERANCE)
        assert torch.equal(space.neglected, torch.zeros(batch, dtype=torch.float64))

    @pytest.mark.parametrize("batch", BATCHES, ids=str)
    @pytest.mark.parametrize("make", APPROXIMATE.values(), ids=APPROXIMATE)
    def test_is_a_periodic_kernel_up_to_what_is_neglected(self, make, batch):
        kernel = make_kernel(make, batch)
        lags = torch.cat([LAGS[:-1], torch.linspace(0.0, 3.0, 200, dtype=torch.float64)])
        [space] = to_state_space(kernel, num_harmonics=3)
        error = (space.covariance(lags) - kernel_at(kernel, lags)).abs()
        assert space.neglected.shape == batch
        assert (space.neglected > 1e-6).all()
        assert (error <= space.neglected[..., None] + 1e-14).all()
        # No smaller bound is one: it is attained at lag 0.
        torch.testing.assert_close(error[..., 0], space.neglected, **TOLERANCE)

    @pytest.mark.parametrize("batch", BATCHES, ids=str)
    @pytest.mark.parametrize("make", APPROXIMATE.values(), ids=APPROXIMATE)
    def test_is_a_periodic_kernel_with_many_harmonics(self, make, batch):
        kernel = make_kernel(make, batch)
        [space] = to_state_space(kernel, num_harmonics=MANY_HARMONICS)
        assert (space.neglected < 1e-12).all()
        actual, expected = space.covariance(LAGS), kernel_at(kernel, LAGS)
        torch.testing.assert_close(actual[..., :-1], expected[..., :-1], **TOLERANCE)
        torch.testing.assert_close(actual, expected, **FAR_TOLERANCE)

    def test_does_not_depend_on_the_sign_of_a_lag(self):
        [space] = to_state_space(make_kernel(KERNELS["nested"], [3]))
        assert torch.equal(space.covariance(-LAGS), space.covariance(LAGS))


class TestPeriodicCoefficients:
    @pytest.mark.parametrize("lengthscale", [1e-4, 1e-2, 1.0, 1e3])
    def test_are_modified_bessel_functions(self, lengthscale):
        kernel = PeriodicKernel().double()
        kernel.lengthscale = lengthscale
        with gpytorch.settings.debug(False):
            [space] = to_state_space(kernel)
        z = 1 / kernel.lengthscale.detach().squeeze()
        expected = torch.stack([torch.special.i0e(z), 2 * torch.special.i1e(z)])
        actual = space.stationary_covariance.diagonal().detach()
        torch.testing.assert_close(actual[:2], expected, rtol=1e-13, atol=1e-15)
        assert torch.equal(actual[1:7], actual[7:])  # cosines and sines

    @pytest.mark.parametrize("lengthscale", [1e-8, 1e-6, 1e-4, 1e-2])
    @pytest.mark.parametrize("num_harmonics", [1, 6, 50])
    def test_bound_holds_for_lengthscales_too_short_for_any_quadrature(self, lengthscale, num_harmonics):
        kernel = PeriodicKernel().double()
        kernel.lengthscale, kernel.period_length = lengthscale, 1.0
        with gpytorch.settings.debug(False):
            [space] = to_state_space(kernel, num_harmonics)
        lags = torch.cat([torch.linspace(0, 1, 101).double(), torch.logspace(-6, 0, 100).double()])
        assert ((space.covariance(lags) - kernel_at(kernel, lags)).abs() <= space.neglected + 1e-14).all()

    def test_are_never_negative(self):
        """Variances of a long lengthscale are rounding errors."""
        kernel = PeriodicKernel(batch_shape=torch.Size([50])).double()
        kernel.lengthscale = torch.logspace(0, 6, 50).double()[:, None, None]
        [space] = to_state_space(kernel, num_harmonics=12)
        assert (space.stationary_covariance >= 0).all()
        assert (space.neglected >= 0).all()

    def test_warns_where_much_is_neglected(self):
        kernel = PeriodicKernel(batch_shape=torch.Size([2])).double()
        kernel.lengthscale = torch.tensor([1.0, 0.05]).double()[:, None, None]
        with pytest.warns(UserWarning, match=r"lengthscale of about 0\.05 loses about .* % .* with num_harmonics=6"):
            to_state_space(ScaleKernel(kernel))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            to_state_space(kernel, num_harmonics=15)
            with gpytorch.settings.debug(False):
                to_state_space(kernel)


class TestGradients:
    @pytest.mark.parametrize("batch", BATCHES, ids=str)
    @pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
    def test_of_parameters_are_those_through_the_kernel(self, make, batch):
        kernel = make_kernel(make, batch)
        parameters = list(kernel.parameters())
        # Without the last lag: the derivative with respect to a period grows with the lag, and so does its rounding.
        lags = LAGS[:-1]
        weights = torch.randn(*batch, len(lags), dtype=torch.float64)
        [space] = to_state_space(kernel, num_harmonics=MANY_HARMONICS)
        actual = torch.autograd.grad((weights * space.covariance(lags)).sum(), parameters)
        expected = torch.autograd.grad((weights * kernel_at(kernel, lags)).sum(), parameters)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
            assert (other != 0).all()

    @pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
    def test_of_steps_are_those_through_the_kernel(self, make):
        kernel = make_kernel(make, [3])
        lags = LAGS[2:-1].clone().requires_grad_()  # GPyTorch's distances have no derivative at 0
        [space] = to_state_space(kernel, num_harmonics=MANY_HARMONICS)
        weights = torch.randn(3, len(lags), dtype=torch.float64)
        [actual] = torch.autograd.grad((weights * space.covariance(lags)).sum(), lags, materialize_grads=True)
        [expected] = torch.autograd.grad((weights * kernel_at(kernel, lags)).sum(), lags, materialize_grads=True)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-11)

    @pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
    def test_are_finite_for_steps_of_any_length(self, make):
        kernel = make_kernel(make, [3])
        steps = torch.tensor([0.0, 1e-300, 1e-9, 700.0, 800.0, 1e9], dtype=torch.float64).requires_grad_()
        [space] = to_state_space(kernel)
        Phi = space.transition(steps)
        assert Phi.isfinite().all()
        total = Phi.square().sum() + space.stationary_covariance.sum()
        for gradient in torch.autograd.grad(total, [steps, *kernel.parameters()], materialize_grads=True):
            assert gradient.isfinite().all()


class TestTransition:
    @pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
    def test_of_two_steps_is_the_product_of_their_transitions(self, make):
        [space] = to_state_space(make_kernel(make, [3]))
        a, b = STEPS, STEPS.flip(0)
        torch.testing.assert_close(space.transition(a + b), space.transition(a) @ space.transition(b), **TOLERANCE)

    @pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
    def test_of_no_step_is_the_identity(self, make):
        [space] = to_state_space(make_kernel(make, [3]))
        identity = torch.eye(space.state_size, dtype=torch.float64)
        assert torch.equal(space.transition(torch.zeros(1)).detach(), identity.expand(3, 1, -1, -1))

    @pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
    def test_adds_noise_with_a_covariance(self, make):
        [space] = to_state_space(make_kernel(make, [3]))
        P, Phi = space.stationary_covariance[:, None], space.transition(STEPS)
        Q = P - Phi @ P @ Phi.mT
        assert (torch.linalg.eigvalsh(Q) >= -1e-14).all()
        assert (torch.linalg.eigvalsh(P) >= 0).all()

    @pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
    def test_broadcasts_steps_of_tasks_with_the_batch_shape(self, make):
        [space] = to_state_space(make_kernel(make, [3]))
        d, steps = space.state_size, torch.rand(4, 2, 1, 5, dtype=torch.float64)
        Phi = space.transition(steps)
        assert Phi.shape == (4, 2, 3, 5, d, d)
        torch.testing.assert_close(Phi[1, 1], space.transition(steps[1, 1, 0]), **TOLERANCE)
        # and steps of each latent function's own
        own = steps.expand(4, 2, 3, 5) * torch.tensor([1.0, 2.0, 3.0])[:, None]
        assert space.transition(own).shape == Phi.shape
        torch.testing.assert_close(space.transition(own)[..., 0, :, :, :], Phi[..., 0, :, :, :], **TOLERANCE)

    def test_of_a_matern_kernel_allocates_nothing_larger_than_itself(self):
        [space] = to_state_space(make_kernel(KERNELS["matern52"], [3]))
        with helpers.largest_allocation() as largest:
            space.transition(torch.rand(1, 1000, dtype=torch.float64))
        assert largest.numel == 3 * 1000 * 9


class TestStateSpace:
    def test_expands_without_a_copy(self):
        [single] = to_state_space(make_kernel(KERNELS["matern32"], []))
        space = single.expand((2, 3))
        assert (space.batch_shape, space.neglected.shape) == ((2, 3), (2, 3))
        Phi = space.transition(STEPS)
        assert Phi.shape == (2, 3, len(STEPS), 2, 2)
        assert Phi.stride()[:2] == (0, 0)
        assert torch.equal(Phi[1, 2], single.transition(STEPS))
        assert space.covariance(STEPS).shape == (2, 3, len(STEPS))

    def test_does_not_expand_to_what_it_does_not_fit(self):
        [space] = to_state_space(make_kernel(KERNELS["matern32"], [3]))
        with pytest.raises(ValueError, match=r"batch shape \(3,\) to \(2,\)"):
            space.expand((2,))

    @pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
    def test_is_in_float64_for_a_kernel_and_steps_in_float32(self, make):
        [space] = to_state_space(make_kernel(make, [3], torch.float32))
        steps = STEPS.float()
        Phi = space.transition(steps)
        tensors = [space.stationary_covariance, space.observation, space.neglected, Phi, space.covariance(steps)]
        assert {tensor.dtype for tensor in tensors} == {torch.float64}
        # Not only in name: this holds to more than float32 has.
        torch.testing.assert_close(space.transition(2 * steps), Phi @ Phi, **TOLERANCE)

    def test_observations_may_differ_within_the_batch(self):
        [first] = to_state_space(make_kernel(KERNELS["matern32"], [3]))
        [second] = to_state_space(make_kernel(KERNELS["cosine"], []))
        # h = c e₁ is the kernel times c²
        factor = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        louder = StateSpace(
            first.transition, first.stationary_covariance, factor[:, None] * first.observation, first.neglected
        )
        for combine in (StateSpace.__add__, StateSpace.__mul__):
            expected = combine(first.scaled(factor.square()), second).covariance(LAGS)
            torch.testing.assert_close(combine(louder, second).covariance(LAGS), expected, **TOLERANCE)
            torch.testing.assert_close(combine(second, louder).covariance(LAGS), expected, **TOLERANCE)
        assert louder.expand((2, 3)).covariance(LAGS).shape == (2, 3, len(LAGS))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"stationary_covariance": torch.ones(2, 3).double()}, r"\(2, 3\).*expected \(\*batch, d, d\)"),
            ({"observation": torch.ones(3).double()}, r"observation of shape \(3,\)"),
            ({"observation": torch.ones(4, 2).double()}, r"observation of shape \(4, 2\)"),
            ({"neglected": torch.zeros(4).double()}, r"neglected covariance of shape \(4,\)"),
            ({"neglected": torch.zeros(())}, r"torch.float32: expected float64"),
        ],
    )
    def test_refuses_tensors_that_do_not_fit(self, change, message):
        fitting = {
            "transition": lambda steps: torch.eye(2).double().expand(*steps.shape, 2, 2),
            "stationary_covariance": torch.eye(2).double(),
            "observation": torch.ones(2).double(),
            "neglected": torch.zeros(()).double(),
        }
        StateSpace(**fitting)
        with pytest.raises(ValueError, match=message):
            StateSpace(**{**fitting, **change})

    @pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
    def test_no_tensor_is_made_on_the_default_device(self, make):
        kernel, steps = make_kernel(make, [3]), STEPS.clone().requires_grad_()
        with torch.device("meta"):
            [space] = to_state_space(kernel)
            results = [space.transition(steps), space.covariance(steps), space.variance, space.scaled(space.variance)]
            space = results.pop()
            results += [
                space.stationary_covariance,
                space.observation,
                space.neglected,
                times_of(kernel, STEPS[:, None]),
            ]
        assert {result.device.type for result in results} == {"cpu"}


class TestGroups:
    def test_each_group_has_a_state_space(self):
        rough = make_kernel(KERNELS["matern12"], [2])
        shared = make_kernel(KERNELS["product"], [])
        single = make_kernel(KERNELS["matern52"], [1])
        kernel = GroupedKernel([rough, shared, single], sizes=[2, 3, 4])
        spaces = to_state_space(kernel)
        assert [space.batch_shape for space in spaces] == [(2,), (3,), (4,)]
        assert [space.state_size for space in spaces] == [1, 4, 3]
        actual = torch.cat([space.covariance(LAGS) for space in spaces])
        torch.testing.assert_close(actual, kernel_at(kernel, LAGS), **TOLERANCE)

    def test_groups_within_groups(self):
        inner = GroupedKernel([make_kernel(KERNELS["matern12"], [2]), make_kernel(KERNELS["cosine"], [])], sizes=[2, 1])
        repeated = GroupedKernel([make_kernel(KERNELS["matern32"], [])], sizes=[1])
        kernel = GroupedKernel([inner, repeated], sizes=[3, 2])
        spaces = to_state_space(kernel)
        assert [space.batch_shape for space in spaces] == [(2,), (1,), (2,)]
        actual = torch.cat([space.covariance(LAGS) for space in spaces])
        torch.testing.assert_close(actual, kernel_at(kernel, LAGS), **TOLERANCE)

    def test_of_an_expanded_kernel(self):
        kernel = GroupedKernel(
            [make_kernel(KERNELS["matern12"], [2]), make_kernel(KERNELS["cosine"], [])], sizes=[2, 3]
        )
        spaces = to_state_space(kernel.expand_batch(4, 5))
        assert [space.batch_shape for space in spaces] == [(4, 2), (4, 3)]

    def test_number_of_harmonics_reaches_them(self):
        [space] = to_state_space(GroupedKernel([PeriodicKernel() + ConstantKernel()], sizes=[2]), num_harmonics=4)
        assert space.state_size == 10


class TestErrors:
    @pytest.mark.parametrize(
        ("kernel", "name"),
        [
            (LinearKernel(), "LinearKernel"),
            (RQKernel(), "RQKernel"),
            (ScaleKernel(MaternKernel() + LinearKernel()), "LinearKernel"),
            (Matern52KernelGrad(), "Matern52KernelGrad"),
        ],
        ids=["linear", "rational_quadratic", "within_a_sum", "other_forward"],
    )
    def test_names_a_kernel_without_a_state_space_and_those_with_one(self, kernel, name):
        with pytest.raises(TypeError, match=rf"^{name} has no state-space form") as error:
            to_state_space(kernel)
        text = str(error.value)
        assert "RBFKernel" not in text
        assert f"register_state_space({name}, make)" in text
        built_in = (MaternKernel, ConstantKernel, CosineKernel, PeriodicKernel, ScaleKernel, AdditiveKernel)
        for kernel_class in (*built_in, ProductKernel):
            assert kernel_class.__name__ in text.split("have one: ")[1]

    @pytest.mark.parametrize(
        "kernel",
        [
            RBFKernel(),
            ScaledRBFKernel(),
            ScaleKernel(RBFKernel()),
            PeriodicKernel() * RBFKernel(),
            GroupedKernel([ScaleKernel(RBFKernel())], sizes=[2]),
        ],
        ids=["plain", "ours", "scaled", "product", "grouped"],
    )
    def test_offers_a_matern_kernel_for_an_rbf_kernel(self, kernel):
        with pytest.raises(TypeError, match=r"RBFKernel has no .*MaternKernel\(nu=2\.5\)"):
            to_state_space(kernel)

    def test_of_a_sum_of_grouped_kernels_says_where_to_add(self):
        kernel = GroupedKernel([MaternKernel()], sizes=[2]) + MaternKernel()
        with pytest.raises(TypeError, match=r"GroupedKernel has no .* add and multiply the kernels within the groups"):
            to_state_space(kernel)

    @pytest.mark.parametrize("kernel_class", [MaternKernel, PeriodicKernel])
    def test_of_several_inputs_says_that_time_is_the_only_one(self, kernel_class):
        kernel = ScaleKernel(kernel_class(ard_num_dims=2))
        with pytest.raises(ValueError, match=rf"{kernel_class.__name__} with ard_num_dims=2.* one input, time"):
            to_state_space(kernel)

    def test_of_no_harmonics(self):
        with pytest.raises(ValueError, match="num_harmonics must be at least 1, got 0"):
            to_state_space(PeriodicKernel(), num_harmonics=0)


class DampedWave(Kernel):
    """exp(−τ / ℓ) cos(τ): one that GPyTorch does not have, of an exponential and a wave."""

    has_lengthscale = True

    def forward(self, x1, x2, **params):
        distance = self.covar_dist(x1, x2, **params)
        return torch.exp(-distance / self.lengthscale) * torch.cos(distance)


def make_damped_wave(kernel):
    lengthscale = kernel.lengthscale.double()  # (*batch, 1, 1)

    def transition(steps):
        damping = torch.exp(-steps / lengthscale[..., 0])
        cos, sin = damping * steps.cos(), damping * steps.sin()
        return torch.stack([cos, sin, -sin, cos], dim=-1).unflatten(-1, (2, 2))

    P = torch.eye(2, dtype=torch.float64).expand(*kernel.batch_shape, 2, 2)
    return StateSpace(transition, P, P[..., 0], torch.zeros(kernel.batch_shape, dtype=torch.float64))


class TestRegister:
    @pytest.mark.parametrize("as_decorator", [False, True])
    def test_own_kernels_have_state_spaces(self, as_decorator):
        class Own(DampedWave):
            def forward(self, x1, x2, **params):
                return super().forward(x1, x2, **params)

        kernel = make_kernel(lambda batch: ScaleKernel(Own(batch_shape=batch)) * MaternKernel() + Own(), [3])
        with pytest.raises(TypeError, match="Own has no state-space form"):
            to_state_space(kernel)
        if as_decorator:
            assert register_state_space(Own)(make_damped_wave) is make_damped_wave
        else:
            assert register_state_space(Own, make_damped_wave) is make_damped_wave
        [space] = to_state_space(kernel)
        assert (space.batch_shape, space.state_size) == ((3,), 8)
        torch.testing.assert_close(space.covariance(LAGS), kernel_at(kernel, LAGS), **TOLERANCE)

    def test_subclasses_inherit_the_state_space_with_the_forward(self):
        class Named(MaternKernel):
            pass

        class Different(MaternKernel):
            def forward(self, x1, x2, **params):
                return super().forward(x1, x2, **params).square()

        kernel = make_kernel(lambda batch: Named(nu=1.5, batch_shape=batch), [3])
        torch.testing.assert_close(to_state_space(kernel)[0].covariance(LAGS), kernel_at(kernel, LAGS), **TOLERANCE)
        kernel = make_kernel(lambda batch: Different(nu=1.5, batch_shape=batch), [3])
        with pytest.raises(TypeError, match="Different has no state-space form"):
            to_state_space(kernel)

        @register_state_space(Different)
        def make_square(kernel):
            base = MaternKernel(nu=kernel.nu, batch_shape=kernel.batch_shape).double()
            base.lengthscale = kernel.lengthscale.detach()
            [space] = to_state_space(base)
            return space * space

        torch.testing.assert_close(to_state_space(kernel)[0].covariance(LAGS), kernel_at(kernel, LAGS), **TOLERANCE)

    def test_a_state_space_without_a_batch_serves_all_of_it(self):
        class Unit(MaternKernel):
            pass

        [unit] = to_state_space(make_kernel(KERNELS["matern12"], []))
        register_state_space(Unit, lambda kernel: unit)
        [space] = to_state_space(Unit(batch_shape=torch.Size([3])))
        assert torch.equal(space.covariance(LAGS), unit.covariance(LAGS).expand(3, -1))

    def test_registered_functions_must_give_a_state_space(self):
        class Own(MaternKernel):
            pass

        register_state_space(Own, lambda kernel: to_state_space(MaternKernel()))
        with pytest.raises(TypeError, match="registered for Own gave a list: expected a StateSpace"):
            to_state_space(Own() + MaternKernel())


class TestTimes:
    X = torch.arange(24, dtype=torch.float32).reshape(2, 4, 3)

    @pytest.mark.parametrize(
        ("kernel", "column"),
        [
            (MaternKernel(active_dims=(2,)), 2),
            (ScaleKernel(MaternKernel(active_dims=(1,))), 1),
            (ScaleKernel(ScaleKernel(MaternKernel(), active_dims=(2,))), 2),
            (ScaleKernel(MaternKernel(active_dims=(1,)) + PeriodicKernel(active_dims=(1,))), 1),
            (ConstantKernel() + MaternKernel(active_dims=(2,)) * CosineKernel(active_dims=(2,)), 2),
            (ScaleKernel(MaternKernel(active_dims=(1,)) * ConstantKernel(), active_dims=(0, 2)), 2),
            (GroupedKernel([MaternKernel(active_dims=(1,)), ScaleKernel(CosineKernel(active_dims=(1,)))], [2, 1]), 1),
        ],
        ids=["leaf", "scaled", "scaled_twice", "sum", "constant", "selected_twice", "grouped"],
    )
    def test_are_the_column_that_the_kernel_reads(self, kernel, column):
        times = times_of(kernel, self.X)
        assert times.dtype == torch.float64
        assert torch.equal(times, self.X[..., column].double())
        # The kernel itself does not see the others.
        others = self.X[0].clone()
        others[:, [i for i in range(3) if i != column]] = torch.rand(4, 2)
        lazy = kernel(self.X[0])
        assert torch.equal(kernel(others).to_dense(), lazy.to_dense())
        # What a lazy matrix keeps of the inputs.
        assert torch.equal(times_of(lazy.kernel, lazy.x1, selected=True), times[0])

    @pytest.mark.parametrize("kernel", [MaternKernel(), ConstantKernel(), MaternKernel() + ConstantKernel()])
    def test_are_the_only_column(self, kernel):
        assert torch.equal(times_of(kernel, self.X[..., :1]), self.X[..., 0].double())

    @pytest.mark.parametrize(
        ("kernel", "columns"),
        [
            (MaternKernel(), "(0, 1, 2)"),
            (MaternKernel(active_dims=(0, 0)), "(0, 0)"),
            (MaternKernel(active_dims=(0,)) + MaternKernel(active_dims=(1,)), "(0,) and (1,)"),
            (MaternKernel(active_dims=(1,)) * MaternKernel(), "(0, 1, 2) and (1,)"),
            (GroupedKernel([MaternKernel(active_dims=(2,)), MaternKernel(active_dims=(0,))], [1, 1]), "(0,) and (2,)"),
            (ConstantKernel(), "none"),
        ],
        ids=["all", "twice_the_same", "different", "some", "grouped", "none"],
    )
    def test_of_other_columns_are_refused(self, kernel, columns):
        with pytest.raises(ValueError, match=r"same single column.*active_dims=\(0,\)") as error:
            times_of(kernel, self.X)
        assert f"read the columns {columns} of inputs with 3 columns" in str(error.value)

    def test_of_a_column_that_is_not_there_are_refused(self):
        kernel = AdditiveKernel(MaternKernel(active_dims=(3,)))
        with pytest.raises(ValueError, match=r"MaternKernel with active_dims=\(3,\) gets inputs with 3 columns"):
            times_of(kernel, self.X)

    def test_have_gradients(self):
        x = self.X.clone().requires_grad_()
        times_of(MaternKernel(active_dims=(1,)), x).sum().backward()
        assert torch.equal(x.grad[..., 1], torch.ones(2, 4))
        assert x.grad.sum() == 8
