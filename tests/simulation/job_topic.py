"""The topic of a simulated job: it is written all the time, loses its oldest records, gets more
partitions, and is deleted and made again when somebody says so.

Each life of it has a producer of its own, which ends before the topic is deleted. So it is known of
each value in which life it was sent.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icecore.client.admin.admin import Admin
from icecore.client.produce.producer import Producer
from icecore.errors import IcecoreError, UnknownTopicError
from icecore.model import Acks
from tests.simulation.plan import Plan
from tests.simulation.process import SimProcess
from tests.simulation.shells import bootstrap_of, coordinator_address
from tests.simulation.workload import make_topic

if TYPE_CHECKING:
    from tests.simulation.cluster import World

COORDINATOR = "coordinator"
PARTITIONS_MAX = 4
BAD_SHARE = 0.1
RETRY_S = 0.2
RECORDS_MAX = 400
"""Records of one life, at most."""
Place = tuple[int, int]
"""Partition and offset."""


def is_bad(value: str) -> bool:
    """Return whether a value does not parse, and belongs into the quarantine."""
    return " bad " in value


@dataclass
class JobLife:
    """All that was done to a topic of one id."""

    topic_id: str
    """As hex digits."""
    sent: set[str] = field(default_factory=set)
    acked: dict[Place, str] = field(default_factory=dict)
    dropped_below: dict[int, int] = field(default_factory=dict)
    """The highest offset, by partition, below which records were deleted, or may have been."""


class JobTopic:
    """One such topic.

    Args:
        world: Where it lives.
        plan: Of the world.
        name: Of the topic.
        mean_s: Mean time between two records; 0 = nobody but a job writes.
    """

    def __init__(self, world: "World", plan: Plan, name: str, *, mean_s: float = 0.06) -> None:
        self._world = world
        self._plan = plan
        self.name = name
        self._mean_s = mean_s
        self._rng = random.Random(f"{name} {world.seed}")
        self.partitions = self._rng.choice([1, 2, 3])
        self.lives: list[JobLife] = []
        self._count = 0
        self._writer: tuple[SimProcess, asyncio.Task[None]] | None = None

    # --- what is done to it ---------------------------------------------------------------------

    async def make(self) -> None:
        """Make it, and begin to write."""
        segment_bytes = self._rng.choice([2, 4, 16]) * 1024

        async def make(admin: Admin) -> None:
            await make_topic(
                self._world,
                self._plan,
                admin,
                self.name,
                partitions=self.partitions,
                segment_bytes=segment_bytes,
            )
            (found,) = await admin.describe_topics([self.name])
            self.lives.append(JobLife(found.topic_id.hex()))

        await self._persist(make)
        if self._mean_s:
            self._write_on()

    async def make_again(self) -> None:
        """Delete it, and make it again."""
        self.stop_writing()

        async def delete(admin: Admin) -> None:
            try:
                await admin.delete_topic(self.name)
            except UnknownTopicError:
                return

        await self._persist(delete)
        self.partitions = self._rng.choice([self.partitions, self._rng.randint(1, 3)])
        await self.make()
        self._world.count_fault("topic_made_again")

    async def drop_records(self, share: float) -> None:
        """Delete the oldest records of each partition, that share of them."""
        life = self.lives[-1]
        ends: dict[int, int] = {}
        for partition, offset in life.acked:
            ends[partition] = max(ends.get(partition, 0), offset)
        before = {partition: int(end * share) for partition, end in sorted(ends.items())}
        if not before:
            return
        for partition, offset in before.items():
            life.dropped_below[partition] = max(offset, life.dropped_below.get(partition, 0))
        by_hand = self._world.deleted_by_hand
        by_hand[self.name] = max(by_hand.get(self.name, 0), *before.values())

        async def drop(admin: Admin) -> None:
            await admin.delete_records(self.name, before)

        await self._persist(drop)
        self._world.count_fault("records_deleted")

    async def add_partition(self) -> None:
        """One more, unless there are many."""
        wanted = min(PARTITIONS_MAX, self.partitions + 1)
        if wanted == self.partitions:
            return

        async def add(admin: Admin) -> None:
            await admin.add_partitions(self.name, wanted)

        await self._persist(add)
        self.partitions = wanted
        if self._writer is not None:  # who writes would hear of it in some minutes
            self.stop_writing()
            self._write_on()
        self._world.count_fault("partitions_added")

    async def _persist(self, act: Callable[[Admin], Awaitable[None]]) -> None:
        """Ask until it is done, whatever fails meanwhile."""
        process, net, clock, rng = self._world.client(
            f"admin {self._world.loop.next_serial()} of {self.name}"
        )

        async def ask() -> None:
            address = coordinator_address(COORDINATOR)
            async with Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng) as admin:
                while True:
                    try:
                        await act(admin)
                    except IcecoreError as error:
                        self._world.loop.trace(f"{process}: {error.reason}")
                        await asyncio.sleep(RETRY_S)
                    else:
                        return

        await process.spawn(ask())

    # --- its records ----------------------------------------------------------------------------

    def stop_writing(self) -> None:
        """Send nothing more."""
        if self._writer is not None:
            self._writer[0].kill("it has written enough", self._world.loop.time())

    def _write_on(self) -> None:
        name = f"producer {self._world.loop.next_serial()} of {self.name}"
        process, net, clock, rng = self._world.client(name)
        producer = Producer(
            bootstrap_of(self._world, name),
            acks=Acks.ALL,
            linger_ms=self._rng.choice([0, 5]),
            request_timeout_ms=3_000,
            delivery_timeout_ms=20_000,
            net=net,
            clock=clock,
            rng=rng,
        )
        self._writer = process, process.spawn(self._write(producer, self.lives[-1]))

    async def _write(self, producer: Producer, life: JobLife) -> None:
        await producer.start()
        sending: set[asyncio.Task[None]] = set()
        while len(life.sent) < RECORDS_MAX:
            for _ in range(self._rng.choice([1, 1, 1, 6])):
                task = asyncio.create_task(self._send(producer, life))
                sending.add(task)
                task.add_done_callback(sending.discard)
            await asyncio.sleep(self._rng.expovariate(1 / self._mean_s))
        await asyncio.gather(*sending)

    async def _send(self, producer: Producer, life: JobLife) -> None:
        self._count += 1
        kind = "bad" if self._rng.random() < BAD_SHARE else "ok"
        value = f"{self.name} {self._count} {kind} " + "x" * self._rng.choice([5, 100])
        partition = self._rng.randrange(self.partitions)
        life.sent.add(value)
        try:
            (landed,) = await producer.send_batch(self.name, [value.encode()], partition=partition)
        except IcecoreError as error:
            self._world.loop.trace(f"{self.name} not written: {error.reason}")
        else:
            life.acked[partition, landed.base_offset] = value
