"""One copy of one segment on this node: its log's tail, its producers, its role of the moment.

A replica is *prepared* (files exist, base unknown), *confirmed* (may be led or followed), fenced
(a higher epoch was promised: nothing is appended but by write-back) or *sealed*. Its role, if any,
is a ``Leader`` or a ``Follower``, which own the protocol core. They know the replica, which keeps
what every role needs; it sees of them, and they of who holds it, what the protocols here say. An
UNKNOWN replica (``intact`` false) plays no role and counts for nothing.
"""

from dataclasses import replace
from typing import Protocol

from icecore.codec import batch
from icecore.codec.batch import BatchHeader
from icecore.model import Segment
from icecore_node.context import NodeContext
from icecore_node.io.tail_cache import CachedBatch
from icecore_node.ports import Buffer
from icecore_node.replica.producer_state import producers_at
from icecore_node.storage.engine import AppendRequest, BatchMark, LogTail, SegmentIdentity
from icecore_replication import inputs
from icecore_replication.follower import FollowerCore
from icecore_replication.leader import LeaderCore
from icecore_replication.leading import ReplicaFacts
from icecore_replication.producers import ProducerTable


class Leading(Protocol):
    """The role of a leader, ``roles/leader.py``."""

    core: LeaderCore
    segment: Segment

    def feed(self, *happened: inputs.LeaderInput) -> None:
        """Tell the core."""
        ...


class Following(Protocol):
    """The role of a follower, ``roles/follower.py``."""

    core: FollowerCore
    segment: Segment

    def detach(self) -> None:
        """Stop following."""
        ...

    def leave(self) -> None:
        """Stop following, and tell the leader so."""
        ...


