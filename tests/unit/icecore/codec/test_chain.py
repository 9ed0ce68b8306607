"""The chain and the digest of a segment: what they cover, and in which order."""

import hashlib
import struct

import google_crc32c
import pytest

from icecore.codec import batch
from icecore.codec.chain import chain_seed, digest_seed, digest_step, segment_seed
from icecore.errors import InvalidRequestError
from tests.conformance.log_builder import produced

CLUSTER, TOPIC = bytes(range(16)), bytes(range(16, 32))
SEED = segment_seed(CLUSTER, TOPIC, 3, 7, 100, 4)


def stamped(base_offset: int, prev_header_crc32c: int) -> bytes:
    """A batch of three records as a leader appends it."""
    raw = produced([b"0", b"1", b"2"])
    header, _ = batch.stamp(
        raw,
        0,
        batch.parse_header(raw),
        segment_id=7,
        epoch=4,
        base_offset=base_offset,
        append_timestamp_ms=9,
        high_watermark=0,
        prev_header_crc32c=prev_header_crc32c,
    )
    return header + raw[batch.HEADER_LENGTH :]


def test_the_chain_names_each_header_before() -> None:
    chain = seed = chain_seed(SEED)
    first = stamped(100, seed)
    second = stamped(103, batch.parse_header(first).header_crc32c)
    for _, header in batch.iter_batches(first + second):
        assert header.prev_header_crc32c == chain
        chain = header.header_crc32c
    elsewhere = stamped(100, seed ^ 1)
    assert batch.parse_header(elsewhere).header_crc32c != batch.parse_header(first).header_crc32c


def test_seeds_cover_every_field() -> None:
    packed = CLUSTER + TOPIC + struct.pack("<IQqQ", 3, 7, 100, 4)
    assert packed == SEED
    assert chain_seed(SEED) == google_crc32c.value(packed)
    assert digest_seed(SEED) == hashlib.sha256(packed).digest()
    seeds = {
        SEED,
        segment_seed(TOPIC, TOPIC, 3, 7, 100, 4),
        segment_seed(CLUSTER, CLUSTER, 3, 7, 100, 4),
        segment_seed(CLUSTER, TOPIC, 2, 7, 100, 4),
        segment_seed(CLUSTER, TOPIC, 3, 8, 100, 4),
        segment_seed(CLUSTER, TOPIC, 3, 7, 101, 4),
        segment_seed(CLUSTER, TOPIC, 3, 7, 100, 5),
    }
    assert len({chain_seed(seed) for seed in seeds}) == 7
    assert len({digest_seed(seed) for seed in seeds}) == 7
    with pytest.raises(InvalidRequestError):
        segment_seed(b"short", TOPIC, 3, 7, 100, 4)


def test_the_digest_rolls_over_headers() -> None:
    seed = digest_seed(SEED)
    first, second = (stamped(at, 0)[: batch.HEADER_LENGTH] for at in (100, 103))
    once = hashlib.sha256(seed + first).digest()
    rolled = digest_step(digest_step(seed, memoryview(first)), memoryview(second))
    assert rolled == hashlib.sha256(once + second).digest()
    assert rolled != digest_step(digest_step(seed, second), first)
