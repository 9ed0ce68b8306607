"""Producers' names: epochs that rise, who may raise them, and what leaders make of them."""

import pytest

from icecore.errors import ConflictError, InvalidRequestError, ProducerFencedError
from icecore.model import NAMED_IDS_END, NAMED_IDS_FIRST, ProducerEpoch, ProducerId
from icecore.spark.tasks.identity import identity
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions import producer_changes
from icecore_coordinator.decisions.producer_changes import delete_name, shut_out, take_name
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.records import Change, ProducerRecord, updated
from icecore_replication.effects import Append, FailProduce
from tests.support.cluster_states import commit, started
from tests.support.replication_setup import Led, only
from tests.unit.coordinator.nodes.test_node_sessions import Watch

NOW_MS = 1_700_000_000_000


def take(state: ClusterState, name: str, instance: int, *, is_renewal: bool = False) -> None:
    commit(state, take_name(state, name, instance, NOW_MS, is_renewal=is_renewal))


def test_taking_a_name_keeps_the_id_and_raises_the_epoch() -> None:
    state = started()
    take(state, "a", 1)
    take(state, "b", 1)
    take(state, "a", 2)
    assert state.producers["a"] == ProducerRecord(
        "a", 1, 1, instance=2, taken_at_ms=NOW_MS, version=2
    )
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
    with pytest.raises(InvalidRequestError, match="icecore producer delete"):
        take(state, "b", 1)
    take(state, "a", 2)  # taken over all the same
    delete(state, "a")
    take(state, "b", 1)


def test_streams_say_fences_to_everyone_and_all_of_them_at_first() -> None:
    watch = Watch()
    take(watch.state, "quiet", 1)  # epoch 0: nobody was shut out
    take(watch.state, "a", 1)
    take(watch.state, "a", 2)
    session = watch.connect(1)
    first = watch.pushes.next_message(session.outbox)
    assert list(first.producer_fences) == [pb.ProducerFence(producer_id=2, min_epoch=1)]
    assert not watch.pushes.next_message(session.outbox).producer_fences
    change = commit(watch.state, take_name(watch.state, "a", 3, NOW_MS, is_renewal=False))
    watch.pushes.on_change(change)
    assert session.outbox.wake.is_set()
    later = watch.pushes.next_message(session.outbox)
    assert list(later.producer_fences) == [pb.ProducerFence(producer_id=2, min_epoch=2)]


def delete(state: ClusterState, name: str) -> None:
    [record] = commit(state, shut_out(state, name)).puts
    assert isinstance(record, ProducerRecord)
    commit(state, delete_name(state, name, record.producer_epoch))


def speak(state: ClusterState, version: int) -> None:
    nodes = [updated(each, protocol_version=version) for each in state.nodes.values()]
    commit(state, Change(tuple(nodes)))


def test_the_id_of_a_deleted_name_is_never_given_again() -> None:
    state = started()
    speak(state, 5)
    given = []
    for _ in range(3):
        take(state, "a", 1)
        given.append(state.producers["a"].producer_id - NAMED_IDS_FIRST)
        delete(state, "a")
    assert given == [1, 2, 3] and not state.producers
    speak(state, 4)
    take(state, "a", 1)
    assert state.producers["a"].producer_id == 1


def test_a_name_that_is_taken_meanwhile_stays() -> None:
    state = started()
    take(state, "a", 1)
    commit(state, shut_out(state, "a"))
    with pytest.raises(ProducerFencedError):
        take(state, "a", 1, is_renewal=True)  # whoever has it is shut out already
    take(state, "a", 2)
    with pytest.raises(ConflictError, match="just now"):
        delete_name(state, "a", ProducerEpoch(1))
    for unknown in ("b", ""):
        with pytest.raises(InvalidRequestError, match="icecore producer list"):
            shut_out(state, unknown)


def test_streams_say_which_names_are_known() -> None:
    watch = Watch()
    speak(watch.state, 5)
    take(watch.state, "quiet", 1)  # epoch 0: it must be known all the same
    session = watch.connect(1)
    first = watch.pushes.next_message(session.outbox)
    known = pb.ProducerFence(producer_id=NAMED_IDS_FIRST + 1, min_epoch=0)
    assert first.full and list(first.producer_fences) == [known]
    [record] = commit(watch.state, shut_out(watch.state, "quiet")).puts
    assert isinstance(record, ProducerRecord)
    change = commit(watch.state, delete_name(watch.state, "quiet", record.producer_epoch))
    watch.pushes.on_change(change)
    later = watch.pushes.next_message(session.outbox)
    assert list(later.deleted_producer_ids) == [NAMED_IDS_FIRST + 1]
    assert not later.producer_fences and not later.full


def test_leader_refuses_names_that_it_does_not_know() -> None:
    led = Led()
    named = {"count": 1, "producer_id": NAMED_IDS_FIRST + 1, "producer_epoch": 0}
    [refused] = only(FailProduce, led.produce(**named, base_sequence=0))
    assert isinstance(refused.error, ProducerFencedError)
    led.producer_fences[ProducerId(NAMED_IDS_FIRST + 1)] = ProducerEpoch(0)
    assert only(Append, led.produce(**named, base_sequence=0))
    for other in (NAMED_IDS_FIRST - 1, NAMED_IDS_END, identity("a write of Spark", 3, 7)[0]):
        unnamed = {**named, "producer_id": other}
        assert only(Append, led.produce(**unnamed, base_sequence=0))
    del led.producer_fences[ProducerId(NAMED_IDS_FIRST + 1)]  # the name was deleted
    for sequence in (0, 1):  # a repetition, and the next one
        [refused] = only(FailProduce, led.produce(**named, base_sequence=sequence))
        assert isinstance(refused.error, ProducerFencedError)


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
