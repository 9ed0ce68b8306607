"""Asks nodes for records by key and tag while faults fall; what they answer goes into the history.

The question goes to one node with nothing in between, as from a client that is not ours: whatever
that node leaves out of a page that it calls complete is a wrong answer.
"""

import asyncio
import random
from typing import TYPE_CHECKING

from icecore.codec.selection import Selection
from icecore.errors import IcecoreError
from icecore.rpc import convert
from icecore.rpc.filters import selection_to_proto
from icecore.rpc.ports import Net
from icecore.rpc.record_columns import from_proto
from icecore.v1 import data_pb2
from tests.simulation.history import Answer
from tests.simulation.labels import KEYS, TAGS
from tests.simulation.observer import CALL_TIMEOUT_S, Observer

if TYPE_CHECKING:
    from tests.simulation.cluster import World

COORDINATOR = "coordinator"
PAGES_MAX = 6


def _records(
    result: data_pb2.QueryPartitionResult, *, newest_first: bool
) -> tuple[tuple[int, bytes], ...]:
    """Offset and value of each; where a few of one batch lie between many of another, in order."""
    found = [(each.offset, each.value) for each in result.records]
    for columns in result.columns:
        records = from_proto(columns).to_records()
        found += [(each.offset, each.value or b"") for each in records]
    if result.records and result.columns:
        found.sort(reverse=newest_first)
    return tuple(found)


def draw_selection(rng: random.Random) -> Selection:
    """Some keys, tags, both, or something nobody has."""
    keys = frozenset(b"key %d" % rng.randrange(KEYS + 1) for _ in range(rng.choice([0, 1, 1, 3])))
    kind = rng.choice(["", "", "any", "all", "none"])
    chosen = frozenset(rng.sample(TAGS, rng.choice([1, 2])))
    return Selection(
        keys=keys,
        tags_any=chosen if kind == "any" else frozenset(),
        tags_all=chosen if kind == "all" else frozenset(),
        tags_none=chosen if kind == "none" else frozenset(),
    )


class Searcher:
    """Asks in its own time until it is stopped.

    Args:
        world: Where it lives.
        topic: What it searches.
        partitions: How many there are.
    """

    def __init__(self, world: "World", topic: str, partitions: int) -> None:
        self._world = world
        self._topic = topic
        self._partitions = partitions
        self._rng = random.Random(f"searcher {world.seed}")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        process, net, _, _ = self._world.client("searcher")
        self._task = process.spawn(self._search(net))

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _search(self, net: Net) -> None:
        rng = self._rng
        observer = Observer(net, self._world.coordinator_address)
        while True:
            await asyncio.sleep(rng.expovariate(1 / 0.3))
            try:
                addresses = await observer.addresses()
                if addresses:
                    await self.ask(net, addresses[rng.choice(sorted(addresses))])
            except IcecoreError as error:
                self._world.loop.trace(f"searcher: {error.reason}")

    async def ask(self, net: Net, address: str) -> None:
        """One question, and the pages that answer it.

        Raises:
            IcecoreError: The node's.
        """
        rng = self._rng
        selection = draw_selection(rng)
        start = rng.choice([0, 0, rng.randrange(200)])
        request = data_pb2.QueryRequest(
            topic=self._topic,
            partitions=[
                data_pb2.QueryPartition(
                    partition=rng.randrange(self._partitions),
                    from_offset=start,
                    to_offset=rng.choice([0, 0, start + rng.randrange(1, 200)]),
                )
            ],
            filter=selection_to_proto(selection),
            newest_first=rng.random() < 0.5,
            max_count=rng.choice([1, 3, 1_000]),
            takes_columns=True,
        )
        for _ in range(PAGES_MAX):
            body = await net.call(
                address,
                "/icecore.v1.DataService/Query",
                request.SerializeToString(),
                timeout_s=CALL_TIMEOUT_S,
            )
            page = data_pb2.QueryResponse.FromString(bytes(body))
            for result in page.partitions:
                self._note(address, selection, page, result, newest_first=request.newest_first)
            if not page.continuation:
                break
            request.continuation = page.continuation

    def _note(
        self,
        address: str,
        selection: Selection,
        page: data_pb2.QueryResponse,
        result: data_pb2.QueryPartitionResult,
        *,
        newest_first: bool,
    ) -> None:
        error = convert.error_from_proto(result.error)
        if error is not None:
            self._world.loop.trace(f"searcher: {error.reason}")
            return
        self._world.history.answers.append(
            Answer(
                node=address,
                partition=(self._topic, result.partition),
                selection=selection,
                searched=(result.searched_from_offset, result.searched_to_offset),
                is_complete=page.complete,
                indexed_through_offset=result.indexed_through_offset,
                records=_records(result, newest_first=newest_first),
                at_s=self._world.loop.time(),
            )
        )
