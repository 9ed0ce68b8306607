"""Conditions that hold at every moment. Functions check them, and raise with the last inputs and
effects of the core.

``check_state`` looks at one core, ``check_step`` at a core before and after a step. Every core is
stepped by a ``Checked`` (``checked.py``), which calls the two. It does so after each step in unit
tests and simulation, and after a set number of steps in production. The others look at all replicas
of a segment together; only tests can. Numbers I… are those of docs/design/protocol.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from icecore.model import NodeId
from icecore_replication.follower import FollowerCore
from icecore_replication.leader import LeaderCore
from icecore_replication.sealing import Sealing


class InvariantError(AssertionError):
    """A core is not what it must be. Nothing that it asks for may be done any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The facts of one core that may only change in certain ways."""

    base_offset: int
    log_end_offset: int
    durable_end_offset: int
    high_watermark: int
    stopped: bool
    seal_sent: bool
    version: int
    acked_end: int


def view(core: LeaderCore | FollowerCore) -> View:
    """The facts now; compare them after the next step, or any later one."""
    leader = core if isinstance(core, LeaderCore) else None
    return View(
        base_offset=core.segment.base_offset,
        log_end_offset=core.log_end_offset,
        durable_end_offset=core.durable_end_offset,
        high_watermark=core.high_watermark,
        stopped=core.stopped,
        seal_sent=leader is not None and isinstance(leader.roll, Sealing),
        version=leader.isr_state.version if leader is not None else 0,
        acked_end=leader.acked_end if leader is not None else 0,
    )


def check_state(core: LeaderCore | FollowerCore, now: View | None = None) -> None:
    """Raise InvariantError unless this core is consistent in itself.

    Args:
        core: Between two steps.
        now: Its view, when the caller has it.
    """
    now = now or view(core)
    _hold(now.base_offset <= now.durable_end_offset <= now.log_end_offset, "log ends", core)
    _hold(now.base_offset <= now.high_watermark, "high watermark below the base", core)
    is_durable = now.high_watermark <= now.durable_end_offset
    _hold(is_durable, "visible before it is durable here", core)
    if not isinstance(core, LeaderCore):
        return
    isr, maximal = core.isr, core.maximal_isr
    _hold(isr is maximal or set(isr) <= set(maximal), "I7: committed outside maximal", core)
    _hold(core.node_id in isr, "the leader left its own in-sync set", core)
    _hold(set(maximal) <= set(core.segment.replicas), "stranger in sync", core)
    is_first = max(core.durable_by_node.values()) <= now.log_end_offset
    _hold(is_first, "a follower is ahead of the leader", core)
    _hold(now.acked_end <= now.high_watermark, "acked above the high watermark", core)
    _hold(not (core.stopped and core.pending_count), "stopped with waiters", core)
    is_whole = core.sealing_end_offset in (None, now.log_end_offset)
    _hold(is_whole, "R29: the seal ends elsewhere than the log", core)


def check_step(before: View, core: LeaderCore | FollowerCore, now: View | None = None) -> None:
    """Raise InvariantError unless all steps from ``before`` to now were lawful ones.

    What holds for each of several steps holds from the first to the last, so ``before`` may be the
    view of any earlier moment.

    Args:
        before: Of the same core.
        core: Between two steps.
        now: Its view, when the caller has it.
    """
    now = now or view(core)
    appended = now.log_end_offset > before.log_end_offset
    _hold(now.log_end_offset >= before.log_end_offset, "log_end_offset went back", core)
    is_kept = now.durable_end_offset >= before.durable_end_offset
    _hold(is_kept, "durable_end_offset went back", core)
    _hold(now.high_watermark >= before.high_watermark, "high_watermark went back", core)
    _hold(now.version >= before.version, "version went back", core)
    _hold(now.acked_end >= before.acked_end, "acked_end went back", core)
    _hold(now.stopped or not before.stopped, "a stopped core came back", core)
    _hold(not (appended and before.stopped), "append after the end", core)
    _hold(not (appended and before.seal_sent), "append after the seal was sent", core)


def check_watermarks(watermarks: Iterable[int], end_offset: int) -> None:
    """I3: nothing was ever visible at or beyond the final end."""
    for watermark in watermarks:
        assert watermark <= end_offset, f"I3: {watermark} was visible, the end is {end_offset}"


def check_members_complete(
    stored_isr: Sequence[NodeId], durable: Mapping[NodeId, int], all_acked_end: int
) -> None:
    """I8: every member of the *stored* in-sync set has everything acked by ``all``.

    Args:
        stored_isr: As the metadata store holds it.
        durable: Real durable ends of intact replicas, by node id.
        all_acked_end: End of the last batch acked with acks=all.
    """
    for node_id in stored_isr:
        if node_id in durable:
            assert durable[node_id] >= all_acked_end, (
                f"I8: node {node_id} has {durable[node_id]}, acked is {all_acked_end}"
            )


def check_maximal(core: LeaderCore, stored_isr: Sequence[NodeId]) -> None:
    """I7: a leader that is not stale counts every member of the stored in-sync set."""
    missing = set(stored_isr) - set(core.maximal_isr)
    assert not missing, f"I7: {sorted(missing)} stored but not counted\n{core.story()}"


def check_prefixes(logs: Mapping[NodeId, Sequence[object]]) -> None:
    """I6: of any two intact logs of a segment one is a prefix of the other."""
    longest = max(logs.values(), key=len, default=())
    for node_id, log in logs.items():
        assert list(log) == list(longest[: len(log)]), (
            f"I6: node {node_id} differs from the longest"
        )


def _hold(condition: bool, what: str, core: LeaderCore | FollowerCore) -> None:
    if not condition:
        raise InvariantError(f"{what}\n{view(core)}\n{core.story()}")
