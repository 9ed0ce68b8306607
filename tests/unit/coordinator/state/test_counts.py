"""Groups of unsealed segments are those that all records together say, whatever happened before."""

import random
from collections import Counter

from icecore.model import Segment, SegmentState
from icecore_coordinator.state.counts import LedSegments, OpenSegments


def _some(rng: random.Random, segment_id: int) -> Segment:
    replicas = tuple(rng.sample(range(1, 5), rng.randint(1, 3)))
    return Segment(
        segment_id,
        rng.choice([b"a" * 16, b"b" * 16]),
        "t",
        0,
        rng.choice(list(SegmentState)),
        epoch=1,
        leader=replicas[0],
        leader_incarnation=rng.randint(1, 2),
        replicas=replicas,
    )


def test_groups_and_loads_follow_every_change() -> None:
    rng, found = random.Random(1), OpenSegments()
    known: dict[int, Segment] = {}
    for _ in range(2_000):
        segment = _some(rng, rng.randint(1, 20))
        before = known.pop(segment.segment_id, None)
        if before is not None:
            found.remove(before)
        if rng.random() < 0.8:
            known[segment.segment_id] = segment
            if segment.state is not SegmentState.SEALED:
                found.put(segment)
        groups: dict[LedSegments, set[int]] = {}
        for each in known.values():
            if each.state is not SegmentState.SEALED:
                led = LedSegments(each.topic_id, each.state, each.leader, each.leader_incarnation)
                groups.setdefault(led, set()).add(each.segment_id)
        unsealed = [each for each in known.values() if each.state is not SegmentState.SEALED]
        assert {led: set(ids) for led, ids in found.groups.items()} == groups
        assert +found.replicas == Counter(n for each in unsealed for n in each.replicas)
        assert +found.leads == Counter(each.leader for each in unsealed)
