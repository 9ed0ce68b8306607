"""A node carries out delete orders beside its workers, in groups, and each for ever."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import StorageError
from icecore.model import Epoch, NodeId, Segment, SegmentId, SegmentState
from icecore_node.context import Tasks
from icecore_node.identity.identity import Identity
from icecore_node.identity.node_report import NodeReport
from icecore_node.maintenance import file_deletions as module
from icecore_node.maintenance.file_deletions import FileDeletions
from icecore_node.ports import DiskLostError
from icecore_node.replica.orders import Orders


class FakeQueue:
    """A thread that works when told to."""

    def __init__(self, process: Callable[[list[Any]], object], deliver: Any, limit: int) -> None:
        self.items: list[Any] = []
        self.is_closed = False
        self._process, self._deliver, self._limit = process, deliver, limit

    def submit(self, item: Any) -> None:
        self.items.append(item)

    def close(self) -> None:
        self.is_closed = True

    def work(self) -> None:
        """One group."""
        group = [self.items.pop(0) for _ in range(min(len(self.items), self._limit))]
        self._deliver(self._process(group))


class FakeWorker:
    """The worker of a partition's log."""

    def __init__(self, ran: list[Any]) -> None:
        self._ran = ran

    async def run(self, function: Callable[..., Any], *args: Any) -> None:
        self._ran.append(function)


def _unexpected(error: BaseException) -> None:
    raise error


