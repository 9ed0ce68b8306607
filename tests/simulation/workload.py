"""Traffic of the production clients, recorded as a history."""

import asyncio
import random
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from icecore.client.admin.admin import Admin
from icecore.client.consume.consumer import Consumer
from icecore.client.produce import sender
from icecore.client.produce.partition_queue import PartitionQueue
from icecore.client.produce.producer import Producer
from icecore.errors import (
    IcecoreError,
    InternalError,
    InvalidRequestError,
    NotEnoughReplicasError,
    TopicExistsError,
    UnknownTopicError,
)
from icecore.model import Acks
from icecore.topic_settings import FlushMode
from tests.simulation.history import Outcome, Produce, Read
from tests.simulation.labels import key_of, tags_of
from tests.simulation.plan import Plan
from tests.simulation.process import SimProcess
from tests.simulation.readers import make_consumer
from tests.simulation.shells import bootstrap_of

if TYPE_CHECKING:
    from tests.simulation.cluster import World

COORDINATOR = "coordinator"
DELIVERY_TIMEOUT_MS = 20_000
REQUEST_BYTES_MIN = 200
"""Minimum bytes of a request beside others, as small as everything else here is."""


def small_requests() -> AbstractContextManager[object]:
    """Producers have several requests under way, although their records are few."""
    return patch.object(sender, "REQUEST_BYTES_MIN", REQUEST_BYTES_MIN)


async def make_topic(world: "World", plan: Plan, admin: Admin, name: str, **settings: Any) -> None:
    """Make a topic with as many copies as a plan has, whatever fails meanwhile; one that is there
    stays as it is."""
    while True:
        try:
            await admin.create_topic(
                name,
                replication_factor=plan.replication_factor,
                min_insync_replicas=plan.min_insync_replicas,
                segment_age_ms=plan.knobs.segment_age_ms,
                **settings,
            )
        except TopicExistsError:
            return
        except IcecoreError as error:
            world.loop.trace(f"{name} not made: {error.reason}")
            await asyncio.sleep(0.2)
        else:
            return


async def create_topic(world: "World", topic: str, plan: Plan) -> None:
    """As soon as enough nodes are there."""
    process, net, clock, rng = world.client("admin")

    async def create() -> None:
        admin = Admin(world.coordinator_address, net=net, clock=clock, rng=rng)
        while len((await admin.describe_cluster()).nodes) < plan.nodes:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while True:
            try:
                await make(admin)
            except NotEnoughReplicasError:  # they are registered, and not all of them heard yet
                await asyncio.sleep(0.05)
            else:
                break
        await admin.close()

    async def make(admin: Admin) -> None:
        await admin.create_topic(
            topic,
            partitions=plan.partitions,
            replication_factor=plan.replication_factor,
            min_insync_replicas=plan.min_insync_replicas,
            file_model=plan.file_model or None,
            engine=plan.engine or None,
            flush_mode=FlushMode.ASYNC if plan.flush else FlushMode.SYNC,
            flush_interval_ms=plan.flush.interval_ms if plan.flush else None,
            flush_bytes=plan.flush.length_bytes if plan.flush else None,
            on_total_loss=plan.on_total_loss or None,
            segment_bytes=plan.knobs.segment_bytes,
            segment_age_ms=plan.knobs.segment_age_ms,
            record_bytes_max=4096,
            batch_bytes_max=16 * 1024,
            uncompressed_bytes_max=64 * 1024,
            if_not_exists=True,
        )

    await process.spawn(create())


