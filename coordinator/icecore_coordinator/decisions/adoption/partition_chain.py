"""One log of a partition, of what old metadata know and what nodes have told. Pure.

Sealed segments must tile the offsets, and one that is not sealed comes last: the tail. It becomes
RECOVERING, so its end is decided by the usual rules (R30 to R33), from fenced logs. An unsealed
segment with another one behind it ended where that one begins, for nothing opens before. What does
not fit is told to a person and stays on the nodes: nothing is deleted by absence.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from icecore.errors import ConflictError
from icecore.model import (
    NO_INCARNATION,
    NO_NODE,
    NO_SEGMENT,
    OFFSETS_LEFT_OUT,
    Epoch,
    NodeId,
    Segment,
    SegmentId,
    SegmentState,
)
from icecore.topic_settings import SegmentSettings
from icecore_coordinator.decisions.adoption.chain_records import (
    holders_of,
    leapt,
    sealed_by_copy,
    whole_copies,
)
from icecore_coordinator.decisions.adoption.published import (
    Copies,
    contradiction,
    replaced_by_copies,
)
from icecore_coordinator.decisions.adoption.told import Evidence, Finding, ToldReplica, names_of
from icecore_coordinator.decisions.remote.imported import ImportedSegment
from icecore_coordinator.state.cluster_state import without_repeats
from icecore_coordinator.state.left_out import skipped_segment
from icecore_coordinator.state.records import PartitionRecord, SegmentRecord, updated

EPOCH_LEAP: Final = 1 << 16
"""Epochs that nobody has told of lie below this. A promise may be 2^21 above (R65)."""


@dataclass(slots=True)
class Adopted:
    """Values that all partitions share while they are put together."""

    topic: str
    settings: SegmentSettings
    is_known: bool
    """The metadata have the topic: its settings are no guess."""
    nodes: frozenset[NodeId]
    """All that metadata know from now on."""
    is_complete: bool
    """Every node that there is has told all."""
    next_id: int
    """The next segment id that nobody has."""
    counted_ms: int
    is_in_bucket: bool = False
    """Object storage was read, and has the topic."""
    bucket_start_offset: int = 0
    """The log of this partition starts there at least, as object storage says."""
    findings: list[Finding] = field(default_factory=list)
    found: int = 0
    """Segments that the metadata did not know, or not as sealed."""

    @property
    def nobody_has(self) -> str:
        return "neither a node nor object storage has" if self.is_in_bucket else "no node has"

    def note(self, why: str, partition: int, segment_id: int = 0, *, is_gap: bool = False) -> None:
        """A person must know."""
        self.findings.append(
            Finding(why, self.topic, partition, SegmentId(segment_id), is_gap=is_gap)
        )


@dataclass(slots=True)
class PartitionChain:
    """The log of a partition, as it goes on."""

    partition: PartitionRecord
    segments: list[SegmentRecord]
    void: list[SegmentRecord]
    """Old records that are part of no log: they were only prepared, or empty."""


def partition_chain(
    adopted: Adopted,
    partition: PartitionRecord,
    known: Iterable[SegmentRecord],
    told: Iterable[Evidence],
    published: Copies | None = None,
) -> PartitionChain:
    """Put the log of a partition together.

    Args:
        adopted: What all partitions share; findings and new ids go in.
        partition: As old metadata have it, or new.
        known: Its segments in old metadata.
        told: Its segments on nodes.
        published: Its segments in object storage.

    Raises:
        ConflictError: Nodes contradict each other, or the metadata.
    """
    records = {each.segment.segment_id: each for each in known}
    evidence = {each.segment_id: each for each in told}
    log = _Log(adopted, partition, records, evidence, published or {})
    return log.chain()


class _Log:
    """Puts one partition together."""

    def __init__(
        self,
        adopted: Adopted,
        partition: PartitionRecord,
        records: dict[SegmentId, SegmentRecord],
        evidence: dict[SegmentId, Evidence],
        published: Copies,
    ) -> None:
        self._adopted = adopted
        self._partition = partition
        self._number = partition.partition
        self._records = records
        self._evidence = evidence
        self._published = self._agreed(published)
        starts = [
            copy.record.log_start_offset
            for each in evidence.values()
            for copy in each.copies
            if copy.record is not None
        ]
        self._start = max(partition.log_start_offset, adopted.bucket_start_offset, *starts, 0)

    def _agreed(self, published: Copies) -> dict[SegmentId, ImportedSegment]:
        """The copies in object storage that nobody contradicts."""
        found = {}
        for segment_id, each in published.items():
            record, told = self._records.get(segment_id), self._evidence.get(segment_id)
            if why := contradiction(each, record, told):
                self._adopted.note(why, self._number, segment_id)
            else:
                found[segment_id] = each
        return found

    def chain(self) -> PartitionChain:
        for told in self._evidence.values():
            if why := told.contradiction():
                raise _contradiction(self._adopted.topic, self._number, told.segment_id, why)
        replaced = replaced_by_copies(self._published, self._records, self._evidence)
        for segment_id, why in replaced.items():
            if why:
                self._adopted.note(why, self._number, segment_id)
        ids = sorted({*self._records, *self._evidence, *self._published} - {*replaced})
        sealed = {each: found for each in ids if (found := self._sealed_by_fact(each)) is not None}
        opened = [each for each in ids if each not in sealed and self._was_opened(each)]
        bases = {each: found.segment.base_offset for each, found in sealed.items()}
        bases |= {each: self._base(each) for each in opened}
        tails: list[SegmentId] = []
        for each in opened:
            behind = [base for base in bases.values() if base > bases[each]]
            if not behind:
                tails.append(each)
            elif (found := self._sealed_by_successor(each, min(behind))) is not None:
                sealed[each] = found
        tiled, end_offset = self._tiled(list(sealed.values()))
        tail = self._tail(tails, end_offset)
        if tail is not None:
            tiled, end_offset = self._reach(tiled, end_offset, tail)
        void = [each for each in self._records.values() if _is_void(each, sealed, tail)]
        return self._finished(tiled, tail, end_offset, void)

    # --- what is known of one segment -----------------------------------------------------------

    def _base(self, segment_id: SegmentId) -> int:
        record, told = self._records.get(segment_id), self._evidence.get(segment_id)
        known = record.segment.base_offset if record is not None else -1
        return max(known, told.base_offset if told is not None else -1)

    def _was_opened(self, segment_id: SegmentId) -> bool:
        record, told = self._records.get(segment_id), self._evidence.get(segment_id)
        is_known = record is not None and record.segment.state != SegmentState.PREPARED
        return self._base(segment_id) >= 0 and (is_known or (told is not None and told.was_opened))

    def _sealed_by_fact(self, segment_id: SegmentId) -> SegmentRecord | None:
        """The record of a segment that metadata, a node or object storage knows as sealed."""
        record, told = self._records.get(segment_id), self._evidence.get(segment_id)
        if (there := self._published.get(segment_id)) is not None:
            return self._sealed_there(there, record, told)
        heard = told.record if told is not None else None
        if record is not None and record.segment.state == SegmentState.SEALED:
            return self._still_sealed(record, told)
        if told is not None and told.sealed:
            copy = told.sealed[0]
            return self._newly_sealed(told, copy.durable_end_offset, copy.digest)
        if told is not None and heard is not None and heard.state == SegmentState.SEALED:
            return self._newly_sealed(told, heard.end_offset, heard.seal_digest)
        return None

    def _sealed_there(
        self, copy: ImportedSegment, record: SegmentRecord | None, told: Evidence | None
    ) -> SegmentRecord:
        """One that is in object storage, with the copies that nodes have."""
        self._adopted.found += record is None or record.segment.state != SegmentState.SEALED
        named = replace(copy, segment=replace(copy.segment, topic=self._adopted.topic))
        settings, counted_ms = self._adopted.settings, self._adopted.counted_ms
        return sealed_by_copy(named, record, told, settings, counted_ms)

    def _still_sealed(self, record: SegmentRecord, told: Evidence | None) -> SegmentRecord:
        """One that old metadata have as sealed, with the copies that there are now."""
        segment, copies = record.segment, told.copies if told is not None else []
        ended = (segment.end_offset, segment.seal_digest)
        others = [each for each in copies if each.is_sealed and each.is_intact]
        if segment.seal_digest and any(
            (each.durable_end_offset, each.digest) != ended for each in others
        ):
            why = f"the metadata store has another end or content than nodes {names_of(others)}"
            raise _contradiction(self._adopted.topic, self._number, segment.segment_id, why)
        whole = whole_copies(copies, *ended)
        if segment.is_tiered and not whole and self._adopted.is_complete:
            # Nodes dropped their copies since, as they were ordered: it lies in object storage.
            return leapt(record, told, {"replicas": (), "surplus": ()}, holders=())
        is_missing = not (whole or segment.is_skipped or segment.is_remote_only)
        if is_missing and segment.end_offset > self._start:
            self._adopted.note(
                f"{self._adopted.nobody_has} offsets {segment.base_offset} to {segment.end_offset}",
                self._number,
                segment.segment_id,
            )
        return leapt(
            record,
            told,
            {"replicas": whole or segment.replicas, "surplus": ()},
            holders=holders_of(record, copies),
        )

    def _newly_sealed(self, told: Evidence, end_offset: int, digest: bytes) -> SegmentRecord:
        self._adopted.found += 1
        whole = whole_copies(told.copies, end_offset, digest)
        heard = told.record
        listed = tuple(heard.replicas) if heard is not None else ()
        listed = tuple(each for each in listed if each in self._adopted.nodes)
        ended = [each for each in told.copies if each.durable_end_offset == end_offset]
        fields = {
            "state": SegmentState.SEALED,
            "base_offset": told.base_offset,
            "end_offset": end_offset,
            "seal_digest": digest,
            "length_bytes": max((each.length_bytes for each in ended), default=0),
            "replicas": whole or listed,
            "isr": (),
            "lossy": heard.lossy if heard is not None else False,
            "surplus": (),
        }
        newest_ms = max((each.max_append_timestamp_ms for each in ended), default=0)
        before = self._records.get(told.segment_id) or self._unknown(told)
        return leapt(
            before,
            told,
            fields,
            holders=holders_of(before, told.copies),
            max_append_timestamp_ms=newest_ms,
            since_ms=self._adopted.counted_ms,
        )

    def _sealed_by_successor(self, segment_id: SegmentId, end_offset: int) -> SegmentRecord | None:
        """The record of a segment behind which another one was opened, though no node has heard of
        the seal: it ended there. None when no copy ends there."""
        told = self._evidence.get(segment_id)
        copies = told.copies if told is not None else []
        ended = [
            each for each in copies if each.is_intact and each.durable_end_offset == end_offset
        ]
        if told is None or len({each.digest for each in ended}) != 1:
            return None
        return self._newly_sealed(told, end_offset, ended[0].digest)

    def _unknown(self, told: Evidence) -> SegmentRecord:
        """A record of a segment that the metadata do not know."""
        heard, copy = told.record, told.copies[0]
        settings = heard.settings if heard is not None else self._adopted.settings
        segment = Segment(
            segment_id=told.segment_id,
            topic_id=copy.topic_id,
            topic=self._adopted.topic,
            partition=copy.partition,
            state=SegmentState.PREPARED,
            epoch=copy.epoch,
            settings=settings,
            generation=copy.generation,
        )
        return SegmentRecord(segment, since_ms=max(1, self._adopted.counted_ms))

    # --- the log --------------------------------------------------------------------------------

    def _tiled(self, sealed: list[SegmentRecord]) -> tuple[list[SegmentRecord], int]:
        """All sealed segments in the order of offsets, and where they end."""
        found: list[SegmentRecord] = []
        end_offset = -1
        for record in sorted(sealed, key=lambda each: each.segment.base_offset):
            segment = record.segment
            if 0 <= segment.base_offset < end_offset:
                why = f"offsets {segment.base_offset} to {end_offset} are in two sealed segments"
                raise _contradiction(self._adopted.topic, self._number, segment.segment_id, why)
            found, _ = self._reach(found, end_offset, record)
            found.append(record)
            end_offset = segment.end_offset
        return found, end_offset

    def _reach(
        self, before: list[SegmentRecord], end_offset: int, record: SegmentRecord
    ) -> tuple[list[SegmentRecord], int]:
        """The same segments, and one that readers skip where a gap is before ``record``."""
        base_offset, begin = record.segment.base_offset, max(end_offset, self._start)
        if base_offset <= begin:
            return before, base_offset
        is_there = record.segment.segment_id in self._published
        is_on_purpose = base_offset - begin >= OFFSETS_LEFT_OUT and self._adopted.is_in_bucket
        if is_there and not before and self._adopted.is_complete:  # retention came so far
            self._start = base_offset
            return before, base_offset
        if not is_on_purpose:
            self._adopted.note(
                f"{self._adopted.nobody_has} offsets {begin} to {base_offset}",
                self._number,
                is_gap=True,
            )
        if not before or end_offset < begin:
            self._start = base_offset  # nothing is left in front of it
            return before, base_offset
        span = (end_offset, base_offset)
        return [*before, self._skipped(before[-1], *span, is_lost=not is_on_purpose)], base_offset

    def _skipped(
        self, last: SegmentRecord, base_offset: int, end_offset: int, *, is_lost: bool
    ) -> SegmentRecord:
        segment_id = SegmentId(self._adopted.next_id)
        self._adopted.next_id += 1
        made = skipped_segment(last, segment_id, (base_offset, end_offset), is_lost=is_lost)
        return replace(made, since_ms=self._adopted.counted_ms)

    def _tail(self, ids: Sequence[SegmentId], end_offset: int) -> SegmentRecord | None:
        """The one segment that is not sealed and goes on, as RECOVERING."""
        fitting: list[SegmentId] = []
        for each in ids:
            told = self._evidence.get(each)
            if self._base(each) >= end_offset:
                fitting.append(each)
            elif told is not None and told.has_records:
                self._adopted.note(
                    f"nodes {names_of(told.copies)} have records of it that are in no log; they"
                    " stay there",
                    self._number,
                    each,
                )
        full = [each for each in fitting if self._has_records(each)]
        if len(full) > 1:
            why = f"segments {full} begin at one offset, and each has records"
            raise _contradiction(self._adopted.topic, self._number, full[0], why)
        chosen = full or fitting
        return self._recovering(chosen[-1]) if chosen else None

    def _has_records(self, segment_id: SegmentId) -> bool:
        told = self._evidence.get(segment_id)
        return told is not None and told.has_records

    def _recovering(self, segment_id: SegmentId) -> SegmentRecord:
        record, told = self._records.get(segment_id), self._evidence.get(segment_id)
        copies = told.copies if told is not None else []
        heard = told.record if told is not None else None
        known = heard or (record.segment if record is not None else None)
        if record is None:
            assert told is not None, "it is known by one of them"
            record = self._unknown(told)
            self._adopted.found += 1
        fields: dict[str, object] = {
            "state": SegmentState.RECOVERING,
            "base_offset": self._base(segment_id),
        }
        is_whole = self._adopted.is_complete
        if known is not None and known.leader:
            # A leader's own log has all that was acked, whatever its set was (R2, R5). The sets
            # that others heard of may be older than the last one.
            fields |= {
                "leader": known.leader,
                "leader_incarnation": known.leader_incarnation,
                "replicas": tuple(each for each in known.replicas if each in self._adopted.nodes),
                "isr": (known.leader,),
            }
        else:
            tellers = without_repeats([each.node_id for each in copies])
            is_whole &= self._are_all(tellers)
            # Nobody knows with which settings it was opened, so the longest log has to count.
            settings = replace(record.segment.settings, min_insync_replicas=1)
            fields |= {
                "leader": NO_NODE,
                "leader_incarnation": NO_INCARNATION,
                "replicas": tellers,
                "isr": _longest(copies),
                "settings": settings,
            }
        if not is_whole:
            self._adopted.note(
                "others may have had more of it: behind what is left it goes on 2^32 offsets above",
                self._number,
                segment_id,
            )
        if not fields["isr"]:
            self._adopted.note(
                f"its end can't be proved: icecore segment recover-unclean {self._adopted.topic}"
                f" {self._number} {segment_id}",
                self._number,
                segment_id,
            )
        return leapt(
            record,
            told,
            fields,
            holders=holders_of(record, copies),
            is_unclean_begun=record.is_unclean_begun or not is_whole,
            since_ms=max(1, record.since_ms),
        )

    def _are_all(self, tellers: Sequence[NodeId]) -> bool:
        """Return whether nobody else can have a copy of a segment that is not sealed."""
        is_enough = len(tellers) >= self._adopted.settings.replication_factor
        return (self._adopted.is_known and is_enough) or self._adopted.nodes <= set(tellers)

    def _finished(
        self,
        segments: list[SegmentRecord],
        tail: SegmentRecord | None,
        end_offset: int,
        void: list[SegmentRecord],
    ) -> PartitionChain:
        next_base = max(end_offset, self._partition.next_base_offset, self._start)
        if tail is not None:
            next_base = tail.segment.base_offset
        elif not self._adopted.is_complete or self._may_have_been_longer(segments):
            behind = next_base + OFFSETS_LEFT_OUT
            if segments:
                segments = [
                    *segments,
                    self._skipped(segments[-1], next_base, behind, is_lost=False),
                ]
            else:
                self._start = behind
            next_base = behind
        epochs = [each.segment.epoch for each in (*segments, *([tail] if tail else []))]
        promised = [copy.promised_epoch for each in self._evidence.values() for copy in each.copies]
        newest = max(self._partition.last_epoch, *epochs, *promised, 0)
        partition = updated(
            self._partition,
            log_start_offset=self._start,
            tail_segment_id=tail.segment.segment_id if tail else NO_SEGMENT,
            next_base_offset=next_base,
            last_epoch=Epoch(newest + EPOCH_LEAP),
        )
        return PartitionChain(partition, [*segments, *([tail] if tail else [])], void)

    def _may_have_been_longer(self, segments: Sequence[SegmentRecord]) -> bool:
        """Return whether what followed the copies in object storage is on no node any more."""
        is_there_alone = not segments or segments[-1].segment.is_remote_only
        return self._adopted.is_in_bucket and is_there_alone


def _is_void(
    record: SegmentRecord,
    sealed: dict[SegmentId, SegmentRecord],
    tail: SegmentRecord | None,
) -> bool:
    segment_id = record.segment.segment_id
    return segment_id not in sealed and (tail is None or tail.segment.segment_id != segment_id)


def _longest(copies: Sequence[ToldReplica]) -> tuple[NodeId, ...]:
    """Nodes whose log is the longest, if every copy counts: one of these is the leader's, or has
    all that the leader's has. Where one does not count, nobody is known to have everything."""
    if not all(each.is_intact for each in copies):
        return ()
    end_offset = max(each.durable_end_offset for each in copies)
    return tuple(each.node_id for each in copies if each.durable_end_offset == end_offset)


def _contradiction(topic: str, partition: int, segment_id: SegmentId, why: str) -> ConflictError:
    return ConflictError(
        f"{topic}/{partition}, segment {segment_id}: {why}. Nothing was changed. Look at the nodes"
        " with icecore-node inspect, stop the one that is wrong, and name it with --without-node"
    )
