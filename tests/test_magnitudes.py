from __future__ import annotations

import gpytorch
import helpers
import pytest
import torch

from gpytorch_sgpvae import GPVAE, SGPVAE, Context, MarkovGPVAE
from gpytorch_sgpvae.magnitudes import ExtremeNumberError, check_magnitude, largest_magnitude


def test_squares_of_allowed_numbers_may_be_multiplied_by_allowed_numbers(dtype):
    largest = torch.tensor(0.99 * largest_magnitude(dtype), dtype=dtype)
    assert (largest.square() * largest).isfinite()
    check_magnitude(largest, "A number", "make it smaller.")


@pytest.mark.parametrize("factor", [1.01, float("inf"), float("nan"), -1.01])
def test_larger_numbers_are_named_with_a_way_out(factor, dtype):
    values = torch.tensor([1.0, factor * largest_magnitude(dtype)], dtype=dtype)
    with pytest.raises(ExtremeNumberError, match=rf"A number of shape \(2,\) .*{dtype}.*make it smaller"):
        check_magnitude(values, "A number", "make it smaller.")
    with gpytorch.settings.debug(False):
        check_magnitude(values, "A number", "make it smaller.")


def test_nan_passes_where_it_may():
    check_magnitude(torch.tensor([1.0, torch.nan]), "A number", "", nan_passes=True)
    with pytest.raises(ExtremeNumberError, match="as large as inf"):
        check_magnitude(torch.tensor([1.0, torch.inf]), "A number", "", nan_passes=True)


def test_values_that_cannot_be_seen_are_not_looked_at():
    check_magnitude(torch.empty(3, device="meta"), "A number", "")
    torch.func.vmap(lambda x: (check_magnitude(x, "A number", ""), x)[1])(torch.full((2, 3), torch.inf))


DENSE = (GPVAE, MarkovGPVAE)


class TestDoors:
    def test_a_context_refuses_outputs_and_inputs_that_would_overflow(self):
        x, y = helpers.make_data(dtype=torch.float32)
        with pytest.raises(ExtremeNumberError, match=r"context's y .*as large as 1e.30.*float32"):
            Context(x, torch.where(y.isnan(), y, 1e30))
        with pytest.raises(ExtremeNumberError, match=r"context's x .*as large as 1e.30.*float32"):
            Context(torch.full_like(x, 1e30), y)
        with pytest.raises(ExtremeNumberError, match=r"as large as 1e.300.*float64"):
            Context(torch.full_like(x, 1e300, dtype=torch.float64), y.double())

    def test_a_context_takes_extreme_inputs_where_nothing_is_observed(self):
        x, y = helpers.make_data()
        y[3], x[3] = torch.nan, torch.inf
        assert Context(x, y).x.isfinite().all()

    @pytest.mark.parametrize(
        "make", [lambda: SGPVAE(3, 2, torch.rand(4, 1)), lambda: GPVAE(3, 2), lambda: MarkovGPVAE(3, 2)]
    )
    @pytest.mark.parametrize("far", [1e30, torch.inf, torch.nan])
    def test_models_refuse_new_inputs_that_they_cannot_compute_with(self, make, far):
        model = make().eval()
        context = (torch.rand(5, 1), torch.randn(5, 3))
        with pytest.raises(ExtremeNumberError, match=r"x of shape \(1, 1\).*predict where it is finite"):
            model.predict(torch.tensor([[far]]), context)

    def test_inducing_points_are_finite_from_the_start_and_when_they_change(self):
        with pytest.raises(ExtremeNumberError, match="inducing points"):
            SGPVAE(3, 2, torch.tensor([[0.0], [torch.inf]]))
        with pytest.raises(ExtremeNumberError, match="inducing points"):
            SGPVAE(3, 2, torch.rand(4, 1)).strategy.set_inducing_points(torch.full((3, 1), 1e30))

    def test_a_decoder_that_overflows_is_named(self):
        model = GPVAE(3, 2)
        with torch.no_grad():
            model.likelihood.decoder.output_bias.fill_(1e30)
        with pytest.raises(ExtremeNumberError, match="What the decoder made of latent functions"):
            model.elbo((torch.rand(5, 1), torch.randn(5, 3)))
