"""Digests are reported, and who differs from others reads its file again, whatever is short."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from icecore.errors import ConflictError, OutOfResourcesError
from icecore_node.maintenance.digests import DigestReporter
from icecore_node.registry.digest_queue import DigestQueue
from icecore_node.timing import NodeTiming


class SealedReplica:
    """As far as digests look at it."""

    segment_id = 7
    life = SimpleNamespace(is_intact=True)
    identity = SimpleNamespace(generation=0)
    full_digest = b""

    def note_digest(self, full_digest: bytes) -> None:
        self.full_digest = full_digest


class Node:
    """One sealed replica whose digest the others do not share."""

    def __init__(self) -> None:
        self.shortages = 2
        self.diverged: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        reader = SimpleNamespace(full_digest=None)
        settings = SimpleNamespace(timing=NodeTiming(digest_calm_ms=0, digest_retry_ms=1))
        context = SimpleNamespace(
            executor=self, store=SimpleNamespace(reader=reader), settings=settings
        )
        self.queue = DigestQueue()
        fake = cast(Any, self)
        self.reporter = DigestReporter(cast(Any, context), fake, self.queue, fake, fake)

    async def run(self, *_: object) -> bytes:
        return b"ours"

    async def report_digests(self, digests: list[Any]) -> list[ConflictError]:
        return [ConflictError("another full digest was agreed on") for _ in digests]

    async def verify(self, _: object) -> bool:
        self.shortages -= 1
        if self.shortages >= 0:
            raise OutOfResourcesError("no descriptor is left")
        return True

    def report_divergence(self, _: object, why: str) -> None:
        self.diverged.set_result(why)


async def test_a_shortage_puts_the_second_look_off() -> None:
    """An error there would be the end of the node."""
    node = Node()
    node.queue.put(cast(Any, SealedReplica()))
    running = asyncio.create_task(node.reporter.run())
    await asyncio.wait({running, node.diverged}, return_when=asyncio.FIRST_COMPLETED)
    assert not running.done() and "others report" in node.diverged.result()
    running.cancel()
