"""Judges a history: pure functions from what clients saw to what must never be.

Each check yields violations of one category; ``check`` runs them all. Records acked by the leader
alone may be lost with it: they are counted, not judged. So may what was in a segment that was given
up (R82); that this was right is judged where it happens (``losses.py``).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from icecore.codec.selection import Selection
from icecore.model import Acks
from tests.simulation.history import History, Outcome, Partition, Produce
from tests.simulation.labels import key_of, tags_of


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must never happen, and where."""

    category: str
    partition: Partition | None
    what: str

    def __str__(self) -> str:
        return f"{self.category}: {self.partition}: {self.what}"


def check(history: History) -> list[Violation]:
    """All violations of a history, by category."""
    return [violation for checker in CHECKERS for violation in checker(history)]


def acks_checked(history: History) -> int:
    """Return how many acknowledged records were looked for."""
    return sum(1 for _ in _promised(history))


def answers_checked(history: History) -> int:
    """Return how many complete answers that name records were compared with the logs."""
    return sum(answer.is_complete and bool(answer.records) for answer in history.answers)


def lookups_checked(history: History) -> int:
    """Return how many of these were look-ups."""
    return sum(
        answer.is_complete and bool(answer.records) and answer.promise is not None
        for answer in history.answers
    )


def lost_by_leader_acks(history: History) -> int:
    """Records acked by the leader alone that are gone: allowed, reported."""
    final = {partition: set(dict(records).values()) for partition, records in history.final.items()}
    return sum(
        produce.value not in final.get(produce.partition, set())
        for produce in history.produces
        if produce.outcome is Outcome.OK and produce.acks is Acks.LEADER
    )


def _promised(history: History) -> Iterator[Produce]:
    for produce in history.produces:
        if produce.outcome is not Outcome.OK or produce.acks is Acks.LEADER:
            continue
        if not history.is_given_up(produce.partition, produce.offset, produce.began_s):
            yield produce


def lost(history: History) -> Iterator[Violation]:
    """An acked record is not at its offset at the end."""
    final = {partition: dict(records) for partition, records in history.final.items()}
    for produce in _promised(history):
        records = final.get(produce.partition, {})
        if produce.offset < history.log_start.get(produce.partition, 0):
            continue
        if history.is_unavailable(produce.partition, produce.offset):
            continue
        found = records.get(produce.offset)
        if found != produce.value:
            what = f"offset {produce.offset} holds {found!r}, acked was {produce.value!r}"
            yield Violation("lost", produce.partition, what)


def phantom(history: History) -> Iterator[Violation]:
    """A record that nobody sent there."""
    sent = {(produce.partition, produce.value) for produce in history.produces}
    for partition, offset, value in _seen(history):
        if (partition, value) not in sent:
            yield Violation("phantom", partition, f"offset {offset} holds {value!r}")


def aborted(history: History) -> Iterator[Violation]:
    """A record whose produce failed definitely."""
    failed = {
        (produce.partition, produce.value)
        for produce in history.produces
        if produce.outcome is Outcome.FAIL
    }
    for partition, offset, value in _seen(history):
        if (partition, value) in failed:
            yield Violation("aborted", partition, f"offset {offset} holds failed {value!r}")


def _seen(history: History) -> Iterator[tuple[Partition, int, bytes]]:
    for partition, records in history.final.items():
        for offset, value in records:
            yield partition, offset, value
    for read in history.reads:
        yield read.partition, read.offset, read.value


def duplicate(history: History) -> Iterator[Violation]:
    """A value at two offsets, or an offset twice."""
    for partition, records in history.final.items():
        for offset, count in Counter(offset for offset, _ in records).items():
            if count > 1:
                yield Violation("duplicate", partition, f"offset {offset} came {count} times")
        if history.idempotent:
            places: dict[bytes, set[int]] = {}
            for offset, value in records:
                places.setdefault(value, set()).add(offset)
            for value, offsets in places.items():
                if len(offsets) > 1:
                    yield Violation("duplicate", partition, f"{value!r} at {sorted(offsets)}")


def reused(history: History) -> Iterator[Violation]:
    """No offset is given out twice: not even where records were lost (R96)."""
    known: dict[tuple[Partition, int], bytes] = {}
    acked = (
        (each.partition, each.offset, each.value)
        for each in history.produces
        if each.outcome is Outcome.OK and each.acks is not Acks.LEADER
    )
    for partition, offset, value in (*acked, *_seen(history)):
        before = known.setdefault((partition, offset), value)
        if before != value:
            what = f"offset {offset} was {before!r}, and is {value!r}"
            yield Violation("reused", partition, what)


def gap(history: History) -> Iterator[Violation]:
    """Offsets are dense from the log start."""
    for partition, records in history.final.items():
        expected = history.log_start.get(partition, 0)
        for offset in sorted({offset for offset, _ in records}):
            if offset != expected and not history.is_passed_over(partition, offset - 1):
                yield Violation("gap", partition, f"{expected} is missing, {offset} follows")
            expected = offset + 1


