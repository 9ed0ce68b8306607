"""The waits of a coordinator: each with its default, its range and its meaning.

:class:`WaitSettings` holds the waits that operators choose; they are settings of the coordinator
itself. :class:`CoordinatorTiming` holds the others: the table ``[coordinator.timing]``. Workers get
both as one :class:`Timing`.

No wait here is one that safety depends on. A shorter one costs calls and copies that a longer one
spares; a longer one costs time after a failure.
"""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from icecore.process.settings import TableSettings

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def _wait(default: int, description: str, *, least: int = 1, most: int | None = HOUR_MS) -> Any:
    """A wait in milliseconds."""
    return Field(default, ge=least, le=most, description=description)


class WaitSettings(BaseModel):
    """Waits that depend on the network, the disks and the readers of a cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    heartbeat_ms: int = _wait(500, "Interval of nodes' heartbeats.", least=10, most=None)
    lease_ms: int = _wait(6_000, "How long a silent node stays up.", least=100, most=None)
    recovery_wait_ms: int = _wait(
        1_000,
        "How long a recovery waits for replicas it could do without.",
        least=10,
        most=None,
    )
    lost_replica_grace_ms: int = _wait(
        1_200_000, "How long a copy on a node that is down still counts.", least=0, most=None
    )
    tier_reader_grace_ms: int = _wait(
        600_000,
        "How long objects of segments that are gone stay for those who read them.",
        least=0,
        most=None,
    )


class CoordinatorTiming(TableSettings):
    """The table ``[coordinator.timing]``."""

    is_rare: ClassVar[bool] = True

    # looks
    tick_ms: int = _wait(100, "Check leases this often.", most=MINUTE_MS)
    audit_ms: int = _wait(
        1_000, "Look this often for segments to roll, repair, upload or delete.", least=10
    )
    look_ms: int = _wait(
        1_000, "Look this often for segments to recover even when nothing changed.", least=10
    )
    local_look_ms: int = _wait(
        5_000, "Look this often for local copies that object storage makes unnecessary.", least=10
    )

    # nodes that come and go
    roll_up_wait_ms: int = _wait(
        10_000,
        "Roll segments with too few replicas onto a node after it was up this long.",
        least=0,
    )
    return_wait_ms: int = _wait(
        10_000,
        "Make a down node's copies elsewhere after this time; most nodes come back before it.",
        least=0,
    )
    balance_ms: int = _wait(
        60_000,
        "Even out leaders and replicas this often, a few segments at a time.",
        least=10,
        most=DAY_MS,
    )
    hand_over_settle_ms: int = _wait(
        100,
        "Wait this long for other nodes to leave before a leaving node's segments move.",
        least=0,
    )
    hand_over_retry_ms: int = _wait(
        250, "Ask again after this time to move a segment from a leaving node."
    )

    # segments
    open_wait_ms: int = _wait(
        3_000,
        "Wait this long for all replicas of a new segment that no producer waits for.",
        least=0,
    )
    prepared_keep_ms: int = _wait(
        60_000, "Keep a prepared segment this long for the seal of its predecessor.", least=100
    )
    seal_check_wait_ms: int = _wait(
        1_000, "Wait this long for replicas that the check of a seal can do without.", least=0
    )
    seal_check_call_ms: int = _wait(3_000, "Limit of one call that checks a seal.", least=100)
    roll_retry_ms: int = _wait(
        5_000, "Ask a leader again after this time to roll a segment.", least=10
    )
    replace_retry_ms: int = _wait(
        2_000, "Replace an empty segment of the same partition again after this time.", least=10
    )
    retry_ms: int = _wait(
        200, "Try a failed recovery, repair or deletion again after this time; it doubles."
    )
    retry_max_ms: int = _wait(
        5_000, "Longest time between two tries of a recovery, repair or deletion."
    )

    # calls of nodes
    node_call_ms: int = _wait(10_000, "Limit of a usual call of a node.", least=100)
    fence_call_ms: int = _wait(
        3_000,
        "Limit of a call that fences; a node that hangs delays the other segments that long.",
        least=100,
    )
    copy_call_ms: int = _wait(
        120_000, "Limit of a call that copies a whole segment.", least=1_000, most=DAY_MS
    )

    # calls of administrators and producers
    topic_open_wait_ms: int = _wait(
        10_000, "Wait this long for the partitions of a new topic to open.", least=0
    )
    topic_delete_wait_ms: int = _wait(
        10_000, "Wait this long for a topic that is deleted at once.", least=0
    )
    unclean_wait_ms: int = _wait(
        20_000,
        "Wait this long for a recovery that an administrator allowed to lose records.",
        least=0,
    )
    producer_fence_wait_ms: int = _wait(
        3_000, "Wait this long for all leaders to refuse the former owner of a producer's name."
    )
    producer_fence_call_ms: int = _wait(
        1_000, "Limit of one call that tells a leader of the new owner.", least=10
    )
    producer_fence_retry_ms: int = _wait(100, "Ask those leaders again after this time.")

    # object storage
    upload_call_ms: int = _wait(
        900_000, "Limit of one upload of a segment.", least=1_000, most=DAY_MS
    )
    upload_retry_ms: int = _wait(
        5_000, "Upload a segment again after this time; it doubles up to ten minutes.", least=10
    )
    upload_node_retry_ms: int = _wait(
        1_000,
        "Give a node that failed an upload another one after this time; it doubles.",
        least=10,
    )
    tier_call_ms: int = _wait(
        60_000, "Limit of one change of a table, and of one sweep.", least=1_000, most=DAY_MS
    )
    table_retry_ms: int = _wait(
        1_000, "Change a table again after this time; it doubles up to a minute.", least=10
    )
    table_check_ms: int = _wait(
        DAY_MS,
        "Compare each table with what is published this often, and when a coordinator starts.",
        least=1_000,
        most=365 * DAY_MS,
    )
    sweep_retry_ms: int = _wait(
        1_000, "Sweep objects again after this time; it doubles up to a minute.", least=10
    )
    tier_closed_keep_ms: int = _wait(
        DAY_MS,
        "Sweep the objects of a failed upload again after this time: a paused one may go on.",
        least=0,
        most=365 * DAY_MS,
    )


class Timing(WaitSettings, CoordinatorTiming):
    """All waits of one coordinator."""
