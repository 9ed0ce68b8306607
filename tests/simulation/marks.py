"""The rare situations that a seed has met: a world without faults that matter proves nothing.

A mark is seen from outside, by what production logs or by what one of its functions is given and
answers; nothing in production knows of marks. ``watch`` notes those that are hit while it is open.
It adds no event to the loop and draws no chance, so that a watched run has the same trace.
"""

import inspect
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pkgutil import resolve_name
from typing import Any
from unittest import mock

from icecore.errors import (
    ConflictError,
    FencedError,
    IcecoreError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutOfOrderSequenceError,
    OutOfSpaceError,
    SupersededError,
)
from icecore.model import Segment, SegmentState
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.state.records import Change, SegmentRecord
from icecore_node.replica.replica import Replica
from icecore_replication.effects import FailProduce
from icecore_replication.leader import LeaderCore
from icecore_replication.producers import Duplicate
from icecore_replication.recovery import Decision
from icecore_replication.sealing import Collecting, Draining

Given = tuple[Any, ...]
"""Positional arguments of a call, self first."""


@dataclass(frozen=True, slots=True)
class Call:
    """A mark that is hit when ``function`` was called and ``is_hit(arguments, outcome)``, where
    the outcome is what was returned or the IcecoreError that was raised."""

    mark: str
    function: str
    is_hit: Callable[[Given, Any], bool]


def _decided_by(rule: str) -> Callable[[Given, Any], bool]:
    return lambda _, got: isinstance(got, Decision) and got.rule == rule


def _refused(*kinds: type[IcecoreError]) -> Callable[[Given, Any], bool]:
    return lambda _, got: isinstance(got, kinds)


def _sets_digest(_: Given, got: Any) -> bool:
    return isinstance(got, Change) and any(
        isinstance(put, SegmentRecord) and put.segment.full_digest for put in got.puts
    )


def _any_refused(_: Given, got: Any) -> bool:
    return isinstance(got, list) and any(isinstance(each, IcecoreError) for each in got)


def _fails_produce(kind: type[IcecoreError]) -> Callable[[Given, Any], bool]:
    """For ``LeaderCore.step``: exactly this error is an answer to a producer."""
    return lambda _, got: any(
        isinstance(each, FailProduce) and type(each.error) is kind for each in got
    )


def _drops_empty(given: Given, got: Any) -> bool:
    state, _, sealing = given[:3]
    if isinstance(got, IcecoreError):
        return False
    return bool(sealing.end_offset == state.segments[sealing.segment_id].segment.base_offset)


def _gains_replicas(given: Given, got: Any) -> bool:
    """A live seal after which the partition's tail has more replicas."""
    state, _, sealing, successor = given[:4]
    if isinstance(got, IcecoreError) or successor is None:
        return False
    before = state.segments[sealing.segment_id].segment
    opened = [each for each in got.puts if getattr(each, "segment", None) is not None]
    return any(
        len(each.segment.replicas) > len(before.replicas)
        for each in opened
        if each.segment.segment_id == successor.segment_id
    )


def _changes_isr(by: int) -> Callable[[Given, Any], bool]:
    """For ``accept_isr_change``: accepted, and the set has grown (1) or shrunk (-1)."""

    def is_hit(given: Given, got: Any) -> bool:
        return isinstance(got, Segment) and by * (len(got.isr) - len(given[0].isr)) > 0

    return is_hit


def _duplicate(is_pending: bool) -> Callable[[Given, Any], bool]:
    def is_hit(given: Given, _: Any) -> bool:
        core, found = given[0], given[2]
        assert isinstance(core, LeaderCore) and isinstance(found, Duplicate)
        return (found.end_offset > core.high_watermark) is is_pending

    return is_hit


def _aborts_after_drain(given: Given, _: Any) -> bool:
    return isinstance(given[0], Draining | Collecting)


def _recovery_inherited(given: Given, _: Any) -> bool:
    ledger = given[0]
    assert isinstance(ledger, Ledger)
    records = ledger.state.segments.values()
    return any(each.segment.state is SegmentState.RECOVERING for each in records)


def _copied(is_repair: bool) -> Callable[[Given, Any], bool]:
    def is_hit(given: Given, _: Any) -> bool:
        replica = given[1]
        assert isinstance(replica, Replica)
        is_sealed = replica.segment is not None and replica.segment.state is SegmentState.SEALED
        return is_sealed is is_repair

    return is_hit


