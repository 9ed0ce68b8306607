"""R121: The decision of one candidate, as inputs and effects by a clock that the test moves."""

from typing import Any

import pytest

from icecore_coordinator.election.candidacy import (
    RENEWALS,
    RIVAL_SESSIONS,
    SURE_SHARE,
    CallFailed,
    Candidacy,
    Candidate,
    Effect,
    Effects,
    Enter,
    Entered,
    Input,
    Leave,
    Listed,
    Refuse,
    Renew,
    Renewed,
    Resigned,
    Standing,
    TakeOver,
    TimePassed,
    Yield,
    step,
)

TTL = 1_000.0
SURE = SURE_SHARE * TTL
ME, OTHER = Candidate(1, "me", "me:1"), Candidate(2, "other", "other:1")


class World:
    """One candidate and its clock."""

    def __init__(self, address: str = "me:1") -> None:
        self.state = Candidacy("me", address, TTL)
        self.now = 0.0

    def give(self, given: Input) -> Effects:
        self.state, effects = step(self.state, given, self.now)
        return effects

    def at(self, now: float, given: Input | None = None) -> Effects:
        self.now = now
        return self.give(given or TimePassed())

    def stand(self, session: int = 1) -> None:
        """Enter at once, by a call that begins and ends now."""
        assert self.give(TimePassed()) == (Enter(),)
        assert self.give(Entered(self.now, session, TTL)) == ()

    def be_elected(self) -> None:
        self.stand()
        assert self.at(self.now + 1, Listed(self.now + 1, (ME, OTHER))) == (TakeOver(),)


def kinds(effects: Effects) -> list[type[Effect]]:
    return [type(each) for each in effects]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def elected(world: World) -> World:
    world.be_elected()
    return world


def test_the_first_in_the_list_takes_over_once(elected: World) -> None:
    assert elected.at(5, Listed(5, (ME, OTHER))) == ()
    assert elected.state.is_sure(5)
    assert elected.state.active_address == ""


def test_another_one_waits_and_names_the_first(world: World) -> None:
    world.stand()
    assert world.at(1, Listed(1, (OTHER, ME))) == ()
    assert world.state.active_address == "other:1"
    assert not world.state.is_sure(1)
    assert world.at(2, Listed(2, (ME,))) == (TakeOver(),)


def test_a_list_of_before_the_entry_elects_and_deposes_nobody(world: World) -> None:
    world.give(TimePassed())
    world.at(50, Entered(0, 1, TTL))
    assert world.at(60, Listed(49, ())) == ()
    assert world.state.standing is Standing.WAITING


def test_lists_that_come_in_another_order_count_by_when_they_were_asked_for(world: World) -> None:
    world.stand()
    world.at(10, Listed(10, (OTHER, ME)))
    assert world.at(11, Listed(9, (ME,))) == ()
    assert world.state.standing is Standing.WAITING


def test_a_session_is_renewed_in_time(elected: World) -> None:
    assert elected.at(TTL / RENEWALS - 1) == ()
    assert elected.at(TTL / RENEWALS) == (Renew(1),)
    assert elected.at(TTL / RENEWALS + 1) == ()  # one at a time
    elected.at(300, Renewed(TTL / RENEWALS, 1, TTL))
    assert elected.state.sure_until_ms == TTL / RENEWALS + SURE
    assert elected.state.is_sure(TTL / RENEWALS + SURE - 1)


def test_a_session_counts_from_when_it_was_asked_for(elected: World) -> None:
    """The answer comes late: nobody knows when etcd has taken the question."""
    elected.at(TTL / RENEWALS)
    elected.at(SURE - 1, Renewed(TTL / RENEWALS, 1, TTL))
    assert elected.state.is_sure(TTL / RENEWALS + SURE - 1)
    assert not elected.state.is_sure(TTL / RENEWALS + SURE)


def test_an_entry_that_was_answered_too_late_is_none(world: World) -> None:
    world.give(TimePassed())
    assert world.at(SURE, Entered(0, 1, TTL)) == (Leave(1), Enter())


def test_whoever_is_not_sure_any_more_steps_down_before_anything_else(elected: World) -> None:
    effects = elected.at(SURE, Listed(SURE, (ME, OTHER)))
    assert kinds(effects) == [Yield, Leave, Enter]
    assert not elected.state.is_sure(SURE)


