"""A client that asks only for changes knows the same as one that asks for everything. It may ask
the coordinator, a node that follows it, or both in turns, whatever happens to leaders, nodes and
topics."""

import random
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.client.cluster.cluster_view import ClusterView
from icecore.client.types import PartitionMetadata, TopicMetadata
from icecore.errors import IcecoreError, UnknownTopicError
from icecore.model import NodeState, SegmentState
from icecore.rpc import convert
from icecore.rpc.methods import ADMIN, MIRROR
from icecore.rpc.ports import NO_SLOT
from icecore.v1 import admin_pb2, mirror_pb2
from icecore_coordinator.decisions.segment_changes import (
    DecidedSeal,
    Opening,
    open_tail,
    prepare,
    seal,
    start_recovery,
)
from icecore_coordinator.decisions.topic_changes import (
    add_partitions,
    create_topic,
    missing_partitions,
)
from icecore_coordinator.decisions.topic_deletion import delete_topic
from icecore_coordinator.nodes.topic_versions import TopicVersions
from icecore_coordinator.services.admin_messages import Describer
from icecore_coordinator.services.admin_service import AdminService
from icecore_coordinator.services.topic_mirroring import TopicMirroring
from icecore_coordinator.state.cluster_state import Placement, node_infos
from icecore_coordinator.state.records import Change, PartitionKey, updated
from icecore_node.registry.topic_mirror import TopicMirror
from icecore_node.serving.metadata_service import MetadataService
from tests.support.cluster_states import ALL, DIGEST, SETTINGS, TOPIC, commit, started

NAME = "events"
TOKEN = 7
CALL = cast(Any, SimpleNamespace(slot=NO_SLOT))
UNUSED = cast(Any, None)


