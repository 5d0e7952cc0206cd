from __future__ import annotations

import pytest
import torch

from gpytorch_sgpvae import SGPVAE
from gpytorch_sgpvae.datasets import Normalizer, TaskData


def make_table(dtype=torch.float64):
    y = torch.tensor([3.0, -40.0, 0.1]) + torch.tensor([2.0, 500.0, 1e-3]) * torch.randn(50, 3)
    y[torch.rand(50, 3) < 0.3] = torch.nan
    return y.to(dtype)


def make_data():
    x, y, truth = torch.rand(50, 2), make_table(torch.float32), make_table(torch.float32)
    truth = truth.masked_fill(~y.isnan(), torch.nan)
    tasks = {"train": [(x, y)], "train_truth": [truth], "test": [(x, y), (x, y)], "test_truth": [truth, truth]}
    return TaskData(**tasks, seen=[True, False], inputs={"a": "m", "b": "m"}, outputs={"A": "V", "B": "K", "C": "s"})


def test_a_normalizer_undoes_itself(dtype):
    y = make_table(dtype)
    normalizer = Normalizer.fit([y])
    normalized = normalizer.normalize(y)
    torch.testing.assert_close(normalizer.denormalize(normalized), y, equal_nan=True)
    assert torch.equal(normalized.isnan(), y.isnan())
    assert normalized.dtype == dtype


def test_normalized_columns_have_mean_0_and_standard_deviation_1_over_what_is_observed():
    tables = [make_table(), make_table()[:7]]
    normalizer = Normalizer.fit(tables)
    normalized = normalizer.normalize(torch.cat(tables))
    torch.testing.assert_close(normalized.nanmean(0), torch.zeros(3).double(), atol=1e-8, rtol=0)
    torch.testing.assert_close(normalized.square().nanmean(0), torch.ones(3).double(), atol=1e-8, rtol=0)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e8 / 3])
def test_a_constant_column_keeps_its_scale(value, dtype):
    normalizer = Normalizer.fit([torch.full((1001, 1), value, dtype=dtype)])
    assert normalizer.stddev.item() == 1
    assert normalizer.mean.item() == pytest.approx(value, rel=1e-5)


def test_a_column_without_values_stays_as_it_is():
    normalizer = Normalizer.fit([torch.full((5, 1), torch.nan)])
    assert (normalizer.mean.item(), normalizer.stddev.item()) == (0, 1)


def test_a_prediction_is_rescaled_by_a_normalizer():
    data = make_data()
    x, y = data.normalize(data.test[0])
    prediction = SGPVAE(num_outputs=3, num_latents=1, inducing_points=x[::10]).predict(x, (x, y))
    for normalizer in (data.normalizer, Normalizer(*(part.double() for part in data.normalizer))):
        rescaled = prediction.rescale(*normalizer)
        torch.testing.assert_close(rescaled.mean, normalizer.denormalize(prediction.mean))
        torch.testing.assert_close(rescaled.stddev, normalizer.stddev.float() * prediction.stddev)


def test_what_is_held_out_and_the_test_have_no_part_in_the_normalizers():
    data = make_data()
    before = data.normalizer
    other = TaskData(
        train=data.train,
        train_truth=[1e6 + truth for truth in data.train_truth],
        test=[(x + 1e6, y + 1e6) for x, y in data.test],
        test_truth=data.test_truth,
        seen=data.seen,
        inputs=data.inputs,
        outputs=data.outputs,
    )
    for normalizer, again in ((before, other.normalizer), (data.input_normalizer, other.input_normalizer)):
        assert all(torch.equal(a, b) for a, b in zip(normalizer, again, strict=True))


def test_many_columns_do_not_fill_the_screen():
    data = make_data()
    assert repr(data) == "TaskData(1 + 2 tasks, a [m], b [m] -> A [V], B [K], C [s])"
    object.__setattr__(data, "outputs", {f"E{i}": "V" for i in range(64)})
    assert repr(data).endswith("-> E0 [V], E1 [V], E2 [V], ..., E63 [V])")
