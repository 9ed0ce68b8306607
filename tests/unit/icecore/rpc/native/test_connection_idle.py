"""An idle connection costs a fixed number of frames, whatever the machine."""

import asyncio
import inspect
import math
import socket
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest

from icecore import Consumer
from icecore.rpc.native.client import Calls
from icecore.rpc.native.connection import NativeConnection, Timeouts
from icecore.rpc.native.frame import FrameKind, pack_head
from tests.support.native_peer import MIB, RawPeer, call_head, tormented
from tests.support.waiting import until

TIMEOUTS = Timeouts()
POLL_S: float = inspect.signature(Consumer).parameters["max_wait_ms"].default / 1000


class Caller:
    """A client's end of a connection whose server answers each ping, in a time of ours."""

    def __init__(self, *, may_park: bool) -> None:
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.connection = NativeConnection(ours, mock.Mock(), "peer", TIMEOUTS)
        self.calls = Calls(self.connection, may_park=may_park)
        self.now_s = float(math.ceil(asyncio.get_running_loop().time()))  # halves stay exact
        self.connection.heard_s = self.now_s
        self.pinged_s: list[float] = []

    def waits(self, seconds: float) -> None:
        """Let a caller wait this many seconds for one answer, which then comes."""
        call_id = self.calls.start("/t.T/wait", b"", 3600, lambda outcome: None)
        self.calls._newest_s = began_s = self.now_s
        while self.now_s < began_s + seconds:
            self.now_s += TIMEOUTS.check_every_s
            ask_after_s = self.calls.ask_after_s(self.now_s, TIMEOUTS)
            with mock.patch.object(self.connection, "send") as send:
                self.connection.check(self.now_s, ask_after_s=ask_after_s)
            if send.called:
                assert send.call_args.args[0] == FrameKind.PING
                self.pinged_s.append(self.now_s)
                self.connection.heard_s, self.connection._unanswered_checks = self.now_s, 0
        self.calls.forget(call_id)
        self.connection.heard_s = self.now_s

    def close(self) -> None:
        self.connection.lose("the test is over")
        self.theirs.close()


async def test_an_idle_consumer_asks_a_node_once_in_three_seconds() -> None:
    caller = Caller(may_park=True)
    for _ in range(10):
        caller.waits(POLL_S)
    polls = 10
    assert len(caller.pinged_s) + polls <= 0.35 * 10 * POLL_S  # each is one frame there, one back
    caller.close()


@pytest.mark.parametrize(("may_park", "within_s"), [(False, 3.0), (True, 7.0)])
async def test_a_silent_server_is_noticed(may_park: bool, within_s: float) -> None:
    """However long the call has waited by then."""
    caller = Caller(may_park=may_park)
    began_s = caller.now_s
    caller.waits(60)
    asked_s = [began_s, *caller.pinged_s]
    longest_s = max(after - before for before, after in pairwise(asked_s))
    assert longest_s + TIMEOUTS.check_every_s + TIMEOUTS.pong_within_s <= within_s
    caller.close()


async def test_who_reads_what_is_there_asks_as_soon_as_who_writes() -> None:
    """A call that has just begun is no parked one yet."""
    caller = Caller(may_park=True)
    began_s = caller.now_s
    caller.waits(3)
    assert caller.pinged_s[0] - began_s <= TIMEOUTS.awaited_ping_after_s + TIMEOUTS.check_every_s
    caller.close()


async def test_a_server_looks_at_no_connection_that_rests() -> None:
    async with tormented(timeouts=TIMEOUTS) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.call(1, "/t.T/wait")
        await until(lambda: house.started == 2)  # the neighbour's was the first
        ours = house.connection_of(peer)
        checked: list[NativeConnection] = []
        check = NativeConnection.check

        def noted(self: NativeConnection, *args: Any, **kwargs: Any) -> None:
            checked.append(self)
            check(self, *args, **kwargs)

        with mock.patch.object(NativeConnection, "check", noted):
            house.server._check()
            checked.clear()
            house.server._check()
            assert checked == []
            await peer.send(call_head(2, "/t.T/echo", MIB)[:20])  # a message that does not end
            await until(lambda: not ours._inbox.is_between_frames)
            house.server._check()
            house.server._check()
            assert checked == [ours, ours]
        peer.reset()
        house.go.set()


async def test_a_stream_is_looked_at_from_its_first_frame_on() -> None:
    async with tormented(timeouts=TIMEOUTS) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await until(lambda: house.connection_of(peer).has_greeted)
        house.server._check()
        ours = house.connection_of(peer)
        assert ours.rests_until_s == ours.heard_s + TIMEOUTS.ping_after_s
        await peer.send(pack_head(FrameKind.OPEN, 0, b"/t.T/idle", 0))
        await until(lambda: bool(house.streams))
        assert ours.rests_until_s == 0
        peer.reset()
        house.go.set()
