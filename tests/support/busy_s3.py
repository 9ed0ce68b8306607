"""A proxy in front of an S3 server, with the bad hours of the real one: it refuses, fails, hangs,
or cuts its answers, until it is told to be well again."""

import contextlib
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

from tests.support.s3 import S3Server

REFUSALS: Final = {
    "unavailable": (503, "ServiceUnavailable"),
    "slow down": (503, "SlowDown"),
    "error": (500, "InternalError"),
}
TROUBLES: Final = (*REFUSALS, "cut", "hang")
_HANG_S: Final = 60.0
_OF_THE_CONNECTION: Final = ("connection", "transfer-encoding", "content-length", "date", "server")


@dataclass
class BusyS3:
    """The server as clusters see it."""

    server: S3Server
    trouble: str = ""
    """One of ``TROUBLES``; empty = it is well."""
    answered: Counter[str] = field(default_factory=Counter)
    """Requests by the trouble that they met."""
    _well: threading.Event = field(default_factory=threading.Event)

    def heal(self) -> None:
        """End the trouble; whoever hangs is cut off."""
        self.trouble = ""
        self._well.set()

    def fail(self, trouble: str) -> None:
        """Have this trouble from now on."""
        assert trouble in TROUBLES
        self._well.clear()
        self.trouble = trouble

    def hang(self) -> None:
        """Say nothing for long."""
        self._well.wait(_HANG_S)


class _Handler(BaseHTTPRequestHandler):
    """One connection to the proxy."""

    busy: BusyS3
    target = ""
    """HOST:PORT of the server behind it."""
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody reads it."""

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        trouble = self.busy.trouble
        self.busy.answered[trouble] += 1
        if trouble in REFUSALS:
            status, code = REFUSALS[trouble]
            text = f"<Error><Code>{code}</Code><Message>later</Message></Error>"
            self.reply(status, [("Content-Type", "application/xml")], text.encode())
        elif trouble == "hang":
            self.busy.hang()
            self.close_connection = True
        else:
            self.pass_on(body, is_cut=trouble == "cut")

    def pass_on(self, body: bytes, *, is_cut: bool) -> None:
        connection = http.client.HTTPConnection(self.target, timeout=_HANG_S)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            data = answer.read()
            headers = answer.getheaders()
        length = dict(headers).get("Content-Length", str(len(data)))
        self.reply(answer.status, headers, data, length=length, is_cut=is_cut)

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the other end may have given up
            super().handle()

    def reply(
        self,
        status: int,
        headers: list[tuple[str, str]],
        data: bytes,
        *,
        length: str = "",
        is_cut: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _OF_THE_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(data)))
        with contextlib.suppress(OSError):  # the other end may have given up
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if is_cut else data)
            if is_cut:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer


@contextlib.contextmanager
def busy_s3(server: S3Server) -> Iterator[BusyS3]:
    """Begin with it being well."""
    found = BusyS3(server)
    parts = {"busy": found, "target": urlsplit(server.endpoint).netloc}
    handler = type("_Handler", (_Handler,), parts)
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    found.server = replace(server, endpoint=f"http://127.0.0.1:{proxy.server_port}")
    try:
        yield found
    finally:
        found.heal()
        proxy.shutdown()
        proxy.server_close()
