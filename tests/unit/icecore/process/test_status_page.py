"""Monitors see the pages that there are, and no others."""

import http.client
import socket
from collections.abc import Iterator

import pytest

from icecore.errors import ConfigurationError
from icecore.process.status_page import Pages, StatusServer


class Asked:
    """The status that the page shows, as a test wants it."""

    def __init__(self) -> None:
        self.live = self.ready = self.started = ""
        self.is_late = False

    def metrics(self) -> bytes:
        if self.is_late:
            raise TimeoutError
        return b"up 1\n"


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def server(asked: Asked) -> Iterator[StatusServer]:
    pages = Pages(
        asked.metrics, "text/x", lambda: asked.live, lambda: asked.ready, lambda: asked.started
    )
    server = StatusServer(pages, "127.0.0.1:0")
    yield server
    server.stop()


def get(server: StatusServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.address, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_pages(server: StatusServer, asked: Asked) -> None:
    assert get(server, "/metrics") == (200, b"up 1\n")
    assert get(server, "/metrics?name=up") == (200, b"up 1\n")
    probes = ("/startupz", "/livez", "/readyz")
    assert {get(server, each) for each in probes} == {(200, b"ok\n")}
    asked.started = "it is recovering its disks"
    assert get(server, "/startupz") == (503, b"it is recovering its disks\n")
    asked.started = ""
    asked.ready = "its disk is full"
    assert get(server, "/livez") == (200, b"ok\n")
    assert get(server, "/readyz") == (503, b"its disk is full\n")
    asked.live = "the event loop has not turned for 11 s"
    assert get(server, "/livez")[0] == 503
    assert get(server, "/readyz", "HEAD") == (503, b"")
    asked.is_late = True
    assert get(server, "/metrics")[0] == 503


@pytest.mark.parametrize("path", ["/", "/healthz", "/ready", "/metrics/", "/livez/x"])
def test_nothing_else_is_there(server: StatusServer, path: str) -> None:
    assert get(server, path)[0] == 404
    assert get(server, path, "HEAD") == (404, b"")
    assert get(server, "/livez", "POST")[0] == 501


def test_addresses_that_are_refused(server: StatusServer, asked: Asked) -> None:
    pages = Pages(asked.metrics, "text/x", str, str)
    for address in ("0.0.0.0:0", "nonsense", server.address):
        with pytest.raises(ConfigurationError):
            StatusServer(pages, address)


def test_who_says_nothing_keeps_nobody_waiting(server: StatusServer) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), 10):
        assert get(server, "/livez")[0] == 200
