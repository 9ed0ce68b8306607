"""Jobs with a real Spark and a real cluster: what they make, and that a run that was killed at any
step is finished by the next one as if nothing had been."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from icecore.blocking import Admin, Consumer, Producer
from icecore.dev import LocalCluster
from icecore.errors import StorageError
from icecore.spark.jobs import arguments
from icecore.spark.jobs.files import SparkFiles
from icecore.spark.jobs.runner import perform
from icecore.spark.runs.folder import JobFolder
from icecore.spark.runs.ledger import JobLedger
from icecore.spark.runs.report import Metrics, Report
from tests.support import rotation

FIELDS = "n int, kind string"


def create(cluster: LocalCluster, topic: str, partitions: int = 2) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions, replication_factor=1)


def produce(
    cluster: LocalCluster, topic: str, records: list[tuple[bytes | None, bytes | None]]
) -> None:
    with Producer(cluster.bootstrap) as producer:
        for key, value in records:
            producer.send(topic, value, key=key)


def values(numbers: range) -> list[tuple[bytes | None, bytes | None]]:
    return [
        (b"k%d" % (n % 10), json.dumps({"n": n, "kind": f"k{n % 3}"}).encode()) for n in numbers
    ]


def run(spark: SparkSession, cluster: LocalCluster, *given: object) -> Metrics:
    job, topic, *rest = map(str, given)
    asked = arguments.parse([job, topic, "--bootstrap", cluster.bootstrap, *rest])
    report = Report(job, topic)
    perform(spark, asked, report)
    assert json.loads(report.last_line())["schema"] == "icecore.spark.job/1"
    return report.metrics


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


class Crash:
    """Lets one method of a ledger fail once, as a run does that is killed there."""

    def __init__(self, patch: pytest.MonkeyPatch, method: str, *, before: bool, at: int) -> None:
        whole = getattr(JobLedger, method)
        self.calls = 0

        def failing(*given: Any) -> Any:
            self.calls += 1
            if self.calls == at and before:
                raise StorageError("killed")
            found = whole(*given)
            if self.calls == at:
                raise StorageError("killed")
            return found

        patch.setattr(JobLedger, method, failing)


CRASHES = [
    ("plan", False, 1),
    ("publish", True, 1),
    ("publish", False, 1),
    ("note_done", True, 2),
    ("note_done", False, 2),
]
LATEST_CRASHES = rotation.take(
    "spark: crashes of latest", [*CRASHES[:3], ("note_done", True, 1)], 2
)
EXPORT_CRASHES = rotation.take("spark: crashes of export", CRASHES, 2)


# --- latest -------------------------------------------------------------------------------------


def newest(spark: SparkSession, metrics: Metrics) -> dict[bytes, bytes]:
    rows = spark.read.parquet(metrics.output).select("key", "value").collect()
    assert len(rows) == metrics.records_written
    return {bytes(row["key"]): bytes(row["value"]) for row in rows}


def test_latest_follows_the_topic(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "latest")
    given = ("latest", "latest", "--to", tmp_path / "out")
    assert run(spark, cluster, *given, "--dry-run").status == "planned"
    assert not files(tmp_path)
    first = values(range(100))
    produce(cluster, "latest", first)
    made = run(spark, cluster, *given)
    assert (made.status, made.records_read, made.steps_done) == ("done", 100, 1)
    assert newest(spark, made) == dict(first)
    second = [(b"k3", None), (b"new", b"1"), (None, b"no key"), (b"k4", b"2"), (b"k4", b"3")]
    produce(cluster, "latest", second)
    made = run(spark, cluster, *given)
    assert (made.records_read, made.steps_found_done) == (5, 1)
    expected = dict(first) | {b"new": b"1", b"k4": b"3"}
    del expected[b"k3"]
    assert newest(spark, made) == expected
    idle = run(spark, cluster, *given)
    assert (idle.status, idle.steps_done, idle.output) == ("done", 0, made.output)
    produce(cluster, "latest", [(b"k3", b"back")])
    made = run(spark, cluster, *given)
    assert newest(spark, made) == expected | {b"k3": b"back"}
    folders = [path.name for path in (tmp_path / "out").glob("version=*")]
    assert sorted(folders) == ["version=000001", "version=000002"]


@pytest.mark.parametrize(("method", "before", "at"), LATEST_CRASHES)
def test_latest_is_killed(
    spark: SparkSession,
    cluster: LocalCluster,
    tmp_path: Path,
    method: str,
    before: bool,
    at: int,
) -> None:
    topic = f"latest-{method}-{before}"
    create(cluster, topic)
    first = values(range(50))
    produce(cluster, topic, first)
    with pytest.MonkeyPatch.context() as patch:
        Crash(patch, method, before=before, at=at)
        assert run(spark, cluster, "latest", topic, "--to", tmp_path / "out").error
    produce(cluster, topic, [(b"late", b"1")])
    made = run(spark, cluster, "latest", topic, "--to", tmp_path / "out")
    assert made.status == "done"
    assert newest(spark, made) == dict(first) | {b"late": b"1"}
    staging = tmp_path / "out" / "_icecore" / "staging"
    for path in files(staging):  # of the killed run, which could still be alive
        os.utime(path, (0, time.time() - 25 * 3600))
    assert run(spark, cluster, "latest", topic, "--to", tmp_path / "out").status == "done"
    assert not staging.exists()


# --- export -------------------------------------------------------------------------------------

BAD: list[tuple[bytes | None, bytes | None]] = [
    (b"a", None),
    (b"b", b"\xff\xfe"),
    (b"c", b'{"n": 1'),
    (b"d", b"[1, 2]"),
    (b"e", b'{"n": "many", "kind": "x"}'),
    (b"f", b"5"),
    (b"g", b'{"n": 7} and more'),
    (b"h", b""),
    (b"i", b'{"n": 7} {"n": 8}'),
    (b"j", b'{"n": 7}, {"n": 8}'),
]
REASONS = {
    b"a": "no value (a tombstone)",
    b"b": "not UTF-8",
    b"c": "not JSON",
    b"d": "not a JSON object",
    b"e": "a field has another type than the schema says",
    b"f": "not a JSON object",
    b"g": "not JSON",
    b"h": "not JSON",
    b"i": "not JSON",
    b"j": "not JSON",
}


def test_export_and_its_quarantine(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "export")
    produce(cluster, "export", [*values(range(300)), *BAD, (b"z", b'{"kind": "k0", "more": 1}')])
    given = ("export", "export", "--to", tmp_path / "out", "--schema", FIELDS)
    given = (*given, "--partition-by", "kind", "--step-records", "100")
    planned = run(spark, cluster, *given, "--dry-run")
    assert sum(planned.end_offsets.values()) == 311
    assert not files(tmp_path)
    made = run(spark, cluster, *given)
    assert (made.status, made.error, made.steps_done) == ("done", "", 4)
    assert (made.records_read, made.records_written, made.records_quarantined) == (311, 301, 10)
    table = spark.read.parquet(made.output)
    rows = table.select("n", "kind", "record_key", "record_partition", "record_offset").collect()
    found = {(row["n"], row["kind"]) for row in rows}
    assert found == {(n, f"k{n % 3}") for n in range(300)} | {(None, "k0")}
    assert len({(row["record_partition"], row["record_offset"]) for row in rows}) == 301
    bad = spark.read.parquet(str(tmp_path / "out" / "quarantine")).collect()
    assert {bytes(row["record_key"]): row["reason"] for row in bad} == REASONS
    again = run(spark, cluster, *given)
    assert (again.steps_done, again.steps_found_done, again.records_read) == (0, 4, 0)
    other = run(spark, cluster, *given[:5], "n int")
    assert "go on with the same" in other.error
    assert run(spark, cluster, "latest", "export", "--to", tmp_path / "out").error
    assert spark.read.parquet(made.output).count() == 301


@pytest.mark.parametrize(("method", "before", "at"), EXPORT_CRASHES)
def test_export_is_killed(
    spark: SparkSession,
    cluster: LocalCluster,
    tmp_path: Path,
    method: str,
    before: bool,
    at: int,
) -> None:
    topic = f"export-{method}-{before}"
    create(cluster, topic)
    produce(cluster, topic, [*values(range(100)), (b"bad", b"?")])
    given = ("export", topic, "--to", tmp_path / "out", "--step-records", "60")
    with pytest.MonkeyPatch.context() as patch:
        Crash(patch, method, before=before, at=at)
        assert run(spark, cluster, *given).error
    produce(cluster, topic, values(range(100, 130)))
    made = run(spark, cluster, *given)
    assert made.status == "done"
    table = spark.read.parquet(made.output)
    assert sorted(row["n"] for row in table.select("n").collect()) == list(range(130))
    assert spark.read.parquet(str(tmp_path / "out" / "quarantine")).count() == 1


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_two_exports_meet(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, form: str
) -> None:
    """One is paused with a step that it has made and not noted, and the other one does it all."""
    topic, may_end, is_made = f"two-{form}", threading.Event(), threading.Event()
    create(cluster, topic)
    produce(cluster, topic, [*values(range(100)), (b"bad", b"?")])
    given = ("export", topic, "--to", tmp_path / "out", "--schema", FIELDS, "--format", form)
    given = (*given, "--partition-by", "kind")
    found: list[Metrics] = []
    with pytest.MonkeyPatch.context() as patch:
        finish = JobLedger.finish

        def slow(*asked: Any) -> Any:
            if threading.current_thread() is paused:
                is_made.set()
                assert may_end.wait(300)
            return finish(*asked)

        patch.setattr(JobLedger, "finish", slow)
        paused = threading.Thread(target=lambda: found.append(run(spark, cluster, *given)))
        paused.start()
        assert is_made.wait(300)
        assert run(spark, cluster, *given).status == "done"
        before = files(tmp_path / "out" / "table")
        may_end.set()
        paused.join()
    assert "has done step 0: wait for its end" in found[0].error
    assert files(tmp_path / "out" / "table") == before
    assert run(spark, cluster, *given).status == "done"
    table = spark.read.parquet(str(tmp_path / "out" / "table"))
    assert sorted(row["n"] for row in table.select("n").collect()) == list(range(100))
    assert spark.read.parquet(str(tmp_path / "out" / "quarantine")).count() == 1
    if form == "delta":
        assert in_delta(tmp_path / "out") == set(range(100))


@pytest.mark.parametrize("has_links", [True, False])
def test_a_note_is_written_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    """Also by two who both saw none; disks without links can't tell that, and go on without."""
    if not has_links:
        monkeypatch.setattr(SparkFiles, "link", lambda *_: None)
    folder = JobFolder(SparkFiles(spark, str(tmp_path)))
    assert folder.write_json("a b/note.json", {"by": 1})
    assert not folder.write_json("a b/note.json", {"by": 2})
    if has_links:
        with monkeypatch.context() as patch:
            patch.setattr(JobFolder, "exists", Late())
            assert not folder.write_json("a b/note.json", {"by": 2})
    assert folder.read_json("a b/note.json") == {"by": 1}
    assert [path.name for path in files(tmp_path) if path.suffix != ".crc"] == ["note.json"]


