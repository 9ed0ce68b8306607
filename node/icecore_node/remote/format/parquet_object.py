"""A sealed segment as a Parquet object, made piece by piece from its batches.

Rows are those of ``rows.py``, in the order of their offsets. A row group is what a remote fetch
reads at a time, so it is small for an analyst's taste (about 4 MiB before compression): one ranged
read, then a few milliseconds to decode. Offsets and times are delta-encoded, which makes them
almost free; dictionaries are for what repeats; values have none, they seldom repeat and would be
looked up for nothing. Page index, statistics and, where pyarrow writes them, a bloom filter of the
keys are for other readers. So are checksums of pages: Spark opens an object by itself, and has no
manifest to prove it.

Memory holds one row group. Encoded bytes can't be changed later, so the file's own metadata and
digest come last, in its footer. A batch without rows ends a row group and is left to the side
object: so each is a run of offsets, and together they are the segment. In a copy in the segment's
own format that holds for every batch: the Parquet object is empty then.
"""

import hashlib
import inspect
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from icecore.codec.batch import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    BatchHeader,
    Buffer,
    iter_batches,
)
from icecore.codec.columns import BatchColumns
from icecore.codec.decoding import decode
from icecore.errors import BatchTooLargeError, CorruptBatchError, InternalError, StorageError
from icecore.tier_records import topic_folder
from icecore_node.remote.format.content_digest import ContentDigest
from icecore_node.remote.format.manifest import (
    PARQUET_MAGIC,
    RawBatch,
    RowGroup,
    SegmentFacts,
    StoredObject,
)
from icecore_node.remote.format.rows import SCHEMA, rows_of

ROW_GROUP_BYTES: Final = 4 << 20
"""Size of a row group, counted in payloads and index sections before compression. The batch that
exceeds it is its last one."""
ROW_GROUP_RECORDS: Final = 1 << 16
RAW_BYTES: Final = 1 << 20
"""Batches of the side object that lie one behind the other are one part up to this size."""
ZSTD_LEVEL: Final = 3
_TAIL_BYTES = 8
"""u32 length of the metadata, and the magic."""
_DICTIONARIES = ("topic", "partition", "key", "tags.list.element", "headers.list.element.key")
_DELTAS = ("offset", "timestamp", "append_timestamp", "schema_id")
_BLOOM_FPP = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedObject:
    """Result of encoding a segment's batches."""

    size_bytes: int
    sha256: bytes
    footer_start: int
    footer_sha256: bytes
    row_groups: tuple[RowGroup, ...]
    raw_batches: tuple[RawBatch, ...]
    content_digest: bytes
    records: int

    def stored(self, key: str) -> StoredObject:
        """Return the object as the manifest names it, once it was put."""
        return StoredObject(key=key, size_bytes=self.size_bytes, sha256=self.sha256)


