"""What a partition knows of its idempotent producers: epochs, sequences and the last five batches.

The table is a pure function of the log: every replica applies the same headers to the same starting
snapshot and reaches the same bytes, which replicas compare at a seal (``digest``). Only a leader
*checks* a batch before it appends it; replicated batches are applied as they are. Expiry and cap
follow append timestamps and the order of the log, never a clock: wall clocks differ between
replicas. Rules R20-R24 of docs/PROTOCOL.md.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from icecore.codec.batch import BatchHeader, crc32c
from icecore.errors import (
    InvalidRequestError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StorageError,
    UnknownProducerError,
)
from icecore.model import ProducerEpoch, ProducerId

BATCHES_KEPT: Final = 5
"""Per producer; clients keep at most as many batches in flight per partition."""
EXPIRY_MS: Final = 7 * 24 * 3600 * 1000
PRODUCERS_MAX: Final = 100_000
EPOCH_JUMP_MAX: Final = 1 << 10
"""Each taking of a name raises its epoch by one, and every leader hears of each."""

_MAGIC = b"icpt"
_VERSION = 1
_HEAD = struct.Struct("<4sHHIq")  # magic, version, reserved, count, max_append_timestamp_ms
_PRODUCER = struct.Struct("<QIIq")  # id, epoch, batches, append_timestamp_ms of the last one
_BATCH = struct.Struct("<QIq")  # base_sequence, record_count, base_offset
_CRC = struct.Struct("<I")

Window = list[tuple[int, int, int]]
"""(base_sequence, record_count, base_offset) of the last batches, oldest first."""


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
        self.window: Window = []

    def add(self, base_sequence: int, record_count: int, base_offset: int) -> None:
        window = self.window
        window.append((base_sequence, record_count, base_offset))
        if len(window) > BATCHES_KEPT:
            del window[0]
        self.next_sequence = base_sequence + record_count


class ProducerTable:
    """Producers of one partition, in the order of their last batch in the log.

    Raises:
        StorageError: The snapshot is damaged or of an unknown version.
    """

    def __init__(self, snapshot: bytes = b"") -> None:
        self._producers: dict[ProducerId, _Producer] = {}
        self._max_append_timestamp_ms = 0
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
            UnknownProducerError: No such producer here, and the batch does not start at 0.
            OutOfOrderSequenceError: A gap, or an old batch that is no longer remembered.
        """
        if producer_id == 0:
            return _ACCEPTED
        producer = self._producers.get(producer_id)
        if producer is None:
            if base_sequence:
                raise UnknownProducerError(
                    f"producer {producer_id} is unknown and starts at sequence {base_sequence}"
                )
            return _ACCEPTED
        if producer_epoch != producer.epoch:
            return _check_new_epoch(producer_id, producer, producer_epoch, base_sequence)
        if base_sequence == producer.next_sequence:
            return _ACCEPTED
        for first, count, base_offset in producer.window:
            if first == base_sequence and count == record_count:
                return Duplicate(base_offset, base_offset + count)
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
        if producer is None or producer.epoch != producer_epoch:
            producer = _Producer(producer_epoch)
        producers[producer_id] = producer  # last in the dict = last in the log
        producer.add(base_sequence, record_count, base_offset)
        producer.append_timestamp_ms = append_timestamp_ms
        if append_timestamp_ms > self._max_append_timestamp_ms:
            self._max_append_timestamp_ms = append_timestamp_ms
        if len(producers) > PRODUCERS_MAX:
            del producers[next(iter(producers))]

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
        head = _HEAD.pack(_MAGIC, _VERSION, 0, len(kept), self._max_append_timestamp_ms)
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
        magic, version, _, count, self._max_append_timestamp_ms = _HEAD.unpack_from(body)
        if magic != _MAGIC or version != _VERSION:
            raise StorageError(f"producer snapshot: magic {magic!r}, version {version}")
        loaded: list[tuple[int, ProducerId, _Producer]] = []
        position = _HEAD.size
        try:
            for _ in range(count):
                producer_id, epoch, batches, timestamp_ms = _PRODUCER.unpack_from(body, position)
                producer = _Producer(epoch)
                producer.append_timestamp_ms = timestamp_ms
                position += _PRODUCER.size
                for _ in range(batches):
                    producer.add(*_BATCH.unpack_from(body, position))
                    position += _BATCH.size
                loaded.append((producer.window[-1][2], producer_id, producer))
        except (struct.error, IndexError) as error:
            raise StorageError(f"producer snapshot: {error}") from error
        loaded.sort(key=lambda entry: entry[:2])
        self._producers = {producer_id: producer for _, producer_id, producer in loaded}


def snapshot_digest(snapshot: bytes) -> bytes:
    """SHA-256 of a table's bytes: what replicas compare at a seal, and the record keeps."""
    return hashlib.sha256(snapshot).digest()


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
        window = producer.window
        yield _PRODUCER.pack(producer_id, producer.epoch, len(window), producer.append_timestamp_ms)
        for entry in window:
            yield _BATCH.pack(*entry)
