"""A model of its own for what object storage holds: uploads, the table, local copies, retention and
the sweeper, in any order.

One sealed segment before a tail, on two nodes that both upload. Whoever is asked to upload puts its
objects when it likes, also long after it was overtaken, and answers, or never does. What the
coordinator decides, production's functions decide. All states are explored; ``explore`` says what
was wrong in one of them. ``Rules`` can be replaced one by one: those are the mutants.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from icecore.errors import ConflictError
from icecore.model import NO_NODE, Epoch, Incarnation, NodeId, Segment, SegmentId, SegmentState
from icecore.tier_records import TierCopy, TierRecord, TierState
from icecore.topic_settings import SegmentSettings, Tiering
from icecore_coordinator.decisions import retention
from icecore_coordinator.decisions.remote import tiering, verified_copies
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import (
    Change,
    CounterRecord,
    NodeRecord,
    PartitionRecord,
    SegmentRecord,
    TopicRecord,
)

T = TypeVar("T")

TOPIC = b"t" * 16
KEY = (TOPIC, 0)
SEGMENT = SegmentId(1)
TAIL = SegmentId(2)
NODES = (NodeId(1), NodeId(2))
ATTEMPTS_MAX = 2
COPY = TierCopy(b"m" * 32, b"c" * 33, 1, 1, "parquet")
WAIT_MS = 1
"""Length of every grace."""
OLD_MS = 2


@dataclass(frozen=True)
class State:
    """The whole state. Clocks stand for everything that is waited for."""

    tier: TierRecord | None = None
    revision: int = 0
    """Revision of the partition's published copies."""
    table_revision: int = 0
    table: tuple[int, ...] = ()
    """Attempts that the table names."""
    tries: int = 0
    """Number of attempts that were given out."""
    number: int = 1
    """The next number of the counter of attempts."""
    asked: tuple[tuple[int, int], ...] = ()
    """(attempt, node) that may still put, and then answer."""
    put: tuple[tuple[int, int], ...] = ()
    """Those that have put, and may still answer."""
    objects: tuple[int, ...] = ()
    """Attempts whose objects lie there."""
    late: tuple[int, ...] = ()
    """Those that were put once nobody remembered the attempt: its owner was paused for longer than
    closed attempts are kept. They cost room, and nobody looks at them."""
    is_emptied: bool = False
    """All objects vanished from the bucket, while nodes had copies; the table with them."""
    has_copies: bool = True
    is_tiered: bool = False
    is_gone: bool = False
    """The segment's record went: retention."""
    start: int = 0
    now_ms: int = 0
    wrong: str = ""


@dataclass(frozen=True)
class Rules:
    """The decisions of production."""

    begin: Callable[[ClusterState, SegmentId, NodeId], Change] = tiering.begin
    publish: Callable[[ClusterState, tiering.Attempt], Change] = lambda state, upload: (
        tiering.publish(state, upload, COPY, 0)
    )
    close: Callable[[ClusterState, SegmentId, int], Change] = tiering.close
    drop_copies: Callable[[ClusterState, verified_copies.Verified], Change] = (
        lambda state, verified: verified_copies.drop_expired_copies(state, KEY, verified, 0)
    )
    retire: Callable[[ClusterState], Change] = lambda state: retention.delete_below_start(
        state, KEY, 0
    )
    release: Callable[[ClusterState], Change] = lambda state: tiering.release(
        state, SEGMENT, WAIT_MS
    )
    sweepings: Callable[[ClusterState], list[tiering.Sweeping]] = lambda state: tiering.sweepings(
        state, SEGMENT, WAIT_MS, _held_attempt(state)
    )
    withdraw: Callable[[ClusterState, int], Change] | None = None
    """None = no node ever says that objects of the published copy are missing."""
    awaits_copy: Callable[[ClusterState], bool] = lambda state: verified_copies.awaits_copy(
        state, KEY
    )
    uploader_deletes: bool = False
    """True = an uploader that does not hear that its answer has arrived removes the objects it has
    put."""


def withdraw(state: ClusterState, attempt: int) -> Change:
    """Take a publication back as production does; each node is up."""
    return verified_copies.withdraw(state, SEGMENT, attempt, lambda _: True)


def _held_attempt(state: ClusterState) -> int:
    tier = state.tiers.segments.get(SEGMENT)
    return 0 if tier is None else verified_copies.held_attempt(state, tier, WAIT_MS)


