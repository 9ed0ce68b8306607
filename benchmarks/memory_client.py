"""A client process of ``benchmarks/memory.py``; prints one line when it has begun.

    python -m benchmarks.memory_client produce HOST:PORT TOPIC PARTITIONS
    python -m benchmarks.memory_client consume HOST:PORT TOPIC

``produce`` fills the topic for those who consume, then others, one after the other, without end.
``consume`` takes one batch and nothing more, but goes on fetching as a consumer does.
"""

import argparse
import asyncio

import pyarrow as pa

from icecore import Admin, Consumer, Producer
from icecore.errors import NotEnoughReplicasError
from icecore.process.system import tune_process

CHUNK_RECORDS, RECORD_BYTES = 8192, 1024
FILL_CHUNKS, TOPIC_CHUNKS = 32, 512
"""Numbers of chunks of 8 MiB: in the topic that is consumed, and in one of those that are
replaced."""


async def _create(admin: Admin, topic: str, partitions: int) -> None:
    """RF 3, or 2 while a node is stopped."""
    try:
        await admin.create_topic(topic, partitions=partitions, replication_factor=3)
    except NotEnoughReplicasError:
        await admin.create_topic(topic, partitions=partitions, replication_factor=2)


async def produce(bootstrap: str, topic: str, partitions: int) -> None:
    """Until killed."""
    chunk = pa.record_batch({"value": pa.array([bytes(RECORD_BYTES)] * CHUNK_RECORDS, pa.binary())})

    async def send(producer: Producer, to: str, count: int) -> None:
        for _ in range(count):
            await producer.ready()
            producer.send_batch(to, chunk)
            await asyncio.sleep(0)
        await producer.flush()

    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        await send(producer, topic, FILL_CHUNKS)
        print("filled", flush=True)
        number = 0
        while True:
            number += 1
            load = f"load-{number}"
            await _create(admin, load, partitions)
            await send(producer, load, TOPIC_CHUNKS)
            await admin.delete_topic(load, now=True)


async def consume(bootstrap: str, topic: str) -> None:
    """Until killed."""
    async with Consumer(bootstrap, topic) as consumer:
        await anext(consumer.batches())
        print("reading", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("act", choices=("produce", "consume"))
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("partitions", type=int, nargs="?", default=1)
    options = parser.parse_args()
    tune_process()
    if options.act == "produce":
        asyncio.run(produce(options.bootstrap, options.topic, options.partitions))
    else:
        asyncio.run(consume(options.bootstrap, options.topic))


if __name__ == "__main__":
    main()