class Node:
    """The parts of a node that deletions see."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.ran_on_workers: list[Any] = []
        self.groups: list[list[int]] = []
        self.in_the_way: set[int] = set()
        self.error = StorageError("simulated")
        identity = Identity(1)
        identity.hear(7)
        ages = itertools.count(step=module.GROUP_EVERY_MS)  # so that nobody has to wait
        self.context = SimpleNamespace(
            clock=SimpleNamespace(monotonic_ms=lambda: next(ages)),
            executor=self,
            store=SimpleNamespace(removal=self),
            identity=identity,
            tasks=Tasks(_unexpected),
            settings=SimpleNamespace(timing=SimpleNamespace(deletion_retry_ms=1_000)),
        )
        self.orders = Orders(identity)
        self.report = NodeReport()
        self.deletions = FileDeletions(
            cast(Any, self.context), cast(Any, self), self.orders, self.report
        )

    def worker(self, _: str, process: Any, deliver: Any, *, group_items_max: int) -> FakeQueue:
        self.queue = FakeQueue(process, deliver, group_items_max)
        return self.queue

    def hold(self, *segment_ids: int) -> None:
        for segment_id in segment_ids:
            self.held[segment_id] = SimpleNamespace(
                segment_id=segment_id,
                log=SimpleNamespace(worker=FakeWorker(self.ran_on_workers)),
                is_retired=False,
            )

    def get(self, segment_id: int) -> Any:
        return self.held.get(segment_id)

    def retire(self, replica: Any) -> None:
        replica.is_retired = True

    def remove(self, replica: Any) -> None:
        assert replica.is_retired
        del self.held[replica.segment_id]

    def delete(self, segment_ids: Sequence[int], coordinator_epoch: int) -> None:
        assert coordinator_epoch == self.context.identity.coordinator_epoch
        self.groups.append(list(segment_ids))
        if self.in_the_way.intersection(segment_ids):
            raise self.error

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def node() -> Node:
    return Node()


async def finish(node: Node) -> None:
    await node.settle()
    while node.queue.items:
        node.queue.work()
        await node.settle()


async def test_files_go_in_groups_and_never_on_a_worker_of_appends(node: Node) -> None:
    ids = list(range(1, 2 * module.GROUP_MAX + 2))
    node.hold(*ids)
    for each in ids:
        node.deletions.order(each)
    assert all(each.is_retired for each in node.held.values()), "no role from the order on"
    await finish(node)
    assert [len(group) for group in node.groups] == [module.GROUP_MAX, module.GROUP_MAX, 1]
    assert not node.held
    assert set(node.ran_on_workers) == {module._nothing}, "only what waits for appends before it"


def test_a_thousand_orders_leave_the_disk_to_others_in_between() -> None:
    turns = module._Turns()
    waits = [turns.take(5_000) for _ in range(3 * module.GROUP_MAX)]
    assert waits == [
        group * module.GROUP_EVERY_MS for group in range(3) for _ in range(module.GROUP_MAX)
    ]
    assert turns.take(5_000 + module.GROUP_EVERY_MS) == 2 * module.GROUP_EVERY_MS, "behind them"


def test_orders_that_come_one_by_one_wait_for_nothing() -> None:
    turns = module._Turns()
    every_ms = module.GROUP_EVERY_MS / module.GROUP_MAX
    assert not any(turns.take(each * every_ms) for each in range(100))


async def test_an_order_outlives_what_it_was_for(node: Node) -> None:
    node.hold(1)
    node.deletions.order(1)
    node.deletions.order(2)
    await finish(node)
    assert [node.orders.was_deleted(each) for each in (1, 2, 3)] == [True, True, False]


async def test_one_that_is_in_the_way_stops_no_other(node: Node) -> None:
    node.hold(1, 2, 3)
    node.in_the_way = {2}
    for each in (1, 2, 3):
        node.deletions.order(each)
    await finish(node)
    assert list(node.held) == [2]


async def test_who_changes_the_log_ends_first_and_a_copy_made_meanwhile_goes_too(
    node: Node,
) -> None:
    node.hold(1)
    async with node.orders.alone(1):
        node.deletions.order(1)
        node.deletions.order(1)
        await finish(node)
        assert node.groups == []
        node.hold(1)  # it was set aside and copied again
    await finish(node)
    assert node.groups == [[1]] and not node.held


def surplus(version: int) -> Segment:
    segment = Segment(SegmentId(1), b"t" * 16, "t", 0, SegmentState.SEALED, Epoch(1))
    return segment.changed(version=version, surplus=(NodeId(1),))


async def test_a_copy_too_many_goes_and_another_one_may_come(node: Node) -> None:
    node.hold(1)
    node.held[1].segment = surplus(7)
    node.deletions.drop_surplus(surplus(7))
    await finish(node)
    assert node.groups == [[1]] and not node.held
    assert not node.orders.was_deleted(SegmentId(1))
    assert [node.orders.was_dropped(SegmentId(1), each) for each in (7, 8)] == [True, False]


async def test_who_has_no_copy_says_so(node: Node) -> None:
    node.deletions.drop_surplus(surplus(7))
    await finish(node)
    assert node.groups == [] and list(node.report._news.deleted) == [1]


@pytest.mark.parametrize("known", [8, 6, None])
async def test_a_copy_of_another_record_stays(node: Node, known: int | None) -> None:
    """It was made since, or its record is diverged."""
    node.hold(1)
    node.held[1].segment = None if known is None else surplus(known)
    node.deletions.drop_surplus(surplus(7))
    await finish(node)
    assert node.groups == [] and 1 in node.held


@contextlib.asynccontextmanager
async def waits_for_its_turn(node: Node) -> AsyncIterator[None]:
    """A copy is to be dropped; the turn of that comes when the body is done."""
    node.hold(1)
    node.held[1].segment = surplus(7)
    async with node.orders.alone(SegmentId(1)):
        node.deletions.drop_surplus(surplus(7))
        await finish(node)
        yield
    await finish(node)


async def test_a_newer_record_that_comes_before_the_turn_stops_it(node: Node) -> None:
    async with waits_for_its_turn(node):
        node.held[1].segment = surplus(8)
    assert node.groups == [] and 1 in node.held


async def test_a_newer_record_that_says_the_same_is_obeyed_in_its_place(node: Node) -> None:
    """Else the copy would be no target of repair for as long as the stream lasts."""
    async with waits_for_its_turn(node):
        node.held[1].segment = surplus(8)  # another copy was lost meanwhile
        node.deletions.drop_surplus(surplus(8))
    assert node.groups == [[1]] and not node.held


async def test_a_copy_that_counts_since_is_kept(node: Node) -> None:
    """The order to drop it was taken back, and the copy found whole, before it was obeyed."""
    async with waits_for_its_turn(node):
        node.orders.note_copied(SegmentId(1), 8)
    assert node.groups == [] and 1 in node.held
    node.held[1].segment = surplus(9)
    node.deletions.drop_surplus(surplus(9))
    await finish(node)
    assert node.groups == [[1]] and not node.held, "a newer order holds"


async def test_an_order_to_delete_holds_whatever_copy_was_to_be_dropped(node: Node) -> None:
    async with waits_for_its_turn(node):
        node.held[1].segment = surplus(8)
        node.deletions.order(1)
    assert node.groups == [[1]] and not node.held


@pytest.mark.parametrize("is_surplus", [False, True])
async def test_what_could_not_be_deleted_is_tried_again_without_another_order(
    node: Node, monkeypatch: pytest.MonkeyPatch, is_surplus: bool
) -> None:
    """The coordinator counts on the room, and orders it again with the next stream only."""
    node.context.settings.timing.deletion_retry_ms = 0
    turns: list[float] = []
    take = module._Turns.take

    def taken(all_turns: Any, now_ms: float) -> float:
        turns.append(now_ms)
        return take(all_turns, now_ms)

    monkeypatch.setattr(module._Turns, "take", taken)
    node.hold(1)
    node.held[1].segment = surplus(7)
    node.in_the_way = {1}
    if is_surplus:
        node.deletions.drop_surplus(surplus(7))
    else:
        node.deletions.order(1)
    await node.settle()
    node.queue.work()
    assert not node.report._news.deleted
    node.in_the_way = set()
    await finish(node)
    assert not node.held
    assert list(node.report._news.deleted) == [1]
    assert len(turns) >= 2, "a crowd of retries leaves the disk to others, too"


async def test_what_lies_on_a_lost_disk_is_not_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "error", DiskLostError("simulated"))
    node.context.settings.timing.deletion_retry_ms = 0
    node.hold(1)
    node.in_the_way = {1}
    node.deletions.order(1)
    await finish(node)
    assert node.groups == [[1], [1]], "with its group, and alone"
    node.in_the_way = set()
    node.deletions.order(1)
    await finish(node)
    assert not node.held
