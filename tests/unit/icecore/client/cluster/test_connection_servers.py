"""A client asks each server that it was given in turn, and counts no server of another cluster."""

import asyncio
from typing import Any, cast

import pytest

from icecore.client.cluster.connection import Connection
from icecore.client.cluster.metadata import Metadata
from icecore.errors import (
    IcecoreError,
    NotCoordinatorError,
    RequestTimeoutError,
    UnavailableError,
    UnsupportedError,
    WrongClusterError,
)
from icecore.rpc.ports import STRANGER, Net
from icecore.v1 import admin_pb2
from tests.support.waiting import until

OURS, OTHERS = b"c" * 16, b"o" * 16
TOPIC, OTHER_TOPIC = b"t" * 16, b"u" * 16
AWAY = UnavailableError("UNAVAILABLE: nobody listens")


def metadata(cluster_id: bytes, topic_id: bytes) -> bytes:
    """About the topic ``t``."""
    answer = admin_pb2.GetMetadataResponse(cluster_id=cluster_id, coordinator_epoch=9, version=9)
    answer.topics.add(name="t", topic_id=topic_id).partitions.add(partition=0, leader=1)
    return answer.SerializeToString()


MINE, FOREIGN = metadata(OURS, TOPIC), metadata(OTHERS, OTHER_TOPIC)


class Servers:
    """As a net: what is said at each address; nobody is at the others."""

    def __init__(self, **said: bytes | IcecoreError) -> None:
        self.said = {f"{name}:1": found for name, found in said.items()}
        self.questions: list[tuple[str, str]] = []

    @property
    def asked(self) -> list[str]:
        """Return the servers that were asked, in order."""
        return [address for address, _ in self.questions]

    async def call(self, address: str, method: str, *_: Any, **__: Any) -> bytes:
        name = method.rpartition("/")[2]
        self.questions.append((address, name))
        found = self.said.get(address, AWAY)
        if isinstance(found, IcecoreError):
            raise found
        return found if name == "GetMetadata" else b""


def connection(servers: Servers, bootstrap: str) -> Connection:
    return Connection(bootstrap, cast(Net, servers))


async def save_positions(client: Connection, timeout_s: float = 3) -> None:
    """Some question that only a coordinator answers."""
    request = admin_pb2.SavePositionsRequest()
    await client.admin(
        "SavePositions", request, admin_pb2.SavePositionsResponse, timeout_s=timeout_s
    )


async def test_who_is_named_and_can_not_be_reached_is_followed_by_who_was_given() -> None:
    """A node may know its coordinator by an address that clients can't reach."""
    inside = NotCoordinatorError("ask inside", address="inside:1")
    servers = Servers(n1=inside, n2=inside, c=MINE)
    await save_positions(connection(servers, "n1:1, n2:1, c:1"))
    assert servers.asked == ["n1:1", "inside:1", "n2:1", "inside:1", "c:1"]


async def test_a_standby_that_names_a_dead_coordinator_holds_nobody_up() -> None:
    """The last one names the first one, which would follow it anyway: still all are asked."""
    stale = NotCoordinatorError("ask a", address="a:1")
    servers = Servers(b=stale, c=stale)
    client = connection(servers, "a:1,b:1,c:1")
    with pytest.raises(UnavailableError):
        await save_positions(client, timeout_s=0.5)
    servers.said["b:1"] = MINE
    servers.questions.clear()
    await save_positions(client)
    assert len(servers.questions) <= 4


async def test_a_standby_is_believed_each_time() -> None:
    """Waiting in between would cost a second of each take-over."""
    servers = Servers(a=NotCoordinatorError("ask b", address="b:1"))
    client = connection(servers, "a:1,b:1,c:1")
    began = asyncio.get_running_loop().time()
    for address in ("b:1", "c:1"):
        servers.said = {"a:1": NotCoordinatorError(f"ask {address}", address=address)}
        servers.said[address] = MINE
        await save_positions(client)
        client._coordinator = "a:1"
    assert asyncio.get_running_loop().time() - began < 0.02


