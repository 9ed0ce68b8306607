"""Suite for every storage engine: the bytes of logs, and when a caller may record a new log.

``segment_store_suite.py`` and ``set_aside_suite.py`` test a whole store over every engine.
Subclasses supply the fixture ``bench``.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest

from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    NotReplicaError,
    OutOfSpaceError,
)
from icecore_node.storage.engine import (
    AppendRequest,
    CreatedLog,
    Engine,
    FoundLog,
    KnownLog,
    LogEnd,
    NewLog,
    NotAsSealed,
    SegmentIdentity,
)
from icecore_replication.digest import FullDigest
from tests.conformance.log_builder import LogBuilder, identity
from tests.support.index_oracle import append_random, check_all_ways, maintain_all

FAR = 1 << 40


class EngineBench(Protocol):
    """An engine over an empty disk, and what its caller remembers of it."""

    engine: Engine
    condemned: dict[int, str]

    def kill(self) -> None:
        """The process dies, nothing unsynced is lost; a new engine that has not started up yet."""
        ...

    def lose(self, segment_id: int) -> None:
        """The bytes of a log are gone from the disk."""
        ...


class Refused(Exception):
    """No IcecoreError: the process dies while something is to be remembered."""


def refuse(error: BaseException) -> Callable[..., None]:
    """A ``remember`` that fails."""

    def remember(*_: object) -> None:
        raise error

    return remember


def accept(*_: object) -> None:
    """A ``remember`` that does."""


def opened(bench: EngineBench, segment_id: int, base_offset: int = 0) -> LogBuilder:
    """A confirmed, empty log."""
    log = LogBuilder(segment_id, base_offset)
    assert bench.engine.create([NewLog(log.identity)], accept) == {}
    return log


def append(bench: EngineBench, log: LogBuilder, batches: int = 1, **shape: int) -> AppendRequest:
    """Append new batches as one group."""
    request = log.request(batches, **shape)
    bench.engine.append_group([request])
    return request


def judged(
    bench: EngineBench, *logs: KnownLog, untrusted: Sequence[SegmentIdentity] = ()
) -> list[FoundLog]:
    """Kill the process, and return what a new one finds."""
    bench.kill()
    bench.condemned.clear()
    return bench.engine.start_up(logs, untrusted)


class EngineConformance:
    """Inherit and define ``bench``."""

    @pytest.fixture
    def bench(self) -> EngineBench:
        raise NotImplementedError

    # --- bytes before records before use ------------------------------------------------------

    def test_a_log_is_used_once_it_is_remembered(self, bench: EngineBench) -> None:
        engine, seen = bench.engine, []

        def remember(created: Sequence[CreatedLog]) -> None:
            seen.extend(created)
            assert not engine.reader.holds(1)
            with pytest.raises(NotReplicaError):
                engine.reader.tail(1)

        log = LogBuilder(1, 7)
        assert engine.create([NewLog(log.identity), NewLog(identity(2))], remember) == {}
        assert seen == [CreatedLog(1, False), CreatedLog(2, False)]
        assert engine.reader.holds(1) and engine.reader.tail(1) == log.tail
        found = judged(bench, KnownLog(log.identity), KnownLog(identity(2)))
        assert [one.damage for one in found] == ["", ""] and found[0].tail == log.tail
        assert bench.condemned == {}

    def test_what_is_not_remembered_goes_again(self, bench: EngineBench) -> None:
        log = LogBuilder(1)
        with pytest.raises(OutOfSpaceError):
            bench.engine.create([NewLog(log.identity)], refuse(OutOfSpaceError("full")))
        assert not bench.engine.reader.holds(1)
        seen: list[CreatedLog] = []
        bench.engine.create([NewLog(log.identity)], seen.extend)
        assert seen == [CreatedLog(1, False)]  # nothing was in its place

    def test_what_a_crash_left_is_told_when_it_may_have_counted(self, bench: EngineBench) -> None:
        confirmed, prepared = LogBuilder(1), identity(2)
        for new in (NewLog(confirmed.identity), NewLog(prepared)):
            with pytest.raises(Refused):
                bench.engine.create([new], refuse(Refused()))
        judged(bench)
        seen: list[CreatedLog] = []
        bench.engine.create([NewLog(confirmed.identity), NewLog(prepared)], seen.extend)
        assert seen == [CreatedLog(1, True), CreatedLog(2, False)]

    def test_a_base_counts_once_it_is_remembered(self, bench: EngineBench) -> None:
        engine = bench.engine
        engine.create([NewLog(identity(1))], accept)
        log = LogBuilder(1, 9, start_timestamp_ms=5)
        with pytest.raises(OutOfSpaceError):
            engine.confirm(log.identity, 5, refuse(OutOfSpaceError("full")))
        refused = log.request()
        engine.append_group([refused])
        assert isinstance(refused.error, InvalidRequestError)
        [found] = judged(bench, KnownLog(identity(1)))
        assert (found.damage, found.tail.end_offset) == ("", -1)
        log = LogBuilder(1, 11, start_timestamp_ms=5)
        assert bench.engine.confirm(log.identity, 5, accept) == log.tail
        append(bench, log)
        [found] = judged(bench, KnownLog(log.identity, 5))
        assert found.tail == log.tail and found.headers == log.headers()

    def test_a_seal_holds_once_it_is_remembered(self, bench: EngineBench) -> None:
        engine, log = bench.engine, opened(bench, 1)
        append(bench, log, 3)
        end, digest = log.tail.end_offset, log.tail.digest
        with pytest.raises(OutOfSpaceError):
            engine.seal(1, end, digest, refuse(OutOfSpaceError("full")))
        assert append(bench, log).error is None  # it was not sealed
        with pytest.raises(NotAsSealed):
            engine.seal(1, end, digest, accept)
        ends: list[LogEnd] = []
        for _ in range(2):
            engine.seal(1, log.tail.end_offset, log.tail.digest, ends.append)
        assert [one.tail for one in ends] == [log.tail]  # once
        assert isinstance(append(bench, log).error, InvalidRequestError)
        sealed = KnownLog(log.identity, 0, ends[0])
        [found] = judged(bench, sealed)
        assert found.damage == "" and found.tail == ends[0].tail
        with pytest.raises(InvalidRequestError):
            bench.engine.truncate(1, 2)

    # --- append, read, cut --------------------------------------------------------------------

    def test_logs_come_back_as_they_were(self, bench: EngineBench) -> None:
        logs = [opened(bench, number, 10 * number) for number in (1, 2, 3)]
        for size in (10, 700):
            requests = [log.request(2, 3, size) for log in logs]
            bench.engine.append_group(requests)
            assert [request.error for request in requests] == [None] * 3
        found = judged(bench, *(KnownLog(log.identity) for log in logs))
        for log, one in zip(logs, found, strict=True):
            assert (one.damage, one.tail, one.headers) == ("", log.tail, log.headers())
            segment_id, base = log.identity.segment_id, log.identity.base_offset
            data, end_offset = bench.engine.reader.read(segment_id, base, 1 << 20, FAR)
            assert (data, end_offset) == (b"".join(log.batches), log.tail.end_offset)

    @pytest.mark.parametrize(
        ("call", "error"),
        [
            (lambda engine: engine.reader.read(1, 9, 100, FAR), InvalidRequestError),
            (lambda engine: engine.truncate(1, 11), InvalidRequestError),
            (lambda engine: engine.reader.verification(1), InvalidRequestError),
            (lambda engine: engine.reader.read(2, 0, 100, FAR), NotReplicaError),
            (lambda engine: engine.reader.headers(2, 5), NotReplicaError),
            (lambda engine: engine.truncate(2, 0), NotReplicaError),
            (lambda engine: engine.seal(2, 0, b"", accept), NotReplicaError),
            (lambda engine: engine.confirm(identity(2, 0), 0, accept), NotReplicaError),
        ],
    )
    def test_what_cannot_be(
        self, bench: EngineBench, call: Callable[[Engine], Any], error: type[IcecoreError]
    ) -> None:
        append(bench, opened(bench, 1, 10), 2, records=2)
        with pytest.raises(error):
            call(bench.engine)

    def test_a_cut_is_durable_and_forgets_no_watermark(self, bench: EngineBench) -> None:
        log = opened(bench, 1)
        log.make(2)
        log.make(2, high_watermark=2)
        bench.engine.append_group([log.request_of(0, 2)])
        tail = bench.engine.truncate(1, 2)
        assert (tail.end_offset, tail.max_known_high_watermark) == (2, 2)
        [found] = judged(bench, KnownLog(log.identity))
        assert (found.tail.end_offset, found.headers) == (2, log.headers()[:1])

    # --- lost, set aside, dropped -------------------------------------------------------------

    def test_a_lost_log_is_condemned_and_costs_no_other(self, bench: EngineBench) -> None:
        logs = [opened(bench, number) for number in (1, 2)]
        for log in logs:
            append(bench, log)
        bench.lose(1)
        found = judged(bench, *(KnownLog(log.identity) for log in logs))
        assert [bool(one.damage) for one in found] == [True, False]
        assert list(bench.condemned) == [1]
        assert not bench.engine.reader.holds(1) and bench.engine.reader.holds(2)

    def test_what_is_not_trusted_is_left_alone(self, bench: EngineBench) -> None:
        log = opened(bench, 1)
        append(bench, log, 2)
        assert judged(bench, untrusted=[log.identity]) == []
        assert not bench.engine.reader.holds(1) and bench.condemned == {}
        assert bench.engine.salvage.tail(KnownLog(log.identity)) == log.tail

    def test_what_was_set_aside_can_be_restored(self, bench: EngineBench) -> None:
        log = opened(bench, 1)
        append(bench, log, 2)
        bench.engine.set_aside(log.identity)
        assert not bench.engine.reader.holds(1)
        known, told = KnownLog(log.identity), []
        found = bench.engine.salvage.restore(
            known, lambda: told.append(bench.engine.reader.holds(1))
        )
        assert told == [False] and bench.engine.reader.holds(1)
        assert (found.tail, found.headers) == (log.tail, log.headers())

    def test_what_is_dropped_is_gone_whatever_was_aside(self, bench: EngineBench) -> None:
        log, kept = opened(bench, 1), opened(bench, 2)
        append(bench, log)
        bench.engine.set_aside(log.identity)
        again = opened(bench, 1)
        append(bench, again, 2)
        for _ in range(2):
            bench.engine.drop([log.identity])
            assert not bench.engine.reader.holds(1) and bench.engine.reader.holds(2)
        assert bench.engine.salvage.tail(KnownLog(log.identity)) is None
        with pytest.raises(NotReplicaError):
            bench.engine.salvage.restore(KnownLog(log.identity), accept)
        bench.kill()
        bench.engine.drop([log.identity])  # may be repeated before a start
        [found] = bench.engine.start_up([KnownLog(kept.identity)], [])
        assert found.damage == ""

    # --- finding records ----------------------------------------------------------------------

    def test_no_record_is_missed_in_any_state(self, bench: EngineBench) -> None:
        """Whatever an engine derives, and however far that is: what it does not name is a gap."""
        rng, logs = random.Random(1), [opened(bench, number, 10 * number) for number in (1, 2)]
        for _ in range(3):
            for log in logs:
                request = append_random(log, rng, 20)
                bench.engine.append_group([request])
                assert request.error is None
                check_all_ways(bench.engine.index, log, rng)
                maintain_all(bench.engine.index)
                check_all_ways(bench.engine.index, log, rng)
            judged(bench, *(KnownLog(log.identity) for log in logs))
            for log in logs:
                check_all_ways(bench.engine.index, log, rng)
        log, ends = logs[0], list[LogEnd]()
        bench.engine.seal(1, log.tail.end_offset, log.tail.digest, ends.append)
        check_all_ways(bench.engine.index, log, rng)
        maintain_all(bench.engine.index)
        check_all_ways(bench.engine.index, log, rng)
        judged(bench, KnownLog(log.identity, sealed=ends[0]), KnownLog(logs[1].identity))
        check_all_ways(bench.engine.index, log, rng)

    def test_nothing_is_found_in_a_log_that_is_not_here(self, bench: EngineBench) -> None:
        log = opened(bench, 1)
        append(bench, log)
        for forget in (bench.engine.set_aside, lambda each: bench.engine.drop([each])):
            forget(log.identity)
            for ask in (
                lambda: bench.engine.index.candidates(1, [5], (0, 1), limit=1),
                lambda: bench.engine.index.summary(1),
            ):
                with pytest.raises(NotReplicaError):
                    ask()

    # --- digests ------------------------------------------------------------------------------

    def test_engines_agree_on_digests(self, bench: EngineBench) -> None:
        """Else copies of one segment that different engines keep would never be equal."""
        log = opened(bench, 1)
        append(bench, log, 3, size=1000)
        bench.engine.seal(1, log.tail.end_offset, log.tail.digest, accept)
        walk = bench.engine.reader.verification(1)
        while not walk.digest:
            walk.step(500)
        assert walk.digest == bench.engine.reader.full_digest(1) == full_digest_of(log)

    def test_bytes_that_go_while_they_are_read_are_no_damage(self, bench: EngineBench) -> None:
        log = opened(bench, 1)
        append(bench, log, 3, size=1000)
        bench.engine.seal(1, log.tail.end_offset, log.tail.digest, accept)
        walk = bench.engine.reader.verification(1)
        walk.step(500)
        bench.engine.drop([log.identity])
        try:
            while not walk.digest:
                walk.step(500)
        except NotReplicaError:
            return
        assert walk.digest == full_digest_of(log)  # whoever still has them may go on

    def test_an_empty_log_has_a_digest(self, bench: EngineBench) -> None:
        log = opened(bench, 1)
        bench.engine.seal(1, 0, log.tail.digest, accept)
        walk = bench.engine.reader.verification(1)
        assert walk.step(500) == 0
        assert walk.digest == bench.engine.reader.full_digest(1)


def full_digest_of(log: LogBuilder) -> bytes:
    """As every replica of a sealed segment must have it."""
    tree = FullDigest()
    tree.update(b"".join(log.batches))
    return tree.digest()
