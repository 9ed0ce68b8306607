"""Options of a producer, and keywords of a record, for asyncio and for threads."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeAlias, TypedDict

from icecore.client.checks import HeadersLike
from icecore.client.options import Default
from icecore.client.produce.batches import OnDelivery
from icecore.client.retries import OnRetry
from icecore.codec.record import Codec
from icecore.model import Acks
from icecore.rpc.addresses import Transport

AcksName: TypeAlias = Literal["all", "quorum", "leader"]
CompressionName: TypeAlias = Literal["none", "lz4", "zstd"]


class RecordArguments(TypedDict, total=False):
    """Keywords of ``Producer.send``, which says what they mean, for the other ways to send."""

    key: bytes | None
    tags: Iterable[str]
    headers: HeadersLike
    timestamp_ms: int | None
    partition: int | None
    on_delivery: OnDelivery | None


class ProducerOptions(TypedDict, total=False):
    """Keywords of ``icecore.Producer`` and of ``icecore.blocking.Producer``.

    Args:
        acks: ``all`` in-sync replicas, a ``quorum`` of the replication factor, or the ``leader``.
        compression: Of the payloads: ``none``, ``lz4`` or ``zstd``.
        linger_ms: How long a batch waits for more records.
        batch_bytes: A batch is closed at this size, before compression.
        buffer_bytes: Records that are not acknowledged yet; ``try_send`` refuses more.
        request_bytes_max: Batches of one request together.
        request_timeout_ms: How long a leader waits for its replicas before it answers TIMEOUT.
        delivery_timeout_ms: From the first record of a batch until it is given up. A request that
            is under way by then is waited for, no longer than this once more.
        idempotent: Number batches so that leaders recognise repeated ones.
        producer_name: Whoever starts with this name ends all before it: they get PRODUCER_FENCED.
        producer_topics: Topics in which that has happened already when ``start`` returns.
        wait_for_topic_s: Seconds to wait for a topic that does not exist yet; unless given, its
            records fail at once with UnknownTopicError.
        transport: ``auto`` = native to nodes that have it, ``grpc`` = never. Unless given, the
            environment says so: ``ICECORE_CLIENT__TRANSPORT``.
        on_retry: Called with whatever is tried again (``icecore.Retry``), which the log ``icecore``
            tells as well, a line per reason at a time. It must not wait.
    """

    acks: Annotated[AcksName | Acks, Default("all")]
    compression: Annotated[CompressionName | Codec, Default("none")]
    linger_ms: Annotated[float, Default(5)]
    batch_bytes: Annotated[int, Default(256 << 10)]
    buffer_bytes: Annotated[int, Default(64 << 20)]
    request_bytes_max: Annotated[int, Default(4 << 20)]
    request_timeout_ms: Annotated[int, Default(30_000)]
    delivery_timeout_ms: Annotated[int, Default(120_000)]
    idempotent: Annotated[bool, Default(True)]
    producer_name: Annotated[str, Default("")]
    producer_topics: Annotated[Sequence[str], Default(())]
    wait_for_topic_s: Annotated[float, Default(0.0)]
    transport: Annotated[Transport | None, Default(None)]
    on_retry: Annotated[OnRetry | None, Default(None)]
