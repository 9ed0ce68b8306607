"""Rows of a tiered segment as batches again, as a fetch answers them.

The batches that producers sent are not kept: what comes back has their records at their offsets,
in the form of batches that compaction has rewritten. Each has one append time and one schema, so a
batch ends where either changes, and their ranges of offsets lie one behind the other without gaps,
whatever compaction had dropped between two rows. Producer ids and the chain of headers are gone:
a consumer needs neither, and repair takes the producers from the index object.
"""

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icecore.codec import arrow, batch
from icecore.codec.arrow_rows import checked
from icecore.codec.batch import Codec, Compacted
from icecore_node.remote.format.manifest import SegmentFacts
from icecore_node.remote.format.rows import MICROS_PER_MS
from icecore_node.storage.engine import OffsetRange

BATCH_BYTES: Final = 1 << 20
"""Approximate maximum size of a batch before compression; one record may be more."""
BATCH_RECORDS: Final = 1 << 14
_COLUMNS = ("timestamp", "key", "value", "tags", "headers")
ROW_COLUMNS: Final = ("offset", "append_timestamp", "schema_id", *_COLUMNS)
"""Columns that batches are made of; topic and partition are known."""


class RowBatches:
    """The rows of one row group, cut into batches that are made when they are asked for. Blocking.

    Args:
        table: Rows of one row group, with ``ROW_COLUMNS`` at least.
        facts: The segment of the rows.
        covered: The offsets of the row group.
        codec: Codec of the payloads.
        indexed_headers: Names of the headers whose hashes batches have.
    """

    def __init__(
        self,
        table: pa.Table,
        facts: SegmentFacts,
        covered: OffsetRange,
        *,
        codec: Codec = Codec.LZ4,
        indexed_headers: Collection[str] = (),
    ) -> None:
        self._facts, self._codec, self._indexed_headers = facts, codec, indexed_headers
        self._offsets = table.column("offset").to_numpy()
        appended = table.column("append_timestamp").cast(pa.int64()).to_numpy()
        self._appended = appended // MICROS_PER_MS
        self._schemas = table.column("schema_id").to_numpy()
        starts = _starts(table, self._appended, self._schemas)
        self._rows = [*starts, table.num_rows]
        self.edges = [covered[0], *self._offsets[starts[1:]].tolist(), covered[1]]
        """Base offset of each batch, and the end offset of the last one."""
        # Once for all: casts and copies of each batch took longer than its compression.
        whole = table.select(_COLUMNS).combine_chunks().to_batches()[0]
        self._columns = checked(whole, 0)
        self.size_bytes: int = table.nbytes

    def __len__(self) -> int:
        return len(self._rows) - 1

    def appended_ms(self, at: int) -> int:
        """Return the append timestamp of one batch; all its records share it."""
        return int(self._appended[self._rows[at]])

    def batch(self, at: int) -> bytes:
        """Return one batch, stamped."""
        start, end = self._rows[at : at + 2]
        rows = self._columns.slice(start, end - start)
        base, facts = self.edges[at], self._facts
        raw = arrow.encode(
            rows,
            codec=self._codec,
            schema_id=int(self._schemas[start]),
            indexed_headers=self._indexed_headers,
            offset_deltas=self._offsets[start:end] - base,
        )
        stamped, _ = batch.stamp(
            raw,
            0,
            batch.parse_header(raw),
            segment_id=facts.segment_id,
            epoch=facts.epoch,
            base_offset=base,
            append_timestamp_ms=self.appended_ms(at),
            high_watermark=facts.end_offset,
            prev_header_crc32c=0,
            compacted=Compacted(self.edges[at + 1]),
        )
        return stamped + raw[batch.HEADER_LENGTH :]


def batches_of(
    table: pa.Table,
    facts: SegmentFacts,
    covered: OffsetRange,
    *,
    codec: Codec = Codec.LZ4,
    indexed_headers: Collection[str] = (),
) -> Iterator[bytes]:
    """All batches of a row group, in order; see ``RowBatches``. Blocking."""
    made = RowBatches(table, facts, covered, codec=codec, indexed_headers=indexed_headers)
    return map(made.batch, range(len(made)))


def _starts(table: pa.Table, appended: Any, schemas: Any) -> list[int]:
    """Return the rows at which batches begin: at a new append time or schema, and where the one
    before is large enough."""
    changes = (appended[1:] != appended[:-1]) | (schemas[1:] != schemas[:-1])
    runs = [0, *(np.flatnonzero(changes) + 1).tolist(), table.num_rows]
    ends = np.cumsum(_sizes(table))
    starts: list[int] = []
    for start, end in pairwise(runs):
        while start < end:
            starts.append(start)
            before = int(ends[start - 1]) if start else 0
            room = int(np.searchsorted(ends, before + BATCH_BYTES, side="right"))
            start = min(max(room, start + 1), start + BATCH_RECORDS, end)
    return starts


def _sizes(table: pa.Table) -> Any:
    """Return the bytes of each record's key and value; the rest is small, or bounded by the number
    of records."""
    sizes = np.zeros(table.num_rows, np.int64)
    for name in ("key", "value"):
        lengths = pc.binary_length(table.column(name)).fill_null(0)
        sizes += lengths.to_numpy()
    return sizes
