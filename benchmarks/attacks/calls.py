"""Attacks by well-formed gRPC calls: long lists, bombs, polls, and more of them than fit.

Bodies are put together as bytes, because making such messages would take the attacker as long as
it takes the server to read them. Each function calls for so many seconds and says how often.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import grpc

from benchmarks.attacks.frames import Attack
from icecore.codec.batch import Codec
from icecore.codec.record import encode_columns
from icecore.rpc import framing
from icecore.v1 import data_pb2

TOPIC = "calm"
BOMBS = "bombs"
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


def _field(number: int, body: bytes) -> bytes:
    """A field of bytes of a message."""
    length, encoded = len(body), bytearray([number << 3 | 2])
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(encoded) + bytes([length]) + body


def _times(count: int, number: int, body: bytes) -> bytes:
    return _field(number, body) * count


async def _call(
    address: str, seconds: float, method: str, body: bytes, at_once: int = 1, timeout_s: float = 20
) -> int:
    """The same call again and again, so many at a time, on a connection for each 50."""
    until_s, made = time.monotonic() + seconds, 0
    channels = [grpc.aio.insecure_channel(address, _OPTIONS) for _ in range(-(-at_once // 50))]

    async def one(channel: grpc.aio.Channel) -> None:
        nonlocal made
        call: Callable[..., Awaitable[bytes]] = channel.unary_unary(f"/icecore.v1.{method}")
        while time.monotonic() < until_s:
            made += 1
            try:
                await call(body, timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                refused[str(error.code())] = refused.get(str(error.code()), 0) + 1
                await asyncio.sleep(0.01)

    refused: dict[str, int] = {}
    await asyncio.gather(*(one(channels[number % len(channels)]) for number in range(at_once)))
    await asyncio.gather(*(channel.close() for channel in channels))
    return made


def _calling(
    method: str, body: Callable[[], bytes], at_once: int = 1, timeout_s: float = 20
) -> Attack:
    async def attack(address: str, seconds: float) -> int:
        return await _call(address, seconds, method, body(), at_once, timeout_s)

    return attack


def big_batch(keyed: bool = False) -> bytes:
    """A few kilobytes that inflate to 31 MiB."""
    values = [bytes((1 << 20) - 64)] * 31
    keys = [b"k"] * 31 if keyed else None
    return encode_columns(values=values, timestamps_ms=[1] * 31, keys=keys, codec=Codec.ZSTD)


def produce_of(topic: str, batches: Sequence[bytes]) -> bytes:
    """A request with batches for one partition."""
    header = data_pb2.ProduceHeader()
    for each in batches:
        header.partitions.add(topic=topic, batch_length=len(each))
    return b"".join(framing.frame_bulk(header.SerializeToString(), batches))


def _fetch(topic: str, **header: int) -> bytes:
    head = data_pb2.FetchHeader(**header)  # type: ignore[arg-type]
    head.partitions.add(topic=topic)
    return data_pb2.FetchRequest(header=head).SerializeToString()


def _records(one: bytes, count: int) -> bytes:
    """A produce request with so many plain records in its only entry."""
    entry = _field(2, TOPIC.encode()) + _times(count, 6, one)
    return _field(1, _field(4, entry))


def _named_entries(count: int) -> bytes:
    return _times(count, 4, _field(2, TOPIC.encode()))


def _view_body() -> bytes:
    """30 MB for one small batch of a partition that is here, the rest for none."""
    small, rest = encode_columns(values=[b"v"], timestamps_ms=[1]), bytes(30_000_000)
    header = data_pb2.ProduceHeader()
    header.partitions.add(topic=TOPIC, batch_length=len(small))
    header.partitions.add(topic="absent", batch_length=len(rest))
    return b"".join(framing.frame_bulk(header.SerializeToString(), [small, rest]))


_PRODUCE, _METHOD_FETCH = "DataService/Produce", "DataService/Fetch"
_GET_METADATA = "AdminService/GetMetadata"

ATTACKS: dict[str, tuple[str, Attack]] = {
    "produce-entries": ("node", _calling(_PRODUCE, lambda: _field(1, _times(1_000_000, 4, b"")))),
    "produce-named": ("node", _calling(_PRODUCE, lambda: _field(1, _named_entries(700_000)))),
    "produce-bombs": (
        "node",
        _calling(_PRODUCE, lambda: produce_of(TOPIC, [big_batch(keyed=True)] * 1500)),
    ),
    "records-empty": ("node", _calling(_PRODUCE, lambda: _records(b"", 1_000_000))),
    "record-tags": ("node", _calling(_PRODUCE, lambda: _records(_times(300_000, 6, b"t"), 1))),
    "views": ("node", _calling(_PRODUCE, _view_body, 2)),
    "fetch-entries": (
        "node",
        _calling(_METHOD_FETCH, lambda: _field(1, _times(1_000_000, 6, b""))),
    ),
    "fetch-named": (
        "node",
        _calling(_METHOD_FETCH, lambda: _field(1, _times(100_000, 6, _field(2, TOPIC.encode())))),
    ),
    "list-offsets": (
        "node",
        _calling("DataService/ListOffsets", lambda: _times(1_000_000, 2, b"\x28\x01")),
    ),
    "as-records": (
        "node",
        _calling(_METHOD_FETCH, lambda: _fetch(BOMBS, as_records=1, max_bytes=8 << 20), 6),
    ),
    "polls": (
        "node",
        _calling(
            _METHOD_FETCH,
            lambda: _fetch(TOPIC, max_wait_ms=30_000, min_bytes=2**31 - 1, max_bytes=1),
            4200,
        ),
    ),
    "deadlines": ("node", _calling(_METHOD_FETCH, lambda: _fetch(TOPIC), 300, 0.001)),
    "metadata-names": (
        "coordinator",
        _calling(_GET_METADATA, lambda: _times(1_000_000, 1, b"x")),
    ),
    "metadata-flood": ("coordinator", _calling(_GET_METADATA, lambda: b"", 300)),
    "describe-flood": (
        "coordinator",
        _calling("AdminService/DescribeTopics", lambda: _times(100_000, 1, TOPIC.encode()), 4),
    ),
    "register": (
        "coordinator",
        _calling(
            "CoordinatorService/Register",
            lambda: _field(1, b"") + _times(500_000, 8, b"\x08\x01"),
        ),
    ),
}
"""By name: whom it meets, and what it does."""
