"""Every order in which uploads, retention, local copies and the sweeper meet; and the mutants."""

import pytest

from icecore.model import NodeId, SegmentId
from icecore.tier_records import TierState, withdrawn
from icecore_coordinator.decisions.remote import tiering
from icecore_coordinator.decisions.remote.verified_copies import Verified, drop_expired_copies
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import (
    Change,
    CounterRecord,
    updated,
    updated_segment,
    without_copies,
)
from tests.model.tiering import COPY, KEY, SEGMENT, Rules, explore, withdraw


def publishes_closed(state: ClusterState, upload: tiering.Attempt) -> Change:
    """Publish the last answer, of a closed attempt too."""
    tier = state.tiers.segments.get(SEGMENT)
    if tier is None or SEGMENT not in state.segments:
        return Change()
    asked = updated(tier, attempt=upload.attempt, owner=upload.owner, owner_incarnation=1)
    state.tiers.put(asked)
    try:
        return tiering.publish(state, upload, COPY, 0)
    finally:
        state.tiers.put(tier)


def sweeps_current(state: ClusterState) -> list[tiering.Sweeping]:
    """Whatever is no published copy by now is swept."""
    tier = state.tiers.segments.get(SEGMENT)
    return (
        []
        if tier is None or not tier.attempt
        else [tiering.Sweeping(SEGMENT, tier.attempt, is_last=False)]
    )


def drops_unseen(state: ClusterState, _: Verified) -> Change:
    """Copies on nodes go as metadata say, whatever there is in the bucket."""
    attempts = {each: tier.attempt for each, tier in state.tiers.segments.items()}
    return drop_expired_copies(state, KEY, attempts, 0)


def drops_before_publishing(state: ClusterState, _: Verified) -> Change:
    """Copies on nodes go once an upload is under way."""
    record = state.segments.get(SEGMENT)
    if record is None or not record.segment.replicas or not state.tiers.under_way:
        return Change()
    return without_copies(record, 0)


def releases_at_once(state: ClusterState) -> Change:
    """The objects may go before the table has heard of it."""
    tier = state.tiers.segments.get(SEGMENT)
    if tier is None or not tier.is_retiring:
        return Change()
    stored = state.partitions[KEY]
    state.partitions[KEY] = updated(stored, table_revision=tier.revision)
    try:
        return tiering.release(state, SEGMENT, 0)
    finally:
        state.partitions[KEY] = stored


def same_number_again(state: ClusterState, segment_id: SegmentId, owner: NodeId) -> Change:
    """The next attempt has the number of the last one."""
    change = tiering.begin(state, segment_id, owner)
    puts = [each for each in change.puts if not isinstance(each, CounterRecord)]
    return Change(tuple(puts))


def sweeps_withdrawn(state: ClusterState) -> list[tiering.Sweeping]:
    """Sweep the objects of a copy as soon as that is taken back."""
    return tiering.sweepings(state, SEGMENT, 0)


def withdraws_whatever(state: ClusterState, attempt: int) -> Change:
    """A publication is taken back, whoever has a copy."""
    tier, record = state.tiers.segments[SEGMENT], state.segments.get(SEGMENT)
    if record is None or tier.attempt != attempt or tier.state is not TierState.PUBLISHED:
        return Change()
    lost = updated_segment(record, {"is_tiered": False})
    return Change((withdrawn(tier, state.counted_ms), lost))


def test_production_is_right_in_all_of_them() -> None:
    states, wrong = explore(Rules(withdraw=withdraw))
    assert not wrong
    assert states > 1_000


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (Rules(publish=publishes_closed), "swept|not there"),
        (Rules(sweepings=sweeps_current), "not there"),
        (Rules(drop_copies=drops_before_publishing), "no copy at all"),
        (Rules(drop_copies=drops_unseen), "not there"),
        (Rules(release=releases_at_once), "the table names"),
        (Rules(begin=same_number_again), "two uploads meet|may be swept"),
        (Rules(uploader_deletes=True), "not there"),
        (Rules(withdraw=withdraw, sweepings=sweeps_withdrawn), "the table names"),
        (Rules(withdraw=withdraw, awaits_copy=lambda _: False), "the table loses records"),
        (Rules(withdraw=withdraws_whatever), "no copy at all|the table names"),
    ],
)
def test_a_mistake_shows(rules: Rules, expected: str) -> None:
    wrong = explore(rules)[1]
    assert any(each in wrong for each in expected.split("|")), wrong
