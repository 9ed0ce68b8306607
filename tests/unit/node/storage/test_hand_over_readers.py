"""A long read of a sealed log goes on when the log is handed over meanwhile, and sees no damage."""

import pytest

from icecore.topic_settings import MEMORY_ENGINE, ROCKSDB_ENGINE, SEGMENT_ENGINE
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engines import SHARED_ENGINE, make_store
from icecore_node.storage.replica_store import ReplicaStore
from tests.conformance.log_builder import CLUSTER, LogBuilder
from tests.conformance.store_harness import append
from tests.conformance.test_segment_store import SMALL
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.log_database import SimLogDatabase
from tests.simulation.log_disk import SimLogDisk
from tests.simulation.ports import memory_database

ENGINES = [MEMORY_ENGINE, ROCKSDB_ENGINE, SHARED_ENGINE]
STEP_BYTES = 500


def store_with(log: LogBuilder, control: ControlStore) -> ReplicaStore:
    """A node's, with this log, sealed."""
    store = make_store(
        SimFileSystem(SimDisk(), None),
        SimIndex(SimIndexDisk(), None),
        control,
        CLUSTER,
        SMALL,
        log_database=SimLogDatabase(SimLogDisk()),
    )
    store.start_up()
    assert store.creation.create([log.identity], {1: (b"", 0)}) == [None]
    for _ in range(10):
        append(store, log, 3)
    store.seal(1, log.tail.end_offset, log.tail.digest)
    return store


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_verification_meets_the_hand_over(engine: str, steps: int) -> None:
    log = LogBuilder(1, engine=engine)
    control = ControlStore(memory_database())
    store = store_with(log, control)
    walk = store.reader.verification(1)
    for _ in range(steps):
        assert walk.step(STEP_BYTES) and not walk.digest
    while store.hand_over.step():
        pass
    while not walk.digest:
        walk.step(STEP_BYTES)
    assert walk.digest == store.reader.full_digest(1)
    row = control.row(1)
    assert row is not None and row.engine == SEGMENT_ENGINE
