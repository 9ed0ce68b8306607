"""Orders that contradict what a node knows are refused and change nothing."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import (
    FencedError,
    InvalidRequestError,
    ProducerFencedError,
    UnavailableError,
    UnsupportedError,
    WrongClusterError,
)
from icecore.model import NodeInfo, NodeState, SegmentState
from icecore.rpc.addresses import Transport
from icecore.topic_settings import SegmentSettings
from icecore.v1 import coordinator_pb2
from icecore_node.context import Peers, ProducerFences
from icecore_node.identity.identity import Identity
from icecore_node.io.io_pool import LogIo
from icecore_node.replica import order_checks
from icecore_node.replica.damage import is_shut_out
from icecore_node.replica.life import Life
from icecore_node.replica.order_checks import (
    check_identity,
    check_implemented,
    check_open,
    check_same,
    check_write_back,
    contradiction,
    is_in_the_way,
    is_recorded,
    objection,
)
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import NO_TAIL, SegmentIdentity
from icecore_replication.effects import Append, FailProduce
from icecore_replication.producers import EPOCH_JUMP_MAX, ProducerTable
from tests.conformance.log_builder import identity
from tests.support.replication_setup import Led, only, segment

TAIL = replace(NO_TAIL, end_offset=150, digest=b"d", max_known_high_watermark=140)
LOG = identity(7)
SEALED = segment(state=SegmentState.SEALED, end_offset=150, seal_digest=b"d")


class Pool:
    """One worker for everything."""

    def worker_for(self, *_: object) -> int:
        return 0


def replica(**changes: Any) -> Replica:
    """An intact one of segment 7, epoch 5, of which readers have seen all below 140."""
    fields = {
        "segment_id": 7,
        "identity": SimpleNamespace(epoch=5),
        "log": SimpleNamespace(tail=TAIL),
        "life": Life.IDLE,
        "sealed": False,
        "high_watermark": 120,
        "promised_epoch": 5,
        "segment": segment(),
        **changes,
    }
    return cast(Replica, SimpleNamespace(**fields))


def identity_in(cluster_id: bytes) -> Identity:
    known = Identity(1)
    known.register(cluster_id, incarnation=11, coordinator_epoch=4)
    return known


def test_a_sealed_replica_is_only_what_it_is() -> None:
    held = replica(sealed=True)
    assert not contradiction(held, 150, b"d", is_lossy=False)
    assert not contradiction(held, 150, b"", is_lossy=False)
    for end_offset, digest in ((1, b"d"), (151, b"d"), (150, b"x"), (1, b"")):
        assert contradiction(held, end_offset, digest, is_lossy=False)
        assert contradiction(held, end_offset, digest, is_lossy=True)
        with pytest.raises(InvalidRequestError):
            check_write_back(held, end_offset, digest, seal=True)


def test_nothing_is_cut_that_readers_have_seen_but_with_a_persons_word() -> None:
    lossy = segment(state=SegmentState.SEALED, end_offset=1, seal_digest=b"x", lossy=True)
    check_write_back(replica(segment=lossy), 1, b"x", seal=False)
    check_write_back(replica(life=Life.UNKNOWN), 1, b"x", seal=False)
    for held in (replica(), replica(high_watermark=145), replica(sealed=True)):
        with pytest.raises(InvalidRequestError):
            check_write_back(held, 139, b"x", seal=False)


def test_an_order_cuts_and_seals_only_what_our_own_record_says() -> None:
    """A copy that is being made is the order's own, and an UNKNOWN log gives way to one."""
    sealed = segment(state=SegmentState.SEALED, end_offset=140, seal_digest=b"x")
    check_write_back(replica(segment=sealed), 140, b"x", seal=True)
    check_write_back(replica(), 150, b"d", seal=False)  # nothing goes, and it stays open
    check_write_back(replica(), 160, b"e", seal=False)
    check_write_back(replica(segment=SEALED), 150, b"d", seal=True)
    for life in (Life.COPYING, Life.UNKNOWN):
        check_write_back(replica(life=life), 140, b"x", seal=True)
    open_or_other = (segment(), sealed, segment(lossy=True), None)
    for known in open_or_other:
        with pytest.raises(UnavailableError, match="own stream has not said"):
            check_write_back(replica(segment=known), 150, b"d", seal=True)
        with pytest.raises(UnavailableError, match="own stream has not said"):
            check_write_back(replica(segment=known), 149, b"d", seal=False)


