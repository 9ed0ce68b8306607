"""Live seals are checked before they are stored: nodes are asked what they hold themselves.

All seals of one message share one call per node, and nobody waits long for a member that is down.
What the answers mean is decided in ``icecore_replication/seal_check.py`` (R64). A message that
contradicts what readers have seen, or what members hold, is refused with an alert.
"""

from collections.abc import Mapping, Sequence

from icecore.errors import IcecoreError, StorageError
from icecore.model import NodeId, SegmentId
from icecore.rpc.ports import Clock
from icecore_coordinator.nodes.alerts import AlertKind, Alerts
from icecore_coordinator.nodes.fan_out import by_node, fan_out
from icecore_coordinator.nodes.node_calls import NodeCalls
from icecore_coordinator.nodes.reported_state import ReportedState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.timing import Timing
from icecore_replication.seal_check import MemberWord, SealClaim, agreed_replicas, check_watermark

Words = dict[SegmentId, dict[NodeId, MemberWord]]
"""By segment and node."""


class SealChecker:
    """Asks the members of segments that are to be sealed, and judges."""

    def __init__(
        self,
        *,
        calls: NodeCalls,
        live: Liveness,
        heard: ReportedState,
        alerts: Alerts,
        clock: Clock,
        timing: Timing,
    ) -> None:
        self._calls = calls
        self._live = live
        self._heard = heard
        self._alerts = alerts
        self._clock = clock
        self._timing = timing

    async def check(self, claims: Sequence[SealClaim]) -> list[tuple[NodeId, ...] | IcecoreError]:
        """The members that confirm each claim, or why it is refused; same order."""
        refused = {each.segment_id: self._contradiction(each) for each in claims}
        words = await self._ask([each for each in claims if refused[each.segment_id] is None])
        return [
            refused[each.segment_id] or self._judge(each, words[each.segment_id]) for each in claims
        ]

    def _contradiction(self, claim: SealClaim) -> StorageError | None:
        """Return an error that needs no questions to nodes: the end lies below a watermark that a
        leader reported. None = there is no such contradiction."""
        try:
            check_watermark(claim, self._heard.high_watermark(claim.segment_id) or 0)
        except StorageError as error:
            self._alerts.raise_alert(AlertKind.SEAL, claim.segment_id, error.message)
            return error
        return None

    def _judge(
        self, claim: SealClaim, words: Mapping[NodeId, MemberWord]
    ) -> tuple[NodeId, ...] | IcecoreError:
        try:
            return agreed_replicas(claim, words)
        except IcecoreError as error:
            if isinstance(error, StorageError):
                self._alerts.raise_alert(AlertKind.SEAL, claim.segment_id, error.message)
            return error

    async def _ask(self, claims: Sequence[SealClaim]) -> Words:
        words: Words = {each.segment_id: {} for each in claims}
        asked = by_node((node_id, each) for each in claims for node_id in each.replicas)

        def is_enough(answers: Mapping[NodeId, Sequence[MemberWord | IcecoreError]]) -> bool:
            for node_id, found in answers.items():
                _collect(words, node_id, asked[node_id], found)
            return all(_is_settled(each, words[each.segment_id]) for each in claims)

        answers = await fan_out(
            self._clock,
            {
                node_id: self._calls.check_seal(
                    node_id,
                    [each.segment_id for each in mine],
                    self._timing.seal_check_call_ms / 1000,
                )
                for node_id, mine in asked.items()
            },
            required=[node_id for node_id in asked if self._live.is_live(node_id)],
            patience_ms=self._timing.seal_check_wait_ms,
            is_enough=is_enough,
        )
        for node_id, found in answers.items():
            if not isinstance(found, IcecoreError):
                _collect(words, node_id, asked[node_id], found)
        return words


def _collect(
    words: Words,
    node_id: NodeId,
    asked: Sequence[SealClaim],
    answers: Sequence[MemberWord | IcecoreError],
) -> None:
    for claim, answer in zip(asked, answers, strict=True):
        if isinstance(answer, MemberWord):
            words[claim.segment_id][node_id] = answer


def _is_settled(claim: SealClaim, words: Mapping[NodeId, MemberWord]) -> bool:
    try:
        return bool(agreed_replicas(claim, words))
    except IcecoreError:
        return False
