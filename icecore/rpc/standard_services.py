"""What every gRPC server offers besides its own: health for probes, reflection for grpcurl."""

from typing import Any

import grpc


async def add_standard_services(server: grpc.aio.Server, names: list[str]) -> Any:
    """Add both to a server that has not started; the health servicer, which is told when it stops.

    The packages are imported here because clients lack them.

    Args:
        server: The server.
        names: Full names of the services it offers.
    """
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    for name in ("", *names):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
    return servicer
