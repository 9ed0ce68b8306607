"""Merging several tiered segments into one: the index entries of their rows, and the digests that
prove that nothing is missing.

Rows stay as they are. The index is made from the batches that a remote read will make of them, so
it can't differ from what is served.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from icecore.codec.batch import HEADER_LENGTH, Codec, peek
from icecore.codec.index_entries import batch_entries
from icecore.errors import InvalidRequestError, StorageError
from icecore_node.remote.format.content_digest import ContentDigest
from icecore_node.remote.format.manifest import (
    Manifest,
    RowGroup,
    SegmentFacts,
)
from icecore_node.remote.format.row_batches import batches_of
from icecore_node.storage.index.entries import Entries, joined, sorted_entries
from icecore_node.storage.segment_engine.sealed_index import (
    Points,
    SealedFacts,
    write_sealed_index,
)

_NO_POINTS: Final = Points(*(np.empty(0, "<i8") for _ in range(3)))
"""Points are for data files, and this segment has none."""


def check_sources(facts: SegmentFacts, sources: Sequence[Manifest]) -> None:
    """Raise InvalidRequestError when these can't become that segment."""
    name = f"segment {facts.segment_id}"
    if len(sources) < 2:
        raise InvalidRequestError(f"{name} is to be made of {len(sources)} segment: name two")
    for each in sources:
        # Not the cluster: what a restore brought back was written by an earlier one.
        found = each.facts.topic_id, each.facts.partition
        if found != (facts.topic_id, facts.partition):
            raise InvalidRequestError(f"{each.key} is of another partition than {name}")
        if each.raw_batches:
            raise InvalidRequestError(
                f"{each.key} has batches without rows, which are kept as they are: leave segment "
                f"{each.facts.segment_id} out"
            )
    edges = [(each.facts.base_offset, each.facts.end_offset) for each in sources]
    meet = all(one[1] == other[0] for one, other in pairwise(edges))
    if not meet or (edges[0][0], edges[-1][1]) != (facts.base_offset, facts.end_offset):
        raise InvalidRequestError(f"the sources of {name} have the offsets {edges}")


class MergedEntries:
    """Gathers the index entries of a merged segment. Blocking.

    Args:
        facts: Facts of the merged segment.
        indexed_headers: Names of the headers that the topic's settings index.
    """

    def __init__(self, facts: SegmentFacts, indexed_headers: Collection[str]) -> None:
        self._facts = facts
        self._indexed_headers = indexed_headers
        self._parts: list[Entries] = []
        self._times: list[tuple[int, int]] = []

    def add(self, rows: pa.Table, group: RowGroup) -> None:
        """Add the next row group. Raises StorageError when its rows make no valid batches."""
        covered = group.base_offset, group.end_offset
        found = batches_of(
            rows, self._facts, covered, codec=Codec.NONE, indexed_headers=self._indexed_headers
        )
        self._parts.append(sorted_entries(joined([*map(self._entries, found)])))
        self._times.append((group.min_timestamp_ms, group.max_timestamp_ms))

    def _entries(self, raw: bytes) -> Entries:
        header, body = raw[:HEADER_LENGTH], raw[HEADER_LENGTH:]
        offset = peek(header)[1]
        made = batch_entries(header, body, offset - self._facts.base_offset)
        if made is None:
            raise StorageError(f"the rows at offset {offset} make no batch with an index")
        return Entries(np.frombuffer(made.hashes, "<u8"), np.frombuffer(made.ordinals, "<u4"))

    def file(self) -> bytes:
        """Return the whole index file,"""
        facts = self._facts
        entries = sorted_entries(joined(self._parts))
        self._parts = [entries]
        of = SealedFacts(
            cluster_id=facts.cluster_id,
            topic_id=facts.topic_id,
            partition=facts.partition,
            segment_id=facts.segment_id,
            generation=facts.generation,
            epoch=facts.epoch,
            base_offset=facts.base_offset,
            end_offset=facts.end_offset,
            seal_digest=facts.seal_digest,
            min_timestamp_ms=min(low for low, _ in self._times),
            max_timestamp_ms=max(high for _, high in self._times),
        )
        out = _Memory()
        write_sealed_index(out, of, [entries], len(entries.hashes), _NO_POINTS, b"")
        return bytes(out.data)


class _Memory:
    """A file that is written in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    def pwritev(self, buffers: Sequence[Any], position: int) -> None:
        """Write at a position, as ``File.pwritev`` does."""
        new = b"".join(buffers)
        self.data.extend(bytes(max(0, position + len(new) - len(self.data))))
        self.data[position : position + len(new)] = new


class SourceDigests:
    """The content digest of each source, from the rows of the merged segment. Blocking.

    Args:
        sources: Manifests in the order of their offsets.
    """

    def __init__(self, sources: Sequence[Manifest]) -> None:
        self._ends = [each.facts.end_offset for each in sources]
        self._digests = [ContentDigest() for _ in sources]

    def add(self, rows: pa.Table) -> None:
        """Add the next rows."""
        for part in rows.replace_schema_metadata(None).to_batches():
            for at, found in self._split(part):
                self._digests[at].update(found)

    def _split(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        offsets = rows.column("offset").to_numpy()
        start = 0
        while start < len(offsets):
            at = bisect_right(self._ends, int(offsets[start]))
            end = int(np.searchsorted(offsets, self._ends[at]))
            yield at, rows.slice(start, end - start)
            start = end

    def digests(self) -> list[bytes]:
        """Return the digests in the order of the sources."""
        return [each.digest() for each in self._digests]
