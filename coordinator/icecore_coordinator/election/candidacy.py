"""The decision of one candidate: when to stand, to renew, to take over and to step down (R121).

Pure: an input and the time in, the next state and effects out. Times are those of the process's
own monotonic clock. A session counts from the moment at which its call was begun, for nobody knows
when etcd has taken it; and it counts for less than etcd promises, for clocks differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

SURE_SHARE: Final = 0.9
"""Part of a session for which its holder is sure of it: clocks may differ by the rest."""
RENEWALS: Final = 4
"""Renewals within one session, if all goes well."""
RETRIES: Final = 20
"""Tries within one session, when calls fail at once."""
RIVAL_SESSIONS: Final = 2
"""Sessions after which an equal address is no remains of a dead process."""


class Candidate(NamedTuple):
    """A coordinator that stands, as all others see it."""

    session: int
    member: str
    """Identity of its data folder."""
    address: str
    """``host:port`` for clients and nodes; empty = it names none."""


class Standing(Enum):
    """A candidate's place in the election."""

    OUTSIDE = "outside"
    ENTERING = "entering"
    WAITING = "waiting"
    ELECTED = "elected"


@dataclass(frozen=True, slots=True)
class Entered:
    """A session has begun. Times are of the begin of the call, in all inputs."""

    sent_ms: float
    session: int
    ttl_ms: float


@dataclass(frozen=True, slots=True)
class Renewed:
    """An answer to a renewal; ``ttl_ms`` 0 = the session has ended."""

    sent_ms: float
    session: int
    ttl_ms: float


@dataclass(frozen=True, slots=True)
class CallFailed:
    """An entry or a renewal has got no answer, or a refusal that may end."""

    session: int
    """0 = an entry."""


@dataclass(frozen=True, slots=True)
class Listed:
    """All candidates, the elected one first."""

    sent_ms: float
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Resigned:
    """The elected one can't act; somebody else is to try."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time has passed."""


Input: TypeAlias = Entered | Renewed | CallFailed | Listed | Resigned | TimePassed


@dataclass(frozen=True, slots=True)
class Enter:
    """Stand in the election."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Begin the session anew."""

    session: int


