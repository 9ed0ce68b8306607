"""Every error of the public API: what went wrong, whose fault, whether the write may exist.

An error is *definite* (the request changed nothing and never will) or *indeterminate* (a produce
may or may not become visible), and it is retriable or not. Both facts belong to the class, so a
caller never parses messages. ``icecore/rpc/statuses.py`` carries an error over gRPC by its
``reason`` and its string ``metadata``; ``error_to_proto`` in ``icecore/rpc/convert.py`` does the
same for single items of an answer and for native calls.
"""

import json
from typing import ClassVar


class IcecoreError(Exception):
    """Base of all errors. ``metadata`` holds strings a program may use (``leader_node_id``, …)."""

    reason: ClassVar[str] = "INTERNAL"
    retriable: ClassVar[bool] = False
    indeterminate: ClassVar[bool] = False
    """True when a produce that failed with this error may still become visible."""

    def __init__(self, message: str = "", **metadata: object) -> None:
        super().__init__(message or self.reason)
        self.message = message or self.reason
        self.metadata: dict[str, str] = {name: str(value) for name, value in metadata.items()}

    def again(self) -> "IcecoreError":
        """The same as a new object: one object that is raised twice chains its tracebacks."""
        return error_from_reason(self.reason, self.message, dict(self.metadata))


class InternalError(IcecoreError):
    """A bug or an unexpected failure of a server; the outcome of a write is unknown."""

    reason = "INTERNAL"
    indeterminate = True


# --- the caller's fault: nothing was changed, a retry will fail the same way --------------------


class InvalidRequestError(IcecoreError):
    """A field is missing, malformed or contradicts another one."""

    reason = "INVALID_REQUEST"


class InvalidTopicNameError(InvalidRequestError):
    """Topic names are 1-249 characters of ``[A-Za-z0-9._-]``, and neither ``.`` nor ``..``."""

    reason = "INVALID_TOPIC_NAME"


class CorruptBatchError(InvalidRequestError):
    """A record batch is not what its format says: a magic, length, count, offset, CRC or payload.

    From consumers and fetches of plain records: ``next_offset`` in the metadata is behind it.
    """

    reason = "CORRUPT_BATCH"


class RecordTooLargeError(InvalidRequestError):
    """One record exceeds ``record_bytes_max`` of its topic."""

    reason = "RECORD_TOO_LARGE"


class BatchTooLargeError(InvalidRequestError):
    """A batch exceeds ``batch_bytes_max`` or ``uncompressed_bytes_max`` of its topic."""

    reason = "BATCH_TOO_LARGE"


class HeaderHashesError(InvalidRequestError):
    """A batch lacks hashes of headers that its segment indexes, or has others. Their names are in
    the metadata, ``indexed_headers``, as a JSON list."""

    reason = "HEADER_HASHES"

    @property
    def indexed_headers(self) -> tuple[str, ...]:
        """The names; none when the metadata do not say so."""
        try:
            names = json.loads(self.metadata.get("indexed_headers", "[]"))
        except ValueError:
            return ()
        is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
        return tuple(names) if is_list else ()


class TopicExistsError(IcecoreError):
    """A topic of this name exists already."""

    reason = "TOPIC_EXISTS"


class TopicRecreatedError(IcecoreError):
    """The topic was deleted, and another one made under its name: positions and unsent records
    belong to the one that is gone. Both ids are in the metadata."""

    reason = "TOPIC_RECREATED"


class PositionConflictError(IcecoreError):
    """Somebody else has saved a position under this name since this reader read or saved it. What
    is stored stays: ``topic``, ``partition`` and the stored ``offset`` are in the metadata."""

    reason = "POSITION_CONFLICT"


class OffsetOutOfRangeError(IcecoreError):
    """The offset is outside ``[log_start_offset, high_watermark]``; both are in the metadata."""

    reason = "OFFSET_OUT_OF_RANGE"


class OutOfOrderSequenceError(IcecoreError):
    """A producer's batch leaves a gap: it overtook the one before it, or that is lost. The metadata
    hold the sequence number ``expected``, 0 of a producer of which nothing is known here, and
    ``oldest``, from which on batches are recognised: one that follows and is not has other ends."""

    reason = "OUT_OF_ORDER_SEQUENCE"


class ProducerFencedError(IcecoreError):
    """A newer epoch of this producer id exists."""

    reason = "PRODUCER_FENCED"


class UnsupportedError(IcecoreError):
    """The server knows the request but does not offer it (feature level, topic setting)."""

    reason = "UNSUPPORTED"


class PermissionDeniedError(IcecoreError):
    """The principal may not do this."""

    reason = "PERMISSION_DENIED"


class WrongClusterError(IcecoreError):
    """The request, the data folder or the peer belongs to another cluster or node."""

    reason = "WRONG_CLUSTER"


class SupersededError(IcecoreError):
    """Another process counts in the place of the one that asks: a newer incarnation of its node, or
    a newer coordinator. Nothing that it asks again will be answered otherwise; it must end, or, if
    it never counted, register again."""

    reason = "SUPERSEDED"


