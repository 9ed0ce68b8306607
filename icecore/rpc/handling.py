"""Failures of handlers and refusals of calls, the same for every transport."""

import logging

from icecore.errors import IcecoreError, InternalError, ThrottledError
from icecore.process.log import event

_log = logging.getLogger(__name__)


def failure_of(method: str, error: BaseException) -> IcecoreError:
    """Return the error for the caller: our own errors as they are, all others without details."""
    if isinstance(error, IcecoreError):
        return error
    event(_log, logging.ERROR, "call_failed", method=method, error=error, exc_info=error)
    return InternalError("unexpected failure; the server's log has the details")


def unread(unsent_bytes: int, bytes_max: int) -> ThrottledError | None:
    """Return why no more answers may be made or handed on now: callers have too many unread ones.
    A call asks when it begins, and once more with its answer: others have begun beside it."""
    if unsent_bytes <= bytes_max:
        return None
    return ThrottledError(
        f"{unsent_bytes} bytes of answers wait for clients to read them", retry_after_ms=50
    )
