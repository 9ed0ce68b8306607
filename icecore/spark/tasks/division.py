"""Keeps a write that is run again from writing rows twice when it is divided otherwise then.

A task that is run again is recognised by its number, so what another attempt gave to another task
would be written once more. Spark tells neither the driver's nor the executors' Python how many
tasks there are: ``PhysicalWriteInfo`` stays in the JVM, a task's context has its own number only,
and ``commit`` hears it when all is written. Nor would the number be enough, since equal numbers may
divide rows otherwise. So the rule is this: **as long as it is not shown that each task of which an
earlier attempt has appended something begins with just these rows, no task appends anything new.**
When that is shown, all that is written already is where this attempt would put it, and whatever is
new is of rows that nobody has written.

The driver gives each attempt a number (Spark makes a writer for each), and a saved position under
the name of the query says which attempt is at work. The first task that finds another one there
asks all leaders which tasks of this write have appended something, and notes which of these are
left; an answer counts only for the segment that the coordinator calls the newest (R101). Each of
them that is through with the rows of before takes itself out; the others wait. So an attempt that
follows no other waits for nothing, and costs a save, a list of newest segments, and a question per
partition.

**A topic that was deleted and made again** has no note, since notes go with the topic that they are
of. So a micro-batch that follows another one and finds none appends nothing: what came before went
somewhere else, and whether this topic is to have the rest is not for us to say.

Attempts have no order. An executor that outlives its driver, and begins only then, takes the place
of the attempt at work, which ends with an error where it still holds anything back, and is run
again. One that has begun is not held back: what it appends after the question is known to nobody.
So is a request of a killed one that arrives later still. Those rows are recognised all the same
where tasks are the same ones.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from icecore.client.cluster.connection import Backoff, Connection
from icecore.client.consume.saved_positions import list_positions
from icecore.errors import (
    ConflictError,
    IcecoreError,
    InternalError,
    PositionConflictError,
    TopicRecreatedError,
)
from icecore.model import TOPIC_NAME
from icecore.rpc import convert
from icecore.spark.tasks.identity import SparkTaskChangedError
from icecore.v1 import admin_pb2

WAIT_S: Final = 600.0
"""For tasks of before. They come first, because Spark begins with the lowest numbers."""
_CALL_S: Final = 20.0
_ATTEMPTS_MAX: Final = 1_000
"""Saves that others overtook, one after the other."""
_BITS: Final = 32
TASKS_AS_BITS: Final = 32
"""With more tasks of before, the sum is one of hashes."""
_MASK: Final = (1 << _BITS) - 1
_SHOWN: Final = 5


def position_name(name: str) -> str:
    """Under which the attempts at a write are noted."""
    plain = f"spark.{name}"
    if TOPIC_NAME.fullmatch(plain):
        return plain
    return f"spark.{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"


def weights(tasks: Sequence[int]) -> dict[int, int]:
    """Return what each task takes away from the sum of all, which is 0 when all have.

    Up to 32 are bits of it, so one that takes itself out twice changes nothing. With more of them
    whoever does so spoils the sum: then it does not come to 0, and nobody appends.
    """
    if len(tasks) <= TASKS_AS_BITS:
        return {task: 1 << bit for bit, task in enumerate(tasks)}
    hashed = {
        task: int.from_bytes(hashlib.blake2b(b"%d" % task, digest_size=4).digest(), "big") | 1
        for task in tasks
    }
    if not sum(hashed.values()) & _MASK:
        hashed[tasks[0]] += 2
    return hashed


Begun = Callable[[], Awaitable[Iterable[int]]]
"""Asks leaders which tasks have appended something."""


class _Noted(NamedTuple):
    """The attempt that a saved position names, and the sum of its tasks that are left."""

    attempt: int
    left: int
    version: int


class TaskDivision:
    """One attempt at a write, as one of its tasks knows it.

    Args:
        connection: The way to the coordinator.
        name: Of the write.
        attempt: The number that the driver gave to this attempt, below 2^32.
        follows: An earlier micro-batch has left a note in the topic.
    """

    def __init__(
        self, connection: Connection, name: str, attempt: int, *, follows: bool = False
    ) -> None:
        self._connection = connection
        self._name = position_name(name)
        self._attempt = attempt & _MASK
        self._follows = follows
        self._topic, self._topic_id = "", b""
        self._tasks: tuple[int, ...] = ()
        self.is_open = False
        """Anything may be appended."""

    async def begin(self, topic: str, topic_id: bytes, begun: Begun) -> None:
        """Note that this attempt is at work, unless another task of it has.

        Args:
            topic: Its name.
            topic_id: Its id.
            begun: Asks leaders of which tasks an earlier attempt has appended something.

        Raises:
            TopicRecreatedError: No earlier micro-batch went into this topic.
            IcecoreError: Coordinator or leaders did not answer in time.
        """
        self._topic, self._topic_id = topic, topic_id
        for _ in range(_ATTEMPTS_MAX):
            noted = await self._noted()
            if noted is not None and noted.attempt == self._attempt:
                break
            if noted is None and self._follows:
                raise self._elsewhere()
            self._tasks = tuple(sorted(await begun()))
            left = sum(weights(self._tasks).values()) & _MASK
            if await self._save(left, 0 if noted is None else noted.version):
                noted = _Noted(self._attempt, left, 0)
                break
        else:
            raise ConflictError(f"{topic}: attempts at {self._name} overtake each other for ever")
        self.is_open = not noted.left
        if not self.is_open and not self._tasks:
            self._tasks = tuple(sorted(await begun()))  # nobody appends now, so it is the same

    async def settle(self, task: int) -> None:
        """Say that a task is through with all rows of before.

        Raises:
            ConflictError: Another attempt is at work.
            IcecoreError: The coordinator did not answer in time.
        """
        weight = weights(self._tasks).get(task, 0)
        is_bit = len(self._tasks) <= TASKS_AS_BITS
        for _ in range(_ATTEMPTS_MAX):
            noted = await self._own()
            if not noted.left or (is_bit and not noted.left & weight):
                return
            left = noted.left & ~weight if is_bit else (noted.left - weight) & _MASK
            if await self._save(left, noted.version):
                return
        raise ConflictError(f"{self._topic}: saves of {self._name} overtake each other for ever")

    async def opened(self) -> None:
        """Wait until all tasks of before are through with their rows.

        Raises:
            SparkTaskChangedError: They do not come.
            ConflictError: Another attempt is at work.
            IcecoreError: The coordinator did not answer in time.
        """
        backoff = Backoff(self._connection.rng, 50, 1000)
        end_ms = self._connection.deadline_ms(WAIT_S)
        while not self.is_open:
            noted = await self._own()
            self.is_open = not noted.left
            if self.is_open:
                return
            if self._connection.clock.monotonic_ms() >= end_ms:
                raise self._missing(noted.left)
            await asyncio.sleep(backoff.next_s())

    def _elsewhere(self) -> TopicRecreatedError:
        topic_id = self._topic_id.hex()
        return TopicRecreatedError(
            f"topic {self._topic} has no note of earlier micro-batches of this query "
            f"({self._name}), so nothing was appended: it was deleted and made again, or the query "
            "wrote into another topic, or the note was deleted. To go on in the topic as it is, "
            f"give the option topicId={topic_id}; to write all rows into it, begin with a new "
            "checkpoint",
            topic=self._topic,
            new_topic_id=topic_id,
        )

    def _missing(self, left: int) -> SparkTaskChangedError:
        late = list(self._tasks)
        if len(late) <= TASKS_AS_BITS:
            late = [task for task, bit in weights(late).items() if left & bit]
        numbers = ", ".join(map(str, late[:_SHOWN])) + (", …" if len(late) > _SHOWN else "")
        again = ""
        if len(self._tasks) > TASKS_AS_BITS:  # the next attempt makes another sum
            again = (
                f"With more than {TASKS_AS_BITS} such tasks, one that Spark ran twice ends like "
                "this, too: start the write again first. "
            )
        return SparkTaskChangedError(
            f"{self._topic}: an earlier attempt at this write had appended rows of the tasks "
            f"{numbers}, and after {WAIT_S:g} s these have not come as far again, so this task has "
            f"appended nothing. {again}Rows may be divided otherwise now. Run it with the options "
            "of before and at least as many cores, or with idempotent=false, which may write rows "
            "twice"
        )

    # --- the saved position ---------------------------------------------------------------------

    async def _own(self) -> _Noted:
        noted = await self._noted()
        if noted is None or noted.attempt != self._attempt:
            raise ConflictError(
                f"{self._topic}: another attempt at this write has begun ({self._name}): let one "
                "driver at a time run it"
            )
        return noted

    async def _noted(self) -> _Noted | None:
        found = await list_positions(self._connection, self._name, [self._topic], timeout_s=_CALL_S)
        for each in found:
            if each.topic_id == self._topic_id and each.partition == 0:
                return _Noted(each.instance >> _BITS, each.instance & _MASK, each.version)
        return None

    async def _save(self, left: int, version: int) -> bool:
        """Return whether it was saved; False when another save came first. What is refused may be
        saved already: by a call before it, of which no answer came."""
        request = admin_pb2.SavePositionsRequest(
            name=self._name, instance=self._attempt << _BITS | left
        )
        # Offset 0: whoever looks at positions of readers finds nothing that was read.
        request.positions.add(topic_id=self._topic_id, partition=0, offset=0, version=version)
        answer = await self._connection.admin(
            "SavePositions", request, admin_pb2.SavePositionsResponse, timeout_s=_CALL_S
        )
        if len(answer.outcomes) != 1:
            raise InternalError(
                f"the coordinator answered {len(answer.outcomes)} positions, 1 was asked"
            )
        error: IcecoreError | None = convert.error_from_proto(answer.outcomes[0].error)
        if error is None:
            return True
        if not isinstance(error, PositionConflictError):
            raise error
        told = error.metadata.get("version"), error.metadata.get("instance")
        return told == (str(version + 1), str(request.instance))
