"""Counts are those that a look at each record would give, whatever happened before."""

import random
from collections import Counter

from icecore.model import Epoch, Segment, SegmentId, SegmentState
from icecore.topic_settings import SegmentSettings
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.counts import Totals
from icecore_coordinator.state.records import (
    Change,
    PartitionRecord,
    SegmentRecord,
    is_under_replicated,
)

TOPICS = [b"a" * 16, b"b" * 16]
SETTINGS = SegmentSettings(replication_factor=3, min_insync_replicas=2)


def any_segment(rng: random.Random, segment_id: int) -> SegmentRecord:
    """In any state, on one to four nodes, some of them in sync."""
    state = rng.choice([each for each in SegmentState if each])
    is_sealed = state is SegmentState.SEALED
    is_lost = is_sealed and rng.random() < 0.1
    is_remote_only = is_sealed and not is_lost and rng.random() < 0.1
    is_away = is_lost or is_remote_only
    replicas = () if is_away else tuple(rng.sample(range(1, 5), rng.randint(1, 4)))
    segment = Segment(
        segment_id=SegmentId(segment_id),
        topic_id=rng.choice(TOPICS) if segment_id % 2 else TOPICS[segment_id % 4 // 2],
        topic="events",
        partition=segment_id % 3,
        epoch=Epoch(1),
        state=state,
        settings=SETTINGS,
        replicas=replicas,
        isr=replicas[: rng.randint(1, 4)],
        leader=next(iter(replicas), 0),
        length_bytes=rng.randrange(1_000) if is_sealed else 0,
        lossy=is_lost,
        is_tiered=is_remote_only or (is_sealed and not is_lost and rng.random() < 0.3),
        version=1,
    )
    return SegmentRecord(segment, holders=replicas)


def looked_at(state: ClusterState) -> Totals:
    """The same by a look at each."""
    found = Totals(partitions=Counter(key[0] for key in state.partitions))
    for record in state.segments.values():
        segment = record.segment
        if segment.state is SegmentState.ACTIVE:
            found.active[segment.topic_id] += 1
        if segment.state is not SegmentState.SEALED:
            if is_under_replicated(record):
                found.out_of_sync[segment.segment_id] = None
            continue
        if segment.length_bytes:
            found.sealed_bytes[segment.topic_id] += segment.length_bytes
        if not (segment.is_lost or segment.is_remote_only):
            found.copies[len(segment.replicas)] += 1
    return found


def test_counts_follow_each_record() -> None:
    seen, away = Counter[int](), 0
    for seed in range(20):
        rng, state = random.Random(seed), ClusterState()
        for _ in range(200):
            number = rng.randrange(20)
            key = (rng.choice(TOPICS), rng.randrange(3))
            held, partition = state.segments.get(SegmentId(number)), state.partitions.get(key)
            if held is not None and rng.random() < 0.3:
                state.apply(Change(deletes=(held,)))
            elif rng.random() < 0.7:
                fresh = any_segment(rng, number)
                if held is not None and held.partition_key != fresh.partition_key:
                    continue  # no segment changes its partition
                state.apply(Change((fresh,)))
            elif partition is None or rng.random() < 0.5:
                state.apply(Change((PartitionRecord(*key, version=1),)))
            elif not state.segments_of_partition.get(key):
                state.apply(Change(deletes=(partition,)))
            assert state.totals == looked_at(state)
            away += sum(each.segment.is_remote_only for each in state.segments.values())
        seen += state.totals.copies
    assert len(seen) > 3 and away
