"""Small copies in object storage replaced by one: what may be merged, the swap, and each crash."""

from dataclasses import replace

import pytest

from icecore.errors import ConflictError, InvalidRequestError
from icecore.tier_records import TierCopy, TierRecord, TierState
from icecore_coordinator.decisions.remote import tier_merging
from icecore_coordinator.decisions.remote.tier_merging import (
    SOURCES_MAX,
    begin_merge,
    groups,
    publish_merge,
)
from icecore_coordinator.decisions.remote.tiering import (
    Attempt,
    Sweeping,
    close,
    committed,
    publish,
    release,
    sweepings,
    swept,
)
from icecore_coordinator.decisions.retention import (
    TailNews,
    delete_below_start,
    hold,
    move_log_start,
    verdict,
)
from icecore_coordinator.decisions.topic_deletion import delete_topic
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import RECORDS_PER_CHANGE, Change, StoredHold, updated
from tests.support.cluster_states import ALL, KEY, Cluster, commit, keep, records, roll, segment
from tests.support.tier_states import COPY, begun, published, remote, sealed, tier_of, tiered_topic

GRACE_MS = 600
TARGET_BYTES = 1 << 20


@pytest.fixture
def state() -> Cluster:
    """Segments of 500 bytes of copies and ten records each."""
    found = tiered_topic()
    for _ in range(3):
        remote(found)
    return found


def candidates(state: Cluster) -> tuple[int, ...]:
    [group] = groups(state, KEY, TARGET_BYTES)
    return group.segment_ids


def merging(state: Cluster, *segment_ids: int) -> Attempt:
    """A merger is under way."""
    change = commit(state, begin_merge(state, segment_ids or candidates(state), 1))
    [found] = [each for each in change.puts if isinstance(each, TierRecord)]
    return Attempt(found.segment_id, found.attempt, 1, ALL[1])


def stored(sources: int = 3) -> tuple[TierCopy, list[bytes]]:
    """Return the answer of a node about a merge: the copy, and the digest of each source."""
    copy = replace(COPY, manifest_sha256=b"n" * 32, records=10 * sources, length_bytes=1_200)
    return copy, [COPY.content_digest] * sources


def merged(state: Cluster) -> tuple[int, tuple[int, ...]]:
    """It was published: its id, and those of its sources."""
    sources = candidates(state)
    upload = merging(state)
    commit(state, publish_merge(state, upload, *stored(len(sources)), 0))
    return upload.segment_id, sources


def offsets(state: ClusterState) -> list[tuple[int, int]]:
    """Return the offsets of sealed segments, in the order in which readers see them."""
    found = [each.segment for each in state.segments_in(KEY)]
    return [(each.base_offset, each.end_offset) for each in found if each.end_offset >= 0]


def restarted(state: ClusterState) -> Cluster:
    """Return the state that another coordinator reads."""
    found = Cluster()
    found.load((type(each), encode(each), each.version) for each in records(state))
    return found


# --- what is worth merging ------------------------------------------------------------------------


def test_consecutive_copies_within_the_target_are_one_group(state: Cluster) -> None:
    [group] = groups(state, KEY, 1_500)
    assert (len(group.segment_ids), group.length_bytes, group.records) == (3, 1_500, 30)


def test_a_group_ends_where_the_target_is_reached_and_is_never_alone(state: Cluster) -> None:
    assert [len(each.segment_ids) for each in groups(state, KEY, 1_499)] == [2]
    assert groups(state, KEY, 999) == []
    assert groups(state, KEY, 500) == [], "a copy of the target's size is large enough"


