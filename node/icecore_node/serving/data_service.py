"""The handlers of ``DataService``, and producer ids: a range from the coordinator, used up here."""

import asyncio
import json

from icecore.rpc import framing
from icecore.rpc.methods import DATA
from icecore.rpc.ports import CallContext, DirectHandler, Received, UnaryHandler
from icecore.v1 import coordinator_pb2, data_pb2
from icecore_node.context import NodeContext
from icecore_node.link.coordinator_link import CoordinatorLink
from icecore_node.serving.fetch import FetchHandler
from icecore_node.serving.produce import ProduceHandler
from icecore_node.serving.query import QueryHandler

PRODUCER_IDS_AT_ONCE = 100


class DataService:
    """What clients ask of a node."""

    def __init__(
        self,
        context: NodeContext,
        coordinator: CoordinatorLink,
        produce: ProduceHandler,
        fetch: FetchHandler,
        query: QueryHandler,
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._producer_ids = iter(range(0))
        self._allocating = asyncio.Lock()
        self._produce = produce
        self._fetch = fetch
        self._query = query

    @property
    def inflight_bytes(self) -> int:
        """Of produce requests that are being worked on."""
        return self._produce.inflight_bytes

    def direct_handlers(self) -> dict[str, DirectHandler]:
        """Method name to handler, where each step counts."""
        return {DATA["Produce"]: self._produce.handler}

    def handlers(self) -> dict[str, UnaryHandler]:
        """Method name to handler, for all other methods."""
        return {
            DATA["Fetch"]: self._fetch.fetch,
            DATA["ListOffsets"]: self._fetch.list_offsets,
            DATA["InitProducer"]: self.init_producer,
            DATA["Query"]: self._query.query,
            DATA["DescribeSettings"]: self.describe_settings,
        }

    async def describe_settings(self, body: Received, _: CallContext) -> bytes:
        """``DescribeSettingsRequest`` to ``DescribeSettingsResponse``, both as bytes."""
        request = framing.parse(data_pb2.DescribeSettingsRequest, body)
        if request.cluster_id:
            self._context.identity.check_cluster(request.cluster_id)
        settings = self._context.settings
        found = data_pb2.DescribeSettingsResponse()
        for name, value in settings.model_dump(mode="json").items():
            found.settings.add(name=name, value=json.dumps(value), source=settings.source_of(name))
        return found.SerializeToString()

    async def init_producer(self, body: Received, _: CallContext) -> bytes:
        """A producer id that was never handed out before, with epoch 0; or that of a name."""
        request = framing.parse(data_pb2.InitProducerRequest, body)
        self._context.identity.check_cluster(request.cluster_id)
        if request.producer_name:
            return await self._take_name(request)
        async with self._allocating:
            producer_id = next(self._producer_ids, 0)
            if not producer_id:
                allocated = await self._coordinator.allocate_producer_ids(PRODUCER_IDS_AT_ONCE)
                self._producer_ids = iter(allocated)
                producer_id = next(self._producer_ids)
        return data_pb2.InitProducerResponse(producer_id=producer_id).SerializeToString()

    async def _take_name(self, request: data_pb2.InitProducerRequest) -> bytes:
        named = await self._coordinator.name_producer(
            coordinator_pb2.NameProducerRequest(
                cluster_id=self._context.identity.cluster_id,
                producer_name=request.producer_name,
                topics=request.topics,
                instance=request.instance,
                renew=request.renew,
            )
        )
        return data_pb2.InitProducerResponse(
            producer_id=named.producer_id,
            producer_epoch=named.producer_epoch,
            positions=named.positions,
        ).SerializeToString()