class Coordinator:
    """Real services over a real state; a step is what a cluster does to it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.state = rng, started()
        self.state.coordinator_epoch = cast(Any, TOKEN)
        self.versions = TopicVersions(self.state)
        self.versions.load()
        describer = Describer(
            state=self.state,
            live=self.state.live,
            heard=UNUSED,
            alerts=UNUSED,
            sessions=UNUSED,
            clock=UNUSED,
            recoveries=lambda: 0,
            refused_streams=lambda: 0,
        )
        ledger = cast(Any, SimpleNamespace(state=self.state))
        names = (path.rpartition("/")[2] for path in ADMIN)
        others = {name: UNUSED for name in names if name != "GetMetadata"}
        admin = AdminService(ledger, *[UNUSED] * 5, describer, self.versions, UNUSED, others)
        mirroring = TopicMirroring(self.state, self.versions, describer)
        self._handlers: dict[str, Any] = {
            **admin.handlers().unary,
            **mirroring.handlers().unary,
        }
        self.made = 0

    async def ask(self, method: str, request: Any) -> bytes:
        return bytes(await self._handlers[method](request.SerializeToString(), CALL))

    def step(self) -> None:
        """Something happens, unless a decision refuses it."""
        steps = [self._roll, self._roll, self._lose, self._turn, self._turn, self._restart]
        with suppress(IcecoreError):
            self.rng.choice([*steps, self._grow, self._make_anew])()

    def _commit(self, change: Change) -> None:
        self.versions.on_change(commit(self.state, change))

    def _key(self) -> PartitionKey | None:
        keys = [key for key, each in self.state.partitions.items() if self._is_live(each.topic_id)]
        return self.rng.choice(keys) if keys else None

    def _is_live(self, topic_id: bytes) -> bool:
        return self.state.is_live_topic(topic_id)

    def _roll(self) -> None:
        """The tail of a partition ends, or its first one opens; somebody leads the next."""
        if (key := self._key()) is None:
            return
        place = Placement(cast(Any, (1, 2, 3)), cast(Any, self.rng.randint(1, 3)))
        self._commit(prepare(self.state, [(key, place)]))
        opening = Opening(cast(Any, max(self.state.segments)), cast(Any, self._registered()))
        before = self.state.segments.get(self.state.partitions[key].tail_segment_id)
        if before is None:
            self._commit(open_tail(self.state, self.state.live, opening))
            return
        tail = before.segment
        end = DecidedSeal(tail.segment_id, tail.version, tail.base_offset + 10, DIGEST, (1, 2, 3))
        self._commit(seal(self.state, self.state.live, end, opening, 0))

    def _registered(self) -> dict[int, int]:
        return {node_id: self.state.nodes[cast(Any, node_id)].incarnation for node_id in ALL}

    def _lose(self) -> None:
        """A leader is found to be gone."""
        if (key := self._key()) is None:
            return
        record = self.state.segments.get(self.state.partitions[key].tail_segment_id)
        if record is not None and record.segment.state is SegmentState.ACTIVE:
            segment = record.segment
            self._commit(start_recovery(self.state, segment.segment_id, segment.version))

    def _turn(self) -> None:
        """A node goes or is back; no record says so."""
        node_id = cast(Any, self.rng.randint(1, 3))
        is_live = self.state.live.is_live(node_id)
        self.state.live.note(node_id, state=NodeState.DOWN if is_live else NodeState.UP)

    def _restart(self) -> None:
        """A node is back as another process, which leads nothing."""
        node = self.state.nodes[cast(Any, self.rng.randint(1, 3))]
        incarnation = cast(Any, node.incarnation + 10)
        self._commit(
            Change((updated(node, issued_incarnation=incarnation, incarnation=incarnation),))
        )

    def _grow(self) -> None:
        topic_id = self.state.topic_ids.get(NAME)
        if topic_id is not None and (count := self.state.topics[topic_id].partitions) < 6:
            self._commit(add_partitions(self.state, NAME, count + 1))
            for change in missing_partitions(self.state):
                self._commit(change)

    def _make_anew(self) -> None:
        """The topic goes, or one of that name comes, at first without partitions."""
        topic_id = self.state.topic_ids.get(NAME)
        if topic_id is not None and self.rng.random() < 0.5:
            self._commit(delete_topic(self.state, NAME, b"", 0))
        elif topic_id is None:
            self.made += 1
            made = (self.made).to_bytes(1, "big") + TOPIC[1:]
            self._commit(create_topic(self.state, self.state.live, NAME, made, 2, SETTINGS))
        for change in missing_partitions(self.state) if self.rng.random() < 0.7 else ():
            self._commit(change)


class Node:
    """A mirror that is asked for by its pages, now and then."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._mirror = TopicMirror()
        self._peers = SimpleNamespace(nodes=dict[int, Any]())
        context = SimpleNamespace(
            identity=SimpleNamespace(cluster_id=b"c" * 16, node_id=1),
            peers=self._peers,
            clock=SimpleNamespace(monotonic_ms=lambda: 0.0),
        )
        service = MetadataService(cast(Any, context), UNUSED, self._mirror, UNUSED)
        self._handler = service.handlers()[ADMIN["GetMetadata"]]

    async def follow(self) -> None:
        """Hear of everything."""
        state = self._coordinator.state
        self._peers.nodes = {each.node_id: each for each in node_infos(state, state.live)}
        is_last = False
        while not is_last:
            coordinator_epoch, since, after = self._mirror.place
            request = mirror_pb2.FollowTopicsRequest(
                cluster_id=b"c" * 16,
                coordinator_epoch=coordinator_epoch,
                since_version=since,
                after_version=after,
            )
            body = await self._coordinator.ask(MIRROR["FollowTopics"], request)
            is_last = self._mirror.take(mirror_pb2.FollowTopicsResponse.FromString(body))

    async def ask(self, _: str, request: Any) -> bytes:
        return bytes(cast(Any, await self._handler(request.SerializeToString(), CALL)))


async def asked(server: Coordinator | Node, view: ClusterView) -> ClusterView:
    """Return the view after asking for the changes."""
    coordinator_epoch, version = view.base([NAME])
    request = admin_pb2.GetMetadataRequest(
        topics=[NAME], known_coordinator_epoch=coordinator_epoch, known_version=version
    )
    found = admin_pb2.GetMetadataResponse.FromString(
        await server.ask(ADMIN["GetMetadata"], request)
    )
    return view.after(found)


def led(topic: TopicMetadata | None, coordinator: Coordinator) -> TopicMetadata | None:
    """As it is to who asks for all of it: a leader that is up as another process leads nothing,
    which no change of a topic says."""
    if topic is None:
        return None

    def one(found: PartitionMetadata) -> PartitionMetadata:
        record = coordinator.state.segments.get(cast(Any, found.segment_id))
        leader = found.leader or found.down_leader
        if record is not None and record.segment.leader_incarnation not in (
            0,
            coordinator.state.nodes[cast(Any, leader)].incarnation if leader else 0,
        ):
            return replace(found, leader=0, down_leader=0)
        return found

    return replace(topic, partitions=tuple(map(one, topic.partitions)))


