"""Values that the client API takes and returns: plain values, never protobuf messages."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from icecore.client import checks
from icecore.client.retries import Retry
from icecore.codec.batch import BatchLimits
from icecore.codec.columns import Record
from icecore.errors import ConfigurationError
from icecore.model import OffsetSpans, Segment
from icecore.shown import short_repr
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
    """Position of one acknowledged record."""

    topic: str
    partition: int
    offset: int
    append_timestamp_ms: int
    durable_copies: int
    """Replicas that held it durably when it was acknowledged."""


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """Position of the records of one acknowledged batch: ``[base_offset, end_offset)``."""

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    append_timestamp_ms: int
    durable_copies: int
    segment_id: int
    """The segment whose leader answered. A duplicate may lie in an earlier segment."""
    duplicate: bool
    """An earlier attempt had appended the batch, but its answer was lost."""


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """Counts of a producer since it was made. It counts bytes as ``buffer_bytes`` does."""

    records_acknowledged: int
    records_failed: int
    """Records whose handles raise; some of them may have been appended nevertheless."""
    batches_acknowledged: int
    bytes_acknowledged: int
    latency_mean_ms: float
    """Mean time from the first record of a batch to its acknowledgement, over all batches."""
    latency_max_ms: float
    buffered_records: int
    """Records sent now and neither acknowledged nor failed."""
    buffered_bytes: int
    requests_under_way: int
    """Requests to nodes that are not answered now."""
    retries: int
    """Repeated requests to nodes and coordinators."""
    last_retry: Retry | None
    """The newest retry."""


@short_repr()
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
    """Size of one copy of all batches; the tail counts as last reported."""
    tiered_segments: int = 0
    """Segments with a published copy in object storage."""
    remote_only_segments: int = 0
    """Tiered segments that no node has any more."""
    left_out: OffsetSpans = ()
    """Offsets that were never given out: behind a restore, or an end that nothing proved."""


@dataclass(frozen=True, slots=True)
class SnapshotHold:
    """A topic that stays as it is, for a while: retention takes nothing from it."""

    topic_id: bytes
    lease_id: bytes
    left_ms: int
    """It lasts so long at least."""
    owner: str = ""


@short_repr("settings")
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
    """When the topic was deleted, by the coordinator's wall clock."""
    grace_left_ms: int = 0
    """As of a minute ago at most; it only passes while a coordinator runs."""
    earlier_partitions: tuple[int, ...] = ()
    """See ``TopicMetadata``."""
    holds: tuple[SnapshotHold, ...] = ()
    """Reasons why retention deletes nothing of the topic."""


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """Result of deleting a topic."""

    topic_id: bytes
    """Identifies the topic for ``undelete_topic``."""
    grace_ms: int
    """Time in which it can be undeleted; 0 = it is gone for good."""


@short_repr()
@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """Deleted records of one partition: ``[from_offset, log_start_offset)``. A dry run deletes
    none."""

    partition: int
    from_offset: int
    log_start_offset: int
    segments: tuple[Segment, ...]
    """Segments whose files are deleted: sealed ones wholly below the new log start."""


@short_repr()
@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Leader and replicas of a partition at the moment."""

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
    """Node that is down and leads the partition again once it is up; 0 while there is a leader."""


@short_repr()
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
    limits: BatchLimits = field(default_factory=BatchLimits)
    """Limits on records and batches of its next segment."""


@dataclass(frozen=True, slots=True)
class OffsetResult:
    """An offset that was looked up; the time is -1 when no record is there."""

    offset: int
    append_timestamp_ms: int
    topic_id: bytes = b""
    """Id of the topic that it is an offset of."""


@dataclass(frozen=True, slots=True)
class SavedPosition:
    """The position of a reader with a name in one partition."""

    name: str
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    """Offset of the next record to read."""
    version: int
    """Grows with each save."""
    instance: int
    """Random number that identifies the reader that saved it."""
    saved_at_ms: int
    """When it was saved, by the coordinator's wall clock."""


@dataclass(frozen=True, slots=True)
class ProducerNameInfo:
    """A name that producers have taken."""

    name: str
    producer_id: int
    producer_epoch: int
    """How often it was taken over or renewed since it was new."""
    taken_at_ms: int
    """When it was taken or renewed last, by the coordinator's wall clock; 0 = that is not known."""


@dataclass(frozen=True, slots=True)
class PositionChange:
    """Change of the saved position of one partition."""

    before: int | None
    """None = nothing was saved."""
    to: int


