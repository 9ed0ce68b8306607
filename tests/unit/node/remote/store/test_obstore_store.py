"""Ranges that are near to each other become one request; a folder that is away stays away."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest

from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.store.object_store import BucketMissingError, ByteRange
from icecore_node.remote.store.obstore_store import (
    COALESCE_BYTES,
    LOCAL_READS_AT_ONCE,
    ObstoreStore,
    StoreSettings,
    coalesced,
)

FAR = 10 * COALESCE_BYTES


@pytest.mark.parametrize(
    ("asked", "spans"),
    [
        ([], []),
        ([(5, 5)], []),
        ([(0, 10), (10, 20)], [(0, 20)]),
        ([(10, 20), (0, 10)], [(0, 20)]),
        ([(0, 100), (20, 30)], [(0, 100)]),
        ([(0, 10), (10 + COALESCE_BYTES, 11 + COALESCE_BYTES)], [(0, 11 + COALESCE_BYTES)]),
        ([(0, 10), (FAR, FAR + 1), (5, 5)], [(0, 10), (FAR, FAR + 1)]),
    ],
)
def test_coalesced(asked: list[ByteRange], spans: list[ByteRange]) -> None:
    assert coalesced(asked) == spans


def test_options_for_other_libraries() -> None:
    s3 = StoreSettings(url="s3://b/p", region="r", endpoint="http://h:1")
    assert s3.options()["aws_region"] == "r"
    assert s3.is_clear_text
    assert StoreSettings(url="file:///x").options() == {}


async def test_a_local_folder_is_made_only_once(tmp_path: Path) -> None:
    folder, executor = tmp_path / "made" / "bucket", ThreadExecutor()
    settings = StoreSettings(url=folder.as_uri())
    store = ObstoreStore(settings, executor)
    assert folder.is_dir()
    await store.put_if_absent("t/a", b"1")
    folder.rename(tmp_path / "away")
    later = ObstoreStore(replace(settings, makes_folder=False), executor)
    for each in (store, later):
        with pytest.raises(BucketMissingError, match=f"the folder {folder} is not there: mount it"):
            await each.put_if_absent("t/b", b"2")
        with pytest.raises(BucketMissingError):
            await each.put_stream("t/b", _no_pieces())
        with pytest.raises(BucketMissingError):
            await each.get_whole("t/a", 9)
        with pytest.raises(BucketMissingError):
            await each.delete("t/a")
        with pytest.raises(BucketMissingError):
            assert [key async for key in each.list("t")]
        assert not folder.exists()
    (tmp_path / "away").rename(folder)
    for each in (store, later):
        assert await each.get_whole("t/a", 9) == b"1"
    executor.close()


async def _no_pieces() -> AsyncIterator[bytes]:
    for nothing in ():
        yield nothing


async def test_few_reads_of_a_local_folder_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one call and of many; one that fails gives its place back."""
    executor = ThreadExecutor()
    store = ObstoreStore(StoreSettings(url=(tmp_path / "bucket").as_uri()), executor)
    data = bytes(10 * FAR)
    await store.put_if_absent("t/a", data)
    running = running_max = 0
    get_range = obstore.get_range_async

    async def counted(*given: Any, **named: Any) -> Any:
        nonlocal running, running_max
        running += 1
        running_max = max(running_max, running)
        await asyncio.sleep(0.01)  # a read is over before the next one begins, sometimes
        try:
            return await get_range(*given, **named)
        finally:
            running -= 1

    monkeypatch.setattr(obstore, "get_range_async", counted)
    far = [(at * FAR, at * FAR + 1) for at in range(10)]
    keys = ["t/a", "t/gone"] * 10
    found = await asyncio.gather(
        *(store.get_ranges(key, far) for key in keys), return_exceptions=True
    )
    assert [each == [b"\0"] * 10 for each in found] == [True, False] * 10
    assert running_max == LOCAL_READS_AT_ONCE and running == 0
    executor.close()
