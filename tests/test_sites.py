import pytest
import torch

from gpytorch_sgpvae import GaussianSites


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
