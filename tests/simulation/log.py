"""The log of the shells: unhandled failures, and cases that the coordinator cannot decide."""

import logging
import re
import traceback

from icecore.errors import IcecoreError
from tests.simulation.loop import SimLoop
from tests.simulation.process import PROCESS

UNDECIDED = re.compile(r"event=(alert|recovery_undecided) segment_id=(\d+)")


class SimLog(logging.Handler):
    """Puts log lines into the kept trace. An unexpected exception is a failure."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop
        self.alerts: list[str] = []
        """Calls for an operator."""
        self.undecided: dict[int, str] = {}
        """Segments that a coordinator said it could do nothing about, with its last words."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        process = PROCESS.get()
        if process is not None and not process.alive:
            return
        error = record.exc_info[1] if record.exc_info else None
        message = record.getMessage()
        if found := UNDECIDED.match(message):
            self.undecided[int(found[2])] = message
        if message.startswith("event=alert"):
            self.alerts.append(f"{process} called for help: {message}")
        if error is not None and not isinstance(error, IcecoreError):
            where = "".join(traceback.format_exception(error))
            self._loop.failures.append(f"{process} logged {message}: {where}")
        if self._loop.trace_log is not None:
            line = f"{self._loop.time():12.6f}   {process} {record.levelname} {message}"
            self._loop.trace_log.append(line)
