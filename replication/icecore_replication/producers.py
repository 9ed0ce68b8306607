"""The state of a partition's idempotent producers: epochs, sequences and the last batches.

The table is a pure function of the log: every replica applies the same headers to the same starting
snapshot and reaches the same bytes, which replicas compare at a seal (``digest``). Only a leader
*checks* a batch before it appends it; replicated batches are applied as they are.

How many batches of a producer are remembered is pinned in the snapshot a segment starts with, so
that all of its replicas count alike, whatever their versions (R72). So is the *mark*: the time of
the coordinator's that decides who is forgotten (R97). No wall clock has a part in it, for a single
wrong one would make a partition forget its producers. Rules R20-R24 of docs/design/protocol.md.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from icecore.codec.batch import BatchHeader
from icecore.codec.checksum import crc32c
from icecore.errors import (
    InvalidRequestError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StorageError,
)
from icecore.model import FIRST_PRODUCER_EPOCH, ProducerEpoch, ProducerId, is_named_id

BATCHES_KEPT: Final = 32
"""Per producer, in segments that open while all nodes can; a client has at most as many
unacknowledged batches of a partition. 8 MiB of full batches: what one partition takes in 50 ms."""
BATCHES_KEPT_FIRST: Final = 5
"""In segments that say nothing of it: all that nodes of before can."""
BATCHES_MAX: Final = 1_500_000
"""Most batches that are remembered of all producers together, so that a snapshot has at most 32
MiB, half of a message."""
EXPIRY_MS: Final = 7 * 24 * 3600 * 1000
"""Between append times, in segments whose starting state has no mark."""
FORGOTTEN_AFTER_MS: Final = EXPIRY_MS + 3600 * 1000
"""Between marks. The hour makes it late, never early: a mark is taken when a segment is prepared,
and the one before it gets batches for some minutes more."""
PRODUCERS_MAX: Final = 100_000
EPOCH_JUMP_MAX: Final = 1 << 10
"""Each taking of a name raises its epoch by one, and every leader hears of each."""

_MAGIC = b"icpt"
_VERSION_FIRST = 1
"""Whoever writes it keeps ``BATCHES_KEPT_FIRST`` batches, and says 0."""
_VERSION_TIMED = 2
"""Producers expire by append times, as in the first one."""
_VERSION = 3
"""Producers are forgotten by marks."""
_NO_MARK = 0
"""A sealed state says it: who wrote in the segment gets the mark of the next one."""
_HEAD = struct.Struct("<4sHHIq")  # magic, version, batches kept, count, newest append time or mark
_PRODUCER = struct.Struct("<QIIq")  # id, epoch, batches, append time of the last one or mark
_BATCH = struct.Struct("<QIq")  # base_sequence, record_count, base_offset
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Accepted:
    """The batch continues its producer's sequence (or has no producer id)."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is in the log already, at ``[base_offset, end_offset)``."""

    base_offset: int
    end_offset: int


_ACCEPTED = Accepted()


class _Producer:
    """One producer's state; mutable because ``apply`` runs once per batch."""

    __slots__ = ("epoch", "last_ms", "next_sequence", "window")

    def __init__(self, epoch: ProducerEpoch) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.last_ms = 0
        """The first mark after its last batch, 0 before there is one; without marks its append
        time."""
        self.window = b""
        """The last batches as in the snapshot, oldest first: a tenth of the memory of tuples."""

    @property
    def batches(self) -> int:
        """Return how many are remembered."""
        return len(self.window) // _BATCH.size

    @property
    def oldest_sequence(self) -> int:
        """The first sequence of the batches that are remembered; all that follow are, too."""
        return int(_BATCH.unpack_from(self.window)[0])

    @property
    def last_base_offset(self) -> int:
        """The base offset of the last batch. At least one batch must be remembered."""
        return int(_BATCH.unpack_from(self.window, len(self.window) - _BATCH.size)[2])

    def find(self, base_sequence: int, record_count: int) -> int | None:
        """The base offset of the batch with just these records, if it is remembered."""
        for first, count, base_offset in _BATCH.iter_unpack(self.window):
            if first == base_sequence and count == record_count:
                return int(base_offset)
        return None


