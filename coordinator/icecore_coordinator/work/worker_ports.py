"""Dependencies that every worker of the coordinator shares: the state, the nodes, and the time."""

from dataclasses import dataclass

from icecore.rpc.ports import Clock
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.alerts import Alerts
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.nodes.node_calls import NodeCalls
from icecore_coordinator.nodes.reported_state import ReportedState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.timing import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPorts:
    """Made once. Workers take it whole, so what one of them needs besides moves no constructor."""

    ledger: Ledger
    calls: NodeCalls
    live: Liveness
    heard: ReportedState
    copies: CopyReports
    alerts: Alerts
    clock: Clock
    timing: Timing
