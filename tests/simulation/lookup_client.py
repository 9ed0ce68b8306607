"""A program that keeps one ``icecore.Lookup`` and asks it now and then while faults fall.

Its plan, which is what it knows of segments and of nodes, grows old between two questions and
between two pages; of a tiered topic by so much that what it knows as one segment was sealed,
uploaded, dropped by nodes and merged with others meanwhile. Whole answers go into the history, with
what they promise of records that their plan knows nothing of (``LookupPage.planned_age_ms``).
"""

import asyncio
import random
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from icecore.client.lookup.lookup import Lookup
from icecore.client.types import LookupPage
from icecore.codec.selection import Selection
from icecore.errors import IcecoreError
from icecore.model import SegmentState
from tests.simulation import shells
from tests.simulation.history import Answer, History, Promise
from tests.simulation.searcher import draw_selection

if TYPE_CHECKING:
    from tests.simulation.cluster import World

TIMEOUTS_S = (8.0, 30.0)
"""A page ends after half of it. A node that stands still is waited for 10 s."""
RESTS_S = (0.0, 0.0, 0.0, 1.0, 4.0)
PAGES_MAX = 8
ROUNDING_S = 0.001
"""Ages are whole milliseconds."""


@dataclass(frozen=True, slots=True)
class _Question:
    """The conditions of one question."""

    selection: Selection
    from_offset: int
    to_offset: int | None
    partitions: list[int] | None
    newest_first: bool

    async def page(self, lookup: Lookup, max_count: int, continuation: bytes) -> LookupPage:
        """One page of its answer. Raises what ``find`` raises."""
        return await lookup.find(
            keys=self.selection.keys or None,
            tags_any=self.selection.tags_any or None,
            tags_all=self.selection.tags_all or None,
            tags_none=self.selection.tags_none or None,
            from_offset=self.from_offset,
            to_offset=self.to_offset,
            partitions=self.partitions,
            newest_first=self.newest_first,
            max_count=max_count,
            continuation=continuation,
        )


@dataclass(slots=True)
class _Pages:
    """The pages of a question's answer so far."""

    began_s: float
    planned_s: float = inf
    """The moment of the oldest plan."""
    through: dict[int, int] = field(default_factory=dict)
    records: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    lacking: set[int] = field(default_factory=set)
    """Partitions of which some page could not search all."""
    is_over: bool = False

    def add(self, page: LookupPage, now_s: float) -> None:
        """The next page."""
        self.planned_s = min(self.planned_s, now_s - page.planned_age_ms / 1000 - ROUNDING_S)
        for partition, offset in page.indexed_through.items():
            self.through[partition] = max(self.through.get(partition, 0), offset)
        for each in page.records:
            found = self.records.setdefault(each.partition, [])
            found.append((each.offset, each.value or b""))
        self.lacking |= {each.partition for each in page.unavailable}
        self.is_over = not page.continuation


