"""A model of its own for what goes: log start, orders, files, a reader and a repair, in any order.

Two sealed segments and a tail on two nodes. Everything that may happen next, does, in every order;
what the coordinator decides, production's functions decide. All states are explored; ``explore``
says what was wrong in one of them. ``Rules`` can be replaced one by one: those are the mutants.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from icecore.model import Epoch, NodeId, Segment, SegmentId, SegmentState
from icecore.topic_settings import Retention, SegmentSettings
from icecore_coordinator.decisions import retention
from icecore_coordinator.state.cluster_state import ClusterState, is_below_start
from icecore_coordinator.state.records import (
    Change,
    DeletionRecord,
    PartitionRecord,
    SegmentRecord,
    TopicRecord,
)

TOPIC = b"t" * 16
KEY = (TOPIC, 0)
SEALED = 2
TAIL = SEALED
"""Segments are numbered from 0 and hold one offset each; the tail comes last."""
NODES = (0, 1)
AGE_MS = 10


@dataclass(frozen=True)
class State:
    """The whole state. Sets are tuples of numbers of segments, or of (node, segment)."""

    expired: int = 0
    """Number of the oldest segments that are old enough to expire."""
    start: int = 0
    """The stored log start."""
    gone: tuple[int, ...] = ()
    """Deletion records."""
    ordered: tuple[tuple[int, int], ...] = ()
    """(node, segment): holders of deletion records."""
    files: tuple[tuple[int, int], ...] = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2))
    heard: tuple[int, ...] = (0, 0)
    """The log start that each node knows, by node."""
    reading: tuple[int, int] | None = None
    """A read is under way of this file."""
    recycled: tuple[tuple[int, int], ...] = ()
    """Files that others write over."""
    copying: int = -1
    """A repair copies this segment to node 1."""
    has_copied: bool = False
    wrong: str = ""


@dataclass(frozen=True)
class Rules:
    """The decisions of production, and what its shells guarantee."""

    retain: Callable[[ClusterState], Change] = lambda state: retention.retain(
        state, KEY, retention.TailNews()
    )
    delete: Callable[[ClusterState], Change] = lambda state: retention.delete_below_start(
        state, KEY, 0
    )
    add_holder: Callable[[ClusterState, int, int], Change] = retention.add_holder  # type: ignore[assignment]
    may_recycle: Callable[[State, tuple[int, int]], bool] = lambda state, file: (
        state.reading != file
    )
    may_read: Callable[[State, tuple[int, int]], bool] = lambda state, file: (
        file[1] >= state.heard[file[0]]
    )


@cache
def cluster(state: State) -> ClusterState:
    """As the coordinator has it."""
    made = ClusterState(counted_ms=AGE_MS)
    kept = Retention(retention_ms=AGE_MS)
    topic = TopicRecord(TOPIC, "t", 1, SegmentSettings(), retention=kept, version=1)
    partition = PartitionRecord(TOPIC, 0, state.start, SegmentId(TAIL + 1), SEALED, version=1)
    made.apply(Change((topic, partition)))
    for number in range(TAIL + 1):
        if number in state.gone:
            holders = tuple(NodeId(node) for node, each in state.ordered if each == number)
            made.apply(Change((DeletionRecord(SegmentId(number + 1), holders, 0, version=1),)))
            continue
        is_tail = number == TAIL
        nodes = tuple(NodeId(node) for node, each in state.files if each == number)
        segment = Segment(
            segment_id=SegmentId(number + 1),
            topic_id=TOPIC,
            topic="t",
            partition=0,
            state=SegmentState.ACTIVE if is_tail else SegmentState.SEALED,
            epoch=Epoch(1),
            base_offset=number,
            end_offset=-1 if is_tail else number + 1,
            replicas=nodes,
            version=1,
        )
        since_ms = 0 if number < state.expired else AGE_MS
        made.apply(Change((SegmentRecord(segment, holders=nodes, since_ms=since_ms),)))
    return made


def steps(state: State, rules: Rules) -> Iterator[State]:
    """All states that may come next."""
    if state.expired <= TAIL:
        yield replace(state, expired=state.expired + 1)
    for record in rules.retain(cluster(state)).puts:
        assert isinstance(record, PartitionRecord)
        yield replace(state, start=record.log_start_offset)
    yield from _deletions(state, rules.delete(cluster(state)))
    for node in NODES:
        heard = tuple(state.start if each == node else state.heard[each] for each in NODES)
        if heard != state.heard:
            yield replace(state, heard=heard)
    for file in state.ordered:  # a node carries out an order; it may hold nothing
        left = tuple(each for each in state.files if each != file)
        ordered = tuple(each for each in state.ordered if each != file)
        recycled = state.recycled
        if file in state.files and rules.may_recycle(state, file):
            recycled = (*recycled, file)
        yield replace(state, files=left, ordered=ordered, recycled=recycled)
    yield from _reads(state, rules)
    yield from _copies(state, rules)


def _deletions(state: State, change: Change) -> Iterator[State]:
    gone = [each for each in change.puts if isinstance(each, DeletionRecord)]
    if not gone:
        return
    numbers = [int(each.segment_id) - 1 for each in gone]
    wrong = "the tail goes" if TAIL in numbers else ""
    if max(numbers) >= state.start:
        wrong = f"segment {max(numbers)} goes, the stored start is {state.start}"
    orders = [(int(node), int(each.segment_id) - 1) for each in gone for node in each.holders]
    yield replace(
        state,
        gone=tuple(sorted({*state.gone, *numbers})),
        ordered=tuple(sorted({*state.ordered, *orders})),
        wrong=wrong,
    )


def _reads(state: State, rules: Rules) -> Iterator[State]:
    if state.reading is None:
        for file in state.files:
            if file[0] == 0 and rules.may_read(state, file):
                is_told = file[1] >= state.heard[file[0]]
                wrong = "" if is_told else "a reader below the start is not told"
                yield replace(state, reading=file, wrong=wrong)
        return
    wrong = "a reader gets bytes of another segment" if state.reading in state.recycled else ""
    yield replace(state, reading=None, wrong=wrong)


def _copies(state: State, rules: Rules) -> Iterator[State]:
    """A copy of segment 0, which node 1 lacks: begun once, and it may end after the deletion."""
    known = cluster(state)
    if state.copying < 0 and not state.has_copied and 0 not in state.gone:
        if not is_below_start(known, known.segments[SegmentId(1)]):
            yield replace(state, copying=0, has_copied=True)
    elif state.copying >= 0:
        done = replace(state, copying=-1, files=tuple(sorted({*state.files, (1, 0)})))
        change = rules.add_holder(known, SegmentId(1), NodeId(1))
        yield replace(done, ordered=(*done.ordered, (1, 0))) if change.puts else done


def explore(rules: Rules) -> tuple[int, str]:
    """Return the number of states, and the problem of the first bad one; empty = none."""
    known: dict[State, None] = {State(): None}
    waiting = [State()]
    while waiting:
        state = waiting.pop()
        following = [each for each in steps(state, rules) if each != state]
        left = [each for each in state.files if each[1] in state.gone]
        is_idle = not state.ordered and state.copying < 0
        if left and is_idle:
            return len(known), f"nobody was told to delete {left}"
        for each in following:
            if each.wrong:
                return len(known), each.wrong
            if each not in known:
                known[each] = None
                waiting.append(each)
    return len(known), ""
