from __future__ import annotations

import gpytorch
import pytest
import torch

from gpytorch_sgpvae import GaussianObservations


@pytest.mark.parametrize(("shared", "size"), [(False, 3), (True, 1)])
def test_noise_is_learnt_per_output_or_shared(shared, size):
    observations = GaussianObservations(3, shared_noise=shared)
    assert observations.noise.shape == (size,)
    distribution = observations(torch.zeros(7, 4, 3))
    assert distribution.batch_shape == (7, 4, 3)
    assert distribution.event_shape == ()
    distribution.log_prob(torch.ones(7, 4, 3)).sum().backward()
    assert (observations.raw_noise.grad != 0).all()


@pytest.mark.parametrize("value", [0.04, [0.01, 0.02, 0.03]])
def test_noise_can_be_set_and_initialized_as_in_gpytorch(value):
    expected = torch.tensor(value).expand(3)
    observations = GaussianObservations(3)
    observations.noise = torch.tensor(value)
    torch.testing.assert_close(observations.noise, expected)
    torch.testing.assert_close(GaussianObservations(3).initialize(noise=torch.tensor(value)).noise, expected)
    torch.testing.assert_close(observations(torch.zeros(2, 3)).variance, expected.expand(2, 3))


def test_constraint_and_prior_are_gpytorchs():
    prior = gpytorch.priors.GammaPrior(2.0, 3.0)
    constraint = gpytorch.constraints.Interval(0.1, 0.5)
    observations = GaussianObservations(3, noise_prior=prior, noise_constraint=constraint)
    assert ((observations.noise > 0.1) & (observations.noise < 0.5)).all()
    ((_, module, registered, closure, setting),) = observations.named_priors()
    assert registered is prior
    torch.testing.assert_close(closure(module), observations.noise)
    setting(module, torch.tensor(0.2))
    torch.testing.assert_close(observations.noise, torch.full((3,), 0.2))
