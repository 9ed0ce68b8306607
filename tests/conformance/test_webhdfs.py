"""A real HDFS keeps the promises of an object store, and has tables. See ``small_hdfs.py``."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from icecore.errors import ConfigurationError
from icecore_node.remote.format.topic_table import TopicTable
from icecore_node.remote.store.object_store import (
    ObjectStore,
    ObjectStoreBusyError,
    ObjectStoreSetupError,
    check_store,
)
from icecore_node.remote.store.obstore_store import StoreSettings
from tests.conformance.object_store_suite import ObjectStoreConformance, keys_below
from tests.support.small_hdfs import SmallHdfs, jars_folder, running_hdfs

webhdfs_store = pytest.importorskip("icecore_node.remote.store.webhdfs_store")
GOOD = StoreSettings(url="webhdfs://127.0.0.1:1/x", endpoint="hdfs://127.0.0.1:1", retries_max=0)
_folders = count()


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallHdfs]:
    if jars_folder() is None:
        pytest.skip("no HDFS: see tests/support/small_hdfs.py")
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def settings(hdfs: SmallHdfs) -> StoreSettings:
    return StoreSettings(url=f"{hdfs.url}/made here/{next(_folders)}", endpoint=hdfs.endpoint)


class TestWebHdfs(ObjectStoreConformance):
    """webhdfs://"""

    @pytest.fixture
    def store(self, settings: StoreSettings) -> ObjectStore:
        made: ObjectStore = webhdfs_store.WebHdfsStore(settings)
        return made

    async def test_what_nobody_finished_is_not_listed(
        self, store: ObjectStore, settings: StoreSettings
    ) -> None:
        await store.put_if_absent(f"{webhdfs_store.UNFINISHED}/left", b"1")
        assert await keys_below(store, "") == {}

    async def test_a_table(self, settings: StoreSettings) -> None:
        table = TopicTable(
            replace(settings, url=settings.url.replace(" ", "-")), b"c", b"t" * 16, "t"
        )
        assert await asyncio.to_thread(table.bring_to, 0, 1, [], [], 1)
        assert not await asyncio.to_thread(table.bring_to, 0, 1, [], [], 1)
        assert await asyncio.to_thread(table.files) == []


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (replace(GOOD, url="webhdfs:///folder"), "namenode:9870"),
        (replace(GOOD, url="webhdfs://host/folder"), "namenode:9870"),
        (replace(GOOD, url="webhdfs://host:port/folder"), "namenode:9870"),
        (replace(GOOD, url="webhdfs://me@host:1/folder"), "namenode:9870"),
        (replace(GOOD, region="x"), "region"),
        (replace(GOOD, endpoint=""), "tier_endpoint"),
        (replace(GOOD, endpoint="http://host:1"), "tier_endpoint"),
    ],
)
def test_bad_settings_are_refused_at_once(wrong: StoreSettings, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        webhdfs_store.WebHdfsStore(wrong)


async def test_nobody_is_there() -> None:
    with pytest.raises(ObjectStoreBusyError, match="can't write objects: HDFS can't be reached"):
        await check_store(webhdfs_store.WebHdfsStore(GOOD), "node-1")


async def test_somebody_else_is_there() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        store = webhdfs_store.WebHdfsStore(replace(GOOD, url=f"webhdfs://127.0.0.1:{port}/x"))
        with pytest.raises(ObjectStoreSetupError, match="is it that of WebHDFS"):
            await check_store(store, "node-1")