def order(history: History) -> Iterator[Violation]:
    """The records that a producer sent first stand first."""
    if not history.idempotent:
        return
    places = {
        (partition, value): offset
        for partition, records in history.final.items()
        for offset, value in records
    }
    sessions: dict[tuple[str, Partition], list[Produce]] = {}
    for produce in history.produces:
        sessions.setdefault((produce.producer, produce.partition), []).append(produce)
    for (producer, partition), produces in sessions.items():
        highest = -1
        for produce in sorted(produces, key=lambda produce: produce.sequence):
            offset = places.get((partition, produce.value))
            if offset is None:
                continue
            if offset < highest:
                what = f"{producer}: {produce.value!r} at {offset}, an earlier one at {highest}"
                yield Violation("order", partition, what)
            highest = max(highest, offset)


def realtime(history: History) -> Iterator[Violation]:
    """A record acked before another was sent has the smaller offset."""
    by_partition: dict[Partition, list[Produce]] = {}
    for produce in _promised(history):
        by_partition.setdefault(produce.partition, []).append(produce)
    for partition, produces in by_partition.items():
        ended = sorted(produces, key=lambda produce: produce.ended_s)
        began = sorted(produces, key=lambda produce: produce.began_s)
        highest: Produce | None = None
        position = 0
        for later in began:
            while position < len(ended) and ended[position].ended_s < later.began_s:
                if highest is None or ended[position].offset > highest.offset:
                    highest = ended[position]
                position += 1
            if highest is not None and later.offset <= highest.offset:
                what = (
                    f"{later.value!r} at {later.offset} was sent after {highest.offset} was acked"
                )
                yield Violation("realtime", partition, what)


def poll(history: History) -> Iterator[Violation]:
    """Within a session offsets go up by one."""
    last: dict[tuple[str, Partition], int] = {}
    for read in history.reads:
        session = (read.session, read.partition)
        before = last.get(session)
        if before is not None and read.offset <= before:
            what = f"{read.session}: {read.offset} after {before}"
            yield Violation("nonmonotonic", read.partition, what)
        elif (
            before is not None
            and read.offset != before + 1
            and not history.is_passed_over(read.partition, read.offset - 1)
        ):
            what = f"{read.session}: {read.offset} after {before}"
            yield Violation("skip", read.partition, what)
        last[session] = read.offset


def unseen(history: History) -> Iterator[Violation]:
    """A consumer that read the whole log was not given all of it."""
    read: dict[tuple[str, Partition], set[int]] = {}
    for each in history.reads:
        if each.session in history.whole_sessions:
            read.setdefault((each.session, each.partition), set()).add(each.offset)
    for session in sorted(history.whole_sessions):
        for partition, records in history.final.items():
            missing = {offset for offset, _ in records} - read.get((session, partition), set())
            if missing:
                what = f"{session} was not given {len(missing)} records, the first {min(missing)}"
                yield Violation("unseen", partition, what)


def changed(history: History) -> Iterator[Violation]:
    """A record that was read once stays as it was."""
    for partition in {read.partition: None for read in history.reads}:
        final = dict(history.final.get(partition, []))
        start = history.log_start.get(partition, 0)
        known: dict[int, bytes] = {}
        for read in history.reads:
            if read.partition != partition:
                continue
            if history.is_given_up(partition, read.offset, read.at_s):
                continue
            is_kept = read.offset >= start and not history.is_unavailable(partition, read.offset)
            truth = final.get(read.offset) if is_kept else read.value
            if truth != read.value or known.setdefault(read.offset, read.value) != read.value:
                what = f"{read.session} read {read.value!r} at {read.offset}, at the end {truth!r}"
                yield Violation("changed", partition, what)


def answers(history: History) -> Iterator[Violation]:
    """Queries: nobody is given who does not fulfil the conditions, and an answer that calls itself
    complete leaves nobody out."""
    final = {partition: dict(records) for partition, records in history.final.items()}
    ordered = {partition: sorted(records) for partition, records in history.final.items()}
    for answer in history.answers:
        partition, (start, end) = answer.partition, answer.searched
        if history.is_given_up(partition, end, answer.at_s):
            continue
        records = final.get(partition, {})
        given = dict(answer.records)
        offsets = [offset for offset, _ in answer.records]
        who = f"{answer.node} at {answer.at_s:.3f} of [{start}, {end}) for {answer.selection}"
        if offsets not in (sorted(set(offsets)), sorted(set(offsets), reverse=True)):
            yield Violation("query_order", partition, f"{who}: {offsets}")
        for offset, value in given.items():
            if not (start <= offset < end and _is_wanted(answer.selection, value)):
                yield Violation("query_wrong", partition, f"{who}: {offset} holds {value!r}")
            if records.get(offset, value) != value:
                yield Violation("query_wrong", partition, f"{who}: {offset} never held {value!r}")
        if not answer.is_complete:
            continue
        low = max(start, history.log_start.get(partition, 0))
        high = min(end, answer.indexed_through_offset)
        log = ordered.get(partition, [])
        searched = slice(bisect_left(log, (low, b"")), bisect_left(log, (high, b"")))
        for offset, value in log[searched]:  # and no others: a hole has 2^32 offsets
            if offset not in given and _is_wanted(answer.selection, value):
                yield Violation("query_missed", partition, f"{who}: not {offset}, {value[:30]!r}")


