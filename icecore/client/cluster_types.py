"""Values about a whole cluster that the client API returns: its nodes, its alerts, its metadata."""

from dataclasses import dataclass

from icecore.model import NodeInfo
from icecore.shown import short_repr


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """One folder for segments of a node."""

    path: str
    used_bytes: int
    """Used bytes of the whole file system."""
    free_bytes: int
    problem: str = ""
    """Why it does not count; empty while it does."""


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """One node and its load."""

    node: NodeInfo
    leads: int
    replicas: int
    disk_used_bytes: int
    disk_free_bytes: int
    disks: tuple[DiskUsage, ...] = ()
    is_drained: bool = False
    """A person wants it empty: it gets nothing new, and other nodes take what it has."""
    host: str = ""
    """Name of its machine, which may run several nodes."""
    down_since_ms: int = 0
    """When it was found to be down; 0 = it is up, or this coordinator never saw it up."""
    held: int = 0
    """Segments of which it may have bytes, replicas or not; a node without any may be removed."""


@dataclass(frozen=True, slots=True)
class SegmentMove:
    """An open segment that rolls so that its successor opens elsewhere."""

    topic: str
    topic_id: bytes
    partition: int
    segment_id: int
    leader: int
    replicas: tuple[int, ...]
    next_leader: int
    next_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that only a person can judge; times are those of the coordinator."""

    segment_id: int
    why: str
    first_at_ms: int
    last_at_ms: int


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit of the cluster that may fill up."""

    name: str
    used: int
    most: int
    way_out: str = ""
    """Tells what makes room; empty while less than 80 % are used."""


@dataclass(frozen=True, slots=True)
class AdoptFinding:
    """A thing that a person must know of when metadata are adopted."""

    why: str
    topic: str
    partition: int
    segment_id: int
    """0 = it is about no single one."""
    is_gap: bool
    """Offsets that no node has."""


@dataclass(frozen=True, slots=True)
class MetadataBackup:
    """A backup of the metadata that is complete."""

    cluster_id: bytes
    revision: int
    """How often the metadata had been changed."""
    records: int
    length_bytes: int
    """Size of the file."""


@dataclass(frozen=True, slots=True)
class AdoptedMetadata:
    """The way in which suspended metadata go on, or would."""

    cluster_id: bytes
    is_done: bool
    """False = nothing was changed."""
    told_nodes: tuple[int, ...]
    """Nodes that have said all that they hold."""
    missing_nodes: tuple[int, ...]
    """Nodes that are known and have not."""
    segments_found: int
    """Segments that the metadata did not know, or not as sealed."""
    topics_found: int
    findings: tuple[AdoptFinding, ...]


@short_repr()
@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster in numbers; the fields are those of ``DescribeClusterResponse``."""

    cluster_id: bytes
    coordinator_epoch: int
    nodes: tuple[NodeDescription, ...]
    topics: int
    partitions: int
    segments: int
    sealed_segments: int
    under_replicated: int
    min_copies: int
    recoveries: int
    offline_partitions: int
    deleted_topics: int = 0
    """Kept until their grace is over; not in ``topics`` and ``partitions``."""
    deleted_bytes: int = 0
    """One copy of each of their sealed segments, which are among ``segments``."""
    alerts: tuple[Alert, ...] = ()
    limits: tuple[LimitUse, ...] = ()
    refused_streams: int = 0
    """Heartbeat streams that came from no process of the node in whose name they were."""
    backup_at_ms: int = 0
    """When the last backup of the metadata was complete; 0 = there was none."""
