"""A model of its own for the token in a shared store: two coordinators, and one that follows.

A coordinator takes over whenever it likes, sends changes, and sends them again when it hears
nothing. What was sent arrives at any time, or twice. The store may be put back to an old copy once,
and a watch may leave a change out. What an answer means, and whether a change is missing,
production's functions decide (R36, R120, R122). All states are explored; ``explore`` says what was
wrong in one of them. ``Rules`` can be replaced one by one: those are the mutants.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from icecore_coordinator.stores.etcd_layout import EtcdHead, TxnOutcome, outcome_of
from icecore_coordinator.stores.followed_records import follows

Judge = Callable[[EtcdHead, EtcdHead, EtcdHead | None, bool, bool], TxnOutcome]


@dataclass(frozen=True)
class Bounds:
    """The bounds of what happens in a world."""

    holders: int = 3
    changes: int = 2
    sends: int = 2
    """Times that one change is sent."""
    goes_back: bool = False
    """The store is put back to a copy."""
    watches: bool = False
    """The second coordinator follows, and a change may be left out."""


WORLDS = {
    "repeats": Bounds(holders=4, changes=3),
    "goes back": Bounds(goes_back=True),
    "watch": Bounds(changes=3, sends=1, watches=True),
}


@dataclass(frozen=True)
class Message:
    """A transaction on its way."""

    who: int
    head: EtcdHead
    after: EtcdHead
    number: int


FIRST = EtcdHead(1, "store", 1, "0", 1)


@dataclass(frozen=True)
class Writer:
    """One coordinator process, and what it has followed."""

    head: EtcdHead | None = None
    """As it holds the epoch; None = it stands by."""
    read: EtcdHead | None = None
    """Found by a take-over that is under way."""
    waiting: Message | None = None
    sends: int = 0
    told: int = 0
    """How many events its watch has told, or left out."""
    known_head: EtcdHead = FIRST
    known: tuple[int, ...] = ()
    """Changes that it knows as a standby."""
    is_sound: bool = True
    """False = it has noticed that something is missing, and reads all."""


@dataclass(frozen=True)
class State:
    """The whole state. A change is a number."""

    head: EtcdHead = FIRST
    changes: tuple[int, ...] = ()
    """All that is stored, in its order."""
    events: tuple[tuple[EtcdHead, int], ...] = ()
    """Each head that watches tell, and the change that came with it; 0 = none."""
    writers: tuple[Writer, Writer] = (Writer(), Writer())
    network: tuple[Message, ...] = ()
    holders: int = 0
    numbers: int = 0
    copy: tuple[EtcdHead, tuple[int, ...]] | None = None
    has_gone_back: bool = False
    has_gap: bool = False
    done: tuple[int, ...] = ()
    """Changes whose writer was told that they happened,"""
    refused: tuple[int, ...] = ()
    """and that they did not."""
    wrong: str = ""


def _judge(
    head: EtcdHead, after: EtcdHead, found: EtcdHead | None, is_done: bool, is_repeated: bool
) -> TxnOutcome:
    return outcome_of(head, after, found, is_done=is_done, is_repeated=is_repeated)


@dataclass(frozen=True)
class Rules:
    """The decisions of production, and what its shells guarantee."""

    may_write: Callable[[EtcdHead, EtcdHead], bool] = lambda stored, ours: stored == ours
    judge: Judge = _judge
    follows: Callable[[EtcdHead | None, EtcdHead | None], bool] = follows
    is_proved: Callable[[Writer], bool] = lambda writer: writer.known_head == writer.head


def steps(state: State, rules: Rules, bounds: Bounds) -> Iterator[State]:
    """All states that may come next."""
    for who in (0, 1):
        yield from _take_overs(state, who, bounds)
        yield from _sends(state, who, bounds)
    if bounds.watches:
        yield from _watches(state, 1, rules)
    for message in dict.fromkeys(state.network):
        yield from _arrivals(state, message, rules)
    if bounds.goes_back and state.copy is None:
        yield replace(state, copy=(state.head, state.changes))
    if state.copy is not None and not state.has_gone_back:
        head, changes = state.copy
        yield replace(state, head=head, changes=changes, has_gone_back=True)


def _with(state: State, who: int, writer: Writer) -> State:
    first, second = state.writers
    return replace(state, writers=(writer, second) if who == 0 else (first, writer))


def _take_overs(state: State, who: int, bounds: Bounds) -> Iterator[State]:
    writer = state.writers[who]
    if writer.head is not None or state.holders == bounds.holders:
        return
    if writer.read is None:
        yield _with(state, who, replace(writer, read=state.head))
    elif writer.read != state.head:
        yield _with(state, who, replace(writer, read=None))
    else:
        holders = state.holders + 1
        head = replace(state.head, epoch=state.head.epoch + 1, holder=str(holders))
        taken = _with(state, who, replace(writer, read=None, head=head))
        events = (*state.events, (head, 0)) if bounds.watches else ()
        yield replace(taken, head=head, holders=holders, events=events)


def _sends(state: State, who: int, bounds: Bounds) -> Iterator[State]:
    """A change, or the same again. Whoever has not heard its own head yet decides nothing."""
    writer = state.writers[who]
    if writer.waiting is not None and writer.sends < bounds.sends:
        again = _with(state, who, replace(writer, sends=writer.sends + 1))
        yield replace(again, network=(*state.network, writer.waiting))
    if writer.head is None or writer.waiting is not None or state.numbers == bounds.changes:
        return
    number = state.numbers + 1
    after = replace(writer.head, revision=writer.head.revision + 1)
    message = Message(who, writer.head, after, number)
    sent = _with(state, who, replace(writer, waiting=message, sends=1))
    yield replace(sent, numbers=number, network=(*state.network, message))


def _arrivals(state: State, message: Message, rules: Rules) -> Iterator[State]:
    """It is carried out or refused; its answer comes, or is lost."""
    at = state.network.index(message)
    state = replace(state, network=state.network[:at] + state.network[at + 1 :])
    found, is_done = state.head, rules.may_write(state.head, message.head)
    if is_done:
        is_theirs = state.head.holder == message.head.holder
        wrong = "" if is_theirs else "I18: a coordinator writes that another one has replaced"
        if message.number in state.changes:
            wrong = "R120: a change happens twice"
        if message.number in state.refused and not state.has_gone_back:
            wrong = "R120: a change happens that was refused"
        state = replace(
            state,
            head=message.after,
            changes=(*state.changes, message.number),
            events=(*state.events, (message.after, message.number)) if state.events else (),
            wrong=wrong,
        )
    yield state
    writer = state.writers[message.who]
    if writer.waiting == message:
        outcome = rules.judge(message.head, message.after, found, is_done, writer.sends > 1)
        yield _heard(state, message, writer, outcome)


def _heard(state: State, message: Message, writer: Writer, outcome: TxnOutcome) -> State:
    is_known = outcome is TxnOutcome.DONE
    head = message.after if is_known else None
    state = _with(state, message.who, replace(writer, head=head, waiting=None, sends=0))
    wrong, is_there = state.wrong, message.number in state.changes
    if is_known:
        state = replace(state, done=(*state.done, message.number))
        if not is_there and not state.has_gone_back:
            wrong = "R120: a change is called done that did not happen"
    elif outcome is TxnOutcome.SUPERSEDED:
        state = replace(state, refused=(*state.refused, message.number))
        if is_there:
            wrong = "R120: a change is called refused that has happened"
    return replace(state, wrong=wrong)


def _watches(state: State, who: int, rules: Rules) -> Iterator[State]:
    """One event more comes, or is left out; a standby that becomes the writer is compared."""
    writer = state.writers[who]
    if writer.told == len(state.events) or not writer.is_sound:
        return
    head, number = state.events[writer.told]
    if not state.has_gap:
        yield replace(_with(state, who, replace(writer, told=writer.told + 1)), has_gap=True)
    known = (*writer.known, number) if number else writer.known
    is_sound = rules.follows(writer.known_head, head)
    writer = replace(writer, told=writer.told + 1, known_head=head, known=known, is_sound=is_sound)
    wrong = state.wrong
    if is_sound and writer.head is not None and rules.is_proved(writer):
        wrong = _compared(state, writer)
    yield replace(_with(state, who, writer), wrong=wrong)


def _compared(state: State, writer: Writer) -> str:
    """A take-over believes what was followed: that is all there was when it took over."""
    heads = [head for head, _ in state.events]
    if writer.head not in heads or state.events[heads.index(writer.head)][1]:
        return state.wrong  # it has changed something since
    stored = tuple(number for _, number in state.events[: heads.index(writer.head)] if number)
    if writer.known != stored:
        return f"R122: a take-over knows {writer.known}, stored is {stored}"
    return state.wrong


def explore(rules: Rules, bounds: Bounds) -> tuple[int, str]:
    """Return the number of states, and the problem of the first bad one; empty = none."""
    known: dict[State, None] = {State(): None}
    waiting = [State()]
    while waiting:
        for each in steps(waiting.pop(), rules, bounds):
            if each.wrong:
                return len(known), each.wrong
            if each not in known:
                known[each] = None
                waiting.append(each)
    return len(known), ""
