"""Old news about a topic that is new to a client is not believed before others were asked."""

import itertools
from typing import Any, cast

import pytest

from icecore.client.cluster.connection import STALE_MS, Connection
from icecore.client.cluster.metadata import Metadata
from icecore.errors import IcecoreError, UnavailableError, UnknownTopicError
from icecore.process.system import SystemClock, SystemRng
from icecore.rpc import convert
from icecore.v1 import admin_pb2

OLD, NEW = b"o" * 16, b"n" * 16
YOUNG_MS, AGED_MS = 100, STALE_MS + 1


def answer(topic_id: bytes, version: int, age_ms: int) -> admin_pb2.GetMetadataResponse:
    """About the topic ``t``; without an id it does not exist."""
    found = admin_pb2.GetMetadataResponse(coordinator_epoch=1, version=version, age_ms=age_ms)
    topic = found.topics.add(name="t", topic_id=topic_id)
    if topic_id:
        topic.partitions.add(partition=0, leader=1)
    else:
        topic.error.CopyFrom(convert.error_to_proto(UnknownTopicError("no topic 't'")))
    return found


class Servers:
    """As a connection: each call is answered by the next one."""

    transport = "auto"
    rng = SystemRng()

    def __init__(self, *answers: admin_pb2.GetMetadataResponse | IcecoreError) -> None:
        self.clock = SystemClock()
        self._answers = itertools.chain(answers)
        self.asked = 0

    def deadline_ms(self, timeout_s: float) -> float:
        return self.clock.monotonic_ms() + timeout_s * 1000

    async def admin(self, *_: Any, **__: Any) -> admin_pb2.GetMetadataResponse:
        self.asked += 1
        found = next(self._answers)
        if isinstance(found, IcecoreError):
            raise found
        return found

    def check_open(self) -> None:
        """It always is."""

    def check_server(self, _: bytes) -> bool:
        return True

    def meet(self, *_: Any) -> None:
        """Do nothing: no server is called by address."""


async def believed(servers: Servers) -> tuple[bytes, Metadata]:
    metadata = Metadata(cast(Connection, servers))
    return (await metadata.topic("t", timeout_s=5)).topic_id, metadata


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_the_newest_of_three_old_ones_counts(at: int) -> None:
    answers = [answer(OLD, 5, AGED_MS * 9) for _ in range(3)]
    answers[at] = answer(NEW, 7, AGED_MS)
    servers = Servers(*answers)
    assert (await believed(servers))[0] == NEW
    assert servers.asked == 3


async def test_a_young_answer_ends_it() -> None:
    servers = Servers(answer(OLD, 5, AGED_MS), answer(NEW, 7, YOUNG_MS))
    assert ((await believed(servers))[0], servers.asked) == (NEW, 2)
    servers = Servers(answer(NEW, 7, YOUNG_MS))
    assert ((await believed(servers))[0], servers.asked) == (NEW, 1)


async def test_a_topic_that_is_made_later_is_found_behind_a_node_that_lacks_it() -> None:
    servers = Servers(answer(b"", 5, AGED_MS * 9), answer(NEW, 7, AGED_MS), answer(b"", 5, AGED_MS))
    found, metadata = await believed(servers)
    assert (found, metadata.error("t")) == (NEW, None)


async def test_where_nobody_else_answers_the_first_one_counts() -> None:
    servers = Servers(answer(OLD, 5, AGED_MS), UnavailableError("away"))
    assert ((await believed(servers))[0], servers.asked) == (OLD, 2)


async def test_a_topic_that_is_known_costs_one_question() -> None:
    servers = Servers(answer(NEW, 7, YOUNG_MS), answer(NEW, 7, AGED_MS))
    _, metadata = await believed(servers)
    await metadata.refresh()
    assert servers.asked == 2


async def test_what_was_answered_counts_more_than_a_last_attempt_in_vain() -> None:
    late = UnavailableError("nobody answered within 0.05 s")
    servers = Servers(answer(b"", 5, YOUNG_MS), *[late] * 50)
    metadata = Metadata(cast(Connection, servers))
    with pytest.raises(UnknownTopicError):
        await metadata.topic("t", timeout_s=0.5)
    assert servers.asked > 1


async def test_a_coordinator_is_believed_at_once() -> None:
    servers = Servers(answer(b"", 5, 0))
    with pytest.raises(UnknownTopicError):
        await Metadata(cast(Connection, servers)).topic("t", timeout_s=30)
    assert servers.asked == 1


async def test_a_node_is_believed_once_it_has_heard_of_a_coordinator() -> None:
    servers = Servers(answer(b"", 5, 50), answer(b"", 5, 50), answer(b"", 5, 0))
    with pytest.raises(UnknownTopicError):
        await Metadata(cast(Connection, servers)).topic("t", timeout_s=30)
    assert 1 < servers.asked <= 3


async def test_a_node_that_hears_of_none_is_never_believed() -> None:
    """The topic may have been made just before the coordinator went away: it comes with it."""
    servers = Servers(*[answer(b"", 5, 60_000)] * 24, answer(NEW, 7, 0))
    found = await Metadata(cast(Connection, servers)).topic("t", timeout_s=30)
    assert found.topic_id == NEW
    servers = Servers(*[answer(b"", 5, 60_000)] * 200)
    with pytest.raises(UnknownTopicError):
        await Metadata(cast(Connection, servers)).topic("t", timeout_s=0.4)
    assert servers.asked > 1


async def test_a_topic_is_waited_for_when_somebody_asks_for_that() -> None:
    servers = Servers(answer(b"", 5, 0), answer(b"", 5, 0), answer(NEW, 7, 0))
    found = await Metadata(cast(Connection, servers)).topic("t", timeout_s=1, wait_s=5)
    assert (found.topic_id, servers.asked) == (NEW, 3)
    servers = Servers(*[answer(b"", 5, 0)] * 50)
    with pytest.raises(UnknownTopicError):
        await Metadata(cast(Connection, servers)).topic("t", timeout_s=30, wait_s=0.1)
    assert 1 < servers.asked < 20


async def test_a_topic_that_is_being_made_is_waited_for() -> None:
    begun = answer(NEW, 6, 0)
    del begun.topics[0].partitions[:]
    servers = Servers(begun, answer(NEW, 7, 0))
    assert (await believed(servers))[0] == NEW
