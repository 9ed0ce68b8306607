"""The object store of a scenario: an S3 server behind a proxy that answers as bad days do.

The server is MinIO where it was built, else moto's.

Each request has a connection of its own, here and behind. While a fault is on, one of two requests
is hit: refused, carried out and never answered, confirmed with an error where the body of a 200 is,
cut short or altered on its way to whoever reads, or as slow as a crowded line.
"""

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.minio import minio_program, running_minio
from tests.support.s3 import running_moto, s3_credentials
from tests.support.tier_places import s3_place

REFUSED: Final = "refused"
LOST_ANSWERS: Final = "lost_answers"
ERRORS_IN_200: Final = "errors_in_200"
CUT_BODIES: Final = "cut_bodies"
ALTERED_BODIES: Final = "altered_bodies"
SLOW_BODIES: Final = "slow_bodies"
FAULTS: Final = (REFUSED, LOST_ANSWERS, ERRORS_IN_200, CUT_BODIES, ALTERED_BODIES, SLOW_BODIES)
HIT_SHARE = 0.5
HITS_MIN = 5
SLOW_BYTES_PER_S = 256 << 10
PIECE_BYTES = 8 << 10
HEAD_BYTES_MAX = 64 << 10
_START_S = 10.0
_HEAD_END = b"\r\n\r\n"
_ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>a bad day</Message></Error>"


class FaultyStore:
    """Use as a context manager.

    Args:
        folder: Where the server keeps its bucket.
        host: The address that nodes reach it by.
    """

    def __init__(self, folder: Path, host: str) -> None:
        self._folder = folder
        self._host = host
        self._rng = random.Random()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store", daemon=True)
        self._stack = ExitStack()
        self._behind = 0
        self._fault = ""
        self._before = 0
        """Number of requests that had met the fault when it began."""
        self.struck: Counter[str] = Counter()
        self.settings: Mapping[str, Any] = {}
        """For nodes."""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        log = self._folder / "log"
        is_minio = minio_program() is not None
        server = self._stack.enter_context(
            running_minio(self._folder / "drive", log) if is_minio else running_moto(log)
        )
        self._behind = int(server.endpoint.rpartition(":")[2])
        self._thread.start()
        future = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)
        port = future.result(_START_S)
        place = s3_place(server, "chaos")
        self.settings = {**place.settings(), "tier_endpoint": f"http://{self._host}:{port}"}
        os.environ.update(s3_credentials())  # nodes are started with it
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._stack.close()

    def begin(self, fault: str) -> None:
        """From now on requests are hit: by one of ``FAULTS``."""
        self._before, self._fault = self.struck[fault], fault

    async def has_struck(self) -> str:
        """Empty once the fault that is on has hit several requests."""
        found = self.struck[self._fault] - self._before
        return "" if found >= HITS_MIN else f"{found} requests of {HITS_MIN}"

    def heal(self) -> None:
        """All requests are answered as they should be."""
        self._fault = ""

    async def _serve(self) -> int:
        server = await asyncio.start_server(self._answer, self._host, 0, limit=HEAD_BYTES_MAX)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer_one(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # whoever asked is gone, as killed nodes are
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(_HEAD_END)
        body = await reader.readexactly(_length(head))
        fault = self._draw(is_read=head.startswith((b"GET", b"HEAD")))
        if fault == REFUSED:
            writer.write(_response(b"503 Slow Down", _ERROR % b"SlowDown"))
            return
        if fault == ERRORS_IN_200:
            writer.write(_response(b"200 OK", _ERROR % b"InternalError"))
            return
        answer = await self._ask(head, body)
        if fault == LOST_ANSWERS:
            return
        head_length = answer.index(_HEAD_END) + len(_HEAD_END)
        answered = bytearray(answer)
        middle = head_length + (len(answer) - head_length) // 2
        if fault == CUT_BODIES:
            del answered[middle:]
        if fault == ALTERED_BODIES and middle < len(answered):
            answered[middle] ^= 0xFF
        await _write(writer, answered, slowly=fault == SLOW_BODIES)

    def _draw(self, *, is_read: bool) -> str:
        """Draw the fault for this request; empty = none. Uploads are never altered: their signature
        covers the bytes sent. Only a change can be answered with an error in a 200."""
        fault = self._fault
        fits = fault in (REFUSED, LOST_ANSWERS, SLOW_BODIES) or is_read != (fault == ERRORS_IN_200)
        if not fault or not fits or self._rng.random() > HIT_SHARE:
            return ""
        self.struck[fault] += 1
        return fault

    async def _ask(self, head: bytes, body: bytes) -> bytes:
        """Return the server's whole answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._behind)
        try:
            lines = head[: -len(_HEAD_END)].split(b"\r\n")
            kept = [line for line in lines if not line.lower().startswith(b"connection:")]
            writer.write(b"\r\n".join([*kept, b"Connection: close"]) + _HEAD_END + body)
            return await reader.read()
        finally:
            writer.close()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _response(status: bytes, body: bytes) -> bytes:
    lines = (
        b"HTTP/1.1 " + status,
        b"Content-Type: application/xml",
        b'ETag: "00000000000000000000000000000000"',
        b"Content-Length: %d" % len(body),
        b"Connection: close",
    )
    return b"\r\n".join(lines) + _HEAD_END + body


async def _write(writer: asyncio.StreamWriter, data: bytearray, *, slowly: bool) -> None:
    for start in range(0, len(data), PIECE_BYTES):
        writer.write(data[start : start + PIECE_BYTES])
        await writer.drain()
        if slowly:
            await asyncio.sleep(PIECE_BYTES / SLOW_BYTES_PER_S)
