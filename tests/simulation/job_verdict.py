"""The judge of exports in simulated worlds: files, notes and the topic have to agree. Pure.

Ranges stand in the notes of steps, and in the reports of runs that called themselves done. Each
record of them is there once, in the table or the quarantine, and comes from the life of the topic
that the job was begun with. A record that is there stays. A run that is refused changes nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from icecore.spark.runs.report import Metrics
from tests.simulation.job_topic import JobLife, Place, is_bad

OUT = "out"
PARTS = ("table", "quarantine")
Texts = Mapping[str, str]
Rows = dict[Place, str]


@dataclass
class JobRunSeen:
    """One run of a job, as it was seen from outside."""

    number: int
    metrics: Metrics
    may_lose: bool = False
    is_killed: bool = False
    is_alone: bool = True
    """No other run was at work meanwhile."""
    wrong: str = ""
    """The reason with which it has to be refused, for its arguments are wrong."""
    before: Texts = field(default_factory=dict)
    after: Texts = field(default_factory=dict)
    """All files when it began and ended."""


@dataclass(frozen=True)
class JobTruth:
    """All that is known of the topic in the end."""

    lives: Sequence[JobLife]
    final: Mapping[Place, str]
    """All records of the last life."""
    is_in_delta: bool = False


def rows_of(texts: Texts, *, is_in_delta: bool = False) -> tuple[Rows, list[str]]:
    """All rows that readers of the table and of the quarantine see, and what is wrong with them."""
    found: Rows = {}
    problems: list[str] = []
    for path in _paths(texts, is_in_delta, problems):
        try:
            rows = json.loads(texts[path])
        except ValueError:
            problems.append(f"{path} is cut off")
            continue
        for partition, offset, value in rows:
            if (partition, offset) in found:
                problems.append(f"record {partition}/{offset} is there twice, again in {path}")
            if is_bad(value) == path.startswith(f"{OUT}/table/"):
                problems.append(f"record {partition}/{offset} is in {path}")
            found[partition, offset] = value
    return found, problems


def _paths(texts: Texts, is_in_delta: bool, problems: list[str]) -> list[str]:
    seen = [
        path
        for path in sorted(texts)
        for part in PARTS
        if path.startswith(f"{OUT}/{part}/step=") and path.endswith(".parquet")
    ]
    if not is_in_delta:
        return seen
    named = [path for number in sorted(commits_of(texts)) for path in commits_of(texts)[number]]
    if missing := [path for path in named if path not in texts]:
        problems.append(f"the log names {missing[0]}, which is not there")
    if more := [each for each in named if named.count(each) > 1]:
        problems.append(f"the log names {more[0]} twice")
    return [each for each in named if each in texts] + [each for each in seen if PARTS[1] in each]


def commits_of(texts: Texts) -> dict[int, list[str]]:
    """The files that each commit of the log names."""
    folder = f"{OUT}/table/_delta_log/"
    return {
        int(path.removeprefix(folder).removesuffix(".json")): json.loads(text)
        for path, text in texts.items()
        if path.startswith(folder)
    }


def notes_of(texts: Texts) -> list[dict[str, object]]:
    """The notes of steps that are done, in their order."""
    found = [
        path
        for path in sorted(texts)
        if path.startswith(f"{OUT}/_icecore/steps/") and path.endswith(".done.json")
    ]
    return [json.loads(texts[each]) for each in found]


def verdict(runs: Sequence[JobRunSeen], texts: Texts, truth: JobTruth) -> Iterator[str]:
    """Yield what is wrong with an export.

    Args:
        runs: In the order in which they ended.
        texts: All files in the end.
        truth: What is known of the topic.
    """
    rows, problems = rows_of(texts, is_in_delta=truth.is_in_delta)
    yield from problems
    for run in runs:
        yield from _run(run, truth.is_in_delta)
        for path in _paths(run.after, False, []):
            if run.after[path] != texts.get(path):
                yield f"{path} was there after run {run.number}, and is not what it was"
    job = texts.get(f"{OUT}/_icecore/job.json")
    if job is None:
        if rows:
            yield "there are rows of no job"
        return
    topic_id = json.loads(job)["topic_id"]
    lives = [each for each in truth.lives if each.topic_id == topic_id]
    if not lives:
        yield f"the job is of topic {topic_id}, which there never was"
        return
    may_lose = any(run.may_lose for run in runs)
    yield from _true(rows, lives[0], truth)
    yield from _notes(texts, may_lose)
    yield from _complete(rows, runs, texts, lives[0], truth.is_in_delta)
    last = runs[-1].metrics if runs else None
    if lives[0] is truth.lives[-1] and last is not None and last.status == "done":
        yield from _whole(rows, lives[0])


def _run(run: JobRunSeen, is_in_delta: bool) -> Iterator[str]:
    """Problems with what one run has left."""
    who, metrics = f"run {run.number}", run.metrics
    if run.wrong and run.is_alone and not run.is_killed:
        if not metrics.error.startswith(run.wrong):
            yield f"{who} is not refused: {metrics.status} {metrics.error}"
        if run.before != run.after:
            changed = {path for path in {*run.before, *run.after} if _differs(run, path)}
            yield f"{who} is refused, and has changed {sorted(changed)[0]}"
    if "FileNotFound" in metrics.error and not run.is_killed:
        yield f"{who} does not say what it misses: {metrics.error}"
    if run.is_killed or metrics.status != "done":
        return
    rows, problems = rows_of(run.after, is_in_delta=is_in_delta)
    if run.is_alone:
        yield from (f"{who} is done: {each}" for each in problems)
    for partition, start, end in _ranges(metrics.start_offsets, metrics.end_offsets):
        missing = [at for at in range(start, end) if (partition, at) not in rows]
        if missing and not run.may_lose:
            yield f"{who} is done up to {end} of {partition}, and {missing[0]} is not there"


def _differs(run: JobRunSeen, path: str) -> bool:
    return run.before.get(path) != run.after.get(path)


def _true(rows: Rows, life: JobLife, truth: JobTruth) -> Iterator[str]:
    """Each row is a record of that life."""
    for (partition, offset), value in rows.items():
        where = f"record {partition}/{offset}"
        if value not in life.sent:
            yield f"{where} is {value[:40]!r}, which was never sent to this topic"
        elif life.acked.get((partition, offset), value) != value:
            yield f"{where} is {value[:40]!r}, and another one was acknowledged there"
        elif life is truth.lives[-1] and truth.final.get((partition, offset), value) != value:
            yield f"{where} is {value[:40]!r}, and the log has another one"


def _notes(texts: Texts, may_lose: bool) -> Iterator[str]:
    """Steps follow each other, and have as many rows as they say."""
    reached: dict[str, int] = {}
    for number, note in enumerate(notes_of(texts)):
        starts, ends = note["start_offsets"], note["end_offsets"]
        assert isinstance(starts, dict)
        assert isinstance(ends, dict)
        for partition, start in starts.items():
            before = reached.get(partition, start)
            if start < before or (start > before and not may_lose):
                yield f"step {number} begins at {start} of {partition}, the last ended at {before}"
        reached |= ends
        there = [
            path
            for part in PARTS
            for path in texts
            if path.startswith(f"{OUT}/{part}/step={number:06}/") and path.endswith(".parquet")
        ]
        count = sum(len(json.loads(texts[each])) for each in there if _is_whole(texts[each]))
        if count != note["records"] and not _is_staged(texts, note):
            yield f"step {number} has {count} rows, and its note says {note['records']}"


def _is_whole(text: str) -> bool:
    return text.endswith("]")


def _complete(
    rows: Rows, runs: Sequence[JobRunSeen], texts: Texts, life: JobLife, is_in_delta: bool
) -> Iterator[str]:
    """All that it says is there, but for what was deleted before a run that may pass over it. What
    is noted and waits for the next run is not said yet."""
    may_lose = any(run.may_lose for run in runs)
    said = [
        (each["start_offsets"], each["end_offsets"])
        for number, each in enumerate(notes_of(texts))
        if not _is_staged(texts, each) and (not is_in_delta or number in commits_of(texts))
    ]
    done = [run.metrics for run in runs if run.metrics.status == "done" and not run.is_killed]
    said += [(each.start_offsets, each.end_offsets) for each in done]
    for starts, ends in said:
        for partition, start, end in _ranges(starts, ends):
            gone = life.dropped_below.get(partition, 0) if may_lose else 0
            for offset in range(max(start, gone), end):
                if (partition, offset) not in rows:
                    value = life.acked.get((partition, offset), "nobody knows what")
                    yield f"{partition}/{offset} is exported, and lacks: {value[:40]}"
                    break


def _whole(rows: Rows, life: JobLife) -> Iterator[str]:
    """Nothing was written any more when the last run began, so it had to come to the end."""
    for (partition, offset), value in sorted(life.acked.items()):
        if (partition, offset) not in rows and offset >= life.dropped_below.get(partition, 0):
            yield f"{partition}/{offset} was never exported: {value[:40]}"
            return


def _is_staged(texts: Texts, note: Mapping[str, object]) -> bool:
    """Return whether the result of a step waits for the next run, which a refused job has not."""
    return any(path.startswith(f"{OUT}/{note['staged']}/") for path in texts)


def _ranges(starts: object, ends: object) -> Iterator[tuple[int, int, int]]:
    assert isinstance(starts, dict)
    assert isinstance(ends, dict)
    for partition, end in ends.items():
        yield int(partition), starts.get(partition, end), end
