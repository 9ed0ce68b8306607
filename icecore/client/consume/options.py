"""Options of a consumer, for asyncio and for threads."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeAlias, TypedDict

from icecore.client.cluster.offsets import Position
from icecore.client.conditions import HeaderValues
from icecore.client.consume.decoder import CorruptPolicy
from icecore.client.consume.fetcher import OutOfRangePolicy
from icecore.client.options import Default
from icecore.client.retries import OnRetry
from icecore.rpc.addresses import Transport

RecreatedPolicy: TypeAlias = Literal["fail", "restart"]


class ConsumerOptions(TypedDict, total=False):
    """Keywords of ``icecore.Consumer`` and of ``icecore.blocking.Consumer``.

    Args:
        topics: Instead, several names, at most 1,000. All that is said here of a topic holds for
            each of them; the bounds in bytes hold for all together, and they take turns.
        pattern: Instead, a regular expression: all topics of whose name it fits the whole, also
            those made later, within a minute; one that is deleted is left without an error.
        partitions: Of each topic; all unless given, then also those added later, within 90
            seconds; without ``stop_at_end`` and ``until``.
        start: ``"earliest"``, ``"latest"``, an offset (of every partition), ``-n`` for the last n
            records of each partition, or a time: the first record appended then or later. Times
            are datetimes with time zone, or texts as ``"2026-11-21T10:00"``, in UTC unless they say
            otherwise. A partition or topic added later is always read from its first record on:
            all of them came after the consumer began. Where a position is saved, that counts.
        stop_at_end: End the iteration at the high watermarks of the moment when it started.
        until: End the iteration there, in each partition: before this offset, or before what was
            appended at this time or later, as far as there is such a record when it starts; else
            at the high watermark, as with ``stop_at_end``. An offset that is not there yet is
            waited for, unless ``stop_at_end``.
        on_out_of_range: When an offset is not in the log (any more): raise OffsetOutOfRangeError
            with the valid range in its metadata, or move to an end of it, which
            ``skipped_records`` counts and the log tells.
        on_corrupt: When a batch can't be decoded: raise CorruptBatchError, with ``partition``,
            ``offset`` and ``next_offset`` in its metadata, until a ``seek``; or go on behind it,
            which ``corrupt_batches`` counts and the log tells.
        on_recreated: When the topic is deleted and another one made under its name: ``fail`` with
            TopicRecreatedError, or ``restart`` with the first records of the new one. What was
            fetched of the old one comes first, either way.
        keys: Only records with one of these keys, at most 1,000. By this and the conditions below
            nodes pick the records, and send nothing else; all that are given must hold.
        tags_any: Only records with at least one of these tags, at most 100, as of the other kinds.
        tags_all: Only records with all of these.
        tags_none: Only records with none of these.
        headers: Only records with at least one of these headers, by name and value.
        max_bytes: Of batches that were fetched and not delivered yet, all partitions together.
        fetch_bytes: The same per partition; also what one answer holds per partition.
        max_wait_ms: How long a node holds a fetch back at most when there is no data: half a second
            at first, twice as long whenever nothing came.
        position: Name under which the cluster keeps how far this consumer has come, by topic and
            partition; 1 to 249 characters of ``A-Z a-z 0-9 . _ -``. A consumer takes the name over
            when it begins: one that still runs is ended by PositionConflictError when it saves
            next, and what is saved stays.
        save_interval_s: Seconds between two saves; there is one more at ``close``. None = only
            ``save_position`` saves, and the name is not taken over.
        wait_for_topic_s: Seconds to wait for a topic that does not exist yet; unless given,
            UnknownTopicError says at once that there is none.
        timeout_s: Seconds to find the topic and the start offsets.
        transport: ``auto`` = native to nodes that have it, ``grpc`` = never. Unless given, the
            environment says so: ``ICECORE_CLIENT__TRANSPORT``.
        on_retry: Called with whatever is tried again (``icecore.Retry``), which the log ``icecore``
            tells as well, a line per reason at a time. It must not wait.
    """

    topics: Annotated[Sequence[str] | None, Default(None)]
    pattern: Annotated[str | None, Default(None)]
    partitions: Annotated[Sequence[int] | None, Default(None)]
    start: Annotated[Position, Default("earliest")]
    stop_at_end: Annotated[bool, Default(False)]
    until: Annotated[Position | None, Default(None)]
    on_out_of_range: Annotated[OutOfRangePolicy, Default("error")]
    on_corrupt: Annotated[CorruptPolicy, Default("fail")]
    on_recreated: Annotated[RecreatedPolicy, Default("fail")]
    keys: Annotated[Iterable[bytes] | None, Default(None)]
    tags_any: Annotated[Iterable[str] | None, Default(None)]
    tags_all: Annotated[Iterable[str] | None, Default(None)]
    tags_none: Annotated[Iterable[str] | None, Default(None)]
    headers: Annotated[HeaderValues | None, Default(None)]
    max_bytes: Annotated[int, Default(16 << 20)]
    fetch_bytes: Annotated[int, Default(1 << 20)]
    max_wait_ms: Annotated[int, Default(30_000)]
    position: Annotated[str | None, Default(None)]
    save_interval_s: Annotated[float | None, Default(5.0)]
    wait_for_topic_s: Annotated[float, Default(0.0)]
    timeout_s: Annotated[float, Default(30.0)]
    transport: Annotated[Transport | None, Default(None)]
    on_retry: Annotated[OnRetry | None, Default(None)]
