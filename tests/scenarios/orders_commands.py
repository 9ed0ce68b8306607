"""Commands of the stories about orders on one node: who works on a segment, and who is overtaken.

An order does two things, and waits before each: it looks at the replica, then it changes it. A
story lets an order go on by its name. Coordinator epoch 5 is the highest that the node has heard at
first.
"""

import asyncio
from collections.abc import Coroutine
from typing import cast

from icecore.errors import FencedError
from icecore_node.context import NodeContext
from icecore_node.replica.orders import Order, Orders
from tests.scenarios.vocabulary import Vocabulary

TURNS = 20
"""Turns of the loop: more than any command needs until every order waits."""


class CoordinatorEpoch:
    """The only part of a node's context that orders read."""

    coordinator_epoch = 5


class OrdersRoom:
    """One node's orders on an event loop that runs only while a command does."""

    def __init__(self) -> None:
        self.context = CoordinatorEpoch()
        self.orders = Orders(cast(NodeContext, self.context))
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._gates: dict[str, asyncio.Semaphore] = {}
        self._lines: list[str] = []

    def begin(self, name: str, work: Coroutine[object, object, None]) -> None:
        """Something that the story calls by this name."""
        self._gates[name] = asyncio.Semaphore(0)
        self._tasks.add(self._loop.create_task(work))

    async def may_go_on(self, name: str) -> None:
        """Wait until the story says so."""
        await self._gates[name].acquire()

    def go_on(self, name: str) -> None:
        """The story says so."""
        self._gates[name].release()

    def say(self, line: str) -> None:
        """Print it."""
        self._lines.append(line)

    def settled(self) -> list[str]:
        """Run until everybody waits for the story; what was said."""
        for _ in range(TURNS):
            self._loop.run_until_complete(asyncio.sleep(0))
        lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        """Cancel every order, and close the loop."""
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()


ORDERS = Vocabulary(OrdersRoom, OrdersRoom.close)


@ORDERS.command
def order(room: OrdersRoom, *, name: str, segment: int, coordinator_epoch: int = 5) -> list[str]:
    """An order of the coordinator with this epoch arrives."""

    async def carry_out() -> None:
        try:
            async with room.orders.carry_out(segment, coordinator_epoch) as mine:
                await _two_steps(room, name, mine)
        except FencedError as error:
            room.say(f"{name}: ends, {error.message}")

    room.begin(name, carry_out())
    return room.settled()


async def _two_steps(room: OrdersRoom, name: str, mine: Order) -> None:
    room.say(f"{name}: begins")
    await mine.unless_overtaken(room.may_go_on(name))
    room.say(f"{name}: has looked at the replica")
    await mine.unless_overtaken(room.may_go_on(name))
    room.say(f"{name}: changes the replica, done")


@ORDERS.command
def role_changes(room: OrdersRoom, *, name: str, segments: tuple[int, ...]) -> list[str]:
    """The node itself works on some replicas; that is no order, and nothing overtakes it."""

    async def work() -> None:
        async with room.orders.alone(*segments):
            room.say(f"{name}: begins")
            await room.may_go_on(name)
            room.say(f"{name}: done")

    room.begin(name, work())
    return room.settled()


@ORDERS.command
def go_on(room: OrdersRoom, *, name: str) -> list[str]:
    """Let this order go on: what it waited for has come."""
    room.go_on(name)
    return room.settled()


@ORDERS.command
def fence(room: OrdersRoom, *, segment: int) -> list[str]:
    """A fence tells where this segment's log ends."""
    room.orders.overtake(segment, "a fence came")
    return room.settled()


@ORDERS.command
def coordinator(room: OrdersRoom, *, coordinator_epoch: int) -> list[str]:
    """A newer coordinator was heard."""
    room.context.coordinator_epoch = coordinator_epoch
    return room.settled()


@ORDERS.command
def delete(room: OrdersRoom, *, segment: int) -> list[str]:
    """The coordinator wants a segment deleted for good; that overtakes whatever is under way."""
    room.orders.note_deleted(segment)
    room.orders.overtake(segment, "it is deleted")
    return room.settled()


@ORDERS.command
def may_open(room: OrdersRoom, *, segment: int) -> list[str]:
    """Return whether an Open may still begin a log for this segment."""
    return ["no: it was deleted" if room.orders.was_deleted(segment) else "yes"]
