"""The basis of every storage engine suite: a store over one data folder, and logs in it.

Subclasses supply the fixture ``harness``: opens a store over one empty data folder, and opens it
again as after a SIGKILL (``kill``) or a clean stop (``stop``).
"""

from typing import Protocol

import pytest

from icecore.topic_settings import SEGMENT_ENGINE
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.segment_engine.segment_engine import SegmentEngine
from tests.conformance.log_builder import LogBuilder, identity

FAR = 1 << 40


class StoreHarness(Protocol):
    """One data folder and the store that has it open, already recovered."""

    store: ReplicaStore

    def kill(self) -> list[FoundReplica]:
        """The process dies, nothing unsynced is lost; a new one recovers."""
        ...

    def stop(self) -> list[FoundReplica]:
        """Close cleanly and open again."""
        ...

    def damage(self, segment_id: int, position: int) -> None:
        """Flip a byte of a segment's data, ``position`` bytes after its first batch's start."""
        ...


def opened(store: ReplicaStore, segment_id: int, base_offset: int = 0) -> LogBuilder:
    """A confirmed, empty segment."""
    assert store.creation.create([identity(segment_id)]) == [None]
    log = LogBuilder(segment_id, base_offset)
    assert store.creation.confirm(log.identity, b"state", 0) == log.tail
    return log


def append(store: ReplicaStore, log: LogBuilder, batches: int = 1, **shape: int) -> None:
    """Append new batches of one log as one group."""
    request = log.request(batches, **shape)
    assert store.append_group([request]) == [request]
    assert request.error is None


def read_all(store: ReplicaStore, log: LogBuilder, max_bytes: int = 1000) -> bytes:
    """The whole log, in runs."""
    offset, data = log.identity.base_offset, b""
    while offset < log.tail.end_offset:
        run, next_offset = store.reader.read(log.identity.segment_id, offset, max_bytes, FAR)
        assert run and next_offset > offset
        offset, data = next_offset, data + run
    return data


def segment_engine(store: ReplicaStore) -> SegmentEngine:
    """The segment engine of a store, for tests of what is inside."""
    engine = store._catalog.engines[SEGMENT_ENGINE]
    assert isinstance(engine, SegmentEngine)
    return engine


class OnHarness:
    """Inherit and define ``harness``."""

    @pytest.fixture
    def harness(self) -> StoreHarness:
        raise NotImplementedError

    @pytest.fixture
    def store(self, harness: StoreHarness) -> ReplicaStore:
        return harness.store
