"""The producers that each segment opened with, checked when a world is over.

The producers that a segment starts from must be those that the log below its base tells of (R20,
R62), on each replica: a table that knows less lets a batch that is sent again be appended again,
and nobody notices unless a producer happens to do so. Nobody may be forgotten at all (R97): a world
lasts minutes, whatever its clocks say.
"""

from collections.abc import Iterator

from icecore.codec import batch
from icecore.errors import IcecoreError
from icecore.model import ProducerEpoch, ProducerId, Segment, SegmentState
from icecore_replication.producers import BATCHES_KEPT, ProducerTable, starting
from tests.simulation.cluster import COORDINATOR, World


def wrong_starts(world: World) -> list[str]:
    """Replicas that started with other producers than the log before them has."""
    records = world.shells[COORDINATOR].ledger.state.segments.values()
    partitions: dict[tuple[bytes, int], list[Segment]] = {}
    for record in records:
        segment = record.segment
        if segment.state is not SegmentState.PREPARED:
            partitions.setdefault(record.partition_key, []).append(segment)
    found: list[str] = []
    for segments in partitions.values():
        found += _of_partition(world, sorted(segments, key=lambda each: each.base_offset))
    return found


def _of_partition(world: World, segments: list[Segment]) -> Iterator[str]:
    table, end_offset = ProducerTable(starting(b"", BATCHES_KEPT, 1)), 0
    for segment in segments:
        if segment.base_offset != end_offset or segment.lossy or _is_behind_loss(world, segment):
            return  # what is gone can't be folded
        for name, snapshot in _starts(world, segment):
            if _known(ProducerTable(snapshot)) != _known(table):
                yield f"start: segment {segment.segment_id} on {name} opened with other producers"
        headers = _headers(world, segment)
        if segment.state is not SegmentState.SEALED or headers is None:
            return
        for raw in headers:
            table.apply_header(batch.parse_header(raw))
        end_offset = segment.end_offset


def _known(table: ProducerTable) -> dict[ProducerId, tuple[ProducerEpoch, bytes]]:
    return {key: (each.epoch, each.window) for key, each in table._producers.items()}


def _is_behind_loss(world: World, segment: Segment) -> bool:
    """Also where the segment that was given up has no record any more: nothing of it was left."""
    given_up = world.history.given_up.get((segment.topic, segment.partition), ())
    return any(end_offset <= segment.base_offset for end_offset, _ in given_up)


def _starts(world: World, segment: Segment) -> Iterator[tuple[str, bytes]]:
    """Yield the producer state that each counting replica started with."""
    for name in world.hosts:
        node = world.shells.get(name)
        replica = node.replicas.get(segment.segment_id) if node is not None else None
        is_member = node is not None and node.context.identity.node_id in segment.replicas
        if node is not None and replica is not None and is_member and replica.life.counts:
            yield name, node.context.store.reader.starting_state(segment.segment_id)[0]


def _headers(world: World, segment: Segment) -> list[bytes] | None:
    """Return the headers of all batches, from any replica that is whole."""
    for name, _ in _starts(world, segment):
        store = world.shells[name].context.store
        try:
            headers: list[bytes] = store.reader.headers(segment.segment_id, segment.end_offset)
        except IcecoreError:
            continue  # another one is whole
        return headers
    return None
