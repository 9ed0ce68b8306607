"""Saved positions in real processes: consumers and coordinators that are killed, two of a name."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from icecore import blocking
from icecore.client.consume import subscription
from icecore.dev import LocalCluster
from icecore.errors import InvalidRequestError, PositionConflictError
from icecore.v1 import admin_pb2, admin_pb2_grpc

LONG_S = 60
RECORDS = 2_000
# Each record is printed once it is processed; a save comes at least every tenth of a second.
READER = """
import sys, time
from icecore.blocking import Consumer
bootstrap, name = sys.argv[1:]
with Consumer(bootstrap, topics=["one", "two"], position=name, save_interval_s=0.1) as consumer:
    for record in consumer:
        print(record.topic, record.partition, record.offset, flush=True)
        time.sleep(0.001)
"""


@pytest.fixture
def cluster(healed_cluster: LocalCluster) -> LocalCluster:
    with blocking.Admin(healed_cluster.bootstrap) as admin:
        admin.create_topic("one", partitions=2)
        admin.create_topic("two", partitions=1)
    return healed_cluster


def produce(cluster: LocalCluster, topic: str, count: int) -> None:
    with blocking.Producer(cluster.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


def saved(cluster: LocalCluster, name: str) -> dict[tuple[str, int], int]:
    with blocking.Admin(cluster.bootstrap) as admin:
        return {(each.topic, each.partition): each.offset for each in admin.list_positions(name)}


def lines(path: Path) -> list[tuple[str, int, int]]:
    text = path.read_text()
    rows = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [(topic, int(partition), int(offset)) for topic, partition, offset in rows]


def read_and_be_killed(
    cluster: LocalCluster, path: Path, seen: set[tuple[str, int, int]], wanted: int, *, fails: bool
) -> list[tuple[str, int, int]]:
    """Run a reader, and kill it once it has printed ``wanted`` new records. Return all printed
    records. With ``fails`` the coordinator is killed and started again meanwhile."""
    with path.open("w") as output:
        command = [sys.executable, "-c", READER, cluster.bootstrap, "job"]
        reader = subprocess.Popen(command, stdout=output)
    try:
        end = time.monotonic() + LONG_S
        while len(set(lines(path)) - seen) < wanted:
            assert time.monotonic() < end and reader.poll() is None
            time.sleep(0.05)
            if fails and len(lines(path)) > 100:
                cluster.kill_coordinator()
                cluster.start_coordinator()
                fails = False
    finally:
        reader.send_signal(signal.SIGKILL)
        reader.wait()
    assert not fails
    return lines(path)


def test_killed_consumers_lose_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    """The coordinator is killed as well while positions are saved: at least once, most once."""
    printed: list[tuple[str, int, int]] = []
    for life in range(4):
        if life in (0, 2):  # a life may read all there is while a coordinator is slow to start
            produce(cluster, "one", RECORDS // 2)
            produce(cluster, "two", RECORDS // 2)
        seen = set(printed)
        left = RECORDS * (1 if life < 2 else 2) - len(seen)
        wanted = left // 2 if life < 3 else left
        path = tmp_path / f"life-{life}"
        printed += read_and_be_killed(cluster, path, seen, wanted, fails=life == 1)
    assert len(set(printed)) == 2 * RECORDS
    for partition in {each[:2] for each in printed}:
        offsets = {each[2] for each in printed if each[:2] == partition}
        assert offsets == set(range(len(offsets)))
    assert len(printed) < 4 * RECORDS
    positions = saved(cluster, "job")
    assert sum(positions.values()) > RECORDS, positions


def test_positions_outlive_the_coordinator(cluster: LocalCluster) -> None:
    produce(cluster, "two", 10)
    with blocking.Consumer(cluster.bootstrap, "two", position="kept") as consumer:
        assert len(consumer.poll(LONG_S, 4)) == 4
    cluster.kill_coordinator()
    cluster.start_coordinator()
    assert saved(cluster, "kept") == {("two", 0): 4}
    with blocking.Consumer(cluster.bootstrap, "two", position="kept") as consumer:
        assert consumer.poll(LONG_S, 1)[0].offset == 4
    with blocking.Admin(cluster.bootstrap) as admin:
        assert admin.delete_positions("kept") == 1
    assert saved(cluster, "kept") == {}


def test_two_of_a_name_and_a_reset(cluster: LocalCluster) -> None:
    produce(cluster, "two", 10)
    with blocking.Consumer(cluster.bootstrap, "two", position="pair") as first:
        assert len(first.poll(LONG_S, 2)) == 2
        with blocking.Consumer(cluster.bootstrap, "two", position="pair") as second:
            assert len(second.poll(LONG_S, 3)) == 3
        with pytest.raises(PositionConflictError) as caught:
            first.save_position()
        assert caught.value.metadata["offset"] == "3"
    assert saved(cluster, "pair") == {("two", 0): 3}
    with blocking.Consumer(cluster.bootstrap, "two", position="pair") as reader:
        assert reader.poll(LONG_S, 1)[0].offset == 3
        with blocking.Admin(cluster.bootstrap) as admin:
            admin.reset_position("pair", "two", "earliest")
        with pytest.raises(PositionConflictError):
            reader.save_position()
    assert saved(cluster, "pair") == {("two", 0): 0}


def test_a_pattern_finds_topics(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "LOOK_S", 0.3)
    produce(cluster, "one", 10)
    produce(cluster, "two", 10)
    found: dict[str, int] = {}

    def read(consumer: blocking.Consumer, count: int) -> dict[str, int]:
        end = time.monotonic() + LONG_S
        while sum(found.values()) < count and time.monotonic() < end:
            for record in consumer.poll(0.5):
                found[record.topic] = found.get(record.topic, 0) + 1
        return found

    with blocking.Consumer(cluster.bootstrap, pattern="t.*", position="all") as consumer:
        assert read(consumer, 10) == {"two": 10}
        with blocking.Admin(cluster.bootstrap) as admin:
            admin.create_topic("three", partitions=2)
        produce(cluster, "three", 20)
        assert read(consumer, 30) == {"two": 10, "three": 20}
        assert consumer.topics == ("three", "two")
    positions = saved(cluster, "all")
    assert positions["two", 0] == 10 and sum(positions.values()) == 30


def test_a_topic_made_again_has_no_positions(cluster: LocalCluster) -> None:
    produce(cluster, "two", 10)
    with blocking.Consumer(cluster.bootstrap, "two", position="old") as consumer:
        count = len(consumer.poll(LONG_S))
    with blocking.Admin(cluster.bootstrap) as admin:
        admin.delete_topic("two")
        assert saved(cluster, "old") == {}
        admin.create_topic("two", partitions=1)
        produce(cluster, "two", 5)
        with blocking.Consumer(cluster.bootstrap, "two", position="old") as consumer:
            assert consumer.poll(LONG_S, 1)[0].offset == 0
        assert saved(cluster, "old") == {("two", 0): 1}
        admin.delete_topic("two")
        older = admin.describe_topics(["two"], deleted=True)[-1]
        admin.undelete_topic(topic_id=older.topic_id)
        assert saved(cluster, "old") == {("two", 0): count}


def test_forged_and_huge_calls_change_nothing(cluster: LocalCluster) -> None:
    with blocking.Admin(cluster.bootstrap) as admin:
        [topic] = admin.describe_topics(["one"])

    def place(**fields: object) -> admin_pb2.SavedPosition:
        given = {"topic_id": topic.topic_id, "partition": 0, "offset": 1, **fields}
        return admin_pb2.SavedPosition(**given)  # type: ignore[arg-type]

    with grpc.insecure_channel(cluster.bootstrap) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        refused = (
            {"name": "", "positions": [place()]},
            {"name": "x" * 250, "positions": [place()]},
            {"name": "x" * 1_000_000, "positions": [place()]},
            {"name": "a/b", "positions": [place()]},
            {"name": "ok", "positions": []},
            {"name": "ok", "positions": [place(), place()]},
            {"name": "ok", "positions": [place(partition=number) for number in range(1_001)]},
            {"name": "ok", "positions": [place(topic_id=b"")]},
            {"name": "ok", "positions": [place(topic_id=b"x" * 1_000)]},
        )
        for fields in refused:
            with pytest.raises(grpc.RpcError) as caught:
                stub.SavePositions(admin_pb2.SavePositionsRequest(**fields))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        bad = [place(topic_id=b"x" * 16), place(partition=2), place(offset=1 << 63)]
        bad += [place(partition=1, version=1 << 40)]
        answer = stub.SavePositions(admin_pb2.SavePositionsRequest(name="ok", positions=bad))
        reasons = [each.error.reason for each in answer.outcomes]
        assert reasons[:1] == ["UNKNOWN_TOPIC_OR_PARTITION"], "of its own record"
        assert reasons[1:] == ["INVALID_REQUEST", "INVALID_REQUEST", "POSITION_CONFLICT"]
        listed = stub.ListPositions(admin_pb2.ListPositionsRequest(after="z" * 100_000))
        assert not listed.positions and not listed.next
    assert saved(cluster, "ok") == {}
    with pytest.raises(InvalidRequestError), blocking.Admin(cluster.bootstrap) as admin:
        admin.reset_position("ok", "one", 5)
