"""Records are found in a cluster as it changes: by Lookup, by filtered consumers, by commands."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

import icecore
from icecore import Record
from icecore.blocking import Admin, Consumer, Lookup, Producer
from icecore.client.produce import batches
from icecore.codec.record import partition_for_key
from icecore.dev import LocalCluster
from icecore.errors import HeaderHashesError
from icecore.rpc.methods import DATA
from icecore.rpc.transports import Transports
from icecore.v1 import common_pb2, data_pb2
from tests.cluster.test_cli import Cli

RECORDS = 600
KEYS = [b"%d" % number for number in range(20)] + [b"", b"\xff\x00", b"k" * 3000]
CONDITIONS: list[dict[str, Any]] = [
    {"keys": [b"7"]},
    {"keys": [b"", b"\xff\x00", b"k" * 3000, b"nobody"]},
    {"tags_any": ["even"], "tags_none": ["ten"]},
    {"tags_all": ["even", "ten"]},
    {"headers": {"order": b"3", "seldom": b"1"}},
    {"headers": {"unindexed": b"4"}},
    {"keys": [b"7"], "from_event_time": 100, "to_event_time": 400},
    {"from_event_time": 590},
]


def row(number: int, rng: random.Random) -> Record:
    tags = ("even",) * (number % 2 == 0) + ("ten",) * (number % 10 == 0)
    headers = [("order", b"%d" % (number % 9)), ("unindexed", b"%d" % (number % 5))]
    if number % 100 == 0:
        headers.append(("seldom", b"1"))
    return Record(b"%d" % number, rng.choice(KEYS), number, tags, tuple(headers), topic="found")


def matching(records: list[Record], given: dict[str, Any]) -> set[bytes | None]:
    return {
        each.value
        for each in records
        if ("keys" not in given or each.key in given["keys"])
        and ("tags_any" not in given or set(given["tags_any"]) & set(each.tags))
        and set(given.get("tags_all", ())) <= set(each.tags)
        and not set(given.get("tags_none", ())) & set(each.tags)
        and ("headers" not in given or set(given["headers"].items()) & set(each.headers))
        and given.get("from_event_time", 0) <= each.timestamp_ms
        and each.timestamp_ms < given.get("to_event_time", 10**6)
    }


@pytest.fixture(scope="module")
def records(shared_cluster: LocalCluster) -> Iterator[list[Record]]:
    """A topic that was rolled, altered and grown while it was written to."""
    rng = random.Random(3)
    found = [row(number, rng) for number in range(RECORDS)]
    quarter = RECORDS // 4
    with Admin(shared_cluster.bootstrap) as admin:
        admin.create_topic("found", partitions=2, indexed_headers=("order",))
        with Producer(shared_cluster.bootstrap) as producer:
            send(producer, found[:quarter])
            admin.roll_topic("found")
            send(producer, found[quarter : 2 * quarter])
            admin.alter_topic("found", indexed_headers=("seldom", "order"))
            send(producer, found[2 * quarter : 3 * quarter])
        admin.add_partitions("found", 3)
        with Producer(shared_cluster.bootstrap) as producer:  # knows of it at once
            send(producer, found[3 * quarter :])
    yield found


def send(producer: Producer, records: list[Record]) -> None:
    for each in records:
        producer.send(
            "found",
            each.value,
            key=each.key,
            tags=each.tags,
            headers=each.headers,
            timestamp_ms=each.timestamp_ms,
        )
    producer.flush()


@pytest.mark.parametrize("newest_first", [False, True])
def test_lookups(shared_cluster: LocalCluster, records: list[Record], newest_first: bool) -> None:
    for transport in ("native", "grpc"):
        name: Any = "auto" if transport == "native" else "grpc"
        with Lookup(shared_cluster.bootstrap, "found", transport=name) as lookup:
            for given in CONDITIONS:
                pages = list(lookup.pages(**given, newest_first=newest_first, max_count=37))
                values = [each.value for page in pages for each in page.records]
                assert all(page.complete for page in pages)
                assert len(values) == len(set(values))
                assert set(values) == matching(records, given), given
                times = [each.append_timestamp_ms for page in pages for each in page.records]
                assert times == sorted(times, reverse=newest_first)


def test_ids_and_append_times(shared_cluster: LocalCluster, records: list[Record]) -> None:
    with Lookup(shared_cluster.bootstrap, "found") as lookup:
        some = lookup.find(tags_any=["ten"], max_count=10).records
        for each in some:
            assert lookup.record(each.partition, each.offset) == each
            time_ms = each.append_timestamp_ms
            low = lookup.offset_at(time_ms, partitions=[each.partition])[each.partition]
            high = lookup.offset_at(time_ms, boundary="upper", partitions=[each.partition])
            assert low.offset <= each.offset < high[each.partition].offset
            inside = lookup.find(
                from_append_time=time_ms, to_append_time=time_ms + 1, max_count=1000
            )
            assert each in inside.records
        assert lookup.record(0, 10**6) is None


def test_filtered_consumers(shared_cluster: LocalCluster, records: list[Record]) -> None:
    for given in CONDITIONS[:6]:
        with Consumer(shared_cluster.bootstrap, "found", stop_at_end=True, **given) as consumer:
            values = [each.value for each in consumer]
        assert len(values) == len(set(values))
        assert set(values) == matching(records, given), given


def test_commands(shared_cluster: LocalCluster, records: list[Record]) -> None:
    cli = Cli(shared_cluster.bootstrap)
    for command in (("query", "--all"), ("fetch",)):
        lines = cli.lines(command[0], "found", "--key", "7", "--tag", "even", *command[1:])
        wanted = matching(records, {"keys": [b"7"], "tags_any": ["even"]})
        assert {each["value"].encode() for each in lines} == wanted
    plan = cli.json("explain", "query", "found", "--key", "7")
    numbers = {partition_for_key(b"7", count) for count in (2, 3)}
    assert {each["partition"] for each in plan["segments"]} == numbers
    assert plan["complete"] is True
    assert cli.json("explain", "fetch", "found", "--key", "7", "--analyze")["records"] > 0
    described = cli.json("topic", "describe", "found")
    assert described["settings"]["indexed_headers"] == ["seldom", "order"]
    assert described["earlier_partitions"] == [2]


def test_indexed_headers_of_a_topic(shared_cluster: LocalCluster) -> None:
    cli = Cli(shared_cluster.bootstrap)
    made = cli.json("topic", "create", "marked", "--indexed-header", "a", "--indexed-header", "b")
    assert made["settings"]["indexed_headers"] == ["a", "b"]
    altered = cli.json("topic", "alter", "marked", "--min-insync-replicas", "1")
    assert altered["settings"]["indexed_headers"] == ["a", "b"]
    altered = cli.json("topic", "alter", "marked", "--no-indexed-headers")
    assert altered["settings"]["indexed_headers"] == []
    cli("topic", "alter", "marked", "--indexed-header", "c", "--no-indexed-headers", status=2)
    cli("topic", "alter", "marked", "--indexed-header", "", status=1)
    cli("topic", "create", "never", *["--indexed-header", "x"] * 2, status=1)


def test_a_producer_without_the_hashes_is_refused(
    shared_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of before would be; records without such headers are taken."""
    monkeypatch.setattr(batches, "header_hashes", lambda rows, _: [[] for _ in rows])
    with Admin(shared_cluster.bootstrap) as admin, Producer(shared_cluster.bootstrap) as producer:
        admin.create_topic("strict", indexed_headers=("a",))
        sent = producer.send("strict", b"v", headers=[("b", b"1"), ("a", None)])
        assert sent.result(30).offset == 0
        with pytest.raises(HeaderHashesError, match="compute them") as refused:
            producer.send("strict", b"v", headers=[("a", b"1")]).result(30)
        assert json.loads(refused.value.metadata["indexed_headers"]) == ["a"]


