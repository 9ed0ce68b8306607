"""Names of producers, page by page."""

from icecore.client.cluster.connection import Connection
from icecore.client.types import ProducerNameInfo
from icecore.v1 import admin_pb2


async def list_producer_names(
    connection: Connection, *, timeout_s: float
) -> list[ProducerNameInfo]:
    """Return all names, in order.

    Args:
        connection: The way to the coordinator.
        timeout_s: For each page.

    Raises IcecoreError when no coordinator answered in time.
    """
    found: list[ProducerNameInfo] = []
    after = ""
    while True:
        answer = await connection.admin(
            "ListProducerNames",
            admin_pb2.ListProducerNamesRequest(after=after),
            admin_pb2.ListProducerNamesResponse,
            timeout_s=timeout_s,
        )
        found += [
            ProducerNameInfo(
                name=each.name,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                taken_at_ms=each.taken_at_ms,
            )
            for each in answer.names
        ]
        after = answer.next
        if not after:
            return found
