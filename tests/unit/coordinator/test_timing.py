"""Waits of both servers: their defaults, the ones that tests set, and how a cluster is told."""

import pytest

from icecore.errors import ConfigurationError
from icecore.process.settings import load
from icecore_coordinator.config import CoordinatorSettings
from icecore_coordinator.timing import CoordinatorTiming, Timing, WaitSettings
from icecore_node.config import NodeSettings
from icecore_node.timing import NodeTiming
from tests.support.fast import FAST

NODE = {"data": "d", "node_id": 1}
COORDINATOR_WAITS = {
    "tick_ms": 100,
    "audit_ms": 1_000,
    "look_ms": 1_000,
    "local_look_ms": 5_000,
    "roll_up_wait_ms": 10_000,
    "return_wait_ms": 10_000,
    "balance_ms": 60_000,
    "hand_over_settle_ms": 100,
    "hand_over_retry_ms": 250,
    "open_wait_ms": 3_000,
    "prepared_keep_ms": 60_000,
    "seal_check_wait_ms": 1_000,
    "seal_check_call_ms": 3_000,
    "roll_retry_ms": 5_000,
    "replace_retry_ms": 2_000,
    "retry_ms": 200,
    "retry_max_ms": 5_000,
    "node_call_ms": 10_000,
    "fence_call_ms": 3_000,
    "copy_call_ms": 120_000,
    "topic_open_wait_ms": 10_000,
    "topic_delete_wait_ms": 10_000,
    "unclean_wait_ms": 20_000,
    "producer_fence_wait_ms": 3_000,
    "producer_fence_call_ms": 1_000,
    "producer_fence_retry_ms": 100,
    "upload_call_ms": 900_000,
    "upload_retry_ms": 5_000,
    "upload_node_retry_ms": 1_000,
    "tier_call_ms": 60_000,
    "table_retry_ms": 1_000,
    "table_check_ms": 86_400_000,
    "sweep_retry_ms": 1_000,
    "tier_closed_keep_ms": 86_400_000,
}
COMMON_WAITS = {
    "heartbeat_ms": 500,
    "lease_ms": 6_000,
    "recovery_wait_ms": 1_000,
    "lost_replica_grace_ms": 1_200_000,
    "tier_reader_grace_ms": 600_000,
}
NODE_WAITS = {
    "registration_retry_ms": 500,
    "heartbeat_retry_ms": 100,
    "topic_follow_ms": 200,
    "producer_id_retry_ms": 1_000,
    "shrink_wait_ms": 1_000,
    "reconnect_ms": 100,
    "read_again_ms": 1_000,
    "disk_look_ms": 1_000,
    "space_retry_ms": 1_000,
    "deletion_retry_ms": 1_000,
    "scrub_look_ms": 10_000,
    "index_look_ms": 500,
    "index_sync_ms": 1_000,
    "digest_calm_ms": 3_000,
    "digest_retry_ms": 1_000,
    "store_retry_ms": 1_000,
    "store_look_ms": 300_000,
    "upload_index_wait_ms": 20_000,
    "table_retry_ms": 200,
    "description_keep_ms": 10_000,
    "refusal_keep_ms": 1_000,
}


def test_the_defaults_are_known() -> None:
    """A change of a default must be repeated here: measurements and documents rely on the
    defaults."""
    assert CoordinatorTiming().model_dump() == COORDINATOR_WAITS
    assert WaitSettings().model_dump() == COMMON_WAITS
    assert NodeTiming().model_dump() == NODE_WAITS
    assert load(CoordinatorSettings, None, {"data": "d"}, {}).waits == Timing()
    assert load(NodeSettings, None, NODE, {}).timing == NodeTiming()


def test_what_a_coordinator_is_told_reaches_its_workers() -> None:
    environ = {
        "ICECORE_COORDINATOR__TIMING__AUDIT_MS": "100",
        "ICECORE_COORDINATOR__LEASE_MS": "900",
    }
    waits = load(CoordinatorSettings, None, {"data": "d"}, environ).waits
    assert waits == Timing(audit_ms=100, lease_ms=900)


@pytest.mark.parametrize("name", [*COORDINATOR_WAITS, *COMMON_WAITS])
def test_no_wait_of_a_coordinator_is_negative(name: str) -> None:
    prefix = "" if name in COMMON_WAITS else "TIMING__"
    variable = f"ICECORE_COORDINATOR__{prefix}{name.upper()}"
    with pytest.raises(ConfigurationError, match=f"{variable}: .*{name} = '-1': .*greater"):
        load(CoordinatorSettings, None, {"data": "d"}, {variable: "-1"})


@pytest.mark.parametrize("name", NODE_WAITS)
def test_no_wait_of_a_node_is_negative_or_endless(name: str) -> None:
    variable = f"ICECORE_NODE__TIMING__{name.upper()}"
    for value, why in (("-1", "greater"), ("86400000", "less"), ("1.5", "integer")):
        with pytest.raises(ConfigurationError, match=f"timing.{name} = '{value}': .*{why}"):
            load(NodeSettings, None, NODE, {variable: value})


def test_the_short_waits_of_tests_are_settings_and_shorter() -> None:
    common = {"data": "d"}
    coordinator = load(CoordinatorSettings, None, common, FAST)
    node = load(NodeSettings, None, NODE, FAST)
    changed = 0
    for found, usual in (
        (coordinator.timing, CoordinatorTiming()),
        (node.timing, NodeTiming()),
    ):
        for name, value in found.model_dump().items():
            assert value <= getattr(usual, name), name
            changed += value < getattr(usual, name)
    assert changed == len(FAST), "one of them is no shorter than the default"