@pytest.mark.parametrize(
    "given",
    [
        TimePassed(),
        Renewed(1, 1, TTL),
        Renewed(5_000, 1, TTL),
        Listed(5_000, (ME,)),
        CallFailed(1),
        Resigned(),
    ],
    ids=repr,
)
def test_a_process_that_stood_still_learns_that_first(elected: World, given: Input) -> None:
    """Whatever it hears first, be it the answer that it had asked for."""
    elected.at(TTL / RENEWALS)
    assert not elected.state.is_sure(5_000)
    assert kinds(elected.at(5_000, given))[0] is Yield


def test_a_late_answer_of_an_old_session_renews_no_new_one(elected: World) -> None:
    elected.at(TTL / RENEWALS)
    elected.at(SURE)
    elected.at(SURE + 1, Entered(SURE, 7, TTL))
    assert elected.at(SURE + 2, Renewed(TTL / RENEWALS, 1, 0)) == ()
    assert elected.at(SURE + 3, CallFailed(1)) == ()
    assert elected.state.session == 7


def test_a_session_that_etcd_has_ended_is_over(elected: World) -> None:
    elected.at(TTL / RENEWALS)
    effects = elected.at(TTL / RENEWALS + 1, Renewed(TTL / RENEWALS, 1, 0))
    assert kinds(effects) == [Yield, Leave, Enter]


def test_a_key_that_is_gone_is_no_candidate(elected: World) -> None:
    """Somebody removed it, or etcd was put back to an older state."""
    assert kinds(elected.at(9, Listed(9, (OTHER,)))) == [Yield, Leave]
    assert elected.at(9 + TTL / 20) == (Enter(),)


def test_who_is_not_the_first_any_more_steps_down(elected: World) -> None:
    assert kinds(elected.at(9, Listed(9, (OTHER, ME)))) == [Yield, Leave, Enter]


def test_calls_that_fail_are_repeated_after_a_rest(world: World) -> None:
    world.give(TimePassed())
    assert world.at(10, CallFailed(0)) == ()
    assert world.at(10 + TTL / 20) == (Enter(),)
    world.give(Entered(world.now, 1, TTL))
    begin = world.now
    assert world.at(begin + TTL / RENEWALS) == (Renew(1),)
    assert world.at(begin + TTL / RENEWALS + 1, CallFailed(1)) == ()
    assert world.at(begin + TTL / RENEWALS + 1 + TTL / 20) == (Renew(1),)


def test_whoever_resigns_stands_behind_the_others(elected: World) -> None:
    assert kinds(elected.at(5, Resigned())) == [Yield, Leave]
    assert elected.state.session == 0
    assert elected.at(5 + TTL / 20) == (Enter(),)


def test_a_copy_of_the_folder_is_refused(elected: World) -> None:
    [effect] = elected.at(9, Listed(9, (OTHER, Candidate(3, "me", "copy:1"))))
    assert isinstance(effect, Refuse) and "a folder of its own" in effect.why


def test_an_address_of_somebody_else_is_refused_but_not_that_of_a_dead_process(
    world: World,
) -> None:
    """A machine that was made anew has the address of its predecessor, whose session goes on."""
    same = Candidate(2, "other", "me:1")
    world.stand()
    assert world.at(1, Listed(1, (same, ME))) == ()
    effects: Effects = ()
    for at in range(2, int(RIVAL_SESSIONS * TTL) + 3):
        effects = world.at(at)
        if Renew(1) in effects:
            world.give(Renewed(at, 1, TTL))
    [effect] = world.at(world.now + 1, Listed(world.now, (same, ME)))
    assert isinstance(effect, Refuse) and "me:1" in effect.why


def test_the_elected_one_is_not_refused_for_the_address_of_a_later_one(elected: World) -> None:
    later = Candidate(2, "other", "me:1")
    assert elected.at(2, Listed(2, (ME, later))) == ()


def test_addresses_that_nobody_names_are_not_the_same() -> None:
    world = World(address="")
    world.stand()
    unnamed: tuple[Any, ...] = (Candidate(2, "other", ""), ME)
    world.at(1, Listed(1, unnamed))
    assert world.state.rival is None
