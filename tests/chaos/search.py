"""Looks records up by key and tag while processes break, through the public client.

Each look-up is one question, put to its last page; what a complete answer leaves out is judged by
the final logs, as in the simulator.
"""

import asyncio
import contextlib
import random

from icecore import Lookup
from icecore.codec.selection import Selection
from icecore.errors import IcecoreError
from tests.chaos.record import Recorder
from tests.simulation.searcher import draw_selection

PAGE_RECORDS = 500
PAUSE_S = 0.2


class Searches:
    """Asks until it is cancelled.

    Args:
        bootstrap: The coordinator's address.
        topic: What is searched.
        recorder: Takes the answers.
        seed: Of the questions.
    """

    def __init__(self, bootstrap: str, topic: str, recorder: Recorder, seed: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._recorder = recorder
        self._rng = random.Random(seed)

    async def run(self) -> None:
        """One question after the other; one that nobody can answer is asked in another form."""
        async with Lookup(self._bootstrap, self._topic) as lookup:
            while True:
                with contextlib.suppress(IcecoreError):  # one without an answer is not judged here
                    await self._ask(lookup, draw_selection(self._rng))
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, lookup: Lookup, selection: Selection) -> None:
        newest_first = self._rng.random() < 0.5
        records: dict[int, list[tuple[int, bytes | None]]] = {}
        through: dict[int, int] = {}
        is_complete = True
        pages = lookup.pages(
            keys=selection.keys or None,
            tags_any=selection.tags_any or None,
            tags_all=selection.tags_all or None,
            tags_none=selection.tags_none or None,
            newest_first=newest_first,
            max_count=PAGE_RECORDS,
        )
        async for page in pages:
            is_complete = is_complete and page.complete
            for partition, offset in page.indexed_through.items():
                through[partition] = max(through.get(partition, 0), offset)
            for each in page.records:
                records.setdefault(each.partition, []).append((each.offset, each.value))
        for partition, end in through.items():
            self._recorder.answer(
                partition, selection, end, records.get(partition, []), is_complete=is_complete
            )
