"""What the command line prints: tables for people, JSON for programs, progress beside both.

Data goes to stdout and nothing else does; notes and progress bars go to stderr, the latter only
when that is a terminal. JSON is chosen by ``--json`` or when stdout is not a terminal.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

_LOG_WIDTH = 140
_EMPTY: tuple[object, ...] = (None, "", (), [])


class Output:
    """Where a command prints. ``is_json`` says which kind of caller there is."""

    def __init__(self, *, is_json: bool, is_quiet: bool) -> None:
        self.is_json = is_json or not sys.stdout.isatty()
        self.is_quiet = is_quiet
        # A log file or a CI page is no terminal and has no width: take one that tables fit in.
        self._out = Console(highlight=False, width=None if sys.stdout.isatty() else _LOG_WIDTH)
        self._err = Console(stderr=True, highlight=False)

    def json(self, value: object) -> None:
        """Print one JSON document."""
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def table(
        self, rows: Iterable[Mapping[str, object]], columns: Sequence[str], title: str = ""
    ) -> None:
        """Print rows as a table of these columns but empty ones; for people only."""
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
            table.add_column(
                name.replace("_", " "), justify="right" if is_number else "left", overflow="fold"
            )
        for row in rows:
            table.add_row(*(_cell(row.get(name)) for name in columns))
        self._out.print(table)

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
            self._err.print(text, markup=False, soft_wrap=True)

    def error(self, text: str) -> None:
        """One line on stderr, always."""
        self._err.print(f"icecore: {text}", markup=False, soft_wrap=True)

    def progress(self) -> Progress:
        """A progress display on stderr that shows nothing where nobody would see it move."""
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} records"),
            TimeElapsedColumn(),
            console=self._err,
            transient=True,
            disable=self.is_quiet or not self._err.is_terminal,
        )


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    if value in _EMPTY:
        return "-"
    return f"{value:,}" if isinstance(value, int) and value > 99_999 else str(value)


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
