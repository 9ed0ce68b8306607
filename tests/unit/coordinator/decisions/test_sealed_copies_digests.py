"""A full digest is set when two replicas report the same; nobody is called damaged."""

from dataclasses import replace

import pytest

from icecore.errors import ConflictError, InvalidRequestError
from icecore_coordinator.decisions.sealed_copies import (
    disagreeing,
    reported_digests,
    set_full_digest,
)
from icecore_coordinator.decisions.segment_changes import Opening, remove_sealed_replica, seal
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import Change, SegmentRecord
from tests.support.cluster_states import (
    ALL,
    Cluster,
    commit,
    prepared_successor,
    sealing,
    segment,
    started,
)

DIGEST = b"\x01" + b"d" * 32
OTHER = b"\x01" + b"x" * 32
EARLIER = b"e" * 32
"""In the format before the present one."""


@pytest.fixture
def sealed() -> Cluster:
    """Segment 1 is SEALED on nodes 1, 2 and 3."""
    state = started()
    successor = prepared_successor(state)
    commit(state, seal(state, state.live, sealing(state), Opening(successor, ALL), 0))
    return state


def test_two_that_agree_set_it_and_one_does_not(sealed: Cluster) -> None:
    commit(sealed, set_full_digest(sealed, 1, 0, DIGEST, 1))
    assert segment(sealed).full_digest == b""
    assert set_full_digest(sealed, 1, 0, DIGEST, 1) == Change()
    commit(sealed, set_full_digest(sealed, 1, 0, DIGEST, 3))
    assert segment(sealed).full_digest == DIGEST
    assert reported_digests(sealed.segments[1]) == {}
    assert set_full_digest(sealed, 1, 0, DIGEST, 2) == Change()
    with pytest.raises(ConflictError):
        set_full_digest(sealed, 1, 0, OTHER, 2)


def test_a_forged_first_report_is_outvoted(sealed: Cluster) -> None:
    commit(sealed, set_full_digest(sealed, 1, 0, OTHER, 1))
    commit(sealed, set_full_digest(sealed, 1, 0, DIGEST, 2))
    assert segment(sealed).full_digest == b""
    assert disagreeing(sealed.segments[1]) == (1, 2)
    commit(sealed, set_full_digest(sealed, 1, 0, DIGEST, 3))
    assert segment(sealed).full_digest == DIGEST
    assert disagreeing(sealed.segments[1]) == ()


def test_a_node_may_correct_itself(sealed: Cluster) -> None:
    commit(sealed, set_full_digest(sealed, 1, 0, OTHER, 1))
    commit(sealed, set_full_digest(sealed, 1, 0, DIGEST, 1))
    assert reported_digests(sealed.segments[1]) == {1: DIGEST}


def test_only_replicas_count_and_one_is_enough_where_there_is_one(sealed: Cluster) -> None:
    assert set_full_digest(sealed, 1, 0, OTHER, 9) == Change()
    commit(sealed, set_full_digest(sealed, 1, 0, OTHER, 1))
    commit(sealed, remove_sealed_replica(sealed, 1, 1))
    assert reported_digests(sealed.segments[1]) == {}
    commit(sealed, remove_sealed_replica(sealed, 1, 2))
    commit(sealed, set_full_digest(sealed, 1, 0, DIGEST, 3))
    assert segment(sealed).full_digest == DIGEST


def test_reports_survive_a_restart(sealed: Cluster) -> None:
    commit(sealed, set_full_digest(sealed, 1, 0, DIGEST, 1))
    record = sealed.segments[1]
    assert decode(SegmentRecord, encode(record)) == record
    assert reported_digests(record) == {1: DIGEST}


def test_digests_in_an_earlier_format_count_as_none(sealed: Cluster) -> None:
    record = sealed.segments[1]
    old = replace(record, segment=record.segment.changed(full_digest=EARLIER))
    sealed.segments[1] = replace(old, digest_nodes=(1, 2), digests=(EARLIER, EARLIER))
    assert reported_digests(sealed.segments[1]) == {} and disagreeing(sealed.segments[1]) == ()
    commit(sealed, set_full_digest(sealed, 1, 0, DIGEST, 1))
    assert reported_digests(sealed.segments[1]) == {1: DIGEST}
    commit(sealed, set_full_digest(sealed, 1, 0, DIGEST, 2))
    assert segment(sealed).full_digest == DIGEST


def test_what_is_no_digest_of_a_sealed_segment(sealed: Cluster) -> None:
    with pytest.raises(InvalidRequestError):
        set_full_digest(sealed, 1, 0, b"short", 1)
    with pytest.raises(InvalidRequestError):
        set_full_digest(sealed, 1, 0, EARLIER, 1)
    with pytest.raises(InvalidRequestError):
        set_full_digest(sealed, 1, 1, DIGEST, 1)
    with pytest.raises(InvalidRequestError):
        set_full_digest(sealed, 2, 0, DIGEST, 1)
    with pytest.raises(InvalidRequestError):
        set_full_digest(sealed, 99, 0, DIGEST, 1)