def _out_of_space(given: Given, _: Any) -> bool:
    return any(isinstance(request.error, OutOfSpaceError) for request in given[1])


def _is_several(given: Given, _: Any) -> bool:
    return len(given[0]) > 1


def _any_behind(_: Given, got: Any) -> bool:
    return any(not each.was_first for each in got)


LOGGED: dict[str, str] = {
    # recovery and seal
    "recovery_undecided": r"event=recovery_undecided ",
    "recovery_not_sealed": r"event=recovery_not_sealed ",
    "live_seal": r"event=sealed ",
    "late_tail_cut": r"event=cutting_unacknowledged_tail ",
    "empty_segment_replaced": r"event=replacing_empty ",
    # leaders that are none any more
    "leader_fenced": r'event=leadership_ended .*why="fenced by epoch ',
    "zombie_leader_told": r'event=leadership_ended .*why="the segment is (SEALED|RECOVERING) ',
    "gone_at_once": r'event=node_down .*why="it refuses connections"',
    "lease_expired": r'event=node_down .*why="lease expired"',
    # start-up
    "torn_tail_cut": r"event=tail_cut ",
    "mid_log_damage": r'event=log_unknown .*why="mid-log damage at ',
    "durable_tail_lost": r'event=log_unknown .*why="lost durable tail: ',
    "distrusted_after_failed_sync": r'event=log_unknown .*why="a sync had failed: ',
    "file_missing": r'event=log_unknown .*why="the file is missing',
    # damage and repair
    "condemned": r"event=(condemned|replica_unknown) ",
    "missing_replica": r"event=replica_missing ",
    "quarantined": r"event=quarantined ",
    "repaired": r"event=repaired ",
    "damaged_copy_dropped": r"event=copy_damaged ",
    "lost_copy_dropped": r"event=copy_lost ",
    "rolled_off_unknown": r"event=roll_asked .*why=unknown_replica error=none",
    "disk_not_known": r"event=disk_condemned ",
    # disks
    "sync_failed": r"event=sync_failed ",
    "disk_read_only": r"event=disk_level .*level=read_only",
    "disk_full": r"event=disk_level .*level=full",
    "follows_after_space": r"event=following_again ",
    # the coordinator, and nodes that leave
    "open_refused": r"event=open_refused ",
    "coordinator_lost": r"event=coordinator_lost ",
    "coordinator_paused": r"event=late_tick ",
    "left_cleanly": r"event=handed_over leads=0 ",
}
"""Mark to a pattern in a message of production's loggers."""

