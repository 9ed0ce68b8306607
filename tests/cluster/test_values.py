"""Values stay what they are: what goes in by one door comes out of every other, from real nodes;
and commands end well, whatever scripts do to them."""

import io
import itertools
import json
import os
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from icecore.blocking import Admin, Consumer, Lookup, Producer
from icecore.cli.app import main
from icecore.cli.records.times import parse_time_ms
from icecore.codec.batch import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from icecore.dev import LocalCluster
from icecore.errors import BatchTooLargeError, RecordTooLargeError
from icecore.v1 import admin_pb2, admin_pb2_grpc, common_pb2, data_pb2, data_pb2_grpc
from tests.cluster import cli_fuzz
from tests.support import rotation

CLI = [sys.executable, "-m", "icecore.cli"]
NARROW = ("--batch-bytes-max", "64KiB", "--record-bytes-max", "4KiB")
_numbers = itertools.count()


class Row(NamedTuple):
    """A record, less where it lies."""

    value: bytes | None
    key: bytes | None
    tags: tuple[str, ...]
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


texts = st.sampled_from(["", "a", "é", "\ufeff", "None", "null", "1.10", "\x00", "\u2028", "𝄞"])
some_bytes = st.one_of(
    st.none(),
    texts.map(str.encode),
    st.sampled_from([b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\r", b"\n", b"9007199254740993"]),
    st.binary(max_size=12),
)
rows = st.builds(
    Row,
    some_bytes,
    some_bytes,
    st.lists(texts, max_size=3).map(tuple),
    st.lists(st.tuples(texts, some_bytes), max_size=3).map(tuple),
    st.sampled_from([MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS, -1, 1, 1_700_000_000_123]),
)


# --- ways in --------------------------------------------------------------------------------------


def run(cluster: LocalCluster, *words: str, status: int = 0) -> str:
    """Run a command here, which saves its imports; return its output."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(["-b", cluster.bootstrap, *words])
    out.flush()
    assert ended.value.code == status, err.getvalue()
    return out.buffer.getvalue().decode()  # type: ignore[attr-defined]


def by_send(cluster: LocalCluster, topic: str, given: Sequence[Row]) -> None:
    with Producer(cluster.bootstrap) as producer:
        for row in given:
            producer.send(topic, **row._asdict(), partition=0)
        producer.flush()


def by_columns(cluster: LocalCluster, topic: str, given: Sequence[Row]) -> None:
    values, keys, tags, headers, times = zip(*given, strict=True)
    with Producer(cluster.bootstrap, compression="zstd") as producer:
        producer.send_batch(
            topic, values, keys=keys, tags=tags, headers=headers, timestamps_ms=times, partition=0
        )


def _named(header: tuple[str, bytes | None]) -> dict[str, Any]:
    return dict(zip(("key", "value"), header, strict=True))


def by_arrow(cluster: LocalCluster, topic: str, given: Sequence[Row]) -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    values, keys, tags, headers, times = zip(*given, strict=True)
    table = pa.table(
        {
            "value": pa.array(values, pa.binary()),
            "key": pa.array(keys, pa.large_binary()),
            "tags": pa.array(tags, pa.list_(pa.string_view())),
            "headers": pa.array([[*map(_named, row)] for row in headers], pa.list_(header)),
            "timestamp": pa.array(times, pa.timestamp("ms")),
        }
    )
    with Producer(cluster.bootstrap) as producer:
        producer.send_batch(topic, table, partition=0)


def by_grpc(cluster: LocalCluster, topic: str, given: Sequence[Row]) -> None:
    """As clients of other languages that encode no batches."""
    records = [
        common_pb2.Record(
            value=row.value,
            key=row.key,
            tags=row.tags,
            headers=[common_pb2.Header(name=name, value=value) for name, value in row.headers],
            timestamp_ms=row.timestamp_ms,
        )
        for row in given
    ]
    entry = data_pb2.ProducePartition(topic=topic, partition=0, records=records)
    header = data_pb2.ProduceHeader(acks=common_pb2.ACKS_ALL, partitions=[entry])
    with stub(cluster, topic) as (node, _):
        answer = node.Produce(data_pb2.ProduceRequest(header=header)).partitions[0]
    assert not answer.error.reason, answer.error


def by_records(cluster: LocalCluster, topic: str, given: Sequence[Row], folder: Path) -> None:
    """The lines of ``icecore fetch`` of a topic that has them."""
    source = f"{topic}-source"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(source, partitions=1)
    by_send(cluster, source, given)
    lines = folder / "lines"
    lines.write_text(run(cluster, "fetch", source, "--format", "records"), "utf-8")
    run(cluster, "produce", topic, "-f", "records", "--partition", "0", str(lines))


# --- ways out -------------------------------------------------------------------------------------


class stub:
    """The leader of a topic's partition, and the id of the topic, by generated code alone."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._channels = [grpc.insecure_channel(cluster.bootstrap.split(",")[0])]
        admin = admin_pb2_grpc.AdminServiceStub(self._channels[0])
        found = admin.GetMetadata(admin_pb2.GetMetadataRequest(topics=[topic]))
        leader = found.topics[0].partitions[0].leader
        address = next(node.address for node in found.nodes if node.node_id == leader)
        self._channels.append(grpc.insecure_channel(address))
        self._found = data_pb2_grpc.DataServiceStub(self._channels[1]), found.topics[0].topic_id

    def __enter__(self) -> tuple[Any, bytes]:
        return self._found

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()


def of_record(record: Any) -> Row:
    headers = tuple(record.headers)
    return Row(record.value, record.key, tuple(record.tags), headers, record.timestamp_ms)


def by_consumer(cluster: LocalCluster, topic: str) -> list[Row]:
    with Consumer(cluster.bootstrap, topic, stop_at_end=True) as consumer:
        return [of_record(each) for each in consumer]


def by_lookup(cluster: LocalCluster, topic: str) -> list[Row]:
    with Lookup(cluster.bootstrap, topic) as lookup:
        return [of_record(each) for page in lookup.pages() for each in page.records]


def out_by_arrow(cluster: LocalCluster, topic: str) -> list[Row]:
    found = []
    with Consumer(cluster.bootstrap, topic, stop_at_end=True) as consumer:
        for batch in consumer.batches(["value", "key", "tags", "headers", "timestamp"]):
            for row in batch.set_column(4, "ms", batch.column(4).cast(pa.int64())).to_pylist():
                headers = tuple((each["key"], each["value"]) for each in row["headers"])
                found.append(Row(row["value"], row["key"], tuple(row["tags"]), headers, row["ms"]))
    return found


def of_line(line: str) -> Row:
    row = json.loads(line)

    def part(of: dict[str, Any], name: str) -> bytes | None:
        if of[name] is None:
            return None
        is_base64 = of.get(f"{name}_encoding") == "base64"
        return b64decode(of[name]) if is_base64 else of[name].encode()

    headers = tuple((each["name"], part(each, "value")) for each in row["headers"])
    time_ms = parse_time_ms(row["timestamp"])
    return Row(part(row, "value"), part(row, "key"), tuple(row["tags"]), headers, time_ms)


def by_fetch(cluster: LocalCluster, topic: str) -> list[Row]:
    return [of_line(line) for line in run(cluster, "fetch", topic).split("\n")[:-1]]


def by_query(cluster: LocalCluster, topic: str) -> list[Row]:
    return [of_line(line) for line in run(cluster, "query", topic, "--all").split("\n")[:-1]]


def out_by_grpc(cluster: LocalCluster, topic: str) -> list[Row]:
    with stub(cluster, topic) as (node, topic_id):
        wanted = data_pb2.FetchPartition(topic_id=topic_id, partition=0, offset=0)
        header = data_pb2.FetchHeader(
            max_bytes=1 << 20, max_wait_ms=5_000, as_records=True, partitions=[wanted]
        )
        records = node.Fetch(data_pb2.FetchRequest(header=header)).header.partitions[0].records

    def part(of: Any, name: str) -> bytes | None:
        return getattr(of, name) if of.HasField(name) else None

    return [
        Row(
            part(each, "value"),
            part(each, "key"),
            tuple(each.tags),
            tuple((header.name, part(header, "value")) for header in each.headers),
            each.timestamp_ms,
        )
        for each in records
    ]


WAYS_IN: dict[str, Callable[..., None]] = {
    "send": by_send,
    "columns": by_columns,
    "Arrow": by_arrow,
    "gRPC": by_grpc,
    "records": by_records,
}
WAYS_OUT: dict[str, Callable[[LocalCluster, str], list[Row]]] = {
    "consumer": by_consumer,
    "look-up": by_lookup,
    "Arrow": out_by_arrow,
    "fetch": by_fetch,
    "query": by_query,
    "gRPC": out_by_grpc,
}


@pytest.mark.parametrize("way_in", WAYS_IN)
@settings(
    max_examples=rotation.examples(6),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    phases=[Phase.generate],  # to shrink an example here would take minutes
)
@given(given=st.lists(rows, min_size=20, max_size=40))
def test_what_goes_in_by_one_door_comes_out_of_every_other(
    shared_cluster: LocalCluster, tmp_path: Path, way_in: str, given: list[Row]
) -> None:
    topic = f"values-{next(_numbers)}"
    with Admin(shared_cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    more = (tmp_path,) if way_in == "records" else ()
    WAYS_IN[way_in](shared_cluster, topic, given, *more)
    for name, way_out in WAYS_OUT.items():
        assert way_out(shared_cluster, topic) == given, f"in by {way_in}, out by {name}"


# --- limits ---------------------------------------------------------------------------------------


def test_a_topic_with_small_batches_takes_every_line(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    run(shared_cluster, "topic", "create", "small-batches", "-p", "1", *NARROW)
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{n} some text that makes a line longer\n" for n in range(9_000)))
    assert (
        json.loads(run(shared_cluster, "produce", "small-batches", str(lines)))["records"] == 9_000
    )
    lines.write_text("a\n" + "x" * 5_000 + "\nb\n")
    said = json.loads(run(shared_cluster, "produce", "small-batches", str(lines), status=1))
    assert (said["records"], said["through_line"]) == (1, 1)
    assert "line 2: a record of 5000 bytes exceeds 4096" in said["error"]


def test_a_limit_that_an_operator_raised_can_be_used(shared_cluster: LocalCluster) -> None:
    run(shared_cluster, "topic", "create", "raised", "-p", "1", *NARROW)
    wide = ("--record-bytes-max", "8MiB", "--batch-bytes-max", "8MiB")
    with Producer(shared_cluster.bootstrap, linger_ms=50) as producer:
        assert producer.send_and_wait("raised", b"known").offset == 0
        with pytest.raises(RecordTooLargeError):
            producer.send("raised", bytes(5_000))
    run(shared_cluster, "topic", "alter", "raised", *wide)
    with Producer(shared_cluster.bootstrap, linger_ms=50) as producer:
        until_s = time.monotonic() + 20
        while True:  # a segment that was opened before refuses it, and only it
            sent = [producer.send("raised", value) for value in (b"a", bytes(2 << 20), b"b")]
            assert sent[0].result().offset < sent[2].result().offset
            try:
                sent[1].result()
                break
            except (RecordTooLargeError, BatchTooLargeError):
                assert time.monotonic() < until_s


# --- how commands end -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def fuzzed(shared_cluster: LocalCluster) -> LocalCluster:
    """The cluster, with a topic for commands that are hurt."""
    with Admin(shared_cluster.bootstrap) as admin:
        admin.create_topic(cli_fuzz.TOPIC, partitions=2)
    with Producer(shared_cluster.bootstrap) as producer:
        producer.send(cli_fuzz.TOPIC, "é".encode(), key=b"\xe9", tags=["𝄞"])
    return shared_cluster


@pytest.mark.parametrize("seed", rotation.fresh_seeds("fuzz of the command line", 5, 60))
def test_commands_end_well_whatever_is_done_to_them(
    fuzzed: LocalCluster, tmp_path: Path, seed: int
) -> None:
    case = cli_fuzz.case_of(seed, tmp_path)
    assert cli_fuzz.problems(case, fuzzed.bootstrap) == [], case


def test_a_name_of_any_bytes_in_a_strict_locale(fuzzed: LocalCluster, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.log"
    Path(os.fsdecode(name)).write_text("a\n")
    done = subprocess.run(
        [*CLI, "-b", fuzzed.bootstrap, "--json", "produce", cli_fuzz.TOPIC, name],
        capture_output=True,
        timeout=60,
        env={**os.environ, "LC_ALL": "en_US.UTF-8", "PYTHONIOENCODING": "utf-8:strict"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert os.fsencode(json.loads(done.stdout)["file"]) == name


def test_an_import_over_a_glob_says_what_is_acknowledged(
    fuzzed: LocalCluster, tmp_path: Path
) -> None:
    good, folder = tmp_path / "a.log", tmp_path / "b.d"
    good.write_text("1\n2\n")
    folder.mkdir()
    for bad in (folder, tmp_path / "absent"):
        words = ("produce", cli_fuzz.TOPIC, str(good), str(bad), str(good))
        said = json.loads(run(fuzzed, *words, status=2))
        assert said["records"] == 0, "files are looked at before anything is sent"
        assert str(bad) in said["error"]
