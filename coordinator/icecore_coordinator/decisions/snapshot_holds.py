"""Decisions about holds: a reader keeps a topic as of one moment, for the time that it asks for.
Pure.

Holds are few, short and end by themselves, in counted time: a reader that dies keeps a topic from
its retention for a day at most. What people order (records or topics deleted) is done all the same,
and so is what a full disk needs.
"""

from icecore.errors import ConflictError, InvalidRequestError
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.limits import HOLDS_MAX
from icecore_coordinator.state.records import Change, StoredHold, updated

HOLD_MS_MAX = 24 * 3600 * 1000
LEASE_ID_BYTES = 16
OWNER_CHARS_MAX = 200


def hold(state: ClusterState, topic: str, asked: StoredHold, *, is_renewal: bool) -> Change:
    """Hold a topic from now on, or longer than before.

    Args:
        state: The cluster.
        topic: Its name.
        asked: The hold; its ``until_ms`` is a duration.
        is_renewal: There must be one that has not ended.

    Raises:
        UnknownTopicError: There is no such topic.
        InvalidRequestError: The hold is malformed, too long, or one too many.
        ConflictError: It is to be renewed and has ended, or never was.
    """
    _check(asked)
    record, now_ms = state.topic(topic), state.counted_ms
    live = {each.lease_id: each for each in record.holds if each.until_ms > now_ms}
    known = live.pop(asked.lease_id, None)
    if is_renewal and known is None:
        raise ConflictError(
            f"the hold {asked.lease_id.hex()} of topic {topic!r} has ended: retention may have "
            "taken what it held. Take a new snapshot, and hold it for longer",
            topic=topic,
        )
    if known is None and len(live) >= HOLDS_MAX:
        raise InvalidRequestError(
            f"topic {topic!r} has {HOLDS_MAX} holds, which is the most: end one of those who read "
            "it, or wait until a hold ends"
        )
    until_ms = max(now_ms + asked.until_ms, known.until_ms if known else 0)
    following = StoredHold(asked.lease_id, until_ms, known.owner if known else asked.owner)
    if following == known:
        return Change()  # somebody has only asked whether it lasts
    return Change((updated(record, holds=(*live.values(), following)),))


def _check(asked: StoredHold) -> None:
    """Raises InvalidRequestError."""
    if len(asked.lease_id) != LEASE_ID_BYTES:
        raise InvalidRequestError(f"the id of a hold has {LEASE_ID_BYTES} bytes")
    if not 0 < asked.until_ms <= HOLD_MS_MAX:
        raise InvalidRequestError(f"a topic is held for 1 to {HOLD_MS_MAX} ms at a time")
    if len(asked.owner) > OWNER_CHARS_MAX:
        raise InvalidRequestError(f"the owner of a hold has {OWNER_CHARS_MAX} characters at most")


def let_go(state: ClusterState, topic: str, lease_id: bytes) -> Change:
    """End a hold; nothing happens when it has ended. Raises UnknownTopicError."""
    record = state.topic(topic)
    left = tuple(each for each in record.holds if each.lease_id != lease_id)
    return Change() if left == record.holds else Change((updated(record, holds=left),))
