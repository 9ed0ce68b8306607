"""Recovery-seal: what happens to a segment whose leader is gone.

This room finds such segments and takes them through the steps of a round: whom to call, how long to
wait, when to call a person. What is known of one segment meanwhile, and what follows from it, is
its ``recovery_case`` until its end is decided, and its ``decided_case`` from then on. All segments
that need it at the same moment share a round, with one call per node and step. The states of a
case, with what leads to the next one; ``*`` is a commit::

    ACTIVE
      | * freeze
    RECOVERING
      | fence every replica
      |
      +-- replies prove no end, or contradict each other (an alert)
      |     |
      |     +-- every replica is UNKNOWN, restart_empty: * allowed, left
      |     +-- no loss is allowed: left
      |     +-- allowed: fence with salvage, * begin_unclean
      |           |
      |           +-- a log was found ----> decided, lossy
      |           +-- none was found -----> written, lossy, without copies
      |
    decided
      | the donor, whose log is the longest, verifies it to the end
    donor known
      | the others copy what they lack
    written: min_insync_replicas replicas hold all of it, or it is empty
      | * prepare a successor; its candidates create files
      | * seal, open the successor, move the tail: one transaction
    SEALED; dropped if it is empty

A case that can't take a step is left: its record stays RECOVERING, and after a wait
(``KeyedBackoff``) a new round begins with the fence. Without a successor a segment is sealed all
the same, and ``tail_opening`` opens one later; an empty one waits for it (but for R68). The store
knows the commits above and no other steps, so the next coordinator goes on by looking. Two things
outlast a round in memory: the requests, and the highest promise that a replica refused ours for.
Both are told again if they are lost.

What may run at the same time:

- Several rounds, but a segment is in one of them only (``KeyedBackoff.take``). Unclean ones have
  rounds of their own. A step calls all nodes at once; the steps of a round follow each other.
- Other changes of the record. Each is decided under the lock of the ledger, against the newest
  record: a live seal comes before the freeze or is refused. A record that changes after the freeze
  makes our seal fail, and the next round takes the new one.
- The round of an older coordinator, whose coordinator epoch the store and the nodes refuse (R36);
  late calls of an earlier round, which nodes check against what they hold and have promised (R60,
  R61).

What was tried and did not stay:

- To keep a leader's request in memory. A coordinator that died took it along, and the partition
  took no appends for ever. Now RECOVERING is stored before the leader is answered (R29).
- To ask a leader left alone to roll. It waited for its followers; a recovery by S1 does not.
- Unclean recoveries in the usual rounds. Nodes may read whole logs for them, and a round ends with
  its slowest call.
- A second driver for unclean ones. Now the heal loop starts every round, and an admin's call waits.
- One outcome for all messages to a node. An error in a later one threw away the answers to the
  earlier ones, and the round was repeated as a whole.

Rules of docs/design/protocol.md that live here: R30 (``_freeze``, ``_fence``), R33
(``_write_back_donors`` to ``_seal``), R35 (``needed``), and the recoveries of R46 and R68. R31 and
R32 are decided in ``icecore_replication.recovery``, R34 in ``segment_opening``.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from icecore.errors import IcecoreError
from icecore.model import (
    NodeId,
    Segment,
    SegmentId,
    SegmentState,
)
from icecore.process.log import event
from icecore.rpc.ports import Clock
from icecore_coordinator.decisions.lossy_changes import begin_unclean
from icecore_coordinator.decisions.segment_changes import (
    Opening,
    awaits_topic,
    seal,
    start_recovery,
)
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.nodes.fan_out import by_node
from icecore_coordinator.nodes.node_calls import WrittenReplica
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, PartitionKey
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.recovery.case_calls import CaseCalls
from icecore_coordinator.work.recovery.decided_case import DecidedCase
from icecore_coordinator.work.recovery.recovery_case import Case
from icecore_coordinator.work.recovery.total_loss import TotalLosses
from icecore_coordinator.work.segments.segment_opening import SegmentOpening
from icecore_coordinator.work.worker_ports import WorkerPorts
from icecore_replication.recovery import FenceReply, Undecidable

_log = logging.getLogger(__name__)

DELETED_AT_ONCE = 16
"""Their seals share disks with whoever produces."""


class Laps:
    """The duration of each step, for the log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_ms = self._last_ms = clock.monotonic_ms()
        self._laps: dict[str, int] = {}

    def end(self, step: str) -> None:
        """A step is over; the next begins."""
        now = self._clock.monotonic_ms()
        self._laps[step] = round(now - self._last_ms)
        self._last_ms = now

    def of(self, step: str) -> int | None:
        """Milliseconds that a step took; None when it did not end."""
        return self._laps.get(step)

    def took_ms(self) -> int:
        """Milliseconds of all steps that ended."""
        return round(self._last_ms - self._started_ms)


