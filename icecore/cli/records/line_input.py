"""Lines of files, pipes and terminals as they become available, without blocking the loop."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import typer

_CHUNK_BYTES = 1 << 18
_STDIN = "-"


def name_of(source: Path) -> str:
    """How messages call it."""
    return "stdin" if str(source) == _STDIN else str(source)


def is_typed(source: Path) -> bool:
    """Return whether somebody sits there and types."""
    return str(source) == _STDIN and sys.stdin.isatty()


async def read_lines(source: Path) -> AsyncIterator[list[bytes]]:
    """Whole lines, a list at a time.

    Raises typer.BadParameter when the file can't be opened or read.
    """
    try:
        file: IO[bytes] = sys.stdin.buffer if str(source) == _STDIN else source.open("rb")
        rest = b""
        with file:
            async for chunk in _chunks(file):
                *lines, rest = (rest + chunk).split(b"\n")
                if lines:
                    yield lines
        if rest:
            yield [rest]
    except OSError as error:
        raise typer.BadParameter(f"{source}: {error.strerror}", param_hint="FILES") from error


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    mode = os.fstat(file.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty()):
        while chunk := file.read(_CHUNK_BYTES):
            await asyncio.sleep(0)  # or Ctrl-C would wait for the end of the file
            yield chunk
        return
    # Pipes and terminals may be silent for long: the producer goes on meanwhile.
    reader = asyncio.StreamReader(limit=_CHUNK_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            yield chunk
    finally:
        transport.close()