@dataclass(frozen=True, slots=True)
class Leave:
    """End a session, as far as that is possible."""

    session: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Act as the coordinator."""


@dataclass(frozen=True, slots=True)
class Yield:
    """Act no more, at once."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """End this process: a person has to change its settings."""

    why: str


Effect: TypeAlias = Enter | Renew | Leave | TakeOver | Yield | Refuse
Effects: TypeAlias = tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Candidacy:
    """The state of one candidate."""

    member: str
    address: str
    ttl_ms: float
    """The length of sessions, as this process asks for them."""
    standing: Standing = Standing.OUTSIDE
    session: int = 0
    entered_ms: float = 0.0
    """When it was known that the session has begun: lists asked before say nothing of it."""
    sure_until_ms: float = 0.0
    due_ms: float = 0.0
    """When to enter or to renew."""
    is_renewing: bool = False
    listed_ms: float = -1.0
    """When the newest list was asked for."""
    candidates: tuple[Candidate, ...] = ()
    rival: Candidate | None = None
    """Stands before this one with the same address."""
    rival_since_ms: float = 0.0

    @property
    def active_address(self) -> str:
        """Address of the elected candidate; empty = it is this one, or nobody knows."""
        first = self.candidates[0] if self.candidates else None
        return first.address if first is not None and first.session != self.session else ""

    def is_sure(self, now_ms: float) -> bool:
        """Return whether nobody else can be elected by now."""
        return self.standing is Standing.ELECTED and now_ms < self.sure_until_ms

    @property
    def wake_ms(self) -> float:
        """Return when a tick is due; infinite = never."""
        match self.standing:
            case Standing.OUTSIDE:
                return self.due_ms
            case Standing.ENTERING:
                return float("inf")
        return self.sure_until_ms if self.is_renewing else min(self.due_ms, self.sure_until_ms)


def step(state: Candidacy, given: Input, now_ms: float) -> tuple[Candidacy, Effects]:
    """Return the next state, and what to do in this order. A session that has ended meanwhile ends
    before the input counts: a process that stood still learns that first."""
    state, ended = _expired(state, now_ms)
    match given:
        case Entered():
            state, effects = _entered(state, given, now_ms)
        case Renewed() if given.session == state.session:
            state, effects = _renewed(state, given, now_ms)
        case CallFailed() if given.session == state.session:
            state, effects = _failed(state, now_ms), ()
        case Listed() if given.sent_ms > state.listed_ms:
            state, effects = _listed(state, given, now_ms)
        case Resigned() if state.session:
            state, effects = _outside(state, "it can't act", now_ms + _retry_ms(state))
        case _:
            effects = ()
    state, due = _due(state, now_ms)
    return state, (*ended, *effects, *due)


def _retry_ms(state: Candidacy) -> float:
    return state.ttl_ms / RETRIES


def _outside(state: Candidacy, why: str, due_ms: float) -> tuple[Candidacy, Effects]:
    """The session counts no more, and this candidate stands anew from then on."""
    was_elected = state.standing is Standing.ELECTED
    effects: Effects = (Leave(state.session),) if state.session else ()
    left = replace(
        state, standing=Standing.OUTSIDE, session=0, is_renewing=False, due_ms=due_ms, rival=None
    )
    return left, (Yield(why), *effects) if was_elected else effects


def _expired(state: Candidacy, now_ms: float) -> tuple[Candidacy, Effects]:
    if not state.session or now_ms < state.sure_until_ms:
        return state, ()
    why = "etcd has not answered for as long as a session lasts, or this process stood still"
    return _outside(state, why, now_ms)


def _entered(state: Candidacy, given: Entered, now_ms: float) -> tuple[Candidacy, Effects]:
    sure_until_ms = given.sent_ms + SURE_SHARE * given.ttl_ms
    if state.standing is not Standing.ENTERING or now_ms >= sure_until_ms:
        left = replace(state, standing=Standing.OUTSIDE, due_ms=now_ms)
        return left if state.standing is Standing.ENTERING else state, (Leave(given.session),)
    return replace(
        state,
        standing=Standing.WAITING,
        session=given.session,
        entered_ms=now_ms,
        sure_until_ms=sure_until_ms,
        due_ms=given.sent_ms + given.ttl_ms / RENEWALS,
        is_renewing=False,
    ), ()


def _renewed(state: Candidacy, given: Renewed, now_ms: float) -> tuple[Candidacy, Effects]:
    if not given.ttl_ms:
        return _outside(state, "its session in etcd has ended", now_ms)
    return replace(
        state,
        sure_until_ms=max(state.sure_until_ms, given.sent_ms + SURE_SHARE * given.ttl_ms),
        due_ms=given.sent_ms + given.ttl_ms / RENEWALS,
        is_renewing=False,
    ), ()


def _failed(state: Candidacy, now_ms: float) -> Candidacy:
    is_entry = state.standing is Standing.ENTERING
    return replace(
        state,
        standing=Standing.OUTSIDE if is_entry else state.standing,
        is_renewing=False,
        due_ms=now_ms + _retry_ms(state),
    )


def _listed(state: Candidacy, given: Listed, now_ms: float) -> tuple[Candidacy, Effects]:
    state = replace(state, listed_ms=given.sent_ms, candidates=given.candidates)
    if not state.session or given.sent_ms < state.entered_ms:
        return state, ()
    mine = [at for at, each in enumerate(given.candidates) if each.session == state.session]
    if not mine:
        if any(each.member == state.member for each in given.candidates):
            return state, (
                Refuse(
                    "another coordinator stands in the election with a copy of this data folder:"
                    " give each coordinator a folder of its own"
                ),
            )
        return _outside(state, "its candidate key in etcd is gone", now_ms + _retry_ms(state))
    ahead = given.candidates[: mine[0]]
    if ahead:
        return _behind(state, ahead, now_ms)
    if state.standing is Standing.ELECTED:
        return state, ()
    return replace(state, standing=Standing.ELECTED, rival=None), (TakeOver(),)


def _behind(
    state: Candidacy, ahead: Sequence[Candidate], now_ms: float
) -> tuple[Candidacy, Effects]:
    if state.standing is Standing.ELECTED:
        return _outside(state, "etcd names another coordinator", now_ms)
    rival = next((each for each in ahead if each.address and each.address == state.address), None)
    if rival != state.rival:
        return replace(state, rival=rival, rival_since_ms=now_ms), ()
    if rival is None or now_ms - state.rival_since_ms < RIVAL_SESSIONS * state.ttl_ms:
        return state, ()
    return state, (
        Refuse(
            f"another coordinator names the address {state.address} as its own: give each its own"
            " advertise (HOST:PORT)"
        ),
    )


def _due(state: Candidacy, now_ms: float) -> tuple[Candidacy, Effects]:
    if now_ms < state.due_ms or state.is_renewing:
        return state, ()
    match state.standing:
        case Standing.OUTSIDE:
            return replace(state, standing=Standing.ENTERING), (Enter(),)
        case Standing.ENTERING:
            return state, ()
    return replace(state, is_renewing=True), (Renew(state.session),)
