from __future__ import annotations

import gpytorch
import torch

from gpytorch_sgpvae import (
    MLP,
    SGPVAE,
    BernoulliObservations,
    CategoricalObservations,
    GaussianObservations,
    LogNormalObservations,
    MixedObservations,
    PoissonObservations,
)

N = 5


class TestMixedObservations:
    def test_are_the_parts_side_by_side(self):
        gaussian, classes = GaussianObservations(2).initialize(noise=0.3), CategoricalObservations(1, 3)
        model = MixedObservations([gaussian, classes])
        assert (model.num_outputs, model.decoder_size) == (3, 5)
        decoded, y = torch.randn(N, 5), torch.tensor([0.5, -0.5, 2.0]).expand(N, 3)
        distribution = model(decoded)
        expected = [gaussian(decoded[:, :2]).log_prob(y[:, :2]), classes(decoded[:, 2:]).log_prob(y[:, 2:])]
        assert torch.equal(distribution.log_prob(y), torch.cat(expected, -1))
        assert distribution.parts[1].probs.shape == (N, 1, 3)
        allowed = distribution.support.check(torch.tensor([[0.5, -0.5, 3.0], [1.0, 1.0, 1.0]]))
        assert allowed.tolist() == [[True, True, False], [True, True, True]]

    def test_show_gpytorch_the_parameters_of_their_parts(self):
        prior = gpytorch.priors.GammaPrior(2.0, 3.0)
        model = MixedObservations([PoissonObservations(1), GaussianObservations(2, noise_prior=prior)])
        assert [registered for _, _, registered, *_ in model.named_priors()] == [prior]
        model.initialize(**{"observation_models.1.noise": 0.3})
        torch.testing.assert_close(model(torch.zeros(N, 3)).variance[:, 1:], torch.full((N, 2), 0.3))

    def test_learn_temperatures_rain_flags_and_counts_with_holes_together(self, dtype):
        x = torch.linspace(0, 6, 30, dtype=dtype).unsqueeze(-1)
        wave = x.sin()
        wet = (wave > 0).to(dtype)
        rain = torch.where(wet == 1, torch.exp(wave), torch.nan)
        y = torch.cat([wave, -wave, rain, wet, (4 + 3 * wave).round()], -1)
        y[torch.rand(y.shape) < 0.2] = torch.nan
        model = MixedObservations(
            [GaussianObservations(2), LogNormalObservations(1), BernoulliObservations(1), PoissonObservations(1)]
        )
        decoder = MLP(2, model.decoder_size, (10,))
        sgpvae = SGPVAE(5, 2, x[::4], decoder=decoder, observation_model=model)
        optimizer = torch.optim.Adam(sgpvae.parameters(), lr=1e-2)
        losses = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = sgpvae.loss((x, y))
            loss.backward()
            assert all(p.grad.isfinite().all() for p in sgpvae.parameters() if p.grad is not None)
            optimizer.step()
            losses.append(loss.item())
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
        prediction = sgpvae.eval().predict(x, (x, y))
        assert prediction.mean.shape == (30, 5)
        assert prediction.mean.dtype == dtype
        assert (prediction.mean[:, 2:] > 0).all()
        assert (prediction.mean[:, 3] < 1).all()
        assert torch.equal(prediction.log_prob(y).isnan(), y.isnan())
        draws = prediction.sample(3)
        assert (draws[..., 2] > 0).all()
        assert torch.equal(draws[..., 3:], draws[..., 3:].round())
