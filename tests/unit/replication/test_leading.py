"""A record makes a replica leader or follower, or neither, in every state it may be in."""

from typing import Any

import pytest

from icecore.model import SegmentState
from icecore_replication.leading import ReplicaFacts, Role, may_lead, role_of
from tests.support.replication_setup import BASE, INCARNATION, LEADER, segment

SEALED = {"state": SegmentState.SEALED, "end_offset": 150}


def facts(**changes: Any) -> ReplicaFacts:
    """Return the facts of a whole, empty replica on node 1, in the incarnation that is to lead."""
    fields: dict[str, Any] = {
        "node_id": LEADER,
        "incarnation": INCARNATION,
        "base_offset": BASE,
        "promised_epoch": 5,
        "is_intact": True,
        "is_sealed": False,
        "is_all_durable": True,
        "has_led": False,
        **changes,
    }
    return ReplicaFacts(**fields)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Role.LEAD),
        ({"incarnation": INCARNATION + 1}, Role.NONE),  # a process never resumes leadership
        ({"has_led": True}, Role.NONE),
        ({"node_id": 2}, Role.FOLLOW),
        ({"node_id": 2, "has_led": True}, Role.FOLLOW),
        ({"node_id": 9}, Role.NONE),
    ],
)
def test_by_name(changes: dict[str, Any], expected: Role) -> None:
    assert role_of(segment(), facts(**changes)) is expected


@pytest.mark.parametrize("node_id", [1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {"is_intact": False},
        {"is_sealed": True},
        {"promised_epoch": 6},
        {"is_all_durable": False},
        {"base_offset": -1},
        {"base_offset": BASE + 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_no_role_begins_on_a_log_in_doubt(node_id: int, changes: dict[str, Any]) -> None:
    assert role_of(segment(), facts(node_id=node_id, **changes)) is Role.NONE


def test_prepared_replica_of_a_record_without_a_base() -> None:
    assert role_of(segment(base_offset=-1), facts(base_offset=-1)) is Role.NONE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Role.SEAL),
        ({"node_id": 3}, Role.SEAL),
        ({"is_all_durable": False}, Role.SEAL),
        ({"promised_epoch": 9}, Role.SEAL),
        ({"is_sealed": True}, Role.LEFT_OUT),
        ({"node_id": 9}, Role.LEFT_OUT),
    ],
)
def test_sealed(changes: dict[str, Any], expected: Role) -> None:
    assert role_of(segment(**SEALED), facts(**changes)) is expected


@pytest.mark.parametrize("node_id", [1, 2])
@pytest.mark.parametrize("state", [SegmentState.RECOVERING, SegmentState.PREPARED])
def test_other_states_give_no_role(state: SegmentState, node_id: int) -> None:
    assert role_of(segment(state=state), facts(node_id=node_id)) is Role.NONE


def test_leadership_belongs_to_an_incarnation() -> None:
    assert may_lead(segment(), LEADER, INCARNATION)
    assert not may_lead(segment(), LEADER, INCARNATION + 1)
    assert not may_lead(segment(), 2, INCARNATION)
