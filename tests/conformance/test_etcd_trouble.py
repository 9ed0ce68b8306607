"""R120: The metadata store in a real etcd that refuses, is full, is another, or loses answers."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from icecore.errors import ConfigurationError, OutOfSpaceError, StorageError, SupersededError
from icecore.process.system import SystemRng
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.stores import etcd_messages
from icecore_coordinator.stores.etcd_layout import EtcdHead
from icecore_coordinator.stores.etcd_store import EtcdStore
from icecore_coordinator.stores.metadata_store import Compare, Stored
from tests.support import certificates
from tests.support.etcd import NEEDS_MEMBERS, EtcdMembers, as_text, old_etcd, running_members
from tests.support.ports import free_ports

pytestmark = NEEDS_MEMBERS
Opener = Callable[..., EtcdStore]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    """One member that takes part of what these tests do to it."""
    with running_members(tmp_path_factory.mktemp("etcd"), 1) as members:
        yield members


@pytest.fixture
async def opened(etcd: EtcdMembers) -> AsyncIterator[Opener]:
    """Opens stores, all on one prefix unless told otherwise; closes them."""
    stores = []
    prefix = f"trouble/{next(_numbers)}/"

    def open_store(known_store: str = "", **settings: Any) -> EtcdStore:
        given = {"endpoints": etcd.endpoints[0], "prefix": prefix, **settings}
        stores.append(EtcdStore(EtcdSettings(**given), SystemRng(), known_store))
        return stores[-1]

    yield open_store
    for store in stores:
        await store.close()


async def owned(store: EtcdStore) -> EtcdStore:
    await store.acquire_coordinator_epoch()
    return store


def many(count: int, text: str = "x") -> list[tuple[str, str]]:
    return [(f"segment/{number:05d}", text) for number in range(count)]


class Died(BaseException):
    """The process ends here."""


def dying(monkeypatch: pytest.MonkeyPatch, store: EtcdStore, call: int) -> None:
    """Let the process end in front of its n-th transaction from now on."""
    real, counted = store._client.txn, itertools.count(1)

    async def txn(*given: Any) -> Any:
        if next(counted) == call:
            raise Died
        return await real(*given)

    monkeypatch.setattr(store._client, "txn", txn)


# --- changes that are larger than a transaction of etcd -------------------------------------------


async def test_a_change_larger_than_a_transaction_of_etcd_is_one_change(opened: Opener) -> None:
    store = await owned(opened())
    before = store.revision
    assert await store.txn([Compare(key, 0) for key, _ in many(300)], many(300))
    assert store.revision == before + 1
    assert not await store.txn(
        [Compare(key, 1 + (key == "segment/00299")) for key, _ in many(300)], many(300, "late")
    )
    assert await store.scan("segment/") == [Stored(key, "x", 1) for key, _ in many(300)]
    deleted = [key for key, _ in many(300)]
    assert await store.txn([Compare(key, 1) for key in deleted], [("a", "1")], deleted)
    assert await store.scan("") == [Stored("a", "1", 1)]


async def test_a_change_of_many_bytes_is_one_change(opened: Opener) -> None:
    store = await owned(opened())
    rows = many(20, "é" * 100_000)
    assert await store.txn([Compare(key, 0) for key, _ in rows], rows)
    assert await store.scan("segment/") == [Stored(key, text, 1) for key, text in rows]


@pytest.mark.parametrize("call", range(1, 14))
async def test_a_death_in_the_middle_leaves_all_or_nothing(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Three parts: looked at, written down, decided, and moved one after the other."""
    store = await owned(opened())
    assert await store.txn([], many(10, "old"))
    dying(monkeypatch, store, call)
    compares = [Compare(key, int(key < "segment/00010")) for key, _ in many(150)]
    with pytest.raises(Died):
        await store.txn(compares, many(150, "new"))
        raise Died  # it had fewer transactions than that
    monkeypatch.undo()
    later = await owned(opened())
    found = {each.key: each.value for each in await later.scan("segment/")}
    assert found in (dict(many(10, "old")), dict(many(150, "new")))
    assert later.revision == 2 + (len(found) == 150)
    with pytest.raises(SupersededError):
        await store.txn([], [("late", "")])
    compares = [Compare(each.key, each.version) for each in await later.scan("segment/")]
    assert await later.txn(compares, [("again", "")])


