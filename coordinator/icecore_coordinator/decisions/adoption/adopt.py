"""Metadata that are an older copy, or empty, go on by the word of the nodes. Pure.

All of it is one change, which replaces what is stored. Numbers go so far above everything that
metadata and nodes know that nobody can have been given them: ids, epochs, versions, attempts,
revisions. Records of before stay. What nodes hold and metadata do not know comes back where it is
proved (``partition_chain``), and everything else is told to a person. No order to delete follows.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from icecore.errors import ConflictError
from icecore.model import (
    NO_INCARNATION,
    NO_NODE,
    CoordinatorEpoch,
    Incarnation,
    NodeId,
    ProducerEpoch,
    SegmentId,
)
from icecore.tier_records import NO_ATTEMPT, TierRecord
from icecore.topic_settings import SegmentSettings
from icecore_coordinator.decisions.adoption.adopted_topics import adopted_topics
from icecore_coordinator.decisions.adoption.partition_chain import Adopted, partition_chain
from icecore_coordinator.decisions.adoption.published import (
    ToldTopicCopies,
    by_partition,
    check_copies,
    coming_back,
    copy_records,
    topic_records,
)
from icecore_coordinator.decisions.adoption.told import (
    Evidence,
    Finding,
    ToldBucket,
    ToldNode,
    by_segment,
)
from icecore_coordinator.decisions.node_changes import INCARNATIONS
from icecore_coordinator.decisions.position_changes import VERSIONS
from icecore_coordinator.decisions.producer_changes import NAMED_IDS
from icecore_coordinator.decisions.remote.tier_import import raise_counters
from icecore_coordinator.decisions.remote.tiering import COUNTER, SEGMENT_IDS
from icecore_coordinator.decisions.segment_changes import IDS_PASSED_OVER_UNTIL
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.records import (
    NUMBER_JUMP_MAX,
    ClusterRecord,
    CounterRecord,
    NodeRecord,
    PartitionKey,
    PartitionRecord,
    ProducerRecord,
    Record,
    ReportedStateRecord,
    SegmentRecord,
    TopicRecord,
    updated,
)

NUMBER_LEAP: Final = 1 << 32
"""Ids, attempts and revisions go on so far above the highest that anybody told. Nobody can have
been given one of these: a cluster makes fewer in its life."""
COORDINATOR_EPOCH_LEAP: Final = 1 << 16
"""Nodes take a coordinator epoch that is at most 2^20 above the highest one they know (R65)."""
INCARNATION_LEAP: Final = 1 << 10
PRODUCER_EPOCH_LEAP: Final = 1 << 9
"""Nodes take a producer's epoch that is at most 2^10 above the highest one they know (R65)."""
COUNTERS: Final = 256
"""Slot of the disk counters among the reported states."""
_COUNTED: Final = (SEGMENT_IDS, COUNTER, "producer_id", NAMED_IDS, VERSIONS)