def cluster(state: State) -> ClusterState:
    """As the coordinator has it, which knows nothing of objects and of who was asked."""
    return _cluster(replace(state, **UNKNOWN))


UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(("table", "asked", "put", "objects", "late"), ()),
    "tries": 0,
    "is_emptied": False,
    "wrong": "",
}


@lru_cache(maxsize=1 << 13)
def _cluster(state: State) -> ClusterState:
    made = ClusterState(counted_ms=state.now_ms)
    nodes = [
        NodeRecord(
            each, b"d", f"n{each}:1", incarnation=Incarnation(1), tier_url="memory:///", version=1
        )
        for each in NODES
    ]
    wanted = Tiering(is_on=True, local_retention_ms=0)
    topic = TopicRecord(TOPIC, "t", 1, SegmentSettings(), tiering=wanted, version=1)
    partition = PartitionRecord(
        TOPIC,
        0,
        state.start,
        TAIL,
        1,
        tier_revision=state.revision,
        table_revision=state.table_revision,
        version=1,
    )
    counter = CounterRecord(tiering.COUNTER, state.number, version=1)
    made.apply(Change((*nodes, topic, partition, counter)))
    sealed = Segment(
        segment_id=SEGMENT,
        topic_id=TOPIC,
        topic="t",
        partition=0,
        state=SegmentState.SEALED,
        epoch=Epoch(1),
        base_offset=0,
        end_offset=1,
        full_digest=b"\x01" + b"f" * 32,
        replicas=NODES if state.has_copies else (),
        is_tiered=state.is_tiered,
        version=1,
    )
    tail = sealed.changed(
        segment_id=TAIL, state=SegmentState.ACTIVE, base_offset=1, end_offset=-1, is_tiered=False
    )
    records = (
        [SegmentRecord(tail)] if state.is_gone else [SegmentRecord(sealed), SegmentRecord(tail)]
    )
    made.apply(Change((*records, *([state.tier] if state.tier else []))))
    return made


def taken(state: State, change: Change) -> State:
    """Return the state after a committed change."""
    changed: dict[str, Any] = {}
    for record in change.deletes:
        if isinstance(record, TierRecord):
            changed["tier"] = None
        elif isinstance(record, SegmentRecord):
            changed |= {"is_gone": True, "has_copies": False}
    for record in change.puts:
        match record:
            case TierRecord():
                # Whoever uploaded it matters to no rule here: fewer states.
                owner = record.owner if record.is_under_way else NO_NODE
                changed["tier"] = replace(record, version=1, owner=owner)
            case PartitionRecord():
                changed |= {
                    "revision": record.tier_revision,
                    "table_revision": record.table_revision,
                    "start": record.log_start_offset,
                }
            case CounterRecord():
                changed["number"] = record.next_value
            case SegmentRecord():
                changed |= {
                    "has_copies": bool(record.segment.replicas),
                    "is_tiered": record.segment.is_tiered,
                }
            case _:
                pass
    return replace(state, **changed) if changed else state


def steps(state: State, rules: Rules) -> Iterator[State]:
    """All states that may come next."""
    known, tier = cluster(state), state.tier
    if state.now_ms < OLD_MS or _waits(state):
        yield replace(state, now_ms=state.now_ms + 1)
    if state.start == 0:
        yield taken(state, retention.move_log_start(known, KEY, 1, 1))
    yield taken(state, rules.retire(known))
    seen = {} if tier is None or tier.attempt not in state.objects else {SEGMENT: tier.attempt}
    yield taken(state, rules.drop_copies(known, seen))
    if seen and state.has_copies and state.is_tiered:
        yield replace(state, is_emptied=True, objects=(), table=())
    yield taken(state, rules.release(known))
    yield from _uploads(state, rules)
    yield from _withdrawals(state, rules)
    if state.table_revision < state.revision and not rules.awaits_copy(known):
        names = state.tier is not None and state.tier.state is TierState.PUBLISHED
        table = (state.tier.attempt,) if names and state.tier is not None else ()
        is_hole = bool(state.table) and not table and state.start == 0
        committed = taken(state, tiering.committed(known, KEY, state.revision))
        yield replace(committed, table=table, wrong="the table loses records" if is_hole else "")
    for each in rules.sweepings(known):
        left = replace(state, objects=_without(state.objects, each.attempt))
        yield left  # swept, and the answer is lost
        yield taken(left, tiering.swept(known, each))


