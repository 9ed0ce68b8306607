"""Consumers that do more than follow: one that wanders and is restarted, one that reads it all.

A wanderer polls in its own time, seeks, and is stopped or killed and started again where it was;
what it is given must go up by one all the same. At the end somebody reads the topic from its
beginning, as a new user would, and must be given every record.
"""

import asyncio
import random
from typing import TYPE_CHECKING

from icecore.client.cluster.offsets import Position
from icecore.client.consume.consumer import Consumer
from icecore.client.consume.fetcher import OutOfRangePolicy
from icecore.errors import IcecoreError
from tests.simulation.history import Read
from tests.simulation.process import SimProcess
from tests.simulation.shells import bootstrap_of

if TYPE_CHECKING:
    from tests.simulation.cluster import World

WHOLE_READ_S = 300.0
"""A reader of little appetite needs thousands of fetches of some 40 ms each."""
SEEK_EACH = 8
"""One poll in so many is followed by a seek."""


def make_consumer(
    world: "World",
    name: str,
    topic: str,
    chance: random.Random,
    *,
    stop_at_end: bool = False,
    on_out_of_range: OutOfRangePolicy = "error",
) -> tuple[SimProcess, Consumer]:
    """A consumer of small or large appetite, in a process of its own. A large one is given row
    groups of what lies in object storage, where there is one."""
    process, net, clock, rng = world.client(name)
    max_bytes, fetch_bytes = chance.choice([2_000, 1 << 20]), chance.choice([500, 100_000])
    if world.has_store and max_bytes == 1 << 20:
        max_bytes, fetch_bytes = 16 << 20, 1 << 20
    consumer = Consumer(
        bootstrap_of(world, name),
        topic,
        stop_at_end=stop_at_end,
        on_out_of_range=on_out_of_range,
        max_bytes=max_bytes,
        fetch_bytes=fetch_bytes,
        max_wait_ms=chance.choice([50, 200, 30_000]),
        net=net,
        clock=clock,
        rng=rng,
    )
    return process, consumer


class Wanderer:
    """Polls, seeks, and begins again where it was.

    Args:
        world: Where it lives; what it reads goes into the history.
        topic: What it reads.
    """

    def __init__(self, world: "World", topic: str) -> None:
        self._world = world
        self._topic = topic
        self._rng = random.Random(f"wanderer {world.seed}")
        self._due: dict[int, int] = {}
        """The offset that must come next, by partition; missing = any."""
        self._seeks: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read."""
        self._task = asyncio.create_task(self._live())

    def stop(self) -> None:
        """Read no more, if it does."""
        if self._task is not None:
            self._task.cancel()
        process = self._world.processes.get("wanderer")
        if process is not None:
            process.kill("stopped", self._world.loop.time())

    async def _live(self) -> None:
        """One life after the other; each ends by itself or is killed."""
        while True:
            process, consumer = make_consumer(self._world, "wanderer", self._topic, self._rng)
            life = process.spawn(self._read(consumer, self._rng.randint(1, 30)))
            await asyncio.wait({life}, timeout=self._rng.uniform(1.0, 10.0))
            process.kill("restarted", self._world.loop.time())
            await asyncio.sleep(self._rng.uniform(0.05, 0.5))

    async def _read(self, consumer: Consumer, polls: int) -> None:
        rng = self._rng
        try:
            await consumer.start()
            for partition, offset in sorted(self._due.items()):
                await consumer.seek(partition, offset)
            for _ in range(polls):
                records = await consumer.poll(0.5, rng.choice([1, 3, 20, 1_000]))
                for each in records:
                    self._note(each.partition, each.offset, each.value or b"")
                if rng.randrange(SEEK_EACH) == 0:
                    await self._seek(consumer)
                await asyncio.sleep(rng.expovariate(1 / 0.4))
            await consumer.close()
        except IcecoreError as error:
            self._world.loop.trace(f"wanderer ends: {error.reason}")

    async def _seek(self, consumer: Consumer) -> None:
        """Back to where it has been, to the beginning, or to the end."""
        positions = consumer.position()
        partition = self._rng.choice(sorted(positions))
        offset = self._rng.randint(0, positions[partition])
        where: Position = self._rng.choice([offset, offset, "earliest", "latest"])
        # Whatever becomes of the call: another session begins, and what comes next is not known.
        self._due.pop(partition, None)
        self._seeks[partition] = self._seeks.get(partition, 0) + 1
        await consumer.seek(partition, where)
        if where != "latest":
            self._due[partition] = offset if isinstance(where, int) else 0

    def _note(self, partition: int, offset: int, value: bytes) -> None:
        world = self._world
        due = self._due.get(partition, offset)
        if offset != due and not self._is_lost(partition, due, offset):
            what = f"the wanderer was given {offset} of partition {partition}, {due} was due"
            world.loop.failures.append(what)
        self._due[partition] = offset + 1
        session = f"wanderer {partition} {self._seeks.get(partition, 0)}"
        now_s = world.loop.time()
        world.history.reads.append(Read(session, (self._topic, partition), offset, value, now_s))

    def _is_lost(self, partition: int, due: int, offset: int) -> bool:
        """Return whether all that was passed over lies in segments that were declared lost."""
        is_unavailable, key = self._world.history.is_unavailable, (self._topic, partition)
        return due < offset and all(is_unavailable(key, each) for each in range(due, offset))


async def read_whole(world: "World", topic: str) -> None:
    """A new consumer reads from the beginning to the end, by iterating or by polling.

    Raises:
        TimeoutError: It does not come to the end.
        IcecoreError: It gives up.
    """
    rng = random.Random(f"whole {world.seed}")
    session = f"whole {topic}"
    process, consumer = make_consumer(world, session, topic, rng, stop_at_end=True)
    history = world.history

    def note(partition: int, offset: int, value: bytes | None) -> None:
        now_s = world.loop.time()
        history.reads.append(Read(session, (topic, partition), offset, value or b"", now_s))

    async def read() -> None:
        await consumer.start()
        if rng.random() < 0.5:
            async for each in consumer:
                note(each.partition, each.offset, each.value)
        else:
            while records := await consumer.poll(WHOLE_READ_S, rng.choice([1, 7, 100, 10_000])):
                for each in records:
                    note(each.partition, each.offset, each.value)
        await consumer.close()

    async with asyncio.timeout(WHOLE_READ_S):
        await process.spawn(read())
    history.whole_sessions.add(session)
