"""The judge of the sink's worlds: one good story, and one bad one for each thing that it says."""

from collections.abc import Mapping

import pytest

from icecore.errors import InvalidRequestError, UnavailableError
from icecore.spark.tasks.identity import SparkTaskChangedError
from icecore.spark.tasks.rows import AppendedRows
from tests.simulation.sink_rows import Division, SinkRow
from tests.simulation.sink_verdict import MicroBatch, SinkAttempt, TaskRun, verdict

A, B, C, D = (SinkRow(each) for each in (b"a", b"b", b"c", b"d"))
TWO: Division = ((A, B), (C, D))
ONE: Division = ((A, B, C, D),)


def attempt(division: Division, at_s: float, *, duplicates: int = 0) -> SinkAttempt:
    """All of its tasks came to their end."""
    made = SinkAttempt(7, division, is_committed=True)
    for task, rows in enumerate(division):
        result = AppendedRows(len(rows), duplicates)
        made.runs.append(TaskRun(task, rows, at_s, result, ended_s=at_s + 1))
    return made


def killed(division: Division, task: int, *, outlives: bool = False) -> SinkAttempt:
    """One of its tasks had begun, and its driver died."""
    run = TaskRun(task, division[task], 0.0, outlives=outlives)
    return SinkAttempt(6, division, [run], was_killed=True)


def judged(attempts: list[SinkAttempt], text: str) -> list[str]:
    """The judge's word on a log with these values, each in the partition that a ``/`` begins."""
    batch = MicroBatch(0, attempts[0].division, attempts)
    batch.committed = next((each for each in reversed(attempts) if each.is_committed), None)
    batch.is_stuck = batch.committed is None
    final: Mapping[int, list[tuple[int, bytes]]] = {
        number: [(offset, value.encode()) for offset, value in enumerate(values)]
        for number, values in enumerate(text.split("/"))
    }
    return list(verdict([batch], final, 2))


def test_each_row_once_is_good() -> None:
    assert not judged([attempt(TWO, 0.0)], "ab/cd")
    assert not judged([killed(TWO, 0), attempt(TWO, 2.0)], "acbd/")
    assert not judged([attempt(TWO, 0.0), attempt(TWO, 2.0, duplicates=2)], "ab/cd")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("ab/c", "b'd' was committed and is not there"),
        ("abb/cd", "b'b' is there 2 times"),
        ("abx/cd", "nobody was given b'x'"),
        ("ba/cd", "b'b' is at 0 of 0, before one it came after"),
    ],
)
def test_a_wrong_log(log: str, said: str) -> None:
    problems = judged([attempt(TWO, 0.0)], log)
    assert any(said in each for each in problems), problems


def test_a_key_in_another_partition() -> None:
    rows = (SinkRow(b"a", b"k"), SinkRow(b"b", b"k"))
    found = [judged([attempt((rows,), 0.0)], log) for log in ("ab/", "/ab")]
    assert sorted(map(len, found)) == [0, 2]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (AppendedRows(1, 0), "of 2 rows returned"),
        (AppendedRows(2, 3), "of 2 rows returned"),
        (AppendedRows(2, 1, 2), "of 2 rows returned"),
    ],
)
def test_a_result_that_does_not_add_up(result: AppendedRows, said: str) -> None:
    made = attempt(TWO, 0.0)
    made.runs[0].result = result
    assert any(said in each for each in judged([made], "ab/cd"))


def test_rows_are_new_once() -> None:
    """The second run of a task that was done finds all of its rows."""
    problems = judged([attempt(TWO, 0.0), attempt(TWO, 2.0)], "ab/cd")
    assert any("was done, and again returned" in each for each in problems)
    assert any("has called 4 rows new" in each for each in problems)


def test_appended_rows_stay_also_of_an_attempt_that_died() -> None:
    first = killed(TWO, 1)
    first.runs[0].result = AppendedRows(2, 0)
    other = ((A, B), ())
    problems = judged([first, attempt(other, 2.0)], "ab/")
    assert any("task 1 has appended" in each for each in problems)


def test_rows_that_were_not_committed() -> None:
    """They may stay of tasks that there are no more, and of executors that went on."""
    fewer: Division = ((A,), (C, D))
    left = "is there, and what was committed has it not"
    assert any(left in each for each in judged([killed(TWO, 0), attempt(fewer, 2.0)], "ab/cd"))
    assert not judged([killed(TWO, 0, outlives=True), attempt(fewer, 2.0)], "ab/cd")
    assert not judged([killed(TWO, 1), attempt(((A, B),), 2.0)], "abc/")


def test_an_executor_that_goes_on_may_write_its_own_rows_once_more_for_another_task() -> None:
    story = [killed(TWO, 1, outlives=True), attempt(ONE, 2.0)]
    assert not judged(story, "abcd/cd")
    assert any("b'c' is there 3 times" in each for each in judged(story, "abcd/ccd"))
    assert any("b'a' is there 2 times" in each for each in judged(story, "aabcd/"))
    same = [killed(TWO, 1, outlives=True), attempt(TWO, 2.0)]
    assert any("b'c' is there 2 times" in each for each in judged(same, "ab/cdc"))


def test_no_attempt_can_finish() -> None:
    """It may be so only where an executor went on whose tasks are not those of the next attempt."""
    assert judged([killed(TWO, 0)], "a/") == ["micro-batch 0: no attempt could finish it"]
    assert judged([killed(TWO, 0, outlives=True), killed(TWO, 0)], "a/")
    assert not judged([killed(TWO, 0, outlives=True), killed(ONE, 0)], "a/")


def test_the_same_tasks_are_not_refused() -> None:
    refused = killed(TWO, 0)
    refused.was_killed, refused.runs[0].error = False, SparkTaskChangedError("other rows")
    assert any("the same tasks" in each for each in judged([refused, attempt(TWO, 2.0)], "ab/cd"))
    story = [killed(ONE, 0), refused, attempt(ONE, 2.0)]
    assert not judged(story, "abcd/")


def test_tasks_may_wait_in_vain_behind_an_executor_that_goes_on() -> None:
    """It has noted its attempt as the one at work. Other rows are another matter."""
    refused = killed(TWO, 0)
    refused.was_killed = False
    for outlives, message, count in (
        (True, "these have not come as far again", 0),
        (False, "these have not come as far again", 1),
        (True, "see offset 7", 1),
    ):
        refused.runs[0].error = SparkTaskChangedError(message)
        story = [killed(TWO, 0, outlives=outlives), refused, attempt(TWO, 2.0)]
        assert len(judged(story, "ab/cd")) == count


def test_only_what_passes_may_fail() -> None:
    failed = killed(TWO, 0)
    failed.runs[0].error = UnavailableError("down")
    assert not judged([failed, attempt(TWO, 2.0)], "ab/cd")
    failed.runs[0].error = InvalidRequestError("no such thing")
    assert any("failed with" in each for each in judged([failed, attempt(TWO, 2.0)], "ab/cd"))
