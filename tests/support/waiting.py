"""Waiting for a condition instead of for a time."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], within_s: float = 5.0) -> None:
    """Wait until something is so, on whatever clock the loop has."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    while not condition():
        assert loop.time() < until_s, "it did not become so"
        await asyncio.sleep(0.005)
