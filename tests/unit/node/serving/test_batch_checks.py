"""Checks of produced batches: by the segment's limits, on the loop while small, else on threads."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from icecore.codec import record
from icecore.codec.batch import Codec
from icecore.codec.hashes import header_hashes
from icecore.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    HeaderHashesError,
    InvalidRequestError,
    RecordTooLargeError,
)
from icecore.topic_settings import SegmentSettings
from icecore_node.io.executor import ThreadExecutor
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.serving import batch_checks
from icecore_node.serving.batch_checks import CheckedBatch, are_light, check_frame, check_heavy
from tests.support.poison import garbage

SETTINGS = SegmentSettings()


@pytest_asyncio.fixture
async def heavy_work() -> AsyncIterator[HeavyWork]:
    executor = ThreadExecutor(reader_threads=2)
    yield HeavyWork(executor)
    await asyncio.to_thread(executor.close)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Per slice that was decoded: whether that was on the loop's thread."""
    seen: list[bool] = []
    decode = batch_checks.check_contents

    def watched(batches: list[CheckedBatch]) -> None:
        seen.append(threading.current_thread() is threading.main_thread())
        decode(batches)

    monkeypatch.setattr(batch_checks, "check_contents", watched)
    return seen


async def check(batches: list[CheckedBatch], heavy_work: HeavyWork) -> None:
    """Check batches in the place where they belong: on the loop if light, else as heavy work."""
    if are_light(batches):
        batch_checks.check_contents(batches)
    else:
        await check_heavy(batches, heavy_work)


def checked(raw: bytes) -> CheckedBatch:
    return check_frame(memoryview(raw), SETTINGS)


def zeros(mebibytes: int) -> bytes:
    """Compressed to almost nothing."""
    values = [bytes((1 << 20) - 64)] * mebibytes
    keys: list[bytes | None] = [b"k"] * mebibytes
    return record.encode_columns(
        values=values, keys=keys, timestamps_ms=[1] * mebibytes, codec=Codec.ZSTD
    )


async def test_small_requests_are_decoded_at_once(
    heavy_work: HeavyWork, threads: list[bool]
) -> None:
    batches = [checked(record.encode_columns(values=[b"x"], timestamps_ms=[1], codec=Codec.ZSTD))]
    batches.append(checked(garbage(Codec.LZ4)))
    await check(batches, heavy_work)
    assert batches[0].error is None
    assert isinstance(batches[1].error, CorruptBatchError)
    assert threads == [True]


async def test_what_inflates_to_much_is_decoded_on_threads_in_slices(
    heavy_work: HeavyWork, threads: list[bool]
) -> None:
    batches = [checked(raw) for raw in (zeros(3), zeros(3), garbage(Codec.ZSTD), zeros(20))]
    await check(batches, heavy_work)
    assert [type(each.error) for each in batches] == [
        *(type(None), type(None), CorruptBatchError),
        type(None),
    ]
    assert threads == [False] * 3


async def test_limits_are_those_of_the_segment(heavy_work: HeavyWork) -> None:
    raw = record.encode_columns(values=[b"x" * 1000] * 3, timestamps_ms=[1] * 3)
    for name, error in (
        ("batch_bytes_max", BatchTooLargeError),
        ("uncompressed_bytes_max", BatchTooLargeError),
    ):
        with pytest.raises(error):
            check_frame(memoryview(raw), replace(SETTINGS, **{name: 2000}))
    with pytest.raises(InvalidRequestError, match="the request"):
        check_frame(memoryview(raw + bytes(8)), SETTINGS)
    narrow = check_frame(memoryview(raw), replace(SETTINGS, record_bytes_max=999))
    await check([narrow], heavy_work)
    assert isinstance(narrow.error, RecordTooLargeError)


async def test_key_hashes_are_those_of_the_keys(heavy_work: HeavyWork) -> None:
    """Whatever the partitioner: a key with another hash would never be found."""
    raw = record.encode_columns(values=[b"x"], timestamps_ms=[1], keys=[b"k"], key_hashes=[7])
    custom = check_frame(memoryview(raw), replace(SETTINGS, partitioner="custom"))
    batches = [checked(raw), custom]
    await check(batches, heavy_work)
    assert all(isinstance(each.error, CorruptBatchError) for each in batches)


HEADERS = [(("order", b"1"), ("other", b"2"), ("order", None), ("order", b"1")), (), (("x", b""),)]


def with_headers(names: tuple[str, ...]) -> bytes:
    return record.encode_columns(
        values=[b"v"] * 3,
        timestamps_ms=[1] * 3,
        headers=HEADERS,
        header_hashes=header_hashes(HEADERS, names),
    )


async def test_header_hashes_are_those_of_the_segments_headers(heavy_work: HeavyWork) -> None:
    """Missing ones would make look-ups miss records; others would be garbage in the index."""
    for pinned in ((), ("order",), ("x", "order"), ("nowhere",)):
        settings = replace(SETTINGS, indexed_headers=pinned)
        for sent in ((), ("order",), ("x", "order"), ("x",)):
            batch = check_frame(memoryview(with_headers(sent)), settings)
            await check([batch], heavy_work)
            if {*pinned} - {"nowhere"} == {*sent}:
                assert batch.error is None
            else:
                assert isinstance(batch.error, HeaderHashesError)
                assert batch.error.indexed_headers == tuple(sorted(pinned))


async def test_hashes_at_the_wrong_record_are_refused(heavy_work: HeavyWork) -> None:
    right = header_hashes(HEADERS, ("order",))
    settings = replace(SETTINGS, indexed_headers=("order",))
    for wrong in ([right[1], right[0], []], [right[0], [], right[0]], [right[0][:1], [], []]):
        raw = record.encode_columns(
            values=[b"v"] * 3, timestamps_ms=[1] * 3, headers=HEADERS, header_hashes=wrong
        )
        batch = check_frame(memoryview(raw), settings)
        await check([batch], heavy_work)
        assert isinstance(batch.error, HeaderHashesError)
