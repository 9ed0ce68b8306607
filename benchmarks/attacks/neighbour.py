"""Somebody who means no harm: 200 single records a second and some metadata, all watched.

Half of the records go over gRPC and half over the native transport, each as a call of its own and
none of them repeated, so that each error shows.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Self

from icecore.codec.record import encode_columns
from icecore.errors import IcecoreError
from icecore.rpc import framing
from icecore.rpc.transports import Transports
from icecore.v1 import admin_pb2, data_pb2

RECORDS_PER_S = 200
METADATA_PER_S = 20
_TIMEOUT_S = 10.0
_UNDER_WAY_MAX = 400


@dataclass(slots=True)
class Experience:
    """The results of one kind of calls."""

    calls: int = 0
    unsent: int = 0
    """Number of calls left out because too many were waiting for an answer."""
    errors: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)
    served_s: list[float] = field(default_factory=list)
    """When calls succeeded."""

    def outage_s(self, began_s: float, ended_s: float) -> float:
        """The longest time in which none of them succeeded."""
        times = [began_s, *sorted(each for each in self.served_s if each > began_s), ended_s]
        return max(later - earlier for earlier, later in pairwise(times))

    def p99_ms(self) -> float:
        """Return the 99th percentile of the latencies of successful calls, in milliseconds."""
        ordered = sorted(self.latencies_s)
        return round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 1) if ordered else 0.0


class Neighbour:
    """Calls as long as it is entered; use as an async context manager.

    Args:
        bootstrap: The coordinator's address.
        targets: Addresses over gRPC and natively of the node that leads ``partition``.
        topic: Of single records.
        partition: Of it.
    """

    def __init__(self, bootstrap: str, targets: list[str], topic: str, partition: int) -> None:
        self._bootstrap = bootstrap
        self._targets = targets
        self._topic = topic
        self._partition = partition
        self._net = Transports()
        self._under_way: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self.seen = {"produce": Experience(), "metadata": Experience()}

    def forget(self) -> dict[str, Experience]:
        """Return the results until now, and count anew."""
        seen, self.seen = self.seen, {name: Experience() for name in self.seen}
        return seen

    async def __aenter__(self) -> Self:
        self._loops = [
            asyncio.create_task(self._pace(RECORDS_PER_S, "produce")),
            asyncio.create_task(self._pace(METADATA_PER_S, "metadata")),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in (*self._loops, *self._under_way):
            each.cancel()
        await asyncio.gather(*self._loops, *self._under_way, return_exceptions=True)
        await self._net.close()

    async def _pace(self, per_s: int, kind: str) -> None:
        number, began_s = 0, time.monotonic()
        while True:
            number += 1
            await asyncio.sleep(max(0.0, began_s + number / per_s - time.monotonic()))
            if len(self._under_way) >= _UNDER_WAY_MAX:
                self.seen[kind].unsent += 1
                continue
            call = partial(self._produce, number) if kind == "produce" else self._metadata
            task = asyncio.create_task(self._timed(kind, call))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _timed(self, kind: str, call: Callable[[], Awaitable[str]]) -> None:
        seen, began_s = self.seen[kind], time.monotonic()
        seen.calls += 1
        try:
            reason = await call()
        except IcecoreError as error:
            reason = f"{error.reason} {error.message[:60]}"
        ended_s = time.monotonic()
        if reason:
            seen.errors[reason] += 1
        else:
            seen.latencies_s.append(ended_s - began_s)
            seen.served_s.append(ended_s)

    async def _produce(self, number: int) -> str:
        batch = encode_columns(values=[b"v" * 100], timestamps_ms=[1])
        header = data_pb2.ProduceHeader()
        header.partitions.add(topic=self._topic, partition=self._partition, batch_length=len(batch))
        body = framing.bulk_request(header.SerializeToString(), [batch])
        answer = await self._net.call(
            self._targets[number % len(self._targets)],
            "/icecore.v1.DataService/Produce",
            body,
            timeout_s=_TIMEOUT_S,
        )
        (result,) = data_pb2.ProduceResponse.FromString(bytes(answer)).partitions
        return result.error.reason

    async def _metadata(self) -> str:
        await self._net.call(
            self._bootstrap,
            "/icecore.v1.AdminService/GetMetadata",
            admin_pb2.GetMetadataRequest(topics=[self._topic]).SerializeToString(),
            timeout_s=_TIMEOUT_S,
        )
        return ""
