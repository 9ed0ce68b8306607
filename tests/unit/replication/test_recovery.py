"""Rules R31 and R32: when the end of a segment is known, and where it is."""

from dataclasses import replace
from itertools import combinations

import pytest

from icecore_replication.recovery import (
    Decision,
    EndDecision,
    FenceReply,
    Undecidable,
    decide_end,
    decide_unclean,
    may_decide,
)
from tests.support.replication_setup import INCARNATION, segment, settings


def reply(end: int = 100, incarnation: int = 50, intact: bool = True, hw: int = 0) -> FenceReply:
    return FenceReply(intact, end, end * 7, b"d%d" % end, incarnation, hw)


OLD_LEADER = reply(incarnation=INCARNATION)
UNKNOWN = reply(intact=False)


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ({}, None),
        ({1: OLD_LEADER}, Decision("S1", (1,))),
        ({1: OLD_LEADER, 3: reply()}, Decision("S1", (1, 3))),
        ({1: reply(incarnation=INCARNATION + 1)}, None),  # restarted: only a replica
        ({1: replace(OLD_LEADER, intact=False)}, None),
        ({2: reply()}, None),
        ({2: reply(), 3: reply()}, Decision("S3", (2, 3))),
        ({2: reply(), 3: UNKNOWN}, None),  # missing is not empty
        ({2: reply(), 9: reply()}, None),  # node 9 is no replica
    ],
)
def test_rf3(replies: dict[int, FenceReply], expected: Decision | None) -> None:
    assert may_decide(replies, segment()) == expected


@pytest.mark.parametrize(
    ("isr", "repliers", "decided"),
    [((1,), (2, 3), False), ((1, 2), (2, 3), True), ((1, 2, 3), (3,), False)],
)
def test_min_insync_replicas_below_quorum_needs_a_member_of_the_frozen_set(
    isr: tuple[int, ...], repliers: tuple[int, ...], decided: bool
) -> None:
    record = segment(settings=settings(min_insync_replicas=1), isr=isr)
    assert (may_decide({n: reply() for n in repliers}, record) is not None) == decided


@pytest.mark.parametrize(
    ("replicas", "isr", "repliers", "decided"),
    [
        ((1, 2, 3, 4, 5), (1, 2, 3), (4, 5), False),
        ((1, 2, 3, 4, 5), (1, 2, 3), (3, 4, 5), True),
        ((1, 2, 3), (1, 2, 3), (2,), True),  # RF 5 on 3 nodes: an ack needed all three
        ((1, 2, 3), (1, 2), (3,), True),  # quorum acks meet every single replica here
        ((1, 2), (1, 2), (2,), True),  # fewer than a quorum: only `all` was ever acked
    ],
)
def test_rf5_uses_the_pinned_quorum(
    replicas: tuple[int, ...], isr: tuple[int, ...], repliers: tuple[int, ...], decided: bool
) -> None:
    record = segment(
        settings=settings(replication_factor=5, min_insync_replicas=3), replicas=replicas, isr=isr
    )
    assert (may_decide({n: reply() for n in repliers}, record) is not None) == decided


@pytest.mark.parametrize(
    ("rf", "n", "min_insync_replicas"),
    [(rf, n, m) for rf in (1, 2, 3, 5) for n in range(1, rf + 1) for m in range(1, n + 1)],
)
def test_every_decision_meets_every_possible_ack(rf: int, n: int, min_insync_replicas: int) -> None:
    """Exhaustive: whoever may decide by S3 has at least one holder of each acked record."""
    replicas = tuple(range(1, n + 1))
    quorum = settings(replication_factor=rf).quorum
    groups = [set(c) for size in range(1, n + 1) for c in combinations(replicas, size)]
    for isr in groups:
        if 1 not in isr:
            continue
        record = segment(
            settings=settings(replication_factor=rf, min_insync_replicas=min_insync_replicas),
            replicas=replicas,
            isr=tuple(sorted(isr)),
        )
        # A record acked by `all` earlier is on every member of the set at that time, which held
        # min_insync_replicas members and all members of today's set that were in it: at least those
        # holders.
        all_holders = [g for g in groups if len(g) >= min_insync_replicas and g >= isr and 1 in g]
        quorum_holders = [g for g in groups if len(g) >= quorum and 1 in g]
        for deciders in groups:
            # not the old leader's incarnation, so S1 is out
            if may_decide({node_id: reply() for node_id in deciders}, record) is None:
                continue
            for holders in all_holders + quorum_holders:
                assert deciders & holders, (isr, deciders, holders)


def test_end_is_the_longest_intact_log() -> None:
    replies = {
        1: reply(120),
        2: reply(150),
        3: reply(150),
        4: replace(UNKNOWN, durable_end_offset=999),
    }
    decision = decide_end(replies, tripwire_high_watermark=150)
    assert decision == EndDecision(150, 2, 150 * 7)


@pytest.mark.parametrize(
    ("replies", "tripwire", "why"),
    [
        ({1: UNKNOWN}, 0, "no intact replica"),
        ({1: reply(120)}, 121, "below a high watermark"),
        ({1: reply(120), 2: reply(110, hw=121)}, 0, "below a high watermark"),
        ({1: reply(120), 2: replace(reply(120), last_header_crc32c=1)}, 0, "[1, 2] differ"),
        ({1: reply(120), 2: replace(reply(120), digest=b"other")}, 0, "[1, 2] differ"),
    ],
    ids=["nobody", "coordinator saw more", "a replica saw more", "chains differ", "digests differ"],
)
def test_contradictions_stop_the_decision(
    replies: dict[int, FenceReply], tripwire: int, why: str
) -> None:
    undecidable = decide_end(replies, tripwire)
    assert isinstance(undecidable, Undecidable)
    assert why in undecidable.why


def test_unclean_takes_the_longest_log_whatever_was_seen() -> None:
    replies = {1: UNKNOWN, 2: reply(110, hw=121), 3: replace(reply(110), digest=b"other")}
    decision = decide_unclean(replies)
    assert decision is not None
    assert (decision.end_offset, decision.donor) == (110, 2)
    assert decide_unclean({1: UNKNOWN}) is None


def salvaged(end: int) -> FenceReply:
    return replace(reply(end, intact=False), salvageable=True)


def test_only_an_admins_choice_counts_what_is_salvageable() -> None:
    replies = {1: salvaged(120), 2: reply(110), 3: salvaged(130)}
    assert may_decide(replies, segment()) is None
    assert decide_end(replies) == EndDecision(110, 2, 110 * 7)
    decision = decide_unclean(replies)
    assert decision is not None
    assert (decision.end_offset, decision.donor) == (130, 3)


def test_of_equally_long_logs_an_admin_gets_an_intact_one() -> None:
    decision = decide_unclean({1: salvaged(110), 2: reply(110)})
    assert decision is not None and decision.donor == 2
