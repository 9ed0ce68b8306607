"""The blocking look-up: each page crosses from the loop as a whole."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Self, Unpack

from icecore import client
from icecore.blocking.background import background
from icecore.client.conditions import HeaderValues, SearchArguments, TimeLike
from icecore.client.retries import OnRetry
from icecore.client.types import LookupPage, OffsetResult
from icecore.codec.record import Record
from icecore.rpc.addresses import Transport


class Lookup:
    """``icecore.Lookup`` for threads: the same arguments, methods and errors."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        timeout_s: float = 30.0,
        patience_s: float = 3.0,
        transport: Transport | None = None,
        on_retry: OnRetry | None = None,
    ) -> None:
        self._lookup = background.make(
            lambda: client.Lookup(
                bootstrap,
                topic,
                timeout_s=timeout_s,
                patience_s=patience_s,
                transport=transport,
                on_retry=on_retry,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find(
        self,
        *,
        keys: Iterable[bytes] | None = None,
        tags_any: Iterable[str] | None = None,
        tags_all: Iterable[str] | None = None,
        tags_none: Iterable[str] | None = None,
        headers: HeaderValues | None = None,
        from_event_time: TimeLike | None = None,
        to_event_time: TimeLike | None = None,
        from_append_time: TimeLike | None = None,
        to_append_time: TimeLike | None = None,
        from_offset: int = 0,
        to_offset: int | None = None,
        partitions: Sequence[int] | None = None,
        newest_first: bool = False,
        max_count: int = 100,
        continuation: bytes = b"",
    ) -> LookupPage:
        """See ``icecore.Lookup.find``."""
        return background.run(
            self._lookup.find(
                keys=keys,
                tags_any=tags_any,
                tags_all=tags_all,
                tags_none=tags_none,
                headers=headers,
                from_event_time=from_event_time,
                to_event_time=to_event_time,
                from_append_time=from_append_time,
                to_append_time=to_append_time,
                from_offset=from_offset,
                to_offset=to_offset,
                partitions=partitions,
                newest_first=newest_first,
                max_count=max_count,
                continuation=continuation,
            )
        )

    def pages(self, **arguments: Unpack[SearchArguments]) -> Iterator[LookupPage]:
        """See ``icecore.Lookup.pages``."""
        yield from background.iterate(self._lookup.pages(**arguments))

    def explain(self, **arguments: Unpack[SearchArguments]) -> LookupPage:
        """See ``icecore.Lookup.explain``."""
        return background.run(self._lookup.explain(**arguments))

    def record(self, partition: int, offset: int) -> Record | None:
        """See ``icecore.Lookup.record``."""
        return background.run(self._lookup.record(partition, offset))

    def offset_at(
        self,
        append_time: TimeLike,
        *,
        boundary: Literal["lower", "upper"] = "lower",
        partitions: Sequence[int] | None = None,
    ) -> dict[int, OffsetResult]:
        """See ``icecore.Lookup.offset_at``."""
        return background.run(
            self._lookup.offset_at(append_time, boundary=boundary, partitions=partitions)
        )

    def close(self) -> None:
        """Close the connections. Does nothing in a fork of the process."""
        if not background.is_forked:
            background.run(self._lookup.close())
