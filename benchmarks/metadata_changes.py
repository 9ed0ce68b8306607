"""The changes of metadata that a cluster makes, one after the other, by a coordinator's own ledger.

Each one is what decisions write: the same records, compared and encoded by the ledger. For
``metadata_stores``, which runs them on each store.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.scale.metadata import SETTINGS, records_of
from icecore.model import SegmentId
from icecore.process.system import SystemRng
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.state.records import (
    Change,
    PartitionRecord,
    PositionRecord,
    SegmentRecord,
    StoredPosition,
    TopicRecord,
)
from icecore_coordinator.stores.metadata_store import MetadataStore

PARTITIONS: Final = 10
POSITIONS: Final = 64
"""All that one row has."""
IN_ONE_CALL: Final = 100
"""In-sync sets change together where a node goes: leaders send them in one call."""


_FOUND: Final = tuple(records_of(1, 1))
_SEALED: Final = next(
    each for each in _FOUND if isinstance(each, SegmentRecord) and each.producer_digest
)
_PARTITION: Final = next(each for each in _FOUND if isinstance(each, PartitionRecord))


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of change."""

    name: str
    changes: Callable[[], Iterator[list[Change]]]
    """Lists of changes, each list of one call."""


def _topics() -> Iterator[list[Change]]:
    for number in itertools.count(1):
        topic_id = number.to_bytes(16, "big")
        topic = TopicRecord(topic_id, f"topic-{number}", PARTITIONS, SETTINGS, version=1)
        rows = [PartitionRecord(topic_id, each, version=1) for each in range(PARTITIONS)]
        yield [Change((topic, *rows))]


def _sealed_and_tail(number: int) -> tuple[SegmentRecord, PartitionRecord]:
    found = list(records_of(1, 1))
    [partition] = [each for each in found if isinstance(each, PartitionRecord)]
    sealed = next(
        each for each in found if isinstance(each, SegmentRecord) and each.producer_digest
    )
    moved = replace(sealed.segment, segment_id=SegmentId(number), topic_id=b"s" * 16, version=1)
    return replace(sealed, segment=moved), replace(partition, topic_id=b"s" * 16, version=0)


def _seals() -> Iterator[list[Change]]:
    """The open segment is sealed, and its successor opens."""
    record, partition = _sealed_and_tail(1)
    yield [Change((record,))]
    for number in itertools.count(2):
        sealed = replace(record, segment=replace(record.segment, version=2))
        record, _ = _sealed_and_tail(number)
        partition = replace(partition, version=number - 1)
        yield [Change((sealed, record, partition))]


def _in_sync_sets(count: int) -> Iterator[list[Change]]:
    first = count << 20
    records = [_sealed_and_tail(first + number)[0] for number in range(count)]
    for version in itertools.count(1):
        yield [
            Change((replace(each, segment=replace(each.segment, version=version)),))
            for each in records
        ]


def _positions() -> Iterator[list[Change]]:
    for version in itertools.count(1):
        saved = tuple(StoredPosition(each, version, version, 1, 1) for each in range(POSITIONS))
        yield [Change((PositionRecord(b"p" * 16, "reader", 0, saved, version=version),))]


OPERATIONS: Final = (
    Operation(f"topics of {PARTITIONS} partitions made", _topics),
    Operation("seals", _seals),
    Operation("in-sync sets changed, one a call", lambda: _in_sync_sets(1)),
    Operation(f"the same, {IN_ONE_CALL} a call", lambda: _in_sync_sets(IN_ONE_CALL)),
    Operation(f"commits of positions in {POSITIONS} partitions", _positions),
)


async def rates(store: MetadataStore, seconds: float) -> dict[str, float]:
    """Changes per second of each kind."""
    ledger = Ledger(store, SystemRng())
    await ledger.open()
    found = {}
    for operation in OPERATIONS:
        count, began_s = 0, time.perf_counter()
        for changes in operation.changes():
            for result in await ledger.decide_all([_as_it_is(each) for each in changes]):
                assert isinstance(result, Change), result
            count += len(changes)
            if time.perf_counter() - began_s > seconds:
                break
        found[operation.name] = count / (time.perf_counter() - began_s)
    return found


def _as_it_is(change: Change) -> Callable[[object], Change]:
    return lambda _: change
