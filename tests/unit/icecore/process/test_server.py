"""A server's process: what ends it, with which status, and what it says."""

import asyncio
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from icecore.errors import ConfigurationError, UnavailableError
from icecore.process import server
from icecore.process.log import LogFormat
from icecore.process.server import ServerProcess
from icecore.process.status_page import Pages


@dataclass(frozen=True)
class FakeSettings:
    """Settings that each server has."""

    log_level: str = "error"
    log_format: LogFormat = "text"
    descriptors_min: int = 1
    metrics_listen: str = ""
    insecure_bind: bool = False

    def check_addresses(self) -> None:
        """All are good."""


@pytest.fixture
async def process() -> AsyncIterator[ServerProcess]:
    process = ServerProcess("icecore-test", FakeSettings(), 1024)
    yield process
    await process.close()


async def test_work_that_ends_by_itself_has_ended(process: ServerProcess) -> None:
    assert await process.has_ended(asyncio.sleep(0))
    with pytest.raises(UnavailableError):
        await process.has_ended(_fail())


async def _fail() -> None:
    raise UnavailableError("the disk is gone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_wait_and_cancels_the_work(
    process: ServerProcess, number: signal.Signals
) -> None:
    was_cancelled = asyncio.Event()

    async def work() -> None:
        signal.raise_signal(number)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    assert not await process.has_ended(work())
    assert was_cancelled.is_set()
    assert not await process.has_ended(asyncio.Event().wait())  # type: ignore[arg-type]


async def test_a_signal_does_not_hide_a_mistake_in_the_work(process: ServerProcess) -> None:
    async def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        await process.has_ended(work())


async def test_pages_are_shown_only_at_an_address_and_until_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def pages() -> Pages:
        return Pages(lambda: b"m 1\n", "text/plain", str, str)

    silent = ServerProcess("icecore-test", FakeSettings(), 1024)
    silent.show(lambda: pytest.fail("nobody asked for pages"))
    await silent.close()

    shown = ServerProcess("icecore-test", FakeSettings(metrics_listen="127.0.0.1:0"), 1024)
    shown.show(pages)
    assert shown._status is not None
    url = f"http://{shown._status.address}/metrics"
    try:
        assert await asyncio.to_thread(_read, url) == b"m 1\n"
        shown.say_ready(node_id=1, address="a:1")
    finally:
        await shown.close()
    assert capsys.readouterr().out == "icecore-test ready node_id=1 address=a:1\n"
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(_read, url)


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return bytes(answer.read())


PROGRAM = """
import sys
from icecore.errors import ConfigurationError
from icecore.process.server import run
from tests.unit.icecore.process.test_server import FakeSettings
async def serve(settings, process):
    {body}
sys.exit(run("icecore-test", FakeSettings, serve))
"""


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("return", 0, ""),
        ("raise ConfigurationError('no disk: mount it')", 1, "icecore-test: no disk: mount it\n"),
        ("import signal; signal.raise_signal(signal.SIGTERM)", 0, ""),
    ],
)
def test_a_server_ends_with_a_status_and_at_most_one_line(
    body: str, status: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, said)


def test_settings_that_are_wrong_start_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "tune_process", lambda: None)

    def load() -> FakeSettings:
        raise ConfigurationError("io_worker is unknown: io_workers?")

    async def serve(settings: FakeSettings, process: ServerProcess) -> None:
        pytest.fail("it was started")

    assert server.run("icecore-test", load, serve) == 1
    assert capsys.readouterr().err == "icecore-test: io_worker is unknown: io_workers?\n"