class Replica:
    """State common to all roles. Loop only."""

    def __init__(
        self,
        context: NodeContext,
        identity: SegmentIdentity,
        tail: LogTail,
        producers: ProducerTable | None,
        *,
        intact: bool = True,
        is_partial: bool = False,
    ) -> None:
        self.context = context
        self.identity = identity
        self.tail = tail
        self.durable_tail = tail
        """The tail as far as it is fsynced; behind ``tail`` while appends are under way."""
        self._producers = producers
        self.intact = intact
        self.is_partial = is_partial
        """A copy that is not whole yet: its end says nothing about what the segment holds."""
        self.worker = context.pool.worker_for(identity.topic_id, identity.partition)
        self.promised_epoch = identity.epoch
        self.segment: Segment | None = None
        """The newest record pushed by the coordinator."""
        self.leader: Leading | None = None
        self.follower: Following | None = None
        self.sealed_end_offset: int | None = None
        self.full_digest = b""
        self.led_in_this_process = False
        self.told_end_offset = -1
        """The largest end that a coordinator was told of while the segment's was not decided."""
        self.is_salvaged = False
        """Only the provable part of an UNKNOWN log (``upkeep/salvage.py``)."""

    @property
    def segment_id(self) -> int:
        """Of the segment this is a copy of."""
        return self.identity.segment_id

    @property
    def base_offset(self) -> int:
        """First offset of the segment; -1 while prepared."""
        return self.identity.base_offset

    @property
    def producers(self) -> ProducerTable:
        """The table through the end of the log. Sealed replicas keep none: ``producer_state``."""
        assert self._producers is not None, f"segment {self.segment_id} keeps no producers"
        return self._producers

    def drop_producers(self) -> None:
        """The log is sealed: nothing is checked or applied any more."""
        self._producers = None

    def begin(self, identity: SegmentIdentity, tail: LogTail, producers: ProducerTable) -> None:
        """Base and starting state are on disk. They are given once (R60)."""
        assert self.base_offset < 0 and self.segment_id == identity.segment_id
        self.identity, self._producers = identity, producers
        self.tail = self.durable_tail = tail

    @property
    def counts(self) -> bool:
        """Whether where this log ends may be told to a coordinator; else it is UNKNOWN."""
        is_whole = self.intact and not self.is_partial and (self.sealed or not self.is_salvaged)
        return is_whole and self.base_offset >= 0

    @property
    def is_donor(self) -> bool:
        """Whether copies may be made of this log: it counts, or a person let its rest count."""
        return self.counts or (self.intact and self.is_salvaged)

    @property
    def high_watermark(self) -> int:
        """Readers of this replica stop here."""
        if self.sealed_end_offset is not None:
            return self.sealed_end_offset
        if self.leader is not None:
            return self.leader.core.high_watermark
        if self.follower is not None:
            return self.follower.core.high_watermark
        durable_end_offset = self.durable_tail.end_offset  # appends of an ended role may still fail
        return max(self.base_offset, min(self.tail.max_known_high_watermark, durable_end_offset))

    @property
    def sealed(self) -> bool:
        """Whether the bytes are final here."""
        return self.sealed_end_offset is not None

    @property
    def idle(self) -> bool:
        """Neither led, followed nor sealed: fenced, or waiting for an assignment."""
        return self.leader is None and self.follower is None and not self.sealed

    @property
    def facts(self) -> ReplicaFacts:
        """What matters for the role that a record gives it."""
        return ReplicaFacts(
            node_id=self.context.node_id,
            incarnation=self.context.incarnation,
            base_offset=self.base_offset,
            promised_epoch=self.promised_epoch,
            is_intact=self.intact,
            is_sealed=self.sealed,
            is_all_durable=self.tail.end_offset == self.durable_tail.end_offset,
            has_led=self.led_in_this_process,
        )

    def covers(self, offset: int) -> bool:
        """Whether a reader at ``offset`` belongs to this replica (the end of a sealed segment
        belongs to its successor)."""
        if not self.intact or self.base_offset < 0 or offset < self.base_offset:
            return False
        return self.sealed_end_offset is None or offset < self.sealed_end_offset

    def extend(
        self,
        header_bytes: bytes,
        header: BatchHeader,
        body: Buffer,
        base_offset: int,
        append_timestamp_ms: int,
        header_crc32c: int,
        end_offset: int,
    ) -> AppendRequest:
        """Move the tail over one stamped batch and make the I/O worker's request for it.

        ``body`` is everything after the header; the bytes are shared, never copied.
        """
        tail = self.tail
        assert self.base_offset >= 0, "a prepared replica has no base and no bytes"
        assert not self.sealed, "the bytes of a sealed replica are final"
        assert tail.end_offset == base_offset < end_offset, "an append continues the log"
        self.tail = LogTail(
            end_offset=end_offset,
            last_header_crc32c=header_crc32c,
            digest=batch.digest_step(tail.digest, header_bytes),
            max_append_timestamp_ms=max(tail.max_append_timestamp_ms, append_timestamp_ms),
            max_known_high_watermark=tail.max_known_high_watermark,
            length_bytes=tail.length_bytes + header.batch_length,
        )
        buffers: list[Buffer] = [header_bytes, body]
        self.context.cache.put(
            self.segment_id,
            base_offset,
            CachedBatch((header_bytes, body), header.batch_length, end_offset, header_crc32c),
        )
        mark = BatchMark(base_offset, append_timestamp_ms, header.batch_length)
        return AppendRequest(self.segment_id, buffers, [mark], self.tail)

    def note_watermark(self, high_watermark: int) -> None:
        """Remember the largest watermark ever heard of; it outlives roles and restarts."""
        if high_watermark > self.tail.max_known_high_watermark:
            self.tail = replace(self.tail, max_known_high_watermark=high_watermark)

    async def settle(self) -> None:
        """Let appends under way end; what never became durable is cut off, and never reported.

        The role has ended. Raises what truncating raises.
        """
        await self.context.pool.probe()
        if self.tail.end_offset != self.durable_tail.end_offset:
            await self.cut(self.durable_tail.end_offset)

    async def cut(self, end_offset: int) -> None:
        """Truncate the log, durably, and bring what was derived from it back to that point.

        The caller works on the segment alone and has ended the role.
        """
        store, run = self.context.store, self.worker.run
        known = self.tail.max_known_high_watermark
        self.tail = self.durable_tail = await run(store.truncate, self.segment_id, end_offset)
        self.note_watermark(known)
        self._producers = await run(producers_at, store, self.segment_id, end_offset)

    def end_role(self, why: str) -> None:
        """Forget leader or follower; a leader that still had waiters fails them first."""
        if self.leader is not None:
            self.leader.feed(inputs.Stopped(why))
        if self.follower is not None:
            self.follower.detach()
        self.leader = None
        self.follower = None


class Keeper(Protocol):
    """Who holds all replicas, ``registry/replicas.py``, as the role of one sees it."""

    def apply(self, segment: Segment) -> None:
        """The coordinator answered with this record."""
        ...

    def watermark_moved(self, replica: Replica) -> None:
        """Readers may have more to read."""
        ...

    def leadership_ended(self, replica: Replica) -> None:
        """The leader of this replica stepped down."""
        ...

    def follow_again(self, replica: Replica) -> None:
        """The follower ran out of space: let it rejoin when there is room."""
        ...

    def condemn(self, replica: Replica, why: str) -> None:
        """The replica is UNKNOWN from now on."""
        ...

    def report_dispute(self, replica: Replica, why: str) -> None:
        """Replicas differ although none is damaged."""
        ...