@pytest.mark.parametrize("seed", range(40))
async def test_changes_come_to_the_same_as_everything(seed: int) -> None:
    rng = random.Random(seed)
    coordinator = Coordinator(rng)
    node = Node(coordinator)
    await node.follow()
    view = ClusterView()
    for _ in range(60):
        coordinator.step()
        if rng.random() < 0.3:
            await node.follow()
        if rng.random() < 0.4:
            view = await asked(node, view)
        if rng.random() < 0.4:
            view = await asked(coordinator, view)
            everything = await asked(coordinator, ClusterView())
            if NAME in everything.topics:  # else it is gone, which is an error of the answer
                found = led(view.topics[NAME], coordinator)
                assert found == led(everything.topics[NAME], coordinator)


async def test_what_has_not_changed_is_left_out() -> None:
    coordinator = Coordinator(random.Random(1))
    for server in (coordinator, Node(coordinator)):
        if isinstance(server, Node):
            await server.follow()
        known = admin_pb2.GetMetadataRequest(
            topics=[NAME], known_coordinator_epoch=TOKEN, known_version=coordinator.versions.version
        )
        answer = admin_pb2.GetMetadataResponse.FromString(
            await server.ask(ADMIN["GetMetadata"], known)
        )
        (topic,) = answer.topics
        assert topic.changes_only and not topic.partitions and answer.tells_changes
        for other in ({"known_coordinator_epoch": TOKEN + 1}, {"known_version": 0}):
            request = admin_pb2.GetMetadataRequest()
            request.CopyFrom(known)
            for name, value in other.items():
                setattr(request, name, value)
            answer = admin_pb2.GetMetadataResponse.FromString(
                await server.ask(ADMIN["GetMetadata"], request)
            )
            assert [len(each.partitions) for each in answer.topics] == [1]
            assert not answer.topics[0].changes_only


def changes(version: int, *partitions: admin_pb2.PartitionMetadata, down: bool = False) -> Any:
    """An answer with these alone; of a node that is up, unless it is down."""
    state = NodeState.DOWN if down else NodeState.UP
    node = admin_pb2.GetMetadataResponse().nodes.add(node_id=1, address="h:1", state=int(state))
    return admin_pb2.GetMetadataResponse(
        nodes=[node],
        coordinator_epoch=TOKEN,
        version=version,
        tells_changes=True,
        topics=[
            admin_pb2.TopicMetadata(
                name=NAME, topic_id=TOPIC, partitions=partitions, changes_only=version > 1
            )
        ],
    )


def test_a_leader_that_is_back_leads_again_without_a_word_of_it() -> None:
    first = changes(1, admin_pb2.PartitionMetadata(partition=0, epoch=3, leader=1))
    view = ClusterView().after(first)
    gone = view.after(changes(2, down=True))
    assert (view.leader(NAME, 0), gone.leader(NAME, 0)) == (1, 0)
    assert gone.after(changes(3)).leader(NAME, 0) == 1
    assert gone.after(changes(3)).base([NAME]) == (TOKEN, 3)


def test_changes_begin_where_the_last_answer_about_everything_ends() -> None:
    """One of a node that still follows an older coordinator may have taken something back."""
    view = ClusterView().after(changes(1, admin_pb2.PartitionMetadata(partition=0, leader=1)))
    older = changes(1, admin_pb2.PartitionMetadata(partition=0, leader=1))
    older.coordinator_epoch -= 1
    assert view.after(older).base([NAME]) == (TOKEN - 1, 1)


def test_changes_to_what_nobody_knows_are_of_no_use() -> None:
    found = changes(2, admin_pb2.PartitionMetadata(partition=5, epoch=3, leader=1))
    assert not ClusterView().after(found).topics


def test_who_hears_of_another_topic_asks_for_all_of_both() -> None:
    view = ClusterView().after(changes(1, admin_pb2.PartitionMetadata(partition=0, leader=1)))
    assert view.base([NAME]) == (TOKEN, 1)
    assert view.base([NAME, "other"]) == view.base([]) == (0, 0)


def test_an_older_server_is_asked_for_everything() -> None:
    answer = changes(1, admin_pb2.PartitionMetadata(partition=0, leader=1))
    answer.tells_changes = False
    assert ClusterView().after(answer).base([NAME]) == (0, 0)


def test_errors_of_an_answer_leave_what_was_known() -> None:
    view = ClusterView().after(changes(1, admin_pb2.PartitionMetadata(partition=0, leader=1)))
    answer = changes(2)
    answer.topics[0].error.CopyFrom(convert.error_to_proto(UnknownTopicError("gone")))
    assert view.after(answer).topics == view.topics
