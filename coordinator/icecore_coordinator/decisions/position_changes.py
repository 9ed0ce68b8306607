"""Decisions about saved positions: compare-and-set of each, and letting them go. Pure.

A save names the version that it follows. When the stored one is another, somebody else has saved
meanwhile: what is stored stays, and who asks is told. So of two readers with one name the later one
to save stops, and nothing that the other had saved is taken back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    PositionConflictError,
    UnknownTopicError,
)
from icecore.model import TOPIC_NAME
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.limits import POSITION_NAMES_MAX, POSITIONS_MAX
from icecore_coordinator.state.records import (
    RECORDS_PER_CHANGE,
    SLOT_PARTITIONS,
    Change,
    PositionRecord,
    StoredPosition,
    TopicRecord,
    updated,
)

OFFSET_MAX: Final = (1 << 63) - 1
VERSIONS: Final = "position_version"
"""The counter above which positions begin that were never saved, or deleted."""


@dataclass(frozen=True, slots=True)
class Save:
    """A reader's request to save its position in one partition."""

    partition: int
    offset: int
    version: int
    """The stored version that this save follows; 0 = nothing is stored."""


Outcome: TypeAlias = int | IcecoreError
"""The version of what is stored now, or why it was not."""


def slot_of(partition: int) -> int:
    """The record that its positions are in."""
    return partition // SLOT_PARTITIONS


def check_name(name: str) -> None:
    """Raises InvalidRequestError."""
    if not TOPIC_NAME.fullmatch(name):
        raise InvalidRequestError(
            f"position name {name[:300]!r}: 1 to 249 characters of A-Z a-z 0-9 . _ -"
        )


def save_positions(
    state: ClusterState,
    name: str,
    instance: int,
    topic_id: bytes,
    saves: Sequence[Save],
    now_ms: int,
) -> tuple[Change, list[Outcome]]:
    """Store positions of one record, each on its own.

    Args:
        state: The cluster.
        name: Under which the reader saves.
        instance: Of the reader.
        topic_id: Of the topic.
        saves: Of one slot, each partition once.
        now_ms: Wall clock, kept for people.

    Returns:
        The change, and what becomes of each save.

    Raises:
        InvalidRequestError: It is no name.
        UnknownTopicError: There is no such topic (any more).
    """
    check_name(name)
    topic = state.topics.get(topic_id)
    if topic is None or not topic.is_live:
        raise UnknownTopicError(f"no topic has the id {topic_id.hex()}")
    empty = PositionRecord(topic_id, name, slot_of(saves[0].partition))
    record = state.positions.records.get(empty.key, empty)
    known = {each.partition: each for each in record.positions}
    outcomes: list[Outcome] = []
    first_version = next_of(state, VERSIONS).next_value
    for each in saves:
        error = _refusal(topic, each, known)
        if error is None and each.partition not in known:
            more = len(known) - len(record.positions) + 1
            error = _without_room(state, name, f"{topic.name}/{each.partition}", more)
        if error is None:
            stored = known.get(each.partition)
            version = stored.version + 1 if stored is not None else first_version
            known[each.partition] = StoredPosition(
                each.partition, each.offset, version, instance, now_ms
            )
            outcomes.append(version)
        else:
            outcomes.append(error)
    if all(isinstance(each, IcecoreError) for each in outcomes):
        return Change(), outcomes
    positions = tuple(known[partition] for partition in sorted(known))
    return Change((replace(record, positions=positions, version=record.version + 1),)), outcomes


def _without_room(
    state: ClusterState, name: str, where: str, more: int
) -> InvalidRequestError | None:
    """Return why there is no room for the position of one more partition, which makes ``more`` new
    ones. Those that are there may move all the same: nobody reads twice what others have no room
    for.
    """
    names = state.positions.of_name
    if state.positions.count + more > POSITIONS_MAX:
        return InvalidRequestError(
            f"{where}: a cluster keeps at most {POSITIONS_MAX} saved positions: delete those "
            "that nobody reads with any more"
        )
    if name not in names and len(names) >= POSITION_NAMES_MAX:
        return InvalidRequestError(
            f"{where}: a cluster keeps positions under at most {POSITION_NAMES_MAX} names: delete "
            "those that nobody reads with any more"
        )
    return None


def _refusal(
    topic: TopicRecord, save: Save, known: Mapping[int, StoredPosition]
) -> IcecoreError | None:
    where = f"{topic.name}/{save.partition}"
    if save.partition >= topic.partitions:
        return InvalidRequestError(f"{topic.name} has partitions 0 to {topic.partitions - 1}")
    if save.offset > OFFSET_MAX:
        return InvalidRequestError(f"{where}: {save.offset} is no offset")
    stored = known.get(save.partition)
    if save.version == (stored.version if stored is not None else 0):
        return None
    if stored is None:
        return PositionConflictError(
            f"{where}: the saved position was deleted meanwhile",
            topic=topic.name,
            partition=save.partition,
            version=0,
        )
    return PositionConflictError(
        f"{where}: another reader has saved offset {stored.offset} under this name meanwhile: "
        "give each reader a name or partitions of its own",
        topic=topic.name,
        partition=save.partition,
        offset=stored.offset,
        version=stored.version,
        instance=stored.instance,
    )


def delete_positions(state: ClusterState, name: str, topic_id: bytes) -> Change:
    """The next bounded step of deleting what is saved under a name; empty when there is none.

    Args:
        state: The cluster.
        name: Under which it was saved.
        topic_id: Only of this topic; empty = of all.
    """
    records = [
        state.positions.records[key]
        for key in state.positions.of_name.get(name, ())
        if not topic_id or state.positions.records[key].topic_id == topic_id
    ][: RECORDS_PER_CHANGE - 1]
    if not records:
        return Change()
    counter = next_of(state, VERSIONS)
    above = 1 + max(each.version for record in records for each in record.positions)
    following = updated(counter, next_value=max(counter.next_value, above))
    return Change((following,), tuple(records))
