"""Derives from Spark's filters which offsets, keys and partitions need not be read.

Spark checks every row again, so what comes of this may be too wide, but never too narrow. Terms
arrive joined by AND; an OR never does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyspark.sql import datasource as spark

from icecore.client.conditions import time_ms
from icecore.rpc.filters import KEYS_MAX

_OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(slots=True)
class Pushed:
    """The least that has to be read; ends are exclusive."""

    from_offset: int = 0
    to_offset: int = _OFFSET_MAX
    from_append_ms: int | None = None
    to_append_ms: int | None = None
    keys: frozenset[bytes] | None = None
    """None = all."""
    partitions: frozenset[int] | None = None

    def add(self, term: spark.Filter) -> None:
        """Heed a term; what says nothing to us is left to Spark."""
        attribute: tuple[str, ...] = getattr(term, "attribute", ())
        if len(attribute) != 1:
            return
        (name,) = attribute
        value: Any = getattr(term, "value", None)
        if name == "offset":
            self._add_offset(term, value)
        elif name == "append_timestamp":
            self._add_time(term, value)
        elif isinstance(term, spark.EqualTo | spark.EqualNullSafe | spark.In):
            values: list[Any] = list(value) if isinstance(term, spark.In) else [value]
            if name == "key":
                self._add_keys(values)
            elif name == "partition" and all(type(each) is int for each in values):
                found = frozenset(values)
                self.partitions = found if self.partitions is None else self.partitions & found

    def _add_offset(self, term: spark.Filter, value: Any) -> None:
        if isinstance(term, spark.In) and value and all(type(each) is int for each in value):
            self._between(min(value), max(value) + 1)
        elif type(value) is int:
            low, high = _bounds(term, value, 1)
            self._between(low, high)

    def _between(self, low: int | None, high: int | None) -> None:
        if low is not None:
            self.from_offset = max(self.from_offset, low)
        if high is not None:
            self.to_offset = min(self.to_offset, high)

    def _add_time(self, term: spark.Filter, value: Any) -> None:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return
        at_ms = time_ms("append_timestamp", value)
        assert at_ms is not None
        # The first whole millisecond that is not before it: for an upper end one more may be one
        # too many, which costs a few rows; for a lower end it must not be one too many.
        low, high = _bounds(term, at_ms, 1)
        if low is not None:
            low -= 1
            self.from_append_ms = (
                low if self.from_append_ms is None else max(self.from_append_ms, low)
            )
        if high is not None:
            self.to_append_ms = high if self.to_append_ms is None else min(self.to_append_ms, high)

    def _add_keys(self, values: list[Any]) -> None:
        if not all(isinstance(each, bytes | bytearray) for each in values):
            return  # among them a null: nobody looks for that by index
        found = frozenset(bytes(each) for each in values)
        self.keys = found if self.keys is None else self.keys & found

    def keys_of(self, asked: tuple[bytes, ...]) -> tuple[bytes, ...] | None:
        """Return the keys to look for, of those that an option asks for; empty = all records, also
        when there are too many keys; None = no record can be wanted."""
        if self.keys is None:
            return asked
        found = tuple(key for key in asked if key in self.keys) if asked else sorted(self.keys)
        if not found:
            return None
        return asked if len(found) > KEYS_MAX else tuple(found)


def _bounds(term: spark.Filter, value: int, step: int) -> tuple[int | None, int | None]:
    """From, inclusive, and to, exclusive, of what a term allows."""
    if isinstance(term, spark.EqualTo | spark.EqualNullSafe):
        return value, value + step
    if isinstance(term, spark.GreaterThan):
        return value + step, None
    if isinstance(term, spark.GreaterThanOrEqual):
        return value, None
    if isinstance(term, spark.LessThan):
        return None, value
    if isinstance(term, spark.LessThanOrEqual):
        return None, value + step
    return None, None


def pushed(terms: Iterable[spark.Filter]) -> Pushed:
    """All terms together."""
    found = Pushed()
    for term in terms:
        found.add(term)
    return found
