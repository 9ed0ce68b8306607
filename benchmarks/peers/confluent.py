"""Kafka's usual Python client under load: ``confluent-kafka``, one call per record."""

import contextlib
import time
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.harness.cases import BATCH_BYTES, LINGER_MS, Case
from benchmarks.harness.figures import Schedule
from benchmarks.harness.workload import PROBE_BYTES, Job, Meter, Pool

ACKS = {"all": "all", "leader": "1"}
FEW_PARTITIONS = 16
POLL_RECORDS = 256
FETCH_RECORDS = 10_000
TOUCH_S, FLUSH_S = 120.0, 60.0
UNLIMITED = 2_147_483_647


def run(job: Job) -> dict[str, Any]:
    """Do a job in this process; figures and costs."""
    return _ACTS[job.act](job)


def _producer(job: Job) -> Producer:
    return Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "acks": ACKS[job.case.acks],
            "linger.ms": 0 if job.act == "single" else LINGER_MS,
            "sticky.partitioning.linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.kbytes": job.case.in_flight_bytes >> 10,
            "queue.buffering.max.messages": UNLIMITED,  # the bytes are what bounds it
            "log_level": 3,
            **_request_limit(job.case),
        }
    )


def _request_limit(case: Case) -> dict[str, int]:
    """Return the faster limit of requests in flight: none, its default, for few partitions at full
    speed.

    In all other cases batches stay tiny without a limit, however busy the brokers are, and records
    wait for half a minute. Five requests per broker, as idempotent producers have, let batches
    grow.
    """
    is_better_without = case.partitions <= FEW_PARTITIONS and not case.rate_s
    return {} if is_better_without else {"max.in.flight.requests.per.connection": 5}


def _touch(job: Job) -> dict[str, Any]:
    """One record into each partition, so that nothing happens for the first time later."""
    producer = _producer(job)
    for partition in range(job.case.partitions):
        producer.produce(job.topic, bytes(PROBE_BYTES), partition=partition)
    if left := producer.flush(TOUCH_S):
        raise TimeoutError(f"{left} partitions do not take a record within {TOUCH_S:g} s")
    return {}


class _Records:
    """One ``produce`` per record."""

    def __init__(self, producer: Producer, job: Job) -> None:
        pool = Pool(job.case)
        self._producer, self._topic = producer, job.topic
        self._records = list(zip(pool.values, pool.keys, strict=True))
        self._next = 0
        self.sent = 0

    def acked(self) -> int:
        return self.sent - len(self._producer)

    def send_some(self) -> None:
        start = self._next
        produce, topic = self._producer.produce, self._topic
        try:
            for value, key in self._records[start : start + POLL_RECORDS]:
                produce(topic, value, key=key)
                self.sent += 1
            self._producer.poll(0)
        except BufferError:
            self._producer.poll(0.002)
        self._next = (start + POLL_RECORDS) % len(self._records)


def _produce(job: Job) -> dict[str, Any]:
    producer = _producer(job)
    records = _Records(producer, job)
    meter = Meter(job)
    while meter.is_on(records.acked()):
        records.send_some()
    producer.purge()
    return meter.result()


def _fill(job: Job) -> dict[str, Any]:
    producer = _producer(job)
    records = _Records(producer, job)
    while records.sent < job.records:
        records.send_some()
    if producer.flush(FLUSH_S):
        raise TimeoutError("not all records are acknowledged")
    return {"records": records.sent}


def _single(job: Job) -> dict[str, Any]:
    value, done = bytes(job.case.record_bytes), 0
    producer = _producer(job)
    meter = Meter(job)
    while meter.is_on(done):
        began_s = time.perf_counter()
        producer.produce(job.topic, value, partition=done % job.case.partitions)
        producer.flush()
        meter.note(began_s)
        done += 1
    return meter.result()


def _open(job: Job) -> dict[str, Any]:
    pool = Pool(job.case)
    count = len(pool.values)
    producer = _producer(job)
    meter = Meter(job)

    def done(due_s: float | None, error: Any, message: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        meter.note(due_s)

    schedule = Schedule(time.perf_counter(), job.case.rate_s)
    while meter.is_on(schedule.taken):
        if (rest_s := schedule.wait_s(time.perf_counter())) > 0:
            producer.poll(rest_s)
            continue
        number, due_s = schedule.taken % count, schedule.take()
        on_delivery = partial(done, due_s)
        while True:
            with contextlib.suppress(BufferError):
                producer.produce(
                    job.topic, pool.values[number], pool.keys[number], on_delivery=on_delivery
                )
                break
            producer.poll(0.002)
    if producer.flush(FLUSH_S):
        raise TimeoutError("not all records are acknowledged")
    return meter.result()


def _consumer(job: Job) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "bench",  # required, and not used: partitions are assigned
            "enable.auto.commit": False,
            "log_level": 3,
        }
    )


def _fetch(job: Job) -> dict[str, Any]:
    total, rows = 0, 0
    start = [TopicPartition(job.topic, each, 0) for each in range(job.case.partitions)]
    consumer = _consumer(job)
    consumer.assign(start)
    meter = Meter(job)
    while meter.is_on(total + rows):
        if rows >= job.records:
            total, rows = total + rows, 0
            consumer.assign(start)
        rows += _read_some(consumer)
    consumer.close()
    return meter.result()


def _follow(job: Job) -> dict[str, Any]:
    rows = 0
    consumer = _consumer(job)
    ends = []
    for each in range(job.case.partitions):
        _, end = consumer.get_watermark_offsets(TopicPartition(job.topic, each))
        ends.append(TopicPartition(job.topic, each, end))
    consumer.assign(ends)
    meter = Meter(job)
    while meter.is_on(rows):
        rows += _read_some(consumer)
    consumer.close()
    return meter.result()


def _read_some(consumer: Consumer) -> int:
    """Consume the next records, look at each, and return their number."""
    messages = consumer.consume(FETCH_RECORDS, 0.1)
    for message in messages:
        if message.error():
            raise KafkaException(message.error())
        message.value()
    return len(messages)


_ACTS = {
    "touch": _touch,
    "produce": _produce,
    "fill": _fill,
    "single": _single,
    "open": _open,
    "fetch": _fetch,
    "follow": _follow,
}
