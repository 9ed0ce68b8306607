"""Measures gRPC between two Python processes on this machine when nothing else is done.

    python -m benchmarks.hop

A server process takes messages and answers with nothing. Throughput: messages of 1 MiB, a few in
flight, 10^6 bytes per second. Round trip: messages of 1 KiB, one after the other.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

import grpc

from icecore.process.system import tune_process

Take: TypeAlias = Callable[[bytes], Awaitable[bytes]]

METHOD = "/bench.Hop/Take"
IN_FLIGHT = 8
SECONDS, WARM_S = 1.5, 0.5
OPTIONS = [("grpc.max_receive_message_length", 8 << 20), ("grpc.enable_http_proxy", 0)]


def measure(seconds: float | None = None) -> dict[str, float]:
    """``hop_mb_s`` and ``hop_ms``, the median round trip.

    Args:
        seconds: Of each of the two; None is ``SECONDS``.
    """
    seconds = SECONDS if seconds is None else seconds
    command = [sys.executable, "-m", "benchmarks.hop", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            return asyncio.run(_measure(f"127.0.0.1:{port}", seconds))
        finally:
            server.terminate()


async def _measure(address: str, seconds: float) -> dict[str, float]:
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        take = cast(Take, channel.unary_unary(METHOD))
        big, small = os.urandom(1 << 20), os.urandom(1024)
        await asyncio.gather(*(_send(take, big, WARM_S) for _ in range(IN_FLIGHT)))
        counts = await asyncio.gather(*(_send(take, big, seconds) for _ in range(IN_FLIGHT)))
        trips_s = []
        until_s = time.perf_counter() + seconds
        while (began_s := time.perf_counter()) < until_s:
            await take(small)
            trips_s.append(time.perf_counter() - began_s)
    return {
        "hop_mb_s": round(sum(counts) * len(big) / seconds / 1e6, 1),
        "hop_ms": round(1000 * statistics.median(trips_s), 3),
    }


async def _send(take: Take, body: bytes, seconds: float) -> int:
    """Return how many messages went out one after the other in this time."""
    count, until_s = 0, time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        await take(body)
        count += 1
    return count


async def _serve() -> None:
    async def take(body: bytes, context: object) -> bytes:
        return b""

    service, name = METHOD.strip("/").split("/")
    handlers: Any = {name: grpc.unary_unary_rpc_method_handler(take)}
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", action="store_true", help="be the server process")
    tune_process()
    if parser.parse_args().serve:
        asyncio.run(_serve())
    else:
        print(json.dumps({"benchmark": "hop", **measure()}))


if __name__ == "__main__":
    main()
