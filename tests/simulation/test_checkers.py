"""Tests of the judge: a good history passes, and one bad history per category is caught."""

from collections.abc import Callable
from math import inf

import pytest

from icecore.codec.selection import Selection
from icecore.model import Acks
from tests.simulation.checkers import acks_checked, check, lost_by_leader_acks
from tests.simulation.history import (
    Answer,
    History,
    Outcome,
    Partition,
    Produce,
    Promise,
    Read,
    SegmentSeen,
    WatermarkSeen,
)

P: Partition = ("events", 0)


def produced(number: int, offset: int, outcome: Outcome = Outcome.OK) -> Produce:
    began_s = float(number)
    value = b"v%d" % number
    return Produce("a", number, P, value, Acks.ALL, began_s, began_s + 0.5, outcome, offset)


def good_history() -> History:
    return History(
        produces=[produced(0, 0), produced(1, 1), produced(2, 2), produced(3, -1, Outcome.UNKNOWN)],
        reads=[Read("c", P, 0, b"v0", 1.0), Read("c", P, 1, b"v1", 2.0)],
        watermarks=[WatermarkSeen("node-1#1", P, 1, 1.0), WatermarkSeen("node-1#1", P, 3, 4.0)],
        segments=[
            SegmentSeen(1, P, 0, 2, (("node-1", b"d"), ("node-2", b"d"))),
            SegmentSeen(2, P, 2, -1),
        ],
        final={P: [(0, b"v0"), (1, b"v1"), (2, b"v2")]},
        log_start={P: 0},
    )


def test_good_history_passes() -> None:
    history = good_history()
    assert check(history) == []
    assert acks_checked(history) == 3


def replace_final(*records: tuple[int, bytes]) -> Callable[[History], None]:
    def change(history: History) -> None:
        history.final[P] = list(records)

    return change


def lose_one(history: History) -> None:
    history.final[P].pop()


def fail_one(history: History) -> None:
    history.produces[2].outcome = Outcome.FAIL


def swap_sequence(history: History) -> None:
    first, second = history.produces[:2]
    first.sequence, second.sequence = second.sequence, first.sequence


def late_ack(history: History) -> None:
    history.produces[1].began_s = 10.0
    history.produces[1].ended_s = 11.0


def read_back(history: History) -> None:
    history.reads.append(Read("c", P, 0, b"v0", 3.0))


def read_ahead(history: History) -> None:
    history.reads[1] = Read("c", P, 2, b"v2", 3.0)


def read_other(history: History) -> None:
    history.reads.append(Read("d", P, 1, b"v2", 3.0))


def watermark_ahead(history: History) -> None:
    history.watermarks.append(WatermarkSeen("node-2#1", P, 4, 5.0))


def watermark_back(history: History) -> None:
    history.watermarks.append(WatermarkSeen("node-1#1", P, 2, 5.0))


def differ(history: History) -> None:
    history.segments[0] = SegmentSeen(1, P, 0, 2, (("node-1", b"d"), ("node-2", b"e")))


def overlap(history: History) -> None:
    history.segments[1] = SegmentSeen(2, P, 1, -1)


@pytest.mark.parametrize(
    ("category", "spoil"),
    [
        ("lost", lose_one),
        ("lost", replace_final((0, b"v0"), (1, b"v2"), (2, b"v1"))),
        ("phantom", replace_final((0, b"v0"), (1, b"v1"), (2, b"v2"), (3, b"nobody"))),
        ("aborted", fail_one),
        ("duplicate", replace_final((0, b"v0"), (1, b"v1"), (2, b"v2"), (3, b"v2"))),
        ("duplicate", replace_final((0, b"v0"), (1, b"v1"), (2, b"v2"), (2, b"v2"))),
        ("gap", replace_final((0, b"v0"), (2, b"v2"))),
        ("gap", replace_final((1, b"v1"), (2, b"v2"))),
        ("order", swap_sequence),
        ("realtime", late_ack),
        ("nonmonotonic", read_back),
        ("skip", read_ahead),
        ("changed", read_other),
        ("watermark_past_end", watermark_ahead),
        ("watermark_went_back", watermark_back),
        ("replicas_differ", differ),
        ("tiling", overlap),
    ],
)
def test_bad_history_is_caught(category: str, spoil: Callable[[History], None]) -> None:
    history = good_history()
    spoil(history)
    assert category in {violation.category for violation in check(history)}


def test_losses_of_leader_acks_are_counted_not_judged() -> None:
    history = good_history()
    history.produces.append(Produce("a", 4, P, b"v4", Acks.LEADER, 5.0, 5.5, Outcome.OK, offset=3))
    assert check(history) == []
    assert lost_by_leader_acks(history) == 1


def test_retained_records_need_not_be_there() -> None:
    history = good_history()
    history.final[P].pop(0)
    history.log_start[P] = 1
    assert check(history) == []


# Key 1 have numbers 1 and 6; the tags of 1 are "tag 1", of 6 "even" and "tag 0".
RECORDS = [(number, b"a %d x" % number) for number in range(8)]
KEY_1 = Selection(keys=frozenset([b"key 1"]))


