"""The store of a stopped node, asked as the node asks it: look-ups without network and threads."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.lookup.data import Layout
from icecore.codec.selection import Selection
from icecore.model import NodeId, Segment
from icecore.v1 import data_pb2
from icecore_node.serving.fetch.plain_sink import PlainSink
from icecore_node.serving.query.log_search import LogSearch, LogView
from icecore_node.storage.data_folder import DataFolder
from icecore_node.storage.engines import make_store

SEED: Final = 2
ANSWER_BYTES: Final = 1 << 20
Timed = Callable[[int, Callable[[], Any]], dict[str, float]]


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The figures that were measured without a network."""

    looks_ms: dict[str, dict[str, float]]
    """Percentiles by kind of look-up."""
    sizes: dict[str, float]


def in_store(
    path: Path, layout: Layout, segments: Sequence[Segment], looks: int, timed: Timed
) -> StoreFigures:
    """Look-ups of each kind, and what the database holds.

    Args:
        path: The node's data folder.
        layout: What is in it.
        segments: Of the only partition, in order.
        looks: Of each kind.
        timed: Makes percentiles.
    """
    folder = DataFolder.open(path, NodeId(1))
    try:
        store = make_store(folder.files, folder.index, folder.control, folder.cluster_id)
        store.start_up()
        while store.index.maintain():
            pass
        asked = _Asked(store, layout, segments)
        looks_ms = {
            "offset": timed(looks, asked.by_offset),
            "append_time": timed(looks, asked.by_time),
            "key_10_hits_sealed": timed(looks, asked.by_key_sealed),
            "key_10_hits_active": timed(looks, asked.by_key_active),
        }
        sizes: dict[str, float] = {
            "offset_index_bytes": _size(folder, "offset"),
            "time_index_bytes": _size(folder, "time"),
            "active_index_bytes": _size(folder, "entry"),
            "active_runs": store.index.summary(segments[-1].segment_id).runs,
        }
        store.close()
    finally:
        folder.close()
    return StoreFigures(looks_ms, sizes)


def _size(folder: DataFolder, family: str) -> int:
    """Return the bytes of all keys and values in one family of the index."""
    return sum(len(k) + len(v) for k, v in folder.index.scan(family, b"", b"\xff" * 32))


class _Asked:
    """Questions with random answers, each checked."""

    def __init__(self, store: Any, layout: Layout, segments: Sequence[Segment]) -> None:
        self._store = store
        self._layout = layout
        self._segments = segments
        self._rng = random.Random(SEED)
        tails = [store.reader.tail(segment.segment_id) for segment in segments]
        self._ends = [tail.end_offset for tail in tails]
        self._last_ms = [tail.max_append_timestamp_ms for tail in tails]

    def by_offset(self) -> None:
        """The batch that holds an offset, read and checked."""
        offset = self._rng.randrange(self._layout.records)
        at = offset // self._layout.per_segment
        segment_id = self._segments[at].segment_id
        data, after = self._store.reader.read(segment_id, offset, 1, self._ends[at])
        assert data and after > offset

    def by_time(self) -> None:
        """The first batch of a time, in one segment."""
        at = self._rng.randrange(1, len(self._segments))
        asked_ms = self._rng.randint(self._last_ms[at - 1] + 1, self._last_ms[at])
        segment_id = self._segments[at].segment_id
        found = self._store.reader.offset_for_time(segment_id, asked_ms, self._ends[at])
        assert found is not None and found[1] >= asked_ms

    def by_key_sealed(self) -> None:
        """Ten records of a sealed segment."""
        self._by_key(self._rng.randrange(len(self._segments) - 1))

    def by_key_active(self) -> None:
        """Ten records of the active one."""
        self._by_key(len(self._segments) - 1)

    def _by_key(self, at: int) -> None:
        number = self._rng.randrange(self._layout.keys_per_segment)
        segment = self._segments[at]
        end = self._ends[at]
        view = LogView(self._store.reader, self._store.index, segment.segment_id, end)
        selection = Selection(keys=frozenset([self._layout.key(at, number)]))
        search = LogSearch(view, selection, (segment.base_offset, end))
        found: list[int] = []
        while not search.is_done:
            sink = search.step(
                lambda: PlainSink(data_pb2.QueryPartitionResult(), 100, ANSWER_BYTES, True)
            )
            found += [record.offset for record in sink.part.records]
            sink.encoded()
        assert found == self._layout.offsets(at, number), "not what was produced"
        assert not search.work.scanned, "no index had it"
