"""Gappy fields go in and come out filled, with all else as it was."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("xarray")

import xarray as xr

from gpytorch_sgpvae.table import SGPVAEImputer, TableError
from gpytorch_sgpvae.xarray import GridImputer

# of a few cells and one epoch
pytestmark = pytest.mark.filterwarnings("ignore:The intervals of .* could not be calibrated")
OPTIONS = {"max_epochs": 1, "compare": False, "progress": False}


def make_sea(num_days=8, seed=0):
    """Temperature and chlorophyll of a small sea, with clouds, and much else that a file has."""
    random = np.random.default_rng(seed)
    lat, lon = np.linspace(40, 43, 4), np.linspace(-20, -17, 5)
    time = pd.date_range("2024-05-01", periods=num_days)
    day = np.arange(num_days)[:, None, None]
    wave = np.sin(day / 3 + lat[:, None]) + np.cos(lon)
    noise = 0.05 * random.normal(size=(2, *wave.shape))
    dims, attributes = ("time", "lat", "lon"), {"units": "°C", "long_name": "surface temperature"}
    data = xr.Dataset(
        {
            "crs": ((), 4326),
            "sst": (dims, (15 + wave + noise[0]).astype(np.float32), attributes),
            "depth": (("lat", "lon"), 1000 * random.random((4, 5))),
            "chl": (dims, np.exp(0.5 * wave + noise[1])),
            "quality": (dims, random.integers(0, 3, wave.shape)),
        },
        {
            "lon": ("lon", lon, {"units": "degrees_east"}),
            "lat": lat,
            "time": time,
            "orbit": ("time", np.arange(num_days) + 100),
            "basin": (("lat", "lon"), np.full((4, 5), "Atlantic")),
            "version": 3,
        },
        {"title": "a small sea"},
    )
    data["sst"].encoding = {"scale_factor": 0.01, "dtype": "int16", "_FillValue": -32768}
    cloudy = random.random((2, *wave.shape)) < 0.3
    cloudy[:, 4] = True  # a wholly missing day
    data["sst"] = data["sst"].where(~xr.DataArray(cloudy[0], dims=dims))
    data["chl"] = data["chl"].where(~xr.DataArray(cloudy[1], dims=dims)).transpose("lon", "time", "lat")
    data["sst"].encoding = {"scale_factor": 0.01, "dtype": "int16", "_FillValue": -32768}
    return data


@pytest.fixture(scope="module")
def sea():
    return make_sea()


@pytest.fixture(scope="module")
def imputer(sea):
    return GridImputer(**OPTIONS).fit(sea)


@pytest.fixture(scope="module")
def filled_sea(sea, imputer):
    return imputer.transform(sea)


def make_series(num_members=4, num_steps=30, seed=0):
    """A series for each of some members, which have nothing to do with each other but their kind."""
    random = np.random.default_rng(seed)
    values = np.sin(np.arange(num_steps) / 4 + random.uniform(0, 6, (num_members, 1)))
    array = xr.DataArray(values, {"member": np.arange(num_members)}, ("member", "step"), name="level")
    return array.where(random.random(array.shape) > 0.3)


@pytest.fixture(scope="module")
def of_members():
    return GridImputer(task="member", **OPTIONS).fit(make_series())


# --- a field in, the same field out


def test_holes_are_filled_and_nothing_else_changes(sea, filled_sea):
    filled = filled_sea
    assert not filled[["sst", "chl"]].isnull().to_array().any()
    xr.testing.assert_identical(sea, make_sea())
    xr.testing.assert_identical(filled.where(sea.notnull()), sea.where(sea.notnull()))
    xr.testing.assert_identical(filled.drop_vars(["sst", "chl"]), sea.drop_vars(["sst", "chl"]))
    assert list(filled.variables) == list(sea.variables)
    assert filled.sizes == sea.sizes
    for name, variable in sea.variables.items():
        ours = filled.variables[name]
        assert (ours.dims, ours.dtype, ours.attrs) == (variable.dims, variable.dtype, variable.attrs)
        assert ours.encoding == variable.encoding


def test_known_cells_are_the_same_to_the_bit(sea, filled_sea):
    known = sea.sst.notnull()
    assert filled_sea.sst.values[known].tobytes() == sea.sst.values[known].tobytes()


def test_what_is_filled_is_what_the_imputer_of_tables_says(sea, imputer):
    table = sea.drop_vars(["crs", "depth", "quality"]).to_dataframe(["time", "lat", "lon"]).reset_index()
    by_table = SGPVAEImputer(["time", "lat", "lon"], ["sst", "chl"], **OPTIONS).fit(table).transform(table, True)
    filled = imputer.transform(sea, intervals=True).transpose("time", "lat", "lon")
    for name in ("sst", "chl", "chl_std", "chl_upper", "chl_filled"):
        np.testing.assert_array_equal(filled[name].values.ravel(), by_table[name].to_numpy())
    pd.testing.assert_frame_equal(imputer.to_table(sea), table[["time", "lat", "lon", "sst", "chl"]])


def test_the_order_of_dimensions_does_not_matter(sea, imputer, filled_sea):
    turned = imputer.transform(sea.transpose("lon", "lat", "time"))
    assert turned.sst.dims == ("lon", "lat", "time")
    xr.testing.assert_allclose(turned.sst.transpose(*sea.sst.dims), filled_sea.sst, rtol=1e-5)


def test_intervals_are_further_variables(sea, imputer):
    filled = imputer.transform(sea, intervals=True)
    ends = ("std", "lower", "upper", "filled")
    assert set(filled) - set(sea) == {f"{name}_{end}" for name in ("sst", "chl") for end in ends}
    holes = sea.sst.isnull()
    assert (filled.sst_filled == holes).all()
    for end in ("std", "lower", "upper"):
        part = filled[f"sst_{end}"]
        assert (part.notnull() == holes).all()
        assert (part.dims, part.dtype) == (sea.sst.dims, sea.sst.dtype)
    assert ((filled.sst_lower < filled.sst) & (filled.sst < filled.sst_upper)).where(holes, True).all()
    assert filled.chl_std.dims == ("lon", "time", "lat")
    assert filled.sst_std.attrs == {"long_name": "standard deviation of surface temperature", "units": "°C"}
    assert filled.sst.attrs == sea.sst.attrs


def test_a_filled_field_can_be_written_to_a_file(sea, imputer, tmp_path):
    filled = imputer.transform(sea.drop_encoding(), intervals=True)
    filled.to_netcdf(tmp_path / "filled.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "filled.nc", engine="scipy") as read:
        xr.testing.assert_allclose(read.load(), filled)


@pytest.mark.parametrize("name", ["sst", None])
def test_a_data_array_is_one_output_and_stays_one(sea, name):
    array = sea.sst.rename(name)
    imputer = GridImputer(**OPTIONS).fit(array)
    filled = imputer.transform(array)
    assert isinstance(filled, xr.DataArray)
    assert not filled.isnull().any()
    assert filled.encoding == array.encoding
    xr.testing.assert_identical(filled.where(array.notnull()), array)
    name = name or "value"
    assert [v for v in imputer.transform(array, intervals=True) if v.startswith(name)][:2] == [name, f"{name}_std"]
    of_another_name = imputer.transform(array.rename("temperature"))
    xr.testing.assert_identical(of_another_name, filled.rename("temperature"))


def test_cells_where_it_says_so_only(sea, imputer, filled_sea):
    ocean = sea.depth > 300
    filled = imputer.transform(sea, intervals=True, where=ocean)
    holes = sea.sst.isnull()
    assert filled.sst.isnull().equals(holes & ~ocean)
    assert filled.sst_filled.equals((holes & ocean).rename("sst_filled").assign_attrs(filled.sst_filled.attrs))
    assert filled.sst_std.where(~ocean).isnull().all()
    # land has no part in the predictions elsewhere, and what is known there has
    xr.testing.assert_allclose(filled.sst.where(ocean), filled_sea.sst.where(ocean), rtol=1e-2)


def test_samples_are_whole_fields_and_vary_where_nothing_is_known(sea, imputer):
    samples = imputer.sample(sea, 3)
    assert samples.sst.dims == ("sample", *sea.sst.dims)
    assert samples.sst.dtype == sea.sst.dtype
    assert samples.sst.attrs == sea.sst.attrs
    spread = samples.sst.std("sample")
    assert ((spread > 1e-3) == sea.sst.isnull()).all()
    xr.testing.assert_identical(samples.drop_vars(["sst", "chl"]), sea.drop_vars(["sst", "chl"]))
    array = GridImputer(**OPTIONS).fit(sea.sst).sample(sea.sst, 2)
    assert (array.name, array.sizes["sample"]) == ("sst", 2)


# --- at other places


def test_predictions_are_on_the_grid_of_the_coordinates_asked_for(sea, imputer):
    fine = imputer.predict({"lat": [40.1, 41.2], "lon": np.linspace(-20, -17, 4)}, context=sea)
    assert dict(fine.sst.sizes) == {"time": 8, "lat": 2, "lon": 4}
    assert list(fine) == [f"{name}{end}" for name in ("sst", "chl") for end in ("", "_std", "_lower", "_upper")]
    assert fine.sst.attrs == sea.sst.attrs
    assert fine.sst.dtype == sea.sst.dtype
    assert fine.sst_std.attrs["units"] == "°C"
    np.testing.assert_array_equal(fine.time, sea.time)
    day = imputer.predict({"lat": 40.1, "time": "2024-05-20", "lon": fine.lon}, context=sea)
    assert day.sst.dims == ("lon",)
    assert day.sst_std.mean() > fine.sst_std.mean()


def test_predictions_at_points_are_those_of_the_imputer_of_tables(sea, imputer):
    points = pd.DataFrame({"time": sea.time.values[:3], "lat": [40.2, 41.0, 42.9], "lon": [-19.9, -18.0, -17.3]})
    expected = imputer.imputer_.predict(points, imputer.to_table(sea))
    at = {name: xr.DataArray(points[name], dims="point") for name in points}
    predicted = imputer.predict(at, context=sea)
    assert predicted.chl.dims == ("point",)
    assert {"time", "lat", "lon"} <= set(predicted.coords)
    for name in expected:
        np.testing.assert_allclose(predicted[name], expected[name], rtol=1e-6)


def test_a_field_gives_the_coordinates_of_predictions(sea, imputer):
    part = sea.isel(time=slice(2), lat=slice(None, None, 2))
    for at in (part, part.quality):
        assert dict(imputer.predict(at, context=sea).sst.sizes) == {"time": 2, "lat": 2, "lon": 5}


# --- shapes of all kinds


def test_the_model_follows_from_the_shape(sea):
    series = sea.sst.isel(lat=0, lon=0, drop=True)
    assert GridImputer(**OPTIONS).fit(series).imputer_.fitted_.plan.kind == "markov"
    imputer = GridImputer(**OPTIONS).fit(sea.isel(lat=[2], lon=slice(4)))  # a dimension of length 1 tells nothing
    assert imputer.imputer_.inputs == ["time", "lon"]
    assert imputer.imputer_.fitted_.plan.kind == "dense"


def test_coordinates_of_several_dimensions_are_inputs(sea):
    swath = sea.rename(lat="y", lon="x").drop_vars(["y", "x"])
    lat, lon = np.meshgrid(sea.lat, sea.lon, indexing="ij")
    swath = swath.assign_coords(lat=(("y", "x"), lat), lon=(("y", "x"), lon + 0.1 * lat))
    filled = GridImputer(["sst"], ["time", "lat", "lon"], **OPTIONS).fit_transform(swath)
    assert not filled.sst.isnull().any()
    assert list(filled.coords) == list(swath.coords)
    # a cell outside of the swath has no place and no value, and is left out
    swath["lat"][0, 0] = np.nan
    swath["sst"] = swath.sst.where(swath.lat.notnull())
    imputer = GridImputer(["sst"], ["time", "lat", "lon"], **OPTIONS).fit(swath)
    with pytest.raises(TableError, match=r"'lat' is missing in 8 cells .*first at time = 2024-05-01, y = 0, x = 0"):
        imputer.transform(swath)
    assert imputer.transform(swath, where=swath.lat.notnull()).sst.isnull().sum() == 8


@pytest.mark.parametrize("role", ["inputs", "covariates"])
def test_what_varies_along_some_dimensions_is_an_input_or_a_covariate(sea, role):
    names = {"inputs": ["time", "lat", "lon", "depth"]} if role == "inputs" else {"covariates": ["depth"]}
    imputer = GridImputer(["sst"], **names, **OPTIONS).fit(sea)
    xr.testing.assert_identical(imputer.transform(sea).depth, sea.depth)
    ahead = {"time": pd.date_range("2024-06-01", periods=2)}
    assert dict(imputer.predict(ahead, context=sea).sst.sizes) == {"time": 2, "lat": 4, "lon": 5}
    with pytest.raises(TableError, match="'depth' varies along 'lat', which has other values"):
        imputer.predict({"lat": [40.1]}, context=sea)


def test_labels_levels_counts_from_zero_and_parts_of_dates_are_inputs(sea):
    stations = sea.sst.isel(lat=0).drop_vars("lat").assign_coords(lon=list("abcde")).rename(lon="station")
    imputer = GridImputer(inputs=["time", "station", "time.dayofyear"], **OPTIONS).fit(stations)
    assert imputer.imputer_.fitted_.plan.labels == (1,)
    assert not imputer.transform(stations).isnull().any()
    unnamed = xr.DataArray(stations.values, dims=("x", "y"))
    assert GridImputer(**OPTIONS).fit(unnamed).to_table(unnamed)["y"].tolist()[:6] == [0, 1, 2, 3, 4, 0]
    stacked = sea.sst.stack(cell=["lat", "lon"])
    assert GridImputer(**OPTIONS).fit(stacked).imputer_.inputs == ["time", "lat", "lon"]


def test_labels_counts_and_flags_are_outputs_too(sea):
    wave = sea.chl.fillna(1.0)
    known = sea.chl.notnull()
    data = xr.Dataset(
        {
            "sky": xr.where(wave > 1, "clear", "dark").astype(object).where(known, None),
            "storms": xr.apply_ufunc(np.random.default_rng(0).poisson, wave).astype(float).where(known),
        }
    )
    filled = GridImputer(["sky", "storms"], **OPTIONS).fit(data).transform(data, intervals=True)
    assert set(np.unique(filled.sky.values)) == {"clear", "dark"}
    assert (filled.storms == filled.storms.round()).all()
    assert filled.sky_filled.sum() == (~known).sum()
    assert (filled.storms_lower.where(~known, 0) >= 0).all()


def test_a_field_around_the_globe(sea):
    ring = sea.assign_coords(lon=np.arange(0, 360, 72.0))
    imputer = GridImputer(["sst"], periodic={"lon": 360}, **OPTIONS).fit(ring)
    ends = imputer.predict({"lon": [0.0, 360.0, 359.999]}, context=ring).sst
    xr.testing.assert_allclose(ends.isel(lon=0, drop=True), ends.isel(lon=1, drop=True))
    xr.testing.assert_allclose(ends.isel(lon=0, drop=True), ends.isel(lon=2, drop=True), rtol=1e-2)


# --- tasks


def test_a_dimension_of_tasks_and_tasks_that_it_has_never_seen(of_members):
    new = make_series(num_members=2, num_steps=40, seed=1)
    filled = of_members.transform(new)
    assert not filled.isnull().any()
    alone = of_members.transform(new.isel(member=[1]))
    xr.testing.assert_allclose(filled.isel(member=[1]), alone)


def test_tasks_are_made_of_dates(sea):
    imputer = GridImputer(["sst"], task="week(time)", **OPTIONS).fit(sea)
    assert not imputer.transform(sea).sst.isnull().any()
    imputer = GridImputer(["sst"], ["lat", "lon"], task="day(time)", **OPTIONS).fit(sea)  # a map a day
    assert "time" in imputer.to_table(sea)


def test_data_of_dask_are_filled_a_chunk_of_tasks_at_a_time_when_they_are_computed(of_members, monkeypatch):
    pytest.importorskip("dask.array")
    series = make_series(seed=2)
    expected = of_members.transform(series, intervals=True)
    calls = []
    transform = SGPVAEImputer.transform
    monkeypatch.setattr(SGPVAEImputer, "transform", lambda *args: calls.append(1) or transform(*args))
    chunked = series.chunk({"member": 2, "step": 7})
    lazy = of_members.transform(chunked, intervals=True)
    assert lazy.level.chunks[0] == (2, 2)
    assert not calls
    xr.testing.assert_allclose(lazy.compute(), expected)
    assert len(calls) == 2
    xr.testing.assert_allclose(of_members.transform(chunked).compute(), expected.level)


def test_data_of_dask_without_a_dimension_of_tasks_are_loaded(sea, imputer, filled_sea):
    pytest.importorskip("dask.array")
    filled = imputer.transform(sea.chunk({"time": 5}))
    xr.testing.assert_allclose(filled.sst, filled_sea.sst)
    assert filled.sst.chunks is None


# --- models


def test_a_saved_model_fills_as_before(sea, imputer, filled_sea, tmp_path):
    imputer.save(tmp_path / "model")
    loaded = GridImputer.load(tmp_path / "model")
    xr.testing.assert_identical(loaded.transform(sea), filled_sea)
    assert repr(loaded).startswith("GridImputer(outputs=['sst', 'chl'], inputs=['time', 'lat', 'lon']")


def test_options_are_those_of_tables():
    assert GridImputer(max_minutes=2).options == {"max_minutes": 2}
    with pytest.raises(TypeError, match="max_hours"):
        GridImputer(max_hours=2)


# --- what goes wrong


def test_errors_about_names_say_what_there_is(sea, imputer):
    with pytest.raises(TableError, match=r"There is no 'sss' in the Dataset, which has .*variables crs, sst"):
        GridImputer(["sss"]).fit(sea)
    with pytest.raises(TableError, match="There is no 'chl'"):
        imputer.transform(sea[["sst"]])
    with pytest.raises(TableError, match=r"'sst' has the dimensions .* and 'more' has"):
        GridImputer().fit(sea.assign(more=(("time", "lat", "z"), np.ones((8, 4, 3)))))
    with pytest.raises(TableError, match=r"The output 'depth' has the dimensions .*may be an input or a covariate"):
        GridImputer(["sst", "depth"]).fit(sea)
    with pytest.raises(TableError, match="must be a list of names, got 'sst'"):
        GridImputer("sst").fit(sea)
    with pytest.raises(TableError, match="already has sst_std"):
        imputer.transform(sea.assign(sst_std=sea.sst), intervals=True)
    with pytest.raises(TableError, match="already has 'sample'"):
        imputer.sample(sea.expand_dims("sample"), 2)


def test_errors_about_names_that_nothing_is_read_of(sea, imputer):
    with pytest.raises(TableError, match=r"asked for at latitude, .*its inputs are time, lat, lon"):
        imputer.predict({"latitude": [40.5]}, context=sea)
    with pytest.raises(TableError, match=r"1 is the name of a dimension or variable, and a int: .*rename\({1: 'x'}\)"):
        GridImputer().fit(xr.DataArray(sea.sst.isel(lat=0).values, dims=("time", 1)))


def test_errors_about_kinds_say_what_is_expected(sea, imputer):
    with pytest.raises(TableError, match=r"Expected an xarray DataArray or Dataset, got a DataFrame"):
        GridImputer().fit(sea.to_dataframe())
    with pytest.raises(TableError, match="a DataArray is one: pass a Dataset"):
        imputer.transform(sea.sst)
    with pytest.raises(TableError, match="call fit"):
        GridImputer().transform(sea)
    with pytest.raises(TableError, match="no dimensions"):
        GridImputer(["crs"]).fit(sea)
    with pytest.raises(TableError, match="No dimension is longer than one"):
        GridImputer().fit(sea.sst.isel(time=[0], lat=[0], lon=[0]))
    with pytest.raises(TableError, match="no variable of floating-point numbers"):
        GridImputer().fit(sea[["crs", "quality"]])
    with pytest.raises(TableError, match="complex numbers"):
        GridImputer(["sst"]).fit(sea[["sst"]].astype(complex))
    with pytest.raises(TableError, match=r"where must be .* got float64"):
        imputer.transform(sea, where=sea.depth)
    with pytest.raises(TableError, match=r"Expected coordinates by their names.*got a list"):
        imputer.predict([1.0], context=sea)
    with pytest.raises(ValueError, match="align"):
        imputer.transform(sea, where=(sea.depth > 0).isel(lat=slice(2)))


def test_errors_about_coordinates_name_the_place(sea):
    twice = sea.sst.isel(time=[0, 1, 1, 2])
    with pytest.raises(TableError, match=r"'time' has 2024-05-02 .* more than once: .*drop_duplicates\('time'\)"):
        GridImputer().fit(twice)
    with pytest.raises(TableError, match="'lat' is missing in 1 of its 4 positions, first in 2"):
        GridImputer().fit(sea.sst.assign_coords(lat=[40, 41, np.nan, 42]))
    with pytest.raises(TableError, match=r"'depth' is missing in .* first at time = 2024-05-01, lat = 41.0"):
        GridImputer(["sst"], covariates=["depth"]).fit_transform(sea.assign(depth=sea.depth.where(sea.lat != 41)))

    class Date:
        calendar = "noleap"

    dates = np.array([Date() for _ in sea.time], dtype=object)
    with pytest.raises(TableError, match="dates of another calendar"):
        GridImputer(["sst"]).fit(sea[["sst"]].drop_vars("orbit").assign_coords(time=dates))


def test_undecoded_markers_of_missing_cells_are_found(sea):
    raw = sea.sst.fillna(-999.0).assign_attrs(_FillValue=-999.0)
    with pytest.raises(TableError, match=r"'sst' has cells that are -999.0, .*decode_cf"):
        GridImputer().fit(raw)
    GridImputer(**OPTIONS).fit(sea.sst.assign_attrs(missing_value=-999.0))
