"""RocketMQ's Python client under load: ``rocketmq-python-client``, one gRPC call per record.

A record's key is its message group, which chooses the queue; where there are none, the records of a
batch share one.
"""

import os
import tempfile
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import Any

from benchmarks.figures import Schedule
from benchmarks.workload import PROBE_BYTES, Job, Meter, Pool

REQUEST_S, FLUSH_S = 120, 120.0
TOUCHES = 4


def run(job: Job) -> dict[str, Any]:
    """Do a job in this process; figures and costs."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home  # the client writes a log there, as soon as it is imported
        records = _Records(job)
        try:
            return _ACTS[job.act](job, records)
        finally:
            records.close()


class _Records:
    """A ``send_async`` per record; waits where too many are in flight."""

    def __init__(self, job: Job) -> None:
        from rocketmq import ClientConfiguration, Credentials, Message, Producer

        pool = Pool(job.case)
        self._records = list(zip(pool.values, pool.keys, strict=True))
        self._batch_records = job.case.batch_records
        self._topic, self._new = job.topic, Message
        self._limit = job.case.records_in_flight
        self._change = threading.Condition()
        self._error: BaseException | None = None
        self.sent = self.acked = 0
        configuration = ClientConfiguration(job.bootstrap, Credentials(), request_timeout=REQUEST_S)
        self._producer = Producer(configuration, (job.topic,))
        self._producer.startup()

    def close(self) -> None:
        self._producer.shutdown()

    def send_and_wait(self, value: bytes, group: str) -> None:
        """One record, and its acknowledgement."""
        self._producer.send(self._message(value, group))

    def send(self, meter: Meter | None = None, due_s: float | None = None) -> None:
        """The next record, whose latency counts from when it was due."""
        value, key = self._records[self.sent % len(self._records)]
        group = str(self.sent // self._batch_records) if key is None else key.hex()
        self._wait(self._limit - 1)
        self.sent += 1
        future = self._producer.send_async(self._message(value, group))
        future.add_done_callback(partial(self._done, meter, due_s))

    def flush(self) -> None:
        """Wait for all acknowledgements."""
        self._wait(0)

    def _wait(self, in_flight_max: int) -> None:
        """Until no more are in flight.

        Raises:
            Exception: What the client says of a record that was refused.
            TimeoutError: It takes too long.
        """
        with self._change:
            if not self._change.wait_for(
                lambda: self._error or self.sent - self.acked <= in_flight_max, FLUSH_S
            ):
                raise TimeoutError("not all records are acknowledged")
            if self._error:
                raise self._error

    def _done(self, meter: Meter | None, due_s: float | None, receipt: "Future[Any]") -> None:
        with self._change:
            self._error = self._error or receipt.exception()
            self.acked += 1
            self._change.notify()
        if meter is not None:
            meter.note(due_s)

    def _message(self, value: bytes, group: str) -> Any:
        message = self._new()
        message.topic, message.body, message.message_group = self._topic, value, group
        return message


def _touch(job: Job, records: _Records) -> dict[str, Any]:
    """Some records for each queue, so that nothing happens for the first time later: which queue a
    group has, is up to the client."""
    for number in range(TOUCHES * job.case.partitions):
        records.send_and_wait(bytes(PROBE_BYTES), f"touch-{number}")
    return {}


def _produce(job: Job, records: _Records) -> dict[str, Any]:
    meter = Meter(job)
    while meter.is_on(records.acked):
        records.send()
    return meter.result()


def _single(job: Job, records: _Records) -> dict[str, Any]:
    value, done = bytes(job.case.record_bytes), 0
    meter = Meter(job)
    while meter.is_on(done):
        began_s = time.perf_counter()
        records.send_and_wait(value, str(done))
        meter.note(began_s)
        done += 1
    return meter.result()


def _open(job: Job, records: _Records) -> dict[str, Any]:
    meter = Meter(job)
    schedule = Schedule(time.perf_counter(), job.case.rate_s)
    while meter.is_on(schedule.taken):
        if (rest_s := schedule.wait_s(time.perf_counter())) > 0:
            time.sleep(rest_s)
        else:
            records.send(meter, schedule.take())
    records.flush()
    return meter.result()


_ACTS = {"touch": _touch, "produce": _produce, "single": _single, "open": _open}