class Late:
    """Says first that there is no file, as another run's comes right after the question."""

    def __init__(self) -> None:
        self.answers = iter([False, True])

    def __call__(self, name: str) -> bool:
        return next(self.answers)


def test_a_topic_that_is_made_again_between_two_steps(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(cluster, "between", partitions=1)
    produce(cluster, "between", values(range(20)))
    finish = JobLedger.finish

    def again(*asked: Any) -> Any:
        found = finish(*asked)
        with Admin(cluster.bootstrap) as admin:
            admin.delete_topic("between")
            admin.create_topic("between", partitions=1, replication_factor=1)
        produce(cluster, "between", values(range(100, 120)))
        return found

    monkeypatch.setattr(JobLedger, "finish", again)
    given = ("export", "between", "--to", tmp_path / "out", "--schema", FIELDS)
    made = run(spark, cluster, *given, "--step-records", "10")
    assert (made.status, made.steps_done) == ("failed", 1)
    assert "TOPIC_RECREATED" in made.error
    rows = spark.read.parquet(str(tmp_path / "out" / "table")).select("n").collect()
    assert sorted(row["n"] for row in rows) == list(range(10))


def test_a_delta_log_over_an_export(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "delta")
    odd = (b"odd", b'{"n": 1000, "kind": "a/b =c%"}')
    produce(cluster, "delta", [*values(range(100)), odd, (b"none", b'{"n": 1001}')])
    given = ("export", "delta", "--to", tmp_path / "out", "--schema", FIELDS, "--format", "delta")
    given = (*given, "--partition-by", "kind", "--step-records", "60")
    with pytest.MonkeyPatch.context() as patch:
        Crash(patch, "note_done", before=False, at=2)  # both steps are done, the log knows none
        assert run(spark, cluster, *given).error
    assert run(spark, cluster, *given).status == "done"
    assert in_delta(tmp_path / "out") == {*range(100), 1000, 1001}
    produce(cluster, "delta", values(range(100, 110)))
    assert run(spark, cluster, *given).steps_done == 1
    assert run(spark, cluster, *given).steps_done == 0
    assert in_delta(tmp_path / "out") == {*range(110), 1000, 1001}
    table = DeltaTable(tmp_path / "out" / "table")
    assert table.version() == 3
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    kinds = {each["partition.kind"] for each in actions}
    assert kinds == {"k0", "k1", "k2", "a/b =c%", None}
    assert {each["partition.step"] for each in actions} == {0, 1, 2}


def in_delta(folder: Path) -> set[int]:
    """Numbers in the files that the log names, each once."""
    files = DeltaTable(folder / "table").file_uris()
    with duckdb.connect() as connection:
        rows = connection.execute("select n from read_parquet(?)", [files]).fetchall()
    assert len({n for (n,) in rows}) == len(rows)
    return {n for (n,) in rows}


def test_exports_that_can_not_be(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "wrong")
    to = ("--to", tmp_path / "out")
    assert "say its columns by --schema" in run(spark, cluster, "export", "wrong", *to).error
    produce(cluster, "wrong", values(range(5)))
    for schema, said in (("n nonsense", "--schema is a list"), ("record_key int", "adds it")):
        assert said in run(spark, cluster, "export", "wrong", *to, "--schema", schema).error
    named = run(spark, cluster, "export", "wrong", *to, "--partition-by", "size")
    assert "--partition-by names size" in named.error
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    assert "holds mine.txt" in run(spark, cluster, "export", "wrong", *to).error
    assert [path.name for path in files(tmp_path)] == ["mine.txt"]
    assert "nowhere" in run(spark, cluster, "export", "wrong", "--to", "nowhere://x/y").error


def test_a_topic_that_was_made_again(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "export-again")
    produce(cluster, "export-again", values(range(5)))
    given = ("export", "export-again", "--to", tmp_path / "out")
    assert run(spark, cluster, *given).status == "done"
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topic("export-again")
        admin.create_topic("export-again", partitions=2, replication_factor=1)
    produce(cluster, "export-again", values(range(5)))
    assert "deleted and made again" in run(spark, cluster, *given).error


def test_records_that_are_gone(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster, "export-gone", partitions=1)
    produce(cluster, "export-gone", values(range(10)))
    given = ("export", "export-gone", "--to", tmp_path / "out")
    assert run(spark, cluster, *given).records_read == 10
    produce(cluster, "export-gone", values(range(10, 20)))
    with Admin(cluster.bootstrap) as admin:
        admin.delete_records("export-gone", {0: 15})
    assert "offsets 10 to 15 were deleted" in run(spark, cluster, *given).error
    made = run(spark, cluster, *given, "--allow-data-loss")
    assert (made.status, made.records_read) == ("done", 5)


# --- backfill -----------------------------------------------------------------------------------


def read_all(cluster: LocalCluster, topic: str) -> list[Any]:
    with Consumer(cluster.bootstrap, topic, stop_at_end=True) as consumer:
        return list(consumer)


@pytest.mark.parametrize(("method", "before", "at"), [("note_done", True, 1), ("plan", False, 1)])
def test_backfill_writes_once(
    spark: SparkSession,
    cluster: LocalCluster,
    tmp_path: Path,
    method: str,
    before: bool,
    at: int,
) -> None:
    topic = f"filled-{method}"
    create(cluster, topic)
    table = spark.range(0, 500, 1, 5).selectExpr(
        "id as n", "concat('k', id % 10) as kind", "if(id % 2 = 0, 'even', null) as tag"
    )
    table.write.parquet(str(tmp_path / "table"))
    given = ("backfill", topic, "--from", tmp_path / "table", "--state", tmp_path / "state")
    given = (*given, "--key", "kind", "--order-by", "n", "--tags", "tag", "--steps", "2")
    assert run(spark, cluster, *given, "--dry-run").records_read == 500
    assert not read_all(cluster, topic)
    with pytest.MonkeyPatch.context() as patch:
        Crash(patch, method, before=before, at=at)
        assert run(spark, cluster, *given).error
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1024")
    try:
        made = run(spark, cluster, *given)  # files are split otherwise, which must not matter
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert (made.status, made.records_written, made.error) == ("done", 500, "")
    found = read_all(cluster, topic)
    rows = [json.loads(each.value) for each in found]
    assert sorted(row["n"] for row in rows) == list(range(500))
    for each, row in zip(found, rows, strict=True):
        assert each.key == row["kind"].encode()
        assert each.tags == (() if row["n"] % 2 else ("even",))
    of_key = [row["n"] for row in rows if row["kind"] == "k4"]
    assert of_key == sorted(of_key)
    again = run(spark, cluster, *given)
    assert (again.status, again.steps_found_done, again.records_written) == ("done", 2, 0)
    assert len(read_all(cluster, topic)) == 500


def test_backfill_stays_with_its_topic(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(cluster, "filled-again")
    spark.range(0, 100).write.parquet(str(tmp_path / "table"))
    note_done = JobLedger.note_done

    def again(*asked: Any) -> None:
        note_done(*asked)
        with Admin(cluster.bootstrap) as admin:
            admin.delete_topic("filled-again")
            admin.create_topic("filled-again", partitions=2, replication_factor=1)

    monkeypatch.setattr(JobLedger, "note_done", again)
    given = ("backfill", "filled-again", "--from", tmp_path / "table", "--steps", "2")
    made = run(spark, cluster, *given, "--state", tmp_path / "state")
    assert (made.status, made.steps_done) == ("failed", 1)
    assert "TopicRecreatedError" in made.error
    assert not read_all(cluster, "filled-again")


def test_backfills_that_can_not_be(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "refused")
    spark.range(0, 100).write.parquet(str(tmp_path / "table"))
    given = ("backfill", "refused", "--state", tmp_path / "state", "--from")
    assert "can't be read" in run(spark, cluster, *given, tmp_path / "none").error
    given = (*given, tmp_path / "table")
    assert "no column size" in run(spark, cluster, *given, "--key", "size").error
    assert "must be string or binary" in run(spark, cluster, *given, "--value", "id").error
    assert "not timestamp" in run(spark, cluster, *given, "--timestamp", "id").error
    assert not (tmp_path / "state").exists()
    with pytest.MonkeyPatch.context() as patch:
        Crash(patch, "note_done", before=True, at=1)
        assert run(spark, cluster, *given).error
    spark.range(50, 150).write.mode("overwrite").parquet(str(tmp_path / "table"))
    assert "wrote other rows" in run(spark, cluster, *given).error
    assert len(read_all(cluster, "refused")) == 100
