"""A core that breaks an invariant is noticed where it is stepped, and asks for nothing more."""

from typing import Any

import pytest

from icecore.model import Acks
from icecore_replication.checked import Checked
from icecore_replication.effects import Append, CompleteProduce, ReportProgress
from icecore_replication.follower import FollowerCore
from icecore_replication.inputs import (
    DataReceived,
    LocalDurable,
    ProduceReceived,
    StreamOpened,
    Tick,
)
from icecore_replication.invariants import InvariantError
from icecore_replication.isr import CommittedIsr
from icecore_replication.leader import LeaderCore
from tests.support.replication_setup import BASE, Led, segment


def leader_core() -> LeaderCore:
    return Led().core


def follower_core() -> FollowerCore:
    return FollowerCore(segment(), BASE, BASE, 0, last_header_crc32c=BASE)


def test_inputs_and_effects_pass_unchanged() -> None:
    checked = Checked(leader_core(), check_every_steps=1)
    assert checked.step((ProduceReceived(1, Acks.LEADER, 10, 1000),), 0.0) == [
        Append(1, BASE, BASE + 10, append_timestamp_ms=0)
    ]
    assert checked.step((LocalDurable(BASE + 10),), 0.0) == [CompleteProduce(1, BASE, 1)]
    assert checked.core.durable_end_offset == BASE + 10


def test_a_wrong_leader_is_stopped_and_tells_what_it_took_and_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own disk left out of the count, and a quorum of one: acks for what is in memory."""
    monkeypatch.setattr("icecore_replication.in_sync.quorum_end", lambda *_: BASE + 10)
    checked = Checked(leader_core(), check_every_steps=1)
    with pytest.raises(InvariantError) as caught:
        checked.step((ProduceReceived(1, Acks.QUORUM, 10, 1000), LocalDurable(BASE)), 0.0)
        checked.step((Tick(),), 0.0)
        checked.step((LocalDurable(BASE + 5),), 0.0)
    what, story = str(caught.value).split("\n", 1)
    assert what == "visible before it is durable here"
    assert story.index("took ProduceReceived(") < story.index("asked Append(")
    assert "asked CompleteProduce(" in story
    assert checked.step((LocalDurable(BASE + 10),), 0.0) == []  # nothing more is asked for


def test_a_wrong_follower_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = FollowerCore._receive

    def eager(self: FollowerCore, *given: Any) -> None:
        receive(self, *given)
        self.durable_end_offset = self.log_end_offset + 1

    monkeypatch.setattr(FollowerCore, "_receive", eager)
    checked = Checked(follower_core(), check_every_steps=1)
    received = DataReceived(
        delivery_id=1,
        epoch=5,
        base_offset=BASE,
        end_offset=BASE + 10,
        prev_header_crc32c=BASE,
        last_header_crc32c=BASE + 10,
        high_watermark=0,
    )
    assert checked.step((StreamOpened(),), 0.0) == [ReportProgress(BASE, attach=True)]
    with pytest.raises(InvariantError, match=r"log ends[\s\S]*took DataReceived"):
        checked.step((received,), 0.0)


def test_production_looks_at_each_nth_step() -> None:
    core = leader_core()
    checked = Checked(core, check_every_steps=3)
    core.high_watermark = BASE + 1
    for _ in range(2):
        checked.step((), 0.0)
    with pytest.raises(InvariantError, match="visible before"):
        checked.step((), 0.0)


def test_what_went_back_between_two_looks_is_seen_at_the_next() -> None:
    core = leader_core()
    checked = Checked(core, check_every_steps=3)
    checked.step((), 0.0)
    core._in_sync.state = CommittedIsr(core.isr, core.isr_state.version - 1)
    checked.step((), 0.0)
    with pytest.raises(InvariantError, match="version went back"):
        checked.step((), 0.0)


def test_a_core_that_is_wrong_from_the_start_is_not_run() -> None:
    with pytest.raises(InvariantError, match="log ends"):
        Checked(
            FollowerCore(segment(), BASE, BASE + 1, 0, last_header_crc32c=BASE),
            check_every_steps=16,
        )


def test_a_story_is_short_however_long_the_life() -> None:
    led = Led()
    for _ in range(200):
        led.produce(acks=Acks.LEADER)
    assert len(led.core.story().splitlines()) == 64
