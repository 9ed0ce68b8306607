"""R71 at a real node: a stored batch that cannot be decoded costs its own partition an error, once.

Nodes refuse such batches (``test_bad_input.py``), so this one runs without its check, as one of an
older version would have.
"""

import asyncio
import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from icecore.blocking import Consumer
from icecore.cli.app import main
from icecore.codec.batch import Codec
from icecore.codec.record import encode_columns
from icecore.dev import LocalCluster
from icecore.errors import CorruptBatchError
from icecore.rpc import framing
from icecore.v1 import data_pb2
from tests.cluster.raw import RawClient, batch_of
from tests.support.poison import garbage, garbage_in_frame

TOPIC = "poisoned"
UNCHECKED = """
from icecore_node.serving import batch_checks

async def believe(*_):
    pass

batch_checks.check_contents = believe
"""


@pytest.fixture
def careless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """One node that takes batches without looking into them."""
    (tmp_path / "sitecustomize.py").write_text(UNCHECKED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with LocalCluster(tmp_path / "cluster", nodes=1) as running:
        yield running


async def test_a_stored_poison_costs_its_own_partition_an_error(careless: LocalCluster) -> None:
    async with RawClient(careless.bootstrap) as client:
        await client.create_topic(TOPIC, partitions=2, replication_factor=1)
        node = await client.leader(TOPIC, 1)
        batches = [batch_of(b"0", b"1"), garbage(Codec.ZSTD), batch_of(b"5")]
        batches += [garbage_in_frame(Codec.LZ4)]
        answer = await client.produce(node, TOPIC, *batches)
        assert [each.error.reason for each in answer.partitions] == [""] * 4
        await client.produce(node, TOPIC, batch_of(b"other"), partition=1)

        before, other = await fetch(client, node, 0)
        assert [each.value for each in before.records] == [b"0", b"1"]
        assert (before.error.reason, before.next_offset) == ("", 2)
        assert [each.value for each in other.records] == [b"other"]

        at, other = await fetch(client, node, 2)
        assert (at.error.reason, at.next_offset) == ("CORRUPT_BATCH", 5)
        assert at.error.metadata["next_offset"] == "5"
        assert [each.value for each in other.records] == [b"other"]

        behind, _ = await fetch(client, node, 5)
        assert [each.value for each in behind.records] == [b"5"]
    await asyncio.to_thread(consume, careless.bootstrap)


async def fetch(
    client: RawClient, address: str, offset: int
) -> list[data_pb2.FetchPartitionResult]:
    """Plain records of both partitions in one call."""
    header = data_pb2.FetchHeader(as_records=True, max_bytes=1 << 20)
    for partition, start in ((0, offset), (1, 0)):
        header.partitions.add(topic=TOPIC, partition=partition, offset=start)
    body = await client.call(address, "DataService/Fetch", data_pb2.FetchRequest(header=header))
    head, _ = framing.split_bulk(body, data_pb2.FetchResponse)
    return list(data_pb2.FetchResponseHeader.FromString(head).partitions)


def consume(bootstrap: str) -> None:
    """Our own client stops there, or passes over it."""
    with Consumer(bootstrap, TOPIC, partitions=[0], stop_at_end=True) as consumer:
        for _ in range(2):
            with pytest.raises(CorruptBatchError):
                list(consumer)
        consumer.seek(0, 5)
        assert next(iter(consumer)).offset == 5
    with Consumer(
        bootstrap, TOPIC, partitions=[0], stop_at_end=True, on_corrupt="skip"
    ) as consumer:
        assert [record.offset for record in consumer] == [0, 1, 5]
        assert consumer.corrupt_batches == 2
    for policy, status, told in (("fail", 1, "seek to 5"), ("skip", 0, "2 batches")):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(["-b", bootstrap, "fetch", TOPIC, "--partition", "0", "--on-corrupt", policy])
        assert ended.value.code == status
        assert told in err.getvalue()
        assert len(out.getvalue().splitlines()) == (3 if policy == "skip" else 2)


async def test_a_few_kilobytes_that_inflate_to_much_come_in_small_answers(
    careless: LocalCluster,
) -> None:
    values = [bytes((1 << 20) - 64)] * 31
    big = encode_columns(values=values, timestamps_ms=[1] * 31, codec=Codec.ZSTD)
    async with RawClient(careless.bootstrap) as client:
        await client.create_topic(TOPIC, partitions=1, replication_factor=1)
        node = await client.leader(TOPIC, 0)
        await client.produce(node, TOPIC, *[big] * 20)
        offset = 0
        while offset < 62:
            fetched = await client.fetch(node, TOPIC, offset, max_bytes=2**31)
            (result,) = fetched.partitions
            assert not result.error.reason
            assert fetched.ByteSize() < 4 << 20, "the most that gRPC takes by default"
            assert [each.offset for each in result.records] == [
                *range(offset, result.next_offset),
            ]
            assert result.next_offset > offset
            offset = result.next_offset