def answered(
    offsets: list[int],
    selection: Selection = KEY_1,
    searched: tuple[int, int] = (0, 8),
    *,
    is_complete: bool = True,
) -> set[str]:
    """Categories of violations when a query is answered with the records at these offsets."""
    records = tuple(RECORDS[offset] for offset in offsets)
    answer = Answer("node-1", P, selection, searched, is_complete, 8, records, 1.0)
    produces = [
        Produce("a", n, P, value, Acks.ALL, n, n + 0.5, Outcome.OK, n) for n, value in RECORDS
    ]
    history = History(produces=produces, answers=[answer], final={P: RECORDS}, log_start={P: 0})
    return {violation.category for violation in check(history)}


def test_answers_of_queries_are_judged() -> None:
    assert answered([1, 6]) == answered([6, 1]) == set()
    assert answered([6]) == {"query_missed"}
    assert answered([6], is_complete=False) == set()
    assert answered([6], searched=(2, 8)) == set()
    assert answered([1, 6], searched=(0, 6)) == {"query_wrong"}
    assert answered([1, 2, 6]) == {"query_wrong"}
    assert answered([1, 6, 1]) == {"query_order"}
    assert answered([6], Selection(keys=KEY_1.keys, tags_any=frozenset(["even"]))) == set()
    assert answered([1, 6], Selection(tags_any=frozenset(["even"]))) >= {"query_wrong"}
    assert answered([], Selection(tags_all=frozenset(["even", "tag 9"]))) == set()
    assert "query_missed" in answered([], Selection(tags_none=frozenset(["even"])))


def test_an_answer_with_a_record_that_never_was() -> None:
    answer = Answer("node-1", P, KEY_1, (0, 3), True, 3, ((1, b"a 6 x"),), 1.0)
    assert {each.category for each in check(History(answers=[answer], final={P: RECORDS}))} >= {
        "query_wrong"
    }


def looked_up(
    offsets: list[int],
    promise: Promise,
    *,
    selection: Selection = KEY_1,
    through: int = 3,
    is_complete: bool = True,
    given_up_s: float = -1.0,
) -> set[str]:
    """Categories of violations when a look-up that began at 5.2 s is answered with the records at
    these offsets. Number n was acknowledged at n + 0.5 s; 1 and 6 have key 1."""
    records = tuple(RECORDS[offset] for offset in offsets)
    end = max([through, *(offset + 1 for offset in offsets)])
    answer = Answer("x", P, selection, (0, end), is_complete, through, records, 5.2, promise)
    produces = [
        Produce("a", n, P, value, Acks.ALL, n, n + 0.5, Outcome.OK, n) for n, value in RECORDS
    ]
    history = History(produces=produces, answers=[answer], final={P: RECORDS}, log_start={P: 0})
    history.given_up[P] = [(6, given_up_s)]
    return {violation.category for violation in check(history)}


def test_a_look_up_has_what_was_acknowledged_before_its_plan() -> None:
    assert looked_up([1], Promise(inf, 6.4, 0)) == set()
    assert looked_up([1], Promise(inf, 6.6, 0)) == {"query_behind"}
    assert looked_up([1, 6], Promise(inf, 6.6, 0)) == set()
    assert looked_up([1], Promise(6, 6.6, 0)) == set(), "it did not ask for it"
    assert looked_up([1], Promise(inf, 6.6, 0), is_complete=False) == set()
    assert looked_up([1], Promise(inf, 6.6, 0), through=7) == {"query_missed"}
    assert (
        looked_up([], Promise(inf, 6.6, 0), selection=Selection(tags_all=frozenset("x"))) == set()
    )


def test_a_look_up_has_what_the_leader_of_its_plan_showed() -> None:
    assert looked_up([1], Promise(inf, 0.0, 6)) == set()
    assert looked_up([1], Promise(inf, 0.0, 7)) == {"query_behind"}
    assert looked_up([1, 6], Promise(inf, 0.0, 7)) == set()
    assert looked_up([1], Promise(inf, 0.0, 7), given_up_s=5.3) == set()
    assert looked_up([1], Promise(inf, 0.0, 7), given_up_s=5.1) == {"query_behind"}


@pytest.mark.parametrize(
    ("end", "ended_s", "is_excused"), [(2, 5.0, True), (3, 5.0, False), (2, 1.5, False)]
)
def test_what_was_given_up_is_excused_from_its_end_until_then(
    end: int, ended_s: float, is_excused: bool
) -> None:
    """Offset 2 went with a segment that had lost all its copies, and was left out (R82, R96)."""
    history = good_history()
    history.produces.append(produced(9, 12))
    history.reads.append(Read("c", P, 2, b"v2", 3.0))
    history.final[P] = [(0, b"v0"), (1, b"v1"), (12, b"v9")]
    history.segments.append(SegmentSeen(4, P, 12, -1))
    history.segments[1:2] = [SegmentSeen(3, P, 2, 12)]
    history.given_up[P] = [(end, ended_s)]
    history.left_out[P] = [(2, 12)]
    assert (check(history) == []) is is_excused


def test_an_offset_is_never_given_out_again() -> None:
    history = good_history()
    history.produces.append(produced(9, 2))
    history.final[P] = [(0, b"v0"), (1, b"v1"), (2, b"v9")]
    history.given_up[P] = [(2, 5.0)]
    assert {each.category for each in check(history)} == {"reused"}
