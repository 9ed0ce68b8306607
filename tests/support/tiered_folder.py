"""A bucket in a local folder with tiered copies, their manifests and a table: for tests of what is
done with a bucket alone."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.format.manifest import Manifest
from icecore_node.remote.format.parquet_object import raw_batches
from icecore_node.remote.format.table_file import table_file
from icecore_node.remote.format.topic_table import TopicTable
from icecore_node.remote.marker import MARKER_KEY, Marker
from icecore_node.remote.store.obstore_store import ObstoreStore, StoreSettings
from tests.support import tiered


class TieredFolder:
    """Made of a folder."""

    def __init__(self, folder: Path, executor: ThreadExecutor) -> None:
        self.folder = folder
        self.settings = StoreSettings(url=f"file://{folder}")
        self.store = ObstoreStore(self.settings, executor)
        self._revision = 0
        self.now_ms = 1_700_000_000_000
        """The time of commits."""

    async def mark(
        self, cluster_id: bytes = tiered.FACTS.cluster_id, store_id: str = "5" * 32
    ) -> None:
        await self.store.put_if_absent(MARKER_KEY, Marker(cluster_id.hex(), store_id).encode())

    async def put(
        self, raws: Sequence[bytes], base: int, attempt: int, **facts: object
    ) -> Manifest:
        """One copy; all are of segments with one id, which nothing here minds."""
        source = tiered.source_of(raws, base)
        source = replace(source, facts=replace(source.facts, **facts))  # type: ignore[arg-type]
        data, made = await asyncio.to_thread(tiered.encoded, source)
        side = b"".join(raw_batches(source.runs, made.raw_batches))
        manifest = tiered.manifest_of(source, made, side, attempt)
        await self.store.put_if_absent(manifest.parquet.key, data)
        if manifest.side is not None:
            await self.store.put_if_absent(manifest.side.key, side)
        await self.store.put_if_absent(manifest.key, manifest.encode())
        return manifest

    def publish(self, *manifests: Manifest) -> None:
        """These, and no others, of their partition."""
        self._revision += 1
        facts = manifests[0].facts
        table = TopicTable(self.settings, facts.cluster_id, facts.topic_id, facts.topic)
        files = [each for each in map(table_file, manifests) if each is not None]
        paths = [each.path for each in files]
        table.bring_to(facts.partition, self._revision, paths, files, self.now_ms)
