"""All metadata of one moment: what a backup holds, and what the store of that moment holds.

Pure. Records never change, so a list of them stays as it is while the cluster goes on.
"""

from dataclasses import dataclass
from itertools import chain

from icecore.errors import InternalError
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Record


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The records, and the numbers that the store keeps beside them."""

    cluster_id: bytes
    coordinator_epoch: int
    revision: int
    records: tuple[Record, ...]


def snapshot(state: ClusterState) -> MetadataSnapshot:
    """Return all records that are stored at this moment. A million takes some ten milliseconds."""
    if state.cluster is None:
        raise InternalError("the metadata have no name yet")
    return MetadataSnapshot(
        cluster_id=state.cluster_id,
        coordinator_epoch=state.coordinator_epoch,
        revision=state.metadata_revision,
        records=tuple(
            chain(
                (state.cluster,),
                state.counters.values(),
                state.nodes.values(),
                state.topics.values(),
                state.partitions.values(),
                state.segments.values(),
                state.deleted.values(),
                state.producers.values(),
                state.heard.values(),
                state.positions.records.values(),
                state.tiers.segments.values(),
                state.tiers.topics.values(),
            )
        ),
    )
