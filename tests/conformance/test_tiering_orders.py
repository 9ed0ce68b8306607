"""Orders of tiering carried out against a local folder and a real S3 server, from a real engine.

A replica's segment with several codecs, null keys, tombstones and a batch that nobody can decode is
uploaded and committed; what programs with no process of ours then read is what was sealed.
"""

import os
from collections.abc import AsyncIterator
from dataclasses import replace

import duckdb
import polars
import pyarrow.dataset
import pytest

from icecore.model import SegmentId
from icecore.tier_records import topic_folder
from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.format.manifest import SUFFIXES
from icecore_node.remote.opening import open_tier
from icecore_node.remote.store.object_store import (
    ObjectDeniedError,
    ObjectMissingError,
    ObjectStoreSetupError,
)
from icecore_node.remote.store.obstore_store import StoreSettings
from tests.conformance.log_builder import CLUSTER, TOPIC
from tests.support.s3_servers import SERVERS
from tests.support.tiered import records_of
from tests.support.upload_setup import SEGMENT, BucketMemo, UploadNode

SECOND = SegmentId(SEGMENT + 1)


@pytest.fixture
async def node(store_settings: StoreSettings) -> AsyncIterator[UploadNode]:
    executor = ThreadExecutor(reader_threads=2)
    yield UploadNode(open_tier(store_settings, executor, BucketMemo()))
    executor.close()


async def test_uploaded_committed_read_and_swept(
    node: UploadNode, store_settings: StoreSettings
) -> None:
    settings = store_settings
    await node.ready()
    segments = {SEGMENT: node.sealed(), SECOND: node.sealed(SECOND)}
    copies = {}
    for attempt, (segment_id, segment) in enumerate(segments.items(), 1):
        result = await node.upload(segment, attempt)
        assert not result.error.reason, result.error
        copies[segment_id] = result.copy
    await node.upload(segments[SEGMENT], 50)  # never published
    error = await node.commit(1, copies)
    assert not error.reason, error
    batches = [each for segment_id in segments for each in node.logs[segment_id].batches]
    wanted = [(each.offset, each.key, each.value, each.tags) for each in records_of(batches)]
    uri = f"{settings.url}/{topic_folder(TOPIC)}"
    options = {**settings.options(), "allow_http": "true"} if settings.endpoint else {}
    table = polars.read_delta(uri, storage_options=options)
    rows = table.select("offset", "key", "value", "tags").rows()
    assert sorted((at, key, value, tuple(tags)) for at, key, value, tags in rows) == wanted
    if not settings.endpoint:
        _check_others(node, settings, wanted)
    await node.sweep([node.name(segments[SEGMENT], 50)])
    for suffix in SUFFIXES:
        with pytest.raises(ObjectMissingError):
            await node.tier.store.head(node.name(segments[SEGMENT], 50).key(suffix))
    answer = await node.sweep([], [TOPIC])
    assert [each.reason for each in answer.topic_errors] == [""]
    assert [each.key async for each in node.tier.store.list(topic_folder(TOPIC))] == []


def _check_others(node: UploadNode, settings: StoreSettings, wanted: list[object]) -> None:
    """DuckDB and pyarrow, by the list of files."""
    folder = f"{settings.url.removeprefix('file://')}/{topic_folder(TOPIC)}"
    table = node.tier.table_of(CLUSTER, TOPIC, "flights")
    files = [f"{folder}/{path}" for path in table.files()]  # type: ignore[attr-defined]
    query = f'select "offset", key, value, tags from read_parquet({files}) order by all'
    found = duckdb.sql(query).fetchall()
    assert [(at, key, value, tuple(tags)) for at, key, value, tags in found] == wanted
    rows = pyarrow.dataset.dataset(files).to_table(columns=["offset", "key", "value", "tags"])
    assert sorted((*each.values(),)[:3] for each in rows.to_pylist()) == [
        each[:3]
        for each in wanted  # type: ignore[index]
    ]


@pytest.mark.parametrize("s3_server", SERVERS, indirect=True)
async def test_settings_that_are_wrong_say_so(
    s3: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = ThreadExecutor(reader_threads=1)

    async def looked_at(settings: StoreSettings) -> None:
        await UploadNode(open_tier(settings, executor, BucketMemo())).ready()

    with pytest.raises(ObjectStoreSetupError, match="bucket does not exist"):
        await looked_at(replace(s3, url="s3://no-such-bucket/x"))
    with pytest.raises(ObjectStoreSetupError, match="region"):
        await looked_at(replace(s3, region="us-west-2"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(ObjectDeniedError, match="credentials"):
        await looked_at(s3)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "expired")
    with pytest.raises(ObjectDeniedError, match="credentials"):
        await looked_at(s3)
    assert os.environ["AWS_SESSION_TOKEN"]
    executor.close()
