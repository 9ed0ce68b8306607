"""Seeded mistakes of coordinators that stand by for each other; see ``mistakes``."""

from dataclasses import replace
from unittest import mock

from icecore_coordinator.election import candidacy
from icecore_coordinator.election.candidacy import (
    Candidacy,
    Effects,
    Entered,
    Listed,
    Renewed,
    Standing,
)
from icecore_coordinator.election.elector import Elector
from icecore_coordinator.stores import followed_records
from tests.simulation.mistakes import Mistake, patch


def standby_acts_early() -> Mistake:
    """R121: the second candidate takes itself for the first one while that is silent."""
    real = candidacy._listed

    def listed(state: Candidacy, given: Listed, now_ms: float) -> tuple[Candidacy, Effects]:
        others = tuple(each for each in given.candidates if each.session == state.session)
        is_late = now_ms - state.entered_ms > state.ttl_ms
        return real(state, replace(given, candidates=others) if is_late else given, now_ms)

    return patch(candidacy, "_listed", listed)


def session_counts_from_the_answer() -> Mistake:
    """R121: a session is counted from when etcd's answer came, not from when it was asked for."""
    renewed, entered = candidacy._renewed, candidacy._entered

    def late_renewed(state: Candidacy, given: Renewed, now: float) -> tuple[Candidacy, Effects]:
        return renewed(state, replace(given, sent_ms=now), now)

    def late_entered(state: Candidacy, given: Entered, now: float) -> tuple[Candidacy, Effects]:
        return entered(state, replace(given, sent_ms=now), now)

    both = {"_renewed": late_renewed, "_entered": late_entered}
    return mock.patch.multiple(candidacy, **both)


def timers_are_believed() -> Mistake:
    """R121: whoever was elected acts until a timer says that its time is over."""
    return patch(Elector, "is_sure", lambda self: self._state.standing is Standing.ELECTED)


def watch_gaps_are_passed_over() -> Mistake:
    """R122: a standby believes a watch that has left a change out."""
    return patch(followed_records, "follows", lambda *_: True)
