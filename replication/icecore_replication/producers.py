"""The state of a partition's idempotent producers: epochs, sequences and the last batches.

The table is a pure function of the log: every replica applies the same headers to the same starting
snapshot and reaches the same bytes, which replicas compare at a seal (``digest``). Only a leader
*checks* a batch before it appends it; replicated batches are applied as they are. Expiry and cap
follow append timestamps and the order of the log, never a clock: wall clocks differ between
replicas.

How many batches of a producer are remembered is pinned in the snapshot a segment starts with, so
that all of its replicas count alike, whatever their versions (R72). Rules R20-R24 of
docs/design/protocol.md.
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
from icecore.model import ProducerEpoch, ProducerId

BATCHES_KEPT: Final = 32
"""Per producer, in segments that open while all nodes can; a client has at most as many
unacknowledged batches of a partition. 8 MiB of full batches: what one partition takes in 50 ms."""
BATCHES_KEPT_FIRST: Final = 5
"""In segments that say nothing of it: all that nodes of before can."""
BATCHES_MAX: Final = 1_500_000
"""Most batches that are remembered of all producers together, so that a snapshot has at most 32
MiB, half of a message."""
EXPIRY_MS: Final = 7 * 24 * 3600 * 1000
PRODUCERS_MAX: Final = 100_000
EPOCH_JUMP_MAX: Final = 1 << 10
"""Each taking of a name raises its epoch by one, and every leader hears of each."""

_MAGIC = b"icpt"
_VERSION_FIRST = 1
"""Whoever writes it keeps ``BATCHES_KEPT_FIRST`` batches, and says 0."""
_VERSION = 2
_HEAD = struct.Struct("<4sHHIq")  # magic, version, batches kept, count, max_append_timestamp_ms
_PRODUCER = struct.Struct("<QIIq")  # id, epoch, batches, append_timestamp_ms of the last one
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

    __slots__ = ("append_timestamp_ms", "epoch", "next_sequence", "window")

    def __init__(self, epoch: ProducerEpoch) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.append_timestamp_ms = 0
        self.window = b""
        """The last batches as in the snapshot, oldest first: a tenth of the memory of tuples."""

    @property
    def batches(self) -> int:
        """How many are remembered."""
        return len(self.window) // _BATCH.size

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
        )

    def check_epoch(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, fence: ProducerEpoch
    ) -> None:
        """May a batch of this epoch be looked at? Changes nothing.

        Args:
            producer_id: Of the batch.
            producer_epoch: Of the batch.
            fence: The lowest one that may append, 0 when the producer has no name.

        Raises:
            ProducerFencedError: The producer's name has a new owner (R48).
            InvalidRequestError: It would shut out every epoch its owner can ever get (R65).
        """
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
        producer.append_timestamp_ms = append_timestamp_ms
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

    def snapshot(self) -> bytes:
        """The table as bytes, equal on every replica with the same log; expired producers are
        left out of the bytes and stay in the table (a seal may be aborted)."""
        oldest_ms = self._max_append_timestamp_ms - EXPIRY_MS
        kept = sorted(
            (producer_id, producer)
            for producer_id, producer in self._producers.items()
            if producer.append_timestamp_ms >= oldest_ms
        )
        version, batches_kept = _VERSION, self.batches_kept
        if batches_kept == BATCHES_KEPT_FIRST:
            version, batches_kept = _VERSION_FIRST, 0
        newest_ms = self._max_append_timestamp_ms
        head = _HEAD.pack(_MAGIC, version, batches_kept, len(kept), newest_ms)
        body = b"".join([head, *_encode(kept)])
        return body + _CRC.pack(crc32c(body))

    def digest(self) -> bytes:
        """``snapshot_digest`` of ``snapshot()``."""
        return snapshot_digest(self.snapshot())

    def _load(self, snapshot: bytes) -> None:
        body = snapshot[: -_CRC.size]
        if len(snapshot) < _HEAD.size + _CRC.size:
            raise StorageError("producer snapshot is cut short")
        if _CRC.unpack_from(snapshot, len(body))[0] != crc32c(body):
            raise StorageError("producer snapshot: CRC mismatch")
        magic, version, batches_kept, count, newest_ms = _HEAD.unpack_from(body)
        if magic != _MAGIC or version not in (_VERSION_FIRST, _VERSION):
            raise StorageError(f"producer snapshot: magic {magic!r}, version {version}")
        if version == _VERSION and not batches_kept:
            raise StorageError("producer snapshot: it keeps no batches")
        self._max_append_timestamp_ms = newest_ms
        self.batches_kept = _kept_of(snapshot)
        kept_bytes = self.batches_kept * _BATCH.size
        loaded: list[tuple[int, ProducerId, _Producer]] = []
        position = _HEAD.size
        try:
            for _ in range(count):
                producer_id, epoch, batches, timestamp_ms = _PRODUCER.unpack_from(body, position)
                producer = _Producer(epoch)
                producer.append_timestamp_ms = timestamp_ms
                position += _PRODUCER.size
                if not batches:
                    raise StorageError(f"producer snapshot: {producer_id} has no batch")
                end = position + batches * _BATCH.size
                producer.window = body[max(position, end - kept_bytes) : end]
                first, records, base_offset = _BATCH.unpack_from(body, end - _BATCH.size)
                producer.next_sequence = first + records
                self._batches += producer.batches
                loaded.append((base_offset, producer_id, producer))
                position = end
        except struct.error as error:
            raise StorageError(f"producer snapshot: {error}") from error
        loaded.sort(key=lambda entry: entry[:2])
        self._producers = {producer_id: producer for _, producer_id, producer in loaded}


def snapshot_digest(snapshot: bytes) -> bytes:
    """SHA-256 of a table's bytes: what replicas compare at a seal, and the record keeps."""
    return hashlib.sha256(snapshot).digest()


def keeping(snapshot: bytes, batches_kept: int) -> bytes:
    """The same producers in a table that remembers so many batches of each (R72).

    Raises:
        StorageError: The snapshot is damaged or of an unknown version.
    """
    if batches_kept == _kept_of(snapshot):
        return snapshot  # what was agreed on stays as it is, byte for byte
    table = ProducerTable(snapshot)
    table.keep(batches_kept)
    return table.snapshot()


def _kept_of(snapshot: bytes) -> int:
    if len(snapshot) < _HEAD.size:
        return BATCHES_KEPT_FIRST
    _, version, batches_kept, _, _ = _HEAD.unpack_from(snapshot)
    return int(batches_kept) if version == _VERSION else BATCHES_KEPT_FIRST


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
        epoch, newest_ms = producer.epoch, producer.append_timestamp_ms
        yield _PRODUCER.pack(producer_id, epoch, producer.batches, newest_ms)
        yield producer.window
