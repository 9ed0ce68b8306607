"""Followers on a disk that is full wait; those on another disk of the same node do not."""

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from icecore.errors import OutOfSpaceError
from icecore.topic_settings import MEMORY_ENGINE, SegmentSettings
from icecore_node.registry.space import FollowerSpace
from icecore_node.replication.follower import Follower
from icecore_node.replication.leader import Leader


class Node:
    """Six replicas, the odd ones on the disk "b": followers, leaders, and empty leaders."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.replicas = [
            self.replica(number, Follower if number < 2 else Leader, 5 if number < 4 else 0)
            for number in range(6)
        ]
        self.memory = SimpleNamespace(used_bytes=0, bytes_max=800)
        disks = SimpleNamespace(on=lambda number: "b" if number % 2 else "", memory=self.memory)
        table, orders = self.replicas, SimpleNamespace(alone=alone)
        self.space = FollowerSpace(
            cast(Any, SimpleNamespace(disks=disks)),
            cast(Any, table),
            cast(Any, orders),
            Mock(),
            lambda replica: self.given.append(replica.segment_id),
        )

    def replica(self, number: int, role: type, end_offset: int) -> Any:
        replica = SimpleNamespace(
            segment_id=number,
            role=Mock(spec=role),
            base_offset=0,
            sealed=False,
            segment=SimpleNamespace(settings=SegmentSettings()),
            life=SimpleNamespace(is_idle=False),
            log=SimpleNamespace(tail=SimpleNamespace(end_offset=end_offset), settle=AsyncMock()),
        )

        def end_role(why: str) -> None:
            replica.role, replica.life.is_idle = None, True

        replica.end_role = end_role
        return replica

    def followed(self) -> list[int]:
        return [each.segment_id for each in self.replicas if isinstance(each.role, Follower)]


@asynccontextmanager
async def alone(_: int) -> Any:
    yield


async def test_only_what_lies_on_a_full_disk_is_paused() -> None:
    node = Node()
    space = node.space
    await space.pause_following_on({"b"})
    assert node.followed() == [0]
    assert [space.may_follow(number) for number in (0, 1)] == [True, False]  # type: ignore[arg-type]
    await space.pause_following_on({"b", ""})
    assert node.followed() == []
    await space.pause_following_on({""})
    assert node.given == [1]
    assert [space.may_follow(number) for number in (0, 1)] == [False, True]  # type: ignore[arg-type]
    await space.pause_following_on(set())
    assert node.given == [1, 0]


async def test_what_can_not_be_settled_yet_is_not_followed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, later = Node(), list[int]()
    monkeypatch.setattr(node.space, "follow_again", lambda each: later.append(each.segment_id))
    await node.space.pause_following_on({"b"})
    node.replicas[1].log.settle.side_effect = OutOfSpaceError("full")
    await node.space.pause_following_on(set())
    assert later == [1]


def test_what_grows_on_a_disk_is_what_has_a_role_and_records() -> None:
    space = Node().space
    assert space.growing_on({"b"}) == [1, 3]
    assert space.growing_on({"b", ""}) == [0, 1, 2, 3]
    assert space.growing_on(set()) == []


def in_memory(*replicas: Any) -> None:
    for each in replicas:
        each.segment = SimpleNamespace(settings=SegmentSettings(engine=MEMORY_ENGINE))


def test_what_others_lead_in_memory_is_told_when_that_is_nearly_full() -> None:
    node = Node()
    followed, given_up, led, sealed, empty, on_disk = node.replicas
    in_memory(followed, given_up, led, sealed, empty)
    given_up.end_role("no room")
    for each in (sealed, empty, on_disk):
        each.role = Mock(spec=Follower)
    sealed.sealed, on_disk.log.tail.end_offset = True, 5
    node.memory.used_bytes = 700
    assert node.space.growing_in_memory() == []
    node.memory.used_bytes = 701
    assert node.space.growing_in_memory() == [0, 1]


async def test_who_found_no_room_in_memory_follows_again_when_there_is_some() -> None:
    node = Node()
    replica = node.replicas[0]
    in_memory(replica)
    node.memory.used_bytes = 701
    assert not await node.space._has_room(replica)
    node.memory.used_bytes = 700
    assert await node.space._has_room(replica)