@short_repr()
@dataclass(frozen=True, slots=True)
class RollResult:
    """Outcome of rolling a topic: how many segments were sealed, and why others were not."""

    rolled: int
    errors: tuple[Exception, ...] = ()


class SearchOutcome(StrEnum):
    """Result of a look-up in one segment."""

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
    """Work of one page of a look-up in one segment; when explained, an estimate of it."""

    partition: int
    segment_id: int
    base_offset: int
    end_offset: int
    """End of the visible records; -1 = unknown."""
    outcome: SearchOutcome
    node_id: int = 0
    """Node that searched it; 0 = no node did."""
    index: str = "none"
    """``sealed``, ``active`` or ``none``."""
    index_runs: int = 0
    """Sorted runs that a look-up touches."""
    index_bytes: int = 0
    """Bytes read from the index."""
    data_bytes: int = 0
    """Bytes read from the segment."""
    candidates: int = 0
    """Records that the index named."""
    records: int = 0
    """Records of the page that came from this segment."""
    error: str = ""
    """Why it is unavailable."""
    is_remote: bool = False
    """It was read in object storage."""
    remote_requests: int = 0
    """Requests to object storage; data in a node's cache cost none."""
    remote_bytes: int = 0
    """Bytes that these requests read."""


@short_repr()
@dataclass(frozen=True, slots=True)
class LookupPage:
    """One page of a look-up."""

    records: tuple[Record, ...]
    complete: bool
    """All segments that this page has looked at could be searched. Otherwise records of unavailable
    segments may be missing."""
    indexed_through: dict[int, int]
    """End offsets by partition. Each matching record from ``from_offset`` up to this end is in this
    page, an earlier one or a later one. Later records are not covered. With ``newest_first``, the
    first page covers the whole answer."""
    segments: tuple[SegmentOutcome, ...]
    """Segments that this page has looked at, by partition and offset."""
    continuation: bytes
    """Pass it to get the next page; empty = this page is the last one."""
    planned_age_ms: int
    """Age of the metadata behind this page: the topic's id, and leaders and replicas of its
    segments. A coordinator knew nothing newer that long ago. It is a second or two while a
    coordinator answers. Otherwise it is the time since the nodes last heard of one. ``complete``
    holds for that moment, and for all records that the leaders known then have appended since."""

    def with_outcome(self, *outcomes: SearchOutcome) -> tuple[SegmentOutcome, ...]:
        """The segments of which one of these became."""
        return tuple(each for each in self.segments if each.outcome in outcomes)

    @property
    def unavailable(self) -> tuple[SegmentOutcome, ...]:
        """Segments whose records may be missing here."""
        return self.with_outcome(SearchOutcome.UNAVAILABLE)


MERGED_BYTES = 128 << 20
"""Default maximum size of a merged segment. Readers of tables work best with files of this size."""


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
    """Rows of its Parquet object; fewer than offsets when some records are not in it."""


@short_repr()
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTiering:
    """State of a topic in object storage: published, waiting and failing segments."""

    name: str
    topic_id: bytes
    is_on: bool
    waiting_segments: int
    """Sealed segments that are not in object storage yet."""
    uploading_segments: int
    published_segments: int
    remote_only_segments: int
    """Published segments that no node has any more."""
    unswept_attempts: int
    """Failed uploads and retired copies whose objects still have to be deleted."""
    local_bytes: int
    """Size of the sealed segments on nodes, one copy each."""
    remote_bytes: int
    """Size of the published objects."""
    lag_ms: int
    """Time since the oldest due segment became due."""
    stale_tables: int
    """Partitions whose table lacks the latest published or retired segments."""
    last_error: str
    """Empty once the same goes well."""
    last_error_ms: int
    table: str = ""
    """URL of the folder that holds its table, and its objects; empty while there is none."""
    copies: tuple[PublishedCopy, ...] = ()


@short_repr()
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTiering:
    """Object storage of a cluster."""

    cluster_id: bytes
    topics: tuple[TopicTiering, ...]
    tier_urls: tuple[str, ...]
    """Object stores of the registered nodes, each once."""
    gone_topics: int
    """Deleted topics whose objects still have to be deleted."""
    tier_url: str = ""
    """Object store that the cluster uses; empty = none yet."""
    store_id: bytes = b""
    """Identity of that object store, 16 bytes, as its marker says; empty = none yet."""
