"""The judge of a simulated query that writes into a topic: each row once, whoever ran how often.

It compares what is in the topic in the end with what tasks were given and what they returned.

**An executor that outlives its driver** goes on with the rows of its task, which has one number and
so one producer. Leaders recognise those rows where the next attempt gives them to the task of that
number; where it gives them to another task, nobody can: what the executor appends after the next
attempt has asked leaders is known to nobody (``icecore.spark.tasks.division``). So a row may be
there once for each task number that had it, if one of them was in an executor that outlived its
driver, and no other row may be there twice. A request that a killed executor had sent, and that
arrives long after, is the same to leaders. Such a micro-batch may also be one that no division can
finish: of two tasks each has rows of its own in the log. And rows of an executor may be there that
the attempt which committed did not have, as it is with a source that can't be replayed.

All else is strict. Each row of the attempt that committed is there. No row is there that it did not
have, except of tasks that it did not have: who has nothing new to append waits for nobody, so a
task that is gone is not missed. What a task returned as appended is there for good, and counts what
is new at most once. Tasks that are the same ones are never refused, with two exceptions, in which
some wait in vain for those of before and another attempt has to do it. Where more of these are left
than can be noted as bits, one that runs twice spoils the sum, and so does one whose answer is lost
and overtaken. And an executor that outlives its driver, and begins only then, notes its own attempt
as the one at work: attempts have no order. Tasks that ended before say nothing once more.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from icecore.codec.columns import partition_for_key
from icecore.errors import ConflictError, IcecoreError, TopicRecreatedError
from icecore.spark.tasks import division as divisions
from icecore.spark.tasks.identity import SparkTaskChangedError
from icecore.spark.tasks.rows import AppendedRows
from tests.simulation.sink_rows import Division, SinkRow

WAITED = "have not come as far again"
"""In the error of a task that has waited in vain for those of before."""
Log = Sequence[tuple[int, bytes]]
"""Offset and value of each record of a partition."""


@dataclass(eq=False)
class TaskRun:
    """One run of a task, by a process of its own."""

    task: int
    rows: tuple[SinkRow, ...]
    began_s: float
    result: AppendedRows | None = None
    error: IcecoreError | None = None
    ended_s: float = float("inf")
    outlives: bool = False
    """Its driver died, and it went on; or a request of it may arrive long after."""


@dataclass(eq=False)
class SinkAttempt:
    """All tasks of a micro-batch that have one number of the driver's."""

    number: int
    division: Division
    runs: list[TaskRun] = field(default_factory=list)
    topic_id: bytes = b""
    """Id of the topic that the driver has found."""
    is_committed: bool = False
    was_killed: bool = False
    """Its driver died."""

    @property
    def refusals(self) -> list[SparkTaskChangedError]:
        """The errors of tasks that found other rows than before."""
        errors = [run.error for run in self.runs if not run.outlives]
        return [each for each in errors if isinstance(each, SparkTaskChangedError)]

    @property
    def is_elsewhere(self) -> bool:
        """Return whether a task found another topic than the one that was meant."""
        return any(isinstance(run.error, TopicRecreatedError) for run in self.runs)

    @property
    def is_refused(self) -> bool:
        """Return whether it ended because rows, or their tasks, were others."""
        return not (self.is_committed or self.was_killed) and bool(self.refusals)

    def __str__(self) -> str:
        how = "committed" if self.is_committed else "killed" if self.was_killed else "failed"
        why = {run.error.reason for run in self.runs if run.error is not None}
        sizes = "+".join(str(len(rows)) for rows in self.division)
        return f"attempt {self.number} of {sizes} rows {how} {sorted(why)}"


@dataclass(eq=False)
class MicroBatch:
    """A micro-batch, and all attempts at it, in their order."""

    number: int
    original: Division
    attempts: list[SinkAttempt] = field(default_factory=list)
    committed: SinkAttempt | None = None
    """The last attempt that came to its end."""
    is_stuck: bool = False
    """Every division that was tried is refused."""

    def within(self, topic_id: bytes) -> "MicroBatch":
        """The same with those attempts only that meant this topic."""
        meant = [attempt for attempt in self.attempts if attempt.topic_id == topic_id]
        committed = self.committed if self.committed in meant else None
        return MicroBatch(self.number, self.original, meant, committed, self.is_stuck)

    def may_be_run_again(self, refused: Iterable[Division]) -> list[Division]:
        """The divisions that were tried and not refused since, newest first."""
        tried = dict.fromkeys(attempt.division for attempt in reversed(self.attempts))
        return [each for each in tried if each not in set(refused)]

    @property
    def runs(self) -> list[TaskRun]:
        """Those of all attempts."""
        return [run for attempt in self.attempts for run in attempt.runs]

    def may_be_twice(self) -> dict[bytes, int]:
        """Return how often a row may be there that an executor had which outlived its driver."""
        found: dict[bytes, int] = {}
        for run in self.runs:
            for row in run.rows if run.outlives else ():
                found[row.value] = 1
        for value in found:
            tasks = {run.task for run in self.runs for row in run.rows if row.value == value}
            found[value] = len(tasks)
        return found


