"""One follower's view of a segment: what is appended here, what is durable, what readers may see.

A follower never decides anything: it appends what continues its log, reports an offset only once it
is durable, and stops asking when something contradicts its log. When a stream begins, the leader
compares both logs (``serving/replication/follower_stream.py``). Rules R10-R13 of
docs/design/protocol.md.
"""

from collections.abc import Sequence
from typing import assert_never

from icecore.errors import InternalError
from icecore.model import Epoch, Segment
from icecore_replication.effects import (
    AdvanceHighWatermark,
    AppendReplica,
    DiscardReplica,
    FollowerEffect,
    Quarantine,
    ReportProgress,
    StopFollowing,
    Story,
)
from icecore_replication.inputs import (
    DataCorrupt,
    DataReceived,
    Fenced,
    FollowerInput,
    LeaderRejected,
    LocalDurable,
    LocalFailed,
    StreamOpened,
    WatermarkReceived,
)


class FollowerCore:
    """Replica of a segment that another node leads.

    Args:
        segment: The record, ACTIVE.
        log_end_offset: Of the log here; all of it was fsynced at start-up.
        durable_end_offset: Same, unless appends are on their way.
        high_watermark: The highest one known to have been visible (0 or the base when none).
        last_header_crc32c: Of the batch that ends the log; the chain's seed when there is none.
    """

    def __init__(
        self,
        segment: Segment,
        log_end_offset: int,
        durable_end_offset: int,
        high_watermark: int,
        *,
        last_header_crc32c: int,
    ) -> None:
        self.segment = segment
        self.log_end_offset = log_end_offset
        self.durable_end_offset = durable_end_offset
        self.max_known_high_watermark = max(high_watermark, segment.base_offset)
        self.stopped = False
        """True after StopFollowing or Quarantine: only a new assignment starts a new core."""
        self._last_header_crc32c = last_header_crc32c
        self._exposed = self.high_watermark
        self._attach_wanted = False
        self._in_step = False
        self._story = Story()

    @property
    def high_watermark(self) -> int:
        """The offset below which readers may read here: the leader's high watermark, as far as it
        is durable here."""
        return min(self.max_known_high_watermark, self.durable_end_offset)

    def step(self, inputs: Sequence[FollowerInput], now_ms: float) -> list[FollowerEffect]:
        """Take these inputs in order; what comes back must be done in order.

        Args:
            inputs: What happened. After the core has stopped data is only discarded.
            now_ms: Unused: a follower has no timers. Same shape as ``LeaderCore.step``.
        """
        effects: list[FollowerEffect] = []
        durable_before = self.durable_end_offset
        for item in inputs:
            self._story.took(item)
            if not self.stopped:
                self._take(item, effects)
            elif isinstance(item, DataReceived):
                effects.append(DiscardReplica(item.delivery_id))
        if not self.stopped:
            self._tell(durable_before, effects)
        self._story.asked(effects)
        return effects

    def story(self) -> str:
        """The last inputs and effects, for error messages."""
        return str(self._story)

    def _tell(self, durable_before: int, effects: list[FollowerEffect]) -> None:
        """Tell the leader, and readers here, of progress that these inputs made."""
        if self._attach_wanted and self.durable_end_offset == self.log_end_offset:
            self._attach_wanted = False
            effects.append(ReportProgress(self.durable_end_offset, attach=True))
        elif self.durable_end_offset > durable_before:
            effects.append(ReportProgress(self.durable_end_offset))
        if self.high_watermark > self._exposed:
            self._exposed = self.high_watermark
            effects.append(AdvanceHighWatermark(self._exposed))

    def _take(self, item: FollowerInput, effects: list[FollowerEffect]) -> None:
        match item:
            case DataReceived():
                self._receive(item, effects)
            case WatermarkReceived(epoch, high_watermark):
                self._hear(epoch, high_watermark, effects)
            case LocalDurable(end_offset):
                if end_offset > self.log_end_offset:
                    raise InternalError(
                        f"durable to {end_offset}, the log ends at {self.log_end_offset}\n"
                        + self.story()
                    )
                self.durable_end_offset = max(self.durable_end_offset, end_offset)
            case StreamOpened() | DataCorrupt():
                self._attach()
            case LocalFailed(error):
                self._stop(StopFollowing(f"local append failed: {error}"), effects)
            case LeaderRejected(reason):
                if reason == "DIVERGED":
                    self._stop(Quarantine("the leader's chain differs from ours"), effects)
                else:
                    self._stop(StopFollowing(f"the leader says {reason}"), effects)
            case Fenced(epoch):
                if epoch > self.segment.epoch:
                    self._stop(StopFollowing(f"fenced by epoch {epoch}"), effects)
            case _:
                assert_never(item)

    def _hear(self, epoch: Epoch, high_watermark: int, effects: list[FollowerEffect]) -> None:
        """Take the epoch and high watermark that each message has. A message of another epoch is
        not our leader's, so the core stops."""
        if epoch != self.segment.epoch:
            self._stop(StopFollowing(f"epoch {epoch} is not ours, {self.segment.epoch}"), effects)
        elif high_watermark > self.max_known_high_watermark:
            self.max_known_high_watermark = high_watermark

    def _receive(self, data: DataReceived, effects: list[FollowerEffect]) -> None:
        self._hear(data.epoch, data.high_watermark, effects)
        if self.stopped or not self._continues(data, effects):
            effects.append(DiscardReplica(data.delivery_id))
            return
        self._in_step = True
        self.log_end_offset = data.end_offset
        self._last_header_crc32c = data.last_header_crc32c
        effects.append(AppendReplica(data.delivery_id, data.base_offset, data.end_offset))

    def _continues(self, data: DataReceived, effects: list[FollowerEffect]) -> bool:
        """Return whether these batches are to be appended now (R10)."""
        if data.end_offset <= self.log_end_offset:
            return False  # bytes we have
        if data.base_offset != self.log_end_offset:
            # A gap, or batches that straddle our end. What was sent before our last attach may look
            # like that too: it is dropped until the leader has started again at our end.
            if self._in_step:
                self._attach()
            return False
        if data.prev_header_crc32c != self._last_header_crc32c:
            self._stop(Quarantine(f"the chain breaks at offset {data.base_offset}"), effects)
            return False
        return not self._attach_wanted  # else in flight from before; it comes again

    def _attach(self) -> None:
        """Ask to be sent everything from our end, as soon as all of our log is durable."""
        self._attach_wanted = True
        self._in_step = False

    def _stop(self, effect: StopFollowing | Quarantine, effects: list[FollowerEffect]) -> None:
        self.stopped = True
        effects.append(effect)