async def test_clear_records_get_their_hashes_from_the_node(shared_cluster: LocalCluster) -> None:
    """A client without a batch codec need not know of hashes."""
    message = common_pb2.Record(headers=[common_pb2.Header(name="a", value=b"1")], value=b"v")
    async with icecore.Admin(shared_cluster.bootstrap) as admin:
        await admin.create_topic("clear", indexed_headers=("a",), replication_factor=1)
        (segment,) = await admin.list_segments("clear")
        nodes = (await admin.describe_cluster()).nodes
    (leader,) = [each.node for each in nodes if each.node.node_id == segment.leader]
    entry = data_pb2.ProducePartition(topic="clear", records=[message])
    request = data_pb2.ProduceRequest(header=data_pb2.ProduceHeader(partitions=[entry]))
    net = Transports()
    try:
        body = await net.call(
            leader.address, DATA["Produce"], request.SerializeToString(), timeout_s=30
        )
    finally:
        await net.close()
    answer = data_pb2.ProduceResponse.FromString(bytes(body))
    assert not answer.partitions[0].error.reason, answer
    async with icecore.Lookup(shared_cluster.bootstrap, "clear") as lookup:
        page = await lookup.find(headers={"a": b"1"})
        assert [each.value for each in page.records] == [b"v"]
        assert not (await lookup.find(headers={"a": b"2"})).records
