"""Rows into batches: where one ends depends on the rows alone."""

from itertools import pairwise

import pyarrow as pa
import pytest

from icecore.client.produce.limits import batch_bytes_cap
from icecore.codec import arrow
from icecore.codec.batch import BatchLimits
from icecore.codec.columns import partition_for_key
from icecore.errors import InvalidRequestError, RecordTooLargeError
from icecore.spark.tasks import rows as task_rows
from icecore.spark.tasks.rows import Cutter


def rows(start: int, end: int) -> pa.RecordBatch:
    numbers = range(start, end)
    return pa.record_batch(
        {
            "key": [None if n % 7 == 0 else b"k%d" % n for n in numbers],
            "value": [b"v" * (n % 900) for n in numbers],
            "tags": [["t"] * (n % 3) for n in numbers],
            "headers": pa.array(
                [None if n % 5 else [{"key": "h", "value": b"x" * n}] for n in numbers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "timestamp": pa.array([n * 1000 for n in numbers], pa.timestamp("us", "UTC")),
        }
    )


def batches(cuts: list[int], take_often: bool) -> dict[int, list[list[bytes]]]:
    cutter = Cutter(3, task=5)
    found: dict[int, list[list[bytes]]] = {0: [], 1: [], 2: []}

    def keep(taken: dict[int, list[pa.RecordBatch]]) -> None:
        for partition, each in taken.items():
            found[partition] += [batch.column("value").to_pylist() for batch in each]

    for start, end in pairwise(cuts):
        cutter.add(rows(start, end))
        if take_often:
            keep(cutter.take())
    keep(cutter.take(is_last=True))
    return found


def test_batches_depend_on_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_rows, "BATCH_BYTES", 5_000)
    whole = batches([0, 1_000], take_often=False)
    assert min(len(each) for each in whole.values()) > 10
    assert batches([0, 1, 2, 333, 700, 999, 1_000], take_often=True) == whole
    assert batches([0, 500, 1_000], take_often=False) == whole


def test_keys_go_where_producers_send_them() -> None:
    cutter = Cutter(3, task=5)
    cutter.add(rows(0, 50))
    for partition, (batch,) in cutter.take(is_last=True).items():
        for key in batch.column("key").to_pylist():
            assert partition == (2 if key is None else partition_for_key(key, 3))


def test_partition_column_is_heeded_and_checked() -> None:
    cutter = Cutter(3, task=0)
    given = pa.array([1, None], pa.int32())
    cutter.add(pa.record_batch({"value": [b"a", b"b"], "partition": given}))
    taken = cutter.take(is_last=True)
    assert {p: each[0].column("value").to_pylist() for p, each in taken.items()} == {
        1: [b"a"],
        0: [b"b"],
    }
    for wrong in (3, -1):
        with pytest.raises(InvalidRequestError, match=f"has {wrong}; the topic has 0 to 2"):
            cutter.add(pa.record_batch({"value": [b"a"], "partition": [wrong]}))


def test_batches_keep_to_the_limits_of_the_topic() -> None:
    """Whatever the batches in which rows come; a row that no leader takes is named."""
    limits = BatchLimits(record_bytes_max=2_000, batch_bytes_max=6_000)
    cap = batch_bytes_cap(limits)

    def cut(cuts: list[int]) -> list[list[bytes]]:
        cutter = Cutter(1, task=0, limits=limits)
        for start, end in pairwise(cuts):
            cutter.add(rows(start, end))
        (found,) = cutter.take(is_last=True).values()
        for batch in found:
            assert batch.num_rows == 1 or batch.num_rows * 24 + batch.nbytes < 2 * cap
            assert len(arrow.encode(batch)) <= limits.batch_bytes_max
        return [batch.column("value").to_pylist() for batch in found]

    whole = cut([0, 300])
    assert len(whole) > 10 and sum(map(len, whole)) == 300
    assert cut([0, 1, 77, 78, 300]) == whole
    large = pa.record_batch({"value": [b"a", b"x" * 2_001, b"b"]})
    with pytest.raises(RecordTooLargeError, match="row 1: a record of 2001 bytes exceeds 2000"):
        Cutter(1, task=0, limits=limits).add(large)
