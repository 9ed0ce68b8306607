"""Output of the command line: tables for people, JSON for programs, progress beside both.

Data goes to stdout and nothing else does; notes and progress bars go to stderr, the latter only
when that is a terminal. JSON is chosen by ``--json`` or when stdout is not a terminal: one object
with ``schema`` in it, whose fields stay what they are while that number does; a list is in its
``items``. docs/reference/commands-contract.md says what there is.

Numbers are printed as they can be pasted: digits without separators. Sizes for people end in KiB,
MiB …, as they are typed; times are ISO 8601 in UTC.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


def use_utf8() -> None:
    """Print UTF-8 into files and pipes, whatever the locale: JSON has no other form. What is no
    text, as some names of files, is printed as JSON escapes it (``\\udce9``)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            encoding = None if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def drop_output() -> None:
    """Write nothing more to stdout: its reader is gone, or its disk is full."""
    with suppress(OSError, ValueError):  # a test's stdout is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    """One line on stderr. What nobody can read ends nothing."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


SCHEMA = 1
"""Version of all JSON documents. It changes when a field goes away or means something else."""
_LOG_WIDTH = 140
_EMPTY: tuple[object, ...] = (None, "", (), [])


class Output:
    """Output of one command; ``is_json`` says whether a program reads it."""

    def __init__(self, *, is_json: bool, is_quiet: bool) -> None:
        self._has_json_errors = is_json
        self.is_json = is_json or not sys.stdout.isatty()
        self.is_quiet = is_quiet

    def json(self, value: object) -> None:
        """Print one JSON document: a mapping with its schema, anything else as its ``items``."""
        fields = value if isinstance(value, Mapping) else {"items": value}
        document = {"schema": SCHEMA, **fields}
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")

    def line(self, fields: Mapping[str, object]) -> None:
        """Print one JSON document on one line, for those that come one after the other."""
        text = json.dumps({"schema": SCHEMA, **fields}, ensure_ascii=False)
        print(text, flush=True)

    def verdict(self, word: str, rest: str, status: int) -> None:
        """One word that says it all, in a colour where there is one, and the rest of the line."""
        colour = {0: "32", 10: "33"}.get(status, "31")
        is_coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        shown = f"\x1b[1;{colour}m{word}\x1b[0m" if is_coloured else word
        print(f"{shown}  {rest}".rstrip(), flush=True)

    def table(
        self, rows: Iterable[Mapping[str, object]], columns: Sequence[str], title: str = ""
    ) -> None:
        """Print rows as a table of these columns but empty ones; for people only."""
        # rich is loaded where something is drawn: `icecore --help` needs none of it.
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(title) if title else None,
            title_justify="left",
            header_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        rows = list(rows)
        columns = [c for c in columns if not rows or any(row.get(c) not in _EMPTY for row in rows)]
        for name in columns:
            is_number = all(isinstance(row.get(name), int) for row in rows)
            words = name.split("_")
            table.add_column(
                " ".join(words),
                justify="right" if is_number else "left",
                overflow="fold",
                min_width=max(map(len, words)),  # a heading breaks between words
            )
        for row in rows:
            table.add_row(*(_cell(row.get(name)) for name in columns))
        # A log file or a CI page is no terminal and has no width: take one that tables fit in.
        width = None if sys.stdout.isatty() else _LOG_WIDTH
        Console(highlight=False, width=width).print(table)

    def rows(
        self, rows: Iterable[Mapping[str, object]], columns: Sequence[str], title: str = ""
    ) -> None:
        """A table for people, the whole rows as a JSON list for programs."""
        if self.is_json:
            self.json(list(rows))
        else:
            self.table(rows, columns, title)

    def note(self, text: str) -> None:
        """One line on stderr, unless ``--quiet``."""
        if not self.is_quiet:
            _say(text)

    def error(self, text: str) -> None:
        """One line on stderr, always."""
        _say(f"icecore: {text}")

    def failure(self, text: str, status: int, reason: str = "FAILED") -> None:
        """Return why the command ends with this status: one line on stderr, a JSON object with
        ``--json``."""
        if not self._has_json_errors:
            self.error(text)
            return
        error = {"reason": reason, "message": text, "status": status}
        _say(json.dumps({"schema": SCHEMA, "error": error}, ensure_ascii=False))

    def progress(self, *, is_shown: bool = True) -> "Progress":
        """A progress display on stderr that shows nothing where nobody would see it move."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True, highlight=False)
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f} records"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=self.is_quiet or not is_shown or not console.is_terminal,
        )


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    if value in _EMPTY:
        return "-"
    return str(value)


def size(count: int) -> str:
    """Bytes for people: ``64MiB``, ``1.5GiB``; what is typed comes back as it was typed."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.4g}{unit}" if amount < 1000 else f"{amount:.0f}{unit}"


def counted(count: int, what: str) -> str:
    """``1 record``, ``2 records``; of ``batch``, ``batches``."""
    if count == 1:
        return f"1 {what}"
    return f"{count} {what}{'es' if what.endswith('h') else 's'}"


def plain(value: Any) -> Any:
    """A value of the client API as JSON values: bytes are hexadecimal, enums lower case names."""
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, Exception):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