CALLS: tuple[Call, ...] = (
    Call(
        "decided_by_s1",
        "icecore_coordinator.work.recovery.recovery_case:may_decide",
        _decided_by("S1"),
    ),
    Call(
        "decided_by_s3",
        "icecore_coordinator.work.recovery.recovery_case:may_decide",
        _decided_by("S3"),
    ),
    Call("empty_segment_dropped", "icecore_coordinator.work.recovery.recovery:seal", _drops_empty),
    Call(
        "write_back_copied",
        "icecore_node.maintenance.copying:SegmentCopier._append",
        _copied(is_repair=False),
    ),
    Call(
        "repair_copied",
        "icecore_node.maintenance.copying:SegmentCopier._append",
        _copied(is_repair=True),
    ),
    Call("takeover_in_recovery", "icecore_coordinator.ledger:Ledger.open", _recovery_inherited),
    Call("rolled_up", "icecore_coordinator.work.segments.sealing:seal", _gains_replicas),
    Call("seal_aborted", "icecore_replication.sealing:roll_failed", _aborts_after_drain),
    Call(
        "seal_refused_as_stale",
        "icecore_coordinator.work.segments.sealing:LiveSealing.seal",
        _any_refused,
    ),
    Call(
        "isr_shrunk",
        "icecore_coordinator.decisions.segment_changes:accept_isr_change",
        _changes_isr(-1),
    ),
    Call(
        "isr_expanded",
        "icecore_coordinator.decisions.segment_changes:accept_isr_change",
        _changes_isr(1),
    ),
    Call(
        "isr_change_refused_as_stale",
        "icecore_coordinator.decisions.segment_changes:accept_isr_change",
        _refused(ConflictError),
    ),
    Call(
        "isr_change_fenced",
        "icecore_coordinator.decisions.segment_changes:accept_isr_change",
        _refused(FencedError),
    ),
    Call(
        "stale_coordinator_epoch_at_node",
        "icecore_node.serving.orders.node_service:NodeService._check",
        _refused(FencedError),
    ),
    Call(
        "stale_coordinator_epoch_at_store",
        "icecore_coordinator.stores.sqlite_store:SqliteStore._check_coordinator_epoch",
        _refused(SupersededError),
    ),
    Call(
        "digest_agreed",
        "icecore_coordinator.services.coordinator_service:set_full_digest",
        _sets_digest,
    ),
    Call(
        "duplicate_of_pending",
        "icecore_replication.leader:LeaderCore._attach_duplicate",
        _duplicate(True),
    ),
    Call(
        "duplicate_of_visible",
        "icecore_replication.leader:LeaderCore._attach_duplicate",
        _duplicate(False),
    ),
    Call(
        "out_of_order_answered",
        "icecore_replication.leader:LeaderCore.step",
        _fails_produce(OutOfOrderSequenceError),
    ),
    Call(
        "not_enough_before_append",
        "icecore_replication.leader:LeaderCore.step",
        _fails_produce(NotEnoughReplicasError),
    ),
    Call(
        "not_enough_after_append",
        "icecore_replication.leader:LeaderCore.step",
        _fails_produce(NotEnoughReplicasAfterAppendError),
    ),
    Call("several_under_way", "icecore.client.produce.partition_queue:UnderWay.begin", _is_several),
    Call(
        "refused_behind_another", "icecore.client.produce.partition_queue:UnderWay.end", _any_behind
    ),
    Call("redirected", "icecore_node.registry.leaders:Leaders.leader", _refused(NotLeaderError)),
    Call(
        "append_without_space",
        "icecore_node.storage.segment_engine.group_commit:GroupCommit.append",
        _out_of_space,
    ),
)

ALL: tuple[str, ...] = (*LOGGED, *(call.mark for call in CALLS))
"""Every mark."""


@contextmanager
def watch() -> Iterator[set[str]]:
    """The marks hit from here to the end of the block."""
    hit: set[str] = set()
    with ExitStack() as stack:
        for function in dict.fromkeys(call.function for call in CALLS):
            calls = [call for call in CALLS if call.function == function]
            stack.enter_context(_watched(function, calls, hit))
        for name in ("icecore_node", "icecore_coordinator"):
            stack.enter_context(_heard(logging.getLogger(name), hit))
        yield hit


def _watched(
    function: str, calls: list[Call], hit: set[str]
) -> AbstractContextManager[Callable[..., Any]]:
    """Replace a function by one that looks at each outcome."""
    owner_name, _, name = function.replace(":", ".").rpartition(".")
    owner = resolve_name(owner_name)
    original = getattr(owner, name)

    def look(given: Given, outcome: Any) -> None:
        hit.update(
            call.mark for call in calls if call.mark not in hit and call.is_hit(given, outcome)
        )

    @wraps(original)
    def called(*given: Any, **named: Any) -> Any:
        try:
            got = original(*given, **named)
        except IcecoreError as error:
            look(given, error)
            raise
        look(given, got)
        return got

    @wraps(original)
    async def awaited(*given: Any, **named: Any) -> Any:
        try:
            got = await original(*given, **named)
        except IcecoreError as error:
            look(given, error)
            raise
        look(given, got)
        return got

    replacement = awaited if inspect.iscoroutinefunction(original) else called
    return mock.patch.object(owner, name, replacement)


class _Ear(logging.Handler):
    """Compares what is logged with the patterns of marks that were not hit yet."""

    def __init__(self, hit: set[str]) -> None:
        super().__init__()
        self._hit = hit
        self._patterns = {mark: re.compile(pattern) for mark, pattern in LOGGED.items()}

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        message = record.getMessage()
        for mark in [mark for mark, each in self._patterns.items() if each.search(message)]:
            self._hit.add(mark)
            del self._patterns[mark]


@contextmanager
def _heard(logger: logging.Logger, hit: set[str]) -> Iterator[None]:
    ear, level = _Ear(hit), logger.level
    logger.addHandler(ear)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(ear)
