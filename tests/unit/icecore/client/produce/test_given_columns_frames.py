"""Frames and arrays of other libraries: one value, however it is contained."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icecore.client.produce.bulk import Columns, columns_of
from icecore.client.produce.given_columns import time_column
from icecore.errors import InvalidRequestError

MICROS = [-1, -1_500, 1_500, -999, 999, -1_000, 0, -62_135_596_799_999_001]
MILLIS = [micros // 1_000 for micros in MICROS]
NEAR = MICROS[:-1]
"""Those that nanoseconds reach."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def of_table(given: Any) -> Columns:
    return columns_of(given, None, None, None, None, 0)


def rows_of(given: Any) -> list[dict[str, Any]]:
    found = of_table(given)._rows
    assert found is not None
    return found.drop_columns(["timestamp_ms"]).to_pylist()


def table(times: Any) -> list[int]:
    rows = of_table(pa.table({"value": ["v"] * len(times), "timestamp": times}))._rows
    assert rows is not None
    return rows.column("timestamp_ms").to_pylist()


def column(times: Any) -> list[int]:
    return time_column(times).tolist()


def _us(times: list[int]) -> Any:
    return pa.array(times, pa.timestamp("us"))


def nanos(times: list[int]) -> list[int]:
    return [each * 1_000 for each in times]


