"""A local folder, memory, S3 servers and the simulator's store keep the same promises."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import obstore
import pytest

from icecore.errors import ConfigurationError
from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.ports import TierPorts
from icecore_node.remote.store.object_store import (
    ObjectDeniedError,
    ObjectInfo,
    ObjectMissingError,
    ObjectStore,
    ObjectStoreBusyError,
    ObjectStoreSetupError,
    ObjectTooShortError,
    check_store,
)
from icecore_node.remote.store.obstore_store import ObstoreStore, StoreSettings
from tests.conformance.object_store_suite import ObjectStoreConformance, keys_below, pieces_of
from tests.simulation.object_store import SimBucket, SimObjectStore
from tests.support.mini_s3 import running_mini_s3
from tests.support.s3 import ALL, REGION, S3Server, s3_credentials
from tests.support.s3_servers import SERVERS
from tests.support.upload_setup import BucketMemo, access_to

WHY = {
    "bucket": (ObjectStoreSetupError, "the bucket does not exist"),
    "bucket's name": (ObjectStoreSetupError, "the bucket's name is not valid"),
    "credentials": (ObjectDeniedError, "check the credentials"),
    "endpoint": (ObjectStoreBusyError, "is the endpoint right"),
    "region": (ObjectStoreSetupError, "the region is wrong"),
    "only reading": (
        ObjectDeniedError,
        "can't write objects: the object store refuses _icecore/probe/-1: check the credentials",
    ),
    "no deleting": (ObjectDeniedError, "can't delete objects: the object store refuses"),
}
"""Each wrong setting, and the node's name for it."""


def credentials_for(wrong: str, server: S3Server) -> dict[str, str]:
    """Settings of a node's store."""
    if wrong == "only reading":
        return server.credentials(("s3:GetObject", "s3:ListBucket", "s3:GetBucketLocation"))
    if wrong == "no deleting":
        return server.credentials([each for each in ALL if each != "s3:DeleteObject"])
    found = s3_credentials()
    return dict.fromkeys(found, "wrong") if wrong == "credentials" else found


def ports() -> TierPorts:
    """Those of a node that remembers nothing; tests have stores of their own."""
    nothing: Any = None
    return TierPorts(nothing, nothing, BucketMemo())


@asynccontextmanager
async def opened(settings: StoreSettings) -> AsyncIterator[ObstoreStore]:
    executor = ThreadExecutor()
    yield ObstoreStore(settings, executor)
    executor.close()


