"""The content digest: one hash over the records of a sealed segment, in whatever form they are.

A Parquet object can't have the full digest of the segment it was made from
(``icecore_replication/digest.py``): its bytes are others. This digest is over what both hold. Every
replica computes it from its batches and gets the same; the node that has put a Parquet object
computes it from the stored object, and only then reports a copy.

Format 1, 33 bytes: the byte 0x01 and SHA-256 of

    0x02, u64 records, chunks, u64 undecodable batches, SHA-256 of their bytes in their order

A chunk is SHA-256(0x01, u32 records, the SHA-256 of each of its columns in the order below) of
65,536 records, the last one of what is left. Columns are little-endian and without gaps::

    offsets, timestamps, append timestamps       i64 each, milliseconds
    schema ids                                   i64
    keys, values                                 i32 lengths (-1 = null); all bytes
    tags                                         i32 per record: how many; i32 lengths; UTF-8
    headers                                      i32 per record: how many; i32 lengths of names;
                                                 UTF-8; i32 lengths of values (-1 = null); bytes

So it does not depend on where batches or row groups begin, and each column is hashed as it comes,
without being held. Undecodable batches have no columns: they count as they are, and a check of a
copy needs the side object with them, too. So do all batches of a copy in the segment's own format.
"""

import hashlib
from typing import Any, Final

import numpy as np
import pyarrow as pa

from icecore.codec.batch import Buffer
from icecore.errors import CorruptBatchError
from icecore_node.remote.format.rows import MICROS_PER_MS, SCHEMA

CHUNK_RECORDS: Final = 1 << 16
CONTENT_DIGEST_LENGTH: Final = 33
COLUMNS: Final = 16

_FORMAT = b"\x01"
_CHUNK = b"\x01"
_ROOT = b"\x02"


def is_content_digest(value: bytes) -> bool:
    """Return whether this is a content digest in the current format."""
    return len(value) == CONTENT_DIGEST_LENGTH and value.startswith(_FORMAT)


class ContentDigest:
    """Takes rows in pieces of any length, in the order of their offsets."""

    def __init__(self) -> None:
        self._records = 0
        self._hashes: list[bytes] = []
        """Hashes of whole chunks."""
        self._columns = [hashlib.sha256() for _ in range(COLUMNS)]
        self.undecodable = 0
        """Number of undecodable batches so far."""
        self._undecodable_bytes = hashlib.sha256()

    def update(self, rows: pa.RecordBatch) -> None:
        """Add the next rows.

        Raises:
            CorruptBatchError: They are no rows of ours: another schema, a null where none may be,
                a time between two milliseconds.
        """
        if not rows.schema.equals(SCHEMA):
            raise CorruptBatchError(f"rows of another schema: {rows.schema.names}")
        at = 0
        while at < rows.num_rows:
            room = CHUNK_RECORDS - self._records % CHUNK_RECORDS
            part = rows.slice(at, room)
            self._add(part)
            at += part.num_rows
            self._records += part.num_rows
            if self._records % CHUNK_RECORDS == 0:
                self._hashes.append(self._chunk(CHUNK_RECORDS))
                self._columns = [hashlib.sha256() for _ in range(COLUMNS)]

    def update_undecodable(self, batch: Buffer) -> None:
        """Add the next undecodable batch, as it is stored."""
        self.undecodable += 1
        self._undecodable_bytes.update(batch)

    def _add(self, rows: pa.RecordBatch) -> None:
        parts: list[Buffer] = [
            _numbers(rows.column("offset")),
            _millis(rows.column("timestamp")),
            _millis(rows.column("append_timestamp")),
            _numbers(rows.column("schema_id")),
            *_binary(rows.column("key")),
            *_binary(rows.column("value")),
        ]
        tags, headers = rows.column("tags"), rows.column("headers")
        parts += [_counts(tags), *_binary(_present(tags.flatten()))]
        names, values = _present(headers.flatten()).flatten()
        parts += [_counts(headers), *_binary(_present(names)), *_binary(values)]
        for column, part in zip(self._columns, parts, strict=True):
            column.update(part)

    def _chunk(self, records: int) -> bytes:
        found = hashlib.sha256(_CHUNK + records.to_bytes(4, "little"))
        for column in self._columns:
            found.update(column.digest())
        return found.digest()

    def digest(self) -> bytes:
        """The digest of everything so far, 33 bytes; more may follow."""
        left = self._records % CHUNK_RECORDS
        root = hashlib.sha256(_ROOT + self._records.to_bytes(8, "little"))
        for each in [*self._hashes, *([self._chunk(left)] if left else [])]:
            root.update(each)
        root.update(self.undecodable.to_bytes(8, "little"))
        root.update(self._undecodable_bytes.digest())
        return _FORMAT + root.digest()


def _present(array: Any) -> Any:
    if array.null_count:
        raise CorruptBatchError("a null where there may be none")
    return array


def _numbers(array: Any) -> Buffer:
    """The bytes of an array of 64-bit numbers."""
    start = 8 * array.offset
    return memoryview(_present(array).buffers()[1])[start : start + 8 * len(array)]


def _millis(times: Any) -> Buffer:
    micros = np.frombuffer(_numbers(times), "<i8")
    millis = micros // MICROS_PER_MS
    if (millis * MICROS_PER_MS != micros).any():
        raise CorruptBatchError("a time between two milliseconds")
    return millis.tobytes()


def _counts(lists: Any) -> Buffer:
    """Return the number of items of each record, as bytes."""
    counts: bytes = _lengths(_ends(_present(lists))).tobytes()
    return counts


def _binary(array: Any) -> tuple[Buffer, Buffer]:
    """Return lengths, and bytes. A null has no bytes, whatever lies in its place."""
    ends = _ends(array)
    lengths = _lengths(ends)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
        array = array.drop_null()
        ends = _ends(array)
    data = array.buffers()[2]
    if data is None or not len(ends):
        return lengths.tobytes(), b""
    return lengths.tobytes(), memoryview(data)[int(ends[0]) : int(ends[-1])]


def _ends(array: Any) -> Any:
    """The n + 1 offsets of an array's entries."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(1, "<i4")
    return np.frombuffer(buffer, "<i4", len(array) + 1, 4 * array.offset)


def _lengths(ends: Any) -> Any:
    return np.diff(ends).astype("<i4")
