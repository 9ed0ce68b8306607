"""Decisions about producers' names. Pure.

A name stands for one producer id until it is deleted. Taking it raises the epoch, which shuts out
whoever had it before; nobody but its taker may raise it further without taking it. A deleted name's
id is never given again, and leaders refuse it as unknown (R112).
"""

from typing import Final

from icecore.errors import ConflictError, InvalidRequestError, ProducerFencedError
from icecore.model import NAMED_IDS_FIRST, TOPIC_NAME, ProducerEpoch, ProducerId
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.limits import PRODUCER_NAMES_MAX
from icecore_coordinator.state.records import Change, ProducerRecord, updated

NAMED_IDS_VERSION: Final = 5
"""Nodes of this protocol version on refuse names that they do not know."""
NAMED_IDS: Final = "named_producer_id"
"""The counter of the ids of names."""


def take_name(
    state: ClusterState, name: str, instance: int, now_ms: int, *, is_renewal: bool
) -> Change:
    """The name's next epoch, for this instance.

    Args:
        state: The cluster.
        name: Of the producer.
        instance: Of the client that takes it.
        now_ms: By the wall clock, for people.
        is_renewal: Only if this instance has it.

    Raises:
        InvalidRequestError: It is no name, or there are too many.
        ProducerFencedError: A renewal, but another instance has taken the name since.
    """
    if not TOPIC_NAME.fullmatch(name):
        raise InvalidRequestError(
            f"producer name {name[:300]!r}: 1 to 249 characters of A-Z a-z 0-9 . _ -"
        )
    record = state.producers.get(name)
    if is_renewal:
        _check_taker(name, record, instance)
    if record is not None:
        epoch = record.producer_epoch + 1
        taken = updated(record, producer_epoch=epoch, instance=instance, taken_at_ms=now_ms)
        return Change((taken,))
    if len(state.producers) >= PRODUCER_NAMES_MAX:
        raise InvalidRequestError(
            f"a cluster keeps at most {PRODUCER_NAMES_MAX} producer names: delete those that "
            "nobody uses (icecore producer list, icecore producer delete)"
        )
    counter, first = next_of(state, "producer_id"), ProducerId(0)
    if all(each.protocol_version >= NAMED_IDS_VERSION for each in state.nodes.values()):
        counter, first = next_of(state, NAMED_IDS), NAMED_IDS_FIRST
    fresh = ProducerRecord(
        name,
        ProducerId(first + counter.next_value),
        instance=instance,
        taken_at_ms=now_ms,
        version=1,
    )
    return Change((updated(counter, next_value=counter.next_value + 1), fresh))


def _check_taker(name: str, record: ProducerRecord | None, instance: int) -> None:
    """Raises ProducerFencedError when somebody else has taken the name, or deleted it."""
    if record is None:
        raise ProducerFencedError(f"the name {name!r} was deleted")
    if record.instance != instance:
        raise ProducerFencedError(f"another producer has taken the name {name!r}")


def shut_out(state: ClusterState, name: str) -> Change:
    """The first step of a deletion: an epoch that nobody has. Raises InvalidRequestError."""
    record = _known(state, name)
    return Change((updated(record, producer_epoch=record.producer_epoch + 1, instance=0),))


def delete_name(state: ClusterState, name: str, producer_epoch: ProducerEpoch) -> Change:
    """The last step, when all leaders refuse epochs below this one.

    Raises:
        InvalidRequestError: There is no such name.
        ConflictError: Somebody has taken it meanwhile.
    """
    record = _known(state, name)
    if record.producer_epoch != producer_epoch:
        raise ConflictError(f"a producer took the name {name!r} just now: it is in use")
    return Change(deletes=(record,))


def _known(state: ClusterState, name: str) -> ProducerRecord:
    record = state.producers.get(name)
    if record is None:
        raise InvalidRequestError(
            f"no producer has the name {name[:300]!r}: icecore producer list shows all names"
        )
    return record
