"""A topic whose records expire under traffic: what goes is what may go, and nobody is surprised.

It keeps its newest records by age or by size, it may give up its oldest where a disk is full, and
somebody may delete records of it by hand, in the middle of segments, too. Its producer and its
consumer go on through every fault, and so does who looks records up. In the end nothing is missing
above the log start, and a consumer that was overtaken has counted each record that it was not
given. What may go when, ``invariants_retention`` looks at.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icecore.client.admin.admin import Admin
from icecore.client.consume.consumer import Consumer
from icecore.client.produce.producer import Producer
from icecore.errors import IcecoreError
from icecore.model import OFFSETS_LEFT_OUT, Acks
from icecore.topic_settings import DELETE_OLDEST, NO_LIMIT, REFUSE
from tests.simulation import checkers
from tests.simulation.history import History, Outcome, Produce
from tests.simulation.labels import key_of, tags_of
from tests.simulation.lookup_client import LookupClient
from tests.simulation.observer import Observer
from tests.simulation.plan import Plan
from tests.simulation.readers import make_consumer
from tests.simulation.workload import make_topic

if TYPE_CHECKING:
    from tests.simulation.cluster import World

COORDINATOR = "coordinator"
HEAL_S = 60.0
SEGMENT_BYTES = 4 * 1024
STILL_S = 4.0
"""After that nothing goes any more that was due before the limits were lifted."""


@dataclass(frozen=True)
class EarlierLife:
    """A topic as it was when its cluster was lost.

    Times of its produces are below zero: they happened before the world that restores it.
    """

    produces: tuple[Produce, ...]
    published_end_offset: int
    """Below it everything from the log start on was published."""
    log_start_offset: int
    told_start_offset: int
    """The log start that the bucket tells, at most the other one."""

    def wrong_start(self, start: int, deleted_since: int) -> str:
        """Return what is wrong with the log start after the restore; empty = nothing."""
        if start < self.told_start_offset:
            return f"records below {self.told_start_offset} come back, from {start} on"
        if start > max(self.log_start_offset, deleted_since):
            return f"the log started at {self.log_start_offset}, and does at {start}"
        return ""


class ExpiringTopic:
    """One such topic and its traffic.

    Args:
        world: Where it lives.
        plan: Of the world.
        name: Of the topic.
        settings: What it gives up, and when; drawn without.
        deletes_by_hand: Whether somebody deletes records; drawn where settings are.
        earlier: In the cluster from whose bucket it was restored; None = it is new.
    """

    def __init__(
        self,
        world: "World",
        plan: Plan,
        name: str,
        settings: Mapping[str, Any] | None = None,
        *,
        deletes_by_hand: bool = False,
        earlier: EarlierLife | None = None,
    ) -> None:
        self._world = world
        self._plan = plan
        self.name = name
        self._rng = random.Random(f"{name} {world.seed}")
        self._hand_rng = random.Random(f"{name} by hand {world.seed}")
        self._settings = settings
        self._deletes_by_hand = deletes_by_hand
        self._earlier = earlier
        self.produces: list[Produce] = [*earlier.produces] if earlier else []
        """Everything that was sent."""
        self._asked = History(produces=[])
        self._asker = LookupClient(world, name, 1, self._asked, rests=True)
        self._sessions: list[tuple[Consumer, list[int]]] = []
        """Each consumer, and the offsets that it was given."""
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._admin = self._open_admin()

    def _open_admin(self) -> tuple[Any, Admin]:
        process, net, clock, rng = self._world.client(f"admin of {self.name}")
        address = self._world.coordinator_address
        return process, Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng)

    # --- its life -------------------------------------------------------------------------------

    async def live(self) -> None:
        """Be made, and be written and read from then on."""
        process, _ = self._admin
        await process.spawn(self._make(self._settings or self._draw_settings()))
        process, net, clock, rng = self._world.client(f"producer of {self.name}")
        producer = Producer(
            self._world.coordinator_address,
            acks=Acks.ALL,
            request_timeout_ms=3_000,
            delivery_timeout_ms=20_000,
            net=net,
            clock=clock,
            rng=rng,
        )
        self._tasks.append(process.spawn(self._produce(producer)))
        self._tasks.append(asyncio.create_task(self._read_on()))
        self._asker.start()
        is_drawn = self._settings is None and self._hand_rng.random() < 0.5
        if is_drawn or self._deletes_by_hand:
            self._tasks.append(self._admin[0].spawn(self._delete_by_hand()))

    def _draw_settings(self) -> dict[str, Any]:
        limits = self._rng.choice(
            [
                {"retention_ms": self._rng.choice([300, 1_500])},
                {"retention_bytes": self._rng.choice([1, 3]) * SEGMENT_BYTES},
            ]
        )
        return {**limits, "on_full": self._hand_rng.choice([REFUSE, DELETE_OLDEST])}

    async def _make(self, settings: Mapping[str, Any]) -> None:
        given = {"partitions": 1, "segment_bytes": SEGMENT_BYTES, **settings}
        await make_topic(self._world, self._plan, self._admin[1], self.name, **given)

    def stop_sending(self) -> None:
        """Send nothing more, and delete nothing by hand."""
        self._stopping = True

    async def _keep_all(self) -> None:
        """From now on nothing expires."""
        _, admin = self._admin
        while True:
            try:
                await admin.alter_topic(
                    self.name, retention_ms=NO_LIMIT, retention_bytes=NO_LIMIT, on_full=REFUSE
                )
            except IcecoreError as error:
                self._world.loop.trace(f"{self.name} not altered: {error.reason}")
                await asyncio.sleep(0.2)
            else:
                return

    async def _delete_by_hand(self) -> None:
        """Now and then somebody deletes some of what was acknowledged."""
        _, admin = self._admin
        while not self._stopping:
            await asyncio.sleep(self._hand_rng.uniform(0.2, 2.0))
            acked = [each.offset for each in self.produces if each.outcome is Outcome.OK]
            before = self._hand_rng.randint(0, max(acked, default=0))
            by_hand = self._world.deleted_by_hand
            by_hand[self.name] = max(before, by_hand.get(self.name, 0))
            try:
                await admin.delete_records(self.name, {0: before})
            except IcecoreError as error:
                self._world.loop.trace(f"{self.name} keeps its records: {error.reason}")
            else:
                self._world.count_fault("records_deleted")

    def _behind(self, offset: int) -> int:
        """Return where the log starts at most, when the records below an offset are deleted."""
        lives = [each.offset for each in self.produces if each.began_s >= 0 and each.offset >= 0]
        if self._earlier is None or offset < self._earlier.published_end_offset or not lives:
            return offset
        return max(offset, min(lives))  # what was left out ends with the first record of this life

    async def _produce(self, producer: Producer) -> None:
        await producer.start()
        waiting: list[asyncio.Task[None]] = []
        while not self._stopping:
            waiting.append(asyncio.create_task(self._send(producer)))
            await asyncio.sleep(self._rng.expovariate(1 / 0.03))
        await asyncio.gather(*waiting)
        while not await self._send(producer):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await producer.close()

    async def _send(self, producer: Producer) -> bool:
        """One record; whether it was acknowledged."""
        number, now_s = len(self.produces), self._world.loop.time()
        value = f"{self.name} {number} ".encode() + b"x" * self._rng.choice([10, 400])
        produce = Produce("producer", number, (self.name, 0), value, Acks.ALL, now_s)
        self.produces.append(produce)
        try:
            (landed,) = await producer.send_batch(
                self.name, [value], keys=[key_of(value)], tags=[tags_of(value)], partition=0
            )
            produce.offset, produce.outcome = landed.base_offset, Outcome.OK
        except IcecoreError as error:
            produce.outcome = Outcome.UNKNOWN if error.indeterminate else Outcome.FAIL
        produce.ended_s = self._world.loop.time()
        return produce.outcome is Outcome.OK

    async def _read_on(self) -> None:
        """A consumer for as long as it goes; then another one."""
        while True:
            session = f"{self.name} consumer {len(self._sessions)}"
            process, consumer = make_consumer(
                self._world, session, self.name, self._rng, on_out_of_range="earliest"
            )
            given: list[int] = []
            self._sessions.append((consumer, given))
            await asyncio.wait({process.spawn(self._read(consumer, given))})
            process.kill("gave up", self._world.loop.time())
            await asyncio.sleep(0.1)

    async def _read(self, consumer: Consumer, given: list[int]) -> None:
        try:
            await consumer.start()
            async for each in consumer:
                given.append(each.offset)
                if self._rng.randrange(40) == 0:  # late now and then, so that it is overtaken
                    await asyncio.sleep(self._rng.choice([0.1, 3.0]))
        except IcecoreError as error:
            self._world.loop.trace(f"a consumer of {self.name} ends: {error.reason}")

    # --- the verdict ----------------------------------------------------------------------------

    async def finish(self, observer: Observer) -> list[str]:
        """Stop, read what is there, and judge. Everything is healed by now.

        Raises:
            TimeoutError: The producer is stuck, or the consumer does not get to the end.
        """
        if not self._tasks:
            return []
        self.stop_sending()
        history = History(produces=self.produces, answers=self._asked.answers)
        if self._earlier is not None:  # the active segment was lost with its cluster
            history.given_up[(self.name, 0)] = [(self._earlier.published_end_offset, 0.0)]
        async with asyncio.timeout(3 * HEAL_S):
            await asyncio.gather(self._tasks[0], *self._tasks[2:])
            await self._admin[0].spawn(self._keep_all())
            await asyncio.sleep(STILL_S)
            problems = await observer.read_everything(self.name, history)
            last = max((offset for offset, _ in history.final.get((self.name, 0), ())), default=-1)
            while not any(given and given[-1] >= last for _, given in self._sessions[-1:]):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        self._tasks[1].cancel()
        self._asker.stop()
        left_out = [each for each in await observer.segments(self.name) if each.is_skipped]
        history.left_out[(self.name, 0)] = [
            (each.base_offset, each.end_offset) for each in left_out
        ]
        return problems + self._judge(history)

    def _judge(self, history: History) -> list[str]:
        start = history.log_start.get((self.name, 0), 0)
        if start:
            self._world.count_fault("records_expired")
        self._world.lookups_elsewhere += checkers.lookups_checked(history)
        problems = [str(each) for each in checkers.check(history)]
        if self._earlier is not None:
            by_hand = self._behind(self._world.deleted_by_hand.get(self.name, 0))
            wrong = self._earlier.wrong_start(start, by_hand)
            problems += [f"restored {self.name}: {wrong}"] if wrong else []
        for consumer, given in self._sessions:
            counted = consumer.skipped_records().get(0, 0)
            if (missed := _missed(given)) > counted:
                problems.append(
                    f"not told: a consumer of {self.name} missed {missed} records and counted "
                    f"{counted}"
                )
        return problems


def _missed(given: Sequence[int]) -> int:
    """Return how many records a consumer was not given between its first and its last one. Offsets
    that were left out are no records, and a log may start behind them by now."""
    if not given:
        return 0
    return (given[-1] + 1 - given[0] - len(given)) % OFFSETS_LEFT_OUT
