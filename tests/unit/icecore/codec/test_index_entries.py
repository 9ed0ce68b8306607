"""Entries read straight from an index section are those of the columns; nonsense gives none."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.codec.batch import HEADER_LENGTH, ProducerFlag, parse_header
from icecore.codec.decoding import decode
from icecore.codec.hashes import key_hash, tag_hash
from icecore.codec.index_entries import (
    NO_ENTRIES,
    batch_entries,
    has_nothing_to_find,
)
from icecore.codec.record import encode_columns

FIRST = 1000


def entries(raw: bytes, first_ordinal: int = FIRST) -> list[tuple[int, int]] | None:
    """As sorted pairs."""
    found = batch_entries(raw[:HEADER_LENGTH], memoryview(raw)[HEADER_LENGTH:], first_ordinal)
    if found is None:
        return None
    hashes = np.frombuffer(found.hashes, "<u8").tolist()
    return sorted(zip(hashes, np.frombuffer(found.ordinals, "<u4").tolist(), strict=True))


def expected(raw: bytes) -> list[tuple[int, int]]:
    """The same by way of the columns."""
    columns = decode(raw, 0, parse_header(raw))
    keys = [None] * len(columns) if columns.keys is None else columns.keys.to_list()
    ordinals = (columns.offsets - columns.base_offset + FIRST).tolist()
    hashed = columns.index.header_hashes
    per_record = hashed.split(hashed.items.tolist()) if hashed else [()] * len(columns)
    pairs = []
    for at, key, tags, hashes in zip(ordinals, keys, columns.tag_tuples(), per_record, strict=True):
        pairs += [] if key is None else [(key_hash(key), at)]
        pairs += [(tag_hash(tag.encode()), at) for tag in tags]
        pairs += [(number, at) for number in hashes]
    return sorted(pairs)


RECORDS = st.tuples(
    st.none() | st.binary(max_size=5),
    st.lists(st.sampled_from(["a", "bé", "", "cc"]), max_size=3),
    st.lists(st.integers(0, (1 << 64) - 1), max_size=2),
)


@given(
    rows=st.lists(RECORDS, min_size=1, max_size=5),
    times=st.sampled_from([1, 40]),
    compacted=st.booleans(),
)
def test_entries_are_those_of_the_columns(
    rows: list[tuple[Any, Any, Any]], times: int, compacted: bool
) -> None:
    rows = rows * times  # few and many take different ways
    keys, tags, hashes = ([row[i] for row in rows] for i in range(3))
    raw = encode_columns(
        values=[b"v"] * len(rows),
        timestamps_ms=list(range(len(rows))),
        keys=keys,
        tags=tags,
        headers=[(("h", b"x"),)] * len(rows),
        header_hashes=hashes,
        offset_deltas=[3 * i + 1 for i in range(len(rows))] if compacted else None,
    )
    assert entries(raw) == expected(raw)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 2500])
def test_keys_on_every_record(count: int) -> None:
    keys = [b"%d" % number for number in range(count)]
    raw = encode_columns(values=[b"v"] * count, timestamps_ms=[0] * count, keys=keys)
    assert entries(raw) == expected(raw)
    assert len(expected(raw)) == count


def test_a_record_with_a_thousand_tags() -> None:
    tags = [[f"t{number}" for number in range(1000)], []]
    raw = encode_columns(values=[b"v"] * 2, timestamps_ms=[0] * 2, tags=tags)
    assert entries(raw) == expected(raw)
    assert len(expected(raw)) == 1000


def test_flags_say_that_there_is_nothing() -> None:
    raw = encode_columns(values=[b"v"], timestamps_ms=[0])
    assert has_nothing_to_find(raw)
    assert batch_entries(raw[:HEADER_LENGTH], b"", 0) is NO_ENTRIES
    assert not has_nothing_to_find(encode_columns(values=[b""], timestamps_ms=[0], keys=[b"k"]))


FULL = encode_columns(
    values=[b"v"] * 3,
    timestamps_ms=[0] * 3,
    keys=[b"a", None, b"c"],
    tags=[["x", "y"], [], ["x"]],
    headers=[(("h", b"1"),), (), ()],
    header_hashes=[[5], [], []],
)
MANY = encode_columns(
    values=[b"v"] * 70,
    timestamps_ms=[0] * 70,
    keys=[None, *[b"a"] * 69],
    tags=[["x", "y"]] * 70,
    headers=[(("h", b"1"),)] * 70,
    header_hashes=[[5, 6]] * 70,
)


@pytest.mark.parametrize("raw", [FULL, MANY], ids=["few", "many"])
def test_a_section_that_makes_no_sense_gives_none(raw: bytes) -> None:
    """Every word of it set to values that lead astray: None, or still sound entries."""
    length = parse_header(raw).index_length
    nones = 0
    for at in range(0, length, 4):
        for word in (0xFFFFFFFF, 0x7FFFFFFF, 5, 0x80000000):
            changed = bytearray(raw)
            struct.pack_into("<I", changed, HEADER_LENGTH + at, word)
            found = entries(bytes(changed))
            nones += found is None
            if found is not None:
                count = parse_header(raw).record_count
                assert all(FIRST <= ordinal < FIRST + count for _, ordinal in found)
    assert nones > 10


@pytest.mark.parametrize("flag", [ProducerFlag.NO_KEYS, ProducerFlag.NO_TAGS])
def test_flags_that_do_not_fit_the_section(flag: int) -> None:
    changed = bytearray(FULL)
    changed[84] |= flag
    assert entries(bytes(changed)) is None


def test_a_body_that_is_cut_short_or_an_ordinal_too_large() -> None:
    header, body = FULL[:HEADER_LENGTH], FULL[HEADER_LENGTH:]
    length = parse_header(header).index_length
    assert batch_entries(header, body[:length], 0) is not None
    assert batch_entries(header, body[: length - 1], 0) is None
    assert entries(FULL, (1 << 32) - 3) is not None
    assert entries(FULL, (1 << 32) - 2) is None
