"""What is drawn is the data."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

import matplotlib as mpl
import numpy as np
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from matplotlib.figure import Figure

from gpytorch_sgpvae import GPVAE, SGPVAE, Context, Prediction, metrics, plotting
from gpytorch_sgpvae.plotting.missingness import MAX_PIXELS

P, K, N = 3, 2, 12
Z975 = 1.959963984540054


@pytest.fixture(autouse=True)
def _backend():
    mpl.use("Agg")


@pytest.fixture
def model(dtype):
    return SGPVAE(P, K, torch.linspace(0, 1, 5, dtype=dtype)).to(dtype)


@pytest.fixture
def x(dtype):
    return torch.rand(N, dtype=dtype)


@pytest.fixture
def y(dtype):
    y = torch.randn(N, P, dtype=dtype)
    y[:4, 0] = torch.nan
    y[:, 2] = torch.nan
    return y


def lines(axes):
    """The points of each label, in the order of x; none for a label that there is not."""
    drawn = {line.get_label(): np.column_stack(line.get_data()) for line in axes.get_lines()}
    return defaultdict(lambda: np.empty((0, 2)), drawn)


def entries(legend):
    return [text.get_text() for text in legend.get_texts()]


def bands(axes):
    """The lower and upper bounds of each band, in the order of x."""
    bounds = []
    for band in axes.collections:
        (path,) = band.get_paths()
        # matplotlib walks along one bound and back along the other, with a corner at each turn
        corners = path.vertices[:-1]
        half = len(corners) // 2
        there, back = corners[1:half], corners[:half:-1]
        bounds.append(np.sort(np.stack([there[:, 1], back[: half - 1, 1]]), axis=0))
    return bounds


class TestLatents:
    def test_a_posterior_is_drawn_with_its_inducing_points(self, model, x, y):
        posterior = model.eval().condition((x, y))
        axes = plotting.plot_latents(x, posterior)
        mean, variance = posterior.marginals(x)
        order = x.argsort()
        drawn = lines(axes)
        assert list(drawn) == ["latent 1", "latent 2", "inducing points"]
        for k in range(K):
            expected = torch.stack([x, mean[:, k]], -1)[order].detach()
            np.testing.assert_array_equal(drawn[f"latent {k + 1}"], expected)
        np.testing.assert_array_equal(drawn["inducing points"][:, 0], torch.linspace(0, 1, 5, dtype=x.dtype))
        for k, (lower, upper) in enumerate(bands(axes)):
            stddev = variance[order, k].sqrt().detach()
            np.testing.assert_allclose(upper - lower, 2 * Z975 * stddev, rtol=1e-4)
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "f")

    def test_q_f_and_a_prediction_are_drawn_alike(self, model, x, y):
        q_f = model.eval().model(x, context=(x, y))  # with gradients
        prediction = model.predict(x, context=(x, y))
        first, second = plotting.plot_latents(x, q_f), plotting.plot_latents(x, prediction)
        for label, points in lines(first).items():
            np.testing.assert_allclose(lines(second)[label], points, atol=1e-5)
        assert "inducing points" not in lines(first)

    def test_one_latent_without_a_dimension_of_its_own(self):
        q_f = MultivariateNormal(torch.arange(3.0), torch.eye(3))
        axes = plotting.plot_latents(torch.arange(3.0), q_f)
        assert lines(axes)["latent 1"].tolist() == [[0, 0], [1, 1], [2, 2]]

    def test_each_latents_own_inducing_points_have_its_color(self, x):
        q_f = MultitaskMultivariateNormal(torch.zeros(N, K), torch.eye(N * K))
        points = torch.rand(K, 5, 1)
        axes = plotting.plot_latents(x, q_f, points)
        for k in range(K):
            np.testing.assert_array_equal(lines(axes)[f"inducing points {k + 1}"][:, 0], points[k, :, 0])
        colors = {line.get_label(): line.get_color() for line in axes.get_lines()}
        assert colors["inducing points 2"] == colors["latent 2"] != colors["latent 1"]

    def test_a_dense_posterior_has_no_inducing_points(self, x, y):
        posterior = GPVAE(P, K).to(x.dtype).eval().condition((x, y))
        assert list(lines(plotting.plot_latents(x, posterior))) == ["latent 1", "latent 2"]

    def test_a_task_of_a_batch(self, model, x, y):
        context = Context.pad([(x, y), (x[:5], y[:5])])
        prediction = model.eval().predict(context.x, context)
        axes = plotting.plot_latents(context.x, prediction, task=1)
        order = context.x[1, :, 0].argsort()
        np.testing.assert_array_equal(lines(axes)["latent 2"][:, 1], prediction.function_mean[1, order, 1])

    def test_several_tasks_and_several_coordinates_are_errors_that_say_what_to_do(self, x):
        q_f = MultitaskMultivariateNormal(torch.zeros(4, N, K), torch.eye(N * K).expand(4, -1, -1))
        with pytest.raises(ValueError, match=r"q\(f\) of shape \(4, 12, 2\) has several tasks: choose one with task="):
            plotting.plot_latents(x, q_f)
        with pytest.raises(ValueError, match=r"\(12, 2\) have 2 coordinates, .* choose one, as in x\[:, 0\]"):
            plotting.plot_latents(torch.rand(N, 2), q_f, task=0)
        with pytest.raises(TypeError, match=r"Expected a Posterior, q\(f\) or a Prediction, got Tensor"):
            plotting.plot_latents(x, torch.zeros(N, K))


class TestOutputs:
    def test_each_output_has_its_mean_band_and_points(self, model, x, y):
        truth = torch.where(y.isnan(), torch.randn_like(y), torch.nan)
        truth[0, 0] = torch.nan  # nobody knows this one
        prediction = model.eval().predict(x, context=(x, y))
        panels = plotting.plot_outputs(x, prediction, (x, y), (x, truth), names=["a", "b", "c"])
        assert [panel.get_ylabel() for panel in panels] == ["a", "b", "c"]
        assert panels[-1].get_xlabel() == "x"
        order = x.argsort()
        quantiles = prediction.quantile([0.025, 0.975])
        for p, panel in enumerate(panels):
            drawn = lines(panel)
            np.testing.assert_array_equal(drawn["predicted"][:, 1], prediction.mean[order, p])
            (bounds,) = bands(panel)
            np.testing.assert_allclose(bounds, quantiles[:, order, p], atol=1e-5)
            seen, known = ~y[:, p].isnan(), ~truth[:, p].isnan()
            np.testing.assert_array_equal(drawn["observed"], torch.stack([x, y[:, p]], -1)[seen])
            np.testing.assert_array_equal(drawn["held out"], torch.stack([x, truth[:, p]], -1)[known])
            np.testing.assert_array_equal(drawn["missing"][:, 0], x[~seen].sort().values)
        assert entries(panels[0].figure.legends[0]) == ["95% band", "predicted", "observed", "missing", "held out"]

    @pytest.mark.parametrize("own_axes", [False, True])
    def test_the_legend_has_what_is_drawn_for_any_output_and_nothing_else(self, model, x, y, own_axes):
        def legend(y):
            given = Figure().subplots(P) if own_axes else None
            panels = plotting.plot_outputs(x, model.predict(x, (x, y)), (x, y), axes=given)
            return entries(panels[0].get_legend() if own_axes else panels[0].figure.legends[0])

        model.eval()
        assert legend(y.nan_to_num()) == ["95% band", "predicted", "observed"]
        others = y.clone()
        others[:, 0] = 0.0
        assert legend(others) == ["95% band", "predicted", "observed", "missing"]
        assert legend(torch.full_like(y, torch.nan)) == ["95% band", "predicted", "missing"]

    def test_predictions_elsewhere_than_the_data(self, model, x, y):
        grid = torch.linspace(0, 1, 40, dtype=x.dtype)
        panels = plotting.plot_outputs(grid, model.eval().predict(grid, (x, y)), (x, y))
        assert len(lines(panels[0])["predicted"]) == 40
        assert len(lines(panels[0])["observed"]) == N - 4
        assert [panel.get_ylabel() for panel in panels] == ["output 1", "output 2", "output 3"]

    def test_some_outputs_on_given_axes(self, model, x, y):
        figure = Figure()
        given = figure.subplots(2)
        prediction = model.eval().predict(x, (x, y))
        panels = plotting.plot_outputs(x, prediction, outputs=[2, 0], axes=given)
        assert list(panels) == list(given)
        order = x.argsort()
        np.testing.assert_array_equal(lines(given[0])["predicted"][:, 1], prediction.mean[order, 2])
        with pytest.raises(ValueError, match="2 axes for 3 outputs: give one for each"):
            plotting.plot_outputs(x, prediction, axes=given)
        with pytest.raises(ValueError, match="2 names for 3 outputs: a, b"):
            plotting.plot_outputs(x, prediction, names=["a", "b"])

    def test_padding_is_not_missing(self, model, x, y):
        short = y[4:8].nan_to_num(0.0)
        context = Context.pad([(x, y), (x[4:8], short)])
        prediction = model.eval().predict(context.x, context)
        panels = plotting.plot_outputs(context.x, prediction, context, task=1)
        for p, panel in enumerate(panels):
            np.testing.assert_array_equal(lines(panel)["observed"], torch.stack([x[4:8], short[:, p]], -1))
            assert not len(lines(panel)["missing"])

    def test_one_output_without_a_dimension(self, x, y):
        prediction = Prediction.gaussian(torch.zeros(N, 1, dtype=x.dtype), torch.ones(N, 1, dtype=x.dtype))
        (panel,) = plotting.plot_outputs(x, prediction, (x, y[:, 0]))
        assert len(lines(panel)["observed"]) == N - 4


class TestMap:
    def test_colors_are_values_at_places(self, dtype):
        x, values = torch.rand(N, 2, dtype=dtype), torch.randn(N, dtype=dtype)
        values[3:5] = torch.nan
        axes = plotting.plot_map(x, values.requires_grad_(), label="nickel (ppm)", vmin=-2)
        colors, missing = axes.collections
        known = ~values.isnan()
        np.testing.assert_array_equal(colors.get_offsets(), x[known])
        np.testing.assert_array_equal(colors.get_array(), values[known].detach())
        np.testing.assert_array_equal(missing.get_offsets(), x[3:5])
        assert colors.get_clim()[0] == -2
        assert colors.colorbar.ax.get_ylabel() == "nickel (ppm)"
        assert axes.get_aspect() == 1

    def test_nothing_missing_has_no_legend(self):
        axes = plotting.plot_map(torch.rand(N, 2), torch.randn(N))
        assert len(axes.collections) == 1
        assert axes.get_legend() is None

    def test_a_grid_has_cells_around_its_places(self, dtype):
        x = torch.cartesian_prod(torch.arange(4, dtype=dtype), 10 * torch.arange(3, dtype=dtype)).view(4, 3, 2)
        values = torch.randn(4, 3, dtype=dtype)
        values[1, 2] = torch.nan
        axes = plotting.plot_map(x, values, label="nickel (ppm)", vmin=-2, cmap="cividis")
        (cells,) = axes.collections
        np.testing.assert_array_equal(cells.get_array().filled(np.nan), values)
        np.testing.assert_array_equal(cells.get_coordinates()[0, 0], [-0.5, -5])
        np.testing.assert_array_equal(cells.get_coordinates()[-1, -1], [3.5, 25])
        assert (cells.get_clim()[0], cells.get_cmap().name) == (-2, "cividis")
        assert cells.colorbar.ax.get_ylabel() == "nickel (ppm)"

    def test_a_second_layer_needs_no_color_bar(self):
        axes = plotting.plot_map(torch.rand(N, 2), torch.randn(N))
        second = plotting.plot_map(torch.rand(N, 2), torch.randn(N), axes=axes, colorbar=False)
        assert second is axes
        assert [layer.colorbar is None for layer in axes.collections] == [False, True]

    @pytest.mark.parametrize(
        ("x", "values"), [((N, 3), (N,)), ((N, 2), (N, P)), ((N, 2), (N - 1,)), ((3, 4, 2), (N,)), ((2,), ())]
    )
    def test_other_shapes_are_errors_that_name_both(self, x, values):
        with pytest.raises(ValueError, match=r"expected \(N, 2\) and \(N,\)") as error:
            plotting.plot_map(torch.rand(x), torch.rand(values))
        assert str(x) in str(error.value)
        assert str(values) in str(error.value)


class TestPredictedMap:
    @pytest.fixture
    def grid(self, dtype):
        return torch.cartesian_prod(torch.linspace(0, 1, 4, dtype=dtype), torch.linspace(0, 1, 3, dtype=dtype))

    @pytest.fixture
    def prediction(self, grid):
        mean = torch.randn(len(grid), P, dtype=grid.dtype)
        return Prediction.gaussian(mean.requires_grad_(), mean.exp())

    def test_the_mean_and_the_standard_deviation_are_side_by_side(self, grid, prediction, y):
        x = torch.rand(N, 2, dtype=grid.dtype)
        y[5, 0] = 100.0
        maps = plotting.plot_predicted_map(grid.view(4, 3, 2), prediction, 0, "zinc (ppm)", context=(x, y))
        (mean, observed), (stddev, dots) = (axes.collections for axes in maps)
        np.testing.assert_array_equal(mean.get_array().ravel(), prediction.mean[:, 0].detach())
        np.testing.assert_allclose(stddev.get_array().ravel(), prediction.stddev[:, 0].detach(), rtol=1e-6)
        for layer in (observed, dots):
            np.testing.assert_array_equal(layer.get_offsets(), x[4:])
        np.testing.assert_array_equal(observed.get_array(), y[4:, 0])
        # the same color is the same value, observed or predicted
        assert mean.get_clim() == observed.get_clim()
        assert mean.get_clim()[1] == 100
        assert {layer.colorbar.ax.get_ylabel() for layer in (mean, stddev)} == {"zinc (ppm)"}

    def test_cells_may_be_left_out(self, grid, prediction):
        where = grid[:, 0].view(4, 3) > 0.5
        for axes in plotting.plot_predicted_map(grid.view(4, 3, 2), prediction, where=where):
            np.testing.assert_array_equal(axes.collections[0].get_array().mask, ~where)

    def test_places_without_a_grid_on_given_axes(self, grid, prediction):
        given = Figure().subplots(1, 2)
        maps = plotting.plot_predicted_map(grid, prediction, output=2, axes=given)
        assert list(maps) == list(given)
        np.testing.assert_array_equal(maps[0].collections[0].get_array(), prediction.mean[:, 2].detach())
        with pytest.raises(ValueError, match="1 axes for 2 maps: give one for each"):
            plotting.plot_predicted_map(grid, prediction, axes=given[:1])


class TestCalibration:
    def test_lines_are_coverage(self, y):
        mean = torch.zeros_like(y)
        prediction = Prediction.gaussian(mean, torch.ones_like(y))
        axes = plotting.plot_calibration(prediction, y, names=["a", "b", "c"])
        drawn = lines(axes)
        levels = drawn["all values"][:, 0]
        np.testing.assert_allclose(levels, np.arange(1, 20) / 20)
        for level, fraction in drawn["b"]:
            assert fraction == pytest.approx(metrics.coverage(prediction, y, level)[1].item())
        assert np.isnan(drawn["c"][:, 1]).all()  # which has no values, and leaves the others alone
        values = torch.cat([y[4:, 0], y[:, 1]])
        for level, fraction in drawn["all values"]:
            inside = values.abs() <= torch.distributions.Normal(0, 1).icdf(torch.tensor(0.5 + 0.5 * level))
            assert fraction == pytest.approx(inside.double().mean().item())

    def test_a_calibrated_prediction_lies_on_the_diagonal(self):
        y = torch.randn(20, 1000, 1)
        axes = plotting.plot_calibration(Prediction.gaussian(torch.zeros_like(y), torch.ones_like(y)), y)
        points = lines(axes)["output 1"]
        np.testing.assert_allclose(points[:, 1], points[:, 0], atol=0.015)

    def test_many_outputs_are_gray(self):
        y = torch.randn(N, 40)
        axes = plotting.plot_calibration(Prediction.gaussian(torch.zeros_like(y), torch.ones_like(y)), y)
        assert axes.get_legend_handles_labels()[1] == ["calibrated", "each output", "all values"]
        assert len(axes.get_lines()) == 42


class TestMissingness:
    def test_pixels_are_missing_entries_and_labels_their_share(self, y):
        axes = plotting.plot_missingness(y, names=["wind", "rain", "snow"], task_sizes=[5, 4, 3])
        (image,) = axes.get_images()
        assert np.array_equal(image.get_array().data, y.isnan().double().T.numpy())
        assert [label.get_text() for label in axes.get_yticklabels()] == ["wind 33 %", "rain", "snow 100 %"]
        assert [line.get_xdata()[0] for line in axes.get_lines()[:2]] == [5, 9]

    def test_rows_that_share_a_pixel_are_averaged(self):
        y = torch.zeros(5000, 1)
        y[::2] = torch.nan
        pixels = plotting.plot_missingness(y).get_images()[0].get_array()
        assert pixels.shape == (1, MAX_PIXELS)
        assert pixels.mean() == pytest.approx(0.5)


class TestTrainingCurves:
    def test_panels_hold_what_there_is(self):
        history = {"val_mae": ([4, 8], [1.0, 0.5]), "train_elbo": ([1, 2], [-2.0, -1.0]), "mine": ([1], [3.0])}
        panels = plotting.plot_training_curves(history)
        titles = [panel.get_title() for panel in panels]
        assert titles == ["ELBO per observed value (nats)", "held-out error", "mine"]
        assert lines(panels[1])["val_mae"].tolist() == [[4, 1.0], [8, 0.5]]
        assert {panel.get_xlabel() for panel in panels} == {"step"}

    def test_on_given_axes(self):
        history = {"train_elbo": ([1, 2], [-2.0, -1.0])}
        given = Figure().subplots()
        (axes,) = plotting.plot_training_curves(history, given)
        assert axes is given
        with pytest.raises(ValueError, match="2 axes for 1 panels"):
            plotting.plot_training_curves(history, [given, given])


def test_colors_can_be_told_apart_in_gray_prints_by_marker_and_dash():
    assert len({style["color"] for style in plotting.STYLES}) == len(plotting.STYLES)
    assert len({style["marker"] for style in plotting.STYLES}) == len(plotting.STYLES)


def test_the_module_does_not_import_matplotlib_before_it_draws():
    script = "import sys; from gpytorch_sgpvae import plotting; print('matplotlib' in sys.modules)"
    output = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "False"
