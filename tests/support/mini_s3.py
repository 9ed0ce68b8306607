"""A small S3 server in memory, which ignores conditional puts if asked so.

Real servers that do so (older Ceph gateways, some proxies) can't be had in tests. It takes no part
of what a node does but small objects: put, get, head, list and delete.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "b"


@dataclass
class MiniS3:
    """A server that runs, and the objects in it."""

    is_conditional: bool
    """The server refuses a conditional put where something is. May change at any time."""
    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: MiniS3

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        key, data = self._key(), self._body()
        with self.served.lock:
            is_asked = self.headers.get("If-None-Match") == "*" and self.served.is_conditional
            if is_asked and key in self.served.objects:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            self.served.objects[key] = data
        self._answer(200, etag=_etag(data))

    def do_POST(self) -> None:
        """Remove several objects."""
        keys = [each.decode() for each in re.findall(rb"<Key>(.*?)</Key>", self._body())]
        for each in keys:
            self.served.objects.pop(each, None)
        gone = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in keys)
        self._answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())

    def do_DELETE(self) -> None:
        self.served.objects.pop(self._key(), None)
        self._answer(204)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        key = self._key()
        if not key:
            self._list()
        elif (data := self.served.objects.get(key)) is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._answer(200, data, etag=_etag(data))

    def _list(self) -> None:
        prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>x</ETag>"
            "<LastModified>2026-11-27T00:00:00.000Z</LastModified></Contents>"
            for key, data in sorted(self.served.objects.items())
            if key.startswith(prefix)
        )
        head = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false"
        self._answer(
            200, f"<ListBucketResult>{head}</IsTruncated>{rows}</ListBucketResult>".encode()
        )

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, body: bytes = b"", etag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Fri, 27 Nov 2026 00:00:00 GMT")
        if etag:
            self.send_header("ETag", etag)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def running_mini_s3(*, is_conditional: bool) -> Iterator[MiniS3]:
    """A server with an empty bucket, in this process."""
    served = MiniS3(is_conditional)
    handler = type("_Serving", (_Handler,), {"served": served})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        served.endpoint = f"http://127.0.0.1:{server.server_port}"
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield served
        finally:
            server.shutdown()
