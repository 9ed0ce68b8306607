"""The loop of blocking clients logs exceptions that no caller awaits."""

import asyncio
import logging
import subprocess
import sys
import time
from typing import Any

import pytest

from icecore.blocking.background import Background, tell_unless_idle
from icecore.errors import UnavailableError

CALLBACK = "Exception in callback PollerCompletionQueue._handle_events()()"


@pytest.mark.parametrize(
    ("message", "error", "is_told"),
    [
        (CALLBACK, BlockingIOError(11, "Resource temporarily unavailable"), False),
        (CALLBACK, OSError("no socket"), True),
        ("Task exception was never retrieved", BlockingIOError(11, "try again"), True),
    ],
)
def test_only_what_an_old_grpc_raises_for_nothing_is_left_out(
    caplog: pytest.LogCaptureFixture, message: str, error: OSError, is_told: bool
) -> None:
    context: dict[str, Any] = {"message": message, "exception": error}
    loop = asyncio.new_event_loop()
    with caplog.at_level(logging.ERROR, "asyncio"):
        tell_unless_idle(loop, context)
    loop.close()
    assert bool(caplog.records) is is_told


def test_who_waits_hears_that_the_thread_has_ended() -> None:
    own = Background()
    own.run(asyncio.sleep(0))
    own.loop.call_later(0.1, own.loop.stop)  # on its way, as after what no callback may do
    own.loop.call_soon_threadsafe(lambda: None)
    began_s = time.monotonic()
    for _ in range(2):
        with pytest.raises(UnavailableError, match="own thread has ended"):
            own.run(asyncio.sleep(60))
    assert own.is_gone
    assert time.monotonic() - began_s < 5


def test_a_timeout_is_told_from_one_of_the_coroutine() -> None:
    own = Background()

    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        own.run(fail(), 5)
    with pytest.raises(TimeoutError):
        own.run(asyncio.sleep(60), 0.05)
    own.loop.call_soon_threadsafe(own.loop.stop)


ENDS = """
import asyncio
from icecore.blocking import Admin
from icecore.blocking.background import background

class Held:
    def __init__(self):
        self.admin = Admin("127.0.0.1:1")
    def __del__(self):
        self.admin.close()
        try:
            background.run(asyncio.sleep(0))
        except Exception as error:
            print(type(error).__name__)

held = Held()
"""


def test_a_process_ends_though_something_is_closed_last() -> None:
    """Its objects go after all daemon threads."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "UnavailableError\n", "")