class Traffic:
    """Producers that send until told to stop; every record and its outcome go into the history."""

    def __init__(self, world: "World", topic: str, plan: Plan) -> None:
        self.partitions = plan.partitions
        """Number of partitions that records are sent to; it grows."""
        self._world = world
        self._topic = topic
        self._plan = plan
        self._rng = random.Random(f"traffic {world.seed}")
        self._running: dict[str, tuple[SimProcess, asyncio.Task[None]]] = {}
        self._producers: dict[str, Producer] = {}
        self._stopping = False

    def start(self) -> None:
        """Begin to send."""
        for number in range(self._plan.producers):
            self._start(f"producer-{number}", self._plan.acks[number % len(self._plan.acks)])

    def _start(self, name: str, acks: Acks) -> None:
        process, producer = self._producer(name, acks)
        self._producers[name] = producer
        self._running[name] = (process, process.spawn(self._produce(name, producer, acks)))

    def most_under_way(self) -> int:
        """Return how many requests of one partition a producer has under way."""
        return max(
            len(queue.under_way)
            for producer in self._producers.values()
            for topic in producer._topics.by_name.values()
            for queue in topic.queues or [PartitionQueue("", b"", 0)]
        )

    def replace_producer(self, rng: random.Random) -> None:
        """SIGKILL one, and start another. What the first had under way stays unresolved."""
        name = rng.choice(list(self._running))
        process, _ = self._running.pop(name)
        process.kill("kill", self._world.loop.time())
        number = len(self._world.processes)
        self._start(f"producer-{number}", self._plan.acks[number % len(self._plan.acks)])

    def _producer(self, name: str, acks: Acks) -> tuple[SimProcess, Producer]:
        process, net, clock, rng = self._world.client(name)
        producer = Producer(
            bootstrap_of(self._world, name),
            acks=acks,
            linger_ms=self._rng.choice([0, 2, 20]),
            batch_bytes=self._rng.choice(self._plan.batch_bytes),
            request_timeout_ms=3_000,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            net=net,
            clock=clock,
            rng=rng,
        )
        return process, producer

    async def probe(self, timeout_s: float) -> str:
        """One record per partition, acked by all: does everything take appends again?

        Returns:
            What does not; empty when all is well.

        Raises:
            TimeoutError: The producer is stuck.
        """
        process, producer = self._producer("probe", Acks.ALL)
        refused: list[int] = []

        async def send() -> None:
            await producer.start()
            sent = []
            for number in range(self.partitions):
                produce = self._invoke("probe", number, number, f"probe {number}", Acks.ALL)
                handle = await self._send(producer, produce)
                sent.append((produce, handle))
            for produce, handle in sent:
                await self._note(produce, handle)
                if produce.outcome is not Outcome.OK:
                    refused.append(produce.partition[1])
            await producer.close()

        async with asyncio.timeout(timeout_s):
            await process.spawn(send())
        return f"partitions {refused} take no appends" if refused else ""

    def _invoke(self, name: str, sequence: int, partition: int, text: str, acks: Acks) -> Produce:
        """A record is about to be sent."""
        now_s = self._world.loop.time()
        produce = Produce(name, sequence, (self._topic, partition), text.encode(), acks, now_s)
        self._world.history.produces.append(produce)
        return produce

    async def _send(self, producer: Producer, produce: Produce) -> object:
        """With the key and the tags that its value has."""
        return await producer.send_wait(
            self._topic,
            produce.value,
            key=key_of(produce.value),
            tags=tags_of(produce.value),
            partition=produce.partition[1],
        )

    async def _produce(self, name: str, producer: Producer, acks: Acks) -> None:
        plan = self._plan
        rng = random.Random(f"{name} {self._world.seed}")
        pause_s = rng.choice(plan.pauses_s)
        await producer.start()
        waiting: list[asyncio.Task[None]] = []
        sequence = 0
        for _ in range(plan.bursts):
            if self._stopping:
                break
            partition = rng.randrange(self.partitions)
            sent: list[tuple[Produce, object]] = []
            for _ in range(rng.randint(1, plan.burst_max) if plan.burst_max > 1 else 1):
                text = f"{name} {sequence} " + "x" * rng.choice(plan.padding_bytes)
                produce = self._invoke(name, sequence, partition, text, acks)
                sequence += 1
                try:
                    handle = await self._send(producer, produce)
                except (InvalidRequestError, UnknownTopicError):
                    # A partition that this client has not heard of yet, or all are deleted.
                    produce.outcome = Outcome.FAIL
                    break
                sent.append((produce, handle))
            waiting.append(asyncio.create_task(self._note_all(sent)))
            await asyncio.sleep(rng.expovariate(1 / pause_s))
        await asyncio.gather(*waiting)
        await producer.close()

    async def _note_all(self, sent: list[tuple[Produce, object]]) -> None:
        for produce, handle in sent:
            await self._note(produce, handle)

    async def _note(self, produce: Produce, handle: object) -> None:
        try:
            metadata = await handle  # type: ignore[misc]
        except IcecoreError as error:
            produce.outcome = Outcome.UNKNOWN if error.indeterminate else Outcome.FAIL
            self._world.loop.trace(f"{produce.producer} {produce.sequence} {error.reason}")
        else:
            produce.outcome = Outcome.OK
            produce.offset = metadata.offset
            self._world.loop.trace(f"{produce.producer} {produce.sequence} at {metadata.offset}")
        produce.ended_s = self._world.loop.time()

    async def finish(self, timeout_s: float) -> None:
        """Stop sending and wait for what is under way.

        Raises:
            TimeoutError: Some producer did not end in time: it is stuck.
        """
        self._stopping = True
        async with asyncio.timeout(timeout_s):
            for _, task in self._running.values():
                await task


class TailReader:
    """A consumer that follows the topic from the start, through every fault. Most worlds are over
    before it notices an added partition: it must read what the topic had when it began."""

    def __init__(self, world: "World", topic: str, plan: Plan) -> None:
        self._world = world
        self._topic = topic
        self._plan = plan
        self._task: asyncio.Task[None] | None = None
        self._read = 0

    def start(self) -> None:
        """Begin to read."""
        chance = random.Random(f"consumer {self._world.seed}")
        process, consumer = make_consumer(self._world, "consumer", self._topic, chance)
        self._task = process.spawn(self._consume(consumer))

    async def _consume(self, consumer: Consumer) -> None:
        await consumer.start()
        while True:
            try:
                await self._read_on(consumer)
            except UnknownTopicError:  # deleted, for a while
                await asyncio.sleep(0.2)
                for partition, offset in consumer.position().items():
                    await consumer.seek(partition, offset)

    async def _read_on(self, consumer: Consumer) -> None:
        async for each in consumer:
            partition = (each.topic, each.partition)
            now_s = self._world.loop.time()
            read = Read("consumer", partition, each.offset, each.value or b"", now_s)
            self._world.history.reads.append(read)
            self._read += each.partition < self._plan.partitions
            self._world.loop.trace(f"consumer reads {each.partition} {each.offset}")

    async def finish(self) -> None:
        """Wait until it has read everything that is there at the end, then stop.

        Raises:
            TimeoutError: It reads nothing for a while, and is not at the end.
            IcecoreError: It gave up before.
        """
        assert self._task is not None
        wanted = sum(
            len(records)
            for (_, partition), records in self._world.history.final.items()
            if partition < self._plan.partitions
        )
        while self._read < wanted and not self._task.done():
            read = self._read  # one of little appetite takes its time, and goes on
            async with asyncio.timeout(30):
                while self._read == read and not self._task.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        if self._task.done():
            self._task.result()
            raise InternalError("the consumer stopped")
        self._task.cancel()
