"""Failures of handlers, treated alike by every transport."""

import logging

from icecore.errors import IcecoreError, InternalError
from icecore.process.log import event

_log = logging.getLogger(__name__)


def failure_of(method: str, error: BaseException) -> IcecoreError:
    """Return the error for the caller: our own errors as they are, all others without details."""
    if isinstance(error, IcecoreError):
        return error
    event(_log, logging.ERROR, "call_failed", method=method, error=error, exc_info=error)
    return InternalError("unexpected failure; the server's log has the details")
