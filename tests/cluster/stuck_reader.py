"""A consumer that asks for much and then reads nothing. Usage: stuck_reader.py NODE TOPIC CALLS."""

import asyncio
import sys

import grpc

from icecore.v1 import data_pb2


async def main() -> None:
    address, topic, calls = sys.argv[1:]
    wanted = data_pb2.FetchPartition(topic=topic, partition=0, offset=0)
    header = data_pb2.FetchHeader(max_bytes=8 << 20, partitions=[wanted])
    body = data_pb2.FetchRequest(header=header).SerializeToString()
    channels = []
    for _ in range(int(calls)):
        channel = grpc.aio.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        await channel.channel_ready()
        channels.append(channel)
    print("ready", flush=True)
    await asyncio.gather(
        *(channel.unary_unary("/icecore.v1.DataService/Fetch")(body) for channel in channels),
        return_exceptions=True,
    )


asyncio.run(main())
