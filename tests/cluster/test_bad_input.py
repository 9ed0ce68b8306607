"""Bad input at a real node: each gets its own error, and the log stays as it was."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable

import pytest

from icecore.blocking import Consumer
from icecore.codec import batch
from icecore.codec.batch import Codec
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError, InvalidRequestError, InvalidTopicNameError
from icecore.rpc import framing
from icecore.v1 import data_pb2
from tests.cluster.raw import RawClient, batch_of
from tests.support.poison import garbage, garbage_in_frame, other_length

TOPIC = "bad-input"


@pytest.fixture
async def client(shared_cluster: LocalCluster) -> AsyncIterator[RawClient]:
    async with RawClient(shared_cluster.bootstrap) as raw:
        yield raw


@pytest.fixture
async def leader(client: RawClient) -> str:
    """A node that leads an RF 3 topic with one record."""
    metadata = await client.metadata(TOPIC)
    if metadata.topics[0].HasField("error"):
        await client.create_topic(TOPIC, partitions=1, replication_factor=3)
        address = await client.leader(TOPIC, 0)
        (result,) = (await client.produce(address, TOPIC, batch_of(b"first"))).partitions
        assert not result.error.reason
    return await client.leader(TOPIC, 0)


def patched(offset: int, data: bytes, *, fix_crcs: bool = True) -> bytes:
    """A good batch with some bytes replaced, and CRCs that claim nothing happened."""
    one = bytearray(batch_of(b"some value"))
    one[offset : offset + len(data)] = data
    if fix_crcs:
        batch.refresh_crcs(one)
    return bytes(one)


BAD_BATCHES: dict[str, tuple[Callable[[], bytes], str]] = {
    "wrong CRC": (lambda: patched(140, b"\x01", fix_crcs=False), "CORRUPT_BATCH"),
    "wrong magic": (lambda: patched(0, b"kafk"), "CORRUPT_BATCH"),
    "wrong version": (lambda: patched(4, b"\x09\x00"), "CORRUPT_BATCH"),
    "lying count": (lambda: patched(92, struct.pack("<I", 1000)), "CORRUPT_BATCH"),
    "no records": (lambda: patched(92, struct.pack("<I", 0)), "INVALID_REQUEST"),
    "lying batch length": (lambda: patched(8, struct.pack("<I", 1 << 20)), "CORRUPT_BATCH"),
    "lying index length": (lambda: patched(96, struct.pack("<I", 2**31 - 1)), "CORRUPT_BATCH"),
    "leader fields set": (lambda: patched(16, struct.pack("<Q", 7)), "INVALID_REQUEST"),
    "record too large": (lambda: batch_of(bytes((1 << 20) + 1)), "RECORD_TOO_LARGE"),
    "batch too large": (lambda: batch_of(*[bytes(1 << 20)] * 5), "BATCH_TOO_LARGE"),
    "garbage as zstd": (lambda: garbage(Codec.ZSTD), "CORRUPT_BATCH"),
    "garbage in an lz4 frame": (lambda: garbage_in_frame(Codec.LZ4), "CORRUPT_BATCH"),
    "frame of another length": (lambda: other_length(Codec.ZSTD), "CORRUPT_BATCH"),
    "only noise": (lambda: bytes(range(256)) * 2, "CORRUPT_BATCH"),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
async def test_bad_batch_is_refused_and_changes_nothing(
    client: RawClient, leader: str, case: str
) -> None:
    make, reason = BAD_BATCHES[case]
    before = await client.fetch(leader, TOPIC, 0)

    (result,) = (await client.produce(leader, TOPIC, make())).partitions

    assert result.error.reason == reason, result.error.message
    after = await client.fetch(leader, TOPIC, 0)
    assert after.partitions[0].high_watermark == before.partitions[0].high_watermark


async def test_good_batch_beside_a_bad_one_is_kept(client: RawClient, leader: str) -> None:
    answer = await client.produce(leader, TOPIC, patched(0, b"kafk"), batch_of(b"beside"))

    assert [each.error.reason for each in answer.partitions] == ["CORRUPT_BATCH", ""]


async def test_limits_are_those_of_the_topic(client: RawClient) -> None:
    wide = {"record_bytes_max": 8 << 20, "batch_bytes_max": 8 << 20}
    with pytest.raises(InvalidRequestError, match="uncompressed_bytes_max is 1 to"):
        await client.create_topic("wide", uncompressed_bytes_max=(64 << 20) + 1)
    await client.create_topic("wide", uncompressed_bytes_max=64 << 20, **wide)
    await client.create_topic("narrow", record_bytes_max=100, batch_bytes_max=4096)
    large = bytes(range(256)) * (6 << 12)
    for topic, value, reason in (
        ("wide", large, ""),
        ("narrow", b"x" * 101, "RECORD_TOO_LARGE"),
        ("narrow", b"x" * 5000, "BATCH_TOO_LARGE"),
        ("narrow", b"x" * 100, ""),
    ):
        address = await client.leader(topic, 0)
        (result,) = (await client.produce(address, topic, batch_of(value))).partitions
        assert result.error.reason == reason, result.error.message
    read = await asyncio.to_thread(read_first, client.bootstrap, "wide")
    assert read == large


def read_first(bootstrap: str, topic: str) -> bytes | None:
    """With a consumer that knows nothing of the topic."""
    with Consumer(bootstrap, topic) as consumer:
        return next(iter(consumer)).value


async def test_unknown_topic_and_partition(client: RawClient, leader: str) -> None:
    answer = await client.produce(leader, "no-such-topic", batch_of(b"x"))
    assert answer.partitions[0].error.reason == "UNKNOWN_TOPIC_OR_PARTITION"
    answer = await client.produce(leader, TOPIC, batch_of(b"x"), partition=99)
    assert answer.partitions[0].error.reason == "UNKNOWN_TOPIC_OR_PARTITION"
    fetched = await client.fetch(leader, TOPIC, 0, partition=99)
    assert fetched.partitions[0].error.reason == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ünï", "x" * 250, "a\0b", "../x"])
async def test_bad_topic_name(client: RawClient, name: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        await client.create_topic(name, partitions=1)


async def test_offset_out_of_range_names_the_range(client: RawClient, leader: str) -> None:
    fetched = await client.fetch(leader, TOPIC, 10**12)

    error = fetched.partitions[0].error
    assert error.reason == "OFFSET_OUT_OF_RANGE"
    assert error.metadata["log_start_offset"] == "0"
    assert int(error.metadata["high_watermark"]) >= 1
    assert (await client.fetch(leader, TOPIC, -1)).partitions[0].error.reason == "INVALID_REQUEST"


@pytest.mark.parametrize("max_bytes", [0, 2**31, 2**32 - 1])
async def test_fetch_size_is_clamped(client: RawClient, leader: str, max_bytes: int) -> None:
    fetched = await client.fetch(leader, TOPIC, 0, max_bytes=max_bytes)

    assert fetched.partitions[0].records[0].value == b"first"


async def test_not_leader_has_a_hint(client: RawClient, leader: str) -> None:
    metadata = await client.metadata(TOPIC)
    by_address = {node.address: node.node_id for node in metadata.nodes}
    other = next(address for address in by_address if address != leader)

    answer = await client.produce(other, TOPIC, batch_of(b"x"))

    assert answer.partitions[0].error.reason == "NOT_LEADER"
    hint = answer.partitions[0].error.metadata
    assert hint["leader_node_id"] == str(by_address[leader])
    assert hint["leader_address"] == leader


async def test_sequences_must_follow(client: RawClient, leader: str) -> None:
    async def send(base_sequence: int, producer_id: int) -> str:
        one = batch_of(b"x", producer_id=producer_id, base_sequence=base_sequence)
        error = (await client.produce(leader, TOPIC, one)).partitions[0].error
        return f"{error.reason} {error.metadata['expected']}" if error.reason else ""

    assert await send(1, 987_001) == "OUT_OF_ORDER_SEQUENCE 0"  # it overtook the first one
    assert await send(0, 987_001) == ""
    assert await send(2, 987_001) == "OUT_OF_ORDER_SEQUENCE 1"
    assert await send(0, 987_001) == ""  # a duplicate is answered like the original
    assert await send(1, 987_001) == ""


async def test_wrong_cluster_and_malformed_messages(client: RawClient, leader: str) -> None:
    with pytest.raises(IcecoreError, match="belongs to cluster"):
        await client.produce(leader, TOPIC, batch_of(b"x"), cluster_id=bytes(16))
    with pytest.raises(InvalidRequestError):
        await client.call(leader, "DataService/Produce", b"\xff\xff\xff")
    entry = data_pb2.ProducePartition(topic=TOPIC, batch_length=1)
    header = data_pb2.ProduceHeader(partitions=[entry]).SerializeToString()
    with pytest.raises(InvalidRequestError, match="add up"):
        await client.call(leader, "DataService/Produce", framing.frame_bulk(header, [b"xx"]))
    with pytest.raises(InvalidRequestError, match="acks"):
        await client.produce(leader, TOPIC, batch_of(b"x"), acks=77)
