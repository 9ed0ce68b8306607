"""Index of the segments in object storage, of those that could go there, and of the work left
there.

Pure. A part of ``ClusterState``, which tells it of each record that is put or removed. The sets are
small where nothing is to be done, however much is stored.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeVar

from icecore.errors import ObjectStoreError
from icecore.model import NodeId, Segment, SegmentId, SegmentState
from icecore.tier_records import TierRecord, TierState, TierTopicRecord

K = TypeVar("K")

STORE_ID_BYTES = 16


@dataclass
class TierIndex:
    """Records of tiering by key, and the sets that workers look at."""

    segments: dict[SegmentId, TierRecord] = field(default_factory=dict)
    topics: dict[bytes, TierTopicRecord] = field(default_factory=dict)
    of_topic: dict[bytes, dict[SegmentId, None]] = field(default_factory=lambda: defaultdict(dict))
    """By topic: ids of all its records."""
    published: dict[tuple[bytes, int], dict[SegmentId, None]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    untiered: dict[bytes, dict[SegmentId, None]] = field(default_factory=lambda: defaultdict(dict))
    """By topic: SEALED segments of which no copy is published."""
    held: dict[bytes, dict[SegmentId, None]] = field(default_factory=lambda: defaultdict(dict))
    """By topic: published segments that nodes have, too."""
    under_way: dict[SegmentId, None] = field(default_factory=dict)
    """With an attempt that some node was asked to carry out."""
    retiring: dict[SegmentId, None] = field(default_factory=dict)
    """Their segments are gone; their objects wait for the table and for readers."""
    retiring_of: dict[tuple[bytes, int], dict[SegmentId, None]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """The same by partition."""
    closed: dict[SegmentId, None] = field(default_factory=dict)
    """With closed attempts, whose objects are to be swept."""
    stale_tables: dict[tuple[bytes, int], None] = field(default_factory=dict)
    """Partitions whose table does not have what is published, as far as anybody has said."""
    withdrawn: dict[tuple[bytes, int], dict[SegmentId, None]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """By partition: segments whose published copy was missing, and that have no other one yet."""
    nodes: dict[NodeId, None] = field(default_factory=dict)
    """Those that have the object store of the cluster; before any was used, all that have one."""
    urls: dict[NodeId, str] = field(default_factory=dict)
    """By node that has an object store."""
    url: str = ""
    """URL of the object store that was used first; empty = none was used."""
    store_id: bytes = b""
    """Identity of that object store; empty = not known."""
    forgotten_store_id: bytes = b""
    """Identity of the last one that a person gave up."""

    def put_segment(self, segment: Segment) -> None:
        """Its record is stored; an older one was removed."""
        if segment.state == SegmentState.SEALED and segment.replicas:
            kind = self.held if segment.is_tiered else self.untiered
            kind[segment.topic_id][segment.segment_id] = None

    def remove_segment(self, segment: Segment) -> None:
        """Its record is gone."""
        for by_topic in (self.untiered, self.held):
            _take_out(by_topic, segment.topic_id, segment.segment_id)

    def note_table(self, key: tuple[bytes, int], *, is_stale: bool) -> None:
        """Note whether the table of a partition lacks something."""
        _mark(self.stale_tables, key, is_in=is_stale)

    def note_node(self, node_id: NodeId, tier_url: str) -> None:
        """A node is registered, with this object store or none."""
        self.urls.pop(node_id, None)
        if tier_url:
            self.urls[node_id] = tier_url
        self._choose_nodes()

    def note_store(self, tier_url: str, store_id: bytes, forgotten_store_id: bytes) -> None:
        """The cluster uses this object store, and a person gave up the other one."""
        self.url, self.store_id, self.forgotten_store_id = tier_url, store_id, forgotten_store_id
        self._choose_nodes()

    def check_store(self, store_id: bytes) -> None:
        """Compare the store that a node used with the cluster's (R95). Raises ObjectStoreError
        when it is another one."""
        if len(store_id) not in (0, STORE_ID_BYTES):
            raise ObjectStoreError(f"no object store has an id of {len(store_id)} bytes")
        if self.store_id and store_id != self.store_id:
            raise ObjectStoreError(
                f"the node has object store {store_id.hex() or 'without an id'}, the cluster uses "
                f"{self.store_id.hex()}: give all nodes the same tier_url and tier_endpoint"
            )

    def _choose_nodes(self) -> None:
        """Choose the nodes whose object store is used. Metadata do not say which store has an
        object, so two stores are never used at once. Where all nodes name another store than
        before, the store was moved."""
        known = set(self.urls.values())
        is_used = bool(self.url) and (self.url in known or len(known) > 1)
        self.nodes = {
            each: None for each, url in self.urls.items() if not is_used or url == self.url
        }

    def put(self, record: TierRecord | TierTopicRecord) -> None:
        """It is stored."""
        if isinstance(record, TierTopicRecord):
            self.topics[record.topic_id] = record
        else:
            self._put_tier(record)

    def remove(self, record: TierRecord | TierTopicRecord) -> None:
        """It is gone."""
        if isinstance(record, TierTopicRecord):
            del self.topics[record.topic_id]
        else:
            self._forget_tier(record)
            del self.segments[record.segment_id]

    def _put_tier(self, record: TierRecord) -> None:
        self._forget_tier(record)
        segment_id = record.segment_id
        self.segments[segment_id] = record
        self.of_topic[record.topic_id][segment_id] = None
        if record.state is TierState.PUBLISHED:
            self.published[record.partition_key][segment_id] = None
        elif record.state is TierState.UPLOADING and record.withdrawn:
            self.withdrawn[record.partition_key][segment_id] = None
        if record.is_retiring:
            self.retiring_of[record.partition_key][segment_id] = None
        _mark(self.under_way, segment_id, is_in=record.is_under_way)
        _mark(self.retiring, segment_id, is_in=record.is_retiring)
        _mark(self.closed, segment_id, is_in=bool(record.closed_attempts))

    def _forget_tier(self, record: TierRecord) -> None:
        segment_id = record.segment_id
        _take_out(self.of_topic, record.topic_id, segment_id)
        for by_partition in (self.published, self.withdrawn, self.retiring_of):
            _take_out(by_partition, record.partition_key, segment_id)
        for each in (self.under_way, self.retiring, self.closed):
            each.pop(segment_id, None)


def _mark(known: dict[K, None], key: K, *, is_in: bool) -> None:
    if is_in:
        known[key] = None
    else:
        known.pop(key, None)


def _take_out(by_key: dict[K, dict[SegmentId, None]], key: K, segment_id: SegmentId) -> None:
    found = by_key.get(key)
    if found is not None:
        found.pop(segment_id, None)
        if not found:
            del by_key[key]
