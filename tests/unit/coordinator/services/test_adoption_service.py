"""A coordinator whose metadata are suspended hears the nodes, refuses the rest, and obeys a person
(R108)."""

from typing import Any, cast

import pytest

from icecore.errors import (
    ConflictError,
    IcecoreError,
    InvalidRequestError,
    UnavailableError,
    WrongClusterError,
)
from icecore.model import INVENTORY_WANTED, SEGMENT_ID_MAX
from icecore.rpc.methods import ADMIN, COORDINATOR, MIRROR
from icecore.v1 import admin_pb2
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.config import TopicDefaults
from icecore_coordinator.decisions.adoption.adopt import Adoption
from icecore_coordinator.services.adoption_service import AdoptionService
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import CounterRecord, SegmentRecord
from tests.support.cluster_states import TOPIC, Cluster, started

CALL = cast(Any, None)
WHY = "an older copy: do this or that"


class World:
    """The service, and what it has stored."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.stored: list[Adoption] = []
        self.service = AdoptionService(state, WHY, "process-1", self.store, TopicDefaults())
        self.handlers = self.service.handlers()

    async def store(self, adoption: Adoption) -> None:
        self.stored.append(adoption)

    async def call(self, method: str, request: Any) -> bytes:
        return bytes(await self.handlers.unary[method](request.SerializeToString(), CALL))

    async def tell(self, node_id: int, *numbers: int, **fields: Any) -> None:
        """All pages of a node, or those with the numbers."""
        for number in numbers or (0,):
            page = told(self.state, node_id, number, **fields)
            await self.call(COORDINATOR["TellInventory"], page)

    async def adopt(self, **wish: Any) -> admin_pb2.AdoptMetadataResponse:
        request = admin_pb2.AdoptMetadataRequest(**wish)
        body = await self.call(ADMIN["AdoptMetadata"], request)
        return admin_pb2.AdoptMetadataResponse.FromString(body)


def told(state: ClusterState, node_id: int, number: int = 0, **fields: Any) -> Any:
    segment = pb.SegmentInventory(
        segment_id=1,
        topic_id=TOPIC,
        base_offset=0,
        durable_end_offset=10 + number,
        epoch=state.segments[1].segment.epoch if 1 in state.segments else 2,
        intact=True,
        digest=b"d",
    )
    node = pb.RegisterRequest(
        cluster_id=fields.pop("cluster_id", state.cluster_id),
        node_id=node_id,
        disk_id=bytes([node_id]),
        incarnation=20,
        address=f"n{node_id}:1",
        segments=[segment],
        metadata_revision=500,
    )
    return pb.TellInventoryRequest(node=node, coordinator_epoch=9, page=number, **fields)


async def test_every_other_call_is_refused_with_the_ways_out() -> None:
    world = World(started())
    names = {*COORDINATOR, *ADMIN, *MIRROR} - {COORDINATOR["Heartbeat"]}
    assert world.handlers.unary.keys() == names
    for name in names - {COORDINATOR["TellInventory"], ADMIN["AdoptMetadata"]}:
        with pytest.raises(UnavailableError, match="do this or that") as refusal:
            await world.handlers.unary[name](b"", CALL)
        assert refusal.value.metadata[INVENTORY_WANTED] == "process-1"


async def test_a_heartbeat_stream_is_refused_and_asks_for_the_inventory() -> None:
    class Stream:
        async def read(self) -> bytes:
            return b""

    world = World(started())
    with pytest.raises(UnavailableError) as refusal:
        await world.handlers.streams[COORDINATOR["Heartbeat"]](cast(Any, Stream()), CALL)
    assert refusal.value.metadata[INVENTORY_WANTED] == "process-1"


async def test_it_is_stored_once_when_every_node_has_told_all() -> None:
    world = World(started())
    await world.tell(1)
    await world.tell(2, more=True)
    await world.tell(3)
    answer = await world.adopt()
    assert (list(answer.told_nodes), list(answer.missing_nodes)) == ([1, 3], [2])
    assert (answer.done, world.stored) == (False, [])
    await world.tell(2, 1)
    assert not (await world.adopt(dry_run=True)).done
    assert not world.stored
    assert (await world.adopt()).done
    assert (await world.adopt()).done, "the answer was lost, and the command came again"
    assert len(world.stored) == 1
    assert world.stored[0].revision > 500


async def test_a_node_that_is_gone_may_be_left_out_and_what_it_said_does_not_count() -> None:
    world = World(started())
    await world.tell(1)
    await world.tell(3)
    answer = await world.adopt(without_nodes=[2])
    assert answer.done
    assert [each.segment_id for each in answer.findings] == [1], "others may have more of the tail"
    other = World(started())
    for node_id in (1, 2, 3):
        await other.tell(node_id)
    await other.adopt(without_nodes=[3])
    [tail] = [each for each in other.stored[0].puts if each.key.startswith("segment/")]
    assert cast(Any, tail).is_unclean_begun


async def test_pages_that_do_not_follow_are_refused_and_page_0_begins_anew() -> None:
    world = World(started())
    await world.tell(1, more=True)
    with pytest.raises(InvalidRequestError, match="begin anew"):
        await world.tell(1, 2)
    await world.tell(1, more=True)
    await world.tell(1, 1)
    assert list((await world.adopt()).told_nodes) == [1]


async def test_nodes_of_another_cluster_count_only_where_the_store_is_empty() -> None:
    with pytest.raises(WrongClusterError):
        await World(started()).tell(1, cluster_id=b"o" * 16)
    empty = World(Cluster())
    await empty.tell(1, cluster_id=b"o" * 16)
    answer = await empty.adopt()
    assert (answer.done, answer.cluster_id, answer.topics_found) == (True, b"o" * 16, 1)
    with pytest.raises(UnavailableError, match="is new, and waits"):
        await World(Cluster()).tell(1, cluster_id=b"")


@pytest.mark.parametrize("fields", [{"node_id": 0}, {"disk_id": b""}, {"address": "no port"}])
async def test_what_no_node_says_is_refused(fields: dict[str, Any]) -> None:
    world = World(started())
    page = told(world.state, 1)
    for name, value in fields.items():
        setattr(page.node, name, value)
    with pytest.raises(InvalidRequestError):
        await world.call(COORDINATOR["TellInventory"], page)


async def test_nothing_is_stored_where_nobody_told_anything() -> None:
    world = World(started())
    with pytest.raises(ConflictError, match="start the nodes") as refusal:
        await world.adopt()
    assert isinstance(refusal.value, IcecoreError)
    assert not world.stored


async def test_offsets_that_no_node_has_need_a_word_of_their_own() -> None:
    world = World(started())
    for node_id in (1, 2, 3):
        page = told(world.state, node_id)
        ahead = page.node.segments.add()
        ahead.CopyFrom(page.node.segments[0])
        ahead.segment_id, ahead.base_offset, ahead.durable_end_offset = 9, 15, 20
        ahead.sealed = True
        await world.call(COORDINATOR["TellInventory"], page)
    answer = await world.adopt()
    assert not answer.done
    assert [each.why for each in answer.findings if each.gap] == ["no node has offsets 0 to 15"]
    assert (await world.adopt(skip_gaps=True)).done


@pytest.mark.parametrize("number", [1 << 41, (1 << 63) - 1])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("epoch", "no partition has come to such a number"),
        ("promised_epoch", "no partition has come to such a number"),
        ("durable_end_offset", "no log is so long"),
        ("base_offset", "no log is so long"),
    ],
)
async def test_copies_with_numbers_that_no_cluster_has_are_refused(
    name: str, why: str, number: int
) -> None:
    """Others would go on above them."""
    world = World(started())
    page = told(world.state, 1)
    setattr(page.node.segments[0], name, number)
    if "offset" in name and number < 1 << 62:
        await world.call(COORDINATOR["TellInventory"], page)
        return
    with pytest.raises(InvalidRequestError, match=why):
        await world.call(COORDINATOR["TellInventory"], page)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"partition": 10_000}, "has 10001 partitions: 10000 is the most"),
        ({"partition": (1 << 32) - 1}, "partitions: 10000 is the most"),
        ({"generation": 1 << 16}, "has generation 65536: there is none"),
        ({"record": {"version": 1 << 41}}, "numbers that no segment has come to: version"),
        ({"record": {"end_offset": (1 << 62) + 1}}, "numbers that no segment has come to"),
        ({"record": {"log_start_offset": (1 << 62) + 1}}, "numbers that no segment has come to"),
        ({"record": {"settings": {"replication_factor": 33}}}, "replication factor 33"),
    ],
)
async def test_copies_that_no_topic_can_have_are_refused(fields: dict[str, Any], why: str) -> None:
    """An adoption would make each partition of a topic, or store what no node takes."""
    world = World(started())
    page = told(world.state, 1)
    page.node.segments[0].MergeFrom(pb.SegmentInventory(**fields))
    with pytest.raises(InvalidRequestError, match=why):
        await world.call(COORDINATOR["TellInventory"], page)


async def test_more_partitions_than_a_topic_may_have_are_refused() -> None:
    world = World(started())
    topic = pb.ToldTopic(topic_id=TOPIC, name="t", partitions=(1 << 32) - 1)
    with pytest.raises(InvalidRequestError, match="10000 is the most"):
        await world.tell(1, topics=[topic])


async def test_a_disk_counter_that_no_disk_has_come_to_is_refused() -> None:
    world = World(started())
    page = told(world.state, 1)
    page.node.disk_counter = 1 << 41
    with pytest.raises(InvalidRequestError, match="no disk has been told of"):
        await world.call(COORDINATOR["TellInventory"], page)


async def test_a_segment_id_that_leaves_no_room_is_passed_over() -> None:
    """As at the registration of a node: new segments go above all others."""
    world = World(started())
    for node_id in (1, 2, 3):
        page = told(world.state, node_id)
        page.node.segments.add(segment_id=SEGMENT_ID_MAX, topic_id=TOPIC, base_offset=-1)
        await world.call(COORDINATOR["TellInventory"], page)
    assert (await world.adopt()).done
    counters = [each for each in world.stored[0].puts if isinstance(each, CounterRecord)]
    (next_id,) = (each.next_value for each in counters if each.name == "segment_id")
    assert next_id < SEGMENT_ID_MAX // 2


async def test_a_coordinator_epoch_that_others_would_not_obey_stops_the_adoption() -> None:
    world = World(started())
    for node_id in (1, 2, 3):
        page = told(world.state, node_id)
        page.coordinator_epoch = 9 if node_id < 3 else 1 << 39
        await world.call(COORDINATOR["TellInventory"], page)
    with pytest.raises(ConflictError, match="leave it out: --without-node 3"):
        await world.adopt()
    assert (await world.adopt(without_nodes=[3])).done
    assert world.stored[0].coordinator_epoch < 1 << 20


async def test_an_incarnation_that_no_cluster_has_given_out_is_refused() -> None:
    world = World(started())
    page = told(world.state, 1)
    page.node.incarnation = 1 << 41
    with pytest.raises(InvalidRequestError, match="no cluster has given out incarnation"):
        await world.call(COORDINATOR["TellInventory"], page)


@pytest.mark.parametrize("number", [1 << 41, (1 << 64) - 1])
async def test_numbers_that_no_cluster_has_come_to_are_refused(number: int) -> None:
    """Metadata would go above them, and have no number left."""
    world = World(started())
    for is_epoch in (False, True):
        page = told(world.state, 1)
        if is_epoch:
            page.coordinator_epoch = number
        else:
            page.node.metadata_revision = number
        with pytest.raises(InvalidRequestError, match="no metadata store has revision"):
            await world.call(COORDINATOR["TellInventory"], page)


async def test_a_bucket_that_nobody_read_stops_the_adoption() -> None:
    world = World(started())
    for node_id, problem in ((1, "x" * 600), (2, ""), (3, "")):
        page = told(world.state, node_id)
        if problem:
            page.node.tier_url = "s3://bucket"
            page.bucket.problem = problem
        await world.call(COORDINATOR["TellInventory"], page)
    answer = await world.adopt()
    assert not answer.done and [len(each.why) < 800 for each in answer.findings if each.gap]
    page.node.tier_url = "s3://bucket"
    page.bucket.segment_ids_max = 7
    await world.call(COORDINATOR["TellInventory"], page)
    assert (await world.adopt()).done


def part(name: str, *segment_ids: int, deleted: bool = False) -> admin_pb2.BucketPart:
    """A part of what a bucket has: segments of 10 records each."""
    segments = [
        admin_pb2.ImportedSegment(
            segment_id=each,
            base_offset=each * 10,
            end_offset=each * 10 + 10,
            seal_digest=b"d" * 32,
            copy=pb.TierCopy(
                attempt=each, manifest_sha256=b"m" * 32, content_digest=b"c" * 32, length_bytes=9
            ),
        )
        for each in segment_ids
    ]
    topic = admin_pb2.ImportTieredRequest(
        name=name,
        topic_id=name.encode() * 16,
        settings=admin_pb2.TopicSettings(partitions=1, tier="on"),
        segments=segments,
        segment_ids_max=9,
        attempts_max=9,
    )
    return admin_pb2.BucketPart(topic=topic, deleted=deleted)


async def told_world() -> World:
    world = World(started())
    for node_id in (1, 2, 3):
        await world.tell(node_id)
    return world


async def test_a_bucket_comes_in_parts_and_the_last_one_decides() -> None:
    world = await told_world()
    assert not (await world.adopt(bucket=part("a", 5), page=0, more=True)).topics_found
    await world.adopt(bucket=part("a", 6), page=1, more=True)
    await world.adopt(bucket=part("a", 6), page=1, more=True)  # the answer was lost
    found = await world.adopt(bucket=part("b", deleted=True), page=2, dry_run=True)
    assert found.topics_found == 1 and not world.stored
    assert any("'b'" in each.why and "stays away" in each.why for each in found.findings)
    await world.adopt(bucket=part("a", 5), page=0, more=True)
    found = await world.adopt(bucket=part("a", 6), page=1)
    assert found.done and not any("'b'" in each.why for each in found.findings)
    ids = {each.segment.segment_id for each in segments_of(world.stored[0])}
    assert {5, 6} <= ids


def segments_of(adoption: Adoption) -> list[SegmentRecord]:
    return [each for each in adoption.puts if isinstance(each, SegmentRecord)]


async def test_a_part_that_does_not_follow_is_refused() -> None:
    world = await told_world()
    with pytest.raises(InvalidRequestError, match="does not follow on part -1: begin anew"):
        await world.adopt(bucket=part("a", 5), page=1)
    with pytest.raises(InvalidRequestError, match="say its partitions"):
        wrong = part("a", 5)
        wrong.topic.settings.Clear()
        await world.adopt(bucket=wrong)


async def test_an_empty_bucket_was_read_all_the_same() -> None:
    world = await told_world()
    found = await world.adopt(bucket=admin_pb2.BucketPart(), dry_run=True)
    assert not any("--bucket" in each.why for each in found.findings)
