"""Starts a program of ours and no other: ``python -P …/launch.py icecore_node --data …``.

``python -m icecore_node`` would take a ``node.py`` of the working directory, or of a folder in
PYTHONPATH, for ours. Here the folder of this file says where our packages are; all other modules
are found as ever, also by PYTHONPATH.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_OURS = frozenset({"icecore", "icecore_replication", "icecore_node", "icecore_coordinator"})
_HOME = Path(__file__).resolve().parents[2]
_ROOTS = [str(_HOME), *(str(_HOME / folder) for folder in ("replication", "node", "coordinator"))]
"""Folders of our packages: side by side when installed, below these folders in a checkout."""


def command(module: str) -> list[str]:
    """Return the command that runs the module; the program's arguments follow it."""
    return [sys.executable, "-P", str(Path(__file__).resolve()), module]


class _Ours(MetaPathFinder):
    """Finds our packages beside this one, before anybody else looks for them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, _ROOTS) if name in _OURS else None


if __name__ == "__main__":
    sys.meta_path.insert(0, _Ours())
    del sys.argv[0]
    from icecore.extras import as_one_line  # found by the line above

    with as_one_line(sys.argv[0], "server"):
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
