import pytest
import torch

from gpytorch_sgpvae import (
    Context,
    DecoderLikelihood,
    FreeFormSites,
    GaussianObservations,
    GaussianSites,
    JointFactorNet,
    PrivateLinear,
)
from gpytorch_sgpvae.sites import owners_of, side_by_side


def test_the_sum_is_the_product_of_the_gaussians():
    grid = torch.linspace(-3, 3, 101, dtype=torch.float64)
    means, variances = torch.tensor([0.5, -1.0]).double(), torch.tensor([0.3, 2.0]).double()
    sites = [GaussianSites((m / v).view(1, 1), (1 / v).view(1, 1)) for m, v in zip(means, variances, strict=True)]
    total = sites[0] + sites[1]
    product = sum(torch.distributions.Normal(m, v.sqrt()).log_prob(grid) for m, v in zip(means, variances, strict=True))
    mean, variance = total.precision_mean / total.precision, 1 / total.precision
    density = torch.distributions.Normal(mean.squeeze(), variance.squeeze().sqrt()).log_prob(grid)
    difference = density - product
    torch.testing.assert_close(difference, difference[:1].expand(101), rtol=0, atol=1e-10)


def test_different_shapes_are_errors():
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(2, 4\)"):
        GaussianSites(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="same points"):
        _ = GaussianSites(torch.zeros(2, 3), torch.zeros(2, 3)) + GaussianSites(torch.zeros(2, 4), torch.zeros(2, 4))
    with pytest.raises(TypeError):
        _ = GaussianSites(torch.zeros(2, 3), torch.zeros(2, 3)) + 1