CONTAINERS: dict[str, Callable[[], list[int]]] = {
    "datetimes": lambda: column([EPOCH + timedelta(microseconds=each) for each in MICROS]),
    "numpy us": lambda: column(np.array(MICROS, "datetime64[us]")),
    "numpy ns": lambda: column(np.array(nanos(NEAR), "datetime64[ns]")),
    "arrow us": lambda: column(pa.array(MICROS, pa.timestamp("us", "UTC"))),
    "arrow us without zone": lambda: column(pa.array(MICROS, pa.timestamp("us"))),
    "arrow us in chunks": lambda: column(pa.chunked_array([_us(MICROS[:3]), _us(MICROS[3:])])),
    "arrow ns": lambda: column(pa.array(nanos(NEAR), pa.timestamp("ns", "UTC"))),
    "table us": lambda: table(pa.array(MICROS, pa.timestamp("us", "UTC"))),
    "table us without zone": lambda: table(pa.array(MICROS, pa.timestamp("us"))),
    "table us elsewhere": lambda: table(pa.array(MICROS, pa.timestamp("us", "America/New_York"))),
    "table ns": lambda: table(pa.array(nanos(NEAR), pa.timestamp("ns", "UTC"))),
    "table of categories": lambda: table(_us(MICROS).dictionary_encode()),
    "arrow categories": lambda: column(_us(MICROS).dictionary_encode()),
    "slice of a table": lambda: table(pa.array([5, *MICROS], pa.timestamp("us")).slice(1)),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_finer_time_is_the_millisecond_in_which_it_lies(container: str) -> None:
    found = CONTAINERS[container]()
    assert found == MILLIS[: len(found)]


def test_frames_floor_as_well() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    index = pandas.to_datetime(NEAR, unit="us", utc=True)
    assert column(index) == column(pandas.Series(index)) == column([*index]) == MILLIS[:-1]
    naive = polars.Series(MICROS).cast(polars.Datetime("us"))
    assert column(naive) == column(naive.dt.replace_time_zone("UTC")) == MILLIS
    frame = polars.DataFrame({"value": ["v"] * len(MICROS), "timestamp": naive})
    rows = of_table(frame)._rows
    assert rows is not None
    assert rows.column("timestamp_ms").to_pylist() == MILLIS


@pytest.mark.parametrize("name", ["timestamp_ms", "timestamp"])
def test_a_row_with_a_time_out_of_range_is_refused(name: str) -> None:
    times = pa.array([1, 1_700_000_000_000_000, 2])
    if name == "timestamp":
        times = times.cast(pa.timestamp("ms", "UTC"))
    with pytest.raises(InvalidRequestError, match="row 1: timestamp is 1700000000000000"):
        of_table(pa.table({"value": ["a", "b", "c"], name: times}))


# --- categories -----------------------------------------------------------------------------------


def dictionary(values: list[Any], type_: Any) -> Any:
    return pa.array(values, type_).dictionary_encode()


def test_categories_are_texts() -> None:
    words = ["x", "y", None]
    for type_ in (pa.string(), pa.large_string(), pa.string_view()):
        indices = pa.array([0, 1, None], pa.uint32())
        given = pa.DictionaryArray.from_arrays(indices, pa.array(["x", "y"], type_))
        assert [row["value"] for row in rows_of(pa.table({"value": given}))] == [b"x", b"y", None]
        assert [row["value"] for row in rows_of(pa.table({"value": given}).slice(1))] == [
            b"y",
            None,
        ]
    two = [pa.table({"value": dictionary(each, pa.string())}) for each in (words, ["z", "y"])]
    values = [row["value"] for row in rows_of(pa.concat_tables(two))]
    assert values == [b"x", b"y", None, b"z", b"y"]


@pytest.mark.parametrize(
    "make",
    [
        pa.list_,
        pa.large_list,
        pa.list_view,
        lambda item: pa.list_(item, 2),
    ],
)
@pytest.mark.parametrize(
    "item", [pa.string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_categories_in_lists(make: Callable[[Any], Any], item: Any) -> None:
    plain = pa.array([["n", "n"], ["b", "a"], None, ["c", "a"]])
    try:
        tags = plain.cast(make(item))
    except pa.ArrowException:
        tags = pa.array(plain.to_pylist(), make(pa.string()))
    expected = [["b", "a"], None, ["c", "a"]]
    given = pa.table({"value": ["v"] * 4, "tags": tags}).slice(1)
    assert [row["tags"] for row in rows_of(given)] == expected


def test_frames_with_categories() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    words, texts = polars.Enum(["a", "b"]), polars.String
    for category in (polars.Categorical, words):
        schema = {"key": category, "value": texts, "tags": polars.List(category)}
        data = {"key": ["a", None], "value": ["x", "y"], "tags": [["b", "a"], None]}
        frame = polars.DataFrame(data, schema=schema)
        assert rows_of(frame) == [
            {"key": b"a", "value": b"x", "tags": ["b", "a"]},
            {"key": None, "value": b"y", "tags": None},
        ]
        both = polars.concat([frame, frame], rechunk=False)
        assert rows_of(both) == rows_of(frame) * 2
        assert rows_of(both.slice(1, 2)) == rows_of(frame)[::-1]
    header = polars.Struct({"key": polars.Categorical, "value": polars.Binary})
    rows = [[{"key": "h", "value": b"1"}], []]
    frame = polars.DataFrame(
        {"value": ["x", "y"], "headers": rows},
        schema={"value": texts, "headers": polars.List(header)},
    )
    assert [row["headers"] for row in rows_of(frame)] == rows
    of_pandas = pandas.DataFrame({"value": pandas.Categorical(["x", None, "x"])})
    assert [row["value"] for row in rows_of(of_pandas)] == [b"x", None, b"x"]
    with pytest.raises(InvalidRequestError, match="column value"):
        rows_of(pandas.DataFrame({"value": pandas.Categorical([1, 2])}))


@pytest.mark.parametrize("library", ["arrow", "maps of arrow", "polars"])
def test_tags_and_headers_of_a_library(library: str) -> None:
    header = [{"key": "h", "value": b"v"}]
    tags, headers = pa.array([["x"], None]), pa.array([header, None])
    if library == "maps of arrow":
        headers = pa.array([[("h", b"v")], None], pa.map_(pa.string(), pa.binary()))
    elif library == "polars":
        polars = pytest.importorskip("polars")
        tags, headers = polars.Series([["x"], None]), polars.Series([header, None])
    found = columns_of(["a", "b"], None, tags, headers, None, 0)
    assert (found._record(0), found._record(1)) == (
        (b"a", None, ("x",), (("h", b"v"),)),
        (b"b", None, (), ()),
    )


def test_frames_that_hold_something_else_are_refused() -> None:
    """Years as numbers, addresses of objects, and questions that nobody has asked yet."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    periods = pandas.period_range("2026", "2027", freq="Y")
    for given, why in (
        (pandas.DataFrame({"value": ["a", "b"], "timestamp": periods}), "count something else"),
        (polars.DataFrame({"value": [object()]}), "column of Python objects"),
        (polars.Series([object()]), "column of Python objects"),
        (polars.DataFrame({"value": ["a"]}).lazy(), "a LazyFrame, which has no rows yet"),
    ):
        with pytest.raises(InvalidRequestError, match=why):
            of_table(given)