class ProducerTable:
    """Producers of one partition, in the order of their last batch in the log.

    Raises:
        StorageError: The snapshot is damaged or of an unknown version.
    """

    def __init__(self, snapshot: bytes = b"") -> None:
        self._producers: dict[ProducerId, _Producer] = {}
        self._max_append_timestamp_ms = 0
        self._batches = 0
        """Number of remembered batches of all producers. Invariant: the sum over their windows."""
        self.batches_kept = BATCHES_KEPT_FIRST
        """Per producer."""
        self._has_marks = False
        """False = producers expire by append times, as in segments of before."""
        if snapshot:
            self._load(snapshot)

    def __len__(self) -> int:
        return len(self._producers)

    def check(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        record_count: int,
    ) -> Accepted | Duplicate:
        """May a leader append this batch? Changes nothing.

        Raises:
            ProducerFencedError: A newer epoch of this producer has written.
            OutOfOrderSequenceError: A gap, or an old batch that is no longer remembered; an unknown
                producer starts at 0.
        """
        if producer_id == 0:
            return _ACCEPTED
        producer = self._producers.get(producer_id)
        if producer is None:
            if base_sequence:
                raise OutOfOrderSequenceError(
                    f"producer {producer_id} is unknown here: expected sequence 0,"
                    f" got {base_sequence}",
                    expected=0,
                )
            return _ACCEPTED
        if producer_epoch != producer.epoch:
            return _check_new_epoch(producer_id, producer, producer_epoch, base_sequence)
        if base_sequence == producer.next_sequence:
            return _ACCEPTED
        base_offset = producer.find(base_sequence, record_count)
        if base_offset is not None:
            return Duplicate(base_offset, base_offset + record_count)
        raise OutOfOrderSequenceError(
            f"producer {producer_id}: expected sequence {producer.next_sequence},"
            f" got {base_sequence}",
            expected=producer.next_sequence,
            oldest=producer.oldest_sequence,
        )

    def check_epoch(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, fence: ProducerEpoch | None
    ) -> None:
        """May a batch of this epoch be looked at? Changes nothing.

        Args:
            producer_id: Of the batch.
            producer_epoch: Of the batch.
            fence: The lowest one that may append, None when no name of this id is known.

        Raises:
            ProducerFencedError: The producer's name has a new owner (R48), or was deleted (R112).
            InvalidRequestError: It would shut out every epoch its owner can ever get (R65).
        """
        if fence is None:
            if is_named_id(producer_id):
                raise ProducerFencedError(
                    f"producer {producer_id}: its name is not known here; it was deleted, or taken "
                    "a moment ago"
                )
            fence = FIRST_PRODUCER_EPOCH
        if producer_epoch < fence:
            raise ProducerFencedError(f"producer {producer_id}: its name was taken over")
        if producer_epoch <= fence + EPOCH_JUMP_MAX or not producer_id:
            return
        last = self.last_sequence(producer_id)
        known = max(fence, last[0]) if last else fence
        if producer_epoch > known + EPOCH_JUMP_MAX:
            raise InvalidRequestError(
                f"producer {producer_id}: epoch {producer_epoch} is too far beyond {known}"
            )

    def apply(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        record_count: int,
        base_offset: int,
        append_timestamp_ms: int,
    ) -> None:
        """Note one batch of the log, whatever it says. Producer id 0 leaves no trace."""
        if producer_id == 0:
            return
        producers = self._producers
        producer = producers.pop(producer_id, None)
        if producer is not None and producer.epoch != producer_epoch:
            self._batches -= producer.batches
            producer = None
        if producer is None:
            producer = _Producer(producer_epoch)
        producers[producer_id] = producer  # last in the dict = last in the log
        self._batches -= producer.batches
        window = producer.window + _BATCH.pack(base_sequence, record_count, base_offset)
        producer.window = window[-self.batches_kept * _BATCH.size :]
        self._batches += producer.batches
        producer.next_sequence = base_sequence + record_count
        if self._has_marks:
            producer.last_ms = 0
        else:
            producer.last_ms = append_timestamp_ms
            if append_timestamp_ms > self._max_append_timestamp_ms:
                self._max_append_timestamp_ms = append_timestamp_ms
        while len(producers) > PRODUCERS_MAX or self._batches > BATCHES_MAX:
            self._batches -= producers.pop(next(iter(producers))).batches

    def apply_header(self, header: BatchHeader) -> None:
        """``apply`` with the fields of a stamped header."""
        self.apply(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
            header.base_offset,
            header.append_timestamp_ms,
        )

    def keep(self, batches_kept: int) -> None:
        """Remember so many batches of each producer from now on; before a segment begins only."""
        self.batches_kept = batches_kept
        for producer in self._producers.values():
            self._batches -= producer.batches
            producer.window = producer.window[-batches_kept * _BATCH.size :]
            self._batches += producer.batches

    def last_sequence(self, producer_id: ProducerId) -> tuple[ProducerEpoch, int] | None:
        """``(epoch, next sequence)`` of a producer, None when it is unknown."""
        producer = self._producers.get(producer_id)
        return None if producer is None else (producer.epoch, producer.next_sequence)

    def use_marks(self) -> None:
        """Forget by marks from now on; before a segment begins only. All count as of just now."""
        if not self._has_marks:
            self._has_marks, self._max_append_timestamp_ms = True, 0
            for producer in self._producers.values():
                producer.last_ms = 0

    def use_append_times(self, newest_ms: int) -> None:
        """Expire by append times from now on; before a segment begins only.

        Args:
            newest_ms: Newest append time of the partition: all count as of then.
        """
        if self._has_marks:
            self._has_marks, self._max_append_timestamp_ms = False, newest_ms
            for producer in self._producers.values():
                producer.last_ms = newest_ms

    def states(
        self, first_id: ProducerId, last_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> list[tuple[ProducerId, int, int]]:
        """Producers with an id of this range, the last included, whose last batch is of this epoch:
        ``(id, next sequence, oldest remembered sequence)``, by id."""
        return sorted(
            (producer_id, producer.next_sequence, producer.oldest_sequence)
            for producer_id, producer in self._producers.items()
            if first_id <= producer_id <= last_id and producer.epoch == producer_epoch
        )

    def snapshot(self) -> bytes:
        """The table as bytes, equal on every replica with the same log. Without marks expired
        producers are left out of the bytes and stay in the table (a seal may be aborted)."""
        if self._has_marks:
            version, batches_kept, newest_ms = _VERSION, self.batches_kept, _NO_MARK
            kept = sorted(self._producers.items())
        else:
            version, batches_kept = _VERSION_TIMED, self.batches_kept
            if batches_kept == BATCHES_KEPT_FIRST:
                version, batches_kept = _VERSION_FIRST, 0
            newest_ms = self._max_append_timestamp_ms
            kept = sorted(
                (producer_id, producer)
                for producer_id, producer in self._producers.items()
                if producer.last_ms >= newest_ms - EXPIRY_MS
            )
        head = _HEAD.pack(_MAGIC, version, batches_kept, len(kept), newest_ms)
        body = b"".join([head, *_encode(kept)])
        return body + _CRC.pack(crc32c(body))

    def digest(self) -> bytes:
        """``snapshot_digest`` of ``snapshot()``."""
        return snapshot_digest(self.snapshot())

    def _load(self, snapshot: bytes) -> None:
        body = _checked_body(snapshot)
        magic, version, batches_kept, count, newest_ms = _HEAD.unpack_from(body)
        if magic != _MAGIC or version not in (_VERSION_FIRST, _VERSION_TIMED, _VERSION):
            raise StorageError(f"producer snapshot: magic {magic!r}, version {version}")
        if version != _VERSION_FIRST and not batches_kept:
            raise StorageError("producer snapshot: it keeps no batches")
        self._has_marks = version == _VERSION
        self.batches_kept = _kept_of(snapshot)
        loaded: list[tuple[int, ProducerId, _Producer]] = []
        try:
            for producer_id, producer in _decode(body, count, self.batches_kept):
                loaded.append((producer.last_base_offset, producer_id, producer))
        except struct.error as error:
            raise StorageError(f"producer snapshot: {error}") from error
        loaded.sort(key=lambda entry: entry[:2])
        self._producers = {producer_id: producer for _, producer_id, producer in loaded}
        if not self._has_marks:
            self._max_append_timestamp_ms = newest_ms
        elif newest_ms < 0 or any(each.last_ms < 0 for each in self._producers.values()):
            raise StorageError("producer snapshot: a mark is below 0")
        elif newest_ms != _NO_MARK:
            self._take_mark(newest_ms)
        self._batches = sum(producer.batches for producer in self._producers.values())

    def _take_mark(self, mark_ms: int) -> None:
        """The segment starts: note when who wrote in the one before was last heard, and forget who
        was not heard for long. A mark below an earlier one (a coordinator that died takes less than
        a minute along) counts as that one."""
        mark_ms = max(mark_ms, *(each.last_ms for each in self._producers.values()), 0)
        kept: dict[ProducerId, _Producer] = {}
        for producer_id, producer in self._producers.items():
            producer.last_ms = producer.last_ms or mark_ms
            if producer.last_ms >= mark_ms - FORGOTTEN_AFTER_MS:
                kept[producer_id] = producer
        self._producers = kept


def snapshot_digest(snapshot: bytes) -> bytes:
    """SHA-256 of a table's bytes: what replicas compare at a seal, and the record keeps."""
    return hashlib.sha256(snapshot).digest()


def starting(snapshot: bytes, batches_kept: int, mark_ms: int) -> bytes:
    """The state with which the segment behind ``snapshot`` starts (R72, R97).

    Args:
        snapshot: As it was sealed.
        batches_kept: So many batches of each producer are remembered.
        mark_ms: The time by which producers are forgotten, above 0.

    Raises:
        StorageError: The snapshot is damaged or of an unknown version.
    """
    if _version_of(snapshot) != _VERSION or batches_kept != _kept_of(snapshot):
        table = ProducerTable(snapshot)
        table.keep(batches_kept)
        table.use_marks()
        snapshot = table.snapshot()
    # The head alone: the coordinator does this for each segment, and nodes load the table anyway.
    body = _checked_body(snapshot)
    magic, version, kept, count, _ = _HEAD.unpack_from(body)
    body = _HEAD.pack(magic, version, kept, count, mark_ms) + body[_HEAD.size :]
    return body + _CRC.pack(crc32c(body))


def starting_without_mark(snapshot: bytes, batches_kept: int, newest_ms: int) -> bytes:
    """The same for nodes that know no marks: producers expire by append times.

    Args:
        snapshot: As it was sealed.
        batches_kept: So many batches of each producer are remembered.
        newest_ms: Newest append time of the partition.

    Raises:
        StorageError: The snapshot is damaged or of an unknown version.
    """
    if _version_of(snapshot) != _VERSION and batches_kept == _kept_of(snapshot):
        return snapshot  # what was agreed on stays as it is, byte for byte
    table = ProducerTable(snapshot)
    table.keep(batches_kept)
    table.use_append_times(newest_ms)
    return table.snapshot()


def _checked_body(snapshot: bytes) -> bytes:
    body = snapshot[: -_CRC.size]
    if len(body) < _HEAD.size:
        raise StorageError("producer snapshot is cut short")
    if _CRC.unpack_from(snapshot, len(body))[0] != crc32c(body):
        raise StorageError("producer snapshot: CRC mismatch")
    return body


def _version_of(snapshot: bytes) -> int:
    if len(snapshot) < _HEAD.size:
        return _VERSION_FIRST
    return int(_HEAD.unpack_from(snapshot)[1])


def _kept_of(snapshot: bytes) -> int:
    if _version_of(snapshot) in (_VERSION_TIMED, _VERSION):
        return int(_HEAD.unpack_from(snapshot)[2])
    return BATCHES_KEPT_FIRST


def _check_new_epoch(
    producer_id: ProducerId, known: _Producer, producer_epoch: ProducerEpoch, base_sequence: int
) -> Accepted:
    if producer_epoch < known.epoch:
        raise ProducerFencedError(
            f"producer {producer_id}: epoch {producer_epoch} is older than {known.epoch}"
        )
    if base_sequence:
        raise OutOfOrderSequenceError(
            f"producer {producer_id}: a new epoch starts at sequence 0, got {base_sequence}",
            expected=0,
        )
    return _ACCEPTED


def _encode(producers: list[tuple[ProducerId, _Producer]]) -> Iterator[bytes]:
    for producer_id, producer in producers:
        yield _PRODUCER.pack(producer_id, producer.epoch, producer.batches, producer.last_ms)
        yield producer.window


def _decode(body: bytes, count: int, batches_kept: int) -> Iterator[tuple[ProducerId, _Producer]]:
    """Yield the producers of a snapshot. Raises StorageError, struct.error."""
    position, kept_bytes = _HEAD.size, batches_kept * _BATCH.size
    for _ in range(count):
        producer_id, epoch, batches, last_ms = _PRODUCER.unpack_from(body, position)
        if not batches:
            raise StorageError(f"producer snapshot: {producer_id} has no batch")
        producer = _Producer(epoch)
        producer.last_ms = last_ms
        position += _PRODUCER.size
        end = position + batches * _BATCH.size
        producer.window = body[max(position, end - kept_bytes) : end]
        first, records, _ = _BATCH.unpack_from(body, end - _BATCH.size)
        producer.next_sequence = first + records
        yield producer_id, producer
        position = end
