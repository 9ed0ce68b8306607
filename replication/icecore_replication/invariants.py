"""What must hold at every moment, as functions that raise with the story of how it came to be.

``check_state`` looks at one core, ``check_step`` at a core before and after a step, the others at
all replicas of a segment together. Tests and the simulator call them after every step; production
code does not. Numbers I… are those of docs/PROTOCOL.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from icecore_replication.follower import FollowerCore
from icecore_replication.leader import LeaderCore
from icecore_replication.sealing import Sealing


@dataclass(frozen=True, slots=True)
class View:
    """The facts of one core that may only change in certain ways."""

    is_leader: bool
    base_offset: int
    log_end_offset: int
    durable_end_offset: int
    high_watermark: int
    stopped: bool
    seal_sent: bool
    version: int
    acked_end: int


def view(core: LeaderCore | FollowerCore) -> View:
    """The facts now; compare them after the next step."""
    if isinstance(core, LeaderCore):
        return View(
            True,
            core.segment.base_offset,
            core.log_end_offset,
            core.durable_end_offset,
            core.high_watermark,
            core.stopped,
            isinstance(core.roll, Sealing),
            core.isr_state.version,
            core.acked_end,
        )
    return View(
        False,
        core.segment.base_offset,
        core.log_end_offset,
        core.durable_end_offset,
        core.high_watermark,
        core.stopped,
        False,
        0,
        0,
    )


def check_state(core: LeaderCore | FollowerCore) -> None:
    """Raise AssertionError unless this core is consistent in itself."""
    now = view(core)
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


def check_step(before: View, core: LeaderCore | FollowerCore) -> None:
    """Raise AssertionError unless the step from ``before`` to now was a lawful one."""
    now = view(core)
    for name in ("log_end_offset", "durable_end_offset", "high_watermark", "version", "acked_end"):
        _hold(getattr(now, name) >= getattr(before, name), f"{name} went back", core)
    _hold(now.stopped or not before.stopped, "a stopped core came back", core)
    appended = now.log_end_offset > before.log_end_offset
    _hold(not (appended and before.stopped), "append after the end", core)
    _hold(not (appended and before.seal_sent), "append after the seal was sent", core)


def check_watermarks(watermarks: Iterable[int], end_offset: int) -> None:
    """I3: nothing was ever visible at or beyond the final end."""
    for watermark in watermarks:
        assert watermark <= end_offset, f"I3: {watermark} was visible, the end is {end_offset}"


def check_members_complete(
    stored_isr: Sequence[int], durable: Mapping[int, int], all_acked_end: int
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


def check_maximal(core: LeaderCore, stored_isr: Sequence[int]) -> None:
    """I7: a leader that is not stale counts every member of the stored in-sync set."""
    missing = set(stored_isr) - set(core.maximal_isr)
    assert not missing, f"I7: {sorted(missing)} stored but not counted\n{core.story()}"


def check_prefixes(logs: Mapping[int, Sequence[object]]) -> None:
    """I6: of any two intact logs of a segment one is a prefix of the other."""
    longest = max(logs.values(), key=len, default=())
    for node_id, log in logs.items():
        assert list(log) == list(longest[: len(log)]), (
            f"I6: node {node_id} differs from the longest"
        )


def _hold(condition: bool, what: str, core: LeaderCore | FollowerCore) -> None:
    if not condition:
        raise AssertionError(f"{what}\n{view(core)}\nlast inputs:\n{core.story()}")