class TestMemory(ObjectStoreConformance):
    """memory:///"""

    @pytest.fixture
    async def store(self) -> AsyncIterator[ObjectStore]:
        async with opened(StoreSettings(url="memory:///")) as store:
            yield store

    async def test_a_small_object_is_read_whole_in_one_request(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = list[str]()
        for name in ("get_async", "head_async", "get_range_async"):
            real = getattr(obstore, name)

            def counted(*arguments: Any, name: str = name, real: Any = real, **options: Any) -> Any:
                asked.append(name)
                return real(*arguments, **options)

            monkeypatch.setattr(obstore, name, counted)
        await store.put_if_absent("a", b"123")
        assert await store.get_whole("a", 10) == b"123"
        assert asked == ["get_async"]


class TestLocalFolder(ObjectStoreConformance):
    """file:///"""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        async with opened(StoreSettings(url=f"file://{tmp_path}/made%20here")) as store:
            yield store

    async def test_what_is_put_is_synced(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, synced = os.fsync, list[str]()

        def fsync(descriptor: int) -> None:
            synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        await store.put_if_absent("t/0/a", b"1")
        assert synced == ["a", "0", "t", "made here"]
        await store.put_stream("t/0/b", pieces_of(b"123", 1))
        assert synced[4:] == ["b", "0", "t", "made here"]

    async def test_a_store_that_says_it_has_all_and_has_not(
        self, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = obstore.put_async

        async def put_async(opened: Any, key: str, *arguments: Any, **options: Any) -> None:
            await real(opened, key, *arguments, **options)
            os.truncate(tmp_path / "made here" / key, 2)

        monkeypatch.setattr(obstore, "put_async", put_async)
        with pytest.raises(ObjectTooShortError, match="2 bytes of the 3"):
            await store.put_stream("t/0/b", pieces_of(b"123", 1))

    async def test_strange_files_are_listed_and_nothing_else(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        await store.put_if_absent("t/a", b"1")
        (tmp_path / "made here" / "t" / "not ours (1)").write_bytes(b"12")
        (tmp_path / "made here" / "t" / "empty").mkdir()
        assert sorted((await keys_below(store, "t")).values()) == [1, 2]

    async def test_a_folder_that_may_not_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(ConfigurationError, match="object store 'file:"):
            async with opened(StoreSettings(url=f"file://{tmp_path}/file/below")):
                pass


class TestSimulated(ObjectStoreConformance):
    """tests.simulation.object_store"""

    @pytest.fixture
    def store(self) -> ObjectStore:
        return SimObjectStore(SimBucket(), None)

    async def test_each_fault_strikes_and_is_counted(self) -> None:
        bucket = SimBucket()
        store, faults = SimObjectStore(bucket, None), bucket.faults
        faults.refused = 1
        with pytest.raises(ObjectStoreBusyError):
            await store.put_if_absent("a", b"12")
        assert "a" not in bucket.objects
        faults.lost_answers = 1
        with pytest.raises(ObjectStoreBusyError):
            await store.put_if_absent("a", b"12")
        assert await store.get_whole("a", 2) == b"12"
        faults.untrue_puts = 1
        with pytest.raises(ObjectMissingError):
            await store.put_stream("b", pieces_of(b"1234", 1))
        faults.cut_puts = 1
        with pytest.raises(ObjectTooShortError):
            await store.put_stream("b", pieces_of(b"1234", 1))
        assert bucket.objects["b"] == b"12"
        bucket.alter("a", 1)
        assert await store.get_whole("a", 2) == b"1\xcd"
        assert dict(faults.struck) == {
            "refused": 1,
            "lost_answers": 1,
            "untrue_puts": 1,
            "cut_puts": 1,
        }

    async def test_a_late_listing(self) -> None:
        bucket = SimBucket()
        store = SimObjectStore(bucket, None)
        await store.put_if_absent("t/a", b"1")
        await asyncio.sleep(0.02)
        bucket.faults.listing_lag_s = 0.01
        await store.put_if_absent("t/b", b"12")
        await store.delete("t/a")
        assert await keys_below(store, "t") == {"t/a": 1}
        await asyncio.sleep(0.02)
        assert await keys_below(store, "t") == {"t/b": 2}
        assert bucket.faults.struck["late_listings"] == 1

    async def test_slow_bodies_and_what_others_do_to_objects(self) -> None:
        bucket = SimBucket()
        store = SimObjectStore(bucket, None)
        await store.put_if_absent("a", b"1234")
        await store.put_if_absent("b", b"12")
        bucket.faults.body_s_per_mib = 20_000.0
        assert await store.get_whole("a", 4) == b"1234"
        bucket.faults.heal()
        bucket.damage("a", is_removal=False)
        bucket.damage("b", is_removal=True)
        assert await store.get_whole("a", 4) != b"1234"
        with pytest.raises(ObjectMissingError):
            await store.head("b")
        await store.delete("b")
        bucket.mend()
        assert bucket.objects == {"a": b"1234"}
        assert dict(bucket.faults.struck) == {
            "slow_bodies": 1,
            "altered_objects": 1,
            "removed_objects": 1,
        }


@pytest.mark.parametrize("s3_server", SERVERS, indirect=True)
class TestS3(ObjectStoreConformance):
    """s3://, of each server that there is"""

    @pytest.fixture
    async def store(self, s3: StoreSettings) -> AsyncIterator[ObjectStore]:
        async with opened(s3) as store:
            yield store

    async def test_an_endpoint_of_web_pages_is_named(
        self, s3: StoreSettings, s3_server: S3Server
    ) -> None:
        """MinIO's console answers as S3 does, other servers of pages do not."""
        error, text = ObjectStoreSetupError, "S3 API"
        with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as pages:
            endpoint = s3_server.console
            if not endpoint:
                error, text = ObjectStoreBusyError, "is the endpoint right"
                endpoint = f"http://127.0.0.1:{pages.server_port}"
                Thread(target=pages.serve_forever, daemon=True).start()
            async with opened(replace(s3, endpoint=endpoint)) as store:
                with pytest.raises(error, match=f"can't write objects: .*{text}"):
                    await check_store(store, "node-1")

    async def test_nothing_is_missing_in_a_bucket_that_is_not_there(
        self, s3: StoreSettings
    ) -> None:
        async with opened(replace(s3, url="s3://no-such-bucket")) as store:
            with pytest.raises(ObjectStoreSetupError):
                await store.head("a")
            with pytest.raises(ObjectStoreSetupError):
                await store.get_ranges("a", [(0, 1)])

    @pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
    async def test_wrong_credentials(
        self, s3: StoreSettings, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(name, "somebody-else")
        async with opened(s3) as store:
            with pytest.raises(ObjectDeniedError, match=r"can't write objects: .*credentials"):
                await check_store(store, "node-1")
            with pytest.raises(ObjectDeniedError):
                await keys_below(store, "t")
            with pytest.raises(ObjectDeniedError):
                await store.head("t/a")

    @pytest.mark.parametrize("wrong", WHY)
    async def test_what_a_node_says_of_a_store_that_refuses(
        self, s3: StoreSettings, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, wrong: str
    ) -> None:
        for name, value in credentials_for(wrong, s3_server).items():
            monkeypatch.setenv(name, value)
        changes = {
            "bucket": {"url": "s3://nobodys/prefix"},
            "bucket's name": {"url": "s3://x"},
            "endpoint": {"endpoint": "http://127.0.0.1:9"},
            "region": {"region": "x"},
        }
        access = access_to(ports())
        error, text = WHY[wrong]
        async with opened(replace(s3, **changes.get(wrong, {}))) as store:
            with pytest.raises(error, match=re.escape(text)):
                await access.look(store)

    async def test_a_prefix_is_not_left(self, s3: StoreSettings) -> None:
        async with opened(s3) as store, opened(replace(s3, url=s3.url + "x")) as beside:
            await store.put_if_absent("a", b"1")
            assert [each async for each in beside.list("")] == []
            assert [each async for each in store.list("")] == [ObjectInfo("a", 1)]


async def test_a_server_that_ignores_conditional_puts_gets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in s3_credentials().items():
        monkeypatch.setenv(name, value)
    access = access_to(ports())
    with running_mini_s3(is_conditional=False) as server:
        s3 = StoreSettings(url="s3://b/p", region=REGION, endpoint=server.endpoint)
        async with opened(s3) as store:
            with pytest.raises(ObjectStoreSetupError, match="ignores conditional puts"):
                await access.look(store)
            assert server.objects == {}
            server.is_conditional = True
            await access.look(store)
            assert [*server.objects] == ["p/_icecore/cluster.json"]
            server.is_conditional = False  # another proxy, between two looks
            with pytest.raises(ObjectStoreSetupError, match="ignores conditional puts"):
                await access.look(store)
            assert [*server.objects] == ["p/_icecore/cluster.json"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (StoreSettings(url="bucket/prefix"), "begins with none of"),
        (StoreSettings(url="ftp://host/x"), "begins with none of"),
        (StoreSettings(url="file://relative/x"), "file:///absolute/path"),
        (StoreSettings(url="file:///x", endpoint="http://h"), "region and endpoint"),
        (StoreSettings(url="az://container/x"), "Account must be specified"),
    ],
)
async def test_bad_settings_are_refused_at_once(settings: StoreSettings, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        async with opened(settings):
            pass
