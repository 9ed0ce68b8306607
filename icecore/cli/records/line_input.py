"""Lines of files, pipes and terminals as they become available, without blocking the loop.

Memory is bounded by the longest line that is asked for, and the time is proportional to what is
read, also where a line has no end.
"""

import asyncio
import codecs
import os
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import IO, Final

from icecore.errors import InvalidRequestError

_CHUNK_BYTES = 1 << 18
_STDIN = "-"
_MARK_BYTES: Final = 4
_OTHER_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
"""UTF-32 LE begins as UTF-16 LE does."""


class UnreadableInputError(InvalidRequestError):
    """A source can't be opened or read, or is no text."""


def name_of(source: Path) -> str:
    """Return how messages call it."""
    return "stdin" if str(source) == _STDIN else str(source)


def is_typed(source: Path) -> bool:
    """Return whether somebody sits there and types."""
    return str(source) == _STDIN and sys.stdin.isatty()


def check_sources(sources: Sequence[Path]) -> None:
    """Look at all of them before anything of the first one is used.

    Raises:
        UnreadableInputError: One is missing, a folder, or may not be read.
    """
    for source in sources:
        if str(source) == _STDIN:
            continue
        try:
            mode = source.stat().st_mode
            if not stat.S_ISFIFO(mode):  # opening one would wait for its writer
                source.open("rb").close()
        except (OSError, ValueError) as error:
            raise _unreadable(source, error) from error


def _unreadable(source: Path, error: OSError | ValueError) -> UnreadableInputError:
    why = error.strerror if isinstance(error, OSError) else str(error)
    return UnreadableInputError(f"{name_of(source)}: {why}")


async def read_lines(
    source: Path, line_bytes_max: int, *, first_line: int = 1, is_json: bool = False
) -> AsyncIterator[list[bytes]]:
    """Whole lines, a list at a time; a byte order mark of UTF-8 is no part of the first.

    Args:
        source: A file; - is stdin.
        line_bytes_max: A line that has more is refused.
        first_line: Those before it may be longer, and come as empty ones then.
        is_json: Lines are JSON, in which no byte is zero.

    Raises:
        UnreadableInputError: It can't be opened or read, is UTF-16, or has a line too long.
    """
    count, parts, size, head = 0, list[bytes](), 0, b""
    is_begun = False
    try:
        file: IO[bytes] = sys.stdin.buffer if str(source) == _STDIN else _opened(source)
        async for chunk in _chunks(file):
            if not is_begun:
                head += chunk
                if len(head) < _MARK_BYTES and b"\n" not in head:
                    continue
                chunk = _without_mark(head, name_of(source), is_json=is_json)
                is_begun = True
            *lines, rest = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join((*parts, lines[0]))
                parts, size = [], 0
                count += len(lines)
                yield lines
            parts.append(rest)
            size += len(rest)
            if size > line_bytes_max and count + 1 < first_line:
                parts, size = [], 0
            elif size > line_bytes_max:
                where = f"{name_of(source)}, line {count + 1}"
                raise UnreadableInputError(f"{where}: it has no end within {line_bytes_max} bytes")
        if not is_begun and head:
            parts = [_without_mark(head, name_of(source), is_json=is_json)]
        if any(parts):
            yield [b"".join(parts)]
    except (OSError, ValueError) as error:
        raise _unreadable(source, error) from error


def _without_mark(chunk: bytes, name: str, *, is_json: bool) -> bytes:
    """The start of a source, less its mark."""
    if chunk.startswith(_OTHER_MARKS) or (is_json and b"\0" in chunk[:_MARK_BYTES]):
        raise UnreadableInputError(
            f"{name} is UTF-16 or UTF-32, and must be UTF-8: `iconv -t UTF-8` makes it that"
        )
    return chunk.removeprefix(codecs.BOM_UTF8)


def _opened(source: Path) -> IO[bytes]:
    """Open a file. A named pipe is open at once: who waits for its writer in ``open`` hears no
    signal, and nothing that is under way goes on."""
    if not source.is_fifo():
        return source.open("rb")
    return os.fdopen(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    """Read a file, and close it at the end."""
    if file.closed:
        return  # stdin that was named twice
    with file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty()):
            while chunk := file.read(_CHUNK_BYTES):
                await asyncio.sleep(0)  # or Ctrl-C would wait for the end of the file
                yield chunk
            return
        # Pipes and terminals may be silent for long: the producer goes on meanwhile.
        # The loop makes them non-blocking, for all who share them: the shell, and what runs next.
        shared = os.dup(file.fileno())
        was_blocking = os.get_blocking(shared)
        reader = asyncio.StreamReader(limit=_CHUNK_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_read_pipe(lambda: protocol, file)
            try:
                while chunk := await reader.read(_CHUNK_BYTES):
                    yield chunk
            finally:
                transport.close()
        finally:
            os.set_blocking(shared, was_blocking)
            os.close(shared)
