"""Our client under load: the asyncio ``Producer`` and ``Consumer`` as a user would use them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pyarrow as pa

from benchmarks.harness.cases import LINGER_MS, OVER_GRPC
from benchmarks.harness.figures import Schedule
from benchmarks.harness.workload import PROBE_BYTES, Job, Meter, Pool
from icecore import Consumer, Producer
from icecore.client.produce.batches import RECORD_OVERHEAD_BYTES, SendHandle
from icecore.errors import ThrottledError
from icecore.process.system import tune_process
from icecore.rpc.addresses import Transport

YIELD_RECORDS = 256
LATE_ACKS_S = 30.0


def run(job: Job) -> dict[str, Any]:
    """Do a job in this process; figures and costs."""
    tune_process()
    return asyncio.run(_ACTS[job.act](job))


def _producer(job: Job) -> Producer:
    case = job.case
    # Both limits count values only, as those of the peers do: ours include what a record adds.
    each = case.record_bytes + case.key_bytes + RECORD_OVERHEAD_BYTES
    in_flight = case.records_in_flight
    if case.api == "columns":
        in_flight -= case.chunk_records  # a chunk is taken whole as long as the buffer is not full
    return Producer(
        job.bootstrap,
        acks=case.acks,  # type: ignore[arg-type]
        linger_ms=0 if job.act == "single" else LINGER_MS,
        batch_bytes=case.batch_records * each,
        buffer_bytes=in_flight * each,
        transport=_transport(job),
    )


def _transport(job: Job) -> Transport:
    """Asked for, whatever the environment says: the two are compared in one run."""
    return "grpc" if job.system == OVER_GRPC else "auto"


async def _touch(job: Job) -> dict[str, Any]:
    """One record into each partition, so that nothing happens for the first time later."""
    async with _producer(job) as producer:
        for partition in range(job.case.partitions):
            producer.send(job.topic, bytes(PROBE_BYTES), partition=partition)
        await producer.flush()
        return {}


async def _produce(job: Job) -> dict[str, Any]:
    async with _producer(job) as producer:
        sender = _sender(producer, job)
        meter = Meter(job)
        while meter.is_on(sender.acked()):
            await sender.send_some()
        return meter.result()


async def _fill(job: Job) -> dict[str, Any]:
    async with _producer(job) as producer:
        sender = _sender(producer, job)
        while sender.sent < job.records:
            await sender.send_some()
        await producer.flush()
        return {"records": sender.sent}


class _Columns:
    """Hands over the same Arrow chunk again and again."""

    def __init__(self, producer: Producer, job: Job) -> None:
        pool = Pool(job.case, job.case.chunk_records)
        columns = {"value": pa.array(pool.values, pa.binary())}
        if job.case.key_bytes:
            columns["key"] = pa.array(pool.keys, pa.binary())
        self._chunk = pa.record_batch(columns)
        self._producer, self._topic = producer, job.topic
        self._each = job.case.record_bytes + job.case.key_bytes + RECORD_OVERHEAD_BYTES
        self.sent = 0

    def acked(self) -> int:
        return self.sent - self._producer.buffered_bytes // self._each

    async def send_some(self) -> None:
        await self._producer.ready()
        self._producer.send_batch(self._topic, self._chunk)
        self.sent += self._chunk.num_rows
        await asyncio.sleep(0)


class _Records(_Columns):
    """One ``send`` per record."""

    def __init__(self, producer: Producer, job: Job) -> None:
        super().__init__(producer, job)
        pool = Pool(job.case)
        self._records = list(zip(pool.values, pool.keys, strict=True))
        self._next = 0

    async def send_some(self) -> None:
        start = self._next
        send, topic = self._producer.send, self._topic
        try:
            for value, key in self._records[start : start + YIELD_RECORDS]:
                send(topic, value, key=key)
                self.sent += 1
        except ThrottledError:
            await self._producer.ready()
        self._next = (start + YIELD_RECORDS) % len(self._records)
        await asyncio.sleep(0)


def _sender(producer: Producer, job: Job) -> _Columns:
    return (_Columns if job.case.api == "columns" else _Records)(producer, job)


async def _single(job: Job) -> dict[str, Any]:
    value, done = bytes(job.case.record_bytes), 0
    async with _producer(job) as producer:
        meter = Meter(job)
        while meter.is_on(done):
            began_s = time.perf_counter()
            await producer.send_and_wait(job.topic, value, partition=done % job.case.partitions)
            meter.note(began_s)
            done += 1
        return meter.result()


async def _open(job: Job) -> dict[str, Any]:
    pool = Pool(job.case)
    count = len(pool.values)
    waiting: set[asyncio.Task[None]] = set()

    async def wait(handle: SendHandle, due_s: float) -> None:
        await handle
        meter.note(due_s)

    async with _producer(job) as producer:
        meter = Meter(job)
        schedule = Schedule(time.perf_counter(), job.case.rate_s)
        while meter.is_on(schedule.taken):
            if (rest_s := schedule.wait_s(time.perf_counter())) > 0:
                await asyncio.sleep(rest_s)
                continue
            number = schedule.taken % count
            handle = await producer.send_wait(job.topic, pool.values[number], key=pool.keys[number])
            if (due_s := schedule.take()) is not None:
                task = asyncio.create_task(wait(handle, due_s))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
        async with asyncio.timeout(LATE_ACKS_S):
            await asyncio.gather(*waiting)
        return meter.result()


async def _fetch(job: Job) -> dict[str, Any]:
    total, rows = 0, 0
    async with _consumer(job, "earliest") as consumer:
        read_some = _reader(consumer, job)
        meter = Meter(job)
        while meter.is_on(total + rows):
            if rows >= job.records:
                total, rows = total + rows, 0
                for partition in range(job.case.partitions):
                    await consumer.seek(partition, 0)
            rows += await read_some()
        return meter.result()


async def _follow(job: Job) -> dict[str, Any]:
    rows = 0
    async with _consumer(job, "latest") as consumer:
        read_some = _reader(consumer, job)
        meter = Meter(job)
        while meter.is_on(rows):
            rows += await read_some()
        return meter.result()


def _consumer(job: Job, start: Literal["earliest", "latest"]) -> Consumer:
    return Consumer(job.bootstrap, job.topic, start=start, transport=_transport(job))


def _reader(consumer: Consumer, job: Job) -> Callable[[], Awaitable[int]]:
    """Reads what comes next; looks at each record where records are what the API gives."""
    batches = consumer.batches()

    async def read_columns() -> int:
        return int((await anext(batches)).num_rows)

    async def read_records() -> int:
        records = await consumer.poll(1.0)
        for record in records:
            record.value  # noqa: B018
        return len(records)

    return read_columns if job.case.api == "columns" else read_records


_ACTS = {
    "touch": _touch,
    "produce": _produce,
    "fill": _fill,
    "single": _single,
    "open": _open,
    "fetch": _fetch,
    "follow": _follow,
}
