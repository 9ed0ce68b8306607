"""The records of what lies in object storage: one for each segment, one for each topic.

Pure. A segment's record outlives the segment: it goes when nothing of it is left in the store. What
an upload may leave there is known by its attempt, a number that no other upload ever gets. An
attempt that is closed is one whose objects nobody will ever look at.
"""

import re
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import ClassVar, Final, NamedTuple
from uuid import UUID

from icecore.model import NO_INCARNATION, NO_NODE, Generation, Incarnation, NodeId, SegmentId

NO_ATTEMPT: Final = 0


class TierState(IntEnum):
    """State of a segment's copy in object storage."""

    UPLOADING = 1
    """No copy is published; an attempt may be under way."""
    PUBLISHED = 2
    DELETING = 3
    """The segment is gone; the copy goes once the table does not name it and readers are done."""


@dataclass(frozen=True, slots=True)
class TierCopy:
    """A copy that an upload has stored, read back and proved; its manifest says the rest."""

    manifest_sha256: bytes = b""
    content_digest: bytes = b""
    length_bytes: int = 0
    """Size of all its objects."""
    records: int = 0
    """Rows of its Parquet object."""
    tier_format: str = ""


@dataclass(frozen=True, slots=True)
class ClosedAttempt:
    """An upload that does not count (any more); its objects may go at any time."""

    attempt: int
    closed_ms: int
    """When it was closed, in counted time. Whoever carried it out may be paused, and put objects
    under its keys much later."""
    is_swept: bool = False
    """Once; it is again, when nobody can be at it any more."""


@dataclass(frozen=True, slots=True)
class TierRecord:
    """The copy of one segment in object storage."""

    prefix: ClassVar[str] = "tier/"
    segment_id: SegmentId
    topic_id: bytes
    partition: int
    generation: Generation
    base_offset: int
    end_offset: int
    state: TierState
    tier_format: str
    attempt: int = NO_ATTEMPT
    """UPLOADING: the one under way. PUBLISHED and DELETING: the one that counts, until its objects
    may go."""
    owner: NodeId = NO_NODE
    """UPLOADING: who was asked. PUBLISHED: who uploaded it; ``NO_NODE`` = an imported copy."""
    owner_incarnation: Incarnation = NO_INCARNATION
    """UPLOADING: as which process."""
    copy: TierCopy = TierCopy()
    closed_attempts: tuple[ClosedAttempt, ...] = ()
    since_ms: int = 0
    """In this state, in counted time. DELETING: since the table does not name it, once it is so."""
    revision: int = 0
    """The first one of its partition that names it, or with DELETING that does not; 0 = not
    known."""
    sources: tuple[SegmentId, ...] = ()
    """UPLOADING: the segments whose records it is to carry, in their order, if it is a merger; no
    segment has its own id yet."""
    withdrawn: int = NO_ATTEMPT
    """The last attempt that was published and whose objects were missing then. Tables may name it
    until another one is published."""
    version: int = 0

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.segment_id:020d}"

    @property
    def partition_key(self) -> tuple[bytes, int]:
        return (self.topic_id, self.partition)

    @property
    def is_under_way(self) -> bool:
        """Return whether some node was asked to upload it, and has not failed yet."""
        return self.state is TierState.UPLOADING and self.attempt != NO_ATTEMPT

    @property
    def is_retiring(self) -> bool:
        """Return whether its copy counts no more and may not be swept yet."""
        return self.state is TierState.DELETING and self.attempt != NO_ATTEMPT


@dataclass(frozen=True, slots=True)
class TierTopicRecord:
    """A topic of which something may lie in object storage; it outlives the topic."""

    prefix: ClassVar[str] = "tier_topic/"
    topic_id: bytes
    is_swept: bool = False
    """The topic is gone, and its prefix was emptied once."""
    gone_version: int = 0
    """The topic is deleted for good, and settings of this version are to say so in object storage;
    0 = they say it, or need not."""
    version: int = 0

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.topic_id.hex()}"


def closed(tier: TierRecord, counted_ms: int) -> TierRecord:
    """The next version: its attempt does not count any more."""
    return replace(
        tier,
        attempt=NO_ATTEMPT,
        owner=NO_NODE,
        owner_incarnation=NO_INCARNATION,
        closed_attempts=(*tier.closed_attempts, ClosedAttempt(tier.attempt, counted_ms)),
        version=tier.version + 1,
    )


def retired(tier: TierRecord, counted_ms: int, revision: int) -> TierRecord:
    """The next version, as its segment goes: an attempt that is under way is closed, a copy counts
    no more from this revision of the partition on."""
    gone = closed(tier, counted_ms) if tier.is_under_way else tier
    return replace(
        gone,
        state=TierState.DELETING,
        since_ms=counted_ms,
        revision=revision,
        version=tier.version + 1,
    )


def withdrawn(tier: TierRecord, counted_ms: int) -> TierRecord:
    """The next version: its published copy is missing, and another one is to be made."""
    return replace(
        closed(tier, counted_ms),
        state=TierState.UPLOADING,
        copy=TierCopy(),
        withdrawn=tier.attempt,
        since_ms=counted_ms,
        revision=0,
    )


# --- where copies lie ---------------------------------------------------------------------------

ROWS: Final = ".parquet"
"""End of the key of a copy's Parquet object."""
_COPY_PATH: Final = re.compile(rf"([0-9]+)/([0-9]+)-([0-9]+)-([0-9]+)-([0-9]+){re.escape(ROWS)}")


def topic_folder(topic_id: bytes) -> str:
    """Return the folder of all objects of a topic."""
    return str(UUID(bytes=topic_id))


def copy_name(base_offset: int, segment_id: int, generation: int, attempt: int) -> str:
    """Return the common part of the keys of all objects of a copy."""
    return f"{base_offset:020d}-{segment_id:020d}-{generation}-{attempt}"


class CopyPath(NamedTuple):
    """The numbers in the path of a copy's Parquet object."""

    partition: int
    base_offset: int
    segment_id: SegmentId
    generation: int
    attempt: int


def copy_path(path: str) -> CopyPath | None:
    """Read the path of a Parquet object; None when no node has named it.

    Args:
        path: Below the folder of the topic, as tables name it.
    """
    match = _COPY_PATH.fullmatch(path)
    if match is None:
        return None
    partition, base_offset, segment_id, generation, attempt = map(int, match.groups())
    return CopyPath(partition, base_offset, SegmentId(segment_id), generation, attempt)


def rows_key(
    topic_id: bytes,
    partition: int,
    base_offset: int,
    segment_id: int,
    generation: int,
    attempt: int,
) -> str:
    """Return the key of a copy's Parquet object, below the prefix of the cluster."""
    name = copy_name(base_offset, segment_id, generation, attempt)
    return f"{topic_folder(topic_id)}/{partition}/{name}{ROWS}"
