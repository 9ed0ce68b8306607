"""Copies that the coordinator believes in, compared with what lies on disks, and disks with disks.

A listed copy of a sealed segment counts when the next disk is lost: it must be there, durable and
equal. Of two logs of a segment, sealed or not, listed or not, one is a prefix of the other (I6).
Copies beyond the replication factor cost space; who returns after a repair makes one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from icecore.model import Segment, SegmentState
from icecore_replication.invariants import check_prefixes
from tests.simulation.stored_logs import durable_logs, durable_tail, is_in_memory

if TYPE_CHECKING:
    from tests.simulation.cluster import World

COORDINATOR = "coordinator"


def sealed_segments(world: "World") -> list[Segment]:
    """As the coordinator has them."""
    records = world.shells[COORDINATOR].ledger.state.segments.values()
    found = [each.segment for each in records]
    return [each for each in found if each.state is SegmentState.SEALED and not each.lossy]


def false_copies(world: "World", name: str) -> Iterator[str]:
    """Copies listed on one sound host that are not on its disk as they were sealed."""
    host = world.hosts[name]
    for segment in sealed_segments(world):
        if host.node_id not in segment.replicas or is_in_memory(host, segment.segment_id):
            continue
        tail = durable_tail(host, segment.segment_id, segment.end_offset)
        if tail is None or (tail.end_offset, tail.digest) != (
            segment.end_offset,
            segment.seal_digest,
        ):
            yield (
                f"false copy: segment {segment.segment_id} is listed on {name} to"
                f" {segment.end_offset}, its disk has {tail}"
            )


def split_logs(world: "World") -> Iterator[str]:
    """I6: segments of which sound disks hold logs that no single leader wrote."""
    logs: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for name, host in world.hosts.items():
        if not world.is_suspect(name):
            for segment_id, log in durable_logs(host).items():
                logs.setdefault(segment_id, {})[host.node_id] = log
    for segment_id, log_by_node in logs.items():
        try:
            check_prefixes(log_by_node)
        except AssertionError as broken:
            yield f"segment {segment_id}: {broken}"


def surplus_copies(world: "World") -> int:
    """Return how many copies are listed beyond the replication factor."""
    return sum(
        max(0, len(each.replicas) - each.settings.replication_factor)
        for each in sealed_segments(world)
    )
