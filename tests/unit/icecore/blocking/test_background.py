"""The loop of blocking clients logs exceptions that no caller awaits."""

import asyncio
import logging
from typing import Any

import pytest

from icecore.blocking.background import tell_unless_idle

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
