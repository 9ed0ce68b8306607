"""Positions that the cluster keeps under a name: read, saved by compare-and-set, listed, deleted.

Each save names the version that it follows. When somebody else has saved meanwhile, the cluster
keeps what that one saved, and says so. A save of which no answer came may have been stored: then
the version in the refusal is that of our own instance, and the next attempt follows it.

A consumer that saves by itself takes the name over when it begins: it saves once more what is
saved. A save of the one before it that comes late, for that one was killed, is then refused.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from icecore.client.cluster.connection import Connection
from icecore.client.types import SavedPosition
from icecore.errors import (
    ConfigurationError,
    ConflictError,
    IcecoreError,
    InternalError,
    PositionConflictError,
    UnknownTopicError,
)
from icecore.model import TOPIC_NAME
from icecore.rpc import convert
from icecore.v1 import admin_pb2

NOWHERE: Final = -1
"""An offset that no position has: whatever is there is to be saved."""
_PER_CALL: Final = 1_000
_ATTEMPTS_MAX: Final = 3
_DIGITS_MAX: Final = 19
"""A version with more of them is forged: no counter comes so far."""


class ReaderPlace(NamedTuple):
    """Position of the reader of one partition."""

    topic_id: bytes
    partition: int
    offset: int
    """Offset of the next record to read."""


_Key: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""


class _Known(NamedTuple):
    offset: int
    version: int


def check_name(name: str) -> str:
    """Raises ConfigurationError."""
    if not TOPIC_NAME.fullmatch(name):
        raise ConfigurationError(
            f"position {name[:60]!r}: a name has 1 to 249 characters of A-Z a-z 0-9 . _ -"
        )
    return name


async def list_positions(
    connection: Connection, name: str = "", topics: Sequence[str] = (), *, timeout_s: float
) -> list[SavedPosition]:
    """Return the saved positions, by name, topic and partition.

    Args:
        connection: The way to the coordinator.
        name: Only under this name.
        topics: Only of these.
        timeout_s: For each page.

    Raises:
        UnknownTopicError: There is no such topic.
        IcecoreError: No coordinator answered in time.
    """
    found: list[SavedPosition] = []
    after = ""
    while True:
        answer = await connection.admin(
            "ListPositions",
            admin_pb2.ListPositionsRequest(name=name, topics=topics, after=after),
            admin_pb2.ListPositionsResponse,
            timeout_s=timeout_s,
        )
        found += [
            SavedPosition(
                name=each.name,
                topic=each.topic,
                topic_id=each.topic_id,
                partition=each.partition,
                offset=each.offset,
                version=each.version,
                instance=each.instance,
                saved_at_ms=each.saved_at_ms,
            )
            for each in answer.positions
        ]
        after = answer.next
        if not after:
            return sorted(found, key=lambda each: (each.name, each.topic, each.partition))


async def delete_positions(
    connection: Connection, name: str, topic: str = "", *, timeout_s: float
) -> int:
    """Delete what is saved under a name, of one topic or of all; how many positions there were.

    Raises:
        UnknownTopicError: There is no such topic.
        IcecoreError: No coordinator answered in time.
    """
    answer = await connection.admin(
        "DeletePositions",
        admin_pb2.DeletePositionsRequest(name=name, topic=topic),
        admin_pb2.DeletePositionsResponse,
        timeout_s=timeout_s,
    )
    return answer.deleted


class SavedPositions:
    """The saved positions of one reader.

    Args:
        connection: The way to the coordinator.
        name: Under which they are kept.
        timeout_s: For each call.
        takes_over: What is loaded belongs to this reader from then on.
    """

    def __init__(
        self, connection: Connection, name: str, timeout_s: float, *, takes_over: bool = False
    ) -> None:
        self._connection = connection
        self._name = name
        self._timeout_s = timeout_s
        self._takes_over = takes_over
        self._instance = 1 + int(connection.rng.random() * ((1 << 53) - 1))
        self._known: dict[_Key, _Known] = {}
        self._lock = asyncio.Lock()

    def offset(self, topic_id: bytes, partition: int) -> int | None:
        """Return the saved offset to begin at; None when none is saved."""
        known = self._known.get((topic_id, partition))
        return None if known is None else known.offset

    async def load(self, topics: Sequence[str], partitions: Container[int] | None = None) -> None:
        """Read what is saved of these topics, and take it over.

        Args:
            topics: Of them.
            partitions: Others are left to who reads them; None = all are taken over.

        Raises:
            PositionConflictError: Somebody else saves again and again.
            IcecoreError: No coordinator answered in time, or refuses.
        """
        try:
            found = await list_positions(
                self._connection, self._name, topics, timeout_s=self._timeout_s
            )
        except UnknownTopicError:
            # It may be there in a moment, and has no positions then; others have.
            for each in topics if len(topics) > 1 else ():
                await self.load([each], partitions)
            return
        self.note(found)
        if self._takes_over:
            mine = [each for each in found if partitions is None or each.partition in partitions]
            await self._take_over([(each.topic_id, each.partition) for each in mine])

    def note(self, found: Iterable[SavedPosition]) -> None:
        """This is what is saved; the next saves follow it."""
        for each in found:
            self._known[each.topic_id, each.partition] = _Known(each.offset, each.version)

    async def _take_over(self, keys: Iterable[_Key]) -> None:
        """Save what is saved once more. Where somebody else saved meanwhile, that counts: nothing
        has been read yet."""
        async with self._lock:
            left = list(keys)
            for attempt in range(_ATTEMPTS_MAX):
                places = [ReaderPlace(*key, self._known[key].offset) for key in left]
                left = []
                for at in range(0, len(places), _PER_CALL):
                    for place, error in await self._ask(places[at : at + _PER_CALL]):
                        key = (place.topic_id, place.partition)
                        is_last = attempt + 1 == _ATTEMPTS_MAX
                        if isinstance(error, UnknownTopicError):
                            continue
                        if is_last or not isinstance(error, PositionConflictError):
                            raise error
                        if self._follows(key, error):
                            left.append(key)

    def _follows(self, key: _Key, error: PositionConflictError) -> bool:
        """Note what is stored now, and return whether somebody else stored it.

        Raises:
            PositionConflictError: It does not say what is stored.
        """
        version, offset = _number_in(error, "version"), _number_in(error, "offset")
        if self._version_of_ours(error) is not None:
            self._known[key] = _Known(self._known[key].offset, version or 0)
            return False
        if version == 0:
            del self._known[key]  # deleted: the reader begins as if nothing had been saved
            return False
        if version is None or offset is None:
            raise error
        self._known[key] = _Known(offset, version)
        return True

    async def save(
        self, places: Callable[[], Iterable[ReaderPlace]], timeout_s: float | None = None
    ) -> None:
        """Store what differs from what is saved. Topics that are gone are passed over.

        ``places`` is asked when the saves before this one are over: none is older than the last.

        Raises:
            PositionConflictError: Somebody else saved meanwhile; other partitions are saved.
            IcecoreError: No coordinator answered in time, or refuses.
        """
        async with self._lock:
            left = [place for place in places() if self._is_news(place)]
            refused: list[IcecoreError] = []
            for _ in range(_ATTEMPTS_MAX):
                again: list[ReaderPlace] = []
                for at in range(0, len(left), _PER_CALL):
                    again += await self._save(left[at : at + _PER_CALL], timeout_s, refused)
                if not again:
                    break
                left = again
            else:
                refused.append(ConflictError("the position was saved again and again meanwhile"))
            if refused:
                raise refused[0]

    def _is_news(self, place: ReaderPlace) -> bool:
        return self.offset(place.topic_id, place.partition) != place.offset

    async def _save(
        self, places: list[ReaderPlace], timeout_s: float | None, refused: list[IcecoreError]
    ) -> list[ReaderPlace]:
        """One call; what is to be tried again because our own save had been stored. Why others are
        not stored is added to ``refused``."""
        again: list[ReaderPlace] = []
        for place, error in await self._ask(places, timeout_s):
            if (version := self._version_of_ours(error)) is not None:
                self._known[place.topic_id, place.partition] = _Known(NOWHERE, version)
                again.append(place)
            elif not isinstance(error, UnknownTopicError):
                refused.append(error)
        return again

    async def _ask(
        self, places: list[ReaderPlace], timeout_s: float | None = None
    ) -> list[tuple[ReaderPlace, IcecoreError]]:
        """Make one call, note what is stored, and return what is not, with the reason."""
        request = admin_pb2.SavePositionsRequest(name=self._name, instance=self._instance)
        for topic_id, partition, offset in places:
            known = self._known.get((topic_id, partition))
            request.positions.add(
                topic_id=topic_id,
                partition=partition,
                offset=offset,
                version=0 if known is None else known.version,
            )
        answer = await self._connection.admin(
            "SavePositions",
            request,
            admin_pb2.SavePositionsResponse,
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
        )
        if len(answer.outcomes) != len(places):
            raise InternalError(
                f"the coordinator answered {len(answer.outcomes)} positions, {len(places)} were "
                "asked"
            )
        left: list[tuple[ReaderPlace, IcecoreError]] = []
        for place, outcome in zip(places, answer.outcomes, strict=True):
            error = convert.error_from_proto(outcome.error)
            if error is None:
                key = (place.topic_id, place.partition)
                self._known[key] = _Known(place.offset, outcome.version)
            else:
                left.append((place, error))
        return left

    def _version_of_ours(self, error: IcecoreError) -> int | None:
        """Return the version that overtook a save, if this instance stored it itself; else None."""
        is_overtaken = isinstance(error, PositionConflictError)
        if not is_overtaken or error.metadata.get("instance") != str(self._instance):
            return None
        return _number_in(error, "version")


def _number_in(error: IcecoreError, name: str) -> int | None:
    """Return a number of an error's metadata; None when it is none that can be."""
    text = error.metadata.get(name, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if is_number else None
