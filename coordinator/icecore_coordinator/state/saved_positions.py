"""The index over saved positions: by name, by topic, and in order.

Pure. Its records are ``PositionRecord`` of ``records.py``.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, Protocol, TypeVar

_K = TypeVar("_K")


class Saved(Protocol):
    """Positions saved under one name in some partitions of a topic."""

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def topic_id(self) -> bytes: ...

    @property
    def positions(self) -> Sequence[object]: ...


R = TypeVar("R", bound=Saved)


@dataclass
class PositionIndex(Generic[R]):
    """All records by key, and by what is asked for."""

    records: dict[str, R] = field(default_factory=dict)
    of_name: dict[str, dict[str, None]] = field(default_factory=dict)
    """Keys by name."""
    of_topic: dict[bytes, dict[str, None]] = field(default_factory=dict)
    """Keys by topic id."""
    count: int = 0
    """Number of saved positions."""
    _in_order: list[str] = field(default_factory=list)
    """All keys, for pages; empty when it has to be made again."""

    def put(self, record: R) -> None:
        """Keep it instead of the one before."""
        before = self.records.get(record.key)
        if before is None:
            self._in_order = []
        self.count += len(record.positions) - (len(before.positions) if before else 0)
        self.records[record.key] = record
        self.of_name.setdefault(record.name, {})[record.key] = None
        self.of_topic.setdefault(record.topic_id, {})[record.key] = None

    def remove(self, record: R) -> None:
        """Forget it."""
        self._in_order = []
        self.count -= len(self.records.pop(record.key).positions)
        _forget(self.of_name, record.name, record.key)
        _forget(self.of_topic, record.topic_id, record.key)

    def part_of(self, topic_id: bytes, count: int) -> tuple[R, ...]:
        """Some of those of a topic."""
        return tuple(self.records[key] for key in islice(self.of_topic.get(topic_id, ()), count))

    def page(self, name: str, after: str, count: int) -> list[R]:
        """Those behind a key, in order; an empty name means all."""
        if name:
            keys = sorted(self.of_name.get(name, ()))
        else:
            keys = self._in_order = self._in_order or sorted(self.records)
        start = bisect_right(keys, after)
        return [self.records[key] for key in keys[start : start + count]]


def _forget(index: dict[_K, dict[str, None]], of: _K, key: str) -> None:
    del index[of][key]
    if not index[of]:
        del index[of]
