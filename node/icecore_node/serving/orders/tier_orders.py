"""Orders of the coordinator that have to do with object storage, as messages.

An upload may take minutes, and the answer says what is stored and proved. Items of one order are
answered in its order, each with its own error.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from icecore.errors import IcecoreError
from icecore.model import CoordinatorEpoch
from icecore.rpc import convert
from icecore.rpc.messages import value_of
from icecore.v1 import common_pb2, coordinator_pb2
from icecore_node.remote.access import TierAccess
from icecore_node.remote.format.manifest import CopyName, PublishedCopy
from icecore_node.remote.format.stored_settings import StoredSettings
from icecore_node.remote.store.object_store import ObjectMissingError
from icecore_node.remote.write.copy_check import CHECKS_AT_ONCE, CopyCheck
from icecore_node.remote.write.sweeping import Sweeper
from icecore_node.remote.write.tier_tables import PublishedPartition, TierTables
from icecore_node.remote.write.uploads import UploadOrder, Uploads

T = TypeVar("T")

Check = Callable[[], None]
"""Function that raises an error when the order must be refused by now."""
SWEEPS_AT_ONCE = 8


class TierOrders:
    """Orders of the coordinator to a node with an object store."""

    def __init__(
        self,
        access: TierAccess,
        *,
        uploads: Uploads,
        tables: TierTables,
        sweeper: Sweeper,
        copies: CopyCheck,
    ) -> None:
        self._access = access
        self._uploads = uploads
        self._tables = tables
        self._sweeper = sweeper
        self._copies = copies

    @property
    def store_id(self) -> bytes:
        """Identity of the object store in which orders are carried out."""
        return self._access.store_id

    async def upload(
        self, request: coordinator_pb2.UploadRequest
    ) -> list[coordinator_pb2.UploadedCopy]:
        """Upload all segments of the order; the settings bound how many at the same time."""
        coordinator_epoch = CoordinatorEpoch(request.coordinator_epoch)
        return await asyncio.gather(
            *(self._upload(each, coordinator_epoch) for each in request.segments)
        )

    async def _upload(
        self, item: coordinator_pb2.UploadOrder, coordinator_epoch: CoordinatorEpoch
    ) -> coordinator_pb2.UploadedCopy:
        try:
            segment = convert.segment_from_proto(item.segment)
            place = segment.topic_id, segment.partition
            sources = (*(_copy(*place, each) for each in item.sources),)
            asked = UploadOrder(segment, item.attempt, item.tier_format, sources)
            uploaded = await self._uploads.upload(asked, coordinator_epoch)
        except IcecoreError as error:
            return coordinator_pb2.UploadedCopy(error=convert.error_to_proto(error))
        manifest = uploaded.manifest
        return coordinator_pb2.UploadedCopy(
            copy=coordinator_pb2.TierCopy(
                attempt=manifest.attempt,
                manifest_sha256=uploaded.manifest_sha256,
                content_digest=manifest.content_digest,
                length_bytes=uploaded.length_bytes,
                records=manifest.records,
                tier_format=item.tier_format,
            ),
            source_digests=uploaded.source_digests,
        )

    async def commit_tables(
        self, request: coordinator_pb2.CommitTablesRequest, check: Check
    ) -> tuple[list[common_pb2.Error], list[bool]]:
        """Tables of several topics at once, partitions of one after the other. Return their errors,
        and of which a copy is missing for certain, as ``verify_copies``."""
        partitions = [_partition(each) for each in request.partitions]
        return await self._with_missing(
            [self._tables.commit(each, check) for each in partitions], len(partitions)
        )

    async def sweep(
        self, request: coordinator_pb2.SweepRequest, check: Check
    ) -> tuple[list[common_pb2.Error], list[common_pb2.Error], list[common_pb2.Error]]:
        """Sweep closed attempts and deleted topics, after others are marked as deleted. Return the
        errors of all three."""
        mark_errors = await _in_turns(
            (
                self._tables.mark_gone(each.topic_id, each.settings_version, check)
                for each in request.to_mark
            ),
            SWEEPS_AT_ONCE,
        )
        names = [value_of(CopyName, each) for each in request.attempts]
        errors = await _in_turns(
            (self._sweeper.sweep(each, check) for each in names), SWEEPS_AT_ONCE
        )
        topic_errors = await _in_turns(
            (self._sweeper.sweep_topic(each, check) for each in request.gone_topic_ids),
            SWEEPS_AT_ONCE,
        )
        return errors, topic_errors, mark_errors

    async def verify_copies(
        self, request: coordinator_pb2.VerifyCopiesRequest, check: Check
    ) -> tuple[list[common_pb2.Error], list[bool]]:
        """See copies in the object store. Return their errors, and which are missing for certain:
        the store was the right one before and after nobody found an object of theirs. Raises what
        its use raises: then none was seen."""
        await self._access.confirm()
        copies = [_copy(each.topic_id, each.partition, each.copy) for each in request.copies]
        return await self._with_missing(
            [self._copies.check(each, check) for each in copies], CHECKS_AT_ONCE
        )

    async def _with_missing(
        self, work: Sequence[Awaitable[None]], at_once: int
    ) -> tuple[list[common_pb2.Error], list[bool]]:
        """Carry out orders, each of which has confirmed the store. Return their errors, and for
        which an object was not there: the store is confirmed once more after that."""
        missing = [False] * len(work)

        async def noted(number: int, each: Awaitable[None]) -> None:
            try:
                await each
            except ObjectMissingError:
                missing[number] = True
                raise

        errors = await _in_turns(
            (noted(number, each) for number, each in enumerate(work)), max(1, at_once)
        )
        if any(missing):
            try:
                await self._access.confirm()
            except IcecoreError:
                missing = [False] * len(work)
        return errors, missing


async def _in_turns(work: Iterable[Awaitable[None]], at_once: int) -> list[common_pb2.Error]:
    """Carry out a list of orders, a few at a time. Return their errors, in its order."""
    slots = asyncio.Semaphore(at_once)

    async def in_turn(each: Awaitable[None]) -> common_pb2.Error:
        async with slots:
            return await _answered(each)

    return await asyncio.gather(*map(in_turn, work))


async def _answered(work: Awaitable[None]) -> common_pb2.Error:
    """Wait for an order. Return its error; empty when it was carried out."""
    try:
        await work
    except IcecoreError as error:
        return convert.error_to_proto(error)
    return common_pb2.Error()


def _partition(item: coordinator_pb2.PartitionTable) -> PublishedPartition:
    copies = [_copy(item.topic_id, item.partition, each) for each in item.segments]
    settings = StoredSettings(
        item.settings_version,
        item.topic_settings,
        (*item.partition_counts,),
        item.topic,
        item.deleted if item.HasField("deleted") else None,
        (*item.log_starts,),
    )
    return PublishedPartition(
        item.topic_id, item.topic, item.partition, item.revision, copies, settings
    )


def _copy(topic_id: bytes, partition: int, item: coordinator_pb2.PublishedCopy) -> PublishedCopy:
    name = value_of(CopyName, item, topic_id=topic_id, partition=partition)
    return PublishedCopy(name, item.manifest_sha256)
