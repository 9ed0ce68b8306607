"""A topic that is deleted and made again under traffic: each life of it is a log of its own.

Its producer and its consumer know it by name only and are not told. What was acknowledged in the
last life must be there in the end; nothing that was acknowledged before may show up in it; and a
consumer that goes on in the new topic must be given it from its first record on, or fail.
"""

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from icecore.client.admin.admin import Admin
from icecore.client.produce.producer import Producer
from icecore.errors import IcecoreError, UnknownTopicError
from icecore.model import Acks
from icecore.topic_settings import UNAVAILABLE_ON_LOSS
from tests.simulation import checkers
from tests.simulation.history import History, Outcome, Produce, Read
from tests.simulation.observer import Observer
from tests.simulation.plan import Plan
from tests.simulation.readers import make_consumer
from tests.simulation.shells import bootstrap_of
from tests.simulation.workload import make_topic

if TYPE_CHECKING:
    from tests.simulation.cluster import World

COORDINATOR = "coordinator"
PARTITIONS = 2
HEAL_S = 60.0


class FleetingTopic:
    """One such topic and its traffic.

    Args:
        world: Where it lives.
        plan: Of the world.
        name: Of the topic.
    """

    def __init__(self, world: "World", plan: Plan, name: str) -> None:
        self._world = world
        self._plan = plan
        self.name = name
        self._rng = random.Random(f"{name} {world.seed}")
        self._produces: list[Produce] = []
        self._segments: dict[int, int] = {}
        """The segment of each acknowledged record, by its number; a segment is of one life only.
        For a repeated record it is the segment whose leader answered, which may be empty and
        dropped later."""
        self._repeated: set[int] = set()
        self._reads: list[Read] = []
        self._sessions = 0
        self._born_s = 0.0
        """A time at or after the beginning of the current life, in seconds."""
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    # --- its lives ------------------------------------------------------------------------------

    async def live(self, lives: int, life_s: float) -> None:
        """Be made, and deleted and made again so many times."""
        process, net, clock, rng = self._world.client(f"admin of {self.name}")

        async def rule() -> None:
            address = self._world.coordinator_address
            async with Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng) as admin:
                await self._make(admin)
                self._begin()
                for _ in range(lives):
                    await asyncio.sleep(self._rng.uniform(0.2, life_s))
                    await self._delete(admin)
                    await asyncio.sleep(self._rng.choice([0.0, 0.05, 1.0]))
                    await self._make(admin)

        await process.spawn(rule())

    async def _make(self, admin: Admin) -> None:
        """However long it takes."""
        knobs, plan = self._plan.knobs, self._plan
        self._born_s = self._world.loop.time()
        await make_topic(
            self._world,
            plan,
            admin,
            self.name,
            partitions=PARTITIONS,
            file_model=plan.file_model,
            engine=plan.engine,
            on_total_loss=UNAVAILABLE_ON_LOSS,
            segment_bytes=min(knobs.segment_bytes, 16 * 1024),
        )

    async def _delete(self, admin: Admin) -> None:
        while True:
            try:
                await admin.delete_topic(self.name)
            except UnknownTopicError:
                return
            except IcecoreError as error:
                self._world.loop.trace(f"{self.name} not deleted: {error.reason}")
                await asyncio.sleep(0.2)
            else:
                return

    # --- its traffic ----------------------------------------------------------------------------

    def _begin(self) -> None:
        process, net, clock, rng = self._world.client(f"producer of {self.name}")
        producer = Producer(
            bootstrap_of(self._world, self.name),
            acks=Acks.ALL,
            linger_ms=self._rng.choice([0, 5]),
            request_timeout_ms=3_000,
            delivery_timeout_ms=20_000,
            net=net,
            clock=clock,
            rng=rng,
        )
        self._tasks.append(process.spawn(self._produce(producer)))
        self._tasks.append(asyncio.create_task(self._read_on()))

    async def _produce(self, producer: Producer) -> None:
        await producer.start()
        waiting: list[asyncio.Task[None]] = []
        while not self._stopping:
            waiting.append(asyncio.create_task(self._send(producer)))
            await asyncio.sleep(self._rng.expovariate(1 / 0.03))
        await asyncio.gather(*waiting)
        await self._send(producer, until_acked=True)
        await producer.close()

    async def _send(self, producer: Producer, *, until_acked: bool = False) -> None:
        """One record; with ``until_acked`` another one until it is acknowledged."""
        while True:
            number = len(self._produces)
            partition = (self.name, self._rng.randrange(PARTITIONS))
            value = f"{self.name} {number}".encode()
            now_s = self._world.loop.time()
            produce = Produce("producer", number, partition, value, Acks.ALL, now_s)
            self._produces.append(produce)
            try:
                (landed,) = await producer.send_batch(self.name, [value], partition=partition[1])
                produce.offset, self._segments[number] = landed.base_offset, landed.segment_id
                if landed.duplicate:
                    self._repeated.add(number)
                produce.outcome = Outcome.OK
            except IcecoreError as error:
                produce.outcome = Outcome.UNKNOWN if error.indeterminate else Outcome.FAIL
            produce.ended_s = self._world.loop.time()
            if produce.outcome is Outcome.OK or not until_acked:
                return
            await asyncio.sleep(0.2)

    async def _read_on(self) -> None:
        """A consumer for as long as it goes; then another one."""
        while True:
            self._sessions += 1
            session = f"{self.name} consumer {self._sessions}"
            process, consumer = make_consumer(self._world, session, self.name, self._rng)

            async def read(session: str = session, consumer: object = consumer) -> None:
                try:
                    await consumer.start()  # type: ignore[attr-defined]
                    async for each in consumer:  # type: ignore[attr-defined]
                        where, now_s = (self.name, each.partition), self._world.loop.time()
                        value = each.value or b""
                        self._reads.append(Read(session, where, each.offset, value, now_s))
                except IcecoreError as error:
                    self._world.loop.trace(f"{session} ends: {error.reason}")

            await asyncio.wait({process.spawn(read())})
            process.kill("gave up", self._world.loop.time())
            await asyncio.sleep(0.1)

    # --- the verdict ----------------------------------------------------------------------------

    async def finish(self, observer: Observer) -> list[str]:
        """Stop, read what is there, and judge. Everything is healed by now.

        Raises:
            TimeoutError: The producer is stuck, or a consumer does not get to the end.
        """
        if not self._tasks:
            return []
        self._stopping = True
        history = History(produces=[])
        async with asyncio.timeout(HEAL_S):
            await self._tasks[0]
            segments = {each.segment_id for each in await observer.segments(self.name)}
            history.produces = self._produces_of_last_life(segments)
            problems = await observer.read_everything(self.name, history)
            final = {partition: dict(found) for partition, found in history.final.items()}
            last = {(each.partition, each.value) for each in self._reads}
            while not all(
                (partition, value) in last
                for partition, found in final.items()
                for value in found.values()
            ):
                await asyncio.sleep(0.2)
                last = {(each.partition, each.value) for each in self._reads}
        self._tasks[1].cancel()
        history.reads = self._reads_of_last_life(final)
        problems += [str(each) for each in checkers.check(history)]
        return [*problems, *self._late_beginnings(history)]

    def _produces_of_last_life(self, segments: set[int]) -> list[Produce]:
        """All that is in it, or may be: what was sent before and never answered may be, or not.

        A leader that has not heard of the deletion yet acknowledges into the life before (R68),
        also what was sent after the deletion was answered: only the segment tells.
        """
        found: list[Produce] = []
        for number, each in enumerate(self._produces):
            is_late = each.ended_s >= self._born_s
            if each.outcome is Outcome.OK and self._segments[number] in segments:
                found.append(each)
            elif each.outcome is Outcome.OK:
                if number in self._repeated and is_late:
                    found.append(replace(each, outcome=Outcome.UNKNOWN, offset=-1))
            elif each.began_s >= self._born_s:
                found.append(each)
            elif is_late and each.outcome is not Outcome.FAIL:
                found.append(replace(each, outcome=Outcome.UNKNOWN, offset=-1))
        return found

    def _reads_of_last_life(self, final: dict[tuple[str, int], dict[int, bytes]]) -> list[Read]:
        """Return the reads of each session from its first record of the last life on."""
        found: list[Read] = []
        arrived: set[tuple[str, tuple[str, int]]] = set()
        values = {(partition, value) for partition, log in final.items() for value in log.values()}
        for each in self._reads:
            session = (each.session, each.partition)
            if (each.partition, each.value) in values:
                arrived.add(session)
            if session in arrived:
                found.append(each)
        return found

    def _late_beginnings(self, history: History) -> list[str]:
        """Sessions that came into the new topic behind its first record."""
        first: dict[tuple[str, tuple[str, int]], int] = {}
        for each in history.reads:
            first.setdefault((each.session, each.partition), each.offset)
        return [
            f"skip: {session} went on in the new {partition} at {offset}"
            for (session, partition), offset in first.items()
            if offset != history.log_start.get(partition, 0)
        ]
