"""A wish for room is met in steps, and only while deleting makes room (R105)."""

from dataclasses import replace

from icecore_coordinator.decisions import reclaim_steps
from icecore_coordinator.decisions.reclaim_steps import Wish, WishVerdict

HELD = 1_000
FIRST = Wish(stream=1, heartbeat=1, wanted=400, used=5_000, held=HELD, going=0)


def judge(wish: Wish, before: WishVerdict | None) -> WishVerdict | None:
    return reclaim_steps.judge(wish, before, slack_bytes=0)


def after(wish: Wish, **changes: int) -> Wish:
    return replace(wish, heartbeat=wish.heartbeat + 1, **changes)


def begun() -> WishVerdict:
    verdict = judge(FIRST, None)
    assert verdict is not None and verdict.room == 0
    return verdict


def test_one_heartbeat_frees_nothing() -> None:
    again = judge(FIRST, begun())
    assert again is not None and again.room == 0


def test_another_stream_begins_anew() -> None:
    other = judge(after(FIRST, stream=2), begun())
    assert other is not None and other.room == 0


def test_a_step_is_a_quarter_of_what_the_node_holds() -> None:
    verdict = judge(after(FIRST), begun())
    assert verdict is not None and verdict.room == HELD // 4
    smaller = judge(after(FIRST, wanted=30), begun())
    assert smaller is not None and smaller.room == 30
    larger = judge(after(FIRST, wanted=300), judge(replace(FIRST, wanted=20), None))
    assert larger is not None and larger.room == 20, "the wish that lasted"


def test_a_step_under_way_counts() -> None:
    verdict = judge(after(FIRST, held=750, going=250), begun())
    assert verdict is not None and verdict.room == 0 and not verdict.refusal


def test_orders_that_wait_for_a_disk_hold_up_no_step() -> None:
    """A further disk is away: what is to go there does not go, and is no step of ours."""
    waiting = replace(FIRST, going=700, wanted=1_100)
    verdict = judge(after(waiting), judge(waiting, None))
    assert verdict is not None and verdict.room == 250
    ordered = after(after(waiting), held=750, going=950)
    verdict = judge(ordered, verdict)
    assert verdict is not None and verdict.room == 0
    done = after(ordered, going=700, wanted=850)
    verdict = judge(done, verdict)
    assert verdict is not None and verdict.room == 150, "as much as is still lacking"


def test_more_than_the_disk_has_in_use_counts_for_nothing() -> None:
    verdict = judge(replace(FIRST, wanted=1 << 50), None)
    assert verdict is not None and verdict.refusal and verdict.room == 0
    again = judge(after(FIRST), verdict)
    assert again is not None and again.room == 0 and not again.refusal, "a wish has to last"
    third = judge(after(after(FIRST)), again)
    assert third is not None and third.room == HELD // 4


def test_one_mistaken_number_does_not_count_for_the_next() -> None:
    mistaken = judge(after(FIRST, wanted=1 << 50), begun())
    assert mistaken is not None and mistaken.refusal and mistaken.room == 0
    true = judge(after(after(FIRST)), mistaken)
    assert true is not None and true.room == 0 and not true.refusal


def test_it_ends_where_deleting_makes_no_room() -> None:
    stuck = judge(after(FIRST, held=750), begun())
    assert stuck is not None and stuck.refusal and stuck.room == 0
    still = judge(after(after(FIRST), held=750, wanted=399), stuck)
    assert still is not None and still.refusal == stuck.refusal
    mistaken = judge(after(after(after(FIRST)), held=750, wanted=1 << 50), still)
    assert mistaken is not None and mistaken.refusal == stuck.refusal, "nonsense is no way out"
    last = judge(after(after(after(after(FIRST))), held=750), mistaken)
    assert last is not None and last.refusal == stuck.refusal
    assert judge(after(FIRST, wanted=0), stuck) is None


def test_too_little_has_gone_to_show_anything() -> None:
    """A small node, whose files that are made in advance hide what deletions free."""
    stays = after(FIRST, held=500)
    verdict = reclaim_steps.judge(stays, begun(), slack_bytes=501)
    assert verdict is not None and not verdict.refusal and verdict.room == 125
    verdict = reclaim_steps.judge(stays, begun(), slack_bytes=500)
    assert verdict is not None and verdict.refusal


def test_it_goes_on_while_the_wish_shrinks() -> None:
    verdict = judge(after(FIRST, held=750, wanted=260), begun())
    assert verdict is not None and not verdict.refusal and verdict.room == 187


def test_new_records_explain_a_wish_that_stays() -> None:
    """A topic that goes round a full disk: as much comes as goes."""
    verdict: WishVerdict | None = begun()
    wish = FIRST
    for _ in range(50):
        wish = after(wish, held=HELD + 90)
        verdict = judge(wish, verdict)
        assert verdict is not None and verdict.room == 272 and not verdict.refusal
        wish = after(wish, held=HELD, wanted=380)
        verdict = judge(wish, verdict)
        assert verdict is not None and verdict.room == 250 and not verdict.refusal
