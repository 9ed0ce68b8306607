"""A coordinator that restarts between a node's registration and its first heartbeat costs no
process."""

import asyncio
import sys
from pathlib import Path

from icecore.errors import SupersededError
from icecore.model import PROTOCOL_VERSION
from icecore.rpc.grpc_net import GrpcNet
from icecore.rpc.ports import CallContext, Handlers, ServerStream
from icecore.v1 import coordinator_pb2

PREFIX = "/icecore.v1.CoordinatorService/"


class ForgetfulCoordinator:
    """Registers everybody, and knows nothing of the first incarnation it gave out."""

    def __init__(self) -> None:
        self.registered = 0
        self.heartbeats_of: list[int] = []
        self.heard = asyncio.Event()

    async def register(self, _: bytes, __: CallContext) -> bytes:
        self.registered += 1
        return coordinator_pb2.RegisterResponse(
            cluster_id=bytes(range(16)),
            incarnation=self.registered,
            coordinator_epoch=1,
            heartbeat_ms=100,
            protocol_version=PROTOCOL_VERSION,
        ).SerializeToString()

    async def heartbeat(self, stream: ServerStream, _: CallContext) -> None:
        while (body := await stream.read()) is not None:
            heartbeat = coordinator_pb2.HeartbeatRequest.FromString(body)
            self.heartbeats_of.append(heartbeat.incarnation)
            if heartbeat.incarnation == 1:
                raise SupersededError("who is incarnation 1?")
            answer = coordinator_pb2.HeartbeatResponse(
                coordinator_epoch=1, sequence=heartbeat.sequence, full=True
            )
            await stream.write(answer.SerializeToString())
            self.heard.set()


async def test_forgotten_incarnation_registers_again(tmp_path: Path) -> None:
    coordinator, net = ForgetfulCoordinator(), GrpcNet()
    handlers = Handlers(
        unary={PREFIX + "Register": coordinator.register},
        streams={PREFIX + "Heartbeat": coordinator.heartbeat},
    )
    server = await net.serve("127.0.0.1:0", handlers)
    arguments = ["--data", str(tmp_path), "--node-id", "1", "--coordinator", server.address]
    node = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "icecore_node", *arguments, "--listen", "127.0.0.1:0"
    )
    try:
        async with asyncio.timeout(60):
            await coordinator.heard.wait()
        assert coordinator.heartbeats_of[0] == 1
        assert coordinator.registered == 2
        assert node.returncode is None
    finally:
        node.terminate()
        assert await node.wait() == 0
        await server.stop(0)
        await net.close()
