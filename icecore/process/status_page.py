"""HTTP pages for monitors: ``/metrics``, ``/startupz``, ``/livez`` and ``/readyz``, nothing else.

A probe answers 200, or 503 with the reason in one line. It runs on a thread of the server's own, so
that a loop that hangs is noticed: what it asks only reads plain values.
"""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from icecore.errors import ConfigurationError
from icecore.rpc.addresses import check_listen, join_address, split_address

TEXT = "text/plain; charset=utf-8"
_REQUEST_S = 10.0
"""A peer that sends nothing must not hold a thread for ever."""
_POLL_S = 0.1

Probe = Callable[[], str]
"""Returns the reason for a 503; empty = the answer is 200."""


def has_started() -> str:
    """The probe of a server that shows pages only once it has started."""
    return ""


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages that a server shows."""

    metrics: Callable[[], bytes]
    metrics_type: str
    live: Probe
    """Returns why the process must be started anew."""
    ready: Probe
    """Returns why the process should get no requests at the moment."""
    started: Probe = has_started
    """Returns why the process has not started yet; until then nobody should ask the others."""
    role: Callable[[], str] = lambda: "ok"
    """Returns a word for the answer of one that is ready."""


class _PageServer(ThreadingHTTPServer):
    """Listens on IPv4 or IPv6, as the host says."""

    def __init__(self, where: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0][0]
        super().__init__(where, handler)


class StatusServer:
    """Serves the pages on threads of its own until ``stop``."""

    def __init__(self, pages: Pages, listen: str, *, insecure_bind: bool = False) -> None:
        """
        Raises:
            ConfigurationError: ``listen`` is no address, is not loopback without ``insecure_bind``,
                or is taken.
        """
        check_listen(listen, insecure_bind=insecure_bind)
        try:
            self._server = _PageServer(split_address(listen), _handler_of(pages))
        except OSError as error:
            raise ConfigurationError(
                f"can't serve metrics on {listen}: {error.strerror}"
            ) from error
        self._server.daemon_threads = True
        host, port = self._server.server_address[:2]
        self.address = join_address(str(host), port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="status", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port; blocks for a moment."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler_of(pages: Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One request."""

        timeout = _REQUEST_S

        def do_GET(self) -> None:
            """Answer it."""
            status, kind, body = _page(pages, self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Monitors ask every few seconds: nobody wants to read that."""

    return Handler


def _page(pages: Pages, path: str) -> tuple[int, str, bytes]:
    if path == "/metrics":
        try:
            return 200, pages.metrics_type, pages.metrics()
        except TimeoutError:
            return 503, TEXT, b"the event loop does not answer\n"
    probes = {"/startupz": pages.started, "/livez": pages.live, "/readyz": pages.ready}
    probe = probes.get(path)
    if probe is None:
        return 404, TEXT, b"there are /metrics, /startupz, /livez and /readyz\n"
    try:
        if why := probe():
            return 503, TEXT, f"{why}\n".encode()
        return 200, TEXT, f"{pages.role() if path == '/readyz' else 'ok'}\n".encode()
    except TimeoutError:
        return 503, TEXT, b"the event loop does not answer\n"