class ConfigurationError(IcecoreError):
    """A setting is unknown, malformed or unsafe; the message says which and what to do."""

    reason = "CONFIGURATION"


class ObjectStoreError(IcecoreError):
    """An object store refused, or does not have what it must have; the message says what to do."""

    reason = "OBJECT_STORE"


class ForkedError(IcecoreError):
    """The process is a fork of one that used icecore: threads and connections stay with its parent.
    Make clients after the fork only, or begin processes with the start method ``spawn``."""

    reason = "FORKED"


# --- retry after refreshing metadata or waiting: nothing was changed ----------------------------


class UnknownTopicError(IcecoreError):
    """No such topic or partition, as far as the asked server has heard (retriable: it may have
    been created a moment ago)."""

    reason = "UNKNOWN_TOPIC_OR_PARTITION"
    retriable = True


class NotLeaderError(IcecoreError):
    """This node does not lead the partition; metadata may hold ``leader_node_id``,
    ``leader_address`` (of its gRPC port) and ``epoch``."""

    reason = "NOT_LEADER"
    retriable = True


class FencedError(IcecoreError):
    """The epoch, incarnation or coordinator epoch of the request is stale: get the news, ask again.

    It says nothing about the process that asked; ``SupersededError`` does.
    """

    reason = "FENCED"
    retriable = True


class RollingError(IcecoreError):
    """The segment is being sealed; its successor opens within milliseconds."""

    reason = "ROLLING"
    retriable = True


class NotReplicaError(IcecoreError):
    """This node holds no readable replica of the offset; metadata may hold ``segment_id``."""

    reason = "NOT_REPLICA"
    retriable = True


class NotEnoughReplicasError(IcecoreError):
    """Fewer in-sync replicas than ``min_insync_replicas``; refused before anything was appended."""

    reason = "NOT_ENOUGH_REPLICAS"
    retriable = True


class ReadOnlyError(IcecoreError):
    """No space for writes; the partition accepts them again when there is."""

    reason = "READ_ONLY"
    retriable = True


class ThrottledError(IcecoreError):
    """A limit of the server is reached; wait ``retry_after_ms`` (in the metadata)."""

    reason = "THROTTLED"
    retriable = True


class NotCoordinatorError(IcecoreError):
    """This coordinator is a standby; metadata may hold ``address`` of the active one."""

    reason = "NOT_COORDINATOR"
    retriable = True


class ConflictError(IcecoreError):
    """A compare-and-set lost: the record changed since it was read."""

    reason = "CONFLICT"
    retriable = True


class ObjectStoreBusyError(IcecoreError):
    """An object store can't be reached, is overloaded or fails, and did so more than once."""

    reason = "OBJECT_STORE_BUSY"
    retriable = True


# --- the outcome is unknown: the write may or may not be there ----------------------------------


class NotEnoughReplicasAfterAppendError(IcecoreError):
    """The in-sync set shrank below ``min_insync_replicas`` after the append."""

    reason = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    retriable = True
    indeterminate = True


class LeaderLostError(IcecoreError):
    """The leader was fenced or stopped while the write was pending."""

    reason = "LEADER_LOST"
    retriable = True
    indeterminate = True


class RequestTimeoutError(IcecoreError):
    """The deadline passed without an answer."""

    reason = "TIMEOUT"
    retriable = True
    indeterminate = True


class UnavailableError(IcecoreError):
    """The connection could not be made or broke."""

    reason = "UNAVAILABLE"
    retriable = True
    indeterminate = True


class StorageError(IcecoreError):
    """A disk failed or a durable file is damaged; the node serves nothing from it."""

    reason = "STORAGE"
    indeterminate = True


class OutOfSpaceError(StorageError):
    """ENOSPC, EDQUOT or EFBIG: one class, whatever the kernel called it."""

    reason = "OUT_OF_SPACE"
    retriable = True


class OutOfResourcesError(IcecoreError):
    """The process or its machine ran out of descriptors, memory or the like for a moment.

    It says nothing about any disk: no file is damaged, no sync has failed. Indeterminate, because
    a write may have got as far as the file before it was given up.
    """

    reason = "OUT_OF_RESOURCES"
    retriable = True
    indeterminate = True


SHORTAGES = (OutOfSpaceError, OutOfResourcesError)
"""Errors of a shortage: they end once there is room again and never mean damage."""


def _all_subclasses(cls: type[IcecoreError]) -> list[type[IcecoreError]]:
    found = [cls]
    for child in cls.__subclasses__():
        found.extend(_all_subclasses(child))
    return found


def error_from_reason(reason: str, message: str, metadata: dict[str, str]) -> IcecoreError:
    """The error object for a ``reason`` read from the wire; unknown reasons become InternalError.

    Args:
        reason: The ``reason`` of one of the classes above.
        message: Human-readable text.
        metadata: String pairs, kept as they are.
    """
    cls = _BY_REASON.get(reason, InternalError)
    error = cls(message)
    error.metadata.update(metadata)
    return error


_BY_REASON = {cls.reason: cls for cls in _all_subclasses(IcecoreError)[1:]}
