"""Batches that are decoded together are what each of them is alone, or nothing at all."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.codec import batch
from icecore.codec.batch import BatchHeader, Codec, iter_batches
from icecore.codec.columns import BatchColumns
from icecore.codec.decoding import decode
from icecore.codec.run_decoding import decode_together
from icecore.codec.runs import decode_run, join
from icecore.errors import BatchTooLargeError, CorruptBatchError
from tests.unit.icecore.codec.test_runs import stamped

Places = list[tuple[int, BatchHeader]]
COUNTS = st.lists(st.sampled_from((1, 2, 7, 8, 63, 64, 65, 128, 200)), min_size=1, max_size=6)


def a_run(
    counts: list[int], codecs: list[Codec], *, has_keys: bool, seed: int = 0
) -> tuple[bytes, Places]:
    """Neighbouring batches of so many records each, of values and keys of all lengths."""
    rng = random.Random(seed)
    raw, base_offset = b"", 5
    for at, count in enumerate(counts):
        rows = [
            (rng.randbytes(rng.choice((0, 1, 7, 8, 30))), b"k%d" % rng.randrange(10**6))
            for _ in range(count)
        ]
        kept = [(value, key if has_keys else None) for value, key in rows]
        raw += stamped(kept, base_offset, codec=codecs[at % len(codecs)])
        base_offset += count
    return raw, list(iter_batches(raw))


def same(one: BatchColumns, other: BatchColumns) -> bool:
    def parts(columns: BatchColumns) -> Iterator[object]:
        yield columns.base_offset
        for numbers in (columns.timestamps, columns.append_timestamps, columns.offsets):
            yield numbers.dtype, numbers.tolist()
        for column in (columns.keys, columns.values):
            if column is not None:
                yield column.bits, column.offsets.dtype, column.offsets.tolist(), bytes(column.data)
        yield columns.keys is None, columns.headers, columns.tags

    return [*parts(one)] == [*parts(other)]


def one_by_one(data: memoryview, places: Places) -> BatchColumns | None:
    """None when one can't be decoded."""
    try:
        return join([decode(data, position, header) for position, header in places])
    except (CorruptBatchError, BatchTooLargeError):
        return None


@given(COUNTS, st.lists(st.sampled_from(Codec), min_size=1, max_size=3), st.booleans())
def test_a_run_is_its_batches(counts: list[int], codecs: list[Codec], has_keys: bool) -> None:
    raw, places = a_run(counts, codecs, has_keys=has_keys)
    found = decode_together(memoryview(raw), places)
    wanted = one_by_one(memoryview(raw), places)
    assert found is not None and wanted is not None
    assert same(found, wanted)


@pytest.mark.parametrize("shift", range(8))
def test_memory_may_begin_anywhere(shift: int) -> None:
    """Bytes from a socket may begin at any address; and a run may begin behind other batches."""
    raw, places = a_run([3, 70, 9, 20], [Codec.NONE], has_keys=True)
    data = memoryview(bytearray(shift) + raw)[shift:]
    for first in (0, 1):
        found = decode_together(data, places[first:])
        wanted = one_by_one(data, places[first:])
        assert found is not None and wanted is not None
        assert same(found, wanted)


@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("codec", Codec)
def test_no_wrong_byte_is_taken(codec: Codec, has_keys: bool) -> None:
    """Each byte of the bodies as others might write it, and each batch with it."""
    raw, places = a_run([1, 70, 3], [codec], has_keys=has_keys)
    refused = 0
    for position, header in places:
        for at in range(position + batch.HEADER_LENGTH, position + header.batch_length):
            poisoned = bytearray(raw)
            poisoned[at] ^= 1 << (at // 8 % 8)
            found = decode_together(memoryview(poisoned), places)
            wanted = one_by_one(memoryview(poisoned), places)
            if wanted is None:
                refused += 1
                assert found is None, at
            else:
                assert found is None or same(found, wanted), at
    assert refused > 100


@pytest.mark.parametrize(
    "change",
    [
        {"record_count": 0},
        {"record_count": 69},
        {"record_count": 71},
        {"record_count": 1 << 31},
        {"index_length": 8},
        {"index_length": 1 << 40},
        {"min_timestamp_ms": 0},
        {"max_timestamp_ms": 1 << 50},
        {"payload_length": 8},
        {"payload_length": 9},
        {"payload_length": 1 << 40},
        {"batch_length": 1 << 40},
        {"leader_flags": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("at", [1, 2])
def test_no_wrong_header_is_taken(change: dict[str, Any], at: int) -> None:
    raw, places = a_run([3, 70, 70], [Codec.NONE], has_keys=True)
    position, header = places[at]
    places[at] = position, header._replace(**change)
    assert decode_together(memoryview(raw), places) is None


@pytest.mark.parametrize("flags", [0, 1 << 15], ids=["tags", "unknown"])
def test_other_flags_are_not_taken(flags: int) -> None:
    raw, places = a_run([3, 4], [Codec.NONE], has_keys=True)
    of_all = flags | (places[0][1].producer_flags if flags else 0)
    changed = [(position, each._replace(producer_flags=of_all)) for position, each in places]
    assert decode_together(memoryview(raw), changed) is None


@pytest.mark.parametrize("row", [(None, b"k"), (b"v", None)], ids=["value", "key"])
def test_nulls_are_for_each_batch_alone(row: tuple[bytes | None, bytes | None]) -> None:
    raw = b"".join(stamped([(b"v", b"k"), row], 2 * at) for at in range(16))
    places = list(iter_batches(raw))
    assert decode_together(memoryview(raw), places) is None
    columns, count = decode_run(memoryview(raw), places)
    assert count == 16 and same(columns, join([decode(raw, *each) for each in places]))


@pytest.mark.parametrize("batches", [2, 16])
@pytest.mark.parametrize("bad", [1, -1])
def test_a_run_ends_before_what_cannot_be_decoded(batches: int, bad: int) -> None:
    raw, places = a_run([3] * batches, [Codec.NONE], has_keys=False)
    poisoned = bytearray(raw)
    poisoned[places[bad][0] + batch.HEADER_LENGTH] ^= 1  # a time that is not within bounds
    columns, count = decode_run(memoryview(poisoned), places)
    assert count == bad % batches
    assert same(columns, join([decode(poisoned, *each) for each in places[:count]]))
    with pytest.raises(CorruptBatchError, match="timestamps"):
        decode_run(memoryview(poisoned), places[bad:])


def test_what_is_joined_is_a_copy() -> None:
    """The received bytes may go: an answer of megabytes is not kept for a few records."""
    raw, places = a_run([3] * 4, [Codec.NONE], has_keys=True)
    data = bytearray(raw)
    found = decode_together(memoryview(data), places)
    assert found is not None and found.keys is not None
    before = [found.timestamps.tolist(), bytes(found.values.data), bytes(found.keys.data)]
    np.frombuffer(data, np.uint8)[:] = 0
    assert before == [found.timestamps.tolist(), bytes(found.values.data), bytes(found.keys.data)]