class TestLoadings:
    """Pseudo-observations of sums of latent functions: T = 4 tasks, J = 3 of each of N = 5 points, K = 2."""

    SHAPES = ((3, 2), (1, 3, 2), (5, 3, 2), (4, 1, 3, 2), (4, 5, 3, 2))

    def make(self, shape=(3, 2)):
        precision = torch.rand(4, 3, 5).double()
        return GaussianSites(torch.randn(4, 3, 5).double(), precision, torch.randn(shape).double())

    @pytest.mark.parametrize("shape", SHAPES)
    def test_point_precision_is_the_sum_of_outer_products(self, shape):
        sites = self.make(shape)
        a = sites.loadings.expand(4, 5, 3, 2)
        expected = torch.einsum("tjn,tnjk,tnjl->tnkl", sites.precision, a, a)
        torch.testing.assert_close(sites.point_precision(), expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_what_a_prior_mean_leaves_is_seen_through_the_loadings(self, shape):
        sites, mean = self.make(shape), torch.randn(4, 2, 5).double()
        seen = torch.einsum("tnjk,tkn->tjn", sites.loadings.expand(4, 5, 3, 2), mean)
        expected = sites.precision_mean - sites.precision * seen
        torch.testing.assert_close(sites.seen_by(mean), expected, rtol=0, atol=1e-12)
        shared = sites.seen_by(mean[0])
        torch.testing.assert_close(shared[0], sites.seen_by(mean)[0], rtol=0, atol=1e-12)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_values_go_to_the_latent_functions_by_the_loadings(self, shape):
        sites = self.make(shape)
        expected = torch.einsum("tnjk,tjn->tkn", sites.loadings.expand(4, 5, 3, 2), sites.precision_mean)
        torch.testing.assert_close(sites.to_latents(sites.precision_mean), expected, rtol=0, atol=1e-12)

    def test_none_is_the_identity(self):
        values, mean = torch.randn(4, 2, 5).double(), torch.randn(4, 2, 5).double()
        none = GaussianSites(values, torch.rand(4, 2, 5).double())
        eye = GaussianSites(values, none.precision, none.explicit_loadings())
        assert torch.equal(eye.loadings, torch.eye(2).double())
        for method, arguments in (("point_precision", ()), ("seen_by", (mean,)), ("to_latents", (values,))):
            left, right = (getattr(sites, method)(*arguments) for sites in (none, eye))
            torch.testing.assert_close(left, right, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("shape", [(2, 3), (5, 2, 2), (4, 2)])
    def test_of_another_number_of_pseudo_observations_are_an_error_that_names_both_shapes(self, shape):
        with pytest.raises(ValueError, match=rf"\({', '.join(map(str, shape))}\).*\(4, 3, 5\).*\(J, K\)"):
            self.make(shape)

    def test_equal_loadings_add(self):
        left, right = self.make(), self.make()
        right = GaussianSites(right.precision_mean, right.precision, left.loadings.clone())
        total = left + right
        assert total.shape == (4, 3, 5)
        assert total.loadings is left.loadings
        assert torch.equal(total.precision, left.precision + right.precision)
        assert torch.equal(total.precision_mean, left.precision_mean + right.precision_mean)

    @pytest.mark.parametrize("left", [*SHAPES, None])
    @pytest.mark.parametrize("right", [*SHAPES, None])
    def test_different_loadings_stand_beside_each_other(self, left, right):
        parts = [
            GaussianSites(torch.randn(4, 2, 5), torch.rand(4, 2, 5)) if shape is None else self.make(shape)
            for shape in (left, right)
        ]
        parts = [GaussianSites(p.precision_mean.double(), p.precision.double(), p.loadings) for p in parts]
        total = parts[0] + parts[1]
        if left is right is None:
            assert total.loadings is None
        else:
            assert total.shape[-2] == sum(part.shape[-2] for part in parts)
        natural = [(part.point_precision(), part.to_latents(part.precision_mean)) for part in (*parts, total)]
        for a, b, both in zip(*natural, strict=True):
            torch.testing.assert_close(both, a + b, rtol=0, atol=1e-12)

    def test_of_other_points_or_tasks_cannot_be_added(self):
        sites = self.make()
        for shape in ((4, 3, 6), (3, 5), (2, 3, 5)):
            with pytest.raises(ValueError, match=r"same points.*\(4, 3, 5\)"):
                _ = sites + GaussianSites(torch.zeros(shape), torch.zeros(shape), torch.randn(3, 2))

    def test_of_another_number_of_latent_functions_cannot_be_added(self):
        with pytest.raises(ValueError, match=r"2 latent functions.*3"):
            _ = self.make() + self.make((3, 3))

    def test_are_detached_with_the_rest(self):
        sites = self.make()
        sites.loadings.requires_grad_()
        assert not sites.detach().loadings.requires_grad
        assert sites.detach().loadings.data_ptr() == sites.loadings.data_ptr()

    def test_free_form_sites_refuse_them_instead_of_forgetting_them(self):
        with pytest.raises(ValueError, match=r"loadings.*refine"):
            FreeFormSites.from_sites(self.make())


class TestOwners:
    """Private latent functions, which at most one pseudo-observation has a loading of."""

    loadings = torch.tensor([[1.0, 2.0, 0.0, 0.0], [3.0, 0.0, 4.0, 0.0]])

    def make(self, owners=(-1, 0, 1, 0)):
        return GaussianSites(torch.zeros(2, 5), torch.ones(2, 5), self.loadings, owners)

    def test_are_read_off_loadings_that_will_not_change(self):
        assert owners_of(self.loadings) == (-1, 0, 1, 0)
        assert owners_of(self.loadings.expand(5, 2, 4)) is None

    def test_stay_while_the_loadings_do(self):
        sites = self.make()
        for same in (sites.double(), sites.detach(), sites.expand((3, 2, 5)), sites + sites):
            assert same.owners == sites.owners
        assert side_by_side([sites, sites]).owners == sites.owners
        other = GaussianSites(torch.zeros(2, 5), torch.ones(2, 5), torch.ones(2, 4))
        assert (sites + other).owners is None
        assert side_by_side([sites, other]).owners is None

    def test_must_be_one_for_each_latent_function(self):
        with pytest.raises(ValueError, match=r"owners of 3 latent functions.*\(2, 4\)"):
            self.make((-1, 0, 1))

    def test_a_network_knows_them_from_its_decoder(self):
        network = JointFactorNet(3, 5)
        context = Context(torch.rand(4, 1), torch.randn(4, 3))
        assert network(context).owners is None
        network.tie(DecoderLikelihood(PrivateLinear(2, 3, 1), GaussianObservations(3)))
        assert network(context).owners == (-1, -1, 0, 1, 2)