def behind(history: History) -> Iterator[Violation]:
    """Look-ups: an answer that calls itself complete has what was acknowledged before its plan was
    made, and what the leader of its plan showed before the question was asked."""
    final = {partition: sorted(records) for partition, records in history.final.items()}
    acked_s: dict[tuple[Partition, int], float] = {}
    for produce in _promised(history):
        place = produce.partition, produce.offset
        acked_s[place] = min(produce.ended_s, acked_s.get(place, inf))
    for answer in history.answers:
        partition, promise = answer.partition, answer.promise
        if promise is None or not answer.is_complete:
            continue
        low = max(answer.searched[0], answer.indexed_through_offset)  # see ``answers``
        low = max(low, history.log_start.get(partition, 0))
        given, records = dict(answer.records), final.get(partition, [])
        for offset, value in records[bisect_left(records, (low, b"")) :]:
            is_acked = acked_s.get((partition, offset), inf) < promise.planned_s
            if offset >= promise.to_offset or not (is_acked or offset < promise.led_to_offset):
                continue
            if history.is_given_up(partition, offset, answer.at_s):
                continue
            if offset not in given and _is_wanted(answer.selection, value):
                why = "was acknowledged before" if is_acked else "its leader showed it"
                who = f"{answer.node} at {answer.at_s:.3f}, planned at {promise.planned_s:.3f}"
                what = f"{who}, of {answer.selection}: not {offset}, {value[:30]!r}, which {why}"
                yield Violation("query_behind", partition, what)


def _is_wanted(selection: Selection, value: bytes) -> bool:
    """As its key and its tags, which follow from the value, say."""
    tags = set(tags_of(value))
    return (
        (not selection.keys or key_of(value) in selection.keys)
        and (not selection.tags_any or bool(tags & selection.tags_any))
        and selection.tags_all <= tags
        and not tags & selection.tags_none
    )


def watermark(history: History) -> Iterator[Violation]:
    """High watermarks never pass the end and never go back within one life of a process."""
    last: dict[tuple[str, Partition], int] = {}
    ends = {
        partition: max((offset for offset, _ in records), default=-1) + 1
        for partition, records in history.final.items()
    }
    for seen in history.watermarks:
        end = max(ends.get(seen.partition, 0), history.log_start.get(seen.partition, 0))
        if history.is_given_up(seen.partition, seen.high_watermark, seen.at_s):
            continue
        is_beyond = seen.high_watermark > end
        if is_beyond and not history.is_passed_over(seen.partition, seen.high_watermark - 1):
            what = f"{seen.observer} showed {seen.high_watermark}, the end is {end}"
            yield Violation("watermark_past_end", seen.partition, what)
        key = (seen.observer, seen.partition)
        before = last.get(key, 0)
        if seen.high_watermark < before:
            what = f"{seen.observer}: {seen.high_watermark} after {before}"
            yield Violation("watermark_went_back", seen.partition, what)
        last[key] = max(seen.high_watermark, before)


def replicas(history: History) -> Iterator[Violation]:
    """All replicas of a sealed segment hold the same bytes."""
    for segment in history.segments:
        if len({digest for _, digest in segment.digests}) > 1:
            nodes = [node for node, _ in segment.digests]
            what = f"segment {segment.segment_id} differs between {nodes}"
            yield Violation("replicas_differ", segment.partition, what)


def tiling(history: History) -> Iterator[Violation]:
    """Segments follow each other without gap or overlap, and only the last is open."""
    by_partition: dict[Partition, list[tuple[int, int, int]]] = {}
    for segment in history.segments:
        place = (segment.base_offset, segment.end_offset, segment.segment_id)
        by_partition.setdefault(segment.partition, []).append(place)
    for partition, places in by_partition.items():
        for (base, end, segment_id), (next_base, _, next_id) in pairwise(sorted(places)):
            if end != next_base:
                what = f"segment {segment_id} [{base}, {end}) then {next_id} from {next_base}"
                yield Violation("tiling", partition, what)


CHECKERS: tuple[Callable[[History], Iterator[Violation]], ...] = (
    *(
        lost,
        phantom,
        aborted,
        duplicate,
        reused,
        gap,
        order,
        realtime,
        poll,
        unseen,
        changed,
        watermark,
    ),
    *(replicas, tiling, answers, behind),
)
