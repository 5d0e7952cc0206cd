"""NOAA's GHCN-Daily: a file of comma-separated values for each station, and an inventory of the stations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .files import FOLDER_VARIABLE, DataFile, check_name, data_folder, locate, read_table, reading, require

NCEI = "https://www.ncei.noaa.gov"
STATIONS = f"{NCEI}/data/global-historical-climatology-network-daily/access"
INVENTORY = DataFile("ghcn/ghcnd-inventory.txt", url=f"{NCEI}/pub/data/ghcn/daily/ghcnd-inventory.txt")
COUNTRY = "JA"
TENTHS = ("PRCP", "TMAX", "TMIN", "TAVG")
UNKNOWN_ELEVATION = -999.9


def read_japan(years: Sequence[int], elements: Sequence[str]) -> Any:
    """
    All Japanese stations with anything to say in some years, as a pandas data frame: a row for each station and day,
    with columns `station`, `date`, `lat`, `lon`, `elev` and the elements, in mm and °C; NaN is missing.

    :param years: The years to read.
    :param elements: GHCN's names of the variables.
    """
    pandas = require("pandas")
    paths = _station_files(years, elements)
    stations = [table for path in paths if (table := read_station(path, years, elements)) is not None]
    if not stations:
        raise ValueError(
            f"None of the {len(paths)} stations in {paths[0].parent} has {', '.join(elements)} in "
            f"{' or '.join(map(str, years))}: ask for other years, or get more of the files."
        )
    return pandas.concat(stations, ignore_index=True)


def read_station(path: Path, years: Sequence[int], elements: Sequence[str]) -> Any:
    """
    One station, as :func:`read_japan` has it; None where nothing is known of it in these years.

    :param path: The path of the station's file.
    :param years: The years to read.
    :param elements: GHCN's names of the variables; a file lacks those that its station never measured.
    """
    pandas = require("pandas")
    place = {"LATITUDE": "lat", "LONGITUDE": "lon", "ELEVATION": "elev"}
    flags = [f"{element}_ATTRIBUTES" for element in elements]
    table = read_table(path, ["DATE", *place], optional=[*elements, *flags]).rename(columns=place)
    with reading(path, "dates and numbers"):
        table["date"] = pandas.to_datetime(table["DATE"])
        table = table[table["date"].dt.year.isin(years)].set_index("date")
        table = table.reindex(columns=["lat", "lon", "elev", *elements, *flags])
        for element, flag in zip(elements, flags, strict=True):
            # The attributes are flags of measurement, quality and source; one of quality is a check that failed.
            failed = table[flag].astype("string").str.split(",").str[1].fillna("").str.strip() != ""
            values = pandas.to_numeric(table[element]).mask(failed)
            table[element] = values / 10 if element in TENTHS else values
        days = [day for year in sorted(set(years)) for day in pandas.date_range(f"{year}-01-01", f"{year}-12-31")]
        grid = table[list(elements)].reindex(pandas.DatetimeIndex(days, name="date")).reset_index()
    if grid[list(elements)].isna().all(axis=None) or not table["elev"].min() > UNKNOWN_ELEVATION:
        return None
    for column in ("elev", "lon", "lat"):
        grid.insert(1, column, table[column].iloc[0])
    grid.insert(0, "station", path.stem)
    return grid


def _station_files(years: Iterable[int], elements: Sequence[str]) -> list[Path]:
    folder = data_folder()
    if folder is None:
        return [locate(file) for file in stations_in(locate(INVENTORY), years, elements)]
    paths = sorted((folder / "ghcn").glob(f"{COUNTRY}*.csv"))
    if not paths:
        raise FileNotFoundError(
            f"There are no files {COUNTRY}*.csv in {folder / 'ghcn'}. Put there those that {STATIONS} has, or unset "
            f"{FOLDER_VARIABLE} to download them."
        )
    return paths


def stations_in(inventory: Path, years: Iterable[int], elements: Sequence[str]) -> list[DataFile]:
    """
    The files of the Japanese stations that have any of the elements in any of the years.

    :param inventory: NOAA's list of all stations and what they measured.
    :param years: The years of interest.
    :param elements: GHCN's names of the variables.
    """
    years = list(years)
    names = set()
    for line in inventory.read_text(encoding="utf-8").splitlines():
        if line.startswith(COUNTRY):
            with reading(inventory, "lines of station, latitude, longitude, element, first year, last year"):
                name, _, _, element, first, last = line.split()
                check_name(name)
                if element in elements and any(int(first) <= year <= int(last) for year in years):
                    names.add(name)
    if not names:
        raise ValueError(
            f"{inventory} knows no Japanese station with {', '.join(elements)} in {' or '.join(map(str, years))}: ask "
            "for other years, or delete the file to download it again."
        )
    return [DataFile(f"ghcn/{name}.csv", url=f"{STATIONS}/{name}.csv") for name in sorted(names)]
