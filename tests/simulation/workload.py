"""Traffic of the production clients, recorded as a history."""

import asyncio
import random
from typing import TYPE_CHECKING

from icecore.client.admin import Admin
from icecore.client.consumer import Consumer
from icecore.client.producer import Producer
from icecore.errors import IcecoreError, InternalError, RequestTimeoutError
from icecore.model import Acks
from tests.simulation.history import Outcome, Produce, Read
from tests.simulation.process import SimProcess
from tests.simulation.shells import coordinator_address

if TYPE_CHECKING:
    from tests.simulation.cluster import World
    from tests.simulation.scenarios import Plan

COORDINATOR = "coordinator"
DELIVERY_TIMEOUT_MS = 20_000


async def create_topic(world: "World", topic: str, plan: "Plan") -> None:
    """As soon as enough nodes are there."""
    process, net, clock, rng = world.client("admin")

    async def create() -> None:
        admin = Admin(coordinator_address(COORDINATOR), net=net, clock=clock, rng=rng)
        while len((await admin.describe_cluster()).nodes) < plan.nodes:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await admin.create_topic(
            topic,
            partitions=plan.partitions,
            replication_factor=plan.replication_factor,
            min_insync=plan.min_insync,
            segment_bytes=plan.knobs.segment_bytes,
            segment_age_ms=plan.knobs.segment_age_ms,
            if_not_exists=True,
        )
        await admin.close()

    await process.spawn(create())


class Traffic:
    """Producers that send until told to stop; every record and its outcome go into the history."""

    def __init__(self, world: "World", topic: str, plan: "Plan") -> None:
        self._world = world
        self._topic = topic
        self._plan = plan
        self._rng = random.Random(f"traffic {world.seed}")
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        """Begin to send."""
        for number in range(self._plan.producers):
            name = f"producer-{number}"
            process, producer = self._producer(name, self._plan.acks)
            self._tasks.append(process.spawn(self._produce(name, producer)))

    def _producer(self, name: str, acks: Acks) -> tuple[SimProcess, Producer]:
        process, net, clock, rng = self._world.client(name)
        producer = Producer(
            coordinator_address(COORDINATOR),
            acks=acks,
            linger_ms=self._rng.choice([0, 2, 20]),
            batch_bytes=self._rng.choice([64, 300, 2000]),
            request_timeout_ms=3_000,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            net=net,
            clock=clock,
            rng=rng,
        )
        return process, producer

    async def probe(self, timeout_s: float) -> None:
        """One record per partition, acked by all: everything takes appends again.

        Raises:
            TimeoutError: Not everything does.
            IcecoreError: What the producer was told.
        """
        process, producer = self._producer("probe", Acks.ALL)

        async def send() -> None:
            await producer.start()
            for number in range(self._plan.partitions):
                produce = self._invoke("probe", number, number, f"probe {number}", Acks.ALL)
                handle = await producer.send_wait(self._topic, produce.value, partition=number)
                await self._note(produce, handle)
                if produce.outcome is not Outcome.OK:
                    raise RequestTimeoutError(f"partition {number} takes no appends")
            await producer.close()

        async with asyncio.timeout(timeout_s):
            await process.spawn(send())

    def _invoke(self, name: str, sequence: int, partition: int, text: str, acks: Acks) -> Produce:
        """A record is about to be sent."""
        now_s = self._world.loop.time()
        produce = Produce(name, sequence, (self._topic, partition), text.encode(), acks, now_s)
        self._world.history.produces.append(produce)
        return produce

    async def _produce(self, name: str, producer: Producer) -> None:
        rng = random.Random(f"{name} {self._world.seed}")
        pause_s = rng.choice([0.01, 0.02, 0.04])
        await producer.start()
        waiting: list[asyncio.Task[None]] = []
        for sequence in range(self._plan.records):
            if self._stopping:
                break
            partition = rng.randrange(self._plan.partitions)
            text = f"{name} {sequence} " + "x" * rng.choice([0, 10, 100, 800])
            produce = self._invoke(name, sequence, partition, text, self._plan.acks)
            handle = await producer.send_wait(self._topic, produce.value, partition=partition)

            async def outcome(produce: Produce = produce, handle: object = handle) -> None:
                await self._note(produce, handle)

            waiting.append(asyncio.create_task(outcome()))
            await asyncio.sleep(rng.expovariate(1 / pause_s))
        await asyncio.gather(*waiting)
        await producer.close()

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
            for task in self._tasks:
                await task


class TailReader:
    """A consumer that follows the whole topic from the start, through every fault."""

    def __init__(self, world: "World", topic: str, plan: "Plan") -> None:
        self._world = world
        self._topic = topic
        self._plan = plan
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read."""
        process, net, clock, rng = self._world.client("consumer")
        chance = random.Random(f"consumer {self._world.seed}")
        consumer = Consumer(
            coordinator_address(COORDINATOR),
            self._topic,
            max_bytes=chance.choice([2_000, 1 << 20]),
            fetch_bytes=chance.choice([500, 100_000]),
            max_wait_ms=chance.choice([20, 100, 500]),
            net=net,
            clock=clock,
            rng=rng,
        )
        self._task = process.spawn(self._consume(consumer))

    async def _consume(self, consumer: Consumer) -> None:
        await consumer.start()
        async for each in consumer:
            partition = (each.topic, each.partition)
            now_s = self._world.loop.time()
            read = Read("consumer", partition, each.offset, each.value or b"", now_s)
            self._world.history.reads.append(read)
            self._world.loop.trace(f"consumer reads {each.partition} {each.offset}")

    async def finish(self) -> None:
        """Wait until it has read everything that is there at the end, then stop.

        Raises:
            TimeoutError: It does not get to the end.
            IcecoreError: It gave up before.
        """
        assert self._task is not None
        wanted = sum(len(records) for records in self._world.history.final.values())
        async with asyncio.timeout(30):
            while len(self._world.history.reads) < wanted and not self._task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        if self._task.done():
            self._task.result()
            raise InternalError("the consumer stopped")
        self._task.cancel()
