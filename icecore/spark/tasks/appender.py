"""Appends the rows of one task so that doing it again appends nothing twice.

A task has a producer id that follows from what it is (the write, the number of the task), an epoch
that follows from the micro-batch, and sequences that follow from the order of its rows. When the
task is run again it sends the same numbers, and leaders recognise them (R21), also while an attempt
that was given up still runs. What they recognise is read back and compared: a task that yields
other rows the second time is an error, and no silent loss. So is one whose batches begin or end at
other rows than those that a leader remembers, and one that has fewer rows. What a leader has
forgotten, all but the last batches, can't be compared; ``uncompared`` counts it. Where those last
ones agree in sequence, count and content, the ones before had as many rows.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

import pyarrow as pa

from icecore.client import Consumer
from icecore.client.cluster.connection import Backoff, Connection, all_of
from icecore.client.cluster.metadata import Metadata, topic_recreated
from icecore.client.cluster.offsets import OffsetLookup
from icecore.codec import arrow
from icecore.codec.batch import BatchLimits
from icecore.codec.record import Codec
from icecore.errors import (
    BatchTooLargeError,
    HeaderHashesError,
    IcecoreError,
    InternalError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from icecore.model import Acks
from icecore.rpc import convert, framing
from icecore.rpc.methods import DATA
from icecore.rpc.ports import Clock, Net, Rng
from icecore.spark.tasks.identity import SparkTaskChangedError, family_of, task_of
from icecore.v1 import data_pb2

REQUEST_TIMEOUT_MS: Final = 10_000
DELIVERY_TIMEOUT_S: Final = 120.0
FIND_TIMEOUT_S: Final = 20.0
_COMPARED: Final = ("key", "value", "tags", "headers")


class Appender:
    """The connection of one task, and how far it got in each partition.

    Args:
        bootstrap: Addresses of coordinators or nodes.
        topic: Its name.
        producer_id: See above.
        producer_epoch: Likewise.
        acks: When leaders answer.
        codec: Of the payloads.
        topic_id: Of the topic that is meant; empty = whichever has the name.
        net: Made here unless given.
        clock: Of the system unless given.
        rng: Of the system unless given.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        producer_id: int,
        producer_epoch: int,
        acks: str,
        codec: str,
        topic_id: bytes = b"",
        net: Net | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self.topic = topic
        self.connection = Connection(bootstrap, net, clock, rng)
        """The way to the cluster."""
        self._metadata = Metadata(self.connection)
        self._producer_id, self._producer_epoch = producer_id, producer_epoch
        self._acks, self._codec = Acks[acks.upper()], Codec[codec.upper()]
        self.topic_id = topic_id
        self._indexed_headers: tuple[str, ...] = ()
        self._sequences: dict[int, int] = {}
        self.partitions = 0
        """How many the topic has."""
        self.limits = BatchLimits()
        """Limits of the topic, from ``start`` on."""
        self.duplicates = 0
        """Records that an earlier attempt had appended."""
        self.uncompared = 0
        """Records among them that leaders remember too little of to compare them."""

    async def start(self) -> None:
        """Find the topic.

        Raises:
            TopicRecreatedError: It is not the one that is meant.
            IcecoreError: It does not exist, or nobody answered in time.
        """
        found = await self._metadata.topic(self.topic, timeout_s=FIND_TIMEOUT_S, is_fresh=True)
        if self.topic_id not in (b"", found.topic_id):
            raise topic_recreated(self.topic, self.topic_id, found.topic_id)
        self.topic_id, self.partitions = found.topic_id, len(found.partitions)
        self._indexed_headers, self.limits = found.indexed_headers, found.limits

    async def close(self) -> None:
        """Close the connections."""
        await self._metadata.close()
        await self.connection.close()

    async def begun(self) -> dict[int, dict[int, int]]:
        """Ask all leaders what tasks of this write have appended under this epoch: by task and
        partition, how many rows.

        Raises:
            IcecoreError: One of them did not answer in time.
        """
        lookup = OffsetLookup(self.connection, self._metadata, self.topic)
        lookup.topic_id = self.topic_id
        first, last = family_of(self._producer_id)
        epoch, newest = self._producer_epoch, await lookup.newest_segments()
        found: dict[int, dict[int, int]] = {}

        async def ask(partition: int) -> None:
            for each in await lookup.producers(partition, first, last, epoch, newest):
                found.setdefault(task_of(each.producer_id), {})[partition] = each.next_sequence

        await all_of(map(ask, range(self.partitions)))
        return found

    def sequence(self, partition: int) -> int:
        """Return how many rows of this attempt have been appended to a partition, or were there."""
        return self._sequences.get(partition, 0)

    async def append(self, partition: int, rows: pa.RecordBatch) -> None:
        """Append rows behind those before, unless that has been done.

        Raises:
            SparkTaskChangedError: An earlier attempt has appended other rows.
            IcecoreError: They could not be appended in time, or are refused.
        """
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + rows.num_rows
        try:
            result = await self._send(partition, rows, sequence)
        except BatchTooLargeError:
            # The segment was opened under a lower limit. The same rows are divided alike again.
            if rows.num_rows == 1:
                raise
            self._sequences[partition], half = sequence, rows.num_rows // 2
            await self.append(partition, rows.slice(0, half))
            await self.append(partition, rows.slice(half))
            return
        except OutOfOrderSequenceError as error:
            oldest = int(error.metadata.get("oldest", "0"))
            if oldest < sequence + rows.num_rows:
                expected = error.metadata.get("expected", "other")
                why = f"it had appended {expected} rows, in batches that end at other rows"
                raise self.changed(partition, why) from error
            self.duplicates += rows.num_rows
            self.uncompared += rows.num_rows
            return  # long ago; what the leader still remembers is compared
        except ProducerFencedError as error:
            raise ProducerFencedError(
                f"{self.topic}/{partition}: a later micro-batch of this query has been written "
                "already: the checkpoint is older than the topic"
            ) from error
        if result.duplicate:
            self.duplicates += rows.num_rows
            await self._compare(partition, rows, result.base_offset)

    def check_end(self, reached: Mapping[int, int]) -> None:
        """Refuse to end with fewer rows than an earlier attempt had.

        Args:
            reached: What this task has appended, by partition, as leaders say.

        Raises:
            SparkTaskChangedError: It had more.
        """
        for partition, rows in sorted(reached.items()):
            if rows > self.sequence(partition):
                here = self.sequence(partition)
                raise self.changed(partition, f"it had appended {rows} rows, and this one {here}")

    def changed(self, partition: int, why: str) -> SparkTaskChangedError:
        """The error of a task that is not the same as before."""
        return SparkTaskChangedError(
            f"{self.topic}/{partition}: an earlier attempt of this task wrote other rows, or in "
            f"another order, or rows were divided into other tasks then: {why}. Run it with the "
            "options and as many cores as before; sort within partitions before the write, so that "
            "each attempt yields the same rows; or write with idempotent=false, which may write "
            "rows twice"
        )

    async def _compare(self, partition: int, rows: pa.RecordBatch, base_offset: int) -> None:
        async with Consumer(
            self._bootstrap,
            self.topic,
            partitions=[partition],
            start=base_offset,
            until=base_offset + rows.num_rows,
            net=self.connection.net,
            clock=self.connection.clock,
            rng=self.connection.rng,
        ) as consumer:
            try:
                found = [each async for each in consumer.batches(_COMPARED)]
            except OffsetOutOfRangeError:
                return  # deleted since; nothing is left to compare
        plain = [each.replace_schema_metadata(None) for each in found]
        if _values(pa.concat_batches(plain)) != _values(rows):
            raise self.changed(partition, f"see offset {base_offset}")

    # --- one batch ------------------------------------------------------------------------------

    async def _send(
        self, partition: int, rows: pa.RecordBatch, sequence: int
    ) -> data_pb2.ProducePartitionResult:
        end_ms = self.connection.deadline_ms(DELIVERY_TIMEOUT_S)
        backoff = Backoff(self.connection.rng, 30, 1000)
        batch = self._encode(rows, sequence)
        while True:
            try:
                return await self._attempt(partition, batch)
            except HeaderHashesError as error:
                if sorted(error.indexed_headers) == sorted(self._indexed_headers):
                    raise
                self._indexed_headers = error.indexed_headers
                batch = self._encode(rows, sequence)
                continue
            except IcecoreError as error:
                delay_s = backoff.next_s(error)
                past = self.connection.clock.monotonic_ms() + delay_s * 1000 >= end_ms
                if past or not (error.retriable or error.indeterminate):
                    raise
            await asyncio.sleep(delay_s)
            await self._refresh()

    async def _refresh(self) -> None:
        try:
            await self._metadata.refresh()
        except IcecoreError:
            return  # the next attempt finds out
        if (error := self._metadata.recreated(self.topic, self.topic_id)) is not None:
            raise error
        gone = self._metadata.error(self.topic)
        if gone is not None:
            raise gone

    def _encode(self, rows: pa.RecordBatch, sequence: int) -> bytes:
        return arrow.encode(
            rows,
            codec=self._codec,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
            indexed_headers=self._indexed_headers,
        )

    async def _attempt(self, partition: int, batch: bytes) -> data_pb2.ProducePartitionResult:
        view = self._metadata.view
        leader = view.leader(self.topic, partition)
        address = view.address(leader) if leader else None
        if address is None:
            raise NotLeaderError(f"{self.topic}/{partition} has no leader at the moment")
        header = data_pb2.ProduceHeader(
            cluster_id=view.cluster_id,
            acks=cast(Any, int(self._acks)),
            timeout_ms=REQUEST_TIMEOUT_MS,
        )
        header.partitions.add(topic_id=self.topic_id, partition=partition, batch_length=len(batch))
        body = framing.bulk_request(header.SerializeToString(), [batch])
        raw = await self.connection.net.call(
            address, DATA["Produce"], body, timeout_s=REQUEST_TIMEOUT_MS / 1000 + 5
        )
        answer = framing.parse(data_pb2.ProduceResponse, raw)
        if len(answer.partitions) != 1:
            raise InternalError(f"node {leader} answered {len(answer.partitions)} entries")
        if answer.throttle_ms:
            await asyncio.sleep(answer.throttle_ms / 1000)
        (result,) = answer.partitions
        if (error := convert.error_from_proto(result.error)) is not None:
            raise error
        return result


async def find_topic(
    bootstrap: str,
    topic: str,
    net: Net | None = None,
    clock: Clock | None = None,
    rng: Rng | None = None,
) -> bytes:
    """Return the id of the topic that has a name now. All tasks of an attempt mean this one.

    Raises:
        UnknownTopicError: There is none.
        IcecoreError: Nobody answered in time.
    """
    connection = Connection(bootstrap, net, clock, rng)
    metadata = Metadata(connection)
    try:
        found = await metadata.topic(topic, timeout_s=FIND_TIMEOUT_S, is_fresh=True)
        return found.topic_id
    finally:
        await metadata.close()
        await connection.close()


def _values(rows: pa.RecordBatch) -> dict[str, list[Any]]:
    """Return the columns to compare. Times are left out, because an attempt may have set them.
    Empty lists count as none."""
    found: dict[str, list[Any]] = {}
    for name in _COMPARED:
        if name in rows.schema.names:
            listed = rows.column(name).to_pylist()
        else:
            listed = [None] * rows.num_rows
        found[name] = [each or None for each in listed] if name in ("tags", "headers") else listed
    return found