class Recovery:
    """Finds the segments that need a recovery and recovers them."""

    def __init__(self, ports: WorkerPorts, opening: SegmentOpening) -> None:
        self.count = 0
        """Recovery-seals done by this process."""
        self.backoff: KeyedBackoff[SegmentId] = KeyedBackoff(
            ports.clock, ports.timing.retry_ms, ports.timing.retry_max_ms
        )
        """Back-off of segments; a caller that waits for one announces it here with ``awaited``."""
        self._ledger = ports.ledger
        self._calls = ports.calls
        self._live = ports.live
        self._heard = ports.heard
        self._copies = ports.copies
        self._alerts = ports.alerts
        self._clock = ports.clock
        self._timing = ports.timing
        self._opening = opening
        self._case_calls = CaseCalls(ports)
        self._losses = TotalLosses(ports)
        self._requested: dict[SegmentId, None] = {}
        self._resting: set[SegmentId] = set()
        """Empty ones of deleted topics, which stay as they are until their topic is back."""

    def request(self, segment_id: SegmentId) -> None:
        """Also of a leader that is well; whoever asks for it sees again that it is needed."""
        self._requested[segment_id] = None

    def needed(self) -> list[SegmentId]:
        """Level-triggered: whatever is not led by a registered, live incarnation; and, a few at a
        time, what is open in deleted topics that are kept, for nobody waits for that (R68)."""
        state = self._ledger.state
        self.backoff.forget(lambda each: each not in state.unsealed)
        found: dict[SegmentId, None] = {}
        deleted: list[SegmentId] = []
        for led, segment_ids in state.open.groups.items():
            if led.state is SegmentState.PREPARED:
                continue
            topic = state.topics.get(led.topic_id)
            if topic is None or not topic.is_live:
                deleted += segment_ids if topic is not None and topic.is_kept else ()
            elif led.state is SegmentState.RECOVERING or not self._has_leader(segment_ids):
                found.update(segment_ids)
        asked_for = filter(self._may_recover, (*self._requested, *self._copies.shut_out))
        found.update(dict.fromkeys(asked_for))
        due = [each for each in found if self.backoff.is_due(each)]
        self._resting.intersection_update(deleted)
        room = DELETED_AT_ONCE - sum(self.backoff.is_taken(each) for each in deleted)
        unhurried = [
            each for each in deleted if each not in self._resting and self.backoff.is_due(each)
        ]
        return self.backoff.in_turn(due) + unhurried[: max(0, room)]

    def _has_leader(self, segment_ids: Iterable[SegmentId]) -> bool:
        """Return whether who leads these, one for all of them, is registered and up."""
        state = self._ledger.state
        return state.leader_is_live(state.segments[next(iter(segment_ids))].segment, self._live)

    def _may_recover(self, segment_id: SegmentId) -> bool:
        """Return whether it is open, of a live topic; whoever asked for it may have asked long
        ago."""
        state = self._ledger.state
        record = state.segments.get(segment_id)
        if record is None or record.segment.state is not SegmentState.ACTIVE:
            return False
        return state.is_live_topic(record.segment.topic_id)

    async def recover(self, segment_ids: Sequence[SegmentId]) -> None:
        """Try once to recover these segments; what fails is tried again later."""
        mine = self.backoff.take(segment_ids)
        if not mine:
            return
        laps = Laps(self._clock)
        try:
            cases = await self._freeze(mine)
            laps.end("freeze")
            decided = await self._fence(cases)
            laps.end("fence")
            decided = await self._write_back_donors(decided)
            decided = await self._write_back_others(decided)
            laps.end("write_back")
            openings = await self._open_successors(decided)
            laps.end("open")
            await self._seal(decided, openings)
            laps.end("seal")
        finally:
            state = self._ledger.state
            left = 0
            for segment_id in mine:
                record = state.segments.get(segment_id)
                is_done = record is None or record.segment.state == SegmentState.SEALED
                left += not is_done
                if is_done:
                    self._requested.pop(segment_id, None)
                    self._case_calls.forget(segment_id)
                self.backoff.release(segment_id, is_done=is_done or segment_id in self._resting)
            event(
                _log,
                logging.INFO,
                "recovery_round",
                segments=len(mine),
                left=left,
                freeze_ms=laps.of("freeze"),
                fence_ms=laps.of("fence"),
                write_back_ms=laps.of("write_back"),
                open_ms=laps.of("open"),
                seal_ms=laps.of("seal"),
                took_ms=laps.took_ms(),
            )

    async def _freeze(self, segment_ids: Sequence[SegmentId]) -> list[Case]:
        def decision(state: ClusterState, segment_id: SegmentId) -> Change:
            record = state.segments.get(segment_id)
            if record is None or record.segment.state != SegmentState.ACTIVE:
                return Change()
            return start_recovery(state, segment_id, record.version)

        await self._ledger.decide_each(segment_ids, decision)
        cases = []
        for segment_id in segment_ids:
            record = self._ledger.state.segments.get(segment_id)
            if record is not None and record.segment.state == SegmentState.RECOVERING:
                cases.append(
                    Case(
                        record.segment,
                        record.is_unclean_allowed,
                        known_promise=self._case_calls.known_promise(segment_id),
                        is_lossy=record.is_unclean_begun,
                    )
                )
        return cases

    async def _fence(self, cases: Sequence[Case]) -> list[DecidedCase]:
        """Cases whose end is decided."""

        def take(case: Case, node_id: NodeId, reply: FenceReply) -> None:
            case.replies[node_id] = reply

        await self._case_calls.ask(
            by_node(
                (node_id, (case, (case.segment_id, case.promise)))
                for case in cases
                for node_id in case.segment.replicas
            ),
            lambda node_id, mine: self._calls.fence(
                node_id, mine, self._timing.fence_call_ms / 1000
            ),
            take,
            lambda: all(case.may_decide() for case in cases),
        )
        decided = {case.segment_id: self._decide(case) for case in cases}
        undecided = [each for each in cases if not (each.may_decide() or each.is_unclean_allowed)]
        await self._losses.allow([(each.segment, each.replies) for each in undecided])
        stuck = [
            case for case in cases if decided[case.segment_id] is None and case.is_unclean_allowed
        ]
        if stuck:
            await self._look_for_more(stuck)
        for case in await self._begin_unclean(stuck):
            decided[case.segment_id] = self._decide_unclean(case)
        return [each for each in decided.values() if each is not None]

    async def _begin_unclean(self, cases: Sequence[Case]) -> list[Case]:
        """Those that may go on, and whose records say from now on that they are lossy."""
        results = await self._ledger.decide_each(
            cases, lambda state, case: begin_unclean(state, case.segment_id)
        )
        begun = []
        for case, result in zip(cases, results, strict=True):
            if not isinstance(result, IcecoreError):
                case.segment = self._ledger.state.segments[case.segment_id].segment
                case.is_lossy = True
                begun.append(case)
        return begun

    async def _look_for_more(self, cases: Sequence[Case]) -> None:
        """The loss is accepted, so what can be proved of UNKNOWN logs is worth having."""

        def take(case: Case, node_id: NodeId, reply: FenceReply) -> None:
            case.replies[node_id] = reply

        await self._case_calls.ask(
            by_node(
                (node_id, (case, (case.segment_id, case.promise)))
                for case in cases
                for node_id in case.segment.replicas
            ),
            lambda node_id, mine: self._calls.fence(
                node_id, mine, self._timing.copy_call_ms / 1000, salvage=True
            ),
            take,
            lambda: False,
        )

    def _decide(self, case: Case) -> DecidedCase | None:
        """The end that the replies prove, if they prove one."""
        if not case.may_decide():
            intact = [node_id for node_id, reply in case.replies.items() if reply.intact]
            event(
                _log,
                logging.WARNING,
                "recovery_undecided",
                segment_id=case.segment_id,
                replicas=case.segment.replicas,
                intact=intact,
            )
            return None
        decided = case.decide(self._tripwire(case))
        if isinstance(decided, Undecidable):
            self._alerts.raise_alert(AlertKind.UNDECIDED, case.segment_id, decided.why)
            return None
        return decided

    def _log_start(self, case: Case) -> int:
        key = (case.segment.topic_id, case.segment.partition)
        partition = self._ledger.state.partitions.get(key)
        return partition.log_start_offset if partition else 0

    def _tripwire(self, case: Case) -> int:
        """The highest watermark that anybody is known to have seen; a log start was one (I19)."""
        known = self._heard.high_watermark(case.segment_id) or 0
        return max(known, self._log_start(case))

    def _decide_unclean(self, case: Case) -> DecidedCase:
        """The end that was accepted; say loudly what it is."""
        decided = case.decide_unclean(
            self._tripwire(case), self._log_start(case), self._clock.now_ms()
        )
        end = decided.end
        if decided.is_donor_unknown:
            event(
                _log,
                logging.CRITICAL,
                "salvaged",
                segment_id=case.segment_id,
                node_id=end.donor,
                end_offset=end.end_offset,
            )
        event(
            _log,
            logging.CRITICAL,
            "unclean_recovery",
            segment_id=case.segment_id,
            end_offset=end.end_offset,
            donor=end.donor,
            seen=self._tripwire(case),
        )
        return decided

    async def _write_back_donors(self, cases: Sequence[DecidedCase]) -> list[DecidedCase]:
        """Cases whose longest replica has verified itself and told its digest and producers."""

        def take(case: DecidedCase, node_id: NodeId, written: WrittenReplica) -> None:
            if not case.take_donor(written):
                event(
                    _log,
                    logging.CRITICAL,
                    "producer_state_refused",
                    segment_id=case.segment_id,
                    node_id=node_id,
                )

        asked = [
            (case.end.donor, (case, case.order_to_donor())) for case in cases if not case.is_lost
        ]
        reports = self._copies.count
        await self._case_calls.ask(
            by_node(asked),
            lambda node_id, mine: self._calls.write_back(
                node_id, mine, self._timing.copy_call_ms / 1000
            ),
            take,
            lambda: all(case.donor is not None for case in cases),
        )
        for case in cases:
            if case.donor is not None and not case.is_lost:
                case.verified[case.end.donor] = case.donor.incarnation
                self._copies.copied(case.end.donor, case.segment_id, reports)
        return [case for case in cases if case.donor is not None]

    async def _write_back_others(self, cases: Sequence[DecidedCase]) -> list[DecidedCase]:
        """Cases with at least min_insync_replicas durable copies through their end."""

        def take(case: DecidedCase, node_id: NodeId, written: WrittenReplica) -> None:
            if case.agrees_with_donor(written):
                case.verified[node_id] = written.incarnation
                self._copies.copied(node_id, case.segment_id, reports)
            else:
                self._alerts.raise_alert(
                    AlertKind.DIVERGED, case.segment_id, f"node {node_id}: digests differ"
                )

        state, reports = self._ledger.state, self._copies.count
        asked = []
        for case in cases:
            if case.is_lost:
                continue
            item = case.order_to_target(state.nodes[case.end.donor].address)
            for node_id in case.targets(state, self._live):
                self._heard.forget_end(case.segment_id, node_id)
                asked.append((node_id, (case, item)))
        await self._case_calls.ask(
            by_node(asked),
            lambda node_id, mine: self._calls.write_back(
                node_id, mine, self._timing.copy_call_ms / 1000
            ),
            take,
            lambda: all(case.is_written() for case in cases),
        )
        return [case for case in cases if case.is_written()]

    async def _open_successors(self, cases: Sequence[DecidedCase]) -> dict[PartitionKey, Opening]:
        wanted: dict[PartitionKey, Segment | None] = {case.key: case.segment for case in cases}
        prepared = await self._opening.prepare(wanted)
        items = [
            case.successor_to_open(successor)
            for case in cases
            if (successor := prepared.get(case.key)) is not None
        ]
        openings = await self._opening.confirm(items)
        return {
            key: openings[successor.segment_id]
            for key, successor in prepared.items()
            if successor.segment_id in openings
        }

    async def _seal(
        self, cases: Sequence[DecidedCase], openings: Mapping[PartitionKey, Opening]
    ) -> None:
        now_ms = self._clock.now_ms()

        def decision(state: ClusterState, case: DecidedCase) -> Change:
            return seal(state, self._live, case.sealing(state), openings.get(case.key), now_ms)

        results = await self._ledger.decide_each(cases, decision)
        for case, result in zip(cases, results, strict=True):
            if isinstance(result, IcecoreError):
                event(
                    _log,
                    logging.WARNING,
                    "recovery_not_sealed",
                    segment_id=case.segment_id,
                    error=result,
                )
                if case.is_empty and awaits_topic(self._ledger.state, case.segment):
                    self._resting.add(case.segment_id)
                continue
            self.count += 1
            opening = openings.get(case.key)
            event(
                _log,
                logging.INFO,
                "recovered",
                segment_id=case.segment_id,
                end_offset=case.end.end_offset,
                replicas=sorted(case.verified),
                successor=opening.segment_id if opening else 0,
            )
