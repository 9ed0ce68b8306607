"""Answers for probes: whether a node has started, is alive, is ready, and why not.

Started: its disks are recovered. Alive: the loop turns, and no write to a disk takes absurdly long.
Ready: the coordinator counts on this node, heard of it within its lease, and its disk takes
records. Nothing in the protocol looks at any of them; they read plain values, and may be asked from
another thread.
"""

from icecore_node.context import NodeContext
from icecore_node.identity.identity import Lease
from icecore_node.identity.node_report import NodeReport

LOOP_LATE_MS_MAX = 10_000.0
WRITE_MS_MAX = 30_000.0


class Condition:
    """Liveness and readiness of one node."""

    def __init__(self, context: NodeContext, lease: Lease, report: NodeReport) -> None:
        self._context = context
        self._report = report
        self._lease = lease
        self._turned_ms = context.clock.monotonic_ms()
        self.is_leaving = False
        """True once a clean stop began: the node still serves, but other nodes should do without
        it."""
        self.is_recovered = False
        """True once the replicas on the disks are known."""

    def turned(self) -> None:
        """The loop came around."""
        self._turned_ms = self._context.clock.monotonic_ms()

    def why_not_started(self) -> str:
        """Return why the node has not started; empty once it has. It does not depend on the
        coordinator: a node that waits for one must not be started again and again."""
        return "" if self.is_recovered else "it is recovering its disks"

    def why_not_live(self) -> str:
        """Return why the node is not alive; empty while it is."""
        now_ms = self._context.clock.monotonic_ms()
        if (late_ms := now_ms - self._turned_ms) > LOOP_LATE_MS_MAX:
            return f"the event loop has not turned for {late_ms / 1000:.0f} s"
        if (busy_ms := self._context.pool.busy_ms(now_ms)) > WRITE_MS_MAX:
            return f"a write to a disk has not returned for {busy_ms / 1000:.0f} s"
        return ""

    def why_not_ready(self) -> str:
        """Return why the node is not ready; empty while it is."""
        if why := self.why_not_live() or self.why_not_started():
            return why
        if self.is_leaving:
            return "it is stopping"
        if not self._lease.is_valid:
            return "the coordinator has not heard of it within its lease"
        return "its disks are full" if self._report.is_full else ""