def verdict(
    batches: Sequence[MicroBatch],
    final: Mapping[int, Log],
    partitions: int,
    *,
    was_made_again: bool = False,
) -> Iterator[str]:
    """All that is wrong.

    Args:
        batches: Of the query.
        final: What is in its topic, by partition.
        partitions: Of the topic.
        was_made_again: Tasks may find another topic than was meant.
    """
    places: dict[bytes, list[tuple[int, int]]] = {}
    for partition, log in final.items():
        for offset, value in log:
            places.setdefault(value, []).append((partition, offset))
    given = {row.value for batch in batches for run in batch.runs for row in run.rows}
    for value in places.keys() - given:
        yield f"nobody was given {value!r}"
    for batch in batches:
        for problem in _judged(batch, places, partitions, was_made_again):
            yield f"micro-batch {batch.number}: {problem}"


def verdict_made_again(
    batches: Sequence[MicroBatch], topic_id: bytes, final: Mapping[int, Log], partitions: int
) -> Iterator[str]:
    """All that is wrong where the topic was deleted and made again meanwhile.

    A query begins in one topic and goes on in no other: where it has not begun is nothing.

    Args:
        batches: Of the query.
        topic_id: Of the topic that is there in the end.
        final: What is in it, by partition.
        partitions: Of the topic.
    """
    meant = [batch.within(topic_id) for batch in batches]
    if meant and meant[0].committed is not None:
        yield from verdict(meant, final, partitions, was_made_again=True)
        return
    for partition, log in final.items():
        if log:
            yield f"{len(log)} rows are in {partition} of a topic in which the query had not begun"


_Places = Mapping[bytes, Sequence[tuple[int, int]]]


def _judged(
    batch: MicroBatch, places: _Places, partitions: int, was_made_again: bool
) -> Iterator[str]:
    yield from _counted(batch, places)
    yield from _committed(batch, places)
    yield from _placed(batch, places, partitions)
    yield from _returned(batch, places)
    yield from _refused(batch, was_made_again)


def _counted(batch: MicroBatch, places: _Places) -> Iterator[str]:
    allowed = batch.may_be_twice()
    for value in dict.fromkeys(row.value for run in batch.runs for row in run.rows):
        found = len(places.get(value, ()))
        if found > allowed.get(value, 1):
            yield f"{value!r} is there {found} times, at {places[value]}"


def _committed(batch: MicroBatch, places: _Places) -> Iterator[str]:
    if batch.committed is None:
        divisions_tried = {attempt.division for attempt in batch.attempts}
        if not (batch.is_stuck and batch.may_be_twice() and len(divisions_tried) > 1):
            yield "no attempt could finish it"
        return
    division = batch.committed.division
    had = {row.value for rows in division for row in rows}
    for value in sorted(had - places.keys()):
        yield f"{value!r} was committed and is not there"
    gone = {row.value for run in batch.runs if run.task >= len(division) for row in run.rows}
    others = {row.value for run in batch.runs for row in run.rows} & places.keys() - had - gone
    for value in sorted(others - batch.may_be_twice().keys()):
        yield f"{value!r} is there, and what was committed has it not"


def _placed(batch: MicroBatch, places: _Places, partitions: int) -> Iterator[str]:
    """Rows of one key are in its partition; those of one task are in their order."""
    if batch.committed is None:
        return
    for rows in batch.committed.division:
        last: dict[int, int] = {}
        for row in rows:
            for partition, offset in places.get(row.value, ())[:1]:
                if row.key is not None and partition != partition_for_key(row.key, partitions):
                    yield f"{row.value!r} is in partition {partition}, which its key is not of"
                is_behind = offset > last.get(partition, -1)
                if not is_behind and row.value not in batch.may_be_twice():
                    yield f"{row.value!r} is at {offset} of {partition}, before one it came after"
                last[partition] = offset


def _returned(batch: MicroBatch, places: _Places) -> Iterator[str]:
    """Answers of ``append_all`` are true of the log."""
    new: Counter[int] = Counter()
    for run in batch.runs:
        result = run.result
        if result is None:
            continue
        if not result.records == len(run.rows) >= result.duplicates >= result.uncompared >= 0:
            yield f"task {run.task} of {len(run.rows)} rows returned {result}"
        if missing := [row.value for row in run.rows if row.value not in places]:
            yield f"task {run.task} has appended {missing[:3]}, and they are not there"
        new[run.task] += result.records - result.duplicates
        for earlier in batch.runs:
            is_before = earlier.result is not None and earlier.ended_s < run.began_s
            if is_before and (earlier.task, earlier.rows) == (run.task, run.rows):
                if result.duplicates != result.records:
                    yield f"task {run.task} was done, and again returned {result}"
                break
    for task, count in new.items():
        values = {row.value for run in batch.runs if run.task == task for row in run.rows}
        if count > len(values & places.keys()):
            yield f"task {task} has called {count} rows new, and has fewer in the log"


def _refused(batch: MicroBatch, was_made_again: bool) -> Iterator[str]:
    """Tasks that are the same ones as in all attempts before are not others."""
    before: set[Division] = set()
    goes_on = False
    for attempt in batch.attempts:
        before.add(attempt.division)
        refusals = attempt.refusals
        if goes_on or len(attempt.division) > divisions.TASKS_AS_BITS:
            refusals = [each for each in refusals if WAITED not in each.message]
        goes_on = goes_on or any(run.outlives for run in attempt.runs)
        if len(before) == 1 and refusals:
            yield f"the same tasks are refused: {refusals[0].message}"
        if attempt.is_elsewhere and not was_made_again:
            yield f"{attempt} found another topic, and there was none"
        for run in attempt.runs:
            is_known = run.error is None or isinstance(
                run.error, SparkTaskChangedError | ConflictError | TopicRecreatedError
            )
            if is_known or run.outlives or run.error.retriable or run.error.indeterminate:
                continue
            yield f"task {run.task} failed with {run.error!r}"