@dataclass(frozen=True, slots=True)
class AdoptionWish:
    """The wishes of a person for how metadata go on."""

    without_nodes: frozenset[NodeId] = frozenset()
    """These are gone for good: go on without their word."""
    may_skip: bool = False
    """Offsets that no node has count as lost."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """Everything that is stored in one change, and what a person has to know of it."""

    cluster_id: bytes
    puts: tuple[Record, ...]
    """With versions of their own: some are far above those that are stored."""
    deletes: tuple[Record, ...]
    coordinator_epoch: int
    """At least this one is stored: nodes refuse a lower one."""
    revision: int
    findings: tuple[Finding, ...]
    segments_found: int
    topics_found: int

    @property
    def has_gaps(self) -> bool:
        """Return whether a person has to allow that offsets are skipped."""
        return any(each.is_gap for each in self.findings)


def is_blank(state: ClusterState) -> bool:
    """Return whether no node ever came to these metadata: a store that was empty a moment ago."""
    return not state.nodes and not state.topics


def missing_nodes(
    state: ClusterState, nodes: Sequence[ToldNode], wish: AdoptionWish
) -> list[NodeId]:
    """Nodes that metadata or other nodes know, and that have not told all that they hold."""
    known = {each.node_id for each in state.nodes.values() if each.incarnation}
    known.update(peer for each in nodes for peer in each.peers)
    return sorted(known - {each.node_id for each in nodes} - wish.without_nodes)


def adopt(
    state: ClusterState,
    nodes: Sequence[ToldNode],
    wish: AdoptionWish,
    bucket: Sequence[ToldTopicCopies] | None = None,
) -> Adoption:
    """Return how these metadata go on.

    Args:
        state: What is stored: an older copy, or next to nothing.
        nodes: Those that have told all that they hold.
        wish: The word of a person.
        bucket: Topics as object storage has them; None = nobody has read it.

    Raises:
        ConflictError: Nodes are of several clusters, or contradict each other or the metadata.
        InvalidRequestError: No bucket has that.
    """
    is_read, bucket = bucket is not None, bucket or ()
    check_copies(bucket)
    cluster_id = _cluster_id(state, nodes)
    told = {
        segment_id: each
        for segment_id, each in by_segment(nodes).items()
        if segment_id not in state.deleted and segment_id <= IDS_PASSED_OVER_UNTIL
    }
    leap = _leap(state, nodes)
    held = {each.copies[0].topic_id for each in told.values()}
    in_bucket, findings = coming_back(state, held, bucket)
    topics, renamed = adopted_topics(state, nodes, told, in_bucket, leap)
    counters = _counters(state, nodes, told, leap, bucket)
    adopted = Adopted(
        topic="",
        settings=SegmentSettings(),
        is_known=False,
        nodes=frozenset(state.nodes) | {each.node_id for each in nodes},
        is_complete=not wish.without_nodes,
        next_id=counters[SEGMENT_IDS].next_value,
        counted_ms=next_of(state, "counted_ms").next_value,
        findings=[*findings, *renamed],
    )
    puts, deletes = _partitions_put_together(state, adopted, topics, told, in_bucket, leap)
    counters[SEGMENT_IDS] = replace(counters[SEGMENT_IDS], next_value=adopted.next_id)
    changed = {each.segment_id for each in puts if isinstance(each, TierRecord)}
    gone = {each.segment.segment_id for each in deletes if isinstance(each, SegmentRecord)}
    tiers, merging = _tiers(state, changed, gone)
    adopted.findings += unread_buckets(state, nodes)
    if not is_read and (state.tiers.segments or any(each.node.tier_url for each in nodes)):
        adopted.findings.append(_not_looked_at(state, nodes))
    revisions = [each.metadata_revision for each in nodes]
    return Adoption(
        cluster_id=cluster_id,
        puts=(
            *_cluster(state, cluster_id),
            *counters.values(),
            *_nodes(state, nodes, SegmentId(adopted.next_id)),
            *_disk_counters(state, nodes),
            *(each for each in topics if each != state.topics.get(each.topic_id)),
            *map(_leapt_producer, state.producers.values()),
            *puts,
            *tiers,
            *topic_records(state, in_bucket.values()),
        ),
        deletes=(*deletes, *merging),
        coordinator_epoch=_coordinator_epoch(state, nodes),
        revision=max(state.metadata_revision, *revisions) + NUMBER_LEAP,
        findings=tuple(adopted.findings),
        segments_found=adopted.found,
        topics_found=sum(each.topic_id not in state.topics for each in topics),
    )


def _not_looked_at(state: ClusterState, nodes: Iterable[ToldNode]) -> Finding:
    urls = {each.node.tier_url for each in nodes} - {""}
    url = state.tiers.url or min(urls, default="URL")
    return Finding(
        "records may be in object storage, which was not looked at but for its numbers. What was"
        " uploaded since the copy is uploaded again from nodes, and what nodes dropped since does"
        f" not come back. Have it looked at: icecore cluster adopt --bucket {url}"
    )


def _cluster_id(state: ClusterState, nodes: Sequence[ToldNode]) -> bytes:
    told = {each.cluster_id for each in nodes} - {b""}
    if not told:
        raise ConflictError(
            "no node of a cluster has told what it holds: start the nodes, with this coordinator "
            "as theirs, and repeat the command"
        )
    if len(told) > 1:
        names = ", ".join(sorted(each.hex() for each in told))
        raise ConflictError(
            f"nodes of several clusters call this coordinator: {names}. Stop those that do not "
            "belong to it, start the coordinator again, and repeat the command"
        )
    [cluster_id] = told
    if cluster_id != state.cluster_id and not is_blank(state):
        raise ConflictError(
            f"these nodes belong to cluster {cluster_id.hex()}, and the metadata store to "
            f"{state.cluster_id.hex()}: no store of another cluster can be continued by them"
        )
    return cluster_id


def _cluster(state: ClusterState, cluster_id: bytes) -> Iterable[ClusterRecord]:
    known = state.cluster
    if known is None:
        return (ClusterRecord(cluster_id, version=1),)
    return (updated(known, cluster_id=cluster_id),) if known.cluster_id != cluster_id else ()


# --- numbers --------------------------------------------------------------------------------------


def _leap(state: ClusterState, nodes: Iterable[ToldNode]) -> int:
    """Return how far numbers leap that nodes do not tell.

    Each adoption let the revision leap. So the revision that nodes heard says how many there were
    since this copy: their numbers are passed over, too, or an old copy that is adopted a second
    time would give them out again.
    """
    heard = max((each.metadata_revision for each in nodes), default=0)
    return NUMBER_LEAP * (1 + max(0, heard - state.metadata_revision) // NUMBER_LEAP)


def bucket_counters(
    state: ClusterState, nodes: Iterable[ToldNode], bucket: Iterable[ToldTopicCopies]
) -> dict[str, int]:
    """Return counters that must be raised, by name, for what object stores alone have seen.

    Raises InvalidRequestError: a number leaves no room for others.
    """
    told: list[ToldBucket | ToldTopicCopies] = [each.bucket for each in nodes if each.bucket]
    told += bucket
    segment_ids_max = max((each.segment_ids_max for each in told), default=0)
    attempts_max = max((each.attempts_max for each in told), default=0)
    raised = raise_counters(state, segment_ids_max, attempts_max)
    return {each.name: each.next_value for each in raised.puts if isinstance(each, CounterRecord)}


def unread_buckets(state: ClusterState, nodes: Iterable[ToldNode]) -> list[Finding]:
    """Return the object stores that no node could read: they alone may have seen some numbers."""
    told = [(each.node.tier_url, each.bucket) for each in nodes if each.bucket is not None]
    read = {url for url, bucket in told if not bucket.problem}
    problems = {url: bucket.problem for url, bucket in told if url not in read}
    if state.tiers.segments and not told:
        problems["of these metadata"] = "no node has one in its settings"
    return [
        Finding(
            f"the object store {url} was not read ({problem}), and numbers that only it has seen "
            "may be given out again. Let its nodes reach it, and restart one of them",
            is_gap=True,
        )
        for url, problem in sorted(problems.items())
    ]


def _coordinator_epoch(state: ClusterState, nodes: Sequence[ToldNode]) -> CoordinatorEpoch:
    """Return one above all that nodes heard.

    Raises ConflictError: no other node would take it.
    """
    highest = max(nodes, key=lambda each: each.coordinator_epoch)
    others = [each.coordinator_epoch for each in nodes if each is not highest]
    leapt = highest.coordinator_epoch + COORDINATOR_EPOCH_LEAP
    if others and leapt > max(state.coordinator_epoch, *others) + NUMBER_JUMP_MAX:
        raise ConflictError(
            f"node {highest.node_id} tells of coordinator epoch {highest.coordinator_epoch}, all "
            f"others of at most {max(others)}: they would not obey. Look at that node, or leave it "
            f"out: --without-node {highest.node_id}"
        )
    return CoordinatorEpoch(max(state.coordinator_epoch + COORDINATOR_EPOCH_LEAP, leapt))


def _counters(
    state: ClusterState,
    nodes: Sequence[ToldNode],
    told: dict[SegmentId, Evidence],
    leap: int,
    bucket: Sequence[ToldTopicCopies],
) -> dict[str, CounterRecord]:
    """All counters of what is given out once, far above what was."""
    found = {}
    counted = bucket_counters(state, nodes, bucket)
    for name in _COUNTED:
        known = next_of(state, name)
        highest = max(told, default=0) if name == SEGMENT_IDS else 0
        next_value = max(known.next_value, counted.get(name, 0), highest + 1) + leap
        found[name] = updated(known, next_value=next_value)
    known = next_of(state, INCARNATIONS)
    given = max([known.next_value, *(each.node.incarnation + 1 for each in nodes)])
    found[INCARNATIONS] = updated(known, next_value=given + INCARNATION_LEAP)
    return found


def _nodes(state: ClusterState, nodes: Sequence[ToldNode], since: SegmentId) -> list[NodeRecord]:
    """Each node as it is now; the process that told it goes on as it is."""
    found = []
    for each in nodes:
        known = state.nodes.get(each.node_id)
        highest = max(known.issued_incarnation, known.incarnation) if known else 0
        # A disk that the metadata do not know may have come a moment ago.
        is_known = known is not None and known.disk_id == each.node.disk_id
        found.append(
            replace(
                each.node,
                issued_incarnation=Incarnation(
                    max(highest, each.node.incarnation) + INCARNATION_LEAP
                ),
                disk_since_segment_id=known.disk_since_segment_id if known and is_known else since,
                version=(known.version if known else 0) + 1,
            )
        )
    told = {each.node_id for each in nodes}
    for silent in state.nodes.values():
        if silent.node_id not in told:
            issued = max(silent.issued_incarnation, silent.incarnation)
            leapt = Incarnation(issued + INCARNATION_LEAP)
            found.append(updated(silent, issued_incarnation=leapt))
    return found


def _disk_counters(state: ClusterState, nodes: Sequence[ToldNode]) -> list[ReportedStateRecord]:
    known = state.heard.get(COUNTERS, ReportedStateRecord(COUNTERS))
    counters = dict(known.disk_counters)
    for each in nodes:
        heard = counters.get(each.node_id, 0)
        counters[each.node_id] = max(heard, each.disk_counter)
    return [updated(known, disk_counters=tuple(sorted(counters.items())))]


def _leapt_producer(known: ProducerRecord) -> ProducerRecord:
    """Whoever took the name since is fenced by the next one who takes it."""
    return updated(known, producer_epoch=ProducerEpoch(known.producer_epoch + PRODUCER_EPOCH_LEAP))


def _tiers(
    state: ClusterState, changed: Collection[SegmentId], gone: Collection[SegmentId]
) -> tuple[list[TierRecord], list[TierRecord]]:
    """Uploads that were under way: records that forget the attempt, and mergers, which go. Records
    of segments that are part of no log any more go, too.

    Since the copy the attempt may have been published, and be all that is left of the segment. So
    it is forgotten and not closed: nobody sweeps it.
    """
    left = [each for each in state.tiers.segments.values() if each.segment_id not in changed]
    void = [each for each in left if each.segment_id in gone]
    under_way = [each for each in left if each.is_under_way and each.segment_id not in gone]
    forgotten = [
        replace(
            each,
            attempt=NO_ATTEMPT,
            owner=NO_NODE,
            owner_incarnation=NO_INCARNATION,
            version=each.version + 1,
        )
        for each in under_way
        if not each.sources
    ]
    return forgotten, [*void, *(each for each in under_way if each.sources)]


# --- partitions -----------------------------------------------------------------------------------


def _partitions_put_together(
    state: ClusterState,
    adopted: Adopted,
    topics: Iterable[TopicRecord],
    told: Mapping[SegmentId, Evidence],
    in_bucket: Mapping[bytes, ToldTopicCopies],
    leap: int,
) -> tuple[list[Record], list[Record]]:
    """Return records of all partitions, their segments and copies, and those that go."""
    puts: list[Record] = []
    deletes: list[Record] = []
    copies = by_partition(state, in_bucket.values())
    told_of: dict[PartitionKey, list[Evidence]] = {}
    for each in told.values():
        told_of.setdefault(each.copies[0].key, []).append(each)
    for topic in topics:
        there = in_bucket.get(topic.topic_id)
        adopted.topic, adopted.settings = topic.name, topic.settings
        adopted.is_known = topic.topic_id in state.topics or there is not None
        adopted.is_in_bucket = there is not None
        for partition, known, evidence in _partitions(state, topic, told_of, leap, there):
            published = copies.get(partition.partition_key, {})
            adopted.bucket_start_offset = _log_start(there, partition.partition)
            made = partition_chain(adopted, partition, known, evidence, published)
            puts += [made.partition, *made.segments, *copy_records(state, made.segments, published)]
            deletes += made.void
    return puts, deletes


def _log_start(there: ToldTopicCopies | None, partition: int) -> int:
    starts = there.topic.log_starts if there is not None else ()
    return starts[partition] if partition < len(starts) else 0


def _partitions(
    state: ClusterState,
    topic: TopicRecord,
    told: Mapping[PartitionKey, list[Evidence]],
    leap: int,
    there: ToldTopicCopies | None,
) -> Iterable[tuple[PartitionRecord, list[SegmentRecord], list[Evidence]]]:
    """Each partition of a topic with all that is known of its segments."""
    for number in range(topic.partitions):
        key = (topic.topic_id, number)
        partition = state.partitions.get(key)
        if partition is None and (topic.is_deleting or topic.is_import):
            continue  # it has none any more, or gets it with the last step of its import
        known = [state.segments[each] for each in state.segments_of_partition.get(key, {})]
        if partition is None:
            partition = PartitionRecord(*key, tier_revision=leap, table_revision=leap)
        elif partition.tier_revision:  # a table takes no lower one than it has
            partition = replace(partition, tier_revision=partition.tier_revision + leap)
        if there is not None:
            revisions = there.table_revisions
            last = revisions[number] if number < len(revisions) else 0
            revision = max(partition.tier_revision, partition.table_revision, last + leap)
            partition = replace(partition, tier_revision=revision + 1, table_revision=revision)
        yield partition, known, told.get(key, [])