class LookupClient:
    """Asks in its own time until it is stopped.

    Args:
        world: Where it lives.
        topic: What it searches.
        partitions: How many there are.
        history: What its answers go into.
        rests: Now and then it asks nothing for as long as a segment needs to change its place.
    """

    def __init__(
        self,
        world: "World",
        topic: str,
        partitions: int,
        history: History,
        *,
        rests: bool = False,
    ) -> None:
        self._world = world
        self._history = history
        self._rests_s = RESTS_S if rests else (0.0,)
        self._topic = topic
        self._partitions = partitions
        self._rng = random.Random(f"look-ups of {topic} {world.seed}")
        self._end = 0
        """Some partition was seen to reach so far."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        name = f"lookup of {self._topic}"
        process, net, clock, rng = self._world.client(name)
        lookup = Lookup(
            shells.bootstrap_of(self._world, name),
            self._topic,
            timeout_s=self._rng.choice(TIMEOUTS_S),
            patience_s=self._rng.choice([0.3, 3.0]),
            net=net,
            clock=clock,
            rng=rng,
        )
        self._task = process.spawn(self._look_up(lookup))

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _look_up(self, lookup: Lookup) -> None:
        rng = self._rng
        while True:
            # Two in a row have one plan, and now and then there is a newer one.
            await asyncio.sleep(rng.expovariate(1 / rng.choice([0.05, 0.2, 0.7])))
            await self._rest()
            try:
                await self._ask(lookup, self._draw())
            except IcecoreError as error:
                self._world.loop.trace(f"look-up: {error.reason}")

    async def _rest(self) -> None:
        await asyncio.sleep(self._rng.choice(self._rests_s))

    def _draw(self) -> _Question:
        """Most are about the newest records: what else there is was asked for when it was new."""
        rng = self._rng
        near = max(0, self._end - rng.randrange(1, 60))
        start = rng.choice([near, near, near, rng.randrange(self._end + 1), 0])
        return _Question(
            selection=rng.choice([Selection(), draw_selection(rng)]),
            from_offset=start,
            to_offset=rng.choice([None, None, None, start + rng.randrange(1, 200)]),
            partitions=rng.choice([None, None, [rng.randrange(self._partitions)]]),
            newest_first=rng.random() < 0.5,
        )

    async def _ask(self, lookup: Lookup, question: _Question) -> None:
        """One question, and the pages that answer it. Raises IcecoreError."""
        rng, loop = self._rng, self._world.loop
        pages, led_before = _Pages(loop.time()), self._led()
        leaders: dict[int, str] = {}
        max_count, continuation = rng.choice([2, 50, 1_000]), b""
        for number in range(PAGES_MAX):
            page = await question.page(lookup, max_count, continuation)
            pages.add(page, loop.time())
            if number == 0:
                leaders = self._leaders(lookup, pages.through)
            continuation = page.continuation
            if pages.is_over:
                break
            if rng.random() < 0.1:
                await asyncio.sleep(rng.uniform(0.0, 1.5))
                await self._rest()
        self._end = max(self._end, *pages.through.values())
        led_now = self._led()
        for partition in pages.through:
            key = (leaders.get(partition, ""), partition)
            led_to = min(led_before.get(key, 0), led_now.get(key, 0))
            self._note(question, pages, partition, led_to)

    def _led(self) -> dict[tuple[str, int], int]:
        """Return the end up to which each process shows a partition that it leads or has led."""
        world, ends = self._world, dict[tuple[str, int], int]()
        for name, node in world.shells.items():
            if name not in world.hosts or not world.is_up(name):
                continue
            for replica, (topic, partition), high_watermark in shells.high_watermarks(node):
                if topic == self._topic and replica.led_in_this_process:
                    key = (str(world.processes[name]), partition)
                    ends[key] = max(ends.get(key, 0), high_watermark)
        return ends

    def _leaders(self, lookup: Lookup, partitions: dict[int, int]) -> dict[int, str]:
        """The processes that lead by its plan."""
        processes = self._world.processes
        tails = [chain[-1] for each in partitions if (chain := lookup._chains.of(each))]
        return {
            tail.partition: str(processes.get(f"node-{tail.leader}"))
            for tail in tails
            if tail.state is not SegmentState.SEALED
        }

    def _note(self, question: _Question, pages: _Pages, partition: int, led_to: int) -> None:
        """An answer that was not read to its end tells of the records between those it has."""
        records = pages.records.get(partition, [])
        start, end = question.from_offset, inf
        if question.to_offset is not None:
            end = question.to_offset
        through = pages.through[partition]
        last = max([through, *(offset + 1 for offset, _ in records)])
        is_judged = partition not in pages.lacking and (pages.is_over or bool(records))
        if is_judged and not pages.is_over:
            if question.newest_first:
                start = records[-1][0]
            else:
                end = last = records[-1][0] + 1
        self._history.answers.append(
            Answer(
                node="a look-up",
                partition=(self._topic, partition),
                selection=question.selection,
                searched=(start, int(min(end, max(start, last)))),
                is_complete=is_judged,
                indexed_through_offset=through,
                records=tuple(records),
                at_s=pages.began_s,
                promise=Promise(end, pages.planned_s, led_to),
            )
        )
