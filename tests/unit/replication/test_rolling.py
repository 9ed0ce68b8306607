"""Rules R25-R29 for the roll alone: which state follows from which, and what is sent for it."""

from typing import Any

import pytest

from icecore.model import Acks, SegmentState
from icecore_replication.effects import (
    CollectSealDigests,
    PrepareSuccessor,
    ReportDivergence,
    SendSeal,
)
from icecore_replication.inputs import ProduceReceived, SealDigests
from icecore_replication.isr import CommittedIsr, IsrState, PendingShrink, ProposeIsr
from icecore_replication.log import LeaderLog
from icecore_replication.rolling import DropLaggards, Rolling
from icecore_replication.sealing import Collecting, Draining, Idle, Preparing, Sealing
from tests.support.replication_setup import BASE, segment, start

WAIT_MS = 1_000.0
SET = CommittedIsr((1, 2, 3), 4)
DIGESTS = (b"s" * 32, b"p" * 32)
END = 110


def full_log() -> LeaderLog:
    log = LeaderLog(start(segment()))
    log.append(ProduceReceived(1, Acks.ALL, END - BASE, 100), 0.0)
    return log


def prepared() -> Rolling:
    roll = Rolling(1, WAIT_MS)
    roll.want("asked")
    roll.want("asked again")
    idle = roll.state
    assert isinstance(idle, Idle)
    assert roll.start(idle, full_log(), segment(), SET, 0.0) == PrepareSuccessor("asked")
    roll.prepared(8, 0.0)
    return roll


def drain(roll: Rolling, isr: IsrState, stay: set[int], now_ms: float = 0.0) -> Any:
    assert isinstance(roll.state, Draining)
    return roll.drain(roll.state, isr, stay, log_end=END, min_insync_replicas=2, now_ms=now_ms)


def collecting() -> Rolling:
    roll = prepared()
    assert drain(roll, SET, {1, 2, 3}) == CollectSealDigests(END, (1, 2, 3))
    return roll


@pytest.mark.parametrize(
    ("idle", "is_empty", "in_sync", "now_ms", "starts"),
    [
        (Idle(), False, 2, 0.0, True),
        (Idle(), True, 2, 0.0, False),
        (Idle(), False, 1, 0.0, False),
        (Idle(not_before_ms=5.0), False, 2, 4.0, False),
        (Idle(not_before_ms=5.0), False, 2, 5.0, True),
    ],
)
def test_start(idle: Idle, is_empty: bool, in_sync: int, now_ms: float, starts: bool) -> None:
    roll, log = Rolling(1, WAIT_MS), LeaderLog(start(segment())) if is_empty else full_log()
    isr = CommittedIsr(tuple(range(1, in_sync + 1)), 4)
    assert roll.start(idle, log, segment(), isr, now_ms) is None  # nobody wants it
    roll.want("asked")
    assert (roll.start(idle, log, segment(), isr, now_ms) is not None) == starts
    assert isinstance(roll.state, Preparing if starts else Idle)


def test_nothing_is_asked_while_a_change_is_in_flight() -> None:
    roll = prepared()
    shrink = PendingShrink((1, 2, 3), 4, ProposeIsr((1, 2), 4, (11, 12)))
    assert drain(roll, shrink, {1, 2, 3}) is None
    assert not roll.take_given_up()
    assert drain(roll, shrink, {1, 2, 3}, WAIT_MS) is None
    assert roll.take_given_up()


def test_laggards_are_dropped_once() -> None:
    roll = prepared()
    assert drain(roll, SET, {1, 2}, 999.0) is None
    assert drain(roll, SET, {1, 2}, 1000.0) == DropLaggards({1, 2})
    assert drain(roll, SET, {1, 2}, 1999.0) is None
    assert drain(roll, SET, {1, 2}, 2000.0) is None
    assert isinstance(roll.state, Idle)
    assert roll.take_given_up()
    assert not roll.take_given_up()


@pytest.mark.parametrize("stay", [{1}, {2, 3}], ids=["too few", "not the leader"])
def test_who_cannot_drop_gives_up(stay: set[int]) -> None:
    roll = prepared()
    assert drain(roll, SET, stay, WAIT_MS) is None
    assert isinstance(roll.state, Idle)


def test_the_seal_lists_who_agrees() -> None:
    roll = collecting()
    assert roll.agree(SealDigests(END - 1, {1: DIGESTS}), SET, 2, 0.0) == []
    assert isinstance(roll.state, Collecting)
    sent = roll.agree(SealDigests(END, {1: DIGESTS, 3: DIGESTS}), SET, 2, 0.0)
    assert sent == [SendSeal(END, 4, *DIGESTS, (1, 3), 8)]
    assert roll.state == Sealing(END, DIGESTS[0])


@pytest.mark.parametrize(
    ("digests", "effects"),
    [
        ({1: DIGESTS, 2: DIGESTS, 3: (b"x", b"y")}, [ReportDivergence(END, (3,))]),
        ({1: DIGESTS}, []),
    ],
    ids=["somebody differs", "too few"],
)
def test_without_agreement_there_is_no_seal(
    digests: dict[int, tuple[bytes, bytes]], effects: list[Any]
) -> None:
    roll = collecting()
    assert roll.agree(SealDigests(END, digests), SET, 2, 0.0) == effects
    assert isinstance(roll.state, Idle)
    assert roll.take_given_up()


def test_a_seal_that_was_sent_is_final() -> None:
    roll = collecting()
    roll.agree(SealDigests(END, {1: DIGESTS, 2: DIGESTS}), SET, 2, 0.0)
    sealed = roll.state
    roll.want("asked")
    roll.prepared(9, 0.0)
    roll.not_prepared(0.0)
    assert roll.agree(SealDigests(END, {1: DIGESTS, 2: DIGESTS}), SET, 2, 0.0) == []
    assert roll.state is sealed
    record = segment(state=SegmentState.SEALED, end_offset=END, seal_digest=DIGESTS[0])
    assert roll.is_ours(record)
    for change in ({"end_offset": 1}, {"seal_digest": b"x"}, {"state": SegmentState.RECOVERING}):
        assert not roll.is_ours(record.changed(**change))
    assert not Rolling(1, WAIT_MS).is_ours(record)


def test_only_a_roll_that_prepares_hears_of_its_successor() -> None:
    roll = Rolling(1, WAIT_MS)
    roll.prepared(8, 0.0)
    roll.not_prepared(0.0)
    assert roll.state == Idle()
    assert not roll.take_given_up()
