"""Limits of time in tests count what the test does, not what its neighbours do."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from icecore.process.system import SystemClock
from tests.support.fair_loop import FairLoop


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=FairLoop) as runner:
        runner.run(main)


def test_a_second_without_the_processor_is_none() -> None:
    async def main() -> None:
        async with asyncio.timeout(0.3):
            time.sleep(0.5)  # noqa: ASYNC251 - the thread does not compute either
            await asyncio.sleep(0.1)

    run(main())


def test_a_wait_that_is_asked_for_counts() -> None:
    async def main() -> None:
        began_s = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.Event().wait()
        assert time.monotonic() - began_s >= 0.2

    run(main())


def test_what_is_computed_counts() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        began_s, until_s = loop.time(), time.thread_time() + 0.2
        while time.thread_time() < until_s:
            pass
        assert loop.time() - began_s >= 0.2

    run(main())


def test_the_products_clock_agrees() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        time.sleep(0.2)  # noqa: ASYNC251
        assert abs(SystemClock().monotonic_ms() / 1000 - loop.time()) < 0.1
        assert time.monotonic() - loop.time() > 0.1

    run(main())
