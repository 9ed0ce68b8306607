"""The topics and partitions that a consumer reads, and where in each it begins and ends.

Topics are named, or found by a pattern. Those that turn up later, and partitions that are added,
are read from their first record on: all that they hold came after the consumer began. A saved
position comes before whatever else says where to begin.
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from icecore.client import checks
from icecore.client.cluster.connection import Connection, share
from icecore.client.cluster.metadata import Metadata, topic_recreated
from icecore.client.cluster.offsets import OffsetLookup, Position, check_position
from icecore.client.consume.fetcher import Fetcher
from icecore.client.consume.reader import Reader
from icecore.client.consume.saved_positions import SavedPositions
from icecore.client.types import TopicMetadata
from icecore.errors import ConfigurationError, IcecoreError, InvalidRequestError
from icecore.process.log import event
from icecore.v1 import admin_pb2

TOPICS_MAX: Final = 1_000
LOOK_S: Final = 30.0
"""How long until topics are looked for again."""
_TOPICS_AT_ONCE: Final = 50
"""Maximum number of topics that are looked up together."""
_PATTERN_CHARACTERS_MAX: Final = 1_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WantedTopics:
    """The wanted topics: names, or the pattern that all of a name must match."""

    names: tuple[str, ...] = ()
    pattern: "re.Pattern[str] | None" = None

    @property
    def label(self) -> str:
        """For messages."""
        return f"pattern {self.pattern.pattern}" if self.pattern else ",".join(self.names[:5])

    @property
    def only(self) -> str:
        """The name when there can be no other one, else empty."""
        return self.names[0] if len(self.names) == 1 else ""


def topics_of(topic: Any, topics: Any, pattern: Any) -> WantedTopics:
    """Check the consumer's arguments and return the topics to read.

    Raises:
        TypeError, InvalidTopicNameError: Something is no name.
        ConfigurationError: There is nothing, more than one of the three, or it is no pattern.
    """
    if sum(each is not None for each in (topic, topics, pattern)) != 1:
        raise ConfigurationError("give one of topic, topics and pattern")
    if topic is not None:
        if isinstance(topic, list | tuple | set | frozenset):
            raise TypeError("topic is one name; give several as topics=")
        return WantedTopics((checks.topic_name(topic),))
    if topics is not None:
        names = tuple(dict.fromkeys(checks.names("topics", topics)))
        if not 1 <= len(names) <= TOPICS_MAX:
            raise ConfigurationError(f"topics are 1 to {TOPICS_MAX} names, not {len(names)}")
        return WantedTopics(names)
    text = checks.text("pattern", pattern)
    try:
        if not 1 <= len(text) <= _PATTERN_CHARACTERS_MAX:
            raise ValueError(f"1 to {_PATTERN_CHARACTERS_MAX} characters")
        return WantedTopics(pattern=re.compile(text))
    except (ValueError, re.error, RecursionError, OverflowError) as error:
        raise ConfigurationError(
            f"pattern is no regular expression: {text[:60]!r}: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class Range:
    """Range to read in each partition that exists when the consumer begins."""

    start: Position
    stop_at_end: bool
    until: Position | None
    partitions: tuple[int, ...] | None
    """None = all, also those added later."""

    def check(self) -> None:
        """Raises TypeError, InvalidRequestError."""
        check_position(self.start)
        if self.until is not None:
            check_position(self.until)

    @property
    def has_end(self) -> bool:
        return self.stop_at_end or self.until is not None

    @property
    def is_endless(self) -> bool:
        """Return whether there is something to wait for, even while nothing is read."""
        return not self.has_end and self.partitions != ()


class Subscription:
    """Keeps the readers of a fetcher up with the topics.

    Args:
        connection: The way to the cluster.
        metadata: What topics there are.
        fetcher: Gets the readers.
        topics: Which topics.
        wanted: What of each.
        saved: Positions to begin at, if there are such.
        timeout_s: To find topics and offsets.
        wait_s: For named topics that are not there yet.
    """

    def __init__(
        self,
        connection: Connection,
        metadata: Metadata,
        fetcher: Fetcher,
        topics: WantedTopics,
        wanted: Range,
        saved: SavedPositions | None,
        timeout_s: float,
        wait_s: float,
    ) -> None:
        self._connection = connection
        self._metadata = metadata
        self._fetcher = fetcher
        self.topics = topics
        self._wanted = wanted
        self._saved = saved
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self.lookups: dict[str, OffsetLookup] = {}
        """Offset look-ups by topic."""
        self._looking: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Find the topics, and begin to read them.

        Raises:
            UnknownTopicError: A topic that was named does not exist.
            InvalidRequestError: There is no such partition, or the pattern fits too many topics.
            IcecoreError: The cluster did not answer in time.
        """
        names: Sequence[str] = self.topics.names
        if self.topics.pattern is not None:
            names = await self._matching(self.topics.pattern)
        elif self._wait_s:
            await asyncio.gather(*(self._find(name, self._wait_s) for name in names))
        await self._begin_all(names, self._wanted.start)
        self._metadata.watch(self._look)
        if self.topics.pattern is not None and not self._wanted.has_end:
            self._looking = share(self._find_more(self.topics.pattern))

    async def close(self) -> None:
        """Look for no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def _begin_all(self, names: Sequence[str], start: Position) -> None:
        for at in range(0, len(names), _TOPICS_AT_ONCE):
            part = names[at : at + _TOPICS_AT_ONCE]
            if self._saved is not None:
                await self._saved.load(part, self._wanted.partitions)
            await asyncio.gather(*(self._begin(name, start) for name in part))

    async def begin(self, name: str) -> None:
        """Read all of the topic that has the name now, once another one had it."""
        await self._find(name, self._timeout_s)
        if self._saved is not None:
            await self._saved.load([name], self._wanted.partitions)
        await self._begin(name, "earliest")

    async def _find(self, name: str, wait_s: float = 0) -> TopicMetadata:
        return await self._metadata.topic(
            name, timeout_s=self._timeout_s, is_fresh=True, wait_s=wait_s
        )

    async def _begin(self, name: str, start: Position) -> None:
        topic = await self._find(name)
        fetcher, wanted = self._fetcher, self._wanted.partitions
        if topic.topic_id == fetcher.topic_ids.get(name):
            return  # somebody else who waits for records has been here
        lookup = OffsetLookup(self._connection, self._metadata, name, timeout_s=self._timeout_s)
        lookup.topic_id = topic.topic_id
        count = len(topic.partitions)
        partitions = range(count) if wanted is None else wanted
        if any(partition >= count for partition in partitions):
            raise InvalidRequestError(f"{name} has partitions 0 to {count - 1}")
        readers = await asyncio.gather(
            *(self._reader(lookup, name, partition, start) for partition in partitions)
        )
        if topic.topic_id != fetcher.topic_ids.get(name):
            self.lookups[name] = lookup
            fetcher.begin(name, topic.topic_id, readers)

    async def _reader(
        self, lookup: OffsetLookup, name: str, partition: int, start: Position
    ) -> Reader:
        ends: list[int] = []
        if self._wanted.stop_at_end:
            ends.append((await lookup.find(partition, "latest")).offset)
        if self._wanted.until is not None:
            ends.append((await lookup.find(partition, self._wanted.until)).offset)
        first = self._saved_offset(lookup.topic_id, partition)
        is_saved = first is not None
        if first is None:
            first = (await lookup.find(partition, start)).offset
        if self._wanted.stop_at_end and first > ends[0]:
            ends[0] = await self._checked_end(lookup, partition, first)
        reader = Reader(partition, first, min(ends, default=None), name, lookup.topic_id)
        reader.is_from_start = start == "earliest" and not is_saved
        return reader

    async def _checked_end(self, lookup: OffsetLookup, partition: int, first: int) -> int:
        """The end of a log that seems to lie before a reader's first offset. It may be an older
        leader's; if it is not, the reader goes on to hear that its offset is not in the log."""
        await self._metadata.refresh(is_newer=True)
        end = (await lookup.find(partition, "latest")).offset
        return end if end >= first else first + 1

    def _saved_offset(self, topic_id: bytes, partition: int) -> int | None:
        return None if self._saved is None else self._saved.offset(topic_id, partition)

    # --- what comes later -------------------------------------------------------------------------

    def _look(self) -> None:
        """The cluster may have changed."""
        if self._wanted.partitions is None and not self._wanted.has_end:
            self._read_added()
        self._fetcher.look()  # which also notices that a topic is another one

    def _read_added(self) -> None:
        """Read the partitions that a topic did not have yet, all that they hold."""
        readers = self._fetcher.readers
        for name, topic_id in self._fetcher.topic_ids.items():
            known = self._metadata.known(name)
            if known is None or known.topic_id != topic_id:
                continue  # made again under the same name: another one
            added = [
                Reader(
                    each.partition,
                    offset if offset is not None else each.log_start_offset,
                    None,
                    name,
                    topic_id,
                )
                for each in known.partitions
                if (name, each.partition) not in readers
                for offset in (self._saved_offset(topic_id, each.partition),)
            ]
            if added:
                self._fetcher.add(added)

    async def _find_more(self, pattern: "re.Pattern[str]") -> None:
        """Topics that match from now on, and no more of those that are gone."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                found = await self._matching(pattern)
                for name in [name for name in self._fetcher.topic_ids if name not in found]:
                    self.leave(name)
                new = [name for name in found if name not in self._fetcher.topic_ids]
                await self._begin_all(new, "earliest")
            except IcecoreError as error:  # asked again: topics come and go meanwhile
                event(_log, logging.INFO, "topics_not_found", error=error)

    def leave(self, name: str) -> None:
        """Read no more of a topic that is gone."""
        event(_log, logging.INFO, "topic_left", topic=name)
        self._fetcher.leave(name)
        self.lookups.pop(name, None)
        self._metadata.forget(name)

    async def _matching(self, pattern: "re.Pattern[str]") -> list[str]:
        answer = await self._connection.admin(
            "GetMetadata",
            admin_pb2.GetMetadataRequest(names_only=True),
            admin_pb2.GetMetadataResponse,
            timeout_s=self._timeout_s,
        )
        names = sorted(each.name for each in answer.topics if pattern.fullmatch(each.name))
        if len(names) > TOPICS_MAX:
            raise InvalidRequestError(
                f"pattern {pattern.pattern!r} fits {len(names)} topics, at most {TOPICS_MAX} are "
                "read at once"
            )
        return names

    # --- questions about one topic ----------------------------------------------------------------

    def name_of(self, topic: object) -> str:
        """The topic that somebody asks about; the only one unless it is given.

        Raises:
            TypeError, InvalidRequestError: It is no name, is not read, or one has to be given.
        """
        if topic is None and self.topics.only:
            return self.topics.only
        if topic is None:
            raise InvalidRequestError("several topics are read: say which one")
        name = checks.topic_name(topic)
        if name not in self._fetcher.topic_ids and name not in self.topics.names:
            raise InvalidRequestError(f"topic {name} is not read here")
        return name

    def readers_of(self, topic: object) -> Iterable[tuple[int, Reader]]:
        """Return the readers of a topic by partition; raises as ``name_of``."""
        name = self.name_of(topic)
        found = self._fetcher.readers.items()
        return ((key[1], reader) for key, reader in found if key[0] == name)

    async def seek(self, topic: object, partition: int, position: Position) -> Reader:
        """Deliver from ``position`` on; the reader that has moved. See ``Consumer.seek``."""
        number, name = checks.partition_number(partition), self.name_of(topic)
        reader = self._fetcher.readers.get((name, number))
        if reader is None:
            raise InvalidRequestError(f"partition {partition} of {name} is not read here")
        lookup = self.lookups[name]
        offset = (await lookup.find(partition, position)).offset
        if reader.is_left:  # what was fetched of it still counts
            now = self._fetcher.topic_ids.get(name, b"")
            raise topic_recreated(name, lookup.topic_id, now)
        reader.move_to(offset)
        self._fetcher.look()
        return reader
