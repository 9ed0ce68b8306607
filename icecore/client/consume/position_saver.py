"""Saves how far a consumer has come: at intervals, by hand, and when it is closed.

What was handed out counts as processed once the program asks for more; until then a save at an
interval holds it back. So a program that is killed is given some records twice, and none is
skipped: at least once.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from icecore.client.cluster.connection import share
from icecore.client.consume.reader import Reader
from icecore.client.consume.saved_positions import ReaderPlace, SavedPositions
from icecore.errors import IcecoreError
from icecore.process.log import event

_log = logging.getLogger(__name__)

CLOSE_S: Final = 10.0
"""A close waits no longer for its save."""


class Handed(Protocol):
    """Something that was handed out: the first record that may not be processed yet."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...


class Hand:
    """The records that a program holds: handed out, perhaps not processed yet."""

    def __init__(self) -> None:
        self.held: Handed | None = None
        """The first of these records. All are of one partition, because one call hands out no
        more."""


class PositionSaver:
    """Saves the positions of one consumer.

    Args:
        saved: Where positions go.
        delivered: By reader, from which offset on records are still to be handed out.
        hand: What is held back.
        interval_s: Between two saves; None = only when asked.
        on_failure: Called when saving cannot go on.
    """

    def __init__(
        self,
        saved: SavedPositions,
        delivered: Callable[[], Iterable[tuple[Reader, int]]],
        hand: Hand,
        interval_s: float | None,
        on_failure: Callable[[], None],
    ) -> None:
        self._saved = saved
        self._delivered = delivered
        self._hand = hand
        self._interval_s = interval_s
        self._on_failure = on_failure
        self._task: asyncio.Future[None] | None = None
        self._failure: IcecoreError | None = None
        self._is_told = False

    async def start(self, *, is_from_start: bool) -> None:
        """Begin to save at intervals, if there are such. A consumer that did not start with the
        first record then saves at once where it did: started again before its first save, it
        would skip what came meanwhile.

        Raises:
            IcecoreError: That was not possible.
        """
        if self._interval_s is not None:
            if not is_from_start:
                await self.save()
            self._task = share(self._save_often(self._interval_s))

    def check(self) -> None:
        """Raises why nothing can be saved any more, if so."""
        if self._failure is not None:
            self._is_told = True
            raise self._failure.again()

    def _places(self) -> list[ReaderPlace]:
        """Return how far reading has come, up to what is held back."""
        found, held = [], self._hand.held
        for reader, delivered in self._delivered():
            offset = delivered
            if held is not None and (held.topic, held.partition) == (
                reader.topic,
                reader.partition,
            ):
                offset = min(offset, held.offset)
            found.append(ReaderPlace(reader.topic_id, reader.partition, offset))
        return found

    async def save(self, timeout_s: float | None = None) -> None:
        """Save now, up to what is held back.

        Raises:
            PositionConflictError: Somebody else has saved under the name.
            IcecoreError: No coordinator answered in time, or refuses.
        """
        self.check()
        try:
            await self._save(timeout_s)
        except IcecoreError:
            self._is_told = True
            raise

    async def _save(self, timeout_s: float | None = None) -> None:
        try:
            await self._saved.save(self._places, timeout_s)
        except IcecoreError as error:
            if not error.retriable and self._failure is None:
                self._failure = error
                self._on_failure()
            raise

    async def stop(self) -> None:
        """Save for the last time, unless that is done by hand.

        Raises:
            IcecoreError: It was not possible, and nobody has been told so.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        is_due = self._task is not None and self._failure is None
        self._task = None
        if is_due:
            await self.save(CLOSE_S)
        elif not self._is_told:
            self.check()

    async def _save_often(self, interval_s: float) -> None:
        while self._failure is None:
            await asyncio.sleep(interval_s)
            try:
                await self._save()
            except IcecoreError as error:
                event(_log, logging.WARNING, "position_not_saved", error=error)
