from __future__ import annotations

import datetime
import hashlib

import numpy as np
import pytest
import torch

from gpytorch_sgpvae.datasets import ghcn, load_amedas, load_japan_weather, weather
from gpytorch_sgpvae.datasets.files import DataFile
from gpytorch_sgpvae.datasets.ghcn import read_station, stations_in

ELEMENTS = ["PRCP", "TMAX", "TMIN", "TAVG", "SNWD"]


def amedas_csv(num_stations=3, num_days=23):
    lines = ["station,name,type,lat,lon,elev,date,PRCP,TMAX,TMIN,TAVG"]
    for s in range(num_stations):
        for n in range(num_days):
            date = datetime.date(2023, 7, 14) + datetime.timedelta(n)
            tavg = "" if (s, n) == (0, 2) else 20 + s + n / 100
            lines.append(f"{11016 + s},Here,A,{45 - s}.5,{141 - s}.25,{10 * s},{date},0.5,{30 + s},{10 + s},{tavg}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def small_amedas(folder, monkeypatch):
    content = amedas_csv()
    monkeypatch.setattr(weather, "AMEDAS", DataFile("amedas/a.csv", hashlib.sha256(content.encode()).hexdigest()))
    (folder / "amedas").mkdir()
    (folder / "amedas/a.csv").write_text(content)


@pytest.mark.usefixtures("small_amedas")
class TestAmedas:
    def test_whole_weeks_from_the_first_date_are_the_tasks(self):
        data = load_amedas()
        assert (len(data.train), len(data.test), data.seen) == (2, 3, [True, False, True])
        x, y = data.train[1]
        assert x.shape == (21, 4)
        assert x[:, 3].tolist() == list(range(7)) * 3
        assert x[7].tolist() == [44.5, 140.25, 10, 0]
        assert y[7].tolist() == [0.5, 31, 11, 21.14]
        assert data.outputs == {"PRCP": "mm", "TMAX": "°C", "TMIN": "°C", "TAVG": "°C"}

    def test_training_has_all_that_is_known(self):
        data = load_amedas()
        missing = torch.stack([y for _, y in data.train]).isnan()
        assert missing.nonzero().tolist() == [[0, 2, 3]]
        assert torch.stack(data.train_truth).isnan().all()

    def test_the_test_hides_the_average_of_five_days_and_a_quarter_of_the_extremes(self):
        data = load_amedas()
        for (x, y), truth in zip(data.test, data.test_truth, strict=True):
            middle = (x[:, 3] >= 1) & (x[:, 3] <= 5)
            assert torch.equal(y[:, 3].isnan(), middle)
            assert y.isnan().sum(0).tolist() == [0, 21 // 4, 21 // 4, 15]
            assert not (truth.isfinite() & y.isfinite()).any()
        assert data.test_truth[0][2, 3].isnan()  # missing anyway: nothing to compare with
        assert data.test_truth[1][:, 3].isfinite().sum() == 15

    def test_what_is_hidden_is_drawn_week_by_week_first_of_the_highest_temperatures(self):
        random = np.random.RandomState(1)
        for _, y in load_amedas().test:
            for column in (1, 2):
                assert (
                    sorted(random.choice(21, 21 // 4, replace=False)) == y[:, column].isnan().nonzero()[:, 0].tolist()
                )

    def test_a_seed_and_a_fraction_change_what_is_hidden(self):
        first, other = (torch.stack(load_amedas(seed=seed).test_truth) for seed in (1, 2))
        assert not torch.equal(first.isnan(), other.isnan())
        assert load_amedas(hidden_fraction=0.0).test[0][1][:, 1:3].isfinite().all()


def test_without_a_folder_amedas_says_that_nobody_offers_it_and_where_it_goes(cache):
    with pytest.raises(FileNotFoundError, match=r"2023\.csv. Nobody offers it for download.*SGPVAE_DATA") as error:
        load_amedas()
    assert str(cache / "amedas") in str(error.value)


def test_the_protocol_of_the_amedas_experiment(real_data):
    data = load_amedas()
    assert (len(data.train), len(data.test)) == (10, 20)
    assert data.seen == [True, False] * 10
    for (x, y), truth in zip(data.test, data.test_truth, strict=True):
        assert x.shape == (1085, 4)
        assert x.isfinite().all()
        hidden = y.isnan() & truth.isfinite()
        assert not hidden[:, 0].any()
        assert hidden[:, 3].sum() == pytest.approx(155 * 5, abs=15)
        assert hidden[:, 1:3].sum(0).tolist() == pytest.approx([1085 // 4] * 2, abs=10)
    train = torch.stack([y for _, y in data.train])
    assert train.isnan().double().mean() < 0.01


def ghcn_csv(station, rows, elements=ELEMENTS, elevation="12.0"):
    """A file as NCEI has it: all in quotes, values padded, flags of measurement, quality and source beside each."""
    columns = [column for element in elements for column in (element, f"{element}_ATTRIBUTES")]
    lines = [["STATION", "DATE", "LATITUDE", "LONGITUDE", "ELEVATION", "NAME", *columns]]
    for date, values in rows.items():
        cells = [
            cell
            for element in elements
            for cell in ([f"{values[element][0]:>5}", values[element][1]] if element in values else ["", ""])
        ]
        lines.append([station, date, "45.4167", "141.6833", elevation, "WAKKANAI, JA", *cells])
    return "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines) + "\n"


ROWS = {
    "1979-12-31": {"TMAX": (999, ",,S")},
    "1980-01-01": {"PRCP": (15, ",,S"), "TMAX": (-12, ",,S"), "TMIN": (-40, ",,S"), "SNWD": (300, ",,S")},
    "1980-01-03": {"TAVG": (-25, "H,,S"), "TMAX": (990, ",I,S")},
    "1981-06-01": {"TAVG": (201, "H,,S")},
}
INVENTORY = """\
ITE00100550  44.5000   11.3500 TMAX 1900 2020
JA000047401  45.4167  141.6833 TMAX 1949 2024
JA000047401  45.4167  141.6833 SNOW 1949 2024
JA000047402  45.4167  141.6833 TMAX 1949 1979
JA000047404  45.4167  141.6833 PRCP 1981 1981
JA000047405  45.4167  141.6833 WT01 1949 2024
"""


class TestGHCN:
    def test_a_station_is_read_in_ordinary_units(self, tmp_path):
        path = tmp_path / "JA000047401.csv"
        path.write_text(ghcn_csv("JA000047401", ROWS))
        table = read_station(path, [1980, 1981], ELEMENTS)
        assert len(table) == 366 + 365
        assert list(table.columns) == ["station", "date", "lat", "lon", "elev", *ELEMENTS]
        assert set(table["station"]) == {"JA000047401"}
        assert table[["lat", "lon", "elev"]].drop_duplicates().to_numpy().tolist() == [[45.4167, 141.6833, 12.0]]
        first = table[ELEMENTS].iloc[0].to_list()
        assert first[:3] == [1.5, -1.2, -4.0]  # tenths of mm and of °C
        assert np.isnan(first[3])
        assert first[4] == 300  # mm
        assert table[ELEMENTS].notna().sum().to_list() == [1, 1, 1, 2, 1]

    def test_a_value_that_failed_a_check_is_missing(self, tmp_path):
        path = tmp_path / "JA000047401.csv"
        path.write_text(ghcn_csv("JA000047401", ROWS))
        third = read_station(path, [1980], ELEMENTS).iloc[2]
        assert third["TAVG"] == -2.5
        assert np.isnan(third["TMAX"])

    def test_a_station_lacks_the_columns_of_what_it_never_measured(self, tmp_path):
        path = tmp_path / "JA000047401.csv"
        path.write_text(ghcn_csv("JA000047401", ROWS, elements=["TAVG"]))
        table = read_station(path, [1980], ELEMENTS)
        assert table[ELEMENTS].notna().sum().to_list() == [0, 0, 0, 1, 0]

    @pytest.mark.parametrize(
        "content",
        [
            ghcn_csv("JA000047401", {"1979-12-31": {"TMAX": (1, ",,S")}}),
            ghcn_csv("JA000047401", ROWS, elements=["WT01"]),
            ghcn_csv("JA000047401", ROWS, elevation="-999.9"),
            ghcn_csv("JA000047401", ROWS, elevation=""),
        ],
        ids=["other years", "other variables", "elevation unknown", "elevation missing"],
    )
    def test_a_station_that_is_of_no_use_is_left_out(self, tmp_path, content):
        path = tmp_path / "JA000047401.csv"
        path.write_text(content)
        assert read_station(path, [1980, 1981], ELEMENTS) is None

    @pytest.mark.parametrize(
        "damage", [("1980-01-03", "1980-01-"), ("1980-01-03", "1980-01-01"), ('"   15"', '"fine"'), ("DATE", "DAY")]
    )
    def test_a_damaged_file_is_named(self, tmp_path, damage):
        path = tmp_path / "JA000047401.csv"
        path.write_text(ghcn_csv("JA000047401", ROWS).replace(*damage))
        with pytest.raises(ValueError, match=r"(?s)JA000047401\.csv cannot be read .*get it again"):
            read_station(path, [1980], ELEMENTS)

    def test_the_inventory_names_the_japanese_stations_with_data(self, tmp_path):
        path = tmp_path / "inventory.txt"
        path.write_text(INVENTORY)
        files = stations_in(path, [1980, 1981], ELEMENTS)
        assert [file.path for file in files] == ["ghcn/JA000047401.csv", "ghcn/JA000047404.csv"]
        assert files[0].url == f"{ghcn.STATIONS}/JA000047401.csv"
        assert [file.path for file in stations_in(path, [1980], ELEMENTS)] == ["ghcn/JA000047401.csv"]
        with pytest.raises(ValueError, match=r"knows no Japanese station .* in 1900: ask for other years"):
            stations_in(path, [1900], ELEMENTS)
        path.write_text(INVENTORY.replace("JA000047404", "JA/../../key"))
        with pytest.raises(ValueError, match=r"inventory\.txt cannot be read \('JA/../../key' is no name of a file"):
            stations_in(path, [1980], ELEMENTS)
        path.write_text("JA000047401 and then nothing")
        with pytest.raises(ValueError, match=r"inventory\.txt cannot be read .*first year, last year"):
            stations_in(path, [1980], ELEMENTS)


class TestJapanWeather:
    @pytest.fixture
    def small_japan(self, folder):
        (folder / "ghcn").mkdir()
        for station in ("JA000047404", "JA000047401"):
            (folder / f"ghcn/{station}.csv").write_text(ghcn_csv(station, ROWS))

    @pytest.mark.usefixtures("small_japan")
    def test_one_year_is_for_training_and_both_are_for_the_test(self):
        data = load_japan_weather()
        assert len(data.train) == 53
        assert data.seen == [True] * 53 + [False] * 53
        assert list(data.outputs.values()) == ["mm", "°C", "°C", "°C", "mm"]
        assert [len(x) for x, _ in data.test] == [14] * 52 + [2 * 2, 2 * 5] + [14] * 51 + [2 * 3]
        assert data.test[52][0][:, 3].tolist() == [0, 1, 0, 1]
        assert data.test[53][0][:, 3].tolist() == [2, 3, 4, 5, 6] * 2
        x, y = data.train[0]
        assert torch.equal(x, data.test[0][0])
        assert y[:, 3].isfinite().sum() == 2  # one value of each station, on day 2
        assert data.test[0][1][:, 3].isnan().all()
        assert data.test_truth[0][:, 3].nansum() == 2 * -2.5

    @pytest.mark.usefixtures("small_japan")
    def test_years_without_data_are_an_error_that_says_what_to_do(self):
        with pytest.raises(ValueError, match=r"None of the 2 stations .* in 1990 or 1991: ask for other years"):
            load_japan_weather(1990, 1991)

    def test_a_folder_without_stations_says_where_to_get_them(self, folder):
        with pytest.raises(FileNotFoundError, match=r"no files JA\*\.csv in .*ncei\.noaa\.gov.*unset SGPVAE_DATA"):
            load_japan_weather()

    def test_it_is_downloaded_from_the_inventory_on(self, cache, server, monkeypatch):
        server.offer("access/JA000047401.csv", ghcn_csv("JA000047401", ROWS))
        inventory = server.offer("ghcn/ghcnd-inventory.txt", INVENTORY)._replace(sha256=None)
        monkeypatch.setattr(ghcn, "INVENTORY", inventory)
        monkeypatch.setattr(ghcn, "STATIONS", f"{server.url}/access")
        with pytest.raises(ConnectionError, match=r"JA000047404\.csv could not be downloaded"):
            load_japan_weather()
        server.offer("access/JA000047404.csv", ghcn_csv("JA000047404", ROWS))
        assert len(load_japan_weather().train) == 53
        # what there was is not downloaded again
        assert sorted(server.requests).count("/access/JA000047401.csv") == 1
        assert sorted(path.name for path in (cache / "ghcn").iterdir()) == [
            "JA000047401.csv",
            "JA000047404.csv",
            "ghcnd-inventory.txt",
        ]
