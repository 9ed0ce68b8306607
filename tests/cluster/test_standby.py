"""R121: Several coordinators on one etcd: the active one dies, stops, stands still, or loses etcd,
all under load. Another one takes over, and producers notice nothing."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore import Admin
from icecore.errors import ConfigurationError, IcecoreError
from icecore_coordinator.stores.sqlite_store import SqliteStore
from tests.cluster.traffic import (
    CHANGE_WITHIN_S,
    create,
    load,
    next_change,
    numbered,
    produce,
    read_all,
    topic_names,
)
from tests.support.etcd import NEEDS_MEMBERS, EtcdMembers, running_members
from tests.support.ports import free_ports
from tests.support.standbys import SESSION_MS, Coordinators, running_coordinators

pytestmark = NEEDS_MEMBERS
SLACK_S = 8.0
"""A take-over may last so much longer than the session of the dead one. One second is meant, and a
half of it is etcd's, which looks for ended leases that often; the rest is for a machine that is
shared with anything. The figures are printed."""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    with running_members(tmp_path_factory.mktemp("etcd"), 1) as members:
        yield members


@pytest.fixture(scope="module")
def three(etcd: EtcdMembers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinators]:
    with running_coordinators(etcd, tmp_path_factory.mktemp("c"), 3) as coordinators:
        yield coordinators


async def test_kill_stop_and_pause_of_the_active_one(three: Coordinators) -> None:
    """Segments are sealed all the time, so some are at each of these moments."""
    names = topic_names()
    await create(three.bootstrap, "t", partitions=3, segment_bytes=64 << 10)
    took: dict[str, float] = {}
    async with load(three.bootstrap, "t") as log:
        for word, number in (
            ("kill", signal.SIGKILL),
            ("stop", signal.SIGTERM),
            ("pause", signal.SIGSTOP),
        ):
            active = three.active
            await asyncio.to_thread(three.send, active, number)
            took[word] = await next_change(three.bootstrap, names)
            assert three.active != active
            if word == "pause":
                three.send(active, signal.SIGCONT)
                await asyncio.to_thread(three.wait, active, ("standby",))
            else:
                await asyncio.to_thread(three.start, active)
    assert await read_all(three.bootstrap, "t") == log
    print(took)
    assert took["kill"] < SESSION_MS / 1000 + SLACK_S, took
    assert took["stop"] < SLACK_S, took


async def test_a_paused_one_does_nothing_when_it_goes_on(three: Coordinators) -> None:
    """Its requests, timers and heartbeats wait for it, and no other one has been elected: etcd
    stood still, too. Still it is sure of nothing, so it stores nothing and orders nothing."""
    active = three.active
    started = three.log(active).stat().st_size
    three.send(active, signal.SIGSTOP)
    three.etcd.pause(0)
    await asyncio.sleep(SESSION_MS / 1000)
    three.send(active, signal.SIGCONT)
    await asyncio.sleep(0.5)
    three.etcd.resume(0)
    said = three.log(active).read_bytes()[started:].decode()
    assert "event=deposed" in said
    assert "event=node_down" not in said.partition("event=deposed")[0]
    assert await next_change(three.bootstrap, topic_names(prefix="paused")) < CHANGE_WITHIN_S


@pytest.mark.parametrize(
    "within_s",
    [
        pytest.param(0.0, marks=pytest.mark.every(3)),
        0.02,
        pytest.param(0.1, marks=pytest.mark.every(3, turn=1)),
        pytest.param(0.3, marks=pytest.mark.every(3, turn=2)),
    ],
)
async def test_the_active_one_dies_in_the_middle_of_a_creation(
    three: Coordinators, within_s: float
) -> None:
    """Whoever asked hears that the topic is there, and all of its partitions take records."""
    name, active = f"big-{within_s * 1000:.0f}", three.active
    async with Admin(three.bootstrap, timeout_s=30) as admin:
        making = asyncio.create_task(admin.create_topic(name, partitions=20))
        await asyncio.sleep(within_s)
        await asyncio.to_thread(three.send, active, signal.SIGKILL)
        try:
            made = await making
        finally:
            await asyncio.to_thread(three.start, active)
    assert (made.settings.replication_factor, len(made.partitions)) == (3, 20)
    log = await produce(three.bootstrap, name, numbered(0, 200))
    assert await read_all(three.bootstrap, name) == log


async def test_without_etcd_records_go_on_and_its_return_needs_nobody(tmp_path: Path) -> None:
    names = topic_names()
    with (
        running_members(tmp_path / "etcd", 1) as members,
        running_coordinators(members, tmp_path / "c", 2) as two,
    ):
        await create(two.bootstrap, "t", partitions=3)
        async with load(two.cluster.addresses[1], "t") as log:
            members.kill(0)
            await asyncio.to_thread(two.wait, 0, ("no member of etcd",))
            await asyncio.to_thread(two.wait, 1, ("no member of etcd",))
            before = sum(map(len, log.values()))
            said = ""
            while "no coordinator can act: no member of etcd" not in said:
                async with Admin(two.bootstrap, timeout_s=0.5) as admin:
                    with pytest.raises(IcecoreError) as refused:
                        await admin.create_topic("refused")
                said = refused.value.message
            assert two.page(0, "livez") == "ok"
            assert "icecore_coordinator_store_up 0.0" in two.page(1, "metrics")
            assert "icecore_coordinator_active 0.0" in two.page(1, "metrics")
            await asyncio.sleep(0.5)
            assert sum(map(len, log.values())) > before
            members.start_member(0)
            await asyncio.to_thread(members.wait_ready, 0)
            await next_change(two.bootstrap, names)
        assert await read_all(two.bootstrap, "t") == log
        assert "icecore_coordinator_active 1.0" in two.page(two.active, "metrics")


@pytest.mark.every(3)
async def test_mistakes_are_said_in_one_sentence(three: Coordinators, tmp_path: Path) -> None:
    taken = three.addresses[0]
    for words, sentence in (
        (
            {"data": str(tmp_path / "a"), "advertise": taken},
            f"another coordinator names the address {taken} as its own: give each its own",
        ),
        (
            {"data": str(three.cluster.folder / "coordinator")},
            "is already in use by another coordinator; stop it or give --data another folder.",
        ),
        (
            {"data": str(tmp_path / "b"), "etcd": json.dumps({"endpoints": "127.0.0.1:23x79"})},
            "'127.0.0.1:23x79' is not host:port: write HOST:PORT",
        ),
        (
            {"data": str(tmp_path / "c"), "advertise": "c.example.com"},
            "'c.example.com' is not host:port: write HOST:PORT",
        ),
    ):
        port, status = free_ports(1)[0], free_ports(1)[0]
        found = await asyncio.to_thread(
            three.refused, listen=f"127.0.0.1:{port}", metrics=f"127.0.0.1:{status}", **words
        )
        assert found.startswith("icecore-coordinator: ") and sentence in found


async def test_several_coordinators_on_sqlite_are_told_that_it_takes_etcd(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "metadata.sqlite3")
    with pytest.raises(ConfigurationError, match=r"stand by .* need etcd\.endpoints"):
        SqliteStore(tmp_path / "metadata.sqlite3")
    await first.close()
