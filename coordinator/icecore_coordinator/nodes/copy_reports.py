"""Reports of nodes about their own copies: UNKNOWN ones, ones that take no appends, ones that lack
room.

The reports are not stored: the first heartbeat of each stream repeats all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from icecore.model import NodeId, SegmentId

UNKNOWN_KEPT_MAX = 1_000_000
"""Most UNKNOWN copies kept per node: more than a node can have segments."""
DELETED_KEPT_MAX = 100_000
"""Most confirmed deletions kept. Nodes confirm the rest again: each stream begins with all orders
to delete."""


class DeletedCopies:
    """Copies that nodes have deleted as ordered."""

    def __init__(self) -> None:
        self._copies: dict[tuple[SegmentId, NodeId], None] = {}

    def note(self, node_id: NodeId, segment_ids: Iterable[SegmentId]) -> None:
        """The node has deleted these."""
        room = max(0, DELETED_KEPT_MAX - len(self._copies))
        for segment_id in list(segment_ids)[:room]:
            self._copies[segment_id, node_id] = None

    def take(self, limit: int) -> dict[SegmentId, list[NodeId]]:
        """Take at most ``limit`` deleted copies: node ids by segment. Each copy is returned
        once."""
        found: dict[SegmentId, list[NodeId]] = {}
        for copy in list(islice(self._copies, limit)):
            del self._copies[copy]
            found.setdefault(copy[0], []).append(copy[1])
        return found


class VanishedCopies:
    """UNKNOWN copies of which nothing is left on their nodes: they were in memory."""

    def __init__(self) -> None:
        self._copies: dict[NodeId, dict[SegmentId, None]] = {}

    def note(self, node_id: NodeId, segment_ids: Iterable[SegmentId]) -> None:
        """The node has lost all that it had of these."""
        found = self._copies.setdefault(node_id, {})
        for segment_id in segment_ids:
            if segment_id in found or len(found) < UNKNOWN_KEPT_MAX:
                found[segment_id] = None

    def has(self, node_id: NodeId, segment_id: SegmentId) -> bool:
        """Return whether the node has said so."""
        return segment_id in self._copies.get(node_id, ())

    def segment_ids(self) -> set[SegmentId]:
        """Return the segments of which some node has said so."""
        return {each for of_node in self._copies.values() for each in of_node}

    def copied(self, node_id: NodeId, segment_id: SegmentId) -> None:
        """The node is about to hold the segment again; it says so when it does not."""
        self._copies.get(node_id, {}).pop(segment_id, None)

    def forget(self, node_id: NodeId) -> None:
        """The node says all of it anew."""
        self._copies.pop(node_id, None)


class CopyReports:
    """Copies that are UNKNOWN to their own nodes, and segments that a promise has shut."""

    def __init__(self) -> None:
        self._unknown: dict[NodeId, dict[SegmentId, int]] = {}
        """By node: segments whose copy there is damaged or missing, each with the number of the
        report that said so last."""
        self.count = 0
        """Number of reports until now."""
        self.vanished = VanishedCopies()
        self._crowded: dict[NodeId, frozenset[SegmentId]] = {}
        """By node: segments that grow there on a disk, or in memory, that is getting full."""
        self.shut_out: dict[SegmentId, None] = {}
        """ACTIVE segments that some member can't append to, for it promised a higher epoch."""
        self.deleted = DeletedCopies()

    def begin(self, node_id: NodeId) -> None:
        """A stream of this node begins: what it said before does not count."""
        self._unknown[node_id] = {}
        self.vanished.forget(node_id)
        self._crowded.pop(node_id, None)

    def forget(self, node_id: NodeId) -> None:
        """There is no such node any more."""
        self.begin(node_id)
        del self._unknown[node_id]

    def note_unknown(self, node_id: NodeId, segment_ids: Iterable[SegmentId]) -> None:
        """These copies of the node count for nothing; no more are kept than a node can have."""
        unknown = self._unknown.setdefault(node_id, {})
        self.count += 1
        for segment_id in segment_ids:
            if segment_id in unknown or len(unknown) < UNKNOWN_KEPT_MAX:
                unknown[segment_id] = self.count

    def note_crowded(self, node_id: NodeId, segment_ids: Sequence[SegmentId]) -> None:
        """These grow on a disk that is getting full, while the node has others, or in memory that
        is; all of them."""
        self._crowded[node_id] = frozenset(segment_ids[:UNKNOWN_KEPT_MAX])

    @property
    def is_all_well(self) -> bool:
        """No node has said that a copy counts for nothing, or that a disk is getting full."""
        return not any(self._unknown.values()) and not any(self._crowded.values())

    def is_crowded(self, node_id: NodeId, segment_id: SegmentId) -> bool:
        """Return whether the segment had better go on in another log on that node."""
        return segment_id in self._crowded.get(node_id, ())

    def is_unknown(self, node_id: NodeId, segment_id: SegmentId) -> bool:
        """Return whether the node has said that its copy counts for nothing."""
        return segment_id in self._unknown.get(node_id, ())

    def has_copy(self, node_id: NodeId, segment_id: SegmentId) -> bool:
        """Return whether the node has not said so."""
        return not self.is_unknown(node_id, segment_id)

    def unknown(self) -> Iterator[tuple[NodeId, SegmentId]]:
        """(node id, segment id) of all copies that count for nothing."""
        for node_id, segment_ids in self._unknown.items():
            for segment_id in segment_ids:
                yield node_id, segment_id

    def copied(self, node_id: NodeId, segment_id: SegmentId, count: int | None = None) -> None:
        """The node holds the segment again, or is about to; it says so when it does not.

        Args:
            node_id: The node.
            segment_id: Of the segment.
            count: Of reports when it was asked for the copy: what it said after that holds, for an
                answer may be overtaken; None = now.
        """
        unknown = self._unknown.get(node_id, {})
        if count is None or unknown.get(segment_id, 0) <= count:
            unknown.pop(segment_id, None)
            self.vanished.copied(node_id, segment_id)

    def note_shut_out(self, segment_id: SegmentId) -> None:
        """Some member can't append to this ACTIVE segment."""
        self.shut_out[segment_id] = None

    def forget_shut_out(self, segment_id: SegmentId) -> None:
        """The segment is not ACTIVE any more."""
        self.shut_out.pop(segment_id, None)
