"""The rules of a log's life hold in the table, whatever medium the engine has."""

import pytest

from icecore.errors import IcecoreError, InvalidRequestError, NotReplicaError, OutOfSpaceError
from icecore_node.storage.batches.log_table import LogTable
from icecore_node.storage.engine import NotAsSealed
from icecore_node.storage.memory_engine.memory_log import MemoryLog
from tests.conformance.log_builder import LogBuilder

LOG = LogBuilder(1)


def table() -> tuple[LogTable[MemoryLog], MemoryLog]:
    log = MemoryLog(LOG.identity, 0)
    return LogTable({LOG.identity.segment_id: log}), log


def test_a_log_that_is_not_there_is_no_replica() -> None:
    logs, _ = table()
    for ask in (logs.find, logs.appendable):
        with pytest.raises(NotReplicaError, match="no replica of segment 9"):
            ask(9)  # type: ignore[arg-type]


def test_a_failed_append_is_told_until_the_log_is_cut() -> None:
    logs, log = table()
    segment_id = log.identity.segment_id
    assert logs.appendable(segment_id) is log
    log.failed = OutOfSpaceError("the disk is full")
    with pytest.raises(OutOfSpaceError):
        logs.appendable(segment_id)
    assert logs.find(segment_id) is log


def test_a_log_is_sealed_once_at_its_own_end() -> None:
    logs, log = table()
    segment_id, (tail, _) = log.identity.segment_id, log.end
    steps: list[str] = []

    def seal(end_offset: int, digest: bytes) -> bool:
        return logs.seal(
            segment_id,
            end_offset,
            digest,
            lambda _: steps.append("remember"),
            lambda _: steps.append("finish"),
        )

    for wrong in ((tail.end_offset + 1, tail.digest), (tail.end_offset, b"other")):
        with pytest.raises(NotAsSealed, match="to be sealed at"):
            seal(*wrong)
    assert not steps and not log.is_sealed
    assert seal(tail.end_offset, tail.digest)
    assert not seal(tail.end_offset, tail.digest)  # said twice
    assert steps == ["finish", "remember"]
    with pytest.raises(InvalidRequestError, match="is sealed"):
        logs.appendable(segment_id)


def test_a_seal_that_is_not_remembered_is_none() -> None:
    logs, log = table()

    def fails(_: object) -> None:
        raise IcecoreError("the control store is full")

    with pytest.raises(IcecoreError):
        logs.seal(log.identity.segment_id, log.end[0].end_offset, log.end[0].digest, fails)
    assert not log.is_sealed
