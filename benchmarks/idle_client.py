"""A client process of ``benchmarks/idle.py``; prints one line when all its consumers wait.

python -m benchmarks.idle_client HOST:PORT TOPIC CONSUMERS
"""

import argparse
import asyncio
import contextlib

from icecore import Consumer
from icecore.process.system import tune_process

STARTED_AT_ONCE = 25


async def wait_for_nothing(bootstrap: str, topic: str, count: int) -> None:
    """Until killed: consumers at the end of a topic into which nobody produces."""
    starting = asyncio.Semaphore(STARTED_AT_ONCE)
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> None:
            async with starting:
                await stack.enter_async_context(Consumer(bootstrap, topic, start="latest"))

        await asyncio.gather(*(start() for _ in range(count)))
        print("waiting", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("consumers", type=int)
    options = parser.parse_args()
    tune_process()
    asyncio.run(wait_for_nothing(options.bootstrap, options.topic, options.consumers))


if __name__ == "__main__":
    main()
