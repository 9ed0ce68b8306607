"""The table ``[node.timing]``: the waits of a node, with defaults, ranges and meanings.

No wait here is one that safety depends on. A shorter one costs reads and calls that a longer one
spares; a longer one costs time after a failure.
"""

from typing import Any, ClassVar

from pydantic import Field

from icecore.process.settings import TableSettings

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def _wait(default: int, description: str, *, least: int = 1, most: int = HOUR_MS) -> Any:
    """A wait in milliseconds."""
    return Field(default, ge=least, le=most, description=description)


class NodeTiming(TableSettings):
    """The waits of one node."""

    is_rare: ClassVar[bool] = True

    # the coordinator
    registration_retry_ms: int = _wait(
        500, "Ask the coordinator again after this time to register, or to recover a segment."
    )
    heartbeat_retry_ms: int = _wait(100, "Open a broken heartbeat stream again after this time.")
    topic_follow_ms: int = _wait(
        200, "Ask for changed topics this often at most.", least=0, most=MINUTE_MS
    )
    producer_id_retry_ms: int = _wait(
        1_000, "Ask for producer ids again after this time when the coordinator gave none."
    )
    shrink_wait_ms: int = _wait(
        1_000, "On a clean stop, wait this long for leaders to do without this node.", least=0
    )

    # other nodes
    reconnect_ms: int = _wait(100, "Connect to a leader again after this time.")
    read_again_ms: int = _wait(
        1_000, "Read records for a follower again after this time when memory or files ran out."
    )

    # local storage
    disk_look_ms: int = _wait(1_000, "Look this often how full the disks are.", least=10)
    space_retry_ms: int = _wait(
        1_000, "Try to follow or seal again after this time when disk or memory ran out.", least=10
    )
    deletion_retry_ms: int = _wait(
        1_000, "Try a failed deletion of files again after this time; it doubles up to a minute."
    )
    scrub_look_ms: int = _wait(
        10_000, "Look this often for sealed segments that are due to be read back.", least=10
    )
    index_look_ms: int = _wait(500, "Look this often for logs to index.", least=10)
    index_sync_ms: int = _wait(1_000, "Sync the index this often.", least=10)
    digest_calm_ms: int = _wait(
        3_000,
        "Wait this long after a seal before its digest is computed: more seals may follow.",
        least=0,
    )
    digest_retry_ms: int = _wait(
        1_000, "Report digests again after this time when the coordinator could not be reached."
    )

    # object storage
    store_retry_ms: int = _wait(
        1_000, "Try an object store that failed again after this time; it doubles up to a minute."
    )
    store_look_ms: int = _wait(
        300_000, "Check this often that the object store still accepts this node.", least=10
    )
    upload_index_wait_ms: int = _wait(
        20_000, "Wait this long for a segment's index before it is uploaded without one.", least=0
    )
    table_retry_ms: int = _wait(
        200, "Commit to a table again after this time when another node came first.", least=0
    )
    description_keep_ms: int = _wait(
        10_000,
        "Keep what the coordinator says of a segment in object storage this long.",
        least=0,
        most=5 * MINUTE_MS,
    )
    refusal_keep_ms: int = _wait(
        1_000, "Keep the answer this long that a segment is not in object storage.", least=0
    )
