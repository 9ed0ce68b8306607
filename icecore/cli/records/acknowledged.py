"""The lines of the input that are acknowledged: up to which one all are, how many behind it.

Whoever interrupts a command, or repairs a line that could not be read, goes on behind that line.
"""

from collections import deque
from collections.abc import Callable

from icecore.cli.output import counted
from icecore.client.produce.batches import SendHandle
from icecore.client.types import RecordMetadata
from icecore.errors import IcecoreError

OnRecord = Callable[[str, int, RecordMetadata], None]
"""Called with the source, the line and where the record is; in the order of the input."""


class Acknowledged:
    """The handles of records that were sent, in the order of the input."""

    def __init__(self, on_record: OnRecord | None = None) -> None:
        self.records = 0
        """Acknowledged, all that came before included."""
        self.behind = 0
        """Acknowledged behind one that is not."""
        self.source, self.line = "", 0
        """Source and line of the last of ``records``."""
        self.failure: IcecoreError | None = None
        """Error of the first refused record."""
        self._on_record = on_record
        self._open: deque[tuple[str, int, SendHandle]] = deque()

    @property
    def waiting(self) -> int:
        """Return how many have no outcome yet."""
        return len(self._open)

    def sent(self, source: str, line: int, handle: SendHandle) -> None:
        """A record of this line is under way."""
        self._open.append((source, line, handle))

    async def settle(self) -> None:
        """Take note of what was answered. Does not wait."""
        while self._open and self._open[0][2].is_done:
            source, line, handle = self._open.popleft()
            try:
                found = await handle
            except IcecoreError as error:
                self.failure = self.failure or error
                continue
            if self.failure is not None:
                self.behind += 1
                continue
            self.records += 1
            self.source, self.line = source, line
            if self._on_record is not None:
                self._on_record(source, line, found)

    async def close(self) -> None:
        """Nothing comes any more: what has no outcome now has none that is known."""
        await self.settle()
        for _, _, handle in self._open:
            if handle.is_done:
                try:
                    await handle
                except IcecoreError as error:
                    self.failure = self.failure or error
                else:
                    self.behind += 1
        self._open.clear()

    def sentence(self, first_source: str, first_line: int) -> str:
        """For people, with what to do next."""
        if not self.records:
            said, source, line = "no record is acknowledged", first_source, first_line - 1
        else:
            are = "is" if self.records == 1 else "are"
            source, line = self.source, self.line
            said = f"{counted(self.records, 'record')} {are} acknowledged, up to line {line}"
            said += f" of {source}"
        if self.behind:
            said += f", and {self.behind} behind it"
        return f"{said}; go on with --from-line {line + 1} of {source}"
