"""Forged orders to real nodes that take something away, or raise a number for ever: each is
refused, what was acked stays where it is, and everything goes on.

The stranger knows what anybody may ask for, as in ``test_forged_calls``.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
from icecore.errors import InvalidRequestError
from icecore.model import SegmentState
from icecore.rpc.grpc_net import GrpcNet
from icecore.v1 import admin_pb2
from icecore.v1 import coordinator_pb2 as pb
from icecore_replication.producers import ProducerTable
from tests.cluster.test_forged_calls import Scene, make_scene
from tests.cluster.traffic import create, merged, numbered, produce, read_all
from tests.stranger import Known
from tests.support.clusters import NODES
from tests.support.tier_places import has_store, until, until_tiered

ABSURD = 1 << 62


@dataclass(frozen=True)
class Tiered:
    """A cluster of nodes with an object store in a folder."""

    cluster: LocalCluster
    bucket: Path

    def objects(self, topic_id: bytes) -> set[str]:
        """All of a topic, its table included."""
        folder = self.bucket / str(UUID(bytes=topic_id))
        return {str(each) for each in folder.rglob("*") if each.is_file()}


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    folder = tmp_path_factory.mktemp("forged-orders")
    bucket = folder / "bucket"
    settings = {"tier_url": bucket.as_uri()}
    with LocalCluster(folder / "cluster", NODES, node_settings=settings) as cluster:
        yield Tiered(cluster, bucket)


@pytest.fixture
async def scene(tiered: Tiered, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """All records of the topic are in the bucket, and the sealed ones on no node any more."""
    net, cluster = GrpcNet(), tiered.cluster
    try:
        async with Admin(cluster.bootstrap) as admin:
            await until(lambda: has_store(admin))
            topic = request.node.name.replace("test_", "orders-")[:100].replace("[", "-")
            settings: dict[str, Any] = {"tier": "on", "local_retention_ms": 0}
            made = await make_scene(cluster, net, topic.rstrip("]"), **settings)
            await until_tiered(admin, made.topic, is_remote=True)
        yield made
    finally:
        await net.close()


def head(known: Known) -> dict[str, Any]:
    return {"cluster_id": known.cluster_id, "coordinator_epoch": known.coordinator_epoch}


async def to_all(scene: Scene, known: Known, method: str, request: Any) -> None:
    for node in known.nodes.values():
        await scene.stranger.say(node.address, f"NodeService/{method}", request)


async def copies(scene: Scene) -> list[Any]:
    async with Admin(scene.cluster.bootstrap) as admin:
        [topic] = (await admin.describe_tiering([scene.topic], with_copies=True)).topics
        return list(topic.copies)


@pytest.mark.parametrize("what", ["topic", "mark", "attempts", "table"])
async def test_what_is_in_object_storage_stays(scene: Scene, tiered: Tiered, what: str) -> None:
    known = await scene.look()
    topic_id, published = known.segment.topic_id, await copies(scene)
    before = tiered.objects(topic_id)
    assert before and published
    if what == "table":
        table = pb.PartitionTable(topic_id=topic_id, topic=scene.topic, revision=ABSURD)
        request: Any = pb.CommitTablesRequest(**head(known), partitions=[table])
        await to_all(scene, known, "CommitTables", request)
    else:
        request = pb.SweepRequest(**head(known))
        if what == "topic":
            request.gone_topic_ids.append(topic_id)
        elif what == "mark":
            request.to_mark.add(topic_id=topic_id, settings_version=ABSURD)
        for each in published if what == "attempts" else ():
            request.attempts.add(
                topic_id=topic_id,
                partition=each.partition,
                segment_id=each.segment_id,
                generation=each.generation,
                base_offset=each.base_offset,
                attempt=each.attempt,
            )
        await to_all(scene, known, "Sweep", request)
    assert before == tiered.objects(topic_id)
    assert await read_all(scene.cluster.bootstrap, scene.topic) == scene.log
    assert {each.attempt for each in await copies(scene)} == {each.attempt for each in published}
    await scene.is_alive()


async def test_a_fence_with_the_epoch_of_the_segment(scene: Scene) -> None:
    known = await scene.look()
    for node in known.replicas:
        await scene.stranger.fence(known, node.address, epoch=known.segment.epoch)
    await scene.is_alive()
    assert (await scene.look()).segment.segment_id == known.segment.segment_id  # led as before


@pytest.mark.parametrize("state", [SegmentState.RECOVERING, SegmentState.SEALED])
async def test_a_loss_that_no_record_accepts(scene: Scene, state: SegmentState) -> None:
    """Each replica of the tail is ordered to keep its first batch alone, by a person's word."""
    many = numbered(500, 100)
    more = await produce(scene.cluster.bootstrap, scene.topic, many, batch_bytes=1 << 10)
    scene.log = merged(scene.log, more)
    known = await scene.look()
    end_offset, digest = await scene.stranger.first_batch(known, known.leader.address)
    claim = pb.SegmentAssignment()
    claim.CopyFrom(known.segment)
    claim.state, claim.lossy = state, True  # type: ignore[assignment]
    claim.end_offset, claim.seal_digest = end_offset, digest
    for seal in (False, True):
        for node in known.replicas:
            assert await scene.stranger.write_back(
                known, node.address, claim, end_offset=end_offset, seal_digest=digest, seal=seal
            )
    await scene.is_alive()
    assert (await scene.look()).segment.segment_id == known.segment.segment_id  # led as before


