"""Decisions about producers' names. Pure.

A name stands for one producer id for ever. Taking it raises the epoch, which shuts out whoever had
it before; nobody but its taker may raise it further without taking it.
"""

from icecore.errors import InvalidRequestError, ProducerFencedError
from icecore.model import TOPIC_NAME, ProducerId
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.records import Change, ProducerRecord, updated

PRODUCER_NAMES_MAX = 50_000
"""Every node knows the epochs of all of them."""


def take_name(state: ClusterState, name: str, instance: int, *, is_renewal: bool) -> Change:
    """The name's next epoch, for this instance.

    Raises:
        InvalidRequestError: It is no name, or there are too many.
        ProducerFencedError: A renewal, but another instance has taken the name since.
    """
    if not TOPIC_NAME.fullmatch(name):
        raise InvalidRequestError(
            f"producer name {name[:300]!r}: 1 to 249 characters of A-Z a-z 0-9 . _ -"
        )
    record = state.producers.get(name)
    if is_renewal and (record is None or record.instance != instance):
        raise ProducerFencedError(f"another producer has taken the name {name!r}")
    if record is not None:
        epoch = record.producer_epoch + 1
        return Change((updated(record, producer_epoch=epoch, instance=instance),))
    if len(state.producers) >= PRODUCER_NAMES_MAX:
        raise InvalidRequestError(f"a cluster keeps at most {PRODUCER_NAMES_MAX} producer names")
    counter = next_of(state, "producer_id")
    fresh = ProducerRecord(name, ProducerId(counter.next_value), instance=instance, version=1)
    return Change((updated(counter, next_value=counter.next_value + 1), fresh))