def _withdrawals(state: State, rules: Rules) -> Iterator[State]:
    """A node says that objects are missing, rightly or wrongly, of the published copy or, late, of
    an earlier one."""
    if rules.withdraw is None or state.tier is None:
        return
    for attempt in (state.tier.attempt, *(e.attempt for e in state.tier.closed_attempts)):
        try:
            yield taken(state, rules.withdraw(cluster(state), attempt))
        except ConflictError:
            continue


def _waits(state: State) -> bool:
    """Return whether there is a grace that is not over."""
    tier = state.tier
    if tier is None:
        return False
    since = [each.closed_ms for each in tier.closed_attempts]
    since += [tier.since_ms] if tier.is_retiring or tier.withdrawn else []
    return any(state.now_ms < each + WAIT_MS for each in since)


def _uploads(state: State, rules: Rules) -> Iterator[State]:
    known, tier = cluster(state), state.tier
    if state.tries < ATTEMPTS_MAX:
        for node in NODES:
            try:
                begun = taken(state, rules.begin(known, SEGMENT, node))
            except ConflictError:
                continue
            if begun.tier is not None:
                asked = tuple(sorted((*state.asked, (begun.tier.attempt, node))))
                yield replace(begun, asked=asked, tries=state.tries + 1)
    if tier is not None and tier.is_under_way:
        yield taken(state, rules.close(known, SEGMENT, tier.attempt))
    for each in set(state.asked):
        yield _stored(state, each)
    for each in set(state.put):
        left = replace(state, put=_without(state.put, each))
        answered = _answered(left, each, rules)
        yield answered
        if rules.uploader_deletes:
            yield replace(answered, objects=_without(answered.objects, each[0]))


def _stored(state: State, upload: tuple[int, int]) -> State:
    """Put the objects of a node that was asked to upload, whatever was decided meanwhile."""
    tier, number = state.tier, upload[0]
    known = [] if tier is None else [tier.attempt, *(e.attempt for e in tier.closed_attempts)]
    return replace(
        state,
        asked=_without(state.asked, upload),
        put=tuple(sorted((*state.put, upload))),
        objects=tuple(sorted({*state.objects, number})),
        late=state.late if number in known else tuple(sorted({*state.late, number})),
        wrong="two uploads meet in one key" if number in state.objects else "",
    )


def _answered(state: State, upload: tuple[int, int], rules: Rules) -> State:
    attempt = tiering.Attempt(SEGMENT, upload[0], NodeId(upload[1]), Incarnation(1))
    try:
        return taken(state, rules.publish(cluster(state), attempt))
    except ConflictError:
        return state


def _without(items: tuple[T, ...], gone: T) -> tuple[T, ...]:
    """The same without one of those that are equal to this."""
    found = list(items)
    if gone in found:
        found.remove(gone)
    return tuple(found)


def wrong_in(state: State) -> str:
    """I16, and what follows from it; empty = nothing is wrong."""
    tier = state.tier
    is_published = tier is not None and tier.state is TierState.PUBLISHED
    if not state.is_gone and not state.has_copies and not is_published:
        return "no copy at all"
    is_there = tier is not None and tier.attempt in state.objects
    if is_published and not is_there and not (state.is_emptied and state.has_copies):
        return "what is published is not there"
    if tier is not None and tier.attempt in [each.attempt for each in tier.closed_attempts]:
        return "what counts may be swept"
    if any(each not in state.objects for each in state.table) and not state.is_emptied:
        return "the table names what is not there"
    return state.wrong


def explore(rules: Rules) -> tuple[int, str]:
    """Return the number of states, and the problem of the first bad one; empty = none."""
    known: dict[State, None] = {State(): None}
    waiting = [State()]
    while waiting:
        state = waiting.pop()
        following = [each for each in steps(state, rules) if each != state]
        left = set(state.objects) - set(state.late)
        if not following and (left or state.tier is not None):
            return len(known), "objects are left that nobody sweeps"
        for each in following:
            if wrong := wrong_in(each):
                return len(known), wrong
            if each not in known:
                known[each] = None
                waiting.append(each)
    return len(known), ""
