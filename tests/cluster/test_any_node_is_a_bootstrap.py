"""The coordinator is killed: who begins now, with a node's address, writes, reads and finds all."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from icecore.blocking import Admin, Consumer, Lookup, Producer
from icecore.dev import LocalCluster
from icecore.errors import NotEnoughReplicasError, UnavailableError
from tests.support.waiting import until


def icecore(bootstrap: str, *arguments: str, given: str = "") -> str:
    command = [sys.executable, "-m", "icecore.cli", "--bootstrap", bootstrap, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def produce(bootstrap: str, *values: bytes) -> None:
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send("t", value, key=b"k").result(20)


def consumed(bootstrap: str) -> list[bytes | None]:
    with Consumer(bootstrap, "t", start="earliest", stop_at_end=True) as consumer:
        return sorted(each.value or b"" for each in consumer)


def is_created(admin: Admin, topic: str) -> bool:
    """Not before nodes have found the coordinator again."""
    try:
        admin.create_topic(topic, if_not_exists=True)
    except NotEnoughReplicasError:
        return False
    return True


def is_sealed(admin: Admin, topic: str) -> bool:
    return any(each.end_offset >= 0 for each in admin.list_segments(topic))


def found(bootstrap: str) -> list[bytes | None]:
    with Lookup(bootstrap, "t") as lookup:
        page = lookup.find(keys=[b"k"])
        assert page.complete
        return [each.value for each in page.records]


def test_new_clients_begin_at_a_node_while_no_coordinator_answers(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=3) as cluster:
        node = cluster.addresses[2]
        with Admin(node) as admin:  # sent on to the coordinator
            admin.create_topic("t", partitions=2, replication_factor=2)
            produce(node, b"0", b"1")
            admin.roll_topic("t")
            produce(node, b"2")
            asyncio.run(until(lambda: is_sealed(admin, "t"), 20))
        cluster.kill_coordinator()
        produce(node, b"3")
        icecore(node, "produce", "t", given="4\n")
        values = [b"0", b"1", b"2", b"3", b"4"]
        assert consumed(node) == values
        assert found(node) == values[:4]
        assert len(icecore(node, "fetch", "t", "--from", "earliest").splitlines()) == 5
        assert len(icecore(node, "query", "t", "--key", "k").splitlines()) == 4
        with Admin(node, timeout_s=1) as admin, pytest.raises(UnavailableError) as caught:
            admin.create_topic("u")
        assert "can't reach the coordinator at " in str(caught.value)
        cluster.start_coordinator()
        with Admin(node) as admin:
            asyncio.run(until(lambda: is_created(admin, "u"), 20))
        produce(node, b"5")
        assert found(node) == [*values[:4], b"5"]
