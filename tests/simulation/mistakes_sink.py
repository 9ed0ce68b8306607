"""Seeded mistakes in what keeps the tasks of a write that is run again from writing rows twice; see
``mistakes``. The principles are those of ``icecore.spark.tasks.division`` and ``appender``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from icecore.client.cluster.offsets import OffsetLookup, ProducerState
from icecore.spark.tasks import division
from icecore.spark.tasks.appender import Appender
from icecore.spark.tasks.division import TaskDivision, _Noted
from icecore.spark.tasks.outbox import TaskOutbox
from icecore.v1 import data_pb2
from tests.simulation.mistakes import Mistake, patch


def new_rows_wait_for_nobody() -> Mistake:
    """Principle of divisions: a task appends new rows before the others are through with theirs."""

    async def wrong(self: TaskDivision) -> None:
        self.is_open = True

    return patch(TaskDivision, "opened", wrong)


def settled_before_its_rows_come() -> Mistake:
    """Principle of divisions: a task takes itself out before it has the rows of before."""
    start = TaskOutbox.start

    async def wrong(self: TaskOutbox) -> None:
        await start(self)
        if self._reached and self._division is not None:
            await self._division.settle(self._task)
            self._is_settled = True

    return patch(TaskOutbox, "start", wrong)


def attempts_have_no_number() -> Mistake:
    """Principle of divisions: what another attempt has noted is taken for this one's."""
    noted = TaskDivision._noted

    async def wrong(self: TaskDivision) -> _Noted | None:
        found = await noted(self)
        return found if found is None else found._replace(attempt=self._attempt)

    return patch(TaskDivision, "_noted", wrong)


def tasks_of_before_have_no_weight() -> Mistake:
    """Principle of divisions: an attempt begins with nobody to wait for."""

    def wrong(tasks: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(tasks, 0)

    return patch(division, "weights", wrong)


def one_leader_is_asked() -> Mistake:
    """Principle of divisions: leaders of other partitions are not asked which tasks have begun."""
    begun = Appender.begun

    async def wrong(self: Appender) -> dict[int, dict[int, int]]:
        partitions, self.partitions = self.partitions, 1
        try:
            return await begun(self)
        finally:
            self.partitions = partitions

    return patch(Appender, "begun", wrong)


def old_leaders_are_believed() -> Mistake:
    """R101: the answer of any leader counts, also of one that has been replaced."""

    async def wrong(
        self: OffsetLookup, partition: int, first_id: int, last_id: int, epoch: int, _: object
    ) -> list[ProducerState]:
        asked = data_pb2.ProducerRange(first_id=first_id, last_id=last_id, epoch=epoch)
        target = data_pb2.ListOffsetsPartition(producers=asked)
        found = await self._retry(lambda: self._ask_leader(partition, target))
        return [
            ProducerState(each.producer_id, each.next_sequence, each.oldest_sequence)
            for each in found.producers
        ]

    return patch(OffsetLookup, "producers", wrong)


def duplicates_are_not_compared() -> Mistake:
    """Principle of tasks: rows that a leader knows by their numbers are taken for the same."""

    async def wrong(self: Appender, *_: Any) -> None:
        pass

    return patch(Appender, "_compare", wrong)


@contextmanager
def fewer_rows_are_enough() -> Iterator[None]:
    """Principle of tasks: one that has fewer rows than before ends without an error."""
    with (
        patch(Appender, "check_end", lambda *_: None),
        patch(TaskOutbox, "_lacks", lambda _: False),
    ):
        yield


def a_topic_without_a_note_is_taken() -> Mistake:
    """Principle of divisions: a micro-batch goes into a topic that has none of those before."""
    begin = TaskDivision.begin

    async def wrong(self: TaskDivision, topic: str, topic_id: bytes, begun: division.Begun) -> None:
        self._follows = False
        await begin(self, topic, topic_id, begun)

    return patch(TaskDivision, "begin", wrong)


def each_task_finds_its_topic() -> Mistake:
    """Principle of attempts: a task takes whatever topic has the name when it begins."""
    start = Appender.start

    async def wrong(self: Appender) -> None:
        self.topic_id = b""
        await start(self)

    return patch(Appender, "start", wrong)