def test_only_the_record_of_our_own_stream_lets_a_replica_give_way() -> None:
    assert is_recorded(replica(segment=SEALED), 150, b"d")
    assert not is_recorded(replica(segment=SEALED), 150, b"x")
    assert not is_recorded(replica(segment=SEALED), 149, b"d")
    assert not is_recorded(replica(), 150, b"d")
    assert not is_recorded(replica(segment=None), 150, b"d")


def test_an_empty_replica_of_another_segment_is_in_the_way() -> None:
    record = segment()
    ours = {"topic_id": record.topic_id, "partition": record.partition, "generation": 0}
    empty = SimpleNamespace(tail=NO_TAIL)

    def held(**changes: Any) -> Replica:
        known = SimpleNamespace(**{**ours, **changes})
        return replica(identity=known, base_offset=-1, log=empty)

    assert not is_in_the_way(held(), record)
    for other in ({"topic_id": b"x" * 16}, {"partition": 77}, {"generation": 1}):
        assert is_in_the_way(held(**other), record)
        full = replica(identity=SimpleNamespace(**{**ours, **other}), base_offset=100)
        assert not is_in_the_way(full, record), "bytes stay until a person has looked"


def test_a_promise_that_keeps_us_out_of_an_active_segment() -> None:
    shut = replica(promised_epoch=6)
    assert is_shut_out(shut, 2)
    assert not is_shut_out(shut, 9)
    assert not is_shut_out(replica(), 2)
    assert not is_shut_out(replica(promised_epoch=6, life=Life.UNKNOWN), 2)
    recovering = segment(state=SegmentState.RECOVERING)
    assert not is_shut_out(replica(promised_epoch=6, segment=recovering), 2)
    assert not is_shut_out(replica(promised_epoch=6, segment=None), 2)


def test_a_coordinator_is_known_from_our_own_stream() -> None:
    known = identity_in(b"c")
    order_checks.check_coordinator_epoch(known, 4)
    for later in (5, 1 << 20, 1 << 62):
        with pytest.raises(UnavailableError, match="has not heard of coordinator epoch"):
            order_checks.check_coordinator_epoch(known, later)
    with pytest.raises(FencedError):
        order_checks.check_coordinator_epoch(known, 3)
    known.hear(5)
    order_checks.check_coordinator_epoch(known, 5)


def test_numbers_that_never_go_down_again_don_t_jump() -> None:
    order_checks.check_promise(replica(), 5 + order_checks.PROMISE_JUMP_MAX)
    with pytest.raises(InvalidRequestError):
        order_checks.check_promise(replica(), 6 + order_checks.PROMISE_JUMP_MAX)
    fences = ProducerFences()
    fences.fence(9, 3)
    order_checks.check_producer_fence(fences, 9, 3 + EPOCH_JUMP_MAX)
    with pytest.raises(InvalidRequestError):
        order_checks.check_producer_fence(fences, 9, 4 + EPOCH_JUMP_MAX)
    with pytest.raises(InvalidRequestError):
        order_checks.check_producer_fence(fences, 1, (1 << 32) - 1)


IDENTITY = SegmentIdentity(b"c" * 16, b"t" * 16, 0, 7, 0, 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"topic_id": b""},
        {"topic_id": b"t" * 15},
        {"topic_id": b"t" * 17},
        {"segment_id": 0},
        {"segment_id": (1 << 64) - 1},
        {"epoch": 0},
        {"epoch": (1 << 64) - 1},
        {"partition": (1 << 32) - 1},
    ],
)
def test_segments_that_can_t_be(changes: dict[str, Any]) -> None:
    check_identity(IDENTITY, None)
    for base_offset in (None, 0):
        with pytest.raises(InvalidRequestError):
            check_identity(replace(IDENTITY, **changes), base_offset)


@pytest.mark.parametrize("name", ["engine", "file_model", "recovery_rule"])
def test_what_is_not_implemented_here(name: str) -> None:
    check_implemented(7, SegmentSettings())
    with pytest.raises(UnsupportedError, match=f"segment 7.*{name} 'unheard-of'"):
        check_implemented(7, replace(SegmentSettings(), **{name: "unheard-of"}))