class ParquetEncoder:
    """Makes one object. Blocking: for a reader thread, a piece at a time.

    Args:
        facts: The segment; the batches or rows must be all of it. Also written into the file's
            metadata.
        row_group_bytes: Size at which a row group is complete.
        as_rows: False = all batches are left to the side object.
    """

    def __init__(
        self,
        facts: SegmentFacts,
        *,
        row_group_bytes: int = ROW_GROUP_BYTES,
        as_rows: bool = True,
    ) -> None:
        self._facts = facts
        self._row_group_bytes = row_group_bytes
        self._as_rows = as_rows
        self._out = _Out()
        self._digest = ContentDigest()
        self._gathered = _Gathered(facts.base_offset)
        self._row_groups: list[RowGroup] = []
        self._raw: list[_RawRun] = []
        self._offset = facts.base_offset
        self._metadata: list[Any] = []
        self._encoded: EncodedObject | None = None
        self._writer: Any = None

    def pieces(self, runs: Iterable[Buffer]) -> Iterator[bytes]:
        """The object, from runs of whole batches whose CRCs were checked.

        Raises:
            StorageError: The runs are not this segment, from its base to its end.
        """
        try:
            yield self.begin()
            for run in runs:
                for position, header in iter_batches(run):
                    yield from self._add(run, position, header)
                if not self._as_rows:
                    yield b""  # so that no call takes as long as the segment
            yield self.finish()
        finally:
            self.close()

    def begin(self) -> bytes:
        """Return the first piece, for callers with rows instead of batches. ``add_rows`` and
        ``finish`` follow, and in any case ``close``."""
        self._writer = pq.ParquetWriter(
            self._out, SCHEMA, metadata_collector=self._metadata, **_options(self._facts)
        )
        return self._out.taken()

    def add_rows(self, rows: pa.Table, group: RowGroup) -> bytes:
        """Return the next piece, which may be empty: small row groups of other objects are joined
        into larger ones.

        Args:
            rows: All of a row group of another object.
            group: Its description; its positions in the other object don't count.

        Raises:
            StorageError: It does not begin where the last one ended.
        """
        if group.base_offset != self._offset:
            raise StorageError(f"rows from offset {group.base_offset}, {self._offset} is due")
        gathered, found = self._gathered, b""
        is_room = gathered.size_bytes + rows.nbytes <= self._row_group_bytes
        if gathered.records + group.records > ROW_GROUP_RECORDS or not is_room:
            found = self._flush()
        self._offset = group.end_offset
        self._gathered.add_rows(rows, group)
        return found

    def finish(self) -> bytes:
        """Return the last pieces. Raises StorageError when the segment is not whole."""
        rows = self._flush()
        self._check_end()
        self._writer.add_key_value_metadata(self._about())
        self._writer.close()
        return rows + self._finish()

    def close(self) -> None:
        """Close the writer, also after an error; may be repeated."""
        if self._writer is not None:
            self._writer.close()

    def encoded(self) -> EncodedObject:
        """Return the result; only after the last piece."""
        assert self._encoded is not None, "the last piece was not taken"
        return self._encoded

    def _add(self, run: Buffer, position: int, header: BatchHeader) -> Iterator[bytes]:
        facts = self._facts
        if header.segment_id != facts.segment_id or header.base_offset != self._offset:
            raise StorageError(
                f"a batch of segment {header.segment_id} at offset {header.base_offset}, where "
                f"{self._offset} of segment {facts.segment_id} is due"
            )
        self._offset = header.end_offset
        columns = _decoded(run, position, header) if self._as_rows else None
        if columns is None or not len(columns):
            if rows := self._flush():
                yield rows
            self._leave_aside(run, position, header)
            return
        gathered = self._gathered
        gathered.add(rows_of(header, columns, facts.topic, facts.partition), header)
        is_full = gathered.size_bytes >= self._row_group_bytes
        if is_full or gathered.records >= ROW_GROUP_RECORDS:
            yield self._flush()

    def _leave_aside(self, run: Buffer, position: int, header: BatchHeader) -> None:
        raw = memoryview(run)[position : position + header.batch_length]
        self._digest.update_undecodable(raw)
        last = self._raw[-1] if self._raw else None
        if last is None or not last.takes(header):
            last = _RawRun(last.end if last else 0, header.base_offset)
            self._raw.append(last)
        last.add(raw, header)
        self._gathered = _Gathered(header.end_offset)

    def _flush(self) -> bytes:
        """Write the gathered rows as a row group and return its bytes; empty when there are
        none."""
        gathered = self._gathered
        if not gathered.records:
            return b""
        # Together: for one record at a time the calls would cost more than the hashing.
        table = pa.Table.from_batches(gathered.rows).combine_chunks()
        for rows in table.to_batches():
            self._digest.update(rows)
        self._writer.write_table(table, row_group_size=gathered.records)
        data = self._out.taken()
        end = self._out.position
        self._row_groups.append(
            RowGroup(
                start=end - len(data),
                end=end,
                base_offset=gathered.base_offset,
                end_offset=gathered.end_offset,
                records=gathered.records,
                min_timestamp_ms=gathered.min_timestamp_ms,
                max_timestamp_ms=gathered.max_timestamp_ms,
                max_append_timestamp_ms=gathered.max_append_timestamp_ms,
                sha256=hashlib.sha256(data).digest(),
            )
        )
        self._gathered = _Gathered(gathered.end_offset)
        return data

    def _check_end(self) -> None:
        if self._offset != self._facts.end_offset:
            raise StorageError(
                f"segment {self._facts.segment_id} ends at {self._offset} here, and was sealed at "
                f"{self._facts.end_offset}"
            )

    def _about(self) -> dict[str, str]:
        """Return the file's metadata, for readers that have only the file."""
        facts = self._facts
        return {
            "icecore.cluster_id": facts.cluster_id.hex(),
            "icecore.topic_id": topic_folder(facts.topic_id),
            "icecore.topic": facts.topic,
            "icecore.partition": str(facts.partition),
            "icecore.segment_id": str(facts.segment_id),
            "icecore.generation": str(facts.generation),
            "icecore.epoch": str(facts.epoch),
            "icecore.base_offset": str(facts.base_offset),
            "icecore.end_offset": str(facts.end_offset),
            "icecore.seal_digest": facts.seal_digest.hex(),
            "icecore.full_digest": facts.full_digest.hex(),
            "icecore.content_digest": self._digest.digest().hex(),
            "icecore.raw_batches": str(self._digest.undecodable),
        }

    def _finish(self) -> bytes:
        data = self._out.taken()
        metadata_bytes = int.from_bytes(data[-_TAIL_BYTES : -len(PARQUET_MAGIC)], "little")
        footer = data[-(metadata_bytes + _TAIL_BYTES) :]
        groups = self._row_groups
        _check_written(self._metadata[0], groups)
        self._encoded = EncodedObject(
            size_bytes=self._out.position,
            sha256=self._out.sha256(),
            footer_start=self._out.position - len(footer),
            footer_sha256=hashlib.sha256(footer).digest(),
            row_groups=tuple(groups),
            raw_batches=tuple(each.part() for each in self._raw),
            content_digest=self._digest.digest(),
            records=sum(each.records for each in groups),
        )
        return data


