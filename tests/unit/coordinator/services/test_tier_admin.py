"""Admin messages about object storage: reports to operators, and taking in a topic."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from icecore.errors import InvalidRequestError, UnknownTopicError
from icecore.rpc.ports import CallContext
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.config import TopicDefaults
from icecore_coordinator.decisions.remote.imported import ImportedSegment, ImportedTopic
from icecore_coordinator.services import tier_admin
from icecore_coordinator.services.tier_admin import TierAdmin
from icecore_coordinator.work.remote.uploads import Merged
from tests.support.cluster_states import TOPIC, Cluster
from tests.support.tier_states import COPY, begun, published, remote, sealed, tiered_topic


@dataclass
class OneLedger:
    """A ledger that has only a state."""

    state: Cluster


class Imports:
    """Remembers what it is given."""

    def __init__(self) -> None:
        self.taken: list[tuple[ImportedTopic, list[ImportedSegment], int, int]] = []

    async def take(self, *given: Any) -> None:
        self.taken.append(given)  # type: ignore[arg-type]


@dataclass
class Mergers:
    """A merging that records the segments of each request."""

    state: Cluster
    asked: list[list[int]] = field(default_factory=list)

    async def merge(self, segment_ids: list[int]) -> Merged:
        self.asked.append(segment_ids)
        return Merged(self.state.segments[segment_ids[0]].segment, COPY)


def admin_of(state: Cluster, imports: Any = None, merging: Any = None) -> TierAdmin:
    ledger: Any = OneLedger(state)
    describer: Any = None
    merging = merging or Mergers(state)
    return TierAdmin(ledger, imports, describer, TopicDefaults(), merging, lambda _: ("refused", 7))


async def described(state: Cluster, **asked: Any) -> pb.DescribeTieringResponse:
    context: Any = None
    body = pb.DescribeTieringRequest(**asked).SerializeToString()
    found = await admin_of(state).describe(body, context)
    return pb.DescribeTieringResponse.FromString(bytes(found))


async def test_each_segment_is_counted_where_it_is() -> None:
    state = tiered_topic()
    kept = published(state)
    begun_id = sealed(state)
    begun(state, begun_id)
    sealed(state)
    state.counted_ms += 40
    answer = await described(state, with_copies=True)
    [topic] = answer.topics
    assert (topic.name, topic.topic_id, topic.on) == ("events", TOPIC, True)
    assert (topic.waiting_segments, topic.uploading_segments) == (2, 1)
    assert (topic.published_segments, topic.remote_only_segments) == (1, 0)
    assert (topic.local_bytes, topic.remote_bytes) == (300, COPY.length_bytes)
    assert topic.lag_ms == 40
    assert topic.stale_tables == 1
    assert (topic.last_error, topic.last_error_ms) == ("refused", 7)
    [copy] = topic.copies
    assert (copy.segment_id, copy.manifest_sha256) == (kept, COPY.manifest_sha256)
    segment = state.segments[kept].segment
    assert (copy.partition, copy.end_offset) == (segment.partition, segment.end_offset)
    assert copy.records == COPY.records
    assert list(answer.tier_urls) == ["s3://bucket"]
    assert answer.tier_url == "s3://bucket"


async def test_copies_are_named_only_when_asked_for() -> None:
    state = tiered_topic()
    published(state)
    [topic] = (await described(state, topics=["events"])).topics
    assert not topic.copies
    with pytest.raises(UnknownTopicError):
        await described(state, topics=["nothing"])


async def test_an_import_says_how_many_partitions() -> None:
    imports, context = Imports(), None
    admin = admin_of(tiered_topic(), imports)
    request = pb.ImportTieredRequest(name="flights", topic_id=b"f" * 16, attempts_max=9)
    with pytest.raises(InvalidRequestError, match="say its partitions"):
        await admin.import_tiered(request.SerializeToString(), context)  # type: ignore[arg-type]
    request.settings.partitions = 2
    request.settings.indexed_headers.append("airport")
    request.partition_counts.extend([1, 2])
    added = request.segments.add(segment_id=4, partition=1, base_offset=3, end_offset=8)
    added.copy.attempt = 6
    added.indexed_headers.append("carrier")
    await admin.import_tiered(request.SerializeToString(), context)  # type: ignore[arg-type]
    [(topic, [segment], _, attempts_max)] = imports.taken
    assert (topic.name, topic.partitions, attempts_max) == ("flights", 2, 9)
    assert (segment.segment.end_offset, segment.attempt) == (8, 6)
    assert topic.partition_counts == (1, 2)
    assert topic.settings.indexed_headers == ("airport",)
    assert segment.segment.settings.indexed_headers == ("carrier",)


async def planned(state: Cluster, **asked: Any) -> pb.PlanMergesResponse:
    context = CallContext("peer", "anonymous", None)
    body = pb.PlanMergesRequest(**asked).SerializeToString()
    return pb.PlanMergesResponse.FromString(bytes(await admin_of(state).plan_merges(body, context)))


async def test_a_plan_names_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    state = tiered_topic()
    ids = [remote(state) for _ in range(4)]
    found = await planned(state, topic="events", target_bytes=2 * COPY.length_bytes)
    assert (found.topic_id, found.more) == (TOPIC, False)
    groups = [(e.partition, [*e.segment_ids], e.length_bytes, e.records) for e in found.groups]
    assert groups == [(0, ids[:2], 1000, 20), (0, ids[2:], 1000, 20)]
    monkeypatch.setattr(tier_admin, "GROUPS_PER_PAGE", 1)
    found = await planned(state, topic="events", target_bytes=2 * COPY.length_bytes)
    assert found.more and [*found.groups[0].segment_ids] == ids[:2]
    for wrong in (0, 1 << 40):
        with pytest.raises(InvalidRequestError, match="target_bytes"):
            await planned(state, topic="events", target_bytes=wrong)
    with pytest.raises(UnknownTopicError):
        await planned(state, topic="nothing", target_bytes=1)


async def test_what_is_merged_is_of_the_topic() -> None:
    state, context = tiered_topic(), None
    ids = [remote(state) for _ in range(2)]
    mergers = Mergers(state)
    admin = admin_of(state, merging=mergers)
    request = pb.MergeSegmentsRequest(topic="events", segment_ids=ids)
    answer = await admin.merge(request.SerializeToString(), context)  # type: ignore[arg-type]
    found = pb.MergeSegmentsResponse.FromString(bytes(answer))
    assert (found.length_bytes, found.records) == (COPY.length_bytes, COPY.records)
    assert mergers.asked == [ids]
    segment = state.segments[ids[0]].segment.changed(topic_id=b"o" * 16)
    state.segments[ids[0]] = replace(state.segments[ids[0]], segment=segment)
    with pytest.raises(InvalidRequestError, match="not one of topic"):
        await admin.merge(request.SerializeToString(), context)  # type: ignore[arg-type]
