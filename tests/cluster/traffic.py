"""Known records in, everything out again: how cluster tests prove that nothing is lost."""

import asyncio
import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator

from icecore import Admin, Consumer, Producer
from icecore.errors import IcecoreError

Log = dict[int, list[tuple[int, bytes]]]
"""Partition to (offset, value) in order."""


async def create(bootstrap: str, topic: str, **settings: int) -> None:
    """Create a topic."""
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, **settings)


async def leaders(bootstrap: str, topic: str) -> list[int]:
    """Node ids by partition; 0 where there is none."""
    async with Admin(bootstrap) as admin:
        (described,) = await admin.describe_topics([topic])
    return [part.tail.leader if part.tail else 0 for part in described.partitions]


async def produce(bootstrap: str, topic: str, values: list[bytes], **settings: object) -> Log:
    """Send values spread over the partitions by key, wait for all acks; where each one is."""
    acked: Log = defaultdict(list)
    async with Producer(bootstrap, **settings) as producer:  # type: ignore[arg-type]
        handles = [await producer.send_wait(topic, value, key=value) for value in values]
        for value, handle in zip(values, handles, strict=True):
            where = await handle
            acked[where.partition].append((where.offset, value))
    for log in acked.values():
        log.sort()
    return acked


async def read_all(bootstrap: str, topic: str, timeout_s: float = 60.0) -> Log:
    """Everything below the high watermarks of now."""
    found: Log = defaultdict(list)
    async with asyncio.timeout(timeout_s):
        async with Consumer(bootstrap, topic, stop_at_end=True) as consumer:
            async for record in consumer:
                assert record.value is not None
                found[record.partition].append((record.offset, record.value))
    return found


def merged(*logs: Log) -> Log:
    """Several acknowledged parts as one log."""
    whole: Log = defaultdict(list)
    for log in logs:
        for partition, entries in log.items():
            whole[partition].extend(entries)
    for entries in whole.values():
        entries.sort()
    return whole


def numbered(start: int, count: int, size: int = 100) -> list[bytes]:
    """Distinct values of ``size`` bytes."""
    return [b"%08d" % number + bytes(size - 8) for number in range(start, start + count)]


@contextlib.asynccontextmanager
async def load(bootstrap: str, topic: str) -> AsyncIterator[Log]:
    """Produce until the block ends, with a new producer again and again: none may fail. What was
    acknowledged is in the log then."""
    log: Log = {}
    is_over = asyncio.Event()

    async def work() -> None:
        start = 0
        while not is_over.is_set():
            log.update(merged(log, await produce(bootstrap, topic, numbered(start, 100))))
            start += 100
            await asyncio.sleep(0.02)

    task = asyncio.create_task(work())
    try:
        yield log
    finally:
        is_over.set()
        await task


CHANGE_WITHIN_S = 60.0


async def next_change(bootstrap: str, names: Iterator[str]) -> float:
    """Make topics until one could be made: the seconds until then."""
    began = time.monotonic()
    while True:
        try:
            async with Admin(bootstrap, timeout_s=10) as admin:
                await admin.create_topic(next(names), partitions=1)
            return time.monotonic() - began
        except IcecoreError:
            assert time.monotonic() - began < CHANGE_WITHIN_S
            await asyncio.sleep(0.02)


def topic_names(prefix: str = "made") -> Iterator[str]:
    """As many names as are needed."""
    return (f"{prefix}-{number}" for number in itertools.count(1))
