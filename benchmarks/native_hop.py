"""Measures the native transport between two processes, without TLS and with it, side by side.

    python -m benchmarks.native_hop [--rounds 3] [--ways plain,tls] [--idle 500]

A server process takes messages and answers with nothing. Processor time of sender and receiver, for
messages of 1 MiB, eight in flight (seconds per GiB), and for messages of 1 KiB, one after the other
(microseconds); the ways alternate, and the median of the rounds counts. Then connections that do
nothing for ten seconds: what they cost per second and 1,000 of them, at both ends. With TLS both
sides are 1.3 with a self-signed certificate, made by the ``openssl`` command; ``ktls`` says whether
the kernel could encrypt. One JSON line.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from icecore.process.system import tune_process
from icecore.rpc.native.net import NativeNet
from icecore.rpc.ports import Body, CallContext, Handlers, Received

TAKE, CPU = "/bench.Hop/Take", "/bench.Hop/Cpu"
MESSAGES, IN_FLIGHT = 512, 8
TRIPS = 2_000
IDLE_S = 10.0
TIMEOUT_S = 60.0


def _net(way: str, folder: Path) -> NativeNet:
    if way == "plain":
        return NativeNet()
    import ssl

    from icecore.rpc.native.tls import TransportSecurity, offer_ktls

    contexts: list[Any] = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(folder / "own.pem", folder / "own.key")
        context.load_verify_locations(folder / "own.pem")
        offer_ktls(context)
        contexts.append(context)
    return NativeNet(security=TransportSecurity(server=contexts[0], client=contexts[1]))


def _make_certificate(folder: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=bench", "-addext"]
    command += ["subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "own.key")]
    subprocess.run([*command, "-out", str(folder / "own.pem")], check=True, capture_output=True)


async def _serve(way: str, folder: Path) -> None:
    async def take(body: Received, context: CallContext) -> Body:
        return b""

    async def cpu(body: Received, context: CallContext) -> Body:
        return str(time.process_time()).encode()

    server = await _net(way, folder).serve("127.0.0.1:0", Handlers({TAKE: take, CPU: cpu}, {}))
    print(server.address, flush=True)
    await asyncio.Event().wait()


class _Way:
    """One server process and a client here."""

    def __init__(self, way: str, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.native_hop", "--serve", way]
        self._way, self._folder = way, folder
        self._server = subprocess.Popen(
            [*command, "--folder", str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        self._address = self._server.stdout.readline().strip()
        self._net = _net(way, folder)
        self.results: list[dict[str, float]] = []

    async def _call(self, method: str, body: bytes) -> Received:
        return await self._net.call(self._address, method, body, timeout_s=TIMEOUT_S)

    async def _times(self) -> tuple[float, float]:
        """Processor seconds of this process and of the server."""
        server_s = float(bytes(await self._call(CPU, b"")).decode())
        return time.process_time(), server_s

    async def round(self) -> None:
        big, small = os.urandom(1 << 20), os.urandom(1024)

        async def some() -> None:
            for _ in range(MESSAGES // IN_FLIGHT):
                await self._call(TAKE, big)

        await self._call(TAKE, big)
        begin = await self._times()
        await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
        between = await self._times()
        for _ in range(TRIPS):
            await self._call(TAKE, small)
        end = await self._times()
        per_gib, per_trip = 1024 / MESSAGES, 1e6 / TRIPS
        self.results.append(
            {
                "sender_s_per_gib": (between[0] - begin[0]) * per_gib,
                "receiver_s_per_gib": (between[1] - begin[1]) * per_gib,
                "caller_us_per_call": (end[0] - between[0]) * per_trip,
                "server_us_per_call": (end[1] - between[1]) * per_trip,
            }
        )

    async def idle(self, count: int) -> dict[str, float]:
        nets = [_net(self._way, self._folder) for _ in range(count)]
        for net in nets:
            await net.call(self._address, TAKE, b"", timeout_s=TIMEOUT_S)
        begin = await self._times()
        await asyncio.sleep(IDLE_S)
        end = await self._times()
        for net in nets:
            await net.close()
        scale = 1e6 / IDLE_S / count
        return {
            "idle_client_ms_per_s": round((end[0] - begin[0]) * scale, 2),
            "idle_server_ms_per_s": round((end[1] - begin[1]) * scale, 2),
        }

    async def close(self) -> None:
        await self._net.close()
        self._server.terminate()
        self._server.wait()


async def _measure(ways: list[str], rounds: int, idle: int) -> dict[str, Any]:
    found: dict[str, Any] = {"benchmark": "native_hop", "rounds": rounds, "ktls": _has_ktls()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if ways != ["plain"]:
            _make_certificate(folder)
        running = {way: _Way(way, folder) for way in ways}
        try:
            for _ in range(rounds):
                for each in running.values():
                    await each.round()
            for way, each in running.items():
                found[way] = {
                    figure: round(statistics.median(one[figure] for one in each.results), 3)
                    for figure in each.results[0]
                }
                if idle:
                    found[way] |= await each.idle(idle)
        finally:
            for each in running.values():
                await each.close()
    return found


def _has_ktls() -> bool:
    ulp = Path("/proc/sys/net/ipv4/tcp_available_ulp")
    return sys.version_info >= (3, 12) and ulp.exists() and "tls" in ulp.read_text().split()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="plain,tls")
    parser.add_argument("--idle", type=int, default=500, help="connections; 0 = leave that out")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    tune_process()
    if arguments.serve:
        asyncio.run(_serve(arguments.serve, arguments.folder))
        return
    ways = arguments.ways.split(",")
    print(json.dumps(asyncio.run(_measure(ways, arguments.rounds, arguments.idle))))


if __name__ == "__main__":
    main()
