"""The handlers of ``DataService``, and the ids of producers."""

import json

from icecore.errors import UnavailableError
from icecore.rpc import framing
from icecore.rpc.methods import COORDINATOR, DATA
from icecore.rpc.ports import CallContext, DirectHandler, Received, UnaryHandler
from icecore.v1 import coordinator_pb2, data_pb2
from icecore_node.context import NodeContext
from icecore_node.link.coordinator_link import CALL_TIMEOUT_S, CoordinatorLink
from icecore_node.serving.fetch.fetch import FetchHandler
from icecore_node.serving.produce import ProduceHandler
from icecore_node.serving.producer_ids import ProducerIds
from icecore_node.serving.query.query import QueryHandler


class DataService:
    """Calls of clients to a node."""

    def __init__(
        self,
        context: NodeContext,
        coordinator: CoordinatorLink,
        producer_ids: ProducerIds,
        produce: ProduceHandler,
        fetch: FetchHandler,
        query: QueryHandler,
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._producer_ids = producer_ids
        self._produce = produce
        self._fetch = fetch
        self._query = query

    @property
    def inflight_bytes(self) -> int:
        """Size of the produce requests that are being worked on."""
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
        found = data_pb2.DescribeSettingsResponse()
        for name, value, source, _meaning in self._context.settings.listed():
            found.settings.add(name=name, value=json.dumps(value), source=source)
        return found.SerializeToString()

    async def init_producer(self, body: Received, _: CallContext) -> bytes:
        """Answer a producer id that was never handed out before, with epoch 0; for a named
        producer, the id of its name."""
        request = framing.parse(data_pb2.InitProducerRequest, body)
        self._context.identity.check_cluster(request.cluster_id)
        if request.producer_name:
            return await self._take_name(request)
        producer_id = await self._producer_ids.take()
        return data_pb2.InitProducerResponse(producer_id=producer_id).SerializeToString()

    async def _take_name(self, request: data_pb2.InitProducerRequest) -> bytes:
        """Returns when the leaders of its topics have heard of it."""
        asked = coordinator_pb2.NameProducerRequest(
            cluster_id=self._context.identity.cluster_id,
            producer_name=request.producer_name,
            topics=request.topics,
            instance=request.instance,
            renew=request.renew,
        )
        try:
            body = await self._coordinator.ask(
                COORDINATOR["NameProducer"], asked.SerializeToString(), CALL_TIMEOUT_S
            )
        except UnavailableError as error:
            raise UnavailableError(
                "only a coordinator gives producers' names away, and the one at "
                f"{self._coordinator.address} can't be reached: try again ({error.message})",
                **error.metadata,
            ) from error
        named = coordinator_pb2.NameProducerResponse.FromString(body)
        return data_pb2.InitProducerResponse(
            producer_id=named.producer_id,
            producer_epoch=named.producer_epoch,
            positions=named.positions,
        ).SerializeToString()