async def test_an_answer_of_another_cluster_is_passed_by() -> None:
    servers = Servers(c=MINE, other=FOREIGN)
    client = connection(servers, "c:1,other:1,n:1")
    known = Metadata(client)
    assert (await known.topic("t", timeout_s=3)).topic_id == TOPIC
    servers.said = {"other:1": FOREIGN, "n:1": MINE}
    await known.refresh()
    await known.refresh()
    assert known.recreated("t", TOPIC) is None
    assert (known.view.cluster_id, servers.asked.count("other:1")) == (OURS, 1)
    servers.said = {"other:1": FOREIGN}
    with pytest.raises(UnavailableError):
        await save_positions(client, timeout_s=0.3)
    assert servers.asked.count("other:1") == 1


async def test_a_coordinator_of_another_cluster_is_asked_nothing() -> None:
    """It would say that the topics are gone, or other ones, before anybody asked who it is."""
    servers = Servers(c=MINE, other=FOREIGN)
    client = connection(servers, "c:1,other:1,d:1")
    await Metadata(client).topic("t", timeout_s=3)
    servers.said = {"other:1": FOREIGN, "d:1": MINE}
    servers.questions.clear()
    await save_positions(client)
    await save_positions(client)
    assert servers.questions == [
        *(("c:1", "SavePositions"), ("other:1", "GetMetadata"), ("d:1", "GetMetadata")),
        *(("d:1", "SavePositions"), ("d:1", "SavePositions")),
    ]


async def test_where_nobody_else_is_left_it_is_said() -> None:
    servers = Servers(c=MINE, other=FOREIGN)
    known = Metadata(connection(servers, "c:1,other:1"), timeout_s=0.3)
    await known.topic("t", timeout_s=3)
    servers.said = {"other:1": FOREIGN}
    with pytest.raises(UnavailableError):
        await known.refresh()
    servers.said = {"c:1": FOREIGN, "other:1": FOREIGN}
    with pytest.raises(WrongClusterError, match=r"c:1 answers for cluster 6f6f.*, not for 6363"):
        await known.refresh()
    servers.said["c:1"] = MINE
    await known.refresh()
    assert known.view.topics["t"].topic_id == TOPIC


STRANGER_ERROR = UnavailableError("UNAVAILABLE: no HTTP/2", **{STRANGER: "true"})


async def test_who_is_no_server_of_ours_is_told_at_once() -> None:
    servers = Servers(a=STRANGER_ERROR, b=STRANGER_ERROR)
    client = connection(servers, "a:1,b:1")
    with pytest.raises(UnsupportedError, match="b:1 is no server of icecore"):
        await save_positions(client, 30)
    assert servers.asked == ["a:1", "b:1"]


async def test_others_are_asked_instead_of_a_stranger() -> None:
    servers = Servers(a=STRANGER_ERROR, b=b"")
    client = connection(servers, "a:1,b:1")
    await save_positions(client)
    assert servers.asked == ["a:1", "b:1"]
    servers.said["b:1"] = STRANGER_ERROR  # a proxy whose servers are away, from now on
    with pytest.raises(UnavailableError):
        await save_positions(client, 0.1)


async def test_silence_at_the_end_hides_no_reason_that_was_heard() -> None:
    """The last attempt has a moment only. Whether it took effect is unknown, so its kind stays."""
    refusal = UnavailableError("the store is an older copy: run `icecore cluster adopt`")
    silence = RequestTimeoutError("DEADLINE_EXCEEDED: no answer within 0.03 s")
    servers = Servers(c=refusal)
    client = connection(servers, "c:1")

    async def fall_silent() -> None:
        await until(lambda: len(servers.questions) >= 2)
        servers.said["c:1"] = silence

    with pytest.raises(RequestTimeoutError) as caught:
        await asyncio.gather(save_positions(client, timeout_s=0.5), fall_silent())
    wanted = f"the coordinator at c:1 did not answer in time; before that: {refusal.message}"
    assert caught.value.message == wanted
    with pytest.raises(RequestTimeoutError, match=r"c:1 did not answer in time$"):
        await save_positions(client, timeout_s=0.1)
