"""Rules R10-R13: a follower appends what continues its log and reports what is durable."""

from dataclasses import replace

import pytest

from icecore.errors import InternalError, OutOfSpaceError
from icecore_replication.checked import Checked
from icecore_replication.effects import (
    AdvanceHighWatermark,
    AppendReplica,
    DiscardReplica,
    FollowerEffect,
    Quarantine,
    ReportProgress,
    StopFollowing,
)
from icecore_replication.follower import FollowerCore
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
from tests.support.replication_setup import BASE, segment

EPOCH = 5
DELIVERY = 7


class Following:
    """A follower under test, attached; each call is one checked step."""

    def __init__(self, end: int = BASE, high_watermark: int = 0) -> None:
        self.core = FollowerCore(segment(), end, end, high_watermark, last_header_crc32c=end)
        self._checked = Checked(self.core, check_every_steps=1)

    def do(self, *inputs: FollowerInput) -> list[FollowerEffect]:
        return self._checked.step(inputs, 0.0)


def data(
    base: int, end: int, hw: int = 0, epoch: int = EPOCH, chained: bool = True
) -> DataReceived:
    """Batches whose last header has their end for its CRC."""
    return DataReceived(
        delivery_id=DELIVERY,
        epoch=epoch,
        base_offset=base,
        end_offset=end,
        prev_header_crc32c=base if chained else base + 1,
        last_header_crc32c=end,
        high_watermark=hw,
    )


@pytest.fixture
def following() -> Following:
    fresh = Following()
    assert fresh.do(StreamOpened()) == [ReportProgress(BASE, attach=True)]
    return fresh


def test_append_then_durable_then_report(following: Following) -> None:
    assert following.do(data(100, 110)) == [AppendReplica(DELIVERY, 100, 110)]
    assert following.core.durable_end_offset == 100
    assert following.do(data(110, 130)) == [AppendReplica(DELIVERY, 110, 130)]
    assert following.do(LocalDurable(110)) == [ReportProgress(110)]
    assert following.do(LocalDurable(110)) == []
    assert following.do(LocalDurable(130)) == [ReportProgress(130)]


def test_readers_see_no_more_than_is_durable_here(following: Following) -> None:
    assert following.do(data(100, 110, hw=105)) == [AppendReplica(DELIVERY, 100, 110)]
    assert following.core.high_watermark == 100
    assert following.core.max_known_high_watermark == 105
    assert following.do(LocalDurable(110)) == [ReportProgress(110), AdvanceHighWatermark(105)]
    assert following.do(WatermarkReceived(EPOCH, 110)) == [AdvanceHighWatermark(110)]
    assert following.do(WatermarkReceived(EPOCH, 108)) == []  # never back


@pytest.mark.parametrize(("base", "end"), [(100, 110), (90, 100), (105, 110), (110, 110)])
def test_batches_we_have_are_ignored(following: Following, base: int, end: int) -> None:
    following.do(data(100, 110), LocalDurable(110))
    assert following.do(data(base, end)) == [DiscardReplica(DELIVERY)]
    assert following.core.log_end_offset == 110


@pytest.mark.parametrize(("base", "end"), [(120, 130), (105, 120)], ids=["gap", "straddles"])
def test_gap_attaches_again_at_a_durable_end(following: Following, base: int, end: int) -> None:
    following.do(data(100, 110))
    dropped = [DiscardReplica(DELIVERY)]
    assert following.do(data(base, end)) == dropped  # 100..110 is on its way to the disk
    assert following.do(data(110, 120)) == dropped  # in flight from before the attach
    assert following.do(LocalDurable(110)) == [ReportProgress(110, attach=True)]
    assert following.do(data(base, end)) == dropped  # asked once, not per stale message
    assert following.do(data(110, 120)) == [AppendReplica(DELIVERY, 110, 120)]


@pytest.mark.parametrize("item", [StreamOpened(), DataCorrupt("a CRC is wrong")])
def test_attaches_again_when_all_is_durable(following: Following, item: FollowerInput) -> None:
    following.do(data(100, 110))
    assert following.do(item) == []
    assert following.do(data(110, 120)) == [DiscardReplica(DELIVERY)]
    assert following.do(LocalDurable(110)) == [ReportProgress(110, attach=True)]


@pytest.mark.parametrize(
    ("item", "effect"),
    [
        (data(100, 110, chained=False), Quarantine),
        (LeaderRejected("DIVERGED"), Quarantine),
        (LeaderRejected("FENCED"), StopFollowing),
        (data(100, 110, epoch=EPOCH + 1), StopFollowing),
        (data(100, 110, epoch=EPOCH - 1), StopFollowing),
        (WatermarkReceived(EPOCH + 1, 110), StopFollowing),
        (Fenced(EPOCH + 1), StopFollowing),
        (LocalFailed(OutOfSpaceError("full")), StopFollowing),
    ],
)
def test_what_ends_following(following: Following, item: FollowerInput, effect: type) -> None:
    ended, *dropped = following.do(item)
    assert isinstance(ended, effect)
    assert dropped == ([DiscardReplica(DELIVERY)] if isinstance(item, DataReceived) else [])
    assert following.core.stopped
    assert following.do(data(100, 110), StreamOpened()) == [DiscardReplica(DELIVERY)]
    assert following.core.log_end_offset == BASE


def test_own_epoch_fences_nothing(following: Following) -> None:
    assert following.do(Fenced(EPOCH)) == []


def test_restart_keeps_what_was_visible() -> None:
    back = Following(end=150, high_watermark=140)
    assert back.core.high_watermark == 140
    assert back.do(StreamOpened()) == [ReportProgress(150, attach=True)]


def test_shell_must_not_report_more_than_was_appended(following: Following) -> None:
    with pytest.raises(InternalError, match="DataReceived"):
        following.do(data(100, 110), LocalDurable(111))


def test_the_chain_is_that_of_what_was_appended_last(following: Following) -> None:
    following.do(data(100, 110), data(90, 130), data(110, 120))
    assert following.do(LocalDurable(110)) == [ReportProgress(110, attach=True)]
    broken, _ = following.do(data(110, 120, chained=False))
    assert isinstance(broken, Quarantine)
    assert following.core.log_end_offset == 110


def test_each_delivery_comes_back_once(following: Following) -> None:
    arrived = [data(100, 110), data(100, 110), data(130, 140), data(110, 120)]
    effects = following.do(*(replace(each, delivery_id=n) for n, each in enumerate(arrived)))
    kept = [each.delivery_id for each in effects if isinstance(each, AppendReplica)]
    dropped = [each.delivery_id for each in effects if isinstance(each, DiscardReplica)]
    assert (kept, dropped) == ([0], [1, 2, 3])
