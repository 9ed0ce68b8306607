"""A node tells a suspended coordinator all that it holds: once, and in pages (R108)."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import IcecoreError, UnavailableError
from icecore.model import INVENTORY_WANTED, Segment, SegmentState
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.membership import inventory_telling
from icecore_node.membership.inventory_telling import InventoryTelling


def replica(segment_id: int, record: Segment | None = None) -> Any:
    tail = SimpleNamespace(
        end_offset=20, digest=b"d" * 32, length_bytes=300, max_append_timestamp_ms=77
    )
    return SimpleNamespace(
        identity=SimpleNamespace(
            segment_id=segment_id,
            topic_id=b"t" * 16,
            partition=3,
            base_offset=10,
            epoch=6,
            generation=0,
        ),
        log=SimpleNamespace(durable_tail=tail),
        sealed=True,
        life=SimpleNamespace(is_intact=True),
        promised_epoch=7,
        segment=record,
    )


class Mirror:
    def names(self) -> list[tuple[str, bytes]]:
        return [("events", b"t" * 16)]

    def find(self, _: str) -> Any:
        return SimpleNamespace(partitions=[SimpleNamespace(partition=each) for each in range(4)])


class World:
    def __init__(self, replicas: list[Any], read_numbers: Any = None) -> None:
        self.pages: list[pb.TellInventoryRequest] = []
        self.refusal: IcecoreError | None = None
        identity = SimpleNamespace(
            cluster_id=b"c" * 16,
            node_id=2,
            address="n2:1",
            native_address="",
            metadata_revision=90,
            coordinator_epoch=8,
        )
        context = SimpleNamespace(
            identity=identity,
            settings=SimpleNamespace(rack="r", host="h", tier_url=""),
            peers=SimpleNamespace(nodes={3: None, 2: None}),
        )
        folder = SimpleNamespace(disk_id=b"disk", incarnation=5, disk_counter=40)
        self.telling = InventoryTelling(
            cast(Any, context),
            cast(Any, folder),
            cast(Any, self),
            cast(Any, replicas),
            cast(Any, Mirror()),
            read_numbers,
        )

    async def tell_inventory(self, page: pb.TellInventoryRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.pages.append(page)


def wanted(name: str = "process-1") -> UnavailableError:
    return UnavailableError("an older copy", **{INVENTORY_WANTED: name})


async def test_all_that_it_holds_and_has_heard_is_told() -> None:
    record = Segment(
        segment_id=9,
        topic_id=b"t" * 16,
        topic="events",
        partition=3,
        state=SegmentState.SEALED,
        epoch=6,
        version=12,
    )
    world = World([replica(9, record), replica(4)])
    await world.telling.heard(wanted())
    [page] = world.pages
    assert (page.page, page.more, list(page.peers), page.coordinator_epoch) == (0, False, [2, 3], 8)
    assert (page.node.incarnation, page.node.disk_id, page.node.metadata_revision) == (
        *(5, b"disk"),
        90,
    )
    [first, second] = page.node.segments
    assert (first.segment_id, first.partition, first.base_offset, first.durable_end_offset) == (
        *(9, 3),
        *(10, 20),
    )
    assert (first.digest, first.length_bytes, first.promised_epoch) == (b"d" * 32, 300, 7)
    assert first.sealed and first.intact and first.record.version == 12
    assert not second.HasField("record")
    [topic] = page.topics
    assert (topic.name, topic.partitions) == ("events", 4)


async def test_many_segments_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory_telling, "ITEMS_PER_CALL_MAX", 2)
    world = World([replica(each) for each in range(1, 6)])
    await world.telling.heard(wanted())
    assert [(each.page, each.more) for each in world.pages] == [(0, True), (1, True), (2, False)]
    ids = [segment.segment_id for page in world.pages for segment in page.node.segments]
    assert ids == [1, 2, 3, 4, 5]
    assert [len(each.topics) for each in world.pages] == [1, 0, 0]


async def test_a_node_without_segments_tells_that() -> None:
    world = World([])
    await world.telling.heard(wanted())
    assert [(each.page, each.more) for each in world.pages] == [(0, False)]


async def test_each_process_is_told_once_and_again_where_it_failed() -> None:
    world = World([replica(1)])
    world.refusal = UnavailableError("gone")
    await world.telling.heard(wanted())
    world.refusal = None
    for name in ("process-1", "process-1", "process-2", "process-2"):
        await world.telling.heard(wanted(name))
    assert len(world.pages) == 2


async def test_who_does_not_ask_is_told_nothing() -> None:
    world = World([replica(1)])
    await world.telling.heard(UnavailableError("no coordinator there"))
    assert not world.pages


async def test_the_bucket_is_listed_first_and_beside_everything_else() -> None:
    listed = asyncio.Event()

    async def read_numbers() -> pb.ToldBucket:
        await listed.wait()
        return pb.ToldBucket(segment_ids_max=70, attempts_max=9)

    world = World([replica(4)], read_numbers)
    for _ in range(3):
        await world.telling.heard(wanted())
        await asyncio.sleep(0)
    assert world.pages == [], "it serves on, and is asked again"
    listed.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(3):
        await world.telling.heard(wanted())
    [page] = world.pages
    assert (page.bucket.segment_ids_max, page.bucket.attempts_max) == (70, 9)


async def test_a_bucket_that_can_t_be_read_is_told_with_its_problem() -> None:
    async def read_numbers() -> pb.ToldBucket:
        raise UnavailableError("the store is away")

    world = World([replica(4)], read_numbers)
    for _ in range(2):
        await world.telling.heard(wanted())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    [page] = world.pages
    assert page.bucket.problem == "the store is away"


async def test_a_node_without_a_store_says_nothing_of_one() -> None:
    world = World([replica(4)])
    await world.telling.heard(wanted())
    assert not world.pages[0].HasField("bucket")