def raw_batches(runs: Iterable[Buffer], wanted: Iterable[RawBatch]) -> Iterator[bytes]:
    """Yield the pieces of a side object, from the same runs once more: they are not kept in
    memory."""
    left = iter(wanted)
    part = next(left, None)
    for run in runs:
        for position, header in iter_batches(run):
            if part is not None and header.base_offset >= part.end_offset:
                part = next(left, None)
            if part is not None and header.base_offset >= part.base_offset:
                yield bytes(memoryview(run)[position : position + header.batch_length])


def _decoded(run: Buffer, position: int, header: BatchHeader) -> BatchColumns | None:
    """Decode a batch; None when it is undecodable."""
    try:
        return decode(run, position, header)
    except (CorruptBatchError, BatchTooLargeError):
        return None


class _RawRun:
    """Batches for the side object, one behind the other."""

    def __init__(self, start: int, base_offset: int) -> None:
        self._start = self.end = start
        self._base_offset = self._end_offset = base_offset
        self._max_append_timestamp_ms = 0
        self._sha256 = hashlib.sha256()

    def takes(self, header: BatchHeader) -> bool:
        """Return whether a batch follows directly and the part stays small enough."""
        length = self.end - self._start + header.batch_length
        return header.base_offset == self._end_offset and length <= RAW_BYTES

    def add(self, raw: Buffer, header: BatchHeader) -> None:
        self.end += header.batch_length
        self._end_offset = header.end_offset
        newest_ms = max(self._max_append_timestamp_ms, header.append_timestamp_ms)
        self._max_append_timestamp_ms = newest_ms
        self._sha256.update(raw)

    def part(self) -> RawBatch:
        return RawBatch(
            start=self._start,
            end=self.end,
            base_offset=self._base_offset,
            end_offset=self._end_offset,
            max_append_timestamp_ms=self._max_append_timestamp_ms,
            sha256=self._sha256.digest(),
        )


@dataclass(slots=True)
class _Gathered:
    """Rows of the next row group."""

    base_offset: int
    end_offset: int = -1
    records: int = 0
    size_bytes: int = 0
    min_timestamp_ms: int = MAX_TIMESTAMP_MS
    max_timestamp_ms: int = MIN_TIMESTAMP_MS
    max_append_timestamp_ms: int = MIN_TIMESTAMP_MS
    rows: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch, header: BatchHeader) -> None:
        self.rows.append(rows)
        self.records += rows.num_rows
        self.size_bytes += header.uncompressed_length + header.index_length
        self._note(header, header.append_timestamp_ms)

    def add_rows(self, rows: pa.Table, group: RowGroup) -> None:
        self.rows += rows.replace_schema_metadata(None).to_batches()
        self.records += rows.num_rows
        self.size_bytes += rows.nbytes
        self._note(group, group.max_append_timestamp_ms)

    def _note(self, of: BatchHeader | RowGroup, append_timestamp_ms: int) -> None:
        self.end_offset = of.end_offset
        self.min_timestamp_ms = min(self.min_timestamp_ms, of.min_timestamp_ms)
        self.max_timestamp_ms = max(self.max_timestamp_ms, of.max_timestamp_ms)
        self.max_append_timestamp_ms = max(self.max_append_timestamp_ms, append_timestamp_ms)


class _Out(io.RawIOBase):
    """The file that the writer writes to: bytes are kept until they are taken, and hashed."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[bytes] = []
        self._sha256 = hashlib.sha256()
        self.position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._waiting.append(piece)
        self._sha256.update(piece)
        self.position += len(piece)
        return len(piece)

    def taken(self) -> bytes:
        taken, self._waiting = b"".join(self._waiting), []
        return taken

    def sha256(self) -> bytes:
        return self._sha256.digest()


def _options(facts: SegmentFacts) -> dict[str, Any]:
    options: dict[str, Any] = {
        "version": "2.6",
        "compression": "zstd",
        "compression_level": ZSTD_LEVEL,
        "use_dictionary": [*_DICTIONARIES],
        "column_encoding": dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        "write_page_index": True,
        "write_page_checksum": True,
        "sorting_columns": [pq.SortingColumn(SCHEMA.get_field_index("offset"))],
    }
    if "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters:
        values = min(facts.end_offset - facts.base_offset, ROW_GROUP_RECORDS)
        options["bloom_filter_options"] = {"key": {"ndv": max(values, 1), "fpp": _BLOOM_FPP}}
    return options


def _check_written(metadata: Any, groups: list[RowGroup]) -> None:
    """Check that the row groups are where the writer's metadata say."""
    found = []
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        columns = [group.column(each) for each in range(group.num_columns)]
        start = columns[0].dictionary_page_offset or columns[0].data_page_offset
        length = sum(each.total_compressed_size for each in columns)
        found.append((start, start + length, group.num_rows))
    if found != [(each.start, each.end, each.records) for each in groups]:
        raise InternalError("row groups are not where they were written")
