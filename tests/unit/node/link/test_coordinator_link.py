"""What a node's beats say and when there are none: they come from where the disk work is done."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import NotCoordinatorError
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.link.coordinator_link import CoordinatorLink, LedLog, Standing

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
        self.beats: list[pb.HeartbeatRequest] = []
        self.sent = asyncio.Event()

    async def write(self, body: bytes) -> None:
        self.beats.append(pb.HeartbeatRequest.FromString(body))
        self.sent.set()

    def cancel(self) -> None:
        """The writer has ended."""

    async def read(self) -> bytes | None:
        if self._answers:
            return self._answers.pop(0).SerializeToString()
        await asyncio.Event().wait()
        return None

    async def next_beat(self) -> None:
        self.sent.clear()
        await asyncio.wait_for(self.sent.wait(), 30)


class Executor:
    async def run(self, function: Any, *args: object) -> Any:
        return function(*args)


def link_of(disk: Disk) -> CoordinatorLink:
    context = SimpleNamespace(
        settings=SimpleNamespace(coordinator="c:1"),
        clock=SimpleNamespace(monotonic_ms=lambda: 0.0, now_ms=lambda: 1234),
        executor=Executor(),
        files=SimpleNamespace(space=lambda: (1, 2)),
        pool=disk,
        cluster_id=b"",
        node_id=1,
        incarnation=5,
        token=TOKEN,
    )
    link = CoordinatorLink(cast(Any, context), lambda _: None, lambda: Standing([3], LED))
    link._heartbeat_ms = 1
    return link


async def test_no_beats_while_a_disk_stalls() -> None:
    disk, stream = Disk(), Stream()
    talk = asyncio.create_task(link_of(disk)._converse(cast(Any, stream)))
    await stream.next_beat()
    disk.moves.clear()
    await asyncio.wait_for(disk.is_waited_for.wait(), 30)
    sent = len(stream.beats)
    await asyncio.sleep(0.05)  # fifty beats' time
    assert len(stream.beats) == sent
    disk.moves.set()
    await stream.next_beat()
    talk.cancel()
    with pytest.raises(asyncio.CancelledError):
        await talk


async def test_each_stream_begins_with_all_that_is_led_and_all_that_is_damaged() -> None:
    link = link_of(Disk())
    for _ in range(2):
        stream = Stream()
        talk = asyncio.create_task(link._converse(cast(Any, stream)))
        await stream.next_beat()
        talk.cancel()
        first = stream.beats[0]
        told = {each.segment_id: (each.high_watermark, each.length_bytes) for each in first.led}
        assert told == LED
        assert list(first.unknown_segment_ids) == [3]
        assert first.wall_clock_ms == 1234


async def test_a_coordinator_that_was_replaced_is_left() -> None:
    good, old = (pb.HeartbeatResponse(token=token, sequence=1) for token in (TOKEN, TOKEN - 1))
    for answers, was_heard in (([old], False), ([good, old], True)):
        link = link_of(Disk())
        with pytest.raises(NotCoordinatorError):
            await asyncio.wait_for(link._converse(cast(Any, Stream(*answers))), 30)
        assert (link.was_heard, link.is_connected) == (was_heard, False)
