"""Our own mistakes, as the logs of servers show them."""

from collections.abc import Iterator
from pathlib import Path


def caught_by_loops(cluster_folder: Path) -> Iterator[str]:
    """Exceptions that a server's event loop had to catch: no test may leave one behind."""
    for log in sorted((cluster_folder / "logs").glob("*.log")):
        for line in log.read_text(errors="replace").splitlines():
            if " ERROR asyncio " in line:
                yield f"{log.name}: {line}"
