"""Producers' names: epochs that rise, who may raise them, and what leaders make of them."""

import pytest

from icecore.errors import InvalidRequestError, ProducerFencedError
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions import producer_changes
from icecore_coordinator.decisions.producer_changes import take_name
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.records import ProducerRecord
from icecore_replication.effects import Append, FailProduce
from tests.support.cluster_states import commit, started
from tests.support.replication_setup import Led, only
from tests.unit.coordinator.nodes.test_node_sessions import Watch


def take(state: ClusterState, name: str, instance: int, *, is_renewal: bool = False) -> None:
    commit(state, take_name(state, name, instance, is_renewal=is_renewal))


def test_taking_a_name_keeps_the_id_and_raises_the_epoch() -> None:
    state = started()
    take(state, "a", 1)
    take(state, "b", 1)
    take(state, "a", 2)
    assert state.producers["a"] == ProducerRecord("a", 1, 1, instance=2, version=2)
    assert state.producers["b"].producer_id == 2
    assert next_of(state, "producer_id").next_value == 3


def test_only_the_last_taker_may_renew() -> None:
    state = started()
    take(state, "a", 1)
    take(state, "a", 1, is_renewal=True)
    assert state.producers["a"].producer_epoch == 1
    take(state, "a", 2)
    with pytest.raises(ProducerFencedError):
        take(state, "a", 1, is_renewal=True)
    with pytest.raises(ProducerFencedError):
        take(state, "never-taken", 1, is_renewal=True)


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    state = started()
    for bad in ("", "a/b", "x" * 250):
        with pytest.raises(InvalidRequestError):
            take(state, bad, 1)
    monkeypatch.setattr(producer_changes, "PRODUCER_NAMES_MAX", 1)
    take(state, "a", 1)
    with pytest.raises(InvalidRequestError):
        take(state, "b", 1)
    take(state, "a", 2)  # taken over all the same


def test_streams_say_fences_to_everyone_and_all_of_them_at_first() -> None:
    watch = Watch()
    take(watch.state, "quiet", 1)  # epoch 0: nobody was shut out
    take(watch.state, "a", 1)
    take(watch.state, "a", 2)
    session = watch.connect(1)
    first = watch.pushes.next_message(session.outbox)
    assert list(first.producer_fences) == [pb.ProducerFence(producer_id=2, min_epoch=1)]
    assert not watch.pushes.next_message(session.outbox).producer_fences
    change = commit(watch.state, take_name(watch.state, "a", 3, is_renewal=False))
    watch.pushes.on_change(change)
    assert session.outbox.wake.is_set()
    later = watch.pushes.next_message(session.outbox)
    assert list(later.producer_fences) == [pb.ProducerFence(producer_id=2, min_epoch=2)]


def test_leader_refuses_older_epochs_even_of_duplicates() -> None:
    led = Led()
    old = {"count": 1, "producer_id": 7, "producer_epoch": 1}
    assert only(Append, led.produce(**old, base_sequence=0))
    led.producer_fences[7] = 2
    for sequence in (0, 1):  # a repetition, and the next one
        [refused] = only(FailProduce, led.produce(**old, base_sequence=sequence))
        assert isinstance(refused.error, ProducerFencedError)
    new = {**old, "producer_epoch": 2}
    assert only(Append, led.produce(**new, base_sequence=0))
    assert only(Append, led.produce(count=1))  # without a producer id