async def test_a_change_that_has_happened_is_not_refused_for_want_of_room(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are written down, and etcd is full before they are moved; then there is room."""
    store = await owned(opened())
    real = store._move_staged

    async def full() -> None:
        raise OutOfSpaceError("full")

    monkeypatch.setattr(store, "_move_staged", full)
    puts = [Stored(key, text, 7) for key, text in many(200)]
    with pytest.raises(StorageError) as error:
        await store.adopt(puts, [], 1, 50)
    assert not isinstance(error.value, OutOfSpaceError)
    monkeypatch.setattr(store, "_move_staged", real)
    assert await store.txn([Compare("segment/00199", 7)], [("segment/00199", "next")])
    assert len(await store.scan("segment/")) == 200
    assert store.revision == 51


async def test_a_row_that_etcd_never_takes_is_refused_with_what_to_do(opened: Opener) -> None:
    store = await owned(opened())
    with pytest.raises(StorageError, match="--max-request-bytes"):
        await store.txn([], [("a", "x" * (2 << 20))])
    assert await store.scan("") == []


# --- answers that are lost ------------------------------------------------------------------------


def losing_answers(monkeypatch: pytest.MonkeyPatch, store: EtcdStore, count: int) -> None:
    """Carry out so many transactions without telling."""
    client, left = store._client, [count]
    real: Callable[..., Awaitable[Any]] = client._once

    async def once(member: str, method: tuple[str, Any], *given: Any) -> Any:
        answer = await real(member, method, *given)
        if method[0].endswith("Txn") and left[0]:
            left[0] -= 1
            metadata = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, "lost")
        return answer

    monkeypatch.setattr(client, "_once", once)


async def test_a_change_whose_answer_is_lost_happens_once(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await owned(opened())
    losing_answers(monkeypatch, store, 2)
    assert await store.txn([Compare("a", 0)], [("a", "one")])
    assert (await store.get("a"), store.revision) == (Stored("a", "one", 1), 2)
    losing_answers(monkeypatch, store, 1)
    assert not await store.txn([Compare("a", 7)], [("a", "two")])
    losing_answers(monkeypatch, store, 5)
    assert await store.txn([], many(300))
    assert len(await store.scan("segment/")) == 300


async def test_an_epoch_whose_answer_is_lost_is_taken_once(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened()
    assert await first.acquire_coordinator_epoch() == 1
    store = opened()
    losing_answers(monkeypatch, store, 1)
    assert await store.acquire_coordinator_epoch() == 2


async def test_who_was_replaced_meanwhile_does_not_know_what_happened(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await owned(opened()), opened()
    real = store._client._once

    async def once(*given: Any) -> Any:
        await real(*given)
        monkeypatch.setattr(store._client, "_once", real)
        await other.acquire_coordinator_epoch()
        metadata = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, "lost")

    monkeypatch.setattr(store._client, "_once", once)
    with pytest.raises(StorageError, match="outcome of the last change is unknown"):
        await store.txn([Compare("a", 0)], [("a", "one")])
    assert await other.get("a") == Stored("a", "one", 1)


async def test_a_coordinator_stops_when_etcd_is_put_back(opened: Opener) -> None:
    """An old state of the same metadata: same identity, same epoch, fewer changes."""
    store = await owned(opened())
    await store.txn([], [("a", "one")])
    old = EtcdHead(1, store._owned().store, 1, store._owned().holder, 1)
    await store._client.txn([], [etcd_messages.put(store._head_key, old.encode())], [])
    with pytest.raises(SupersededError):
        await store.txn([Compare("a", 1)], [("a", "two")])


# --- the wrong etcd, the wrong prefix -------------------------------------------------------------


async def test_metadata_of_another_cluster_are_not_taken_over(opened: Opener) -> None:
    store = await owned(opened())
    with pytest.raises(ConfigurationError, match=r"of another cluster.*give the etcd.prefix"):
        await opened(known_store="of another").acquire_coordinator_epoch()
    assert await store.txn([], [("a", "goes on")])
    identity = store._owned().store
    assert await opened(known_store=identity).acquire_coordinator_epoch() == 2


async def test_an_empty_prefix_is_no_new_cluster_for_who_knows_of_one(opened: Opener) -> None:
    with pytest.raises(ConfigurationError, match=r"has nothing below .*look at etcd.endpoints"):
        await opened(known_store="known").acquire_coordinator_epoch()


async def test_a_prefix_with_keys_of_others_is_refused(opened: Opener) -> None:
    store = opened()
    key = store._prefix + b"registry/pods"
    await store._client.txn([], [etcd_messages.put(key, b"x")], [])
    with pytest.raises(ConfigurationError, match=r"no metadata of icecore, .*registry/pods"):
        await store.acquire_coordinator_epoch()


async def test_metadata_of_a_later_version_are_refused(opened: Opener) -> None:
    store = opened()
    value = json.dumps({"format": 2}).encode()
    await store._client.txn([], [etcd_messages.put(store._head_key, value)], [])
    with pytest.raises(ConfigurationError, match="a later version of icecore"):
        await store.acquire_coordinator_epoch()


async def test_members_of_two_clusters_are_refused(
    opened: Opener, etcd: EtcdMembers, tmp_path: Path
) -> None:
    with running_members(tmp_path, 1) as other:
        store = opened(endpoints=f"{etcd.endpoints[0]},{other.endpoints[0]}")
        with pytest.raises(ConfigurationError, match="members of different etcd clusters"):
            await store.acquire_coordinator_epoch()


async def test_one_wrong_endpoint_is_named_and_does_no_harm(
    opened: Opener, etcd: EtcdMembers, caplog: pytest.LogCaptureFixture
) -> None:
    [free] = free_ports(1)
    store = await owned(opened(endpoints=f"127.0.0.1:{free},{etcd.endpoints[0]}"))
    assert f"127.0.0.1:{free}" in caplog.text
    assert await store.txn([], [("a", "one")])


async def test_nobody_answers(opened: Opener) -> None:
    [free] = free_ports(1)
    store = opened(endpoints=f"127.0.0.1:{free}", timeout_ms=1_000)
    with pytest.raises(StorageError, match=f"no member of etcd .*127.0.0.1:{free}.*endpoints"):
        await store.acquire_coordinator_epoch()


@pytest.mark.parametrize("version", ["3.3.27", "3.5.1"])
async def test_an_old_etcd_is_refused(opened: Opener, version: str) -> None:
    async with old_etcd(version) as endpoint:
        with pytest.raises(ConfigurationError, match=f"of version {version}.*3.5.3"):
            await opened(endpoints=endpoint).acquire_coordinator_epoch()


# --- who may, and how much ------------------------------------------------------------------------


async def test_users_and_their_rights(tmp_path: Path) -> None:
    """Passwords, and tokens that a member forgets when it starts again, and that end by time."""
    password = tmp_path / "password"
    password.write_text("secret\n")
    flags = ["--auth-token-ttl=1"]
    with running_members(tmp_path / "etcd", 1, flags) as etcd:
        etcd.post("/v3/auth/user/add", {"name": "root", "password": "root"})
        etcd.post("/v3/auth/user/grant", {"user": "root", "role": "root"})
        etcd.post("/v3/auth/user/add", {"name": "ice", "password": "secret"})
        etcd.post("/v3/auth/role/add", {"name": "ice"})
        allowed = {"permType": "READWRITE", "key": as_text(b"icecore/")}
        allowed["range_end"] = as_text(b"icecore0")
        etcd.post("/v3/auth/role/grant", {"name": "ice", "perm": allowed})
        etcd.post("/v3/auth/user/grant", {"user": "ice", "role": "ice"})
        given: dict[str, Any] = {"user": "ice", "password_file": str(password)}
        store = EtcdStore(EtcdSettings(endpoints=etcd.endpoints[0], **given), SystemRng())
        assert await store.acquire_coordinator_epoch() == 1  # nobody asks for a password yet
        etcd.post("/v3/auth/enable", {})
        assert await store.txn([], [("a", "one")])
        etcd.kill(0)
        etcd.start_member(0)
        assert await store.txn([Compare("a", 1)], [("a", "two")])
        store._client._token = "ended.1"
        assert await store.txn([Compare("a", 2)], [("a", "three")])
        for settings, said in (
            ({}, "etcd asks who this is: give etcd.user"),
            ({**given, "prefix": "other/"}, "etcd denies 'ice' the keys that begin with 'other/'"),
        ):
            await _refused(etcd, settings, said)
        password.write_text("wrong")
        await _refused(etcd, given, "etcd knows no user 'ice' with this password")
        await store.close()


async def _refused(etcd: EtcdMembers, settings: dict[str, Any], said: str) -> None:
    store = EtcdStore(EtcdSettings(endpoints=etcd.endpoints[0], **settings), SystemRng())
    with pytest.raises(ConfigurationError, match=said):
        await store.acquire_coordinator_epoch()
    await store.close()


async def test_certificates(tmp_path: Path) -> None:
    files = certificates.folder()
    flags = [f"--cert-file={files / 'server.pem'}", f"--key-file={files / 'server.key'}"]
    flags += [f"--trusted-ca-file={files / 'authority.pem'}", "--client-cert-auth"]
    with running_members(tmp_path / "etcd", 1, flags, "https") as etcd:
        [member] = etcd.endpoints
        authority = str(files / "authority.pem")
        own = {"certificate_file": str(files / "client.pem"), "key_file": str(files / "client.key")}
        settings = EtcdSettings(endpoints=f"https://{member}", ca_file=authority, **own)
        store = EtcdStore(settings, SystemRng())
        assert await store.acquire_coordinator_epoch() == 1
        assert await store.txn([], [("a", "one")])
        await store.close()
        for wrong in (
            EtcdSettings(endpoints=member, timeout_ms=1_000),
            EtcdSettings(endpoints=member, ca_file=authority, timeout_ms=1_000),
        ):
            store = EtcdStore(wrong, SystemRng())
            with pytest.raises(StorageError, match="no member of etcd"):
                await store.acquire_coordinator_epoch()
            await store.close()


async def test_a_full_etcd_takes_no_changes_until_a_person_made_room(tmp_path: Path) -> None:
    with running_members(tmp_path, 1, ["--quota-backend-bytes=4194304"]) as etcd:
        store = EtcdStore(EtcdSettings(endpoints=etcd.endpoints[0]), SystemRng())
        await store.acquire_coordinator_epoch()
        assert await store.txn([], [("a", "one")])
        await asyncio.to_thread(etcd.fill)
        with pytest.raises(OutOfSpaceError, match=r"compact.*defrag.*alarm disarm"):
            await store.txn([Compare("a", 1)], [("a", "two")])
        assert await store.get("a") == Stored("a", "one", 1)
        assert await store.txn([Compare("a", 1)], [])  # it still knows that it is the newest
        assert any("NOSPACE" in each for each in await store._client.check())
        await asyncio.to_thread(etcd.make_room)
        assert await store.txn([Compare("a", 1)], [("a", "two")])
        await store.close()
