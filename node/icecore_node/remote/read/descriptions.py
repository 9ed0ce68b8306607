"""Metadata of published copies of segments, asked of the coordinator and cached for a limited time.

A published copy does not change, but it may be replaced (another attempt) and goes with the last of
its records. So an answer is asked for again when it is old, and at once when its objects turn out
not to be what it says. While no coordinator answers, the last answer counts: its objects prove
themselves, and what is deleted only goes after a grace that is longer than any read.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from icecore.errors import IcecoreError, NotReplicaError
from icecore.model import Segment, SegmentId
from icecore.rpc import convert
from icecore.rpc.ports import Clock
from icecore.topic_settings import PARQUET_FORMAT
from icecore.v1 import coordinator_pb2
from icecore_node.timing import NodeTiming

KNOWN_MAX: Final = 16_384

Ask: TypeAlias = Callable[[SegmentId, int], Awaitable[coordinator_pb2.DescribedCopy]]
"""Asks about a segment; tells the attempt of a copy that could not be read, 0 = none."""


@dataclass(frozen=True, slots=True)
class DescribedCopy:
    """A published copy."""

    segment: Segment
    attempt: int
    manifest_sha256: bytes
    tier_format: str


@dataclass(slots=True)
class _Known:
    asked_ms: float
    description: DescribedCopy | None
    error: IcecoreError | None


class Descriptions:
    """Cache of the coordinator's answers, by segment. Loop only.

    Args:
        ask: Asks the coordinator about one segment; requests made at the same time share a call.
        clock: Says how old an answer is.
        timing: Says how old an answer may be. Deletions are noticed this late. A refusal is kept as
            well, so repeated requests for a missing copy do not reach the coordinator.
    """

    def __init__(self, ask: Ask, clock: Clock, timing: NodeTiming) -> None:
        self._ask = ask
        self._clock = clock
        self._timing = timing
        self._known: OrderedDict[SegmentId, _Known] = OrderedDict()
        self._asking: dict[SegmentId, asyncio.Task[_Known]] = {}

    async def of(
        self, segment_id: SegmentId, *, newer_than: DescribedCopy | None = None
    ) -> DescribedCopy:
        """The published copy of a segment.

        Args:
            segment_id: The segment.
            newer_than: A description that proved wrong. If it is still the cached one, the
                coordinator is asked again, whatever its age.

        Raises:
            NotReplicaError: There is no such segment (any more), or no published copy of it.
            IcecoreError: No coordinator answered, and nothing was known.
        """
        known = self._known.get(segment_id)
        is_refuted = (
            newer_than is not None
            and known is not None
            and (known.description is None or known.description == newer_than)
        )
        if known is None or is_refuted or self._is_old(known):
            refuted = newer_than.attempt if newer_than is not None else 0
            known = await self._renewed(segment_id, known, refuted)
        if known.description is None:
            assert known.error is not None
            raise known.error.again()
        return known.description

    def _is_old(self, known: _Known) -> bool:
        age_ms = self._clock.monotonic_ms() - known.asked_ms
        if known.description is None:
            return age_ms >= self._timing.refusal_keep_ms
        return age_ms >= self._timing.description_keep_ms

    async def _renewed(self, segment_id: SegmentId, before: _Known | None, refuted: int) -> _Known:
        task = self._asking.get(segment_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._look_up(segment_id, refuted))
            self._asking[segment_id] = task
            task.add_done_callback(lambda ended: self._ended(segment_id, ended))
        try:
            await asyncio.wait({task})
            return task.result()
        except IcecoreError as error:
            if before is not None and error.retriable:
                return before
            raise
        finally:
            del task  # it has an error, which has this frame: neither would go by itself

    def _ended(self, segment_id: SegmentId, task: "asyncio.Task[_Known]") -> None:
        del self._asking[segment_id]
        if not task.cancelled():
            task.exception()  # looked at, even when everybody has left

    async def _look_up(self, segment_id: SegmentId, refuted: int) -> _Known:
        asked_ms = self._clock.monotonic_ms()
        answer = await self._ask(segment_id, refuted)
        found = _known(segment_id, answer, asked_ms)
        self._known[segment_id] = found
        self._known.move_to_end(segment_id)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return found


def _known(segment_id: SegmentId, answer: coordinator_pb2.DescribedCopy, asked_ms: float) -> _Known:
    error = convert.error_from_proto(answer.error)
    if error is None and not (answer.HasField("segment") and answer.HasField("copy")):
        error = NotReplicaError(f"no copy of segment {segment_id} is described")
    if error is not None:
        refusal = NotReplicaError(
            f"segment {segment_id} is not in object storage: {error.message}",
            segment_id=segment_id,
        )
        return _Known(asked_ms, None, refusal)
    copy = answer.copy
    return _Known(
        asked_ms,
        DescribedCopy(
            convert.segment_from_proto(answer.segment),
            copy.attempt,
            copy.manifest_sha256,
            copy.tier_format or PARQUET_FORMAT,
        ),
        None,
    )
