"""Sends the batches of one task, and holds back what is new until it may be appended.

What an earlier attempt has appended is sent at once: leaders recognise it, and the appender
compares it. The rest waits for ``division.py``. A task of before sends round by round to all
partitions, so what has to be held back meanwhile is about as much as one round.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from icecore.client.cluster.connection import all_of
from icecore.spark.tasks.appender import Appender
from icecore.spark.tasks.division import TaskDivision
from icecore.spark.tasks.identity import SparkTaskChangedError

HELD_BYTES_MAX: Final = 64 << 20
"""Several rounds. An attempt that holds back more does not have the rows of the one before."""

Batches = Mapping[int, Sequence[pa.RecordBatch]]
"""By partition, in their order."""


class TaskOutbox:
    """The way from rows to leaders.

    Args:
        appender: Of the task.
        task: Its number.
        division: What is known of earlier attempts; None = there can't be any.
    """

    def __init__(self, appender: Appender, task: int, division: TaskDivision | None) -> None:
        self._appender = appender
        self._task = task
        self._division = division
        self._reached: dict[int, int] = {}
        """Rows that an earlier attempt of this task has appended, while new ones are held back."""
        self._held: dict[int, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._is_settled = False

    async def start(self) -> None:
        """Find out what was appended before.

        Raises:
            IcecoreError: As ``TaskDivision.begin``.
        """
        division = self._division
        if division is None:
            return
        appender = self._appender
        await division.begin(appender.topic, appender.topic_id, appender.begun)
        if not division.is_open:
            self._reached = (await appender.begun()).get(self._task, {})

    async def send(self, batches: Batches) -> None:
        """Send them, or hold them back.

        Raises:
            SparkTaskChangedError: An earlier attempt has appended other rows.
            IcecoreError: They can't be appended.
        """
        if self._is_open:
            await self._append(batches)
            return
        due: dict[int, list[pa.RecordBatch]] = {}
        for partition, each in batches.items():
            due[partition] = self._known(partition, each)
        await self._append(due)
        if not self._lacks():
            await self._go_on()
        elif self._held_bytes > HELD_BYTES_MAX:
            raise self._lacking()

    async def finish(self) -> None:
        """All rows have been sent.

        Raises:
            SparkTaskChangedError: An earlier attempt had more of them.
        """
        if self._lacks():
            raise self._lacking()
        if self._division is not None and self._appender.duplicates:
            found = await self._appender.begun()
            self._appender.check_end(found.get(self._task, {}))

    @property
    def _is_open(self) -> bool:
        return self._division is None or self._division.is_open

    def _known(self, partition: int, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Those that an earlier attempt has appended; the others are held back."""
        found: list[pa.RecordBatch] = []
        known, held = self._reached.get(partition, 0), self._held.setdefault(partition, [])
        at = self._appender.sequence(partition) + sum(each.num_rows for each in held)
        for each in batches:
            if at < known < at + each.num_rows:
                why = f"it had appended {known} rows, in batches that end at other rows"
                raise self._appender.changed(partition, why)
            if at < known:
                found.append(each)
            else:
                held.append(each)
                self._held_bytes += each.nbytes
            at += each.num_rows
        return found

    def _lacks(self) -> bool:
        """Return whether rows that an earlier attempt has appended have not come yet."""
        known = self._reached.items()
        return any(self._appender.sequence(each) < rows for each, rows in known)

    def _lacking(self) -> SparkTaskChangedError:
        """The error of a task to which they don't come."""
        at = self._appender.sequence
        missing = {each: rows for each, rows in self._reached.items() if at(each) < rows}
        partition = min(missing)
        why = f"it had appended {missing[partition]} rows, and of these came {at(partition)}"
        return self._appender.changed(partition, why)

    async def _go_on(self) -> None:
        """All rows of before have been sent: once other tasks say so, too, send what waits.

        A task without new rows does not wait, so that those that others wait for find a place.
        """
        division = self._division
        assert division is not None
        if self._reached and not self._is_settled:
            await division.settle(self._task)
            self._is_settled = True
        if any(self._held.values()):
            await division.opened()
            held, self._held, self._held_bytes = self._held, {}, 0
            await self._append(held)

    async def _append(self, batches: Batches) -> None:
        async def one(partition: int, batches: Sequence[pa.RecordBatch]) -> None:
            for batch in batches:
                await self._appender.append(partition, batch)

        await all_of(one(partition, each) for partition, each in batches.items())
