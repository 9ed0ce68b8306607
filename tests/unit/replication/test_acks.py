"""Rules R2, R3 and R22: when a request is answered, and with what."""

from icecore.model import Acks
from icecore_replication.acks import PendingAcks, Waiter
from icecore_replication.effects import CompleteProduce, FailProduce, LeaderEffect

BASE = 100


def complete(
    acks: PendingAcks, isr_end: int, quorum_end: int, own_end: int, *, enough: bool = True
) -> list[tuple[int, str]]:
    """Request ids with "" or the reason of the error, in the order of the answers."""
    effects: list[LeaderEffect] = []
    acks.complete(isr_end, quorum_end, enough, {1: own_end, 2: quorum_end}, effects)
    return told(effects)


def told(effects: list[LeaderEffect]) -> list[tuple[int, str]]:
    return [
        (each.request_id, each.error.reason if isinstance(each, FailProduce) else "")
        for each in effects
        if isinstance(each, FailProduce | CompleteProduce)
    ]


def waiting(*levels: Acks) -> PendingAcks:
    """One request each, from offset 100 on, ten records each."""
    acks = PendingAcks(BASE, 1)
    for number, level in enumerate(levels):
        base = BASE + 10 * number
        acks.add(level, Waiter(number, base, base + 10))
    return acks


def test_each_level_waits_for_its_own_end() -> None:
    acks = waiting(Acks.LEADER, Acks.QUORUM, Acks.ALL)
    assert complete(acks, 100, 100, 110) == [(0, "")]
    assert complete(acks, 100, 120, 130) == [(1, "")]
    assert acks.acked_end == 120
    assert complete(acks, 130, 130, 130) == [(2, "")]
    assert (acks.acked_end, len(acks)) == (130, 0)


def test_all_with_too_few_in_sync_is_in_doubt() -> None:
    acks = waiting(Acks.ALL, Acks.QUORUM)
    answers = complete(acks, 120, 120, 120, enough=False)
    assert sorted(answers) == [(0, "NOT_ENOUGH_REPLICAS_AFTER_APPEND"), (1, "")]


def test_without_a_lease_the_end_of_leader_stands_still() -> None:
    acks = waiting(Acks.LEADER, Acks.LEADER)
    assert complete(acks, 100, 100, 110) == [(0, "")]
    acks.change_lease(valid=False)
    assert complete(acks, 100, 100, 120) == []
    acks.attach(Acks.LEADER, Waiter(8, BASE, BASE + 10, duplicate=True))  # acked before
    assert complete(acks, 100, 100, 120) == [(8, "")]
    acks.change_lease(valid=True)
    assert complete(acks, 100, 100, 120) == [(1, "")]


def test_what_is_due_is_told_once() -> None:
    acks = waiting(Acks.ALL)
    assert acks.take_due()
    assert not acks.take_due()
    acks.attach(Acks.ALL, Waiter(8, BASE, BASE + 10, duplicate=True))
    assert acks.take_due()
    acks.change_lease(valid=True)
    assert acks.take_due()


def test_the_end_answers_everybody_once_in_order_of_the_log() -> None:
    acks = waiting(Acks.ALL, Acks.LEADER, Acks.QUORUM)
    acks.attach(Acks.ALL, Waiter(8, BASE, BASE + 10, duplicate=True))
    acks.abandon(1)
    effects: list[LeaderEffect] = []
    acks.fail_all("gone", effects)
    acks.complete_all({1: BASE}, effects)
    assert told(effects) == [(0, "LEADER_LOST"), (8, "LEADER_LOST"), (2, "LEADER_LOST")]
    assert len(acks) == 0