def test_what_goes_while_somebody_looks_is_in_no_group(
    state: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        remote(state)
    monkeypatch.setattr(tier_merging, "SEGMENTS_PER_TURN", 2)
    looking = tier_merging.looking(state, KEY, TARGET_BYTES)
    assert next(looking) is None
    commit(state, move_log_start(state, KEY, 10, 0))
    commit(state, delete_below_start(state, KEY, 0))
    assert [each for each in looking if each is not None] == []
    assert len(groups(state, KEY, TARGET_BYTES)[0].segment_ids) == 5


def test_a_segment_that_nodes_have_parts_two_groups(state: Cluster) -> None:
    published(state)
    remote(state)
    remote(state)
    assert [len(each.segment_ids) for each in groups(state, KEY, TARGET_BYTES)] == [3, 2]


def test_a_group_never_has_more_sources_than_a_change_has_room_for(state: Cluster) -> None:
    for _ in range(SOURCES_MAX):
        remote(state)
    assert [len(each.segment_ids) for each in groups(state, KEY, TARGET_BYTES)] == [SOURCES_MAX, 3]
    upload = merging(state, *groups(state, KEY, TARGET_BYTES)[0].segment_ids)
    swap = publish_merge(state, upload, *stored(SOURCES_MAX), 0)
    assert len(swap.keys()) <= RECORDS_PER_CHANGE


def test_records_below_the_log_start_are_not_worth_it(state: Cluster) -> None:
    commit(state, move_log_start(state, KEY, 10, 0))
    [group] = groups(state, KEY, TARGET_BYTES)
    assert len(group.segment_ids) == 2


def test_a_merge_keeps_no_deleted_records_for_longer(state: Cluster) -> None:
    sources = candidates(state)
    commit(state, move_log_start(state, KEY, 1, 0))
    [group] = groups(state, KEY, TARGET_BYTES)
    assert group.segment_ids == sources[1:]
    with pytest.raises(ConflictError, match="deleted in part"):
        begin_merge(state, sources, 1)


def test_nothing_of_a_deleted_topic_is_merged(state: Cluster) -> None:
    sources = candidates(state)
    commit(state, delete_topic(state, "events", b"", 0, is_now=False))
    assert groups(state, KEY, TARGET_BYTES) == []
    with pytest.raises(ConflictError, match="can't be merged"):
        begin_merge(state, sources, 1)


# --- begin ----------------------------------------------------------------------------------------


def test_a_merger_has_numbers_that_nobody_ever_had(state: Cluster) -> None:
    known, attempts = max(state.segments), max(x.attempt for x in state.tiers.segments.values())
    upload = merging(state)
    assert upload.segment_id > known
    assert upload.attempt > attempts
    assert upload.segment_id not in state.segments, "there is no segment before the swap"
    later = roll(state)
    assert max(state.segments) > upload.segment_id >= later, "nor does a new one get its id"


def test_bad_sources_are_refused_and_nothing_changes(state: Cluster) -> None:
    first, second, third = candidates(state)
    on_nodes, before = published(state), records(state)
    for asked, error, why in (
        ([first], InvalidRequestError, "name 2 to"),
        ([first] * (SOURCES_MAX + 1), InvalidRequestError, "name 2 to"),
        ([first, third], InvalidRequestError, "does not follow"),
        ([second, first], InvalidRequestError, "does not follow"),
        ([first, first], InvalidRequestError, "does not follow"),
        ([third, on_nodes], ConflictError, "on nodes as well"),
        ([first, 999], ConflictError, "segment 999 can't be merged"),
    ):
        with pytest.raises(error, match=why):
            begin_merge(state, asked, 1)
    assert records(state) == before


def test_a_node_without_the_object_store_is_not_asked(state: Cluster) -> None:
    commit(state, Change((updated(state.nodes[2], tier_url=""),)))
    with pytest.raises(ConflictError, match="no object store"):
        begin_merge(state, candidates(state), 2)


def test_a_segment_is_a_source_of_one_merger_at_a_time(state: Cluster) -> None:
    sources = candidates(state)
    upload = merging(state)
    with pytest.raises(ConflictError, match="being merged"):
        begin_merge(state, sources[1:], 2)
    commit(state, close(state, upload.segment_id, upload.attempt))
    merging(state, *sources[1:])


# --- the swap -------------------------------------------------------------------------------------


def test_one_change_brings_the_merged_segment_and_retires_its_sources(state: Cluster) -> None:
    before, revision = offsets(state), state.partitions[KEY].tier_revision
    segment_id, sources = merged(state)
    assert offsets(state) == [(0, 30), *before[3:]]
    found = segment(state, segment_id)
    assert (found.is_remote_only, found.length_bytes, found.full_digest) == (True, 300, b"")
    assert tier_of(state, segment_id).copy == stored()[0]
    assert list(state.tiers.published[KEY]) == [segment_id]
    assert state.partitions[KEY].tier_revision == revision + 1
    for each in sources:
        assert each not in state.segments
        assert tier_of(state, each).state is TierState.DELETING
        assert tier_of(state, each).revision == revision + 1


def test_sources_are_swept_only_after_the_table_and_the_readers(state: Cluster) -> None:
    _, sources = merged(state)
    state.counted_ms += GRACE_MS
    assert [release(state, each, GRACE_MS) for each in sources] == [Change()] * 3, "the table"
    commit(state, committed(state, KEY, state.partitions[KEY].tier_revision))
    state.counted_ms += GRACE_MS - 1
    assert release(state, sources[0], GRACE_MS) == Change(), "a reader"
    state.counted_ms += 1
    for each in sources:
        commit(state, release(state, each, GRACE_MS))
        [due] = sweepings(state, each, 0)
        commit(state, swept(state, due))
        assert each not in state.tiers.segments


def test_a_hold_keeps_the_objects_of_sources(state: Cluster) -> None:
    commit(state, hold(state, "events", StoredHold(b"l" * 16, 5_000, "job"), is_renewal=False))
    _, sources = merged(state)
    commit(state, committed(state, KEY, state.partitions[KEY].tier_revision))
    state.counted_ms = 4_999
    assert release(state, sources[0], GRACE_MS) == Change()
    state.counted_ms = 5_000
    assert release(state, sources[0], GRACE_MS) != Change()


def test_other_records_than_those_of_the_sources_are_refused(state: Cluster) -> None:
    upload, before = merging(state), records(state)
    copy, digests = stored()
    for claimed, proofs in (
        (copy, [*digests[:2], b"x" * 33]),
        (copy, digests[:2]),
        (copy, [*digests, digests[0]]),
        (replace(copy, records=29), digests),
        (replace(copy, tier_format="segment"), digests),
        (replace(copy, manifest_sha256=b""), digests),
    ):
        with pytest.raises(InvalidRequestError):
            publish_merge(state, upload, claimed, proofs, 0)
    assert records(state) == before


def test_a_merged_segment_can_be_merged_again(state: Cluster) -> None:
    segment_id, _ = merged(state)
    following = remote(state)
    assert candidates(state) == (segment_id, following)
    upload = merging(state)
    copy, _ = stored(4)
    digests = [tier_of(state, each).copy.content_digest for each in (segment_id, following)]
    commit(state, publish_merge(state, upload, copy, digests, 0))
    assert offsets(state)[0] == (0, 40)


def test_retention_takes_the_merged_segment_as_the_oldest_one(state: Cluster) -> None:
    segment_id, _ = merged(state)
    state.counted_ms = 1_000
    remote(state)
    keep(state, retention_ms=500)
    start = verdict(state, KEY, TailNews()).start_offset
    assert start == 30, "all of it, and nothing behind it"
    commit(state, move_log_start(state, KEY, start, 0))
    commit(state, delete_below_start(state, KEY, 0))
    assert segment_id not in state.segments
    assert tier_of(state, segment_id).state is TierState.DELETING


# --- crashes, and who comes late ------------------------------------------------------------------


def test_a_coordinator_that_dies_before_the_swap_leaves_only_objects_to_sweep(
    state: Cluster,
) -> None:
    upload = merging(state)
    before = offsets(state)
    after = restarted(state)
    assert tier_of(after, upload.segment_id).sources == tier_of(state, upload.segment_id).sources
    commit(after, close(after, upload.segment_id, upload.attempt))
    with pytest.raises(ConflictError, match="closed"):
        publish_merge(after, upload, *stored(), 0)
    assert offsets(after) == before
    assert sweepings(after, upload.segment_id, 1_000) == [
        Sweeping(upload.segment_id, upload.attempt, is_last=False)
    ]
    commit(after, swept(after, Sweeping(upload.segment_id, upload.attempt, is_last=True)))
    assert upload.segment_id not in after.tiers.segments


def test_a_coordinator_that_dies_after_the_swap_finds_all_of_it(state: Cluster) -> None:
    segment_id, sources = merged(state)
    after = restarted(state)
    assert offsets(after)[0] == (0, 30)
    assert KEY in after.tiers.stale_tables
    assert sorted(after.tiers.retiring) == sorted(sources)
    assert list(after.tiers.published[KEY]) == [segment_id]


def test_an_answer_that_comes_twice_swaps_once(state: Cluster) -> None:
    upload = merging(state)
    commit(state, publish_merge(state, upload, *stored(), 0))
    with pytest.raises(ConflictError, match="closed"):
        publish_merge(state, upload, *stored(), 0)


def test_a_source_that_retention_took_meanwhile_ends_the_merger(state: Cluster) -> None:
    upload = merging(state)
    commit(state, move_log_start(state, KEY, 10, 0))
    commit(state, delete_below_start(state, KEY, 0))
    with pytest.raises(ConflictError, match="is gone"):
        publish_merge(state, upload, *stored(), 0)


def test_a_node_that_registered_anew_publishes_nothing(state: Cluster) -> None:
    upload = merging(state)
    with pytest.raises(ConflictError, match="not one of node"):
        publish_merge(state, replace(upload, owner_incarnation=99), *stored(), 0)


def test_the_two_kinds_of_uploads_are_not_taken_for_each_other(state: Cluster) -> None:
    merger = merging(state)
    with pytest.raises(ConflictError):
        publish(state, merger, stored()[0], 0)
    single = begun(state, sealed(state))
    with pytest.raises(ConflictError, match="upload of one segment"):
        publish_merge(state, single, COPY, [], 0)
