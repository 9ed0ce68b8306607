"""Mistakes of ours and warnings, as the logs of servers show them."""

from collections.abc import Iterator
from pathlib import Path

_WARNINGS = (" WARNING ", " ERROR ", " CRITICAL ")


def caught_by_loops(cluster_folder: Path) -> Iterator[str]:
    """Exceptions that a server's event loop had to catch: no test may leave one behind."""
    for log in sorted((cluster_folder / "logs").glob("*.log")):
        for line in log.read_text(errors="replace").splitlines():
            if " ERROR asyncio " in line:
                yield f"{log.name}: {line}"


def warned_by_servers(cluster_folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and lines of each server's log from WARNING upwards, also of runs before its restart."""
    for log in sorted((cluster_folder / "logs").glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        yield log.stem, [line for line in lines if any(level in line for level in _WARNINGS)]
