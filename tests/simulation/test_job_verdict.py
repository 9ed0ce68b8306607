"""The judge of the worlds of exports: a good story, and a bad one for each thing that it says."""

import json
from dataclasses import replace

import pytest

from icecore.spark.runs.report import Metrics
from tests.simulation.job_topic import JobLife
from tests.simulation.job_verdict import JobRunSeen, JobTruth, verdict

TOPIC = "ab" * 16
RECORDS = {(0, 0): "t 1 ok", (0, 1): "t 2 bad x", (0, 2): "t 3 ok", (1, 0): "t 4 ok"}
PART = "out/table/step=000000/part-0.parquet"
BAD = "out/quarantine/step=000000/part-0.parquet"
NOTE = "out/_icecore/steps/000000.done.json"
JOB = "out/_icecore/job.json"


def rows(*places: tuple[int, int]) -> str:
    return json.dumps([[*place, RECORDS[place]] for place in places])


def files(**more: str) -> dict[str, str]:
    note = {
        "start_offsets": {"0": 0, "1": 0},
        "end_offsets": {"0": 3, "1": 1},
        "records": 4,
        "staged": "_icecore/staging/mine",
    }
    return {
        JOB: json.dumps({"topic_id": TOPIC}),
        NOTE: json.dumps(note),
        PART: rows((0, 0), (0, 2), (1, 0)),
        BAD: rows((0, 1)),
    } | more


def run(texts: dict[str, str], *, status: str = "done", **changes: object) -> JobRunSeen:
    metrics = Metrics(job="export", topic="t", status=status, topic_id=TOPIC)
    metrics.start_offsets, metrics.end_offsets = {"0": 0, "1": 0}, {"0": 3, "1": 1}
    seen = JobRunSeen(1, metrics, before=texts, after=texts)
    return replace(seen, **changes)  # type: ignore[arg-type]


def judged(texts: dict[str, str], *runs: JobRunSeen, is_in_delta: bool = False) -> list[str]:
    life = JobLife(TOPIC, set(RECORDS.values()), dict(RECORDS))
    truth = JobTruth([life], RECORDS, is_in_delta)
    return list(verdict(runs or [run(texts)], texts, truth))


def test_each_record_once_is_good() -> None:
    assert not judged(files())
    commit = {"out/table/_delta_log/0.json": json.dumps([PART])}
    assert not judged(files(**commit), is_in_delta=True)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({PART: rows((0, 0), (1, 0))}, "run 1 is done up to 3 of 0, and 2 is not there"),
        ({PART: rows((0, 0), (1, 0))}, "0/2 is exported, and lacks: t 3 ok"),
        ({PART: rows((0, 0), (1, 0))}, "0/2 was never exported"),
        ({PART: rows((0, 0), (1, 0))}, "step 0 has 3 rows, and its note says 4"),
        ({f"{PART}.parquet": rows((0, 0))}, "record 0/0 is there twice"),
        ({PART: rows((0, 0), (0, 2))[:-3]}, "is cut off"),
        ({PART: rows((0, 0), (0, 1), (0, 2), (1, 0)), BAD: "[]"}, f"record 0/1 is in {PART}"),
        ({BAD: json.dumps([[0, 1, "u 2 bad x"]])}, "which was never sent to this topic"),
        ({BAD: json.dumps([[0, 1, "t 2 bad x"], [0, 3, "t 2 bad x"]])}, "step 0 has 5 rows"),
        ({PART: json.dumps([[0, 2, "t 1 ok"]])}, "and another one was acknowledged there"),
        ({JOB: json.dumps({"topic_id": "cd" * 16})}, "which there never was"),
    ],
)
def test_a_wrong_output(more: dict[str, str], said: str) -> None:
    assert any(said in each for each in judged(files(**more)))


def test_what_was_there_stays() -> None:
    now = files(**{PART: rows((0, 0), (1, 0), (0, 2))})
    assert any("is not what it was" in each for each in judged(now, run(files()), run(now)))


def test_a_refused_run_changes_nothing() -> None:
    refused = run(files(), status="failed", wrong="CONFIGURATION")
    assert any("is not refused" in each for each in judged(files(), refused))
    refused.metrics.error = "CONFIGURATION: other arguments"
    assert not judged(files(), refused)
    changed = replace(refused, before={})
    assert any("is refused, and has changed" in each for each in judged(files(), changed))


def test_an_error_says_what_it_is_about() -> None:
    failed = run(files(), status="failed")
    failed.metrics.error = "STORAGE: FileNotFoundException: x"
    assert any("does not say what it misses" in each for each in judged(files(), failed))


def test_what_a_run_may_lose_is_excused_and_nothing_else() -> None:
    texts = files(**{PART: rows((0, 2), (1, 0)), BAD: "[]"})
    texts[NOTE] = texts[NOTE].replace('"records": 4', '"records": 2')
    life = JobLife(TOPIC, set(RECORDS.values()), dict(RECORDS), {0: 2})
    truth = JobTruth([life], RECORDS)
    assert list(verdict([run(texts)], texts, truth))
    assert not list(verdict([run(texts, may_lose=True)], texts, truth))
    life.dropped_below[0] = 1
    assert list(verdict([run(texts, may_lose=True)], texts, truth))


def test_steps_that_do_not_follow_each_other() -> None:
    note = {
        "start_offsets": {"0": 2, "1": 1},
        "end_offsets": {"0": 3, "1": 1},
        "records": 0,
        "staged": "-",
    }
    texts = files(**{"out/_icecore/steps/000001.done.json": json.dumps(note)})
    assert any("step 1 begins at 2 of 0" in each for each in judged(texts))


@pytest.mark.parametrize(
    ("commits", "said"),
    [
        ({"0": []}, "0/0 was never exported"),
        ({"0": [PART], "1": [PART]}, "names"),
        ({"0": [f"{PART}.gone"]}, "which is not there"),
    ],
)
def test_a_wrong_log(commits: dict[str, list[str]], said: str) -> None:
    log = {
        f"out/table/_delta_log/{number}.json": json.dumps(named)
        for number, named in commits.items()
    }
    assert any(said in each for each in judged(files(**log), is_in_delta=True))
