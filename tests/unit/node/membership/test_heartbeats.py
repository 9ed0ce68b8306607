"""Heartbeats of a node come from the place of the disk work; they stop while a disk stalls."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import FencedError, NotCoordinatorError, RequestTimeoutError, WrongClusterError
from icecore.model import CoordinatorEpoch, SegmentId
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.identity.identity import Identity, Lease
from icecore_node.identity.node_report import InitialReport, LedLog, NodeReport
from icecore_node.membership.heartbeats import Heartbeats

LED = {11: LedLog(7, 800), 12: LedLog(0, 0)}
TOKEN = 4
"""The highest this node has seen."""


class Disk:
    """Stands for the I/O pool: a probe returns when its workers have got through their queues."""

    def __init__(self) -> None:
        self.moves = asyncio.Event()
        self.moves.set()
        self.is_waited_for = asyncio.Event()

    async def probe(self) -> None:
        if not self.moves.is_set():
            self.is_waited_for.set()
        await self.moves.wait()


class Stream:
    """Heartbeats that were sent, and what the coordinator answers: nothing, or all at once."""

    def __init__(self, *answers: pb.HeartbeatResponse) -> None:
        self._answers = list(answers)
        self.heartbeats: list[pb.HeartbeatRequest] = []
        self.sent = asyncio.Event()

    async def write(self, body: bytes) -> None:
        self.heartbeats.append(pb.HeartbeatRequest.FromString(body))
        self.sent.set()

    def cancel(self) -> None:
        """The writer has ended."""

    async def read(self) -> bytes | None:
        if self._answers:
            return self._answers.pop(0).SerializeToString()
        await asyncio.Event().wait()
        return None

    async def next_heartbeat(self) -> None:
        self.sent.clear()
        await asyncio.wait_for(self.sent.wait(), 30)


class Executor:
    async def run(self, function: Any, *args: object) -> Any:
        return function(*args)

    run_first = run


class NoReport:
    """A disk report that says nothing."""

    def begin(self) -> None:
        """A new stream."""

    def measured(self, _: object, used: int, free: int) -> None:
        """Return how full it is."""

    async def fill(self, _: object) -> None:
        """Add nothing to a heartbeat."""


def heartbeats_of(disk: Disk, *, has_others: bool = False) -> Heartbeats:
    identity = Identity(1)
    identity.register(b"", incarnation=5, coordinator_epoch=TOKEN)
    context: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic_ms=lambda: 0.0, now_ms=lambda: 1234),
        executor=Executor(),
        disks=SimpleNamespace(space=lambda: (1, 2), usage=list),
        pool=disk,
        settings=SimpleNamespace(coordinator="c:1,d:1" if has_others else "c:1"),
        identity=identity,
    )
    heartbeats = Heartbeats(
        context,
        cast(Any, SimpleNamespace(address="c:1")),
        lease=Lease(context.clock),
        report=NodeReport(),
        disk_report=cast(Any, NoReport()),
        standing=lambda: InitialReport([3], LED),
        on_update=lambda _: None,
        on_refused=cast(Any, None),
    )
    heartbeats.set_times(interval_ms=1, lease_ms=0)
    return heartbeats


async def test_no_heartbeats_while_a_disk_stalls() -> None:
    disk, stream = Disk(), Stream()
    talk = asyncio.create_task(heartbeats_of(disk)._converse(cast(Any, stream)))
    await stream.next_heartbeat()
    disk.moves.clear()
    await asyncio.wait_for(disk.is_waited_for.wait(), 30)
    sent = len(stream.heartbeats)
    await asyncio.sleep(0.05)  # fifty heartbeats' time
    assert len(stream.heartbeats) == sent
    disk.moves.set()
    await stream.next_heartbeat()
    talk.cancel()
    with pytest.raises(asyncio.CancelledError):
        await talk


async def test_each_stream_begins_with_all_that_is_led_and_all_that_is_damaged() -> None:
    heartbeats = heartbeats_of(Disk())
    heartbeats._report.report_vanished(SegmentId(4))
    for _ in range(2):
        stream = Stream()
        talk = asyncio.create_task(heartbeats._converse(cast(Any, stream)))
        await stream.next_heartbeat()
        talk.cancel()
        first = stream.heartbeats[0]
        told = {each.segment_id: (each.high_watermark, each.length_bytes) for each in first.led}
        assert told == LED
        assert list(first.unknown_segment_ids) == [3, 4]
        assert list(first.vanished_segment_ids) == [4]
        assert first.wall_clock_ms == 1234


@pytest.mark.parametrize("has_others", [True, False])
async def test_a_coordinator_that_stands_still_is_left_where_there_are_others(
    has_others: bool,
) -> None:
    heartbeats = heartbeats_of(Disk(), has_others=has_others)
    heartbeats.set_times(interval_ms=1, lease_ms=100)
    good = pb.HeartbeatResponse(coordinator_epoch=TOKEN, sequence=1)
    talk = asyncio.create_task(heartbeats._converse(cast(Any, Stream(good))))
    done, _ = await asyncio.wait((talk,), timeout=0.3)
    assert bool(done) is has_others
    if has_others:
        with pytest.raises(RequestTimeoutError, match="c:1 has said nothing for 50 ms"):
            await talk
    talk.cancel()


async def test_a_coordinator_that_was_replaced_is_left() -> None:
    good, old = (
        pb.HeartbeatResponse(coordinator_epoch=coordinator_epoch, sequence=1)
        for coordinator_epoch in (TOKEN, TOKEN - 1)
    )
    for answers, was_heard in (([old], False), ([good, old], True)):
        heartbeats = heartbeats_of(Disk())
        with pytest.raises(NotCoordinatorError):
            await asyncio.wait_for(heartbeats._converse(cast(Any, Stream(*answers))), 30)
        assert (heartbeats.was_heard, heartbeats.is_connected) == (was_heard, False)


async def test_who_heard_its_coordinator_leaves_older_and_foreign_ones_and_serves_on() -> None:
    heartbeats = heartbeats_of(Disk())
    heartbeats._context.identity.hear(CoordinatorEpoch(TOKEN), 50)
    good = pb.HeartbeatResponse(coordinator_epoch=TOKEN, sequence=1, metadata_revision=60)
    older = pb.HeartbeatResponse(coordinator_epoch=TOKEN + 1, sequence=1, metadata_revision=59)
    taken: list[int] = []
    heartbeats._on_update = lambda update: taken.append(update.metadata_revision)
    heartbeats._context.identity.hear(CoordinatorEpoch(TOKEN), 60)
    with pytest.raises(FencedError, match="older copy"):
        await asyncio.wait_for(heartbeats._converse(cast(Any, Stream(good, older))), 30)
    assert taken == [60]
    heartbeats._note_broken(WrongClusterError("this is cluster 2, not 1"))
    heartbeats._note_broken(FencedError("an older copy"))


def test_a_node_that_never_heard_its_coordinator_ends_at_a_foreign_one() -> None:
    with pytest.raises(WrongClusterError):
        heartbeats_of(Disk())._note_broken(WrongClusterError("this is cluster 2, not 1"))
