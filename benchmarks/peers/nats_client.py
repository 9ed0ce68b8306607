"""NATS' Python client under load: ``nats-py``, one publish per record, many of them in flight.

NATS has no keys: a record's key chooses the stream, and is not stored. It has no batches either;
the client writes what is due into its socket at once.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import DeliverPolicy

from benchmarks.harness.figures import Schedule
from benchmarks.harness.workload import PROBE_BYTES, Job, Meter, Pool
from benchmarks.peers.nats import partition_of, stream_names

YIELD_RECORDS = 256
REQUEST_S, FLUSH_S, FILL_S = 120.0, 60.0, 60.0
LOOK_S = 0.01


def run(job: Job) -> dict[str, Any]:
    """Do a job in this process; figures and costs."""
    return asyncio.run(_ACTS[job.act](job))


@contextlib.asynccontextmanager
async def _connected(job: Job) -> AsyncIterator[JetStreamContext]:
    """JetStream by one connection to one server, which hands on what others lead."""
    connection = await nats.connect(job.bootstrap.split(","), allow_reconnect=False)
    try:
        yield connection.jetstream(
            timeout=REQUEST_S, publish_async_max_pending=job.case.records_in_flight
        )
    finally:
        await connection.close()


async def _touch(job: Job) -> dict[str, Any]:
    """One record into each partition, so that nothing happens for the first time later."""
    names = stream_names(job.topic, job.case.partitions)
    async with _connected(job) as streams:
        await asyncio.gather(*(streams.publish(name, bytes(PROBE_BYTES)) for name in names))
    return {}


class _Records:
    """One ``publish_async`` per record; waits where too many are in flight."""

    def __init__(self, streams: JetStreamContext, job: Job, meter: Meter | None = None) -> None:
        pool = Pool(job.case)
        self._records = list(zip(pool.values, pool.keys, strict=True))
        self._names = stream_names(job.topic, job.case.partitions)
        self._batch_records = job.case.batch_records
        self._streams, self._meter = streams, meter
        self._error: BaseException | None = None
        self.sent = self.acked = 0

    async def send(self, due_s: float | None = None) -> None:
        """The next record, whose latency counts from when it was due."""
        value, key = self._records[self.sent % len(self._records)]
        if key is None:
            partition = self.sent // self._batch_records % len(self._names)
        else:
            partition = partition_of(key, len(self._names))
        self.sent += 1
        future = await self._streams.publish_async(self._names[partition], value)
        future.add_done_callback(lambda ack: self._done(ack, due_s))

    async def send_some(self) -> None:
        for _ in range(YIELD_RECORDS):
            await self.send()
        await self.turn()

    async def turn(self, seconds: float = 0) -> None:
        """Let acknowledgements come in.

        Raises:
            nats.errors.Error: One said no.
        """
        await asyncio.sleep(seconds)
        if self._error is not None:
            raise self._error

    async def flush(self) -> None:
        """Wait for all acknowledgements."""
        async with asyncio.timeout(FLUSH_S):
            await self._streams.publish_async_completed()
        await self.turn()

    def _done(self, ack: asyncio.Future[Any], due_s: float | None) -> None:
        self._error = self._error or ack.exception()
        self.acked += 1
        if self._meter is not None:
            self._meter.note(due_s)


async def _produce(job: Job) -> dict[str, Any]:
    async with _connected(job) as streams:
        records = _Records(streams, job)
        meter = Meter(job)
        while meter.is_on(records.acked):
            await records.send_some()
        return meter.result()


async def _fill(job: Job) -> dict[str, Any]:
    """As many as come in within a minute, which is plenty to read again and again."""
    async with _connected(job) as streams:
        records = _Records(streams, job)
        end_s = time.perf_counter() + FILL_S
        while records.sent < job.records and time.perf_counter() < end_s:
            await records.send_some()
        await records.flush()
        return {"records": records.sent}


async def _single(job: Job) -> dict[str, Any]:
    value, done = bytes(job.case.record_bytes), 0
    names = stream_names(job.topic, job.case.partitions)
    async with _connected(job) as streams:
        meter = Meter(job)
        while meter.is_on(done):
            began_s = time.perf_counter()
            await streams.publish(names[done % len(names)], value)
            meter.note(began_s)
            done += 1
        return meter.result()


async def _open(job: Job) -> dict[str, Any]:
    async with _connected(job) as streams:
        meter = Meter(job)
        records = _Records(streams, job, meter)
        schedule = Schedule(time.perf_counter(), job.case.rate_s)
        while meter.is_on(schedule.taken):
            if (rest_s := schedule.wait_s(time.perf_counter())) > 0:
                await records.turn(rest_s)
            else:
                await records.send(schedule.take())
        await records.flush()
        return meter.result()


class _Reader:
    """Ordered push consumers, one per partition, whose callback looks at each record: of what the
    client offers the fastest, as each message of a pull is a task of its own there."""

    def __init__(self, streams: JetStreamContext, job: Job, policy: DeliverPolicy) -> None:
        self._streams, self._policy = streams, policy
        self._names = stream_names(job.topic, job.case.partitions)
        self._subscriptions: list[JetStreamContext.PushSubscription] = []
        self._rows = 0

    async def start(self) -> None:
        """Read, from where the policy says."""
        self._subscriptions = await asyncio.gather(*(self._subscribe(name) for name in self._names))

    async def look(self) -> int:
        """Return how many records there are, a little later."""
        await asyncio.sleep(LOOK_S)
        return self._rows

    async def stop(self) -> None:
        """Read no more, and forget how many there were."""
        for each in self._subscriptions:
            await each.unsubscribe()
        self._rows = 0

    async def _subscribe(self, name: str) -> JetStreamContext.PushSubscription:
        return await self._streams.subscribe(
            name,
            stream=name,
            cb=self._take,
            ordered_consumer=True,
            deliver_policy=self._policy,
        )

    async def _take(self, message: Msg) -> None:
        message.data  # noqa: B018
        self._rows += 1


async def _fetch(job: Job) -> dict[str, Any]:
    total, rows = 0, 0
    async with _connected(job) as streams:
        reader = _Reader(streams, job, DeliverPolicy.ALL)
        await reader.start()
        meter = Meter(job)
        while meter.is_on(total + rows):
            if rows >= job.records:
                total += rows
                await reader.stop()
                await reader.start()
            rows = await reader.look()
        return meter.result()


async def _follow(job: Job) -> dict[str, Any]:
    rows = 0
    async with _connected(job) as streams:
        reader = _Reader(streams, job, DeliverPolicy.NEW)
        await reader.start()
        meter = Meter(job)
        while meter.is_on(rows):
            rows = await reader.look()
        return meter.result()


_ACTS = {
    "touch": _touch,
    "produce": _produce,
    "fill": _fill,
    "single": _single,
    "open": _open,
    "fetch": _fetch,
    "follow": _follow,
}
