"""Filters that Spark hands on: never narrower than what they say."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import datasource as spark

from icecore.spark.filters import pushed

AT = datetime(2013, 3, 1, tzinfo=UTC)
AT_MS = 1_362_096_000_000
OFFSET, TIME, KEY = ("offset",), ("append_timestamp",), ("key",)


def test_offsets() -> None:
    found = pushed([spark.GreaterThan(OFFSET, 5), spark.LessThanOrEqual(OFFSET, 9)])
    assert (found.from_offset, found.to_offset) == (6, 10)
    found = pushed([spark.GreaterThanOrEqual(OFFSET, 5), spark.LessThan(OFFSET, 9)])
    assert (found.from_offset, found.to_offset) == (5, 9)
    assert pushed([spark.In(OFFSET, (9, 4))]).to_offset == 10
    found = pushed([spark.EqualTo(OFFSET, 7)])
    assert (found.from_offset, found.to_offset) == (7, 8)


def test_times_never_cut_off_a_millisecond() -> None:
    half = AT + timedelta(microseconds=500)
    for at in (AT, half):
        low = pushed([spark.GreaterThan(TIME, at)]).from_append_ms
        assert low is not None
        assert low <= AT_MS + 1
        high = pushed([spark.LessThanOrEqual(TIME, at)]).to_append_ms
        assert high is not None
        assert high > AT_MS
    assert pushed([spark.LessThan(TIME, AT)]).to_append_ms == AT_MS
    assert pushed([spark.EqualTo(TIME, AT.replace(tzinfo=None))]).from_append_ms is None


def test_keys_and_partitions() -> None:
    found = pushed([spark.In(KEY, (b"a", b"b")), spark.EqualTo(KEY, bytearray(b"b"))])
    assert found.keys_of(()) == (b"b",)
    assert pushed([spark.EqualTo(KEY, b"a"), spark.EqualTo(KEY, b"b")]).keys == frozenset()
    assert pushed([spark.EqualNullSafe(KEY, None)]).keys is None
    assert pushed([spark.In(KEY, tuple(b"%d" % n for n in range(2_000)))]).keys_of(()) == ()
    assert pushed([spark.In(("partition",), (1, 2))]).partitions == {1, 2}


def test_what_says_nothing_to_us() -> None:
    terms: list[spark.Filter] = [
        spark.Not(spark.EqualTo(OFFSET, 5)),
        spark.IsNull(KEY),
        spark.EqualTo(("headers", "key"), "x"),
        spark.StringContains(("topic",), "x"),
        spark.EqualTo(OFFSET, None),
    ]
    assert pushed(terms) == pushed([])
