"""The calls of a recovery: each node is asked once per step, about all cases that concern it.

A node that does not answer costs a wait and nothing else: its cases go on with the others' answers
or stay for the next round. Of what fails one thing is kept: the highest promise that a replica
refused ours for, because the next round must not promise less (R65).
"""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from icecore.errors import FencedError, IcecoreError
from icecore.model import NO_EPOCH, Epoch, NodeId, SegmentId
from icecore.process.log import event
from icecore_coordinator.nodes.fan_out import fan_out
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

T = TypeVar("T")


class AnyCase(Protocol):
    """A case, before its end is decided or after."""

    @property
    def segment_id(self) -> SegmentId:
        """The id of the case's segment."""
        ...


CaseT = TypeVar("CaseT", bound=AnyCase)


class CaseCalls:
    """Asks nodes about cases, and remembers what they have promised already."""

    def __init__(self, ports: WorkerPorts) -> None:
        self._clock = ports.clock
        self._live = ports.live
        self._timing = ports.timing
        self._promises: dict[SegmentId, Epoch] = {}
        """By segment: the highest promise that a replica refused ours for."""

    def known_promise(self, segment_id: SegmentId) -> Epoch:
        """The highest promise that a replica refused ours for; 0 when none did."""
        return self._promises.get(segment_id, NO_EPOCH)

    def forget(self, segment_id: SegmentId) -> None:
        """Its recovery is over."""
        self._promises.pop(segment_id, None)

    async def ask(
        self,
        asked: Mapping[NodeId, Sequence[tuple[CaseT, Any]]],
        call: Callable[[NodeId, Sequence[Any]], Coroutine[Any, Any, list[T | IcecoreError]]],
        take: Callable[[CaseT, NodeId, T], None],
        is_enough: Callable[[], bool],
    ) -> None:
        """One call per node about its cases; ``take`` sees each good answer, perhaps twice."""

        def collect(answers: Mapping[NodeId, Sequence[T | IcecoreError] | IcecoreError]) -> None:
            for node_id, results in answers.items():
                if isinstance(results, IcecoreError):
                    continue
                for (case, _), result in zip(asked[node_id], results, strict=True):
                    if not isinstance(result, IcecoreError):
                        take(case, node_id, result)

        def enough(answers: Mapping[NodeId, Sequence[T | IcecoreError]]) -> bool:
            collect(answers)
            return is_enough()

        answers = await fan_out(
            self._clock,
            {node_id: call(node_id, [item for _, item in mine]) for node_id, mine in asked.items()},
            required=[node_id for node_id in asked if self._live.is_live(node_id)],
            patience_ms=self._timing.recovery_wait_ms,
            is_enough=enough,
        )
        collect(answers)
        self._log_failures(asked, answers)

    def _log_failures(
        self,
        asked: Mapping[NodeId, Sequence[tuple[CaseT, Any]]],
        answers: Mapping[NodeId, Sequence[T | IcecoreError] | IcecoreError],
    ) -> None:
        for node_id, results in answers.items():
            if isinstance(results, IcecoreError):
                event(_log, logging.INFO, "recovery_call_failed", node_id=node_id, error=results)
                continue
            for (case, _), result in zip(asked[node_id], results, strict=True):
                if isinstance(result, IcecoreError):
                    event(
                        _log,
                        logging.WARNING,
                        "recovery_step_failed",
                        node_id=node_id,
                        segment_id=case.segment_id,
                        error=result,
                    )
                    self._note_promise(case.segment_id, result)

    def _note_promise(self, segment_id: SegmentId, error: IcecoreError) -> None:
        """The next round must not promise less than what was promised already."""
        promised = error.metadata.get("promised_epoch", "")
        if isinstance(error, FencedError) and promised.isdecimal() and len(promised) < 20:
            known = self._promises.get(segment_id, NO_EPOCH)
            self._promises[segment_id] = max(known, Epoch(int(promised)))