def test_a_record_that_no_replica_obeys() -> None:
    assert not objection(replica(), segment())
    assert not objection(replica(sealed=True), SEALED)
    assert objection(replica(sealed=True), SEALED.changed(seal_digest=b"x"))
    assert not objection(replica(life=Life.UNKNOWN), SEALED.changed(seal_digest=b"x"))
    other = replace(segment().settings, engine="unheard-of")
    assert "engine 'unheard-of'" in objection(replica(), segment().changed(settings=other))


def test_an_open_of_what_is_not_implemented_here() -> None:
    settings = coordinator_pb2.SegmentSettings(engine="unheard-of")
    item = coordinator_pb2.OpenSegment(segment={"settings": settings})
    with pytest.raises(UnsupportedError):
        check_open(item, IDENTITY, None)
    check_open(coordinator_pb2.OpenSegment(), IDENTITY, None)  # absent: the default


def test_bases_that_can_t_be() -> None:
    check_identity(IDENTITY, 0)
    for base_offset in (-1, (1 << 63) - 1):
        with pytest.raises(InvalidRequestError):
            check_identity(IDENTITY, base_offset)


@pytest.mark.parametrize(
    "changes", [{"topic_id": b"x" * 16}, {"partition": 1}, {"generation": 1}, {"epoch": 7}]
)
def test_an_id_is_of_one_segment(changes: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    held = replica(identity=replace(IDENTITY, base_offset=100))
    check_same(held, IDENTITY)
    with pytest.raises(InvalidRequestError):
        check_same(held, replace(IDENTITY, **changes))
    assert "event=open_contradicts" in caplog.text


def test_donors_are_nodes_of_the_cluster() -> None:
    peers = Peers()
    peers.learn(NodeInfo(1, "n1:1", 11))
    assert order_checks.donor_of(peers, "") == ""
    assert order_checks.donor_of(peers, "n1:1") == "n1:1"
    with pytest.raises(InvalidRequestError):
        order_checks.donor_of(peers, "169.254.169.254:80")


def test_a_donor_is_called_over_the_transport_of_who_copies() -> None:
    here_before = NodeInfo(1, "n:1", 1, NodeState.DOWN, native_address="gone:2")
    for transport, called in (("auto", "native://n:2"), ("grpc", "n:1")):
        peers = Peers(cast(Transport, transport))
        peers.learn(here_before)
        peers.learn(NodeInfo(2, "n:1", 11, native_address="n:2"))
        assert order_checks.donor_of(peers, "n:1") == called


def test_lists_are_bounded() -> None:
    order_checks.check_length([0] * order_checks.ITEMS_MAX)
    with pytest.raises(InvalidRequestError):
        order_checks.check_length([0] * (order_checks.ITEMS_MAX + 1))


def test_orders_name_their_cluster() -> None:
    mine = identity_in(b"c")
    mine.check_cluster(b"")
    mine.check_cluster(b"c", is_needed=True)
    with pytest.raises(WrongClusterError):
        mine.check_cluster(b"", is_needed=True)


def test_who_has_not_joined_a_cluster_is_unavailable_for_now() -> None:
    with pytest.raises(UnavailableError) as refused:  # clients take another cluster for final
        identity_in(b"").check_cluster(b"c")
    assert refused.value.retriable


def test_a_replica_between_two_roles_shows_only_what_is_durable() -> None:
    io = LogIo(cast(Any, None), cast(Any, Pool()), cast(Any, None))
    tail = replace(TAIL, end_offset=160)
    mine = Replica(io, replace(LOG, base_offset=0), tail, ProducerTable(), life=Life.IDLE)
    mine.log.became_durable(replace(TAIL, end_offset=130))
    assert mine.high_watermark == 130
    mine.log.became_durable(tail)
    assert mine.high_watermark == TAIL.max_known_high_watermark


def test_a_producer_epoch_does_not_jump() -> None:
    led = Led()
    led.producer_fences[9] = 3
    absurd = (1 << 32) - 1
    for producer_id in (9, 10):
        [failed] = only(FailProduce, led.produce(producer_id=producer_id, producer_epoch=absurd))
        assert isinstance(failed.error, InvalidRequestError)
    assert only(Append, led.produce(producer_id=9, producer_epoch=3))
    assert only(Append, led.produce(producer_id=9, producer_epoch=3 + EPOCH_JUMP_MAX))
    assert only(Append, led.produce(producer_id=9, producer_epoch=3 + 2 * EPOCH_JUMP_MAX))
    [failed] = only(FailProduce, led.produce(producer_id=9, producer_epoch=2))
    assert isinstance(failed.error, ProducerFencedError)
