"""The engine in memory: what its process takes with it, and how much it may hold."""

import gc

import pytest

from icecore.errors import OutOfSpaceError
from icecore_node.storage.engine import FoundLog, KnownLog, LogEnd, NewLog
from icecore_node.storage.memory_engine.memory_budget import (
    BATCH_BYTES,
    COPIES_SHARE,
    MemoryBudget,
)
from icecore_node.storage.memory_engine.memory_engine import LOST, LogMemory, MemoryEngine
from icecore_node.storage.memory_engine.memory_log import MemoryLog
from tests.conformance.engine_suite import FAR, accept, append, opened
from tests.conformance.log_builder import LogBuilder, identity


class MemoryProcess:
    """An ``EngineBench`` as it is in production: the memory goes with the process."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        """Appends fail from so many bytes on."""
        self.condemned: dict[int, str] = {}
        self._bytes_max = bytes_max // COPIES_SHARE
        self.kill()

    def kill(self) -> None:
        self.budget = MemoryBudget(self._bytes_max)
        self.engine = MemoryEngine(LogMemory(self.budget), self.condemned.update)

    def lose(self, segment_id: int) -> None:
        raise NotImplementedError

    def restarted(self, *logs: KnownLog) -> list[FoundLog]:
        self.kill()
        return self.engine.start_up(logs, [])


def test_a_log_that_may_have_had_batches_is_missing_after_the_process() -> None:
    """Never an empty one: what was acknowledged may have been in it."""
    bench = MemoryProcess()
    written, empty, sealed = opened(bench, 1), opened(bench, 2), opened(bench, 3)
    bench.engine.create([NewLog(identity(4))], accept)
    append(bench, written, 3)
    ends: list[LogEnd] = []
    bench.engine.seal(3, 0, sealed.tail.digest, ends.append)
    found = bench.restarted(
        KnownLog(written.identity),
        KnownLog(empty.identity),
        KnownLog(sealed.identity, 0, ends[0]),
        KnownLog(identity(4)),
    )
    assert [one.damage for one in found] == [LOST, LOST, LOST, ""]
    assert bench.condemned == {1: LOST, 2: LOST, 3: LOST}
    assert [bench.engine.reader.holds(number) for number in (1, 2, 3, 4)] == [
        *(False, False, False),
        True,
    ]
    known = KnownLog(written.identity)
    assert bench.engine.salvage.tail(known) is None
    log = LogBuilder(4, 9)
    assert bench.engine.confirm(log.identity, 0, accept) == log.tail  # nobody had given it a base
    append(bench, log)
    assert bench.engine.reader.read(4, 9, 1 << 20, FAR)[0] == log.batches[0]


def test_what_finds_no_room_is_refused_and_what_goes_makes_room() -> None:
    bench = MemoryProcess(20_600)
    log, other = opened(bench, 1), opened(bench, 2)
    while append(bench, log, 1, size=1000).error is None:
        pass
    end = bench.engine.reader.tail(1).end_offset
    assert end > 10 and bench.budget.used_bytes <= 20_600
    log.batches, log.tails = log.batches[:end], log.tails[: end + 1]
    assert isinstance(append(bench, log).error, OutOfSpaceError)  # until it is cut
    assert append(bench, other).error is None  # there is room for little ones
    assert bench.engine.reader.read(1, 0, 1 << 20, FAR) == (b"".join(log.batches[:end]), end)
    full = bench.budget.used_bytes

    assert bench.engine.truncate(1, 5).end_offset == 5
    assert bench.budget.used_bytes < full
    log.batches, log.tails = log.batches[:5], log.tails[:6]
    assert append(bench, log).error is None
    bench.engine.set_aside(log.identity)
    assert bench.budget.used_bytes > 5 * 1000  # it is still here
    bench.engine.drop([log.identity, other.identity])
    assert bench.budget.used_bytes == 0


def test_what_ends_a_segment_is_never_refused() -> None:
    """It is sealed then, and goes; without that a node that is full would stay so."""
    bench = MemoryProcess(2_000)
    log = opened(bench, 1)
    while append(bench, log, 1, size=500).error is None:
        pass
    end = bench.engine.reader.tail(1).end_offset
    bench.engine.truncate(1, end)
    request = log.request_of(end, end + 1)
    request.ends_segment = True
    bench.engine.append_group([request])
    assert request.error is None and bench.engine.reader.tail(1).end_offset == end + 1
    assert bench.budget.used_bytes > 2_000
    bench.engine.drop([log.identity])
    assert bench.budget.used_bytes == 0


def test_bytes_and_batches_are_counted() -> None:
    bench = MemoryProcess()
    log = opened(bench, 1)
    append(bench, log, 7)
    size = sum(map(len, log.batches))
    assert bench.budget.used_bytes == size + 7 * BATCH_BYTES
    bench.engine.set_aside(log.identity)
    found = bench.engine.salvage.restore(KnownLog(log.identity), accept)
    assert found.tail == log.tail
    assert bench.budget.used_bytes == 2 * (size + 7 * BATCH_BYTES)
    bench.engine.drop([log.identity])
    assert bench.budget.used_bytes == 0
    with pytest.raises(OutOfSpaceError, match="beyond 2 times memory_engine_bytes 524288"):
        bench.budget.take(1 << 20, 1)


def test_a_log_that_is_gone_waits_for_no_collection() -> None:
    """A node collects its oldest objects seldom: gigabytes of batches would stay until then."""
    bench = MemoryProcess()
    log = opened(bench, 1)
    append(bench, log, 3)
    gc.collect()
    gc.disable()
    try:
        assert any(isinstance(each, MemoryLog) for each in gc.get_objects())
        bench.engine.drop([log.identity])
        assert not any(isinstance(each, MemoryLog) for each in gc.get_objects())
    finally:
        gc.enable()


def test_the_loop_may_append() -> None:
    assert not MemoryProcess().engine.appends_block


def test_times_need_not_grow() -> None:
    bench = MemoryProcess()
    log = opened(bench, 1)
    times = [5, 5, 9, 3, 3, 12, 12, 11, 20, 1]
    for time_ms in times:
        log.make(1, time_ms=time_ms)
    bench.engine.append_group([log.request_of(0, len(times))])
    reader = bench.engine.reader
    for asked in range(min(times) - 1, max(times) + 2):
        first = next((number for number, time in enumerate(times) if time >= asked), None)
        expected = None if first is None else (first, times[first])
        assert reader.offset_for_time(1, asked, FAR) == expected
        assert reader.offset_for_time(1, asked, 5) == (
            expected if first is not None and first < 5 else None
        )
