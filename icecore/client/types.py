"""What the client API takes and returns: plain values, never protobuf messages."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from icecore.client import checks
from icecore.client.retries import Retry
from icecore.codec.columns import Record
from icecore.errors import ConfigurationError
from icecore.model import NodeInfo, Segment
from icecore.topic_settings import TopicSettings


def enum_member(kind: Any, value: Any) -> Any:
    """An enum member from itself or its lower-case name. Raises TypeError, ConfigurationError."""
    if isinstance(value, kind):
        return value
    try:
        return kind[checks.text(kind.__name__.lower(), value).upper()]
    except KeyError:
        known = ", ".join(member.name.lower() for member in kind)
        raise ConfigurationError(f"{kind.__name__} {value!r} is none of: {known}") from None


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where one acknowledged record is."""

    topic: str
    partition: int
    offset: int
    append_timestamp_ms: int
    durable_copies: int
    """Replicas that held it durably when it was acknowledged."""


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """Where the records of one acknowledged batch are: ``[base_offset, end_offset)``."""

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    append_timestamp_ms: int
    durable_copies: int
    segment_id: int
    """Whose leader answered. A duplicate may lie in an earlier one."""
    duplicate: bool
    """It had been appended by an earlier attempt whose answer was lost."""


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """What a producer has done since it was made. Bytes are as ``buffer_bytes`` counts them."""

    records_acknowledged: int
    records_failed: int
    """Their handles raise; of some the outcome is unknown."""
    batches_acknowledged: int
    bytes_acknowledged: int
    latency_mean_ms: float
    """From the first record of a batch to its acknowledgement, over all batches."""
    latency_max_ms: float
    buffered_records: int
    """Whose outcome is open, now."""
    buffered_bytes: int
    requests_under_way: int
    """To nodes, now."""
    retries: int
    """Of requests to nodes and coordinators."""
    last_retry: Retry | None
    """The newest of them."""


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition as the coordinator sees it."""

    partition: int
    log_start_offset: int
    high_watermark: int
    tail: Segment | None
    """The active segment, or the one being recovered; None when there is none."""
    segments: int
    under_replicated_segments: int
    lossy_segments: int = 0
    """An admin accepted that some of their records are lost."""
    length_bytes: int = 0
    """Of one copy of all batches; of the tail as last reported."""
    tiered_segments: int = 0
    """With a published copy in object storage,"""
    remote_only_segments: int = 0
    """and of these those that no node has any more."""


@dataclass(frozen=True, slots=True)
class SnapshotHold:
    """A topic that stays as it is, for a while: retention takes nothing from it."""

    topic_id: bytes
    lease_id: bytes
    left_ms: int
    """It lasts so long at least."""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic as the coordinator sees it."""

    name: str
    topic_id: bytes
    settings: TopicSettings
    partitions: tuple[PartitionDescription, ...]
    deleted: bool = False
    """It can be undeleted while there is grace left."""
    deleted_at_ms: int = 0
    """By the wall clock of the coordinator."""
    grace_left_ms: int = 0
    """As of a minute ago at most; it only passes while a coordinator runs."""
    earlier_partitions: tuple[int, ...] = ()
    """As in ``TopicMetadata``."""
    holds: tuple[SnapshotHold, ...] = ()
    """Why retention takes nothing from it."""


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """What a deletion left."""

    topic_id: bytes
    """By which it can be undeleted."""
    grace_ms: int
    """For how long; 0 = it is gone for good."""


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """What was deleted, or would be, of one partition: records [from_offset, log_start_offset)."""

    partition: int
    from_offset: int
    log_start_offset: int
    segments: tuple[Segment, ...]
    """Whose files go: sealed ones wholly below the new start."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """One folder for segments of a node."""

    path: str
    used_bytes: int
    """Of its file system."""
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


@dataclass(frozen=True, slots=True)
class Page:
    """Something that only a person can judge; times are those of the coordinator."""

    segment_id: int
    why: str
    first_at_ms: int
    last_at_ms: int


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster in numbers; the fields are those of ``DescribeClusterResponse``."""

    cluster_id: bytes
    token: int
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
    pages: tuple[Page, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Who serves a partition at the moment."""

    partition: int
    log_start_offset: int
    segment_id: int
    epoch: int
    leader: int
    """Node id, 0 when there is none at the moment."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    tail_base_offset: int
    down_leader: int = 0
    """Who leads it again once it is not down any more; 0 while there is a leader."""


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as producers and consumers need it."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionMetadata, ...]
    partitioner: str = "xxh64"
    indexed_headers: tuple[str, ...] = ()
    earlier_partitions: tuple[int, ...] = ()
    """How many partitions it had before, oldest first; 0 = nobody wrote down how many."""


@dataclass(frozen=True, slots=True)
class OffsetResult:
    """An offset that was looked up; the time is -1 when no record is there."""

    offset: int
    append_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SavedPosition:
    """How far a reader with a name has come in one partition."""

    name: str
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    """Of the next record to read."""
    version: int
    """Grows with each save."""
    instance: int
    """Of the reader that saved it: a number of its own."""
    saved_at_ms: int
    """By the wall clock of the coordinator."""


@dataclass(frozen=True, slots=True)
class PositionChange:
    """Of one partition: where readers went on, and where they will."""

    before: int | None
    """None = nothing was saved."""
    to: int


@dataclass(frozen=True, slots=True)
class RollResult:
    """Outcome of rolling a topic: how many segments were sealed, and why others were not."""

    rolled: int
    errors: tuple[Exception, ...] = ()


class SearchOutcome(StrEnum):
    """What became of one segment in a look-up."""

    INDEX = "index"
    """An index covered all of it."""
    SCAN = "scan"
    """Some of it, or all, was read, because no index covers it."""
    SKIPPED_TIME = "skipped_time"
    """All its event times lie outside of what was asked for."""
    SKIPPED_HASH = "skipped_hash"
    """Its index has none of the keys, tags or headers."""
    UNAVAILABLE = "unavailable"
    """It could not be searched; records may be missing."""


@dataclass(frozen=True, slots=True)
class SegmentOutcome:
    """What a page of a look-up did in one segment, or, explained only, would do."""

    partition: int
    segment_id: int
    base_offset: int
    end_offset: int
    """As far as it is visible; -1 = not known."""
    outcome: SearchOutcome
    node_id: int = 0
    """Who searched it; 0 = nobody did."""
    index: str = "none"
    """``sealed``, ``active`` or ``none``."""
    index_runs: int = 0
    """Sorted runs that a look-up touches."""
    index_bytes: int = 0
    """Read of the index."""
    data_bytes: int = 0
    """Read of the segment."""
    candidates: int = 0
    """Records that the index named."""
    records: int = 0
    """Of the page, from here."""
    error: str = ""
    """Why it is unavailable."""
    is_cold: bool = False
    """It was read in object storage."""
    cold_requests: int = 0
    """Asked of object storage; what was in a cache of the node costs none."""
    cold_bytes: int = 0
    """Which these have brought."""


@dataclass(frozen=True, slots=True)
class LookupPage:
    """One page of a look-up."""

    records: tuple[Record, ...]
    complete: bool
    """All that this page has looked at could be searched. A page that is not complete may lack
    records, of the segments that are unavailable."""
    indexed_through: dict[int, int]
    """By partition: each matching record below this offset, and from ``from_offset`` on, is in this
    page, came with one before, or comes with a later one. Nothing is said of later records. Newest
    first, the first page says it of the whole answer."""
    segments: tuple[SegmentOutcome, ...]
    """That this page has looked at, by partition and offset."""
    continuation: bytes
    """Ask for the next page with it; empty = there is none."""
    planned_age_ms: int
    """How old was what the page was planned on, which topic has the name, and who holds and leads
    which segment: so long ago a coordinator knew nothing newer. A second or two while one answers;
    while none does, as long as the nodes have heard of none. ``complete`` is said as of then, and
    of all records that the leaders known then have taken in since."""

    def with_outcome(self, *outcomes: SearchOutcome) -> tuple[SegmentOutcome, ...]:
        """The segments of which one of these became."""
        return tuple(each for each in self.segments if each.outcome in outcomes)

    @property
    def unavailable(self) -> tuple[SegmentOutcome, ...]:
        """Segments whose records may be missing here."""
        return self.with_outcome(SearchOutcome.UNAVAILABLE)


MERGED_BYTES = 128 << 20
"""Of a merged segment at most, unless somebody says more. Readers of tables like such files."""


@dataclass(frozen=True, slots=True)
class PublishedCopy:
    """A segment's copy in object storage, as metadata have it."""

    segment_id: int
    generation: int
    base_offset: int
    attempt: int
    manifest_sha256: bytes
    partition: int
    end_offset: int
    records: int
    """Rows of its Parquet object. Fewer than there are offsets when some are not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTiering:
    """What of a topic is in object storage, waits to be, or fails."""

    name: str
    topic_id: bytes
    is_on: bool
    waiting_segments: int
    """Sealed, and not in object storage yet."""
    uploading_segments: int
    published_segments: int
    remote_only_segments: int
    """Published, and on no node any more."""
    unswept_attempts: int
    """Uploads that failed and copies that are retired, whose objects are to be deleted."""
    local_bytes: int
    """Of one copy of the sealed segments that nodes have."""
    remote_bytes: int
    """Of objects."""
    lag_ms: int
    """For how long the oldest due segment has been due."""
    stale_tables: int
    """Partitions whose table lacks what was published or retired last."""
    last_error: str
    """Empty once the same goes well."""
    last_error_ms: int
    copies: tuple[PublishedCopy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTiering:
    """Object storage of a cluster."""

    cluster_id: bytes
    topics: tuple[TopicTiering, ...]
    tier_urls: tuple[str, ...]
    """Of registered nodes, each once."""
    gone_topics: int
    """Whose objects are still to be deleted."""
    tier_url: str = ""
    """That the cluster uses; empty = none yet."""