async def test_a_seal_that_no_record_has(scene: Scene) -> None:
    """It would end all logs here, and contradict the end that a recovery decides a moment later."""
    more = await produce(scene.cluster.bootstrap, scene.topic, numbered(500, 1))
    scene.log = merged(scene.log, more)
    known = await scene.look()
    end_offset, digest = await scene.stranger.first_batch(known, known.leader.address)
    for node in known.replicas:
        refused = await scene.stranger.write_back(
            known, node.address, known.segment, end_offset=end_offset, seal_digest=digest, seal=True
        )
        assert refused == "UNAVAILABLE"
    await scene.is_alive()
    assert (await scene.look()).segment.segment_id == known.segment.segment_id


@pytest.mark.parametrize("ahead", [1, 2, 1 << 20])
async def test_the_coordinator_that_might_come_next(scene: Scene, ahead: int) -> None:
    known = await scene.look()
    for node in known.nodes.values():
        for epoch in (None, known.segment.epoch + 1):
            later = known.coordinator_epoch + ahead
            error = await scene.stranger.fence(
                known, node.address, coordinator_epoch=later, epoch=epoch
            )
            assert error is not None and "own stream" in error.message
    await scene.is_alive()
    assert (await scene.look()).segment.segment_id == known.segment.segment_id


async def test_promises_for_segments_to_come(scene: Scene) -> None:
    known = await scene.look()
    first = known.segment.segment_id + 1
    refs = [pb.SegmentRef(segment_id=first + n, epoch=ABSURD) for n in range(1_000)]
    request = pb.FenceRequest(**head(known), salvage=True, segments=refs)
    await to_all(scene, known, "Fence", request)
    await scene.is_alive()  # an empty tail is not rolled
    await scene.roll()
    await scene.is_alive()
    topic = f"{scene.topic}-new"
    await create(scene.cluster.bootstrap, topic, partitions=1)
    log = await produce(scene.cluster.bootstrap, topic, numbered(0, 10))
    assert await read_all(scene.cluster.bootstrap, topic) == log


@pytest.mark.parametrize("field", ["segment_id", "generation"])
async def test_numbers_that_index_keys_cannot_hold(scene: Scene, field: str) -> None:
    known = await scene.look()
    segment = pb.SegmentAssignment(
        segment_id=known.segment.segment_id + 100_000,
        topic_id=known.segment.topic_id,
        topic=scene.topic,
        state=SegmentState.ACTIVE,  # type: ignore[arg-type]
        epoch=1,
        settings=known.segment.settings,
    )
    setattr(segment, field, 1 << (48 if field == "segment_id" else 16))
    request = pb.OpenRequest(
        **head(known), segments=[pb.OpenSegment(segment=segment, confirm=True)]
    )
    for node in known.nodes.values():
        body = await scene.stranger._ask(node.address, "NodeService/Open", request)
        [error] = pb.OpenResponse.FromString(body).errors
        assert "no segment has" in error.message
    await scene.is_alive()


async def test_an_import_that_uses_up_all_numbers(scene: Scene) -> None:
    for numbers in ({"segment_ids_max": ABSURD - 1}, {"attempts_max": ABSURD - 1}):
        request = admin_pb2.ImportTieredRequest(
            name="ghost",
            topic_id=bytes(16),
            settings=admin_pb2.TopicSettings(partitions=1),
            **numbers,  # type: ignore[arg-type]
        )
        error = await scene.stranger.say(
            scene.cluster.bootstrap, "AdminService/ImportTiered", request
        )
        assert error is not None and "nobody has counted so far" in error.message
    async with Admin(scene.cluster.bootstrap) as admin:
        hidden = await admin.describe_topics(deleted=True)
    assert "ghost" not in [each.name for each in hidden]
    await scene.is_alive()
    await scene.roll()
    await scene.is_alive()


async def test_lists_of_very_many_empty_items(scene: Scene) -> None:
    """Each takes two bytes of a message, and a thousand times as much of whoever parses it."""
    known, net = await scene.look(), scene.stranger._net
    for service in pb.DESCRIPTOR.services_by_name.values():
        to_node = service.name == "NodeService"
        address = known.leader.address if to_node else scene.cluster.bootstrap
        for method in service.methods:
            fields = method.input_type.fields if method.name != "Heartbeat" else ()
            for each in fields:
                if not each.is_repeated or each.message_type is None:
                    continue
                item = bytes([each.number << 3 | 2, 0])
                path = f"/{service.full_name}/{method.name}"
                with pytest.raises(InvalidRequestError, match="in a request"):
                    await net.call(address, path, item * 1_000_000, timeout_s=20.0)
    await scene.is_alive()


@pytest.mark.parametrize("confirm", [False, True])
async def test_opens_of_segments_to_come(scene: Scene, confirm: bool) -> None:
    """Each of the next ids is here already, of another topic: none of them may be in the way."""
    known = await scene.look()
    first = known.segment.segment_id + 1
    request = pb.OpenRequest(**head(known))
    for number in range(100):
        item = request.segments.add(confirm=confirm)
        item.segment.CopyFrom(known.segment)
        item.segment.segment_id, item.segment.topic_id = first + number, b"t" * 16
        item.segment.state = SegmentState.PREPARED  # type: ignore[assignment]
        item.producer_snapshot = ProducerTable().snapshot()
    await to_all(scene, known, "Open", request)
    await scene.is_alive()
    await scene.roll()
    await scene.is_alive()
    topic = f"{scene.topic}-new"
    await create(scene.cluster.bootstrap, topic, partitions=1)
    log = await produce(scene.cluster.bootstrap, topic, numbered(0, 10))
    assert await read_all(scene.cluster.bootstrap, topic) == log
